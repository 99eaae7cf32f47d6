"""Server-sent events to one client: framed, kept alive, held up by a client that reads slowly, ended when it goes.

What waits for a client is bounded: one batch of events here (64 KiB and one event), twice as much in what writes to
its socket, and what that takes. Events themselves are kept by the run for all its readers, so a slow client costs
no copies and holds nobody up. Source: WHATWG HTML Living Standard, "Server-sent events".
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from collections.abc import AsyncIterable, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import anyio
import msgspec
from aiohttp import web

from ...error_info import error_info
from ...errors import AgentLoopError, InputError
from ...events import Event, encode_event
from ...limits import KEEP_ALIVE_SECONDS, WRITE_SECONDS, check_seconds
from ...sinks import Follower

__all__ = [
    "ClientGone",
    "SSEStream",
    "STREAM_HEADERS",
    "data_frame",
    "event_frame",
    "sse_response",
]

STREAM_HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store, no-transform",  # no proxy may keep it, or compress it and so hold it back
    "X-Accel-Buffering": "no",  # nginx gathers an answer otherwise
}
"""Headers of every stream."""

_BATCH_BYTES: Final = 64 * 1024
_WATCH_SECONDS: Final = 1.0
_KEEP_ALIVE: Final = b":\n\n"
_RESET: Final = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)  # of SO_LINGER: closing sends RST


class ClientGone(Exception):
    """The client of a stream has gone, or takes nothing any more."""


def data_frame(data: bytes, *, id: str | None = None, event: str | None = None) -> bytes:
    """One server-sent event.

    Args:
        data: text of one line, such as JSON.
        id: what a client comes back with as ``Last-Event-ID``; None leaves the one before.
        event: its name; None is ``message``.

    Raises:
        InputError: a part holds the end of a line, which would end it there.
    """
    if b"\n" in data or b"\r" in data:
        raise _two_lines()
    named = b"" if event is None else b"event: %b\n" % _line(event)
    return _id(id) + named + b"data: %b\n\n" % data


def event_frame(event: Event) -> bytes:
    """An event of a run as `encode_event` writes it, with its id.

    Raises:
        InputError: its id holds the end of a line. AdmissionError: it has no JSON form.
    """
    return b"%bdata: %b\n\n" % (_id(event.event_id), encode_event(event))  # JSON has no line end


def _id(id: str | None) -> bytes:
    if id is None:
        return b""
    if "\0" in id:
        raise InputError("server-sent event: expected an id without NUL, which clients drop")
    return b"id: %b\n" % _line(id)


def _line(text: str) -> bytes:
    if "\n" in text or "\r" in text:
        raise _two_lines()
    return text.encode()


def _two_lines() -> InputError:
    return InputError("server-sent event: expected parts of one line each, got a line end in one")


class SSEStream:
    """The open answer to one request.

        async with SSEStream(request) as stream:
            await stream.send(data_frame(b"{}"))
        return stream.response

    Leaving the block ends the answer in order, unless the client has gone or an error leaves it. When the client goes,
    or takes nothing for ``write_seconds``, what the block waits for is cancelled and the block ends without an
    error; ``gone`` says so. One task writes.

    Args:
        keep_alive: seconds of silence before a comment is sent. write_seconds: see above.
        headers: more headers of the answer. at_cut: what is sent last where the answer is cut.

    Attributes:
        response: to be returned by the handler.
        gone: whether the client has gone, or was cut off.
    """

    def __init__(
        self,
        request: web.Request,
        *,
        keep_alive: float = KEEP_ALIVE_SECONDS,
        write_seconds: float = WRITE_SECONDS,
        headers: Mapping[str, str] | None = None,
        at_cut: bytes = b"",
    ) -> None:
        check_seconds("keep_alive", keep_alive)
        check_seconds("write_seconds", write_seconds)
        self._request, self._keep_alive, self._write_seconds = request, keep_alive, write_seconds
        self.response = web.StreamResponse(headers={**STREAM_HEADERS, **(headers or {})})
        self.gone = False
        self._at_cut = at_cut
        self._cut = self._writing = False
        self._written_at = 0.0
        self._behind, self._moved_at = 0, 0.0  # bytes that wait for the client, and since when they are as many
        self._scope = anyio.CancelScope()
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self.response.prepare(self._request)
        loop = asyncio.get_running_loop()
        self._written_at = loop.time()
        self._watch = loop.create_task(self._watching(), name="agentloop stream")
        self._scope.__enter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._watch is not None, "it was entered"
        self._watch.cancel()
        ended_here = bool(self._scope.__exit__(kind, error, trace))  # first: what waits inside it is cancelled
        await asyncio.wait({self._watch})
        lost = isinstance(error, ClientGone)
        if (error is None or ended_here) and not self.gone:
            try:
                async with asyncio.timeout(self._write_seconds):
                    await self.response.write_eof(self._at_cut if self._cut else b"")
            except (ConnectionError, TimeoutError):
                self._abort()
        return ended_here or lost

    async def send(self, frames: bytes) -> None:
        """Write whole events; waits until the client has taken enough of what was written before.

        Raises:
            ClientGone: it has gone; the block ends quietly with it.
        """
        self._writing = True
        try:
            await self.response.write(frames)
        except ConnectionError as error:
            self._abort()
            raise ClientGone from error
        finally:
            self._writing = False
            self._written_at = asyncio.get_running_loop().time()

    async def follow(self, events: Follower, *, frame: Callable[[Any], bytes] = event_frame) -> None:
        """Send the events of a run until there is none any more: all that can be read at once in one write.

        Args:
            frame: what is sent for an event; nothing is, where it gives nothing.

        Raises:
            AgentLoopError, Exception: what ended the run, after its last event.
        """
        async for event in events:
            frames = frame(event)
            more: Event | None
            while len(frames) < _BATCH_BYTES and (more := events.next_nowait()) is not None:
                frames += frame(more)
            if frames:
                await self.send(frames)

    def cut(self) -> None:
        """End the answer now, where its writer is; the client comes back for the rest."""
        self._cut = True
        self._scope.cancel()

    def _abort(self) -> None:
        """Break the connection; what the system holds for a client that takes nothing goes with it."""
        self.gone = True
        transport = self._request.transport
        if transport is not None:
            plug = transport.get_extra_info("socket")
            if plug is not None:
                plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()

    async def _watching(self) -> None:
        """Keep the stream alive, and end it when its client has gone, which nothing else says while nothing is sent.

        It waits for no client: one clock looks after the writes of a stream, however many they are.
        """
        loop = asyncio.get_running_loop()
        every = min(_WATCH_SECONDS, self._keep_alive, self._write_seconds / 2)
        while not self.gone:
            await asyncio.sleep(every)
            now, transport = loop.time(), self._request.transport
            behind = 0 if transport is None else transport.get_write_buffer_size()
            if transport is None or transport.is_closing():
                self.gone = True
            elif behind != self._behind:  # it takes something, or has only just begun not to
                self._behind, self._moved_at = behind, now
            elif behind and now - self._moved_at >= self._write_seconds:
                self._abort()
            elif not (behind or self._writing or self._cut) and now - self._written_at >= self._keep_alive:
                try:
                    await self.send(_KEEP_ALIVE)
                except ClientGone:
                    pass  # the loop ends with it
        self._scope.cancel()


async def sse_response(
    request: web.Request,
    events: AsyncIterable[Event],
    *,
    keep_alive: float = KEEP_ALIVE_SECONDS,
    write_seconds: float = WRITE_SECONDS,
    headers: Mapping[str, str] | None = None,
) -> web.StreamResponse:
    """Answer a request with events as they come: a run in its block, `Runtime.follow`, or any other source.

    Each event is ``id: <event id>`` and ``data: <encode_event>``. An error of ours that ends the events is sent as an
    event named ``problem``, with `error_info` as its data. ``Last-Event-ID`` is not read: hand in `Runtime.follow` with
    it as ``after``. When the client goes, reading stops and the answer is returned: inside
    ``async with runtime.start(…) as run`` that cancels the run, and what was submitted goes on.

    Args:
        events: read in this task. keep_alive, write_seconds, headers: as of `SSEStream`.

    Raises:
        Exception: what the events raise that is none of ours; the answer is cut off then.
    """
    source: Any = events.__aiter__()  # a run's iterator is its follower
    async with SSEStream(request, keep_alive=keep_alive, write_seconds=write_seconds, headers=headers) as stream:
        try:
            if isinstance(source, Follower):
                await stream.follow(source)
            else:
                async for event in source:
                    await stream.send(event_frame(event))
        except AgentLoopError as error:
            await stream.send(data_frame(msgspec.json.encode(error_info(error)), event="problem"))
    return stream.response
