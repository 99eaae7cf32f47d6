"""What of its conversation a run is asked with, chosen before the run is stored.

An agent with a `ContextPlan` is asked, in each turn of a conversation, with what the plan keeps of the
turns before: the cut of the turn before is taken over while it fits, so that requests keep the same
beginning, and else one is made anew, with the summaries that are known. A cut is a fact of the run's
origin; the conversation stays whole.

Each summary that is needed is a model call of its own (stage ``summary``), made and stored before the
run: as ``<run id>/summary/<number>``, from 1. Where a process died meanwhile, a second start with the
same ``run_id`` finds what was made, and sends nothing twice by itself. A cancel of who waits for the start
cuts such a call off, also where the run itself would be submitted.

What these calls cost is taken from the budget of the run, over all its starts and takings up, and at
least one call is left to the run. Their events have the run's id and numbering and a span of their
own; observers get them, the run's sink and its followers do not: a summary is no preview of an answer.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from .agent import Agent
from .effects import Ledger, ResendPolicy
from .errors import LostError, RunCancelled
from .exchange import SUMMARY_STAGE, Book, ContextCut, DroppedTurns, History, State, Turn, TurnSummary
from .life import Life
from .limits import MAX_INPUT_CHARS
from .messages import Message, messages_chars
from .persistence import ConversationStore, Gate
from .providers import Provider
from .runner import (
    BuiltContext,
    Execution,
    Host,
    ModelRunner,
    NeedsSummary,
    Purpose,
    SummaryOf,
    build_context,
)
from .sinks import Diagnostics

__all__ = ["Begun", "Contexts", "cut_of", "known_in"]

_KEPT_CALLS: Final = 1
"""Model calls that summaries leave to the run itself."""


class Begun(msgspec.Struct, frozen=True):
    """What a run is opened with that was begun before it: its id, its cut, its budget, its numbering of events."""

    ref: str
    cut: ContextCut | None
    ledger: Ledger
    numbers: Iterator[int]


class Contexts:
    """Chooses contexts for the runs of one runtime.

    Args:
        end_left: ends a run that goes on nowhere, unless an effect of it is unsettled.
    """

    def __init__(
        self,
        life: Life,
        store: ConversationStore,
        host: Host,
        *,
        provider: Provider,
        resend: ResendPolicy | None,
        end_left: Callable[[str], Coroutine[Any, Any, bool]],
    ) -> None:
        self._life, self._store, self._host = life, store, host
        self._provider, self._resend, self._end_left = provider, resend, end_left
        self._gate: Gate[tuple[str, str]] = Gate()  # of each run and each conversation, until the run is opened

    async def idle(self) -> None:
        """Wait until no context is being chosen."""
        await self._gate.idle()

    @asynccontextmanager
    async def chosen(
        self,
        agent: Agent[Any],
        messages: tuple[Message, ...],
        *,
        conversation: str,
        run_id: str | None,
        ledger: Ledger,
    ) -> AsyncIterator[Begun]:
        """Choose, and let the block open the run: whoever begins the same one, or another there, waits for both.

        Raises:
            LimitExceeded: what the plan must keep is over its budget, or another limit of a summary's call.
            UnsettledError: nobody knows what became of a call that an earlier start made; names its run.
            NotOwnerError: such a call goes on in another process.
            RunCancelled: the runtime closed meanwhile. Otherwise as `ModelRunner.invoke`.
        """
        ref, numbers = run_id or self._host.new_id(), itertools.count(1)
        async with self._gate(("run", ref)), self._gate(("conversation", conversation)):
            self._life.require_open()
            cut = None
            past = await self._past(agent, conversation, ref, messages)
            if past is not None:
                making = _Making(self, agent, ref, ledger, past.history, numbers, named=run_id is not None)
                try:
                    cut = await making.cut(past.cuts)
                except RunCancelled as error:
                    if not self._host.signal.cancelled:
                        raise
                    raise RunCancelled(ref) from error
            self._life.require_open()
            yield Begun(ref, cut, ledger, numbers)

    async def note_spent(self, turn: Turn, ledger: Ledger) -> None:
        """Count what summaries for a run have used of its budget, in whatever process that was."""
        cut = turn.opened.context
        if cut is None or not cut.summaries:
            return
        for number in itertools.count(1):
            call = await self._stored(_summary_ref(turn.run_id, number))
            if call is None:
                return
            _note_call(call, ledger)

    # -- private

    async def _past(
        self, agent: Agent[Any], conversation: str, ref: str, messages: tuple[Message, ...]
    ) -> _Past | None:
        """What was said before, where some of it has to go; None where the run is there, or cannot be opened now."""
        plan = agent.context
        assert plan is not None, "asked for agents that have one"
        budget = plan.max_chars
        assert budget is not None, "checked when the agent was made"

        def read(book: Book) -> _Past | None:
            known = book.conversation(conversation)
            if known is None or known.live is not None or book.has_run(ref):
                return None
            history = book.past(conversation, known.head, messages)
            if messages_chars(history.messages) <= budget:
                return None
            return _Past(history, _cuts(book, conversation), branched=known.base is not None)

        past = await self._store.look(conversation, read)
        if past is None or past.cuts or not past.branched:
            return past
        try:  # the book may not hold what it branched off from
            state = await self._store.read_conversation(conversation)
        except LostError:  # another process forgets it just now; opening the run says so
            return past
        return msgspec.structs.replace(past, cuts=_cuts(state, conversation))

    async def _stored(self, ref: str) -> Turn | None:
        try:
            return await self._store.turn(ref)
        except LostError:
            return None


class _Past(msgspec.Struct, frozen=True):
    """All that was said up to a new turn and its own; the cuts of runs before, the newest first."""

    history: History
    cuts: list[ContextCut]
    branched: bool


class _Making:
    """One cut in the making."""

    def __init__(
        self,
        contexts: Contexts,
        agent: Agent[Any],
        ref: str,
        ledger: Ledger,
        history: History,
        numbers: Iterator[int],
        *,
        named: bool,
    ) -> None:
        assert agent.context is not None, "asked for agents that have one"
        self._contexts, self._plan, self._ref, self._ledger = contexts, agent.context, ref, ledger
        self._history, self._named = history, named
        self._number = 0
        self._max_calls = agent.limits.max_model_calls
        self._max_input = max(self._plan.max_chars or 0, MAX_INPUT_CHARS)
        self._numbers = numbers
        self._runner: ModelRunner | None = None

    async def cut(self, cuts: Sequence[ContextCut]) -> ContextCut | None:
        summaries, dropped = known_in(self._history, cuts)
        built = await build_context(
            self._plan,
            self._history.messages,
            self._ask,
            summaries=summaries,
            dropped=dropped,
            steers=self._history.steers,
            max_chars=self._max_input,
        )
        return cut_of(self._history, built)

    async def _ask(self, needed: NeedsSummary, messages: tuple[Message, ...]) -> tuple[str, str]:
        """The summary, of an earlier start of the run where it is the same one, else of a new call."""
        known = await self._known(messages) if self._named else None
        if known is not None:
            return known
        self._number += 1 if not self._named else 0
        purpose = Purpose(
            ref=_summary_ref(self._ref, self._number),
            parent=self._ref,
            origins=self._history.origins(needed.start, needed.end),
        )
        if self._runner is None:
            self._runner = self._make_runner()
        return await self._runner.summarise(needed.summary, messages, purpose)

    async def _known(self, messages: tuple[Message, ...]) -> tuple[str, str] | None:
        """What an earlier start of the run was told of the same messages; None where it did not ask, or in vain."""
        while True:
            self._number += 1
            ref = _summary_ref(self._ref, self._number)
            call = await self._contexts._stored(ref)
            if call is None:
                return None
            if call.closed is None:
                await self._contexts._end_left(ref)
                call = await self._contexts._store.turn(ref)
            _note_call(call, self._ledger)
            answered = call.closed is not None and call.closed.outcome == "completed" and call.last is not None
            if answered and call.opened.call is not None and call.opened.messages == messages:
                text = call.last.reply.text if call.last is not None else ""
                if text.strip():
                    return text, ref

    def _make_runner(self) -> ModelRunner:
        contexts = self._contexts
        host = contexts._host
        part = Diagnostics.part_of(self._ref, host.new_id(), numbers=self._numbers, now_ms=host.now_ms)
        return ModelRunner.of(
            host,
            contexts._provider,
            {
                "ledger": self._ledger.child(reserve=_KEPT_CALLS),
                "max_calls": self._max_calls,
                "max_input_chars": self._max_input,
                "resend": contexts._resend,
                "execution": Execution(diagnostics=part),
            },
        )


def _summary_ref(ref: str, number: int) -> str:
    """The id of a call that makes a summary for a run."""
    return f"{ref}/{SUMMARY_STAGE}/{number}"


def _note_call(call: Turn, ledger: Ledger) -> None:
    """Count what a call of an earlier start used."""
    ledger.note_spent("model_calls", call.model_calls)
    ledger.note_spent("tokens", 0 if call.usage is None else call.usage.total_tokens)


def cut_of(history: History, built: BuiltContext) -> ContextCut | None:
    """What a plan built of a history, as a fact; None where all of it is kept."""
    rows = [history.origins(start, end) for start, end in built.dropped]
    dropped = tuple(DroppedTurns(first=row[0], last=row[-1], count=len(row)) for row in rows)
    summaries = tuple(
        TurnSummary(origins=history.origins(one.start, one.end), text=one.text, ref=one.ref) for one in built.summaries
    )
    return ContextCut(dropped=dropped, summaries=summaries) if dropped or summaries else None


def known_in(history: History, cuts: Sequence[ContextCut]) -> tuple[list[SummaryOf], list[tuple[int, int]]]:
    """What earlier cuts are in this history: summaries that may stand together, and what the newest one left out.

    A summary of a turn that is not in it, or whose texts were removed since, is not among them.

    Args:
        cuts: the newest first; of two summaries that cross the newer one counts.
    """
    turns_of = history.turns
    places = {origin: (at, start, end) for at, (origin, start, end) in enumerate(turns_of) if start < end}
    summaries: dict[tuple[int, int], SummaryOf] = {}
    for one in dict.fromkeys(one for cut in cuts for one in cut.summaries):
        found = [places[origin] for origin in one.origins if origin in places]
        if len(found) < len(one.origins) or found[-1][0] - found[0][0] >= len(found):
            continue
        start, end = found[0][1], found[-1][2]
        if (start, end) not in summaries and not any(_cross((start, end), other) for other in summaries):
            summaries[start, end] = SummaryOf(start=start, end=end, text=one.text, ref=one.ref)
    order = {origin: at for at, (origin, _, _) in enumerate(turns_of)}
    left_out = [one for one in (cuts[0].dropped if cuts else ()) if one.first in order and one.last in order]
    turns = [turn for one in left_out for turn in turns_of[order[one.first] : order[one.last] + 1]]
    dropped = [(start, end) for _, start, end in turns if start < end]
    return list(summaries.values()), dropped


def _cross(one: tuple[int, int], other: tuple[int, int]) -> bool:
    (first_start, first_end), (start, end) = sorted((one, other))
    return first_start < start < first_end < end


def _cuts(state: State, conversation: str) -> list[ContextCut]:
    """The cuts of a conversation's runs, the newest first, then those of what it branched off from."""
    cuts: list[ContextCut] = []
    name: str | None = conversation
    while name is not None and (known := state.conversation(name)) is not None:
        own = known.runs if known.base is None else known.runs[1:]
        cuts += [cut for run_id in reversed(own) if (cut := state.turn(run_id).opened.context) is not None]
        name = known.source
    return cuts
