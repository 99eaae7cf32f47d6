"""The JSON routes: conversations, turns and their events, decisions, settling, cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar

import msgspec
from aiohttp import web

from ...decisions import Answer, Approve, Decision, Deny
from ...errors import AgentLoopError, InputError
from ...messages import ToolResult
from ..serving.body import read_json
from ..serving.problem import Problem, problem_of
from ..serving.service import Service, Settlement
from ..serving.sse import data_frame
from ..serving.turn import TurnView
from ..serving.turn_stream import JsonTeller, tell_turn
from ..serving.user import User

__all__ = ["json_answer", "routes"]

T = TypeVar("T")

_LISTED = 50
_LISTED_AT_MOST = 200


class _Begin(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    text: str
    agent: str | None = None


class _Decision(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    decision: Literal["approve", "deny", "answer"]
    reason: str = ""
    text: str = ""
    error: bool = False

    def by(self, author: str) -> Decision:
        """What it says, by whom."""
        if self.decision == "approve":
            return Approve(author=author)
        if self.decision == "deny":
            return Deny(author=author, reason=self.reason)
        return Answer(author=author, result=ToolResult.error(self.text) if self.error else ToolResult.ok(self.text))


class _Decide(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    decisions: dict[str, _Decision]


class _Settle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    choice: Literal["ask_again", "discard"]
    calls: dict[str, Settlement] = {}
    sends: list[str] | None = None


def json_answer(value: Any, *, status: int = 200) -> web.Response:
    """An answer of one JSON value."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")


def routes(service: Service, *, page: bool) -> list[web.RouteDef]:
    """The routes below ``/api``.

    Args:
        page: whether the page is served too; told to clients.
    """
    api = _Api(service, page)
    turn = "/api/conversations/{conversation}/turns/{turn}"
    return [
        web.get("/api/session", api.session),
        web.get("/api/conversations", api.conversations),
        web.get("/api/conversations/{conversation}", api.conversation),
        web.delete("/api/conversations/{conversation}", api.forget),
        web.post("/api/conversations/{conversation}/turns", api.begin),
        web.get(turn, api.turn),
        web.get(f"{turn}/events", api.events, allow_head=False),  # it would be sent the stream as its body
        web.post(f"{turn}/decide", api.decide),
        web.post(f"{turn}/settle", api.settle),
        web.post(f"{turn}/resume", api.resume),
        web.post(f"{turn}/cancel", api.cancel),
    ]


class _Api:
    def __init__(self, service: Service, page: bool) -> None:
        self._service, self._page = service, page

    async def session(self, request: web.Request) -> web.Response:
        user = await self._service.identify(request)
        agents = [{"name": agent.name, "tools": list(agent.toolset.names)} for agent in self._service.agents.values()]
        alive = self._service.limits.keep_alive_seconds
        return json_answer({"user": user.name, "agents": agents, "page": self._page, "keep_alive_seconds": alive})

    async def conversations(self, request: web.Request) -> web.Response:
        user = await self._service.identify(request)
        limit = _count(request, "limit", _LISTED, _LISTED_AT_MOST)
        return json_answer({"conversations": await self._service.conversations(user, limit=limit)})

    async def conversation(self, request: web.Request) -> web.Response:
        user = await self._service.identify(request)
        conversation = request.match_info["conversation"]
        return json_answer({"id": conversation, "turns": await self._service.turns(user, conversation)})

    async def forget(self, request: web.Request) -> web.Response:
        user = await self._service.identify(request)
        await self._service.forget(user, request.match_info["conversation"])
        return web.Response(status=204)

    async def begin(self, request: web.Request) -> web.Response:
        user = await self._service.identify(request)
        asked = await read_json(request, _Begin, self._service.limits)
        if not asked.text.strip():
            raise Problem(400, "bad_request", "$.text: expected text that is not blank")
        conversation = request.match_info["conversation"]
        turn, new = await self._service.begin(user, conversation, asked.id, asked.agent, asked.text)
        return json_answer(turn, status=201 if new else 200)

    async def turn(self, request: web.Request) -> web.Response:
        return await self._of_turn(request, self._service.turn)

    async def events(self, request: web.Request) -> web.StreamResponse:
        user = await self._service.identify(request)
        conversation, turn = request.match_info["conversation"], request.match_info["turn"]
        after = request.headers.get("Last-Event-ID") or request.query.get("after") or None
        try:
            follower = self._service.follow(user, conversation, turn, after=after)
        except InputError:
            raise Problem(400, "bad_event_id", "Last-Event-ID: expected the id of an event of this turn") from None
        if follower is None:
            await self._service.turn(user, conversation, turn)  # or 404, before the stream begins
        stream = self._service.stream(request)
        with self._service.reading(user, conversation, turn):
            async with self._service.streaming(user, stream):
                try:
                    await tell_turn(self._service, user, conversation, turn, JsonTeller(stream), follower)
                except AgentLoopError as error:  # the turn was forgotten meanwhile, or the store stopped
                    await stream.send(data_frame(problem_of(error).body(), event="problem"))
        return stream.response

    async def decide(self, request: web.Request) -> web.Response:
        async def decide(user: User, conversation: str, turn: str) -> TurnView:
            asked = await read_json(request, _Decide, self._service.limits)
            if not asked.decisions:
                raise Problem(400, "bad_request", "$.decisions: expected at least one, got none")
            decisions = {ref: made.by(user.name) for ref, made in asked.decisions.items()}
            return await self._service.decide(user, conversation, turn, decisions)

        return await self._of_turn(request, decide)

    async def settle(self, request: web.Request) -> web.Response:
        async def settle(user: User, conversation: str, turn: str) -> TurnView:
            asked = await read_json(request, _Settle, self._service.limits)
            if asked.choice == "discard":
                return await self._service.discard(user, conversation, turn)
            return await self._service.ask_again(user, conversation, turn, asked.calls, sends=asked.sends)

        return await self._of_turn(request, settle)

    async def resume(self, request: web.Request) -> web.Response:
        return await self._of_turn(request, self._service.resume)

    async def cancel(self, request: web.Request) -> web.Response:
        return await self._of_turn(request, self._service.cancel)

    async def _of_turn(
        self, request: web.Request, act: Callable[[User, str, str], Awaitable[TurnView]]
    ) -> web.Response:
        user = await self._service.identify(request)
        return json_answer(await act(user, request.match_info["conversation"], request.match_info["turn"]))


def _count(request: web.Request, name: str, default: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= most):
        raise Problem(400, "bad_request", f"{name}: expected a number from 1 to {most}")
    return int(text)
