"""A turn sent as the chunks of a message, from what is stored and from its events, to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, cast

from aiohttp import web

from ...errors import AgentLoopError
from ...events import Event, RunEvent
from ...sinks import Follower
from ..serving.problem import problem_of
from ..serving.service import Service
from ..serving.sse import SSEStream, data_frame
from ..serving.turn import TurnView
from ..serving.turn_stream import tell_turn
from ..serving.user import User
from .chunks import Chunk, Error, encode_chunk
from .writer import MessageWriter

__all__ = ["HEADERS", "TurnStream"]

HEADERS: Final[Mapping[str, str]] = {"x-vercel-ai-ui-message-stream": "v1"}
"""What says to a client which protocol is spoken."""

_DONE: Final = data_frame(b"[DONE]")
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
                    teller = _MessageTeller(stream, self._writer, self._view)
                    await tell_turn(service, user, self._conversation, self._turn, teller, follower)
                except AgentLoopError as error:  # the turn was forgotten meanwhile, or the store has stopped
                    problem = problem_of(error)
                    await stream.send(_frames([Error(error_text=f"{problem.code}: {problem.message}")]))
                except BaseException:
                    if request.transport is not None:
                        request.transport.abort()
                    raise
        return stream.response

    async def _view(self) -> TurnView:
        return await self._service.turn(self._user, self._conversation, self._turn)


class _MessageTeller:
    def __init__(self, stream: SSEStream, writer: MessageWriter, view: Callable[[], Awaitable[TurnView]]) -> None:
        self._stream, self._writer, self._view = stream, writer, view

    async def events(self, events: Follower) -> None:
        """What the events add to the message, all that can be read at once together."""
        async for event in events:
            frames = await self._frames_of(event)
            more: Event | None
            while len(frames) < _BATCH_BYTES and (more := events.next_nowait()) is not None:
                frames += await self._frames_of(more)
            if frames:
                await self._stream.send(frames)

    async def stored(self, turn: TurnView) -> None:
        """What it adds to the message."""
        if frames := _frames(self._writer.turn(turn)):
            await self._stream.send(frames)

    async def end(self, turn: TurnView) -> None:
        """The end of the message."""
        await self._stream.send(_frames(self._writer.end(turn)) + _DONE)

    async def _frames_of(self, event: Event) -> bytes:
        told = cast("RunEvent", event)  # a run's events are of the catalogue
        chunks = self._writer.turn(await self._view()) if self._writer.needs_turn(told) else []
        return _frames([*chunks, *self._writer.event(told)])


def _frames(chunks: Iterable[Chunk]) -> bytes:
    return b"".join(data_frame(encode_chunk(chunk)) for chunk in chunks)
