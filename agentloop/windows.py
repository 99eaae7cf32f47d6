"""One run as its host sees it: what it is given, its task and feed, and the block it is tied to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Final, Generic, Protocol, Self, TypedDict, TypeVar

import msgspec

from .admission import digest_bytes, is_unicode
from .agent import Agent
from .effects import Ledger, Patience, Sends, ToolPool
from .errors import InputError, ModelPending, RunCancelled
from .events import event_id, event_sequence
from .exchange import canonical_bytes
from .limits import check_name, check_seconds
from .messages import ImagePart, Message, ModelRequest, TextPart, UserMessage, require_model_request
from .messages.require import user_text
from .results import RunResult
from .runner import Asking
from .sinks import Emitter, Feed, Follower, Sink, require_sink

__all__ = [
    "LiveRun",
    "Parent",
    "Reachable",
    "Run",
    "RunInput",
    "RunOptions",
    "admitted",
    "admitted_user",
    "check_options",
    "check_ref",
    "input_digest",
    "retrieve",
    "sequence_of",
]

T_co = TypeVar("T_co", covariant=True)

RunInput = str | UserMessage | tuple[TextPart | ImagePart, ...]
"""A user turn: text, parts, or a whole user message."""


class RunOptions(TypedDict, total=False):
    """What every way to begin a run takes by keyword.

    Attributes:
        deps: handed to tools as ``ctx.deps``.
        sink: gets the run's output events, awaited in order (`Sink`).
        conversation: name of the conversation this turn continues; None is a run of its own. One
            run at a time may be on a conversation. 1 to 128 characters.
        history: what was said before, for a run without a conversation, whose host brings it each time: system
            and user messages and whole exchanges, as `Runtime.history` gives them. It comes after the agent's
            instructions, which are not said twice where it begins with them, and before the input. It is a part
            of the run's own input, in full: an agent's ``context`` leaves none of it out.
        run_id: makes the start idempotent: the same id with the same input joins that run, which
            keeps its own ``deps`` and ``sink``. 1 to 128 characters.
        reasoning: also preview reasoning, as `ReasoningPreview`.
        checkpoint: the run can be resumed from any point (R129): its sends live apart from its
            caller, and every tool must state how it is recovered. Needs a durable store.
        wait: with ``checkpoint``, seconds the run waits for one model call before it raises
            `ModelPending` and the call goes on alone; 30 unless said, None is as long as it takes.
            Of several who wait for one run the most patient decides.
    """

    deps: Any
    sink: Sink | None
    conversation: str | None
    history: tuple[Message, ...]
    run_id: str | None
    reasoning: bool
    checkpoint: bool
    wait: float | None


_INPUT_DOMAIN = "agentloop/input/v1"

_REF_CHARS: Final = 1_024
"""Longest id of a run: that of an agent's run is its caller's and a place."""


class Parent(msgspec.Struct, frozen=True):
    """What a run is done for that an agent does for somebody else.

    Attributes:
        ledger: what the run is debited to besides its own limits.
        span_id: of the execution that waits for it, for events.
        depth: of the run, 1 and up; 0 where it is done for a workflow, which is no agent.
        max_depth: how deep it, and those below it, may be.
        live: the run that waits for it; None where that is no run.
    """

    ledger: Ledger
    span_id: str
    depth: int
    max_depth: int
    live: LiveRun | None = None


class LiveRun:
    """One launched run: its feed and its task.

    Attributes:
        agent: whose run it is.
        children: the runs that go on for it. parent: what it goes on for itself; None for nobody.
        emitter: tells its events; None until it is driven.
        closed: whether its end is a fact; it may have left off without one.
        driving: whether its driver has not left it; a send may go on after that.
        kept: whether it is left unfinished, to be resumed, when the runtime closes.
        left: set when its caller has gone while a send goes on.
        patience: how long it waits for one send that lives apart; None where none does.
        pause: set when it shall stop at the next step and stay unfinished.
        resting: whether it waits between two effects.
        suspended: whether its driver has left it as calls of it wait for a host, or for their child runs.
        waiting: ids of the runs that went on for it and were left so since it was taken up.
        sends: where its sends go on without its caller; None where they end with it.
    """

    __slots__ = (
        "_pool",
        "agent",
        "anonymous",
        "children",
        "closed",
        "driving",
        "emitter",
        "feed",
        "holds",
        "kept",
        "left",
        "parent",
        "patience",
        "pause",
        "ref",
        "resting",
        "sends",
        "stop",
        "suspended",
        "task",
        "waiting",
    )

    def __init__(
        self, ref: str, feed: Feed, agent: Agent[Any], pool: ToolPool, *, anonymous: bool, parent: Parent | None = None
    ) -> None:
        self.ref, self.feed, self.agent, self.anonymous, self.parent = ref, feed, agent, anonymous, parent
        self.children: set[LiveRun] = set()
        self.waiting: set[str] = set()
        self._pool = pool
        self.holds = 0  # how many started or joined it and have not left; who submits never leaves
        self.closed = self.kept = self.pause = self.left = self.resting = self.suspended = False
        self.driving = True
        self.sends: Sends | None = None
        self.patience: Patience | None = None
        self.emitter: Emitter | None = None
        self.stop = False  # cancelled before its task was made
        self.task: asyncio.Task[RunResult[Any]] | None = None

    def paused(self) -> bool:
        """Whether it shall stop at the next step; see ``pause``."""
        return self.pause

    def has_left(self) -> bool:
        """Whether its caller has gone while a send goes on; see ``left``."""
        return self.left

    @property
    def goes_on(self) -> bool:
        """Whether its task has not ended."""
        return self.task is not None and not self.task.done()

    def sending(self, sends: Sends) -> bool:
        """Whether a send of it, or of a run that goes on for it, lives apart from its driver."""
        return sends.of(self.ref) is not None or any(child.sending(sends) for child in self.children)

    async def wait(self) -> RunResult[Any]:
        """The result; a cancel of the caller leaves the run alone."""
        assert self.task is not None, "a live run has a task"
        self.require_outside()
        await asyncio.wait({self.task})
        if self.task.cancelled():
            raise RunCancelled(self.ref)
        return self.task.result()

    def require_outside(self) -> None:
        """Refuse a caller that is the run itself, which could never see its own end.

        Raises:
            InputError: a tool or a sink of the run called.
        """
        if self.task is asyncio.current_task() or self._pool.run_here == self.ref:
            raise InputError(f"run {self.ref!r}: expected a caller outside the run, got a tool or a sink of it")

    async def cancel(self) -> None:
        """Cancel the run and wait until it has recorded its end."""
        assert self.task is not None, "a live run has a task"
        self.request_stop()
        await asyncio.wait({self.task})

    async def leave(self) -> None:
        """One who started or joined the run goes; the last one to go cancels it.

        A send that lives apart is not cancelled: it goes on, and the run stays unfinished.
        """
        self.holds -= 1
        if not self.holds:
            self.left = self.sends is not None and self.sends.of(self.ref) is not None
            await self.cancel()

    async def wait_bound(self) -> RunResult[Any]:
        """The result, for a caller who takes the run with it when it goes.

        Its cancel stays a cancel; where a send goes on without it, the cause says which.
        """
        try:
            return await self.wait()
        except asyncio.CancelledError as error:
            await self.leave()
            if self.pending is not None:
                raise error from self.pending
            raise

    @property
    def pending(self) -> ModelPending | None:
        """What the run raised when it left a send that goes on."""
        if self.task is None or not self.task.done() or self.task.cancelled():
            return None
        error = self.task.exception()
        return error if isinstance(error, ModelPending) else None

    async def rest(self, sleep: Awaitable[None]) -> None:
        """Wait between two effects: a pause need not wait for the end of it."""
        self.resting = True
        try:
            await sleep
        finally:
            self.resting = False

    def request_pause(self) -> None:
        """Have the run stop at its next step, without waiting."""
        self.pause = True
        if self.resting:
            self.request_stop()

    def request_stop(self) -> None:
        """Cancel the run, without waiting. Harmless after the end."""
        self.stop = True
        if self.task is not None:
            self.task.cancel()


class Reachable(Protocol):
    """Who takes what a user says to a run by its id: a `Runtime`."""

    async def cancel(self, ref: str) -> None:
        """End a run, also one that goes on nowhere."""

    async def steer(self, ref: str, input: RunInput, *, author: str | None = None) -> None:
        """Say something to a run."""

    async def stop_after_current(self, ref: str, *, author: str | None = None) -> None:
        """Have a run end after the exchange under way."""


class Run(Generic[T_co]):
    """One run in a block: ``async with runtime.start(…) as run``.

    Iterate it for the run's typed events, then await `result`. Leaving the block before the run
    has ended cancels it and waits until that is recorded, unless it was submitted as well, or
    somebody else has started it with the same ``run_id`` and not left. A run that waits for a host goes on
    nowhere, and is left so. One task at a time may iterate.

    Args:
        launch: begins the run. host: what reaches it by its id.
    """

    __slots__ = ("_events", "_host", "_launch", "_live", "_released")

    def __init__(self, launch: Callable[[], Any], host: Reachable) -> None:
        self._launch: Callable[[], Any] | None = launch
        self._host = host
        self._released = False
        self._live: LiveRun | None = None
        self._events: Follower | None = None

    @property
    def ref(self) -> str:
        """The run's id.

        Raises:
            InputError: the block was not entered.
        """
        return self._entered().ref

    async def __aenter__(self) -> Self:
        launch, self._launch = self._launch, None  # what it was given is the run's from here on
        if launch is None:
            raise InputError("Run: expected to be entered once, got a second time")
        self._live = await launch()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._release().leave()

    def __aiter__(self) -> Follower:
        """Events from the first unread one; raises what ended the run, after the last event."""
        live = self._entered()
        if self._events is None:  # a run waits for its reader only once there is one
            self._events = live.feed.follow(attached=not self._released)
        return self._events

    async def result(self) -> RunResult[T_co]:
        """Wait for the end; events that were not read are let go.

        Raises:
            AgentLoopError: what ended the run; `RunCancelled` when it was cancelled.
        """
        return await self._release().wait()

    async def cancel(self) -> None:
        """Cancel the run and wait until its end is recorded. Harmless after the end."""
        live = self._release()
        await live.cancel()
        if live.suspended:
            await self._host.cancel(live.ref)

    async def steer(self, input: RunInput, *, author: str | None = None) -> None:
        """Say something to the run while it goes on: `Runtime.steer`. Any task may call it, a tool of the run too."""
        await self._host.steer(self.ref, input, author=author)

    async def stop_after_current(self, *, author: str | None = None) -> None:
        """Have the run end after the exchange under way: `Runtime.stop_after_current`. It is not waited for."""
        await self._host.stop_after_current(self.ref, author=author)

    def _release(self) -> LiveRun:
        """The run need not wait for its reader any more."""
        live = self._entered()
        self._released = True
        live.feed.detach()
        return live

    def _entered(self) -> LiveRun:
        if self._live is None:
            raise InputError("Run: expected `async with runtime.start(…) as run`, got a run that was not entered")
        return self._live


def check_options(options: RunOptions) -> None:
    """Refuse options of another name or type.

    Raises:
        TypeError: an unknown name, as for any keyword. InputError: another type or form.
    """
    if not options:
        return
    unknown = next(iter(options.keys() - RunOptions.__annotations__.keys()), None)
    if unknown is not None:
        raise TypeError(f"Runtime: expected the options {', '.join(RunOptions.__annotations__)}, got {unknown!r}")
    for name, value in (("conversation", options.get("conversation")), ("run_id", options.get("run_id"))):
        if value is not None:
            check_name(name, value)
    history = options.get("history", ())
    if type(history) is not tuple:
        raise InputError(f"history: expected a tuple of messages, got {type(history).__name__}")
    if history and options.get("conversation") is not None:
        raise InputError("history: expected none with a conversation, which has its own")
    if options.get("sink") is not None:
        require_sink("sink", options["sink"])
    for name, flag in (
        ("reasoning", options.get("reasoning", False)),
        ("checkpoint", options.get("checkpoint", False)),
    ):
        if type(flag) is not bool:
            raise InputError(f"{name}: expected a bool, got {type(flag).__name__}")
    if options.get("wait") is not None:
        check_seconds("wait", options["wait"])


def check_ref(ref: Any) -> None:
    """Refuse a row, an error or a result in the place of the id that it has."""
    if type(ref) is not str:
        raise InputError(f"ref: expected the id of a run, a str, got {type(ref).__name__}")
    if not 1 <= len(ref) <= _REF_CHARS or not is_unicode(ref):
        got = f"{len(ref)} characters" if is_unicode(ref) else "a lone surrogate"
        raise InputError(f"ref: expected the id of a run, 1 to {_REF_CHARS} characters of Unicode text, got {got}")


def sequence_of(ref: str, after: str | None) -> int:
    if after is None:
        return 0
    if type(after) is str and after.startswith(f"{ref}:"):
        try:
            sequence = event_sequence(after)
        except ValueError:
            sequence = -1
        if sequence >= 0 and after == event_id(ref, sequence):
            return sequence
    raise InputError(f"after: expected None or the id of an event of run {ref!r}, got another value")


def admitted(asking: Asking[Any], input: RunInput, history: tuple[Message, ...] = ()) -> tuple[Message, ...]:
    """The messages of a turn; what the caller hands in is checked whole (R37), the rest was when it was prepared."""
    user = admitted_user(input)
    if not history:
        return (*asking.system, user)
    require_model_request(ModelRequest(messages=(*history, user)))
    known = len(asking.system)
    return (*asking.system, *(history[known:] if history[:known] == asking.system else history), user)


def admitted_user(input: RunInput) -> UserMessage:
    """What a user says, checked whole."""
    if type(input) is str:
        return user_text(input)
    if isinstance(input, UserMessage):
        message = input
    elif type(input) is tuple:
        message = UserMessage(content=input)
    else:
        raise InputError(f"input: expected str, UserMessage or a tuple of parts, got {type(input).__name__}")
    require_model_request(ModelRequest(messages=(message,)))
    return message


def input_digest(agent: str, asking: Asking[Any], messages: tuple[Message, ...]) -> str:
    basis = {
        "agent": agent,
        "catalogue": asking.toolset.digest,
        "messages": messages,
        "options": asking.options,
    }
    return digest_bytes(_INPUT_DOMAIN, canonical_bytes(basis))


def retrieve(task: asyncio.Task[RunResult[Any]]) -> None:
    """Mark the task's error as seen: it is raised to whoever asks for the result."""
    if not task.cancelled():
        task.exception()
