"""A provider that answers from recordings, without a network: the same checks on the same bytes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Final

from ..errors import InputError, LimitExceeded, ProviderError, StreamRefused
from ..limits import ENCODED_REQUEST_BYTES, EVENT_BYTES, RESPONSE_BYTES, check_count
from ..messages import ModelRequest
from ..wire.assembler import ReplyAssembler
from ..wire.dialect import Dialect
from ..wire.encode import encode_request
from ..wire.presets import dialect as preset
from .http_errors import body_kind, status_error
from .provider import ModelStream, RequestInspection
from .reading import Cut, ReplyStream
from .recording import Ended, Recording, load_recordings

__all__ = ["ReplayProvider"]


class ReplayProvider:
    """Gives each send the next recording; the reads have the recorded sizes where they are known.

    Args:
        recordings: a folder (in the order of names), or files and `Recording` values in order.
        model: use only the recordings of this model, or of this name; None uses all.
        dialect: a preset's name or a `Dialect`.
        repeat: begin again after the last recording, instead of failing.
        max_request_bytes, max_response_bytes, max_event_bytes: as for `ChatCompletions`.
        wall_clock: POSIX time, against which a ``Retry-After`` date is measured.

    Attributes:
        requests: every request sent, in order.

    Raises:
        InputError: there is no recording to use, or the dialect is unknown.
    """

    name: Final = "replay"

    def __init__(
        self,
        recordings: str | Path | Sequence[str | Path | Recording],
        *,
        model: str | None = None,
        dialect: str | Dialect = "openai",
        repeat: bool = False,
        max_request_bytes: int = ENCODED_REQUEST_BYTES,
        max_response_bytes: int = RESPONSE_BYTES,
        max_event_bytes: int = EVENT_BYTES,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        check_count("ReplayProvider.max_request_bytes", max_request_bytes, 1)
        found = load_recordings(recordings)
        mine = tuple(item for item in found if model is None or model in (item.model, item.name))
        if not mine:
            raise InputError(f"ReplayProvider.model: expected a recording of {model!r} among {len(found)}, got none")
        self.model = model or mine[0].model or mine[0].name
        self.dialect = preset(dialect) if isinstance(dialect, str) else dialect
        self.requests: list[ModelRequest] = []
        self._recordings, self._repeat, self._wall_clock = mine, repeat, wall_clock
        self.max_request_bytes, self._max_response_bytes = max_request_bytes, max_response_bytes
        self._max_event_bytes = max_event_bytes

    def __repr__(self) -> str:
        return f"ReplayProvider({len(self._recordings)} recordings, model={self.model!r})"

    @property
    def left(self) -> int:
        """How many recordings were not sent yet."""
        return max(0, len(self._recordings) - len(self.requests))

    def inspect_request(self, request: ModelRequest) -> RequestInspection:
        """Say what the request would weigh. See `Provider.inspect_request`."""
        return RequestInspection.of(encode_request(request, model=self.model, dialect=self.dialect))

    def stream(
        self, request: ModelRequest, *, attempt_id: str, max_reply_bytes: int | None = None
    ) -> AbstractAsyncContextManager[ModelStream]:
        """Take the next recording as the answer. See `Provider.stream`."""
        return _Replay(self, request, attempt_id, max_reply_bytes)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _next(self, request: ModelRequest, attempt_id: str, max_reply_bytes: int | None) -> ReplyStream:
        weight = self.inspect_request(request).body_bytes
        if weight > self.max_request_bytes:
            raise LimitExceeded("max_request_bytes", self.max_request_bytes, weight)
        at = len(self.requests)
        if at >= len(self._recordings) and not self._repeat:
            raise ProviderError(
                f"replay: expected no more sends than recordings ({len(self._recordings)}), got one more",
                attempt_id=attempt_id,
                may_have_been_processed=False,
            )
        self.requests.append(request)
        recording = self._recordings[at % len(self._recordings)]
        if recording.status != 200:
            raise status_error(
                recording.status, recording.headers, recording.body, attempt_id=attempt_id, now=self._wall_clock()
            )
        content_type = recording.headers.get("content-type", "")
        if content_type.split(";", 1)[0].strip().lower() != "text/event-stream":
            got = body_kind(content_type, recording.body[:64])
            raise StreamRefused(
                "not_event_stream", 0, 0, "content type text/event-stream", got, dialect=self.dialect.name
            )
        assembler = ReplyAssembler(
            self.dialect,
            max_event_bytes=self._max_event_bytes,
            max_response_bytes=self._max_response_bytes,
            max_reply_bytes=max_reply_bytes,
        )
        return ReplyStream(assembler, _RecordedSource(recording))


class _Replay:
    """One replayed send."""

    def __init__(self, owner: ReplayProvider, request: ModelRequest, attempt_id: str, limit: int | None) -> None:
        self._owner, self._request, self._attempt_id, self._limit = owner, request, attempt_id, limit
        self._stream: ReplyStream | None = None

    async def __aenter__(self) -> ModelStream:
        if self._stream is not None:
            raise InputError("stream: expected to be entered once; one send is one request")
        self._stream = self._owner._next(self._request, self._attempt_id, self._limit)
        return self._stream

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.leave()


class _RecordedSource:
    """The reads of one recording; each gives other tasks a turn, as a network read would."""

    def __init__(self, recording: Recording) -> None:
        self._chunks = recording.chunks()[::-1]
        self._broken = recording.ended == "cut"

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        if self._chunks:
            return self._chunks.pop()
        if self._broken:
            raise ConnectionResetError
        return b""

    def cut(self, error: Exception) -> Cut | None:
        return Cut("a broken connection, as recorded") if isinstance(error, ConnectionResetError) else None

    async def settle(self) -> None:
        """The body's end needs no looking for."""

    def end(self, ended: Ended) -> None:  # noqa: ARG002  # a recording is not recorded again
        self._chunks.clear()
