"""The runs of one runtime: stored and launched, taken up, driven, let go, and ended when it closes.

Each run is driven by a task of its own, whoever waits for it. What a process left unfinished is settled
or ended here as well: that takes owning the run, as driving it does.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeVar

from .agent import Agent
from .basis import check_input, check_same
from .contexts import Begun, Contexts
from .decisions import CallRef, Decision, by_run, check_below, stored
from .delegation import DELEGATE, Delegate
from .effects import ChildWaits, Eager, Ledger, Patience, ResendPolicy, Scope, Sends, ToolPool, settle
from .errors import (
    AgentLoopError,
    ConflictError,
    InputError,
    LostError,
    NotOwnerError,
    OutcomeError,
    RunCancelled,
    RunPaused,
    ToolFailed,
    UnsettledError,
)
from .exchange import Book, Fact, ReceiptMint, Turn, is_suspended
from .life import Life
from .limits import CLOSE_SECONDS, TOOL_THREADS, WAIT_SECONDS
from .loop import cancelled_end, drive
from .messages import Message
from .persistence import ConversationStore, Gate
from .providers import Provider
from .results import RunResult, result_in
from .runner import Asking, Host
from .sinks import Emitter, Feed, Observer, ObserverHub
from .tools import ToolSet
from .unsettled import require_settled
from .windows import LiveRun, Parent, RunInput, RunOptions, admitted, input_digest, retrieve

__all__ = ["Runs"]

_log = logging.getLogger("agentloop.runtime")

T = TypeVar("T")

_EVENTS_A_MS: Final = 1_000
"""More than a run tells."""

_KEPT_RUNS = 128
"""Ended runs whose events a runtime still has, of those that it may let go."""


class Runs:
    """The runs of one runtime, and what they share: sends, where tools run, observers, leases.

    Attributes:
        live: the runs that were launched here, by id; of the ended ones, those that are kept.
        sends: those that live apart from their callers.
        pool: where their tools run.
        host: what the model calls of runners stand on. contexts: chooses what runs are asked with.
    """

    def __init__(
        self,
        life: Life,
        store: ConversationStore,
        *,
        mint: ReceiptMint,
        owner: str,
        provider: Provider,
        resend: ResendPolicy | None,
        ledger: Ledger | None,
        new_id: Callable[[], str],
        clock: Callable[[], float],
        now_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
    ) -> None:
        self._life, self._store, self._mint, self._owner = life, store, mint, owner
        self._provider, self._resend, self._ledger = provider, resend, ledger
        self._new_id, self._clock, self._now_ms = new_id, clock, now_ms
        self._sleep, self._random = sleep, random
        self.live: dict[str, LiveRun] = {}
        self.sends = Sends(self._send_ended)
        self.host = Host(
            store, mint, new_id=new_id, clock=clock, now_ms=now_ms, sleep=sleep, random=random, inside=life.inside
        )
        self.contexts = Contexts(
            life, store, self.host, provider=provider, resend=resend, end_left=lambda ref: self.end_left(ref, None)
        )
        self.pool = ToolPool(TOOL_THREADS, now_ms=now_ms)
        self._observers: ObserverHub | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._gate: Gate[str] = Gate()  # of each run, while it is launched or settled; closing waits for those
        self._ended: deque[LiveRun] = deque()

    def begin(self, observers: Sequence[Observer]) -> None:
        """Begin what goes on beside the runs: observing, and on a durable store the renewal of leases."""
        mark = self._life.mark()
        self._observers = self.host.hub = ObserverHub(observers)
        self._life.unmark(mark)
        if self._store.durable:
            self._renewing = asyncio.get_running_loop().create_task(self._renew(), name="agentloop leases")

    def cut_off(self) -> None:
        """Say at once, before anything is waited for, that no work of runners and engines is wanted any more."""
        self.host.cut_off()

    async def close(self, settle_seconds: float) -> None:
        """End all runs, then what goes on beside them; the store is needed until then.

        Args:
            settle_seconds: how long to wait for sends that live apart from their callers.
        """
        async with AsyncExitStack() as stack:  # last in, first out
            if self._observers is not None:
                stack.push_async_callback(self._observers.close, CLOSE_SECONDS)
            stack.push_async_callback(self._stop_renewing)
            await self._gate.idle()
            await self.host.close()
            await self.contexts.idle()
            await self._end_all(settle_seconds)
            self.pool.cancel_left()
            stuck = await self.pool.wait_idle(CLOSE_SECONDS)
            if stuck:
                _log.warning("%d tools that are left over have not ended", stuck)

    def whole(self, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """Write whatever cancels arrive: one that met a write half way would stop the store for all runs."""
        return settle(work) if self._store.waits else work

    async def attend(self, join: Callable[[], Coroutine[Any, Any, LiveRun]]) -> LiveRun:
        """Join or launch a run; where its last caller is about to leave it, go on after that."""
        while True:
            live = await self.whole(join())
            if not live.left or live.closed or live.task is None:
                return live
            live.require_outside()
            await asyncio.wait({live.task})
            self._life.require_open()

    async def open(
        self,
        agent: Agent[Any],
        asking: Asking[Any],
        messages: tuple[Message, ...],
        options: RunOptions,
        *,
        kept: bool,
        begun: Begun | None = None,
        parent: Parent | None = None,
    ) -> LiveRun:
        """Store the run's origin and launch it, unless it is there already."""
        conversation, run_id = options.get("conversation"), options.get("run_id")
        ref = (run_id or self._new_id()) if begun is None else begun.ref
        async with self._gate(ref):
            new = await self._store.open_run(
                lambda book: book.open_origin(
                    run_id=ref,
                    origin_id=self._new_id(),
                    conversation=conversation,
                    messages=messages,
                    brought=len(messages) - len(asking.system) - 1,
                    options=asking.options,
                    tools=asking.toolset.specs,
                    catalogue_digest=asking.toolset.digest,
                    input_digest=None if run_id is None else input_digest(agent.name, asking, messages),
                    agent=agent.name,
                    checkpoint=options.get("checkpoint", False),
                    at_ms=self._now_ms(),
                    context=None if begun is None else begun.cut,
                    parent=None if parent is None else parent.span_id,
                ),
                run_id=ref,
                conversation=conversation,
                fresh=run_id is None,
            )
            wait = None if kept else options.get("wait", WAIT_SECONDS)  # nobody waits for a submitted run
            if not new:
                live = self._join(ref, kept=kept, wait=wait)
                if live is not None:
                    return live
                begun = await self._again(agent, asking, await self._own(ref), parent)
            anonymous = run_id is None and conversation is None
            if parent is not None and parent.live is not None:
                anonymous = parent.live.anonymous  # it is kept as long as what it was done for
            return self._launch(
                agent,
                asking,
                ref,
                options,
                anonymous=anonymous,
                kept=kept,
                wait=wait,
                begun=begun,
                parent=parent,
                told=0 if new else self._told(ref),
            )

    async def open_within(
        self,
        agent: Agent[Any],
        asking: Asking[Any],
        messages: tuple[Message, ...],
        options: RunOptions,
        *,
        conversation: str,
        kept: bool,
    ) -> LiveRun:
        """As `open` in `attend`, within the agent's context, which may need model calls first: see `contexts`."""
        run_id, ledger = options.get("run_id"), self._ledger_of(agent)
        async with self.contexts.chosen(
            agent, messages, conversation=conversation, run_id=run_id, ledger=ledger
        ) as begun:
            return await self.attend(lambda: self.open(agent, asking, messages, options, kept=kept, begun=begun))

    async def take_up(
        self,
        agent: Agent[Any],
        asking: Asking[Any],
        ref: str,
        options: RunOptions,
        messages: tuple[Message, ...] | None,
        decisions: Mapping[CallRef, Decision],
    ) -> LiveRun:
        """Launch a run that is stored, unless it goes on here or ended here; store what is decided about it first.

        What is decided about runs below it is stored before that, the deepest first.
        """
        steps = {
            run_id: self._deciding(made, agent.limits.feedback_bytes) for run_id, made in by_run(decisions).items()
        }
        own = steps.pop(ref, None)
        async with self._gate(ref):
            for run_id in steps:
                await check_below(run_id, ref, self._store.turn)
            if messages is not None:
                check_input(messages, await self._store.turn(ref))
            wait = options.get("wait", WAIT_SECONDS)
            known = self.live.get(ref)
            if known is not None and known.agent is not agent:
                check_same(agent, asking, await self._store.turn(ref))
            if known is not None and (known.goes_on or known.closed):
                added = [run_id for run_id, step in steps.items() if await self._adds(run_id, step)]
                if added or (own is not None and await self._adds(ref, own)):
                    raise self._here(ref)
            live = self._join(ref, kept=True, wait=wait)
            if live is None:
                turn = await self._own(ref)
                try:
                    asking = check_same(agent, asking, turn)
                    if "wait" in options and not turn.opened.checkpoint:
                        raise InputError("wait: expected a run with checkpoint=True")
                    begun = await self._again(agent, asking, turn, None)
                    if own is not None:
                        own(self._store.book, turn)  # refused before anything is stored
                    for run_id in [run_id for run_id, step in steps.items() if await self._adds(run_id, step)]:
                        await self.settle_left(run_id, steps[run_id])
                    if own is not None:
                        await self._store.commit(partial(_of, own, turn), run_id=ref)
                    anonymous = turn.opened.conversation is None and turn.opened.input_digest is None
                    live = self._launch(
                        agent,
                        asking,
                        ref,
                        options,
                        anonymous=anonymous,
                        kept=True,
                        wait=wait,
                        begun=begun,
                        told=self._told(ref),
                    )
                except BaseException:
                    if self.sends.of(ref) is None:
                        await self._let_go(ref)
                    raise
            return live

    async def spawn(
        self, agent: Agent[Any], input: RunInput, parent: Parent, *, run_id: str | None = None, deps: Any = None
    ) -> RunResult[Any]:
        """Run an agent for somebody else, to its end; a cancel of the caller has recorded that end.

        Args:
            run_id: where it is there already it is joined, or taken up and goes on.

        Raises:
            ToolFailed: it would be deeper than ``parent.max_depth``; nothing was begun.
            ChildWaits: it was left without an end. Otherwise as `Runtime.run`.
        """
        if parent.depth > parent.max_depth:
            rule = (
                f"agents may be asked {parent.max_depth} deep at most" if parent.max_depth else "no agent may be asked"
            )
            raise ToolFailed(f"Nothing ran: {rule} here.")
        asking = agent.prepare(self._provider.dialect)
        above = parent.live
        options = RunOptions(deps=deps)
        if run_id is not None:
            options["run_id"] = run_id
        if above is not None and above.patience is not None:
            options["checkpoint"], options["wait"] = True, None
        messages = admitted(asking, input)
        live = await self._begun_child(
            run_id or "",
            lambda: self.open(agent, asking, messages, options, kept=above is not None and above.kept, parent=parent),
        )
        if above is not None:
            above.children.add(live)
        try:
            result = await live.wait()
        except asyncio.CancelledError:
            await settle(live.cancel())
            if live.suspended:  # it was left waiting just before
                if above is None:
                    await settle(self.end(live.ref, None))
                else:
                    above.waiting.add(live.ref)
            raise
        except (RunPaused, UnsettledError) as error:
            raise ChildWaits(live.ref, error) from error
        finally:
            if above is not None:
                above.children.discard(live)
        if result.outcome == "waiting_for_approval":
            if above is not None:
                above.waiting.add(live.ref)
            waits = OutcomeError(result.outcome, result.reason, result.ref)
            raise ChildWaits(live.ref, waits, kinds=result.reason or "")
        return result

    async def _begun_child(self, ref: str, begin: Callable[[], Coroutine[Any, Any, LiveRun]]) -> LiveRun:
        """Begin a child, or take it up: the lease that a dead process had on it may outlive that on its parent."""
        try:
            return await self.attend(begin)
        except NotOwnerError as error:
            if error.seconds_left is None:
                raise ChildWaits(ref, error) from error
            seconds = error.seconds_left
        await self._sleep(seconds)
        try:
            return await self.attend(begin)
        except NotOwnerError as error:  # its owner lives
            raise ChildWaits(ref, error) from error

    async def _spawn_for(
        self, live: LiveRun, ledger: Ledger, deps: Any, effect_id: str, agent: Agent[Any], input: RunInput
    ) -> RunResult[Any]:
        """Run an agent for an execution of a tool of a run: its reference is that of the execution."""
        depth, max_depth = 1, live.agent.limits.max_depth
        if live.parent is not None:
            depth, max_depth = live.parent.depth + 1, live.parent.max_depth
        parent = Parent(ledger, effect_id, depth, max_depth, live)
        return await self.spawn(agent, input, parent, run_id=effect_id, deps=deps)

    async def decide(self, ref: str, decisions: Mapping[CallRef, Decision], *, max_bytes: int) -> None:
        """Store what is decided about calls of a run that goes on nowhere, all of it or nothing."""
        step = self._deciding(decisions, max_bytes)
        if await self._adds(ref, step):
            await self.settle_left(ref, step)

    async def settle_left(self, ref: str, step: Callable[[Book, Turn], Sequence[Fact]]) -> None:
        """Take a run that goes on nowhere, make a step, and give it up again."""
        async with self._gate(ref):
            live = self.live.get(ref)
            if live is not None and live.goes_on:
                raise self._here(ref)
            turn = await self._take_over(ref)
            if turn.closed is not None:
                outcome = turn.closed.outcome
                raise ConflictError(f"run {ref!r}", f"expected a run that has not ended, got one that {outcome}")
            try:
                await self._store.commit(lambda book: step(book, turn), run_id=ref)
                if live is not None and not live.suspended:
                    del self.live[ref]  # what it left off with is out of date
            finally:
                await self._let_go(ref)

    async def write(
        self, ref: str, step: Callable[[Book, Turn], Sequence[Fact]], told: Callable[[Emitter], None]
    ) -> None:
        """Make a step of a run, whatever it is at: as its owner where it goes on here, else as `settle_left`.

        Args:
            told: tells of what was added, as soon as it is stored.
        """
        while True:
            if self._is_here(ref):
                if await self._write_here(ref, step, told):
                    return
                continue
            try:
                await self.settle_left(ref, step)
            except NotOwnerError:
                if not self._is_here(ref):
                    raise
            else:
                return

    def _is_here(self, ref: str) -> bool:
        """Whether a run is owned here, as its driver is at it or has left a send that goes on."""
        live = self.live.get(ref)
        return (live is not None and live.goes_on) or self.sends.of(ref) is not None

    async def _write_here(
        self, ref: str, step: Callable[[Book, Turn], Sequence[Fact]], told: Callable[[Emitter], None]
    ) -> bool:
        """Make a step of a run that is owned here; False where it was given up meanwhile."""
        async with self._gate(ref):
            live = self.live.get(ref)
            if not self._is_here(ref):
                return False
            try:
                facts = await self._store.commit(lambda book: step(book, book.turn(ref)), run_id=ref)
            except NotOwnerError:
                if live is None or live.driving or live.task is None or live.task.done():  # it goes on elsewhere
                    raise
            else:
                if facts and live is not None and live.driving and live.emitter is not None:
                    told(live.emitter)
                return True
        await asyncio.wait({live.task})  # it leaves off just now
        return False

    async def end(self, ref: str, author: str | None, *, check: Callable[[], None] | None = None) -> None:
        """Cancel a run wherever it is left, those below it first, and wait until its end is recorded.

        Args:
            author: as of `Runtime.cancel`. check: may refuse to end one that goes on nowhere.

        Raises:
            As `Runtime.cancel`.
        """
        ended = False
        while not ended:
            live = self.live.get(ref)
            if live is not None and live.goes_on:
                await live.cancel()
            if live is not None and (live.closed or self._store.fault is not None):
                return
            if check is not None:
                check()
            pending = self.sends.of(ref)
            if pending is not None:  # its driver has left it
                await settle(pending.stop())
            ended = await self.whole(self.end_left(ref, author))

    async def _end_child(self, ref: str) -> None:
        await self.whole(self.end(ref, None))

    async def _end_waiting(self, live: LiveRun) -> None:
        """End what waits for a run that has ended: a cancel may have met its call before that was stored to wait."""
        for ref in live.waiting:
            try:
                await self.end(ref, None)
            except AgentLoopError as error:
                _log.warning("run %s could not be ended with run %s: %s", ref, live.ref, error)

    async def _end_children(self, turn: Turn, author: str | None) -> None:
        """End the runs that unanswered calls of a run wait for, and those below them."""
        for slot in () if turn.last is None else turn.last.slots:
            if slot.feedback is not None or slot.effect_id is None:
                continue
            try:
                child = await self._store.turn(slot.effect_id)
            except LostError:  # it has none
                continue
            if child.closed is None and child.opened.parent == slot.effect_id:
                await self.end(slot.effect_id, author)

    async def end_left(self, ref: str, author: str | None) -> bool:
        """End a run that goes on nowhere, those below it first; False where it was taken up here meanwhile."""
        async with self._gate(ref):
            live = self.live.get(ref)
            if (live is not None and live.goes_on) or self.sends.of(ref) is not None:
                return False
            turn = await self._take_over(ref, require_settled if author is None else None)
            try:
                if turn.closed is None:
                    await self._end_children(turn, author)
                    end = cancelled_end(turn)
                    await self._store.commit(
                        lambda book: book.end_run(turn, *end, author=author, at_ms=self._now_ms()), run_id=ref
                    )
                    self.live.pop(ref, None)  # what it left off with is out of date
                    if live is not None and live.anonymous and not self._store.durable:
                        await self._retire(live)
            finally:
                await self._let_go(ref)
            return True

    # -- one run

    def _deciding(
        self, decisions: Mapping[CallRef, Decision], max_bytes: int
    ) -> Callable[[Book, Turn], Sequence[Fact]]:
        now = self._now_ms()
        return lambda book, turn: stored(book, turn, decisions, at_ms=now, max_bytes=max_bytes)

    async def _adds(self, ref: str, step: Callable[[Book, Turn], Sequence[Fact]]) -> bool:
        """Whether a step would add anything to a run as it is now, whoever owns it."""
        turn = await self._store.turn(ref)
        return bool(step(self._store.book, turn))

    def _here(self, ref: str) -> NotOwnerError:
        rule = "expected a run that goes on nowhere, got one of this runtime"
        return NotOwnerError(f"run {ref!r}", rule, owner=self._owner)

    def _join(self, ref: str, *, kept: bool, wait: float | None) -> LiveRun | None:
        """The run, when it goes on here or ended here; one that left off without its end is taken up anew."""
        live = self.live.get(ref)
        if live is None or not (live.goes_on or live.closed):
            return None
        live.holds += 1
        live.kept = live.kept or (kept and self._store.durable)
        if live.patience is not None:
            live.patience.extend(wait)
        return live

    async def _own(self, ref: str) -> Turn:
        """Take over a run that goes on nowhere; one whose driver has left a send that goes on is owned here still."""
        return await self._take_over(ref) if self.sends.of(ref) is None else self._store.book.turn(ref)

    async def _take_over(self, ref: str, check: Callable[[Turn], None] | None = None) -> Turn:
        """Own a run that goes on nowhere; the caller has its gate, as one may need who gives it up just now."""
        if self.host.goes_on(ref):
            rule = "expected a run that goes on nowhere, got a runner's model call under way, which its signal cancels"
            raise NotOwnerError(f"run {ref!r}", rule, owner=self._owner)
        if self.sends.of(ref) is None:
            await self._let_go(ref)
        return await self._store.take_over(ref, at_ms=self._now_ms(), check=check)

    def _launch(
        self,
        agent: Agent[Any],
        asking: Asking[Any],
        ref: str,
        options: RunOptions,
        *,
        anonymous: bool,
        kept: bool,
        wait: float | None,
        begun: Begun | None,
        parent: Parent | None = None,
        told: int = 0,
    ) -> LiveRun:
        """Drive a run whose facts are here and which this runtime owns.

        Args:
            told: number of the newest event that may have been told of it before.
        """
        turn = self._store.book.turn(ref)
        before = self.live.get(ref)
        feed = Feed(told=told) if before is None else before.feed.again(told)
        live = LiveRun(ref, feed, agent, self.pool, anonymous=anonymous, parent=parent)
        checkpoint = turn.opened.checkpoint
        live.holds, live.kept = 1, (kept or checkpoint) and self._store.durable
        if checkpoint:
            live.sends, live.patience = self.sends, Patience(wait)
        if self._life.state != "open":  # closing waits for its end
            live.pause, live.stop = live.kept, not live.kept
        scope = self._scope(agent, asking, live, options, turn, begun, itertools.count(told + 1) if told else None)
        self.live[ref], live.emitter = live, scope.emitter
        driver = Eager(self._drive(scope, live, asking))
        live.task = driver.task(f"agentloop run {ref}")
        live.task.add_done_callback(retrieve)
        driver.begin()  # at once: its request need not wait for others that are opened meanwhile
        return live

    def _told(self, ref: str) -> int:
        """The number after which the events of a run that is taken up go on: all that were told have one up to it.

        What another process told is not stored. By now it has told at most a thousand events for each
        millisecond since the run was opened.
        """
        before = self.live.get(ref)
        last = 0 if before is None else before.feed.last
        if self._store.durable:
            age = self._now_ms() - self._store.book.turn(ref).opened.at_ms
            last = max(last, _EVENTS_A_MS * (max(age, 0) + 1))
        return last

    def _ledger_of(self, agent: Agent[Any], parent: Parent | None = None) -> Ledger:
        limits = agent.limits
        return Ledger(
            model_calls=limits.max_model_calls,
            tool_calls=limits.max_tool_calls,
            tokens=limits.max_tokens,
            parent=self._ledger if parent is None else parent.ledger,
        )

    async def _again(self, agent: Agent[Any], asking: Asking[Any], turn: Turn, parent: Parent | None) -> Begun | None:
        """What was begun for a run that is taken up: its cut stands, and what summaries and children cost is spent."""
        if turn.opened.context is None and not any(tool.kind == DELEGATE for tool in asking.toolset):
            return None
        ledger = self._ledger_of(agent, parent)
        await self.contexts.note_spent(turn, ledger)
        await self._note_children(turn, asking.toolset, ledger)
        return Begun(turn.run_id, turn.opened.context, ledger, itertools.count(1))

    async def _note_children(self, turn: Turn, tools: ToolSet, ledger: Ledger) -> None:
        """Count what runs that agents did for a run, and those below them, have used of its budget."""
        for entry in turn.entries:
            for slot in entry.slots:
                tool = tools.get(slot.call.name)
                if not isinstance(tool, Delegate) or slot.effect_id is None:
                    continue
                try:
                    child = await self._store.turn(slot.effect_id)
                except LostError:  # it was never begun, or is forgotten
                    continue
                _note_spent(child, ledger)
                await self._note_children(child, tool.agent.toolset, ledger)

    def _scope(
        self,
        agent: Agent[Any],
        asking: Asking[Any],
        live: LiveRun,
        options: RunOptions,
        turn: Turn,
        begun: Begun | None,
        numbers: Iterator[int] | None,
    ) -> Scope:
        sink, deps = options.get("sink"), options.get("deps")
        ledger = self._ledger_of(agent, live.parent) if begun is None else begun.ledger
        if numbers is None and begun is not None:
            numbers = begun.numbers
        if turn.model_calls:  # of an earlier owner
            _note_spent(turn, ledger)
        return Scope(
            run_id=live.ref,
            agent=agent.name,
            conversation=turn.opened.conversation,
            deps=deps,
            provider=self._provider,
            store=self._store,
            mint=self._mint,
            ledger=ledger,
            paused=live.paused,
            sends=self.sends if live.kept else None,
            patience=live.patience,
            left=live.has_left if live.sends is not None else bool,
            limits=agent.limits,
            tools=asking.toolset,
            pool=self.pool,
            emitter=Emitter(
                live.ref,
                live.feed,
                sink=sink,
                observers=self._observers,
                parent_span_id=None if live.parent is None else live.parent.span_id,
                numbers=numbers,
                now_ms=self._now_ms,
            ),
            new_id=self._new_id,
            clock=self._clock,
            now_ms=self._now_ms,
            reasoning=options.get("reasoning", False),
            resend=self._resend,
            sleep=self._sleep if self._resend is None else self._resting(live),
            random=self._random,
            label=asking.label,
            check=asking.check,
            final=asking.final,
            spawn=partial(self._spawn_for, live, ledger, deps),
            end_child=self._end_child,
        )

    def _resting(self, live: LiveRun) -> Callable[[float], Awaitable[None]]:
        return lambda seconds: live.rest(self._sleep(seconds))

    async def _drive(self, scope: Scope, live: LiveRun, asking: Asking[Any]) -> RunResult[Any]:
        """The run's task. Its error is kept for those who ask, so it is never only logged."""
        self._life.mark()
        try:
            if scope.turn.closed is None:
                await drive(scope, cancelled=live.stop)
            result = await result_in(scope.turn, self._store.turn, asking, left=True)
        except BaseException as error:
            live.feed.close(RunCancelled(live.ref) if isinstance(error, asyncio.CancelledError) else error)
            raise
        else:
            live.feed.close()
            return result
        finally:
            live.closed, live.driving = scope.turn.closed is not None, False
            live.suspended = is_suspended(scope.turn)
            if live.closed and live.waiting:
                await settle(self._end_waiting(live), last=True)
            if self._store.durable and self.sends.of(live.ref) is None:
                await settle(self._let_go(live.ref), last=True)
            if self._store.durable or (live.anonymous and not live.suspended):
                await self._retire(live)

    async def _send_ended(self, ref: str) -> None:
        """Give up a run that its driver has left before its send ended; whoever cuts the send off comes too late."""
        await settle(self._give_up_left(ref), last=True)

    async def _give_up_left(self, ref: str) -> None:
        async with self._gate(ref):
            live = self.live.get(ref)
            if live is None or not live.driving:
                await self._let_go(ref)

    async def _let_go(self, ref: str) -> None:
        try:
            await self._store.let_go(ref)
        except AgentLoopError as error:
            _log.warning("the lease of run %s could not be given up, it runs out by itself: %s", ref, error)

    async def _retire(self, live: LiveRun) -> None:
        """Keep the newest ended runs, of those that nobody named or that can be read again; drop the oldest."""
        self._ended.append(live)
        if len(self._ended) <= _KEPT_RUNS:
            return
        oldest = self._ended.popleft()
        if self.live.get(oldest.ref) is oldest:
            del self.live[oldest.ref]
        if not self._store.durable and self._store.fault is None and self._store.book.has_run(oldest.ref):
            try:
                await self.whole(self._store.forget([oldest.ref]))
            except AgentLoopError as error:  # no matter of the run that ended now
                _log.warning("run %s could not be dropped: %s", oldest.ref, error)

    # -- all of them

    async def _end_all(self, settle_seconds: float) -> None:
        """Stop the runs, and only then what they wait for: own sends settle before the store closes (R143)."""
        for live in self.live.values():
            if live.kept:
                live.request_pause()
            else:
                live.request_stop()
        settling = asyncio.get_running_loop().create_task(self.sends.settle(settle_seconds))
        in_tools = {
            live.task: live
            for live in self.live.values()
            if live.kept and live.task is not None and live.goes_on and not live.sending(self.sends)
        }
        if in_tools:
            _, late = await asyncio.wait(in_tools, timeout=CLOSE_SECONDS)
            if late:
                _log.warning("%d runs did not end their effect in time; it is abandoned", len(late))
            for task in late:
                in_tools[task].request_stop()
        unknown = await settling
        if unknown:
            _log.warning("%d sends had no end in time; they are unsettled", unknown)
        tasks = {live.task for live in self.live.values() if live.task is not None and live.goes_on}
        if tasks:
            await asyncio.wait(tasks)

    async def _renew(self) -> None:
        """Keep the leases of the runs of this runtime; stop a run that was taken over."""
        while True:
            await asyncio.sleep(self._store.lease_seconds / 3)
            try:
                lost = await self._store.renew()
            except AgentLoopError as error:
                _log.error("leases could not be renewed: %s", error)
                continue
            for run_id in lost:
                live = self.live.get(run_id)
                pending = self.sends.of(run_id)
                if live is not None:
                    _log.error("run %s was taken over by another owner", run_id)
                    live.request_stop()
                if pending is not None:
                    pending.cut_off()

    async def _stop_renewing(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})


def _of(step: Callable[[Book, Turn], Sequence[Fact]], turn: Turn, book: Book) -> Sequence[Fact]:
    return step(book, turn)


def _note_spent(turn: Turn, ledger: Ledger) -> None:
    """Count what an earlier owner of a run has used."""
    ledger.note_spent("model_calls", turn.model_calls)
    ledger.note_spent("tool_calls", turn.tool_calls)
    ledger.note_spent("tokens", 0 if turn.usage is None else turn.usage.total_tokens)
