"""Runs that a process left unfinished, as a host sees them: found, read, decided about, settled, resumed.

Finding and reading ask the store only. Deciding answers calls that wait for a host; settling says what
became of an effect that nobody knows of; resuming takes the run over and goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack

from .agent import Agent
from .basis import read_by, require_agent
from .decisions import Decision, WaitingCall, read_decisions, waiting_of
from .delegation import Delegate
from .errors import InputError, LostError
from .exchange import Book, Fact, SlotState, Turn
from .life import Life
from .limits import FEEDBACK_BYTES, check_count, check_name
from .messages import ToolFeedback, ToolResult, require_tool_result
from .persistence import ConversationStore, RunRow
from .providers import Provider
from .results import RunResult, result_in
from .runs import Runs
from .unsettled import SendStatus, Unsettled, status_of, unsettled_of
from .views import CallView, RunView
from .windows import LiveRun, RunInput, RunOptions, admitted, check_options, check_ref

__all__ = ["UnfinishedRuns", "to_settle"]

T = TypeVar("T")


class UnfinishedRuns:
    """The part of `Runtime` that is about what a process left that ended."""

    _life: Life
    _store: ConversationStore
    _runs: Runs
    _provider: Provider
    _now_ms: Callable[[], int]

    async def unfinished(self) -> list[RunRow]:
        """Runs without an end, oldest first; on a durable store, one whose ``lease`` is None goes on nowhere."""
        self._life.require_open()
        return await self._store.runs(unfinished=True)

    async def unsettled(self) -> list[Unsettled]:
        """Sends and calls of runs that go on nowhere, of which nobody knows what became of them."""
        return [item for turn in await self._left() for item in unsettled_of(turn)]

    async def waiting(self) -> list[WaitingCall]:
        """Calls of runs that go on nowhere, in any process, that wait for a host; those of older runs first.

        A call of a run that an agent does for another is told once, as that run's own.

        Raises:
            RestoreError: the store holds facts that cannot be. PersistenceError: it failed, or has stopped.
        """
        return [item for turn in await self._left() for item in waiting_of(turn)]

    async def decide(self, decisions: Mapping[str, Decision], *, feedback_bytes: int = FEEDBACK_BYTES) -> None:
        """Store what is decided about calls of one run that wait; all of it or nothing. Nothing runs.

        The run goes on when it is resumed, and one that an agent does for another when that one is: `resume` takes
        decisions about all runs below the one that it resumes. The same decisions again, by the same authors, are
        confirmed, also when the run went on meanwhile or has ended.

        Args:
            decisions: `Approve`, `Deny` or `Answer`, by the ``ref`` of the `WaitingCall`. What is not named
                goes on waiting.
            feedback_bytes: what a result or a denial may take with its call id, as JSON; see `settle_call`.

        Raises:
            LostError: no such run or call.
            InputError: these are no decisions, or of several runs.
            ConflictError: another decision was made; the call does not wait, as its run was cancelled; an
                external call is approved, which nothing here runs; or the ``ref`` has another call's digest.
            LimitExceeded: a result or a denial is larger than ``feedback_bytes``; it is never cut.
            NotOwnerError: the run goes on elsewhere, or here.
        """
        self._life.require_open()
        check_count("feedback_bytes", feedback_bytes, 256)
        read = read_decisions(decisions)
        ref = next(iter(read)).run_id
        await self._runs.whole(self._runs.decide(ref, read, max_bytes=feedback_bytes))

    async def read(self, ref: str, attempt_id: str | None = None) -> SendStatus:
        """What became of a model call; asks the store only, and never sends.

        Args:
            ref, attempt_id: as `ModelPending` has them; without an attempt, the run's newest one.

        Raises:
            PersistenceError: the store failed, or has stopped.
        """
        self._life.require_open()
        check_ref(ref)
        facts, owned = await self._store.facts(ref)
        return status_of(ref, attempt_id, facts, goes_on=owned)

    async def resume(
        self,
        ref: str,
        agent: Agent[T],
        *,
        input: RunInput | None = None,
        decisions: Mapping[str, Decision] | None = None,
        **options: Unpack[RunOptions],
    ) -> RunResult[T]:
        """Take a run over that goes on nowhere, and run it to its end.

        What is stored is not done again: a reply is not asked for twice, and a tool that may have
        run is recovered as its policy says (`ToolPolicy.recovery`), or waits for a host. The result of
        a run that has ended is returned, and nothing runs. ``conversation``, ``history``, ``run_id`` and
        ``checkpoint`` are the run's own and not given.

        Args:
            input: what the run was started with, to be checked; None leaves that out.
            decisions: about calls that wait, of it and of the runs that agents do for it, at any depth. They are
                stored before it goes on, run by run as by `decide`, the deepest first, and none of them where
                one is refused; what a result may take is the agent's limit. While others wait, the run is left
                waiting for them again.

        Raises:
            LostError: no such run. NotOwnerError: it goes on elsewhere.
            ModelPending: the local ``wait`` for a model call is over; it goes on.
            RestoreError: ``agent_changed``: the agent has another name. ``input_changed``: other
                instructions, options or output, another way to ask for that, or the run had another
                input. ``catalogue_changed``: other tools. ``bad_record``: the store holds facts that
                cannot be.
            UnsettledError: an effect must be settled first; nothing was done but what lookups found,
            and ``__cause__`` is the error of one that failed. Of ``decisions`` as `decide`. Otherwise as `run`.
        """
        live = await self._taken_up(ref, agent, input, decisions, options)
        result = await live.wait_bound()
        if agent is live.agent:
            return result
        turn = await self._store.turn(ref)  # another agent of the same kind drove it here
        return await result_in(turn, self._store.turn, read_by(agent, turn))

    async def take_up(
        self,
        ref: str,
        agent: Agent[Any],
        *,
        input: RunInput | None = None,
        decisions: Mapping[str, Decision] | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        """As `resume`, but bound to no task, as `submit` is: it returns once the run goes on, or has ended.

        What comes of it is read with `result` and `follow`. A run on a durable store is left unfinished when the
        runtime closes.

        Raises:
            As `resume`, of what is wrong before the run goes on.
        """
        if "wait" in options:
            raise InputError("take_up: expected no wait, as no caller waits for the run")
        await self._taken_up(ref, agent, input, decisions, options)

    async def settle_call(
        self,
        ref: str,
        exchange: int,
        position: int,
        *,
        author: str,
        result: ToolResult | None = None,
        feedback_bytes: int = FEEDBACK_BYTES,
    ) -> None:
        """Say what became of a call whose outcome is unknown, or allow one more run of it.

        Args:
            author: who decides; stored with the decision. 1 to 128 characters.
            result: what the model shall read; None allows the tool to run once more when the run
                is resumed.
            feedback_bytes: what the result may take with its call id, as JSON. A run's limits are
                not stored: say its own where its agent's `LoopLimits` has another than the default.

        Raises:
            LostError: no such run or call. ConflictError: its outcome is known, or it waits to be decided about.
            LimitExceeded: the result is larger than ``feedback_bytes``; it is never cut.
            NotOwnerError: the run goes on elsewhere, or here.
        """
        self._life.require_open()
        check_ref(ref)
        check_count("exchange", exchange, 0)
        check_count("position", position, 0)
        check_name("author", author)
        check_count("feedback_bytes", feedback_bytes, 256)
        if result is not None:
            require_tool_result(result)

        def step(book: Book, turn: Turn) -> Sequence[Fact]:
            if result is None:
                return book.allow_rerun(turn, exchange, position, author=author, at_ms=self._now_ms())
            slot = book.slot(turn, exchange, position)
            feedback = ToolFeedback.of(slot.call.id, result)
            state: SlotState = "done" if result.status == "ok" else "failed"
            return book.settle_slot(
                turn,
                exchange,
                position,
                state=state,
                feedback=feedback,
                author=author,
                at_ms=self._now_ms(),
                max_bytes=feedback_bytes,
            )

        await self._runs.whole(self._runs.settle_left(ref, step))

    async def settle_send(self, ref: str, attempt_id: str, *, author: str) -> None:
        """Declare that an attempt without an end brought nothing; a resumed run asks again, as a new attempt.

        Raises:
            LostError: no such run. ConflictError: the attempt has an end.
            NotOwnerError: the run goes on elsewhere, or here.
        """
        self._life.require_open()
        check_ref(ref)
        check_name("author", author)

        def step(book: Book, turn: Turn) -> Sequence[Fact]:
            return book.settle_send(turn, attempt_id, author=author, at_ms=self._now_ms())

        await self._runs.whole(self._runs.settle_left(ref, step))

    async def _taken_up(
        self,
        ref: str,
        agent: Agent[Any],
        input: RunInput | None,
        decisions: Mapping[str, Decision] | None,
        options: RunOptions,
    ) -> LiveRun:
        self._life.require_open()
        check_ref(ref)
        require_agent(agent)
        check_options(options)
        for name in ("conversation", "history", "run_id", "checkpoint"):
            if options.get(name):
                raise InputError(f"resume: expected no {name}, which is the run's own")
        read = read_decisions({} if decisions is None else decisions, ref, below=True)
        asking = agent.prepare(self._provider.dialect)
        messages = None if input is None else admitted(asking, input)
        return await self._runs.attend(lambda: self._runs.take_up(agent, asking, ref, options, messages, read))

    async def _left(self) -> list[Turn]:
        """The runs without an end that go on nowhere, oldest first."""
        found = []
        for row in await self.unfinished():
            live = self._runs.live.get(row.run_id)
            here = (live is not None and live.goes_on) or self._runs.host.goes_on(row.run_id)
            if row.lease is None and not here:
                found.append(await self._store.turn(row.run_id))
        return found


async def to_settle(
    view: RunView, agent: Agent[Any] | None, load: Callable[[str], Awaitable[RunView]]
) -> list[Unsettled]:
    """What a person has to settle of a run that goes on nowhere, and of those that agents do for its calls.

    A call that its tool recovers is not among that: one that is repeated, and one that is looked up, unless it was
    taken up before and is unknown since then.

    Args:
        agent: whose run it is; None where that is not at hand, and nothing is known of its tools.
        load: reads a run below it, as `Runtime.view` does.
    """
    found = [
        Unsettled(
            ref=view.run_id,
            kind="send",
            effect_id=attempt.attempt_id,
            attempt=attempt.number,
            at_ms=attempt.started_at_ms,
        )
        for attempt in view.attempts
        if attempt.state == "open"
    ]
    for call in view.calls:
        tool = None if agent is None else agent.toolset.get(call.tool)
        unknown = call.feedback is None and call.state in ("started", "unknown")
        if call.waits_for_child or (unknown and isinstance(tool, Delegate)):
            child = await _child(call, load)
            if child is not None and child.state == "unfinished":
                found += await to_settle(child, tool.agent if isinstance(tool, Delegate) else None, load)
        elif unknown and not call.rerun:
            kind = "none" if tool is None else tool.policy.recovery_kind
            if kind != "repeat" and (kind != "lookup" or call.state == "unknown"):
                found.append(_unsettled_call(view.run_id, call))
    return found


async def _child(call: CallView, load: Callable[[str], Awaitable[RunView]]) -> RunView | None:
    """The run that an agent does for a call, where it has begun and is kept."""
    try:
        return None if call.effect_id is None else await load(call.effect_id)
    except LostError:
        return None


def _unsettled_call(ref: str, call: CallView) -> Unsettled:
    return Unsettled(
        ref=ref,
        kind="call",
        effect_id=call.effect_id or "",
        attempt=call.executions,
        exchange=call.exchange,
        position=call.position,
        tool=call.tool,
        arguments=call.arguments,
        at_ms=call.started_at_ms,
    )
