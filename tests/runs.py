"""What tests of whole runs share: the documented order of events, and what any end must leave behind."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import agentloop as al
from agentloop.exchange import Fact, ReplyTaken, SendStarted, SlotMoved
from agentloop.messages import ModelExchange
from agentloop.persistence import Backend, MemoryBackend
from agentloop.wire.encode import encode_request
from agentloop.wire.history import decode_messages
from agentloop.wire.presets import dialect

__all__ = [
    "NEXT",
    "SlowBackend",
    "body_of",
    "check_end",
    "check_order",
    "facts_of",
    "follow_all",
    "on_backend",
    "other_tasks",
    "pairs_in",
    "turn_of",
]

NEXT: Final[dict[str, dict[str, str]]] = {
    # RunStarted  (<asking>  <tool call>*)*  RunEnded
    # <asking>:  <model call>  (ResendScheduled  <model call>)*
    # <tool call>:  (ToolStarted ToolProgress* ToolEnded)+ | ToolSkipped, which `check_order` holds of each call
    "new": {"run.started": "idle"},
    "idle": {
        "model.start": "calling",
        "runtime.rejected": "idle",
        "resend.scheduled": "waiting",
        "tool.started": "tool",
        "tool.skipped": "idle",
        "run.ended": "over",
    },
    "waiting": {"model.start": "calling", "runtime.rejected": "idle", "run.ended": "over"},
    # ModelStart  (TextPreview | ReasoningPreview)*  [ModelParsed]  ModelEnd
    "calling": {
        "model.output": "calling",
        "model.reasoning": "calling",
        "model.parsed": "parsed",
        "model.end": "idle",
    },
    "parsed": {"model.end": "idle"},
    "tool": {"tool.progress": "tool", "tool.ended": "idle"},
    "over": {"run.started": "idle"},  # where it is taken up again
}
for _state in NEXT.keys() - {"new", "over"}:
    NEXT[_state] |= {"run.steered": _state, "run.stopping": _state}  # a host's word comes whenever it does
"""The order that the docstrings of `agentloop.events` write down, as a table of its own."""


TIMED_OUT: Final = ("unknown", "timeout", None)
"""The step of a slot whose execution ran out of time and is repeated."""

_OF_ATTEMPT: Final = (al.TextPreview, al.ReasoningPreview, al.ModelParsed, al.ModelEnd, al.ResendScheduled)


def check_order(events: Sequence[al.Event], *, parallel: int = 1) -> None:
    """Hold a run's events, as a reader gets them from the first to the last, to the documented order.

    Args:
        parallel: how many tools may run at the same time.
    """
    state = "new"
    going: dict[str | None, int] = {}  # executions: number of the attempt
    over: set[str | None] = set()
    for event in events:
        types = [e.type for e in events]
        if going and parallel > 1 and event.type in ("tool.started", "tool.skipped"):
            state = "idle"  # for this one
        assert event.type in NEXT[state], f"{event.type} in state {state}: {types}"
        state = NEXT[state][event.type]
        if isinstance(event, al.ToolStarted):
            assert event.invocation_id not in going, types
            assert event.attempt > 1 or event.invocation_id not in over, types
            going[event.invocation_id] = event.attempt
            assert len(going) <= parallel, types
        elif isinstance(event, al.ToolProgress):
            assert event.invocation_id in going, types
        elif isinstance(event, al.ToolEnded):
            del going[event.invocation_id]
            over.add(event.invocation_id)
        if going:
            state = "tool"
    assert state == "over", [event.type for event in events]
    sequences = [event.sequence for event in events]
    assert sequences == sorted(set(sequences))
    assert len({event.run_id for event in events}) == 1
    attempt = None
    for event in events:
        if isinstance(event, al.ModelStart):
            attempt = event.attempt_id
        elif isinstance(event, _OF_ATTEMPT):
            assert event.attempt_id == attempt == event.invocation_id
    starts = {event.attempt_id: event.call_sequence for event in events if isinstance(event, al.ModelStart)}
    assert list(starts.values()) == list(range(1, len(starts) + 1))  # one that is waited for again begins twice


def turn_of(runtime: al.Runtime, ref: str) -> Any:
    """The run's facts, as state."""
    return runtime._store.book.turn(ref)


async def facts_of(runtime: al.Runtime) -> list[Fact]:
    """Every fact that the medium of a runtime holds."""
    return await runtime._store._backend.load()


async def follow_all(runtime: al.Runtime, ref: str) -> list[al.Event]:
    """A run's events to its last, whatever ended it."""
    events: list[al.Event] = []
    try:
        async for event in runtime.follow(ref):
            events.append(event)  # noqa: PERF401  # what came before an error is kept
    except Exception:  # noqa: BLE001  # what ended the run
        assert runtime._runs.live[ref].feed.closed
    return events


async def check_end(
    runtime: al.Runtime, ref: str, outcome: str, reason: str | None = None, *, parallel: int = 1
) -> list[al.Event]:
    """Hold what every end of a run must leave: a usable history, one of each event, nothing open.

    Args:
        parallel: how many tools may have run at the same time.

    Returns:
        The run's events.
    """
    turn = turn_of(runtime, ref)
    assert turn.closed is not None
    assert turn.closed.outcome == outcome
    if reason is not None:
        assert turn.closed.reason == reason
    assert turn.sends == {}
    for entry in turn.entries:
        assert entry.complete
        assert [slot.feedback.tool_call_id for slot in entry.slots] == [call.id for call in entry.reply.calls]

    facts = [fact for fact in await facts_of(runtime) if fact.run_id == ref]
    events = await follow_all(runtime, ref)
    check_order(events, parallel=parallel)
    admitted = [fact.attempt_id for fact in facts if isinstance(fact, SendStarted)]
    started = [event.attempt_id for event in events if isinstance(event, al.ModelStart)]
    ended = [event.attempt_id for event in events if isinstance(event, al.ModelEnd)]
    assert admitted == started == ended
    replied = [fact.attempt_id for fact in facts if isinstance(fact, ReplyTaken)]
    stood = [event.attempt_id for event in events if isinstance(event, al.ModelEnd) and event.status == "success"]
    assert replied == stood

    moves = [fact for fact in facts if isinstance(fact, SlotMoved)]
    claims = Counter(fact.effect_id for fact in moves if fact.state == "started")
    claims -= Counter(fact.effect_id for fact in moves if fact.state == "open")  # given back
    late = Counter(fact.effect_id for fact in moves if (fact.state, fact.code, fact.feedback) == TIMED_OUT)
    assert all(count == 1 + late[effect_id] for effect_id, count in claims.items())  # repeated after a timeout only
    told = Counter(event.invocation_id for event in events if isinstance(event, al.ToolEnded))
    assert told == claims
    last = events[-1]
    assert isinstance(last, al.RunEnded)
    assert (last.outcome, last.reason) == (turn.closed.outcome, turn.closed.reason)
    assert (last.model_calls, last.tool_calls) == (len(admitted), claims.total())
    return events


def body_of(request: al.ModelRequest, *, model: str = "m") -> bytes:
    """The bytes of a request under the strict dialect."""
    return encode_request(request, model=model, dialect=dialect("openai")).body


def pairs_in(request: al.ModelRequest) -> list[tuple[str, str]]:
    """Call id and feedback text of every call in a request, earlier turns included.

    What goes over the wire is decoded again, so an orphaned or missing result fails here.
    """
    decoded = decode_messages(json.dumps(json.loads(body_of(request))["messages"]))
    pairs = []
    for message in decoded:
        if isinstance(message, ModelExchange):
            pairs += [(item.tool_call_id, item.text) for item in message.feedback]
    return pairs


def other_tasks() -> set[asyncio.Task[Any]]:
    """Tasks of this loop besides the current one."""
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


class SlowBackend(MemoryBackend):
    """A medium whose writes wait, before and after the facts are held.

    Attributes:
        log: how each write ended, oldest first.
        hook: awaited in each write, after the facts are held.
    """

    def __init__(self, hook: Callable[[Sequence[Fact]], Awaitable[None]] | None = None) -> None:
        super().__init__()
        self.log: list[str] = []
        self.hook = hook

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        try:
            await asyncio.sleep(0)
            await super().append(facts, token=token, after=after)
            if self.hook is not None:
                await self.hook(facts)
            await asyncio.sleep(0)
        except BaseException as error:
            self.log.append(type(error).__name__)
            raise
        self.log.append("whole")

    async def forget(self, run_ids: Sequence[str], *, unfinished: bool = False) -> None:
        await asyncio.sleep(0)
        await super().forget(run_ids, unfinished=unfinished)


@asynccontextmanager
async def on_backend(backend: Backend | None, provider: al.Provider, **options: Any) -> AsyncIterator[al.Runtime]:
    """A runtime over a medium of the test's own; None is the runtime's own memory."""
    async with al.Runtime(provider, store=backend, **options) as runtime:
        yield runtime
