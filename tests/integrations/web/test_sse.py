"""Server-sent events to one client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.errors import InputError
from agentloop.integrations.serving.sse import data_frame, event_frame
from agentloop.integrations.web import SSEStream, sse_response
from agentloop.testing import ScriptedProvider, reply
from agentloop.wire.sse import SSEDecoder
from tests.integrations.web.backend import Gate, frames

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
AGENT = al.Agent(name="a")


@asynccontextmanager
async def answering(handler: Handler) -> AsyncIterator[tuple[ClientSession, str]]:
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with ClientSession() as session:
            yield session, f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def note(text: str, number: int = 1, run: str = "r") -> al.TextPreview:
    return al.TextPreview(
        event_id=al.event_id(run, number),
        occurred_at_ms=1,
        run_id=run,
        span_id="a",
        attempt_id="a",
        offset=0,
        text=text,
    )


# -- framing


@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), number=st.integers(1, 10**12))
def test_any_event_is_one_server_sent_event_with_its_id(text: str, number: int) -> None:
    frame = event_frame(note(text, number))
    (event,) = SSEDecoder().feed(frame)
    assert al.decode_event(event.data) == note(text, number)
    assert frame.startswith(f"id: {al.event_id('r', number)}\n".encode())


@pytest.mark.parametrize(
    ("data", "fields"),
    [
        (b"a\nb", {}),
        (b"a\rb", {}),
        (b"a", {"id": "1\nevent: x"}),
        (b"a", {"id": "1\r"}),
        (b"a", {"id": "\0"}),
        (b"a", {"event": "x\n\ndata: y"}),
    ],
)
def test_what_would_begin_a_line_of_its_own_is_refused(data: bytes, fields: dict[str, str]) -> None:
    with pytest.raises(InputError, match="server-sent event"):
        data_frame(data, **fields)


def test_a_run_id_with_a_line_end_injects_nothing() -> None:
    with pytest.raises(InputError, match="one line each"):
        event_frame(note("t", run="r\ndata: x"))


# -- answers


async def test_a_run_in_its_block_is_answered_to_its_end_with_headers_against_buffering(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with al.Runtime(ScriptedProvider([reply("Hi there.")], deltas=2)) as runtime:

        async def handler(request: web.Request) -> web.StreamResponse:
            async with runtime.start(AGENT, "go") as run:
                return await sse_response(request, run, headers={"X-Extra": "1"})

        async with answering(handler) as (session, url), session.get(url) as response:
            events = [event async for event in frames(response)]
            assert response.headers["X-Accel-Buffering"] == "no"
            assert response.headers["Cache-Control"] == "no-store, no-transform"
            assert response.headers["X-Extra"] == "1"
            assert response.content_type == "text/event-stream"
    assert caplog.records == []  # a handler that returns no answer is logged by the server
    assert [event["_id"] for event in events] == [event["event_id"] for event in events]
    assert "".join(event["payload"]["text"] for event in events if event["type"] == "model.output") == "Hi there."
    assert events[-1]["type"] == "run.ended"


async def test_the_client_that_goes_cancels_a_run_that_is_tied_to_its_block() -> None:
    gate, ended = Gate(), asyncio.Event()
    async with al.Runtime(ScriptedProvider([gate(reply("never"))])) as runtime:

        async def handler(request: web.Request) -> web.StreamResponse:
            try:
                async with runtime.start(AGENT, "go", run_id="r") as run:
                    return await sse_response(request, run)
            finally:
                ended.set()

        async with answering(handler) as (session, url):
            async with session.get(url) as response:
                await response.content.readline()
                await gate.asked.wait()
                response.close()
            await ended.wait()
        assert (await runtime.view("r")).state == "cancelled"


async def test_an_error_of_ours_is_the_last_event_and_tells_no_text() -> None:
    async with al.Runtime(ScriptedProvider([al.ConnectionLost("the secret host")])) as runtime:

        async def handler(request: web.Request) -> web.StreamResponse:
            async with runtime.start(AGENT, "go") as run:
                return await sse_response(request, run)

        async with answering(handler) as (session, url), session.get(url) as response:
            events = [event async for event in frames(response)]
    assert events[-1]["_event"] == "problem"
    assert (events[-1]["kind"], events[-1]["may_have_been_processed"]) == ("ConnectionLost", True)
    assert "secret" not in str(events)


async def test_any_source_of_events_can_be_sent() -> None:
    async def source() -> AsyncIterator[al.Event]:
        yield note("one")
        yield note("two", 2)

    async def handler(request: web.Request) -> web.StreamResponse:
        return await sse_response(request, source())

    async with answering(handler) as (session, url), session.get(url) as response:
        assert [event["payload"]["text"] async for event in frames(response)] == ["one", "two"]


async def test_a_foreign_error_cuts_the_answer_off(caplog: pytest.LogCaptureFixture) -> None:
    async def source() -> AsyncIterator[al.Event]:
        yield note("one")
        raise ValueError("ours to mend")

    async def handler(request: web.Request) -> web.StreamResponse:
        return await sse_response(request, source())

    async with answering(handler) as (session, url), session.get(url) as response:
        with pytest.raises(Exception, match=r"(?i)not enough data|disconnected|payload"):
            [event async for event in frames(response)]
    assert "ours to mend" in caplog.text


async def test_silence_is_broken_by_comments_and_ended_by_the_client() -> None:
    left = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        try:
            async with SSEStream(request, keep_alive=0.01) as stream:
                await asyncio.Event().wait()
            assert stream.gone
            return stream.response
        finally:
            left.set()

    async with answering(handler) as (session, url):
        async with session.get(url) as response:
            assert [await response.content.readline() for _ in range(4)] == [b":\n", b"\n"] * 2
            response.close()
        await left.wait()


async def test_a_client_that_takes_nothing_is_cut_off_and_holds_a_bounded_amount() -> None:
    written, seen = 0, asyncio.get_running_loop().create_future()
    frame = data_frame(b"x" * 10_000)

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal written
        async with SSEStream(request, write_seconds=0.2) as stream:
            while True:
                await stream.send(frame)
                written += len(frame)
        seen.set_result((stream.gone, written))
        return stream.response

    async with answering(handler) as (_, url):
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        gone, size = await seen
        assert gone
        assert size < 16 * 1024 * 1024  # what the two sockets take
        writer.close()


async def test_a_stream_that_is_cut_ends_in_order() -> None:
    streams: list[SSEStream] = []

    async def handler(request: web.Request) -> web.StreamResponse:
        async with SSEStream(request) as stream:
            streams.append(stream)
            await stream.send(data_frame(b"{}"))
            await asyncio.Event().wait()
        assert not stream.gone
        return stream.response

    async with answering(handler) as (session, url), session.get(url) as response:
        assert await response.content.readline() == b"data: {}\n"
        streams[0].cut()
        assert await response.content.read() == b"\n"


@pytest.mark.parametrize("options", [{"keep_alive": 0}, {"write_seconds": -1}, {"keep_alive": "x"}])
async def test_times_that_are_none_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        SSEStream(None, **options)  # type: ignore[arg-type]
