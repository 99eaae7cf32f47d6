"""Chat Completions over a real loopback socket: one request, its stream checked, nothing else."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import socket
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from aioresponses import aioresponses
from msgspec.structs import replace

from agentloop.errors import (
    AgentLoopError,
    ConnectionFailed,
    ConnectionLost,
    HTTPStatusError,
    InputError,
    LimitExceeded,
    ProviderError,
    SendTimeout,
    StreamRefused,
)
from agentloop.limits import ENCODED_REQUEST_BYTES, RESPONSE_BYTES, Timeouts
from agentloop.messages import ModelOptions, ModelReply, ModelRequest, UserMessage
from agentloop.providers import ChatCompletions
from agentloop.providers.clock import Watchdog
from agentloop.testing.replay_server import Answer, ReplayServer
from agentloop.wire.dialect import Dialect
from agentloop.wire.encode import encode_request
from agentloop.wire.presets import OPENAI

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases"
TEXT = (RECORDINGS / "text.sse").read_bytes()
KEY = "sk-proj-0123456789abcdefghij"
REQUEST = ModelRequest(messages=(UserMessage(content="a very private prompt"),))


@pytest.fixture
async def server() -> AsyncIterator[ReplayServer]:
    async with ReplayServer() as running:
        yield running


Make = Callable[..., ChatCompletions]


@pytest.fixture
async def make(server: ReplayServer) -> AsyncIterator[Make]:
    made: list[ChatCompletions] = []

    def build(url: str | None = None, **options: Any) -> ChatCompletions:
        made.append(ChatCompletions(url or server.url, **{"model": "m-1", "api_key": KEY, **options}))
        return made[-1]

    yield build
    for provider in made:
        await provider.aclose()


async def send(provider: ChatCompletions, request: ModelRequest = REQUEST, attempt_id: str = "at-1") -> ModelReply:
    async with provider.stream(request, attempt_id=attempt_id) as stream:
        return await stream.reply()


async def failure(provider: ChatCompletions, request: ModelRequest = REQUEST) -> Any:
    with pytest.raises(AgentLoopError) as caught:
        await send(provider, request)
    return caught.value


class Shown:
    """A stream's previews up to its end or its refusal."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __aiter__(self) -> Shown:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self.stream)
        except StreamRefused:
            raise StopAsyncIteration from None


def source_of(stream: Any) -> Any:
    """What a stream reads from; only for what nobody can see from outside."""
    return stream._source


def everything_said(error: BaseException) -> str:
    """All texts of an error: its own, its facts', its causes' and contexts', and the traceback's."""
    parts = ["".join(traceback.format_exception(error))]
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        parts += [repr(one), str(one), repr(one.args), repr(getattr(one, "__dict__", {}))]
        todo += [one.__cause__, one.__context__]
    return "\n".join(parts)


# the request


async def test_what_is_sent_is_the_encoded_request_with_these_headers(server: ReplayServer, make: Make) -> None:
    server.script(TEXT)
    await send(make(), attempt_id="attempt-7")
    (got,) = server.requests
    assert (got.method, got.path) == ("POST", "/v1/chat/completions")
    assert got.body == encode_request(REQUEST, model="m-1", dialect=OPENAI).body
    assert {name: value for name, value in got.headers.items() if name not in ("host", "content-length")} == {
        "accept": "text/event-stream",
        "accept-encoding": "identity",
        "authorization": f"Bearer {KEY}",
        "content-type": "application/json",
        "user-agent": "agentloop",
        "x-client-request-id": "attempt-7",
    }


async def test_headers_and_query_are_added(make: Make) -> None:
    headers = {"api-key": KEY, "User-Agent": "mine"}
    async with ReplayServer(prefix="/openai/deployments/x/") as server:
        server.script(TEXT)
        url = f"{server.url}/"
        await send(make(url, api_key=None, headers=headers, query={"api-version": "2024-10-21"}))
        (got,) = server.requests
    assert got.path == "/openai/deployments/x/chat/completions?api-version=2024-10-21"
    assert (got.headers["api-key"], got.headers["user-agent"]) == (KEY, "mine")
    assert "authorization" not in got.headers


async def test_a_key_function_is_asked_at_each_send(server: ReplayServer, make: Make) -> None:
    server.script(TEXT, TEXT, TEXT)
    numbers = iter(range(9))

    async def fetch() -> str:
        await asyncio.sleep(0)
        return f"fetched-{next(numbers)}"

    plain = make(api_key=lambda: f"made-{next(numbers)}")
    await send(plain)
    await send(plain)
    await send(make(api_key=fetch))
    assert [got.headers["authorization"] for got in server.requests] == [
        "Bearer made-0",
        "Bearer made-1",
        "Bearer fetched-2",
    ]


async def test_a_key_function_that_fails_or_gives_no_key_sends_nothing(server: ReplayServer, make: Make) -> None:
    def broken() -> str:
        raise LookupError("vault")

    error = await failure(make(api_key=broken, max_in_flight=1))
    assert type(error) is ProviderError
    assert error.may_have_been_processed is False
    assert isinstance(error.__cause__, LookupError)
    for wrong in ("", "two words", "line\nbreak", None, 7):
        assert isinstance(await failure(make(api_key=lambda wrong=wrong: wrong)), InputError)
    assert server.requests == []


async def test_a_body_over_a_mebibyte_arrives_whole_without_a_warning(server: ReplayServer, make: Make) -> None:
    server.script(TEXT)
    text = "0123456789abcde\u00e9" * 70_000
    await send(make(), ModelRequest(messages=(UserMessage(content=text),)))
    assert server.requests[0].json["messages"][0]["content"] == text
    assert int(server.requests[0].headers["content-length"]) > 1 << 20


async def test_environment_proxies_are_not_used_unless_asked_for(
    server: ReplayServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    server.script(TEXT)
    await send(make())
    assert len(server.requests) == 1


@pytest.mark.parametrize("attempt_id", ["", "two words", "a\r\nb", "é", "x" * 129])
async def test_an_attempt_id_that_no_header_can_carry_is_refused(
    server: ReplayServer, make: Make, attempt_id: str
) -> None:
    with pytest.raises(InputError, match="attempt_id"):
        await send(make(), attempt_id=attempt_id)
    assert server.requests == []


async def test_the_longest_attempt_id_is_sent_whole(server: ReplayServer, make: Make) -> None:
    server.script(TEXT)
    await send(make(), attempt_id="x" * 128)
    assert server.requests[0].headers["x-client-request-id"] == "x" * 128


# limits


async def test_the_defaults_are_the_documented_numbers(make: Make) -> None:
    """Encoded request 2 MiB, response 2 MiB, 60 s in all (R107, R108, R109, R110)."""
    provider = make()
    assert provider.max_request_bytes == ENCODED_REQUEST_BYTES == 2 * 1024 * 1024
    assert provider.max_response_bytes == RESPONSE_BYTES == 2 * 1024 * 1024
    assert provider.timeouts.total == 60.0


async def test_the_encoded_request_is_measured_before_anything_is_sent(server: ReplayServer, make: Make) -> None:
    """The limit is on the encoded bytes; the limit itself is allowed (R108, R148)."""
    size = make().inspect_request(REQUEST).body_bytes
    error = await failure(make(max_request_bytes=size - 1))
    assert type(error) is LimitExceeded
    assert (error.limit, error.allowed, error.got) == ("max_request_bytes", size - 1, size)
    assert server.requests == []
    server.script(TEXT)
    await send(make(max_request_bytes=size))
    assert len(server.requests[0].body) == size


async def test_a_connections_cap_is_held_before_anything_is_sent(server: ReplayServer, make: Make) -> None:
    """The cap is the connection's, ``max_output_tokens`` the request's; neither stands for the other (R260)."""
    provider = make(output_token_limit=100)
    error = await failure(provider, replace(REQUEST, options=ModelOptions(max_output_tokens=101)))
    assert type(error) is LimitExceeded
    assert (error.limit, error.allowed, error.got) == ("output_token_limit", 100, 101)
    assert server.requests == []
    server.script(*[TEXT] * 4)
    for asked, seed in ((100, 1), (7, 2), (None, 3), (None, 4)):
        request = replace(REQUEST, options=ModelOptions(max_output_tokens=asked, seed=seed))
        await send(provider, request)
        assert provider.inspect_request(request).body_bytes == len(server.requests[-1].body)
    sent = [json.loads(got.body) for got in server.requests]
    assert [(body["max_completion_tokens"], body["seed"]) for body in sent] == [(100, 1), (7, 2), (100, 3), (100, 4)]
    assert (provider.output_token_limit, make().output_token_limit) == (100, None)


async def test_without_a_cap_a_request_asks_for_what_it_likes(server: ReplayServer, make: Make) -> None:
    """(R260)"""
    server.script(TEXT, TEXT)
    await send(make())
    await send(make(), replace(REQUEST, options=ModelOptions(max_output_tokens=10**6)))
    assert [json.loads(got.body).get("max_completion_tokens") for got in server.requests] == [None, 10**6]


@pytest.mark.parametrize("member", ["max_tokens", "max_completion_tokens", "max_output_tokens"])
async def test_no_member_of_the_hosts_own_gets_past_a_cap(server: ReplayServer, make: Make, member: str) -> None:
    """(R260)"""
    options = ModelOptions(extra=json.dumps({member: 10**6}))
    error = await failure(make(output_token_limit=100), replace(REQUEST, options=options))
    assert str(error) == f"ModelOptions.extra: expected no ceiling beside output_token_limit, got {member}"
    assert server.requests == []
    server.script(TEXT)
    await send(make(output_token_limit=100), replace(REQUEST, options=ModelOptions(extra='{"x":"max_tokens"}')))


async def test_sending_measures_again_whatever_an_inspection_said(server: ReplayServer, make: Make) -> None:
    """(R105)"""
    provider = make(max_request_bytes=make().inspect_request(REQUEST).body_bytes)
    provider.inspect_request(REQUEST)
    larger = ModelRequest(messages=(*REQUEST.messages, UserMessage(content="more")))
    assert isinstance(await failure(provider, larger), LimitExceeded)
    assert server.requests == []


async def test_a_response_over_its_budget_is_refused_while_it_is_read(server: ReplayServer, make: Make) -> None:
    """(R110, R148)"""
    server.script(TEXT)
    error = await failure(make(max_response_bytes=500))
    assert (error.code, error.limit, error.allowed) == ("oversized", "max_response_bytes", 500)


async def test_the_response_budget_is_on_decoded_bytes(server: ReplayServer, make: Make) -> None:
    packed = gzip.compress(TEXT)
    assert len(packed) < 2_000 < len(TEXT)
    zipped = Answer(body=packed, headers={"content-encoding": "gzip"}, writes=(100, 100, 100))
    server.script(zipped, zipped)
    assert (await send(make())).text.endswith("🙂.")
    assert (await failure(make(max_response_bytes=2_000))).code == "oversized"


# answers that are no stream


async def test_a_redirect_is_an_error_and_is_not_followed(server: ReplayServer, make: Make) -> None:
    """One send is one request (R114)."""
    where = f"{server.url}/elsewhere"
    server.script(Answer(status=307, headers={"location": where, "content-type": "text/html"}, framing="length"), TEXT)
    error = await failure(make())
    assert (error.status, error.may_have_been_processed) == (307, False)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [201, 400, 401, 404, 408, 429, 500, 502, 503, 504])
async def test_another_status_than_200_is_a_typed_error_and_is_not_repeated(
    server: ReplayServer, make: Make, status: int
) -> None:
    """No implicit retry, whatever the status (R4, R114)."""
    server.script(Answer.error(status, {"error": {"code": "c", "type": "t", "message": "m"}}, retry_after="3"), TEXT)
    error = await failure(make())
    assert type(error) is HTTPStatusError
    assert (error.status, error.vendor_code, error.vendor_type, error.vendor_message) == (status, "c", "t", "m")
    assert (error.retry_after, error.attempt_id) == (3.0, "at-1")
    assert len(server.requests) == 1


async def test_a_retry_after_date_is_measured_against_the_given_clock(server: ReplayServer, make: Make) -> None:
    server.script(Answer.error(429, {}, retry_after="Sun, 29 Nov 2026 23:59:59 GMT"))
    assert (await failure(make(wall_clock=lambda: 1_795_996_798.0))).retry_after == 1.0


async def test_an_endless_error_body_is_read_no_further_than_needed(server: ReplayServer, make: Make) -> None:
    body = b'{"error":{"message":"big"}}' + b" " * 300_000
    server.script(Answer(status=500, body=body, ending="stall", headers={"content-type": "application/json"}))
    error = await failure(make())
    assert (error.status, error.vendor_message) == (500, "big")
    await server.wait_disconnects(1)


async def test_an_error_body_that_never_ends_is_not_waited_for(server: ReplayServer, make: Make) -> None:
    server.script(Answer(status=503, body=b"upstream down", framing="chunked", ending="stall"))
    error = await failure(make(timeouts=Timeouts(total=0.2)))
    assert (error.status, error.vendor_message) == (503, "upstream down")


async def test_an_error_body_that_breaks_off_still_gives_the_status(server: ReplayServer, make: Make) -> None:
    server.script(Answer(status=502, body=b"<title>502 Bad Gateway</title>", ending="reset"))
    error = await failure(make())
    assert error.status == 502


@pytest.mark.parametrize("kind", ["application/json", "text/html; charset=utf-8", "text/event-stream-x", ""])
async def test_200_without_an_event_stream_is_refused(server: ReplayServer, make: Make, kind: str) -> None:
    """And not read as a plain reply, and not asked for again (R121)."""
    body = b'{"choices":[{"message":{"content":"secret words"}}]}'
    server.script(Answer(body=body, headers={"content-type": kind}), TEXT)
    error = await failure(make())
    assert type(error) is StreamRefused
    assert error.code == "not_event_stream"
    assert error.got.endswith("a body that begins like JSON")
    assert "secret words" not in everything_said(error)
    assert len(server.requests) == 1


async def test_a_key_that_a_content_type_repeats_is_blanked(server: ReplayServer, make: Make) -> None:
    server.script(Answer(body=TEXT, headers={"content-type": f"text/{KEY}"}))
    error = await failure(make())
    assert type(error) is StreamRefused
    assert KEY not in everything_said(error)
    assert "*" * len(KEY) in error.got


@pytest.mark.parametrize("kind", ["text/event-stream", "Text/Event-Stream; charset=utf-8", "text/event-stream;x=1"])
async def test_the_content_type_may_have_parameters_and_any_case(server: ReplayServer, make: Make, kind: str) -> None:
    server.script(Answer(body=TEXT, headers={"content-type": kind}))
    assert (await send(make())).text


async def test_an_error_sent_with_200_is_refused_with_what_it_says(server: ReplayServer, make: Make) -> None:
    server.script(
        Answer(body=b'{"error":{"code":"quota","message":"no more"}}', headers={"content-type": "application/json"})
    )
    error = await failure(make())
    assert (error.code, error.vendor_code, error.vendor_message) == ("not_event_stream", "quota", "no more")


# connections


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_a_refused_connection_is_known_not_to_have_been_processed(make: Make) -> None:
    port = closed_port()
    error = await failure(make(f"http://127.0.0.1:{port}/v1"))
    assert type(error) is ConnectionFailed
    why = f"ClientConnectorError, {type(error.__cause__).__name__}"
    assert str(error) == f"expected a connection to http://127.0.0.1:{port}, got none ({why})"
    assert (error.code, error.may_have_been_processed) == ("connection_failed", False)
    assert isinstance(error.__cause__, OSError)


async def test_tls_asked_of_a_server_without_it_is_told(server: ReplayServer, make: Make) -> None:
    error = await failure(make(server.url.replace("http:", "https:")))
    assert type(error) is ConnectionFailed
    assert str(error).startswith("expected a connection to https://127.0.0.1:")
    assert str(error).endswith("a server without TLS has an http:// URL")
    assert server.requests == []


class Unresolving(AbstractResolver):
    def __init__(self, delay: float = 0) -> None:
        self.delay = delay

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        await asyncio.sleep(self.delay)
        raise OSError("no such name")

    async def close(self) -> None:
        pass


async def test_an_unknown_host_is_a_failed_connection(make: Make) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Unresolving())) as session:
        error = await failure(make("http://model.example/v1", session=session))
    assert type(error) is ConnectionFailed
    assert error.may_have_been_processed is False


async def test_a_connection_that_takes_too_long_is_a_failed_connection(make: Make) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=Unresolving(60))) as session:
        error = await failure(make("http://model.example/v1", session=session, timeouts=Timeouts(connect=0.05)))
    assert type(error) is ConnectionFailed
    assert str(error) == "expected a connection to http://model.example:80, got none (ConnectionTimeoutError)"


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_connection_lost_before_the_answer_is_not_repeated(
    server: ReplayServer, make: Make, ending: Any
) -> None:
    """What may have been processed is said and not sent again (R4, R114)."""
    server.script(Answer(silent=True, ending=ending), TEXT)
    error = await failure(make())
    assert type(error) is ConnectionLost
    assert error.may_have_been_processed is True
    assert len(server.requests) == 1


async def test_a_kept_connection_that_dies_under_a_request_is_not_replaced(server: ReplayServer, make: Make) -> None:
    """The HTTP library's own retry is for idempotent methods only, so not for this (R114)."""
    provider = make()
    server.script(TEXT, Answer(silent=True, ending="close"), TEXT)
    await send(provider)
    error = await failure(provider)
    assert type(error) is ConnectionLost
    assert [got.connection for got in server.requests] == [0, 0]


async def test_an_answer_that_is_not_http_is_a_lost_connection(make: Make) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        writer.close()

    other = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with other:
        error = await failure(make(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/v1"))
    assert type(error) is ConnectionLost
    assert KEY not in everything_said(error)


async def test_a_finished_connection_is_used_again(server: ReplayServer, make: Make) -> None:
    server.script(TEXT, TEXT, TEXT)
    provider = make()
    for _ in range(3):
        await send(provider)
    assert [got.connection for got in server.requests] == [0, 0, 0]


async def test_a_body_whose_end_comes_apart_leaves_the_connection_usable(make: Make) -> None:
    """Servers write the last chunk and the end of the body one after the other."""
    connections = 0

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"%x\r\n%b\r\n" % (len(TEXT), TEXT))
            for _ in range(2):
                await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as other:
        provider = make(f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/v1")
        for _ in range(4):
            await send(provider)
        await provider.aclose()
    assert connections == 1


async def test_a_stream_that_ended_leaves_no_timer_behind(server: ReplayServer, make: Make) -> None:
    server.script(TEXT, Answer(body=TEXT, pace=0.01))
    async with make().stream(REQUEST, attempt_id="a") as stream:
        await stream.reply()
        assert source_of(stream).watchdog is None
    async with make().stream(REQUEST, attempt_id="b") as stream:
        dog = source_of(stream).watchdog
        assert dog._timer is not None
    assert dog._timer is None
    assert source_of(stream).watchdog is None


@pytest.mark.parametrize("framing", ["chunked", "close"])
async def test_after_done_nothing_is_waited_for(server: ReplayServer, make: Make, framing: Any) -> None:
    """The reply comes although the server keeps the connection open; ours is closed (R122)."""
    server.script(Answer(body=TEXT, ending="stall", framing=framing), TEXT)
    provider = make(timeouts=Timeouts(total=None, idle=None))
    assert (await send(provider)).text
    await server.wait_disconnects(1)
    assert (await send(provider)).text


async def test_what_follows_done_is_not_read(server: ReplayServer, make: Make) -> None:
    """(R122)"""
    server.script(Answer(body=TEXT + b"data: {broken\n\n" * 5, pace=0.001))
    assert (await send(make())).text


async def test_leaving_early_closes_the_connection_at_once(server: ReplayServer, make: Make) -> None:
    server.script(Answer(body=TEXT, pace=0.02))
    async with make().stream(REQUEST, attempt_id="a") as stream:
        await anext(stream)
    await server.wait_disconnects(1)


async def test_cancelling_closes_the_connection_at_once(server: ReplayServer, make: Make) -> None:
    server.script(Answer(body=TEXT, cut=900, ending="stall"), Answer(silent=True, ending="stall"))
    provider = make()
    for count in (1, 2):
        task = asyncio.create_task(send(provider))
        await server.wait_requests(count)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await server.wait_disconnects(count)


# streams that break


@pytest.mark.parametrize("ending", ["close", "reset", "end"])
async def test_a_stream_cut_before_its_finish_is_truncated(server: ReplayServer, make: Make, ending: Any) -> None:
    server.script(Answer(body=TEXT, cut=3_000, ending=ending), TEXT)
    error = await failure(make())
    assert (error.code, error.may_have_been_processed) == ("truncated", True)
    assert 2_000 < error.byte <= 3_000
    assert len(server.requests) == 1


@pytest.mark.parametrize("ending", ["close", "reset", "end"])
@pytest.mark.parametrize("dialect", ["openai", Dialect(name="no-done", done_absent=True)])
async def test_a_stream_cut_after_its_finish_lacks_its_end(
    server: ReplayServer, make: Make, ending: Any, dialect: str | Dialect
) -> None:
    """A dialect without [DONE] takes the proper end of the body for it, and nothing less."""
    server.script(Answer(body=TEXT, cut=len(TEXT) - len(b"data: [DONE]\n\n"), ending=ending))
    provider = make(dialect=dialect)
    if ending == "end" and dialect != "openai":
        assert (await send(provider)).text
    else:
        assert (await failure(provider)).code == "missing_done"


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_a_stream_that_reached_done_counts_although_the_connection_broke(
    server: ReplayServer, make: Make, ending: Any
) -> None:
    """What had arrived before the break is read first (R119, R122)."""
    server.script(*[Answer(body=TEXT, writes="whole", ending=ending) for _ in range(5)])
    provider = make()
    for _ in range(5):
        assert (await send(provider)).text.endswith("🙂.")


@pytest.mark.parametrize("cut", [None, len(TEXT) - 14])
@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_what_had_arrived_is_read_although_the_break_is_seen_first(
    server: ReplayServer, make: Make, ending: Any, cut: int | None
) -> None:
    """The HTTP library drops unread bytes once a connection broke; they are taken back (R119)."""
    server.script(Answer(body=TEXT, cut=cut, writes="whole", ending=ending))
    async with make().stream(REQUEST, attempt_id="a") as stream:
        content = source_of(stream).response.content
        while content.exception() is None:  # noqa: ASYNC110  # the library has no event for it
            await asyncio.sleep(0.001)
        text = "".join([delta.text async for delta in Shown(stream)])
        assert text.endswith("🙂.")
        if cut is None:
            assert (await stream.reply()).text == text
        else:
            with pytest.raises(StreamRefused, match="missing_done"):
                await stream.reply()


async def test_text_that_arrived_before_the_break_is_still_previewed(server: ReplayServer, make: Make) -> None:
    server.script(Answer(body=TEXT, cut=3_000, writes="whole", ending="close"))
    async with make().stream(REQUEST, attempt_id="a") as stream:
        text = "".join([delta.text async for delta in Shown(stream)])
        assert text.startswith("Streams carry text")
        with pytest.raises(StreamRefused, match="truncated"):
            await stream.reply()


async def test_a_body_that_its_coding_spoils_is_truncated(server: ReplayServer, make: Make) -> None:
    server.script(Answer(body=b"no gzip at all, sorry", headers={"content-encoding": "gzip"}))
    error = await failure(make())
    assert isinstance(error, (StreamRefused, ConnectionLost))


# clocks


async def test_a_silent_server_runs_out_of_the_total_time(server: ReplayServer, make: Make) -> None:
    """The total clock covers the wait for the answer too (R109)."""
    server.script(Answer(silent=True, ending="stall"), TEXT)
    error = await failure(make(timeouts=Timeouts(total=0.05)))
    assert type(error) is SendTimeout
    assert (error.code, error.may_have_been_processed, error.attempt_id) == ("total_timeout", True, "at-1")
    assert len(server.requests) == 1


async def test_a_silent_server_runs_out_of_the_time_for_the_first_event(server: ReplayServer, make: Make) -> None:
    server.script(Answer(silent=True, ending="stall"))
    error = await failure(make(timeouts=Timeouts(first_event=0.05)))
    assert (type(error), error.code) == (SendTimeout, "first_event_timeout")


@pytest.mark.parametrize(
    ("cut", "timeouts", "code"),
    [
        (0, Timeouts(first_event=0.3), "first_event_timeout"),
        (0, Timeouts(total=0.3, idle=0.1), "total_timeout"),
        (900, Timeouts(total=0.3), "total_timeout"),
        (900, Timeouts(idle=0.3), "idle_timeout"),
    ],
)
@pytest.mark.parametrize("comments", [0, 0.01])
async def test_a_stalled_stream_runs_out_of_a_clock_and_comments_are_no_progress(
    server: ReplayServer, make: Make, cut: int, timeouts: Timeouts, code: str, comments: float
) -> None:
    body = TEXT[:cut].rpartition(b"\n\n")[0] + b"\n\n" if cut else b": hello\n\n"
    server.script(Answer(body=body, ending="stall", comments=comments), TEXT)
    error = await failure(make(timeouts=timeouts))
    assert type(error) is StreamRefused
    assert error.code == code
    assert "within" in str(error)
    await server.wait_disconnects(1)
    assert len(server.requests) == 1


async def test_a_stream_arms_its_timer_once_and_not_for_each_read(
    server: ReplayServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed = 0
    arm = Watchdog._arm

    def count(self: Watchdog, now: float) -> None:
        nonlocal armed
        armed += 1
        arm(self, now)

    monkeypatch.setattr(Watchdog, "_arm", count)
    server.script(Answer(body=TEXT, pace=0.0005))
    async with make().stream(REQUEST, attempt_id="a") as stream:
        previews = [delta async for delta in stream]
    assert len(previews) > 10
    assert armed == 1


# many at once


async def test_max_in_flight_sends_in_order_of_arrival_and_never_more(server: ReplayServer, make: Make) -> None:
    provider = make(max_in_flight=2)
    server.script(*[Answer(body=TEXT, delay=0.01) for _ in range(8)])
    flying = most = 0

    async def one(number: int) -> None:
        nonlocal flying, most
        async with provider.stream(REQUEST, attempt_id=f"n-{number}") as stream:
            flying += 1
            most = max(most, flying)
            await stream.reply()
            flying -= 1

    await asyncio.gather(*[one(number) for number in range(8)])
    assert [got.headers["x-client-request-id"] for got in server.requests] == [f"n-{number}" for number in range(8)]
    assert most <= 2


async def test_every_way_out_gives_its_slot_back(server: ReplayServer, make: Make) -> None:
    provider = make(max_in_flight=1, timeouts=Timeouts(total=0.5))
    server.script(
        Answer.error(500, {}),
        Answer(silent=True, ending="close"),
        Answer(body=TEXT, cut=500, ending="close"),
        Answer(body=b"{}", headers={"content-type": "application/json"}),
        Answer(silent=True, ending="stall"),
    )
    for _ in range(5):
        await failure(provider)
    server.script(Answer(body=TEXT, ending="stall"), Answer(body=TEXT, pace=0.01), TEXT)
    async with provider.stream(REQUEST, attempt_id="held") as stream:
        await stream.reply()
        async with provider.stream(REQUEST, attempt_id="at-once") as other:  # free since [DONE]
            await anext(other)
    assert (await send(provider)).text


async def test_a_waiting_send_can_be_cancelled_without_a_request(server: ReplayServer, make: Make) -> None:
    provider = make(max_in_flight=1)
    server.script(Answer(body=TEXT, pace=0.01), TEXT)
    async with provider.stream(REQUEST, attempt_id="first") as stream:
        waiting = asyncio.create_task(send(provider, attempt_id="second"))
        await anext(stream)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await stream.reply()
    await send(provider, attempt_id="third")
    assert [got.headers["x-client-request-id"] for got in server.requests] == ["first", "third"]


# sessions


async def test_a_given_session_is_used_and_left_open_and_its_retries_are_off(server: ReplayServer, make: Make) -> None:
    async def twice(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        await handler(request)
        return await handler(request)

    server.script(TEXT, TEXT)
    async with aiohttp.ClientSession(middlewares=(twice,), raise_for_status=True) as session:
        provider = make(session=session)
        await send(provider)
        await provider.aclose()
        assert not session.closed
        assert len(server.requests) == 1


async def test_the_own_session_is_closed_and_a_later_send_opens_another(server: ReplayServer, make: Make) -> None:
    server.script(TEXT, TEXT)
    provider = make()
    await send(provider)
    await provider.aclose()
    await send(provider)
    assert [got.connection for got in server.requests] == [0, 1]


async def test_one_provider_belongs_to_one_event_loop(server: ReplayServer, make: Make) -> None:
    server.script(TEXT)
    provider = make()
    await send(provider)

    def elsewhere() -> str:
        with pytest.raises(InputError) as caught:
            asyncio.run(send(provider))
        return str(caught.value)

    assert "event loop" in await asyncio.to_thread(elsewhere)


# arguments


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8080/v1",
        "ftp://host/v1",
        "http://",
        "http://user:pass-word@host/v1",
        "http://user@host/v1",
        "https://host/v1?key=pass-word",
        "https://host/v1#pass-word",
        "https://host/v1/chat/completions",
        "http://[::1/v1",
        7,
    ],
)
def test_a_base_url_that_is_not_one_is_refused_without_being_repeated(url: Any) -> None:
    with pytest.raises(InputError, match="base_url") as caught:
        ChatCompletions(url, model="m")
    assert "pass-word" not in everything_said(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"model": ""},
        {"model": 3},
        {"api_key": ""},
        {"api_key": "a b"},
        {"api_key": 5},
        {"headers": {"X": "a\r\nb"}},
        {"headers": {"X y": "a"}},
        {"headers": {"Content-Length": "1"}},
        {"headers": {"X-Client-Request-Id": "1"}},
        {"headers": {"authorization": "Bearer x"}, "api_key": "k"},
        {"headers": {"x": 1}},
        {"query": {"x": 1}},
        {"dialect": "nobody"},
        {"dialect": 3},
        {"max_in_flight": 0},
        {"max_request_bytes": 0},
        {"max_response_bytes": True},
        {"output_token_limit": 0},
        {"output_token_limit": 1.0},
        {"timeouts": 30},
        {"session": 3},
        {"trust_env": "yes"},
        {"recorder": "recordings"},
        {"headers": [("a", "b")]},
    ],
)
def test_arguments_are_checked_when_it_is_made(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ChatCompletions("http://host/v1", **{"model": "m", **options})


def test_the_dialect_is_the_named_one_or_the_given_one_or_the_hosts() -> None:
    mine = Dialect(name="mine", usage_absent=True)
    assert ChatCompletions("http://host/v1", model="m", dialect=mine).dialect is mine
    assert ChatCompletions("http://host/v1", model="m", dialect="openai").dialect is OPENAI
    assert ChatCompletions("http://host/v1", model="m").dialect is OPENAI


# secrets


@pytest.mark.parametrize(
    "answer",
    [
        Answer.error(401, {"error": {"message": f"Incorrect API key provided: {KEY}", "code": KEY}}),
        Answer.error(401, f"bad key {KEY}".encode()),
        Answer.error(400, f"<title>{KEY}</title>".encode()),
        Answer(body=json.dumps({"error": {"message": KEY}}).encode(), headers={"content-type": "application/json"}),
        Answer(body=b'data: {"error":{"message":"%b","type":"%b"}}\n\n' % (KEY.encode(), KEY.encode())),
        Answer(silent=True, ending="close"),
        Answer(body=TEXT, cut=700, ending="reset"),
    ],
    ids=["json", "text", "html", "json-200", "event", "lost", "cut"],
)
async def test_no_error_and_no_log_holds_the_key_or_the_prompt(
    server: ReplayServer, make: Make, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither texts nor facts, of the error or of what it came from."""
    caplog.set_level(logging.DEBUG)
    provider = make(headers={"x-api-key": f"Token {KEY}-2"}, query={"token": f"{KEY}-3"})
    server.script(answer)
    error = await failure(provider)
    said = everything_said(error) + repr(provider) + str(provider) + caplog.text
    assert KEY not in said
    assert KEY[8:] not in said
    assert "private prompt" not in said


class MockedResponse(aiohttp.ClientResponse):
    """The mocking library does not know the argument that newer responses need."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("stream_writer", SimpleNamespace(output_size=0))
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (aiohttp.ServerDisconnectedError(), ConnectionLost),
        (aiohttp.ClientOSError(104, "reset"), ConnectionLost),
        (aiohttp.ClientPayloadError("payload"), ConnectionLost),
        (aiohttp.ConnectionTimeoutError("slow"), ConnectionFailed),
        (
            aiohttp.ClientResponseError(
                aiohttp.RequestInfo(
                    url="http://h/", method="POST", headers={"Authorization": KEY}, real_url="http://h/"
                ),  # type: ignore[arg-type]
                (),
                status=400,
                message="bad status line",
            ),
            ConnectionLost,
        ),
        (OSError("odd"), ConnectionLost),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
async def test_what_the_http_library_raises_is_translated(raised: Exception, expected: type[ProviderError]) -> None:
    provider = ChatCompletions("http://mocked.example/v1", model="m", api_key=KEY)
    with aioresponses() as mocked:
        mocked.post("http://mocked.example/v1/chat/completions", exception=raised)
        error = await failure(provider)
    assert type(error) is expected
    assert error.may_have_been_processed is (expected is ConnectionLost)
    assert KEY not in everything_said(error)
    await provider.aclose()


async def test_a_mocked_stream_is_read_as_a_real_one() -> None:
    provider = ChatCompletions("http://mocked.example/v1", model="m", api_key=KEY)
    with aioresponses() as mocked:
        where = "http://mocked.example/v1/chat/completions"
        mocked.post(where, body=TEXT, content_type="text/event-stream", response_class=MockedResponse)
        reply = await send(provider)
        (calls,) = mocked.requests.values()
    assert reply.text
    assert len(calls) == 1
    assert calls[0].kwargs["allow_redirects"] is False
    body = calls[0].kwargs["data"]
    assert not isinstance(body, io.BytesIO)
    await provider.aclose()


@pytest.mark.skipif(not CASES.exists(), reason="the case collection is not there")
@pytest.mark.parametrize(
    ("name", "ending", "code"),
    [
        ("059-reset-mid-call", "reset", "truncated"),
        ("070-open-after-done", "stall", None),
        ("071-stall-after-text", "stall", "idle_timeout"),
        ("072-stall-with-pings", "stall", "idle_timeout"),
        ("066-empty-body", "end", "truncated"),
        ("069-bytes-after-done", "end", None),
    ],
)
async def test_the_collected_endings_over_a_socket(
    server: ReplayServer, make: Make, name: str, ending: Any, code: str | None
) -> None:
    server.script(Answer(body=(CASES / f"{name}.sse").read_bytes(), ending=ending, comments=0.01))
    provider = make(timeouts=Timeouts(idle=0.08))
    if code is None:
        assert (await send(provider)).text == "Hi"
    else:
        assert (await failure(provider)).code == code
