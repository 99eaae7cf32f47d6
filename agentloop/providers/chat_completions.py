"""Chat Completions over HTTP: one request a send, its stream checked to the end.

Nothing here sends twice. Redirects are not followed, a connection error is not retried (the HTTP
library retries idempotent methods only, and a chat request is a POST), a refused stream is not asked
for again in another form (R114, R121). Keys are asked for at each send and kept nowhere else; no
error, representation or recording of this module holds one.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Final, NoReturn

import aiohttp

from ..admission import is_unicode, pattern
from ..errors import (
    InputError,
    LimitExceeded,
    ProviderError,
    SendTimeout,
    StreamRefused,
)
from ..limits import ENCODED_REQUEST_BYTES, EVENT_BYTES, RESPONSE_BYTES, Timeouts, check_count
from ..messages import ModelRequest
from ..wire.assembler import ReplyAssembler
from ..wire.dialect import Dialect
from ..wire.encode import EncodedRequest, encode_request
from .endpoint import check_key, choose_dialect, read_base_url, request_headers, string_pairs
from .http_errors import body_kind, parse_error_body, status_error
from .http_source import HTTPSource, is_event_stream, read_some, translate_error
from .output_limit import OutputLimit
from .provider import ModelStream, RequestInspection
from .reading import ReplyStream
from .recording import Recorder
from .secrets import redact_text, secret_values

__all__ = ["ApiKey", "ChatCompletions"]

ApiKey = str | Callable[[], str | Awaitable[str]]
"""A key, or a function called before each send that returns one, at once or awaited."""

_ERROR_BODY_SECONDS: Final = 5.0
"""How long an error's body is waited for; what has come by then is used."""

_KEEPALIVE_SECONDS: Final = 4.0
"""Idle connections are dropped before common servers drop them (5 s), so that no request meets a closing one."""

_TIMEOUTS: Final = Timeouts()
_BODY_IN_ONE_WRITE: Final = 1 << 20  # above this the HTTP library wants a file object
_VISIBLE: Final = pattern(r"[\x21-\x7e]+")


class ChatCompletions:
    """A model behind a Chat Completions endpoint.

    Args:
        base_url: ``http`` or ``https``, with or without a slash at its end; ``/chat/completions`` is
            added. No user, password, query or fragment.
        model: sent as it is.
        api_key: sent as ``Authorization: Bearer``; None sends no such header.
        headers: added to each request; may replace Accept, Accept-Encoding and User-Agent.
        query: added to the URL, as ``{"api-version": "…"}``.
        dialect: a preset's name or a `Dialect`; None takes the preset for the host, else ``openai``.
        max_in_flight: sends at a time; more wait in order of arrival. Waiting is on no clock. None
            is no limit.
        timeouts: see `Timeouts`. Waiting for ``max_in_flight`` and the key is on none of them.
        max_request_bytes, max_response_bytes, max_event_bytes: ceilings of the encoded request, the
            decoded body and one event.
        output_token_limit: hard cap of the output of each request, 1 and up; None has none. A request
            that asks for more (`ModelOptions.max_output_tokens`) is refused before it is sent, with
            `LimitExceeded`; one that asks for none is sent with the cap as its ceiling.
        session: used instead of an own one and never closed here. Its middlewares, redirects and
            status checks are switched off for these requests.
        trust_env: let the own session read proxy settings from the environment.
        recorder: writes what the endpoint answers into a folder.
        wall_clock: POSIX time, against which a ``Retry-After`` date is measured.

    Raises:
        InputError: an argument that is not as said, by name; never with its value when that may
            hold a key.
    """

    name: Final = "chat-completions"

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        api_key: ApiKey | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        dialect: str | Dialect | None = None,
        max_in_flight: int | None = None,
        timeouts: Timeouts = _TIMEOUTS,
        max_request_bytes: int = ENCODED_REQUEST_BYTES,
        max_response_bytes: int = RESPONSE_BYTES,
        max_event_bytes: int = EVENT_BYTES,
        output_token_limit: int | None = None,
        session: aiohttp.ClientSession | None = None,
        trust_env: bool = False,
        recorder: Recorder | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        base = read_base_url(base_url)
        if type(model) is not str or not model or not is_unicode(model):
            raise InputError("ChatCompletions.model: expected a non-empty string that UTF-8 can encode")
        if max_in_flight is not None:
            check_count("ChatCompletions.max_in_flight", max_in_flight, 1)
        check_count("ChatCompletions.max_request_bytes", max_request_bytes, 1)
        check_count("ChatCompletions.max_response_bytes", max_response_bytes, 1)
        check_count("ChatCompletions.max_event_bytes", max_event_bytes, 1)
        if type(api_key) is str:
            check_key(api_key)
        elif api_key is not None and not callable(api_key):
            raise InputError("ChatCompletions.api_key: expected a string, a function or None")
        _require_kind("timeouts", timeouts, Timeouts)
        _require_kind("trust_env", trust_env, bool)
        if session is not None:
            _require_kind("session", session, aiohttp.ClientSession)
        if recorder is not None:
            _require_kind("recorder", recorder, Recorder)
        self.base_url, self.model = str(base), model
        self.dialect = choose_dialect(dialect, base.host or "")
        self.timeouts = timeouts
        clocks = [("total_timeout", timeouts.total), ("first_event_timeout", timeouts.first_event)]
        told: list[tuple[str, float | None]] = [(code, seconds) for code, seconds in clocks if seconds is not None]
        self._answer_clock = min(told, key=lambda clock: clock[1] or 0.0, default=("", None))
        self._connect_clock = aiohttp.ClientTimeout(total=None, connect=timeouts.connect, sock_connect=None)
        self.max_request_bytes, self.max_response_bytes = max_request_bytes, max_response_bytes
        self.max_event_bytes, self.max_in_flight = max_event_bytes, max_in_flight
        self._url = (base / "chat" / "completions").update_query(string_pairs("query", query))
        self._headers = request_headers(headers, has_key=api_key is not None)
        self._api_key, self._given_session, self._trust_env = api_key, session, trust_env
        self._recorder, self._wall_clock = recorder, wall_clock
        self._output = OutputLimit("ChatCompletions", output_token_limit)
        self._known_secrets = secret_values(headers, query)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: aiohttp.ClientSession | None = None
        self._slots: asyncio.Semaphore | None = None

    def __repr__(self) -> str:
        return f"ChatCompletions({self.base_url!r}, model={self.model!r}, dialect={self.dialect.name!r})"

    @property
    def output_token_limit(self) -> int | None:
        """The hard cap of the output of each request; None where there is none."""
        return self._output.tokens

    def inspect_request(self, request: ModelRequest) -> RequestInspection:
        """Say what the request would weigh; sends nothing. See `Provider.inspect_request`."""
        return RequestInspection.of(encode_request(self._output.fit(request), model=self.model, dialect=self.dialect))

    def stream(
        self, request: ModelRequest, *, attempt_id: str, max_reply_bytes: int | None = None
    ) -> AbstractAsyncContextManager[ModelStream]:
        """Send the request once, when the block is entered. See `Provider.stream`."""
        return _Send(self, request, attempt_id, max_reply_bytes)

    async def aclose(self) -> None:
        """Close the own session; streams still open break. A later send opens a new one."""
        session, self._session, self._loop, self._slots = self._session, None, None, None
        if session is not None:
            await session.close()

    def _bind(self) -> aiohttp.ClientSession:
        """The session of the running loop."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            raise InputError(
                "ChatCompletions: expected the event loop it was used in before; call aclose() there to free it"
            )
        self._loop = loop
        if self._slots is None and self.max_in_flight is not None:
            self._slots = asyncio.Semaphore(self.max_in_flight)
        if self._given_session is not None:
            return self._given_session
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=self._trust_env,
            )
        return self._session

    async def _key(self, attempt_id: str) -> str | None:
        if self._api_key is None or isinstance(self._api_key, str):
            return self._api_key
        try:
            found = self._api_key()
            key = await found if inspect.isawaitable(found) else found
        except Exception as error:
            raise ProviderError(
                f"api_key: expected a key from the function, got {type(error).__name__}",
                attempt_id=attempt_id,
                may_have_been_processed=False,
            ) from error
        check_key(key)
        return key


class _Send:
    """One send: entering it sends, leaving it ends the stream."""

    __slots__ = ("_attempt_id", "_limit", "_owner", "_request", "_stream")

    def __init__(self, owner: ChatCompletions, request: ModelRequest, attempt_id: str, limit: int | None) -> None:
        self._owner, self._request, self._attempt_id, self._limit = owner, request, attempt_id, limit
        self._stream: ReplyStream | None = None

    async def __aenter__(self) -> ModelStream:
        owner = self._owner
        if not _VISIBLE().fullmatch(self._attempt_id) or len(self._attempt_id) > 128:
            raise InputError("attempt_id: expected 1 to 128 visible ASCII characters")
        if self._stream is not None:
            raise InputError("stream: expected to be entered once; one send is one request")
        encoded = encode_request(owner._output.hold(self._request), model=owner.model, dialect=owner.dialect)
        if encoded.body_bytes > owner.max_request_bytes:
            raise LimitExceeded("max_request_bytes", owner.max_request_bytes, encoded.body_bytes)
        session, slots = owner._bind(), owner._slots
        if slots is not None:
            await slots.acquire()
        self._stream = await self._send(session, encoded, slots)
        return self._stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.leave()

    async def _send(
        self, session: aiohttp.ClientSession, encoded: EncodedRequest, slots: asyncio.Semaphore | None
    ) -> ReplyStream:
        owner, loop = self._owner, asyncio.get_running_loop()
        tape = None
        try:
            key = await owner._key(self._attempt_id)
            secrets = (*owner._known_secrets, key) if key else owner._known_secrets
            headers = {**owner._headers, "X-Client-Request-Id": self._attempt_id}
            if key is not None:
                headers["Authorization"] = f"Bearer {key}"
            body = encoded.body
            if owner._recorder is not None:
                sizes = RequestInspection.of(encoded)
                tape = owner._recorder.begin(model=owner.model, body=body, inspection=sizes, secrets=secrets)
            started = loop.time()
            response = await self._post(session, body, headers, started)
        except BaseException:
            if slots is not None:
                slots.release()
            raise
        source = HTTPSource(response, slots, tape)
        try:
            if response.status != 200 or not is_event_stream(response):
                await self._refuse(source, started, secrets)
            stream = ReplyStream(self._assembler(), source, now=loop.time, secrets=secrets)
            source.watch(stream, owner.timeouts, started=started, loop=loop)
        except BaseException:
            source.end("abandoned")
            raise
        return stream

    def _assembler(self) -> ReplyAssembler:
        owner = self._owner
        return ReplyAssembler(
            owner.dialect,
            max_event_bytes=owner.max_event_bytes,
            max_response_bytes=owner.max_response_bytes,
            max_reply_bytes=self._limit,
        )

    async def _post(
        self, session: aiohttp.ClientSession, body: bytes, headers: dict[str, str], started: float
    ) -> aiohttp.ClientResponse:
        """Send, and wait for the answer's head."""
        code, seconds = self._owner._answer_clock
        clock = asyncio.timeout_at(None if seconds is None else started + seconds)
        failure: ProviderError
        try:
            async with clock:
                return await session.post(
                    self._owner._url,
                    data=body if len(body) <= _BODY_IN_ONE_WRITE else io.BytesIO(body),
                    headers=headers,
                    allow_redirects=False,
                    raise_for_status=False,
                    auto_decompress=True,
                    middlewares=(),
                    timeout=self._owner._connect_clock,
                )
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            if clock.expired():
                failure = SendTimeout(
                    f"{code}: expected an answer within {seconds:g} s, got none", code=code, attempt_id=self._attempt_id
                )
            else:
                url = self._owner._url
                failure = translate_error(error, self._attempt_id, server=f"{url.scheme}://{url.host}:{url.port}")
        raise failure  # outside the handler: what the HTTP library raised may hold the request's headers

    async def _refuse(self, source: HTTPSource, started: float, secrets: tuple[str, ...]) -> NoReturn:
        """Raise for an answer that is no event stream, with what its body says."""
        owner, loop, response = self._owner, asyncio.get_running_loop(), source.response
        until = loop.time() + _ERROR_BODY_SECONDS
        if owner.timeouts.total is not None:
            until = min(until, started + owner.timeouts.total)
        body, whole = await read_some(response.content, until)
        if source.tape is not None:
            source.tape.add(body)
        source.end("complete" if whole else "cut")
        if response.status != 200:
            raise status_error(
                response.status,
                response.headers,
                body,
                attempt_id=self._attempt_id,
                now=owner._wall_clock(),
                secrets=secrets,
            )
        vendor = parse_error_body(body, secrets=secrets) if body.lstrip()[:1] in (b"{", b"[") else None
        raise StreamRefused(
            "not_event_stream",
            0,
            0,
            "content type text/event-stream",
            redact_text(body_kind(response.headers.get("Content-Type", ""), body[:64]), secrets),
            dialect=owner.dialect.name,
            vendor_code=vendor.code if vendor else None,
            vendor_type=vendor.type if vendor else None,
            vendor_message=vendor.message if vendor else None,
        )


def _require_kind(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InputError(f"ChatCompletions.{field}: expected {kind.__name__}, got {type(value).__name__}")
