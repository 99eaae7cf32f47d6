"""What one run's effects stand on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from ..exchange import Receipt, ReceiptMint, Turn
from ..limits import LoopLimits
from ..messages import ModelReply
from ..persistence import Step, Store
from ..providers import Provider
from ..sinks import Emitter, put_off
from ..tools import Tool, ToolSet
from .detached import Patience, Sends
from .ledger import Ledger
from .pool import ToolPool
from .resend import ResendPolicy

__all__ = ["Claim", "Label", "Scope", "deliver_cancel", "settle"]

T = TypeVar("T")


class Claim(NamedTuple):
    """One execution of a tool, reserved in the ledger, with the arguments that the tool admitted.

    Attributes:
        converted: what of the arguments was converted, see `ToolPolicy`.
        goes_on: whether the execution has waited for its child run; it was reserved when it began.
    """

    exchange: int
    position: int
    effect_id: str
    tool: Tool
    arguments: dict[str, Any]
    converted: tuple[str, ...] = ()
    goes_on: bool = False


class Label(msgspec.Struct, frozen=True, gc=False):
    """What the events of a model call say of it besides the attempt.

    Attributes:
        stage_id: the host's word for where it is made.
        transport, route: how a value is asked for.
        before: model calls that its runner made before this run.
    """

    stage_id: str = "model"
    transport: str = ""
    route: str = ""
    before: int = 0


_PLAIN: Final = Label()


def _no_reason() -> None:
    """Nothing cancels the task but its caller."""


class Scope:
    """One run, seen by its effects. Used by the run's own task only, and by those that it makes for calls.

    Attributes:
        turn: the run's facts, as state.
        paused: whether the run shall stop before its next effect and stay unfinished.
        sends: where the run's sends live; None where they end with the run's own task (attached).
        patience: how long the run waits for a detached send; None is as long as it takes.
        left: whether the run's caller has gone, so that a detached send goes on without it.
        repeatable, lookups: names of the tools whose lost calls run again, and of those with a lookup.
        claim: the execution whose slot is ``started`` and whose tool has not begun.
        sent_bytes: what the newest request may be on the wire at most; exact where it may be near a ceiling.
        check: says why a final reply gives no output, as a code; None where any reply will do.
        final: name of the tool whose call gives the output; None where none does.
        label: what its model calls are, for events. model_names: names of the models in use, the run's own
            first, where a host gave them any.
        reasoning: whether reasoning is previewed (as its own event type, never as text).
        resend: what the host decided about a request that was refused; None is never to send once more.
        reason: why the work is no longer wanted, where its task is cancelled for that.
        spawn: has an agent run as a child of this run, for the execution that is named; None where none may.
        end_child: ends the child run that an execution waits for, and those below it.
        held: for what the child runs of calls wait, by exchange and position, as they were found to do since
            the task began.
        sleep: waits for seconds, or shorter where the run shall pause. random: source of numbers from 0 to 1.
        now_ms: wall clock, milliseconds. clock: monotonic seconds. new_id: source of unique ids.
    """

    __slots__ = (
        "_mint",
        "_provider",
        "_tool_ledgers",
        "agent",
        "check",
        "claim",
        "clock",
        "conversation",
        "deps",
        "emitter",
        "end_child",
        "final",
        "held",
        "label",
        "ledger",
        "left",
        "limits",
        "lookups",
        "model_names",
        "new_id",
        "now_ms",
        "patience",
        "paused",
        "pool",
        "random",
        "reason",
        "reasoning",
        "repeatable",
        "resend",
        "run_id",
        "sends",
        "sent_bytes",
        "sleep",
        "spawn",
        "started",
        "store",
        "tools",
        "turn",
    )

    def __init__(
        self,
        *,
        run_id: str,
        agent: str,
        conversation: str | None,
        deps: Any,
        provider: Provider,
        store: Store,
        mint: ReceiptMint,
        ledger: Ledger,
        limits: LoopLimits,
        tools: ToolSet,
        pool: ToolPool,
        emitter: Emitter,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        reasoning: bool = False,
        paused: Callable[[], bool] = bool,
        sends: Sends | None = None,
        patience: Patience | None = None,
        left: Callable[[], bool] = bool,
        reason: Callable[[], BaseException | None] = _no_reason,
        resend: ResendPolicy | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
        label: Label = _PLAIN,
        model_names: tuple[str, ...] = (),
        check: Callable[[ModelReply], str | None] | None = None,
        final: str | None = None,
        spawn: Callable[[str, Any, Any], Awaitable[Any]] | None = None,
        end_child: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.run_id, self.agent, self.conversation, self.deps = run_id, agent, conversation, deps
        self.store, self.ledger, self.limits = store, ledger, limits
        self.tools, self.pool, self.emitter = tools, pool, emitter
        self.new_id, self.clock, self.now_ms, self.reasoning = new_id, clock, now_ms, reasoning
        self.paused, self.left, self.reason = paused, left, reason
        self.sends, self.patience = sends, patience
        self.resend, self.sleep, self.random = resend, sleep, random
        self.turn: Turn = store.book.turn(run_id)
        self.label, self.model_names = label, model_names
        self.check, self.final, self.spawn, self.end_child = check, final, spawn, end_child
        self.held: dict[tuple[int, int], str] = {}
        self.repeatable, self.lookups = tools.repeatable, tools.lookups
        self.started = clock()
        self.sent_bytes = 0
        self.claim: Claim | None = None
        self._provider, self._mint = provider, mint
        self._tool_ledgers: dict[str, Ledger] = {}

    @property
    def provider_index(self) -> int:
        """Who gets the next request: 0 is the run's own provider, n the policy's fallback n - 1.

        It stands for the attempt under way until the end of that is stored; after a reply it is 0.
        """
        refused, resend = self.turn.refused, self.resend
        place = resend.place(refused) if resend is not None and refused else None
        return 0 if place is None else place.provider

    @property
    def provider(self) -> Provider:
        """Who gets the next request: the run's own, or a fallback after the ones before it refused this one."""
        index = self.provider_index
        return self._provider if self.resend is None or not index else self.resend.fallbacks[index - 1]

    @property
    def model_id(self) -> str | None:
        """The host's name for the model that gets the next request; None where it gave none."""
        return self.model_names[self.provider_index] if self.model_names else None

    def ledger_of(self, tool: Tool) -> Ledger:
        """What a start of this tool is debited to: the run's ledger, or the tool's own node below it.

        The starts that a resumed run's facts hold are spent there.
        """
        if tool.policy.max_calls is None:
            return self.ledger
        node = self._tool_ledgers.get(tool.name)
        if node is None:
            node = self._tool_ledgers[tool.name] = self.ledger.child(tool_calls=tool.policy.max_calls)
            slots = (slot for entry in self.turn.entries for slot in entry.slots)
            node.note_spent("tool_calls", sum(slot.attempt for slot in slots if slot.call.name == tool.name))
        return node

    @property
    def out_of_time(self) -> bool:
        """Whether the run has had its ``max_seconds``."""
        return self.limits.max_seconds is not None and self.elapsed >= self.limits.max_seconds

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.started

    def receipt(self, invocation_id: str) -> Receipt:
        """Certify a reception of this run."""
        return self._mint.receipt(invocation_id=invocation_id, parent_id=self.run_id)

    async def commit(self, step: Step, *, last: bool = False) -> bool:
        """Store what a step adds, whole, whatever cancels arrive.

        A cancel that meets a write half way would leave its outcome unknown and stop the store for
        all runs, so it is held back until the write has ended.

        Args:
            last: as for `settle`.

        Returns:
            Whether a cancel was held back; unless ``last``, the next await that waits raises it.

        Raises:
            PersistenceError: the store stopped. AgentLoopError: the step was refused.
        """
        if not self.store.waits:
            await self.store.commit(step, run_id=self.run_id)
            return False
        return (await _hold(self.store.commit(step, run_id=self.run_id), last=last))[1]


async def settle(work: Coroutine[Any, Any, T], *, last: bool = False) -> T:
    """Run ``work`` to its end whatever cancels arrive. For short writes that record what happened.

    A cancel that arrives meanwhile is raised by the next await that waits.

    Args:
        last: the task does nothing after it, so a cancel comes too late and is dropped.
    """
    return (await _hold(work, last=last))[0]


async def deliver_cancel() -> None:
    """Wait for one turn of the loop, which raises a cancel that was held back.

    Raises:
        asyncio.CancelledError: there was one.
    """
    await asyncio.sleep(0)


async def _hold(work: Coroutine[Any, Any, T], *, last: bool) -> tuple[T, bool]:
    task = asyncio.get_running_loop().create_task(work)
    held: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as cancel:
            held = cancel
    if held is not None and not last:
        put_off(held)
    return task.result(), held is not None
