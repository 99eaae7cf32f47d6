"""A turn sent as the chunks of a message, from what is stored and from its events, to its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, cast

from aiohttp import web

from ...events import Event, RunEvent, event_id
from ...sinks import Follower
from ..serving.service import Service
from ..serving.sse import ClientGone, SSEStream, data_frame
from ..serving.turn import TurnView
from ..serving.user import User
from .chunks import Chunk, encode_chunk
from .writer import MessageWriter

__all__ = ["HEADERS", "TurnStream"]

_log = logging.getLogger("agentloop.web")

HEADERS: Final[Mapping[str, str]] = {"x-vercel-ai-ui-message-stream": "v1"}
"""What says to a client which protocol is spoken."""

_DONE: Final = data_frame(b"[DONE]")
_POLL_SECONDS: Final = 1.0
_BATCH_BYTES: Final = 64 * 1024


class TurnStream:
    """Sends one turn of a user to one client.

    Args:
        writer: of the turn's message, not begun or begun with the chunks that `send` is given.
    """

    def __init__(self, service: Service, user: User, conversation: str, turn: str, writer: MessageWriter) -> None:
        self._service, self._user, self._conversation, self._turn = service, user, conversation, turn
        self._writer = writer

    async def answer(self, request: web.Request, begin: Sequence[Chunk]) -> web.StreamResponse:
        """Answer a request with the turn, to its end.

        An answer that is cut off is no answer that ends: a client takes one that ends in order for a whole message.

        Args:
            begin: the chunks that come first.

        Raises:
            Problem: 429, no place is left for a stream.
        """
        service, user = self._service, self._user
        follower = service.follow(user, self._conversation, self._turn, after=None)
        stream = service.stream(request, headers=HEADERS)
        with service.reading(user, self._conversation, self._turn):
            async with service.streaming(user, stream):
                try:
                    await stream.send(_frames(begin))
                    await self._send(stream, follower)
                except BaseException:
                    if request.transport is not None:
                        request.transport.abort()
                    raise
        return stream.response

    async def _send(self, stream: SSEStream, follower: Follower | None) -> None:
        run = self._user.run(self._conversation, self._turn)
        while True:
            if follower is None or follower.missed:
                await self._show(stream, await self._view())
            if follower is not None:
                try:
                    await self._follow(stream, follower)
                except ClientGone:
                    raise
                except Exception as error:  # noqa: BLE001  # what ended the run, of whatever kind; it stands in the turn
                    _log.info("run %s ended with %s", run, type(error).__name__)
            view = await self._view()
            while view.state == "elsewhere":
                await asyncio.sleep(_POLL_SECONDS)
                view = await self._view()
                await self._show(stream, view)
            if view.state != "running":
                break
            await asyncio.sleep(0)  # its events have ended, and its task is about to; a store in memory never waits
            after = event_id(run, follower.seen) if follower is not None else None
            follower = self._service.follow(self._user, self._conversation, self._turn, after=after)
        await stream.send(_frames(self._writer.end(view)) + _DONE)

    async def _follow(self, stream: SSEStream, events: Follower) -> None:
        """Send what the events of the run add until there is none any more, all that can be read at once together."""
        async for event in events:
            frames = await self._frames_of(event)
            more: Event | None
            while len(frames) < _BATCH_BYTES and (more := events.next_nowait()) is not None:
                frames += await self._frames_of(more)
            if frames:
                await stream.send(frames)

    async def _frames_of(self, event: Event) -> bytes:
        told = cast("RunEvent", event)  # a run's events are of the catalogue
        chunks = self._writer.turn(await self._view()) if self._writer.needs_turn(told) else []
        return _frames([*chunks, *self._writer.event(told)])

    async def _show(self, stream: SSEStream, view: TurnView) -> None:
        if frames := _frames(self._writer.turn(view)):
            await stream.send(frames)

    async def _view(self) -> TurnView:
        return await self._service.turn(self._user, self._conversation, self._turn)


def _frames(chunks: Iterable[Chunk]) -> bytes:
    return b"".join(data_frame(encode_chunk(chunk)) for chunk in chunks)
