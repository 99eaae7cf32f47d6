"""What clients of all protocols ask for, without a word of HTTP but the one that tells who asks.

It stands on `Runtime.submit`, `follow`, `result`, `cancel`, `take_up`, `decide` and the two that settle: turns
live in the runtime, and this keeps nothing that could not be read again, but who follows what at the moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any, Final, Literal, Protocol

import msgspec
from aiohttp import web

from ...agent import Agent
from ...decisions import Decision, WaitingCall
from ...errors import AgentLoopError, ConflictError, InputError, LostError, NotOwnerError, OutcomeError
from ...limits import WebLimits
from ...messages import TextPart, ToolResult
from ...runtime import Runtime
from ...sinks import Follower
from ...unfinished import to_settle
from ...unsettled import Unsettled
from ...views import RunView
from ...windows import RunInput
from .attendance import Attendance, ClientGonePolicy
from .body import read_body
from .listing import ConversationItem, Listing
from .places import Places
from .problem import OWN_ENDS, Problem
from .sse import SSEStream
from .turn import TurnView, turn_view, unsettled_item
from .user import ANYONE, Auth, User

__all__ = ["Cuttable", "Service", "Settlement"]

_log = logging.getLogger("agentloop.web")

_TRIES: Final = 20
_END_SECONDS: Final = 1.0
_TRY_SECONDS: Final = 0.05


class Settlement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person says became of a call: ``done`` or ``failed`` with what it said, or ``not_done``: it may run."""

    outcome: Literal["done", "failed", "not_done"]
    text: str = ""


class Cuttable(Protocol):
    """An answer that goes on for a while."""

    async def __aenter__(self) -> Any:
        """It begins."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """It is over."""

    def cut(self) -> None:
        """End it now."""


class Service:
    """Serves agents of one runtime to many users. One event loop; `drain` and `close` end it.

    Args:
        runtime: open for as long as this is used; whoever opened it closes it.
        agents: served under their names, the first one where a client names none.
        auth: says who asks; None makes everybody the same user.
        client_gone: None is ``detach`` on a durable store, else ``cancel``.
        deps: makes what tools are given as ``ctx.deps``, of a user's name; None is none.

    Attributes:
        agents: by name. limits: as given. client_gone: as decided.
        runs, streams: places that are taken. draining: whether nothing new is begun any more.

    Raises:
        InputError: no agent, two of one name, or another type.
    """

    def __init__(
        self,
        runtime: Runtime,
        agents: Sequence[Agent[Any]],
        *,
        auth: Auth | None,
        limits: WebLimits | None = None,
        client_gone: ClientGonePolicy | None = None,
        deps: Callable[[str], Any] | None = None,
    ) -> None:
        if not isinstance(runtime, Runtime):
            raise InputError(f"runtime: expected a Runtime, got {type(runtime).__name__}")
        self.agents: Mapping[str, Agent[Any]] = _by_name(agents)
        if auth is not None and not callable(auth):
            raise InputError(f"auth: expected an async function of a request, or None, got {type(auth).__name__}")
        if client_gone not in (None, "detach", "cancel"):
            raise InputError("client_gone: expected None, 'detach' or 'cancel'")
        if deps is not None and not callable(deps):
            raise InputError(f"deps: expected a function of a user's name, or None, got {type(deps).__name__}")
        if limits is not None and type(limits) is not WebLimits:
            raise InputError(f"limits: expected WebLimits, got {type(limits).__name__}")
        self.runtime, self.limits = runtime, limits or WebLimits()
        self.client_gone: ClientGonePolicy = client_gone or ("detach" if runtime.durable else "cancel")
        self._auth, self._deps = auth, deps
        self.runs = Places("runs", total=self.limits.runs, a_user=self.limits.runs_a_user)
        self.streams = Places("streams", total=self.limits.streams, a_user=self.limits.streams_a_user)
        self.draining = False
        self._drained_by = 0.0  # when to wait no longer for what goes on; 0 before that is known
        self._turns: dict[str, asyncio.Task[None]] = {}  # those that go on here, by the run's id
        self._sharing: dict[str, int] = {}  # how many have the place of a run: who begin it, and its task
        self._attendance = Attendance(
            runtime,
            policy=self.client_gone,
            seconds=self.limits.gone_seconds,
            goes_on=self._turns.__contains__,
        )
        self._listing = Listing(runtime)
        self._open: set[Cuttable] = set()
        self._answered = asyncio.Event()  # set when the last answer that was open is over
        self._admitted: set[asyncio.Future[None]] = set()

    # -- who and what

    async def identify(self, request: web.Request) -> User:
        """Who sends a request.

        Raises:
            Problem: 401, it is nobody known.
        """
        if self._auth is None:
            return User.of(ANYONE)
        name = await self._auth(request)
        if name is None:
            headers = {"WWW-Authenticate": "Bearer"}
            raise Problem(401, "unauthorized", "expected a request of a known user, got another", headers=headers)
        try:
            return User.of(name)
        except InputError as error:  # no fault of the client
            _log.error("auth: %s", error)
            raise Problem(500, "error", "the server could not answer; its log says why") from error

    async def read_body(self, request: web.Request) -> bytes:
        """The body of a request, within the limits; see `read_body`."""
        return await read_body(request, self.limits)

    def agent(self, name: str | None) -> Agent[Any]:
        """The agent of that name, or the first one.

        Raises:
            Problem: 404, none has that name.
        """
        if name is None:
            return next(iter(self.agents.values()))
        agent = self.agents.get(name)
        if agent is None:
            raise Problem(404, "unknown_agent", f"agent: expected one of {', '.join(self.agents)}, got another name")
        return agent

    def deps(self, user: User) -> Any:
        """What tools of a user's turns are given."""
        return None if self._deps is None else self._deps(user.name)

    def require_open(self) -> None:
        """Refuse to begin anything while this is about to end.

        Raises:
            Problem: 503 with ``Retry-After``.
        """
        if self.draining:
            raise Problem(503, "draining", "this server is about to stop", retry_after=5)

    # -- reading

    async def conversations(self, user: User, *, limit: int) -> list[ConversationItem]:
        """A user's conversations, the one with the newest turn first."""
        return await self._listing.items(user, limit=limit)

    async def turns(self, user: User, conversation: str) -> list[TurnView]:
        """All turns of a conversation, oldest first.

        Raises:
            LostError: the user has none of that id.
        """
        views = await self.runtime.turns(user.conversation(conversation))
        return [
            await self._turn(view, conversation, view.run_id.rpartition(".")[2])
            for view in views
            if view.kind != "branch"
        ]

    async def turn(self, user: User, conversation: str, turn: str) -> TurnView:
        """One turn, as far as it is stored.

        Raises:
            LostError: the user has none of these ids.
        """
        return await self._turn(await self.runtime.view(user.run(conversation, turn)), conversation, turn)

    # -- turns

    async def begin(
        self, user: User, conversation: str, turn: str, agent: str | None, input: RunInput
    ) -> tuple[TurnView, bool]:
        """Begin a turn; one that is there already, with the same words, is not begun again.

        Returns:
            The turn, and whether it is new.

        Raises:
            Problem: 409, it is there with other words or for another agent. 429, 503: not now.
            ConflictError: the conversation has a turn that has not ended. InputError: bad input.
        """
        ref = user.run(conversation, turn)
        known = await self._known(ref)
        if known is None:
            self.require_open()
            try:
                with self.beginning(user, ref):
                    await self.runtime.submit(
                        self.agent(agent),
                        input,
                        conversation=user.conversation(conversation),
                        run_id=ref,
                        deps=self.deps(user),
                    )
                return await self.turn(user, conversation, turn), True
            except ConflictError as error:
                known = await self._begun_elsewhere(ref, error)
        if agent != known.agent:  # one that is served no more still has its turns
            self.agent(agent)
        _check_same(known, agent, input)
        return await self._turn(known, conversation, turn), False

    async def decide(self, user: User, conversation: str, turn: str, decisions: Mapping[str, Decision]) -> TurnView:
        """Store what a person decides about calls of a turn that wait, and have it go on.

        Raises:
            Problem: 503, 429: not now. Otherwise as `Runtime.resume`.
        """
        return await self._take_up(user, conversation, turn, decisions)

    async def resume(self, user: User, conversation: str, turn: str) -> TurnView:
        """Have a turn go on that was left unfinished, with nothing unknown; one that goes on already is told.

        Raises:
            Problem: 409, it waits for a person, or has ended, or goes on elsewhere. Otherwise as `decide`.
        """
        view = await self.turn(user, conversation, turn)
        if view.state == "running":
            return view
        if view.state != "paused":
            raise Problem(409, "not_paused", f"turn: expected one that is paused, got one that is {view.state}")
        return await self._take_up(user, conversation, turn, None)

    async def ask_again(
        self,
        user: User,
        conversation: str,
        turn: str,
        calls: Mapping[str, Settlement],
        *,
        sends: Sequence[str] | None = None,
    ) -> TurnView:
        """Settle all that nobody knows of: sends brought nothing, and of each call a person says; then go on.

        Args:
            calls: by the id of the `UnsettledOf`; all of them, and no other.
            sends: the ids of those that the person was shown; None takes what there is.

        Raises:
            Problem: 400, a call or a send is missing or is none. 409, nothing is unsettled. Otherwise as `decide`.
        """
        self.require_open()
        view = await self.runtime.view(user.run(conversation, turn))
        state = (await self._turn(view, conversation, turn)).state
        if state != "unsettled":
            raise Problem(409, "not_unsettled", f"turn: expected one that is unsettled, got one that is {state}")
        items = {unsettled_item(item, view.run_id).id: item for item in await self._to_settle(view)}
        asked = {name for name, item in items.items() if item.kind == "call"}
        if asked != calls.keys():
            names = ", ".join(sorted(asked)) or "none, as no call is unsettled"
            these, others = len(asked & calls.keys()), len(calls.keys() - asked)
            message = f"calls: expected exactly {names}; got {these} of these and {others} others"
            raise Problem(400, "bad_request", message)
        if sends is not None and set(sends) != items.keys() - asked:
            raise Problem(400, "bad_request", "sends: expected those that are unsettled now, got others")
        agent = self.agent(view.agent)
        with self.beginning(user, view.run_id):  # first: nothing is settled where it cannot go on
            for name, item in items.items():
                await self._settle(user, item, calls.get(name), feedback_bytes=agent.limits.feedback_bytes)
            await self.runtime.take_up(view.run_id, agent, deps=self.deps(user))
        return await self.turn(user, conversation, turn)

    async def discard(self, user: User, conversation: str, turn: str) -> TurnView:
        """End a turn whatever is unknown of it: nobody waits for that any more. As `Runtime.cancel` with an author."""
        await self.runtime.cancel(user.run(conversation, turn), author=user.name)
        return await self.turn(user, conversation, turn)

    async def cancel(self, user: User, conversation: str, turn: str) -> TurnView:
        """Cancel a turn that goes on, or that waits. Raises as `Runtime.cancel` without an author."""
        await self.runtime.cancel(user.run(conversation, turn))
        return await self.turn(user, conversation, turn)

    async def forget(self, user: User, conversation: str) -> None:
        """Drop a conversation. Raises as `Runtime.forget`."""
        name = user.conversation(conversation)
        for row in await self.runtime.conversations(prefix=name):
            if row.name == name:
                self._listing.forget(row.runs[0])
        await self.runtime.forget(conversation=name)

    def follow(self, user: User, conversation: str, turn: str, *, after: str | None) -> Follower | None:
        """The events of a turn, where this process still has some of it; None where it has none.

        Raises:
            InputError: ``after`` is no id of this turn's events.
        """
        try:
            return self.runtime.follow(user.run(conversation, turn), after=after)
        except LostError:
            return None

    async def given_up(self, user: User, conversation: str, turn: str) -> None:
        """Wait until a turn whose end is stored has no place here any more: whoever is told may begin the next one."""
        task = self._turns.get(user.run(conversation, turn))
        if task is not None:
            await asyncio.wait({task})

    def reading(self, user: User, conversation: str, turn: str) -> AbstractContextManager[None]:
        """Say, for the time of a block, that somebody follows a turn."""
        return self._attendance.reading(user.run(conversation, turn))

    @asynccontextmanager
    async def streaming(self, user: User, stream: SSEStream) -> AsyncIterator[SSEStream]:
        """Open a stream, in a place of its own, until it ends or this is closed.

        Raises:
            Problem: 429, no place is left.
        """
        with self.streams.hold(user):
            async with self.answering(stream):
                yield stream

    @asynccontextmanager
    async def answering(self, answer: Cuttable) -> AsyncIterator[None]:
        """Have an answer that goes on for the time of a block; it is cut where this is closed."""
        async with answer:
            self._open.add(answer)
            try:
                yield
            finally:
                self._open.discard(answer)
                if not self._open:
                    self._answered.set()

    @contextmanager
    def admit(self, user: User) -> Iterator[None]:
        """Have a place for a run that ends with the block; `drain` waits for it.

        Raises:
            Problem: 503, 429: not now.
        """
        self.require_open()
        with self.runs.hold(user):
            ended = asyncio.get_running_loop().create_future()
            self._admitted.add(ended)
            try:
                yield
            finally:
                self._admitted.discard(ended)
                ended.set_result(None)

    @contextmanager
    def beginning(self, user: User, ref: str) -> Iterator[None]:
        """Have a place for a run from here to its end, which a task of its own waits for.

        Of several who begin one run none takes another place.

        Raises:
            Problem: 429, no place is left.
        """
        self._share(user, ref)
        try:
            yield
            if ref not in self._turns:
                self._share(user, ref)
                ended = self._until_ended(user, ref)
                self._turns[ref] = asyncio.get_running_loop().create_task(ended, name=f"turn {ref}")
                self._attendance.unfollowed(ref)
        finally:
            self._leave(user, ref)

    def stream(
        self, request: web.Request, *, headers: Mapping[str, str] | None = None, at_cut: bytes = b""
    ) -> SSEStream:
        """A stream with this service's times; see `SSEStream`."""
        return SSEStream(
            request,
            keep_alive=self.limits.keep_alive_seconds,
            write_seconds=self.limits.write_seconds,
            headers=headers,
            at_cut=at_cut,
        )

    # -- its end

    async def drain(self) -> None:
        """Begin nothing more, wait ``drain_seconds`` for what goes on, then cut all answers.

        Whoever serves may call it before it stops to listen, so that clients are answered meanwhile; once more waits
        for no longer.
        """
        clock = asyncio.get_running_loop().time
        self.draining = True
        self._drained_by = self._drained_by or clock() + self.limits.drain_seconds
        self._attendance.stop()
        going = [*self._turns.values(), *self._admitted]
        if going:
            await asyncio.wait(going, timeout=max(0.0, self._drained_by - clock()))
        left = min(_END_SECONDS, self._drained_by - clock())
        if self._open and left > 0:  # turns have ended just now, and their readers are being told so
            self._answered.clear()
            await asyncio.wait({asyncio.ensure_future(self._answered.wait())}, timeout=left)
            self._answered.set()  # nobody waits any more
        for answer in tuple(self._open):
            answer.cut()

    async def close(self) -> None:
        """Let go of everything; turns that go on are the runtime's."""
        self.draining = True
        await self._attendance.close()
        tasks = tuple(self._turns.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- private

    def _share(self, user: User, ref: str) -> None:
        if ref not in self._sharing:
            self.runs.take(user)
        self._sharing[ref] = self._sharing.get(ref, 0) + 1

    def _leave(self, user: User, ref: str) -> None:
        self._sharing[ref] -= 1
        if not self._sharing[ref]:
            del self._sharing[ref]
            self.runs.give_back(user)

    async def _known(self, ref: str) -> RunView | None:
        try:
            return await self.runtime.view(ref)
        except LostError:
            return None

    async def _begun_elsewhere(self, ref: str, error: ConflictError) -> RunView:
        """The run that another process has begun for the same request just before, or the error where none has."""
        left = _TRIES if isinstance(error, NotOwnerError) else 0
        while (known := await self._known(ref)) is None:
            if not left:
                raise error
            left -= 1
            await asyncio.sleep(_TRY_SECONDS)  # it owns the run, and writes it just now
        return known

    async def _turn(self, view: RunView, conversation: str, turn: str) -> TurnView:
        live = self.runtime.is_live(view.run_id)
        agent = self.agents.get(view.agent)
        unsettled: Sequence[Unsettled] = ()
        waiting: Sequence[WaitingCall] = ()
        if view.state == "unfinished" and not live:
            unsettled = await self._to_settle(view)
            if any(call.state == "waiting" for call in view.calls):
                waiting = await self._waiting(view.run_id)
        return turn_view(
            view, turn=turn, conversation=conversation, agent=agent, live=live, waiting=waiting, unsettled=unsettled
        )

    async def _waiting(self, ref: str) -> Sequence[WaitingCall]:
        try:
            return (await self.runtime.result(ref)).waiting
        except OutcomeError:  # all is decided, and it has not gone on yet
            return ()
        except AgentLoopError as error:  # it left off here with that; the turn says what is unsettled
            _log.info("run %s left off: %s", ref, type(error).__name__)
            return ()

    async def _to_settle(self, view: RunView) -> Sequence[Unsettled]:
        return await to_settle(view, self.agents.get(view.agent), self.runtime.view)

    async def _settle(self, user: User, item: Unsettled, said: Settlement | None, *, feedback_bytes: int) -> None:
        if item.kind == "send":
            await self.runtime.settle_send(item.ref, item.effect_id, author=user.name)
            return
        assert said is not None, "each call was named"
        assert item.exchange is not None, "a call has a place"
        assert item.position is not None, "a call has a place"
        result = None
        if said.outcome != "not_done":
            result = ToolResult.ok(said.text) if said.outcome == "done" else ToolResult.error(said.text)
        await self.runtime.settle_call(
            item.ref, item.exchange, item.position, author=user.name, result=result, feedback_bytes=feedback_bytes
        )

    async def _take_up(
        self, user: User, conversation: str, turn: str, decisions: Mapping[str, Decision] | None
    ) -> TurnView:
        self.require_open()
        ref = user.run(conversation, turn)
        view = await self.runtime.view(ref)
        with self.beginning(user, ref):
            await self.runtime.take_up(ref, self.agent(view.agent), decisions=decisions, deps=self.deps(user))
        return await self.turn(user, conversation, turn)

    async def _until_ended(self, user: User, ref: str) -> None:
        try:
            while True:
                try:
                    await self.runtime.result(ref)
                except OWN_ENDS:
                    raise
                except BaseException as error:  # noqa: BLE001  # of whatever kind; whoever follows it is told
                    _log.info("run %s ended with %s", ref, type(error).__name__)
                if not self.runtime.is_live(ref):  # it may have been taken up at once
                    break
        finally:
            del self._turns[ref]
            self._leave(user, ref)
            self._attendance.ended(ref)


def _by_name(agents: Sequence[Agent[Any]]) -> dict[str, Agent[Any]]:
    if isinstance(agents, str | bytes) or not isinstance(agents, Sequence) or not agents:
        raise InputError("agents: expected a list of at least one Agent")
    found: dict[str, Agent[Any]] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InputError(f"agents: expected Agents, got {type(agent).__name__}")
        if agent.name in found:
            raise InputError(f"agents: expected each name once, got {agent.name!r} twice")
        found[agent.name] = agent
    return found


def _check_same(known: RunView, agent: str | None, input: RunInput) -> None:
    """Refuse another turn under the id of one that is there."""
    said = next((message for message in reversed(known.messages) if message.role == "user"), None)
    text, images = _words(input)
    if known.kind != "redacted" and (
        agent not in (None, known.agent) or said is None or (said.text, said.images) != (text, images)
    ):
        raise Problem(409, "conflict", "turn: expected the words and the agent it was begun with, got others")


def _words(input: RunInput) -> tuple[str, int]:
    """Text of an input, and how many images come with it."""
    content = input if isinstance(input, str | tuple) else input.content
    if isinstance(content, str):
        return content, 0
    texts = [part.text for part in content if isinstance(part, TextPart)]
    return "\n".join(texts), len(content) - len(texts)
