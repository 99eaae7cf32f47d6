"""The two routes of a chat transport: send a message, and come back to the answer that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from ...decisions import CallRef, Decision, by_run
from ..serving.service import Service
from ..serving.turn import TurnView
from ..serving.user import User
from .chunks import Chunk
from .ids import is_below
from .request import Answers, Words, asked_of, decisions_of, newest_exchange
from .stream import TurnStream
from .writer import MessageWriter

__all__ = ["routes"]

_GOES_ON: Final = ("running", "elsewhere", "waiting")


def routes(service: Service, *, reset_step: bool = True) -> list[web.RouteDef]:
    """The routes below ``/ui/chat``, for ``new DefaultChatTransport({api: "/ui/chat"})``.

    ``POST /ui/chat`` begins a turn with the chat's newest message, whose id is the turn's: sent again, it joins. What
    was said before is the server's own, and earlier messages are not read. After calls were approved, denied or
    answered, the message that asked about them goes on. ``GET /ui/chat/{id}/stream`` writes the message that a chat's
    turn is at from its start, also one that waits for answers; 204 where none is.

    Args:
        reset_step: False for clients with an ``ai`` package older than 7.0.70 (`MessageWriter`).
    """
    chat = _Chat(service, reset_step=reset_step)
    return [
        web.post("/ui/chat", chat.send),
        web.get("/ui/chat/{conversation}/stream", chat.reconnect, allow_head=False),  # as it has no body to stream
    ]


class _Chat:
    def __init__(self, service: Service, *, reset_step: bool) -> None:
        self._service, self._reset_step = service, reset_step

    async def send(self, request: web.Request) -> web.StreamResponse:
        user = await self._service.identify(request)
        asked = asked_of(await self._service.read_body(request), max_bytes=self._service.limits.body_bytes)
        said, conversation = asked.said, asked.conversation
        if isinstance(said, Words):
            await self._service.begin(user, conversation, said.turn, asked.agent, said.input)
            return await self._whole(request, user, conversation, said.turn)
        return await self._go_on(request, user, conversation, said)

    async def reconnect(self, request: web.Request) -> web.StreamResponse:
        user = await self._service.identify(request)
        conversation = request.match_info["conversation"]
        name = user.conversation(conversation)
        rows = await self._service.runtime.conversations(prefix=name)
        live = next((row.live for row in rows if row.name == name), None)
        if live is None:
            return web.Response(status=204)
        turn = live.removeprefix(f"{name}.")
        if (await self._service.turn(user, conversation, turn)).state not in _GOES_ON:
            return web.Response(status=204)
        return await self._whole(request, user, conversation, turn)

    async def _whole(self, request: web.Request, user: User, conversation: str, turn: str) -> web.StreamResponse:
        writer = MessageWriter(turn, reset_step=self._reset_step)
        stream = TurnStream(self._service, user, conversation, turn, writer)
        return await stream.answer(request, writer.start())

    async def _go_on(self, request: web.Request, user: User, conversation: str, answers: Answers) -> web.StreamResponse:
        run = user.run(conversation, answers.turn)
        view = await self._service.turn(user, conversation, answers.turn)
        decisions = decisions_of(answers, view, run, author=user.name)
        through = newest_exchange(answers, run)
        view = await self._decide(user, conversation, view, decisions)
        writer = MessageWriter(answers.turn, reset_step=self._reset_step)
        chunks: list[Chunk] = writer.resume(view, through)
        for ref, (approved, _) in answers.approvals.items():
            if CallRef.read(ref).run_id != run:
                chunks += writer.decided(ref, approved=approved)
        for call_id, result in answers.results.items():
            if is_below(call_id):
                chunks += writer.given(call_id, result)
        stream = TurnStream(self._service, user, conversation, answers.turn, writer)
        return await stream.answer(request, chunks)

    async def _decide(
        self, user: User, conversation: str, view: TurnView, decisions: Mapping[str, Decision]
    ) -> TurnView:
        """Decide and have the turn go on; what was decided before the same way is confirmed, and joined."""
        if not decisions.keys().isdisjoint(item.ref for item in view.waiting):
            return await self._service.decide(user, conversation, view.id, decisions)
        for made in by_run({CallRef.read(ref): decision for ref, decision in decisions.items()}).values():
            await self._service.runtime.decide({str(ref): decision for ref, decision in made.items()})
        return await self._service.turn(user, conversation, view.id)
