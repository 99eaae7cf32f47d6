"""Append, then install, then publish: the only way a fact comes to be.

A step is checked against the book, its facts are appended to the medium, and only then does the
book (and with it every reader) see them. A conversation with all its runs, or a run without one,
is a *family*: whatever changes the book's state of a family, writing or reading, passes its gate,
one at a time. So a check still holds when its facts are installed, and families that have nothing
to do with each other share a commit of the medium.

On a durable medium a run is written by its owner only: the one whose lease has the newest token.
The book holds the families that are in use here and some that were; the others are read when they
are asked for, and checked again before they count.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple, TypeVar

from ..errors import (
    AdmissionError,
    AgentLoopError,
    ConflictError,
    LostError,
    NotOwnerError,
    PersistenceError,
    RestoreError,
)
from ..exchange import Book, ConversationBranched, Fact, OriginOpened, OutputKept, RunRedacted, Turn, restore
from .backend import Backend, ConversationRow, Lease, RunRow
from .gate import Gate
from .memory import MemoryBackend

__all__ = ["Family", "Step", "Store"]

_log = logging.getLogger("agentloop.persistence")

Step = Callable[[Book], Sequence[Fact]]
"""Checks the book and returns the facts to add. Changes nothing, and may be asked again."""

T = TypeVar("T")

_KEPT_FAMILIES: Final = 64
"""Families at rest whose state a book on a durable medium keeps; older ones are read again."""

_TRIES: Final = 3
"""How often an opening looks again when others were quicker."""


class Family(NamedTuple):
    """A conversation with its runs, or one run of none."""

    conversation: str | None
    run_id: str | None

    @classmethod
    def of(cls, run_id: str, conversation: str | None) -> Family:
        return cls(conversation, run_id if conversation is None else None)

    def __str__(self) -> str:
        return f"run {self.run_id!r}" if self.conversation is None else f"conversation {self.conversation!r}"


class Store:
    """A book and the medium behind it. Any task of one event loop may call it.

    Args:
        owner: names this runtime in leases. lease_seconds: how long a lease lives without renewal.

    Attributes:
        book: the facts of the runs in use, as state. Read only.
        fault: why writing stopped, None while it goes on.
        waits: whether a commit may wait for the medium, so that a cancel can meet it half way.
        durable: whether facts outlive this process.
    """

    def __init__(self, backend: Backend, book: Book, *, owner: str = "", lease_seconds: float = 30.0) -> None:
        self.book = book
        book.holds_outputs = not backend.durable
        self.fault: str | None = None
        self.waits = type(backend) is not MemoryBackend
        self.durable = backend.durable
        self.lease_seconds = lease_seconds
        self._backend, self._owner = backend, owner
        self._gate: Gate[Family] = Gate()
        self._leases: dict[str, Lease] = {}
        self._resting: dict[Family, None] = {}
        self._closed = False

    # -- writing

    async def commit(self, step: Step, *, run_id: str) -> tuple[Fact, ...]:
        """Run one step of a run; return the facts it added (none when it only confirmed).

        Raises:
            PersistenceError: the medium failed or the write was cancelled, now or before. What it
                holds is unknown: writing has stopped, and the host reloads from the medium.
            NotOwnerError: another owner has taken the run over; nothing was written.
            AgentLoopError: the step was refused; nothing was added.
        """
        async with self._gate(self._family(run_id)):
            self._check()
            facts = tuple(step(self.book))
            if facts:
                await self._append(facts)
            return facts

    async def open_run(self, step: Step, *, run_id: str, conversation: str | None, fresh: bool = False) -> bool:
        """Run the step that opens a run, against what the medium holds now; say whether it is new.

        Args:
            fresh: the id was made just now, so that no run can have it.

        Raises:
            ConflictError, StaleHeadError: the id is taken, or another run is on the conversation.
            NotOwnerError: the run is there, and somebody else's.
            RestoreError: the medium holds facts that cannot be. Otherwise as `commit`.
        """
        family = Family.of(run_id, conversation)
        async with self._gate(family):
            try:
                return await self._open(step, family, run_id, fresh)
            finally:
                self._rest(family)

    async def take_over(self, run_id: str, *, at_ms: int, check: Callable[[Turn], None] | None = None) -> Turn:
        """Own a run that has not ended, with its facts as they are on the medium now.

        What an earlier owner had started and not answered is ``unknown`` from here on. A run that
        has ended is read, and owned by nobody.

        Args:
            at_ms: the wall clock now.
            check: looks at a run that has not ended before anything is written of it, and may refuse it.

        Raises:
            LostError: no such run. NotOwnerError: its owner lives; says for how long its lease does.
            RestoreError: the medium holds facts that cannot be. Otherwise as `commit`.
        """
        self._check()
        family = await self._family_on_medium(run_id)
        async with self._gate(family):
            self._check()
            if run_id in self._leases:
                rule = "expected a run that goes on nowhere, got one of this runtime"
                raise NotOwnerError(f"run {run_id!r}", rule, owner=self._owner)
            try:
                row = await self._row(run_id)
                if self.durable and row.outcome is None:
                    await self._acquire(run_id)
                await self._reload(family, anew=True)  # its last owner may have ended it until the lease was ours
                turn = self.book.turn(run_id)
                if turn.closed is None:
                    if check is not None:
                        check(turn)
                    facts = tuple(self.book.lose_slots(turn, at_ms=at_ms))
                    if facts:
                        await self._append(facts)
                else:
                    await self._give_up_or_say(run_id)
            except BaseException:
                await self._give_up_or_say(run_id)
                raise
            finally:
                self._rest(family)
            return turn

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop runs that ended, from the medium and from the book.

        Args:
            run_ids: of one conversation, or of none.

        Raises:
            ConflictError: one is running, only part of a conversation was named, or another process
                went on with it; what the medium holds decides.
            LostError: one is not held.
            PersistenceError: as `commit`.
        """
        self._check()
        families = {self._family(run_id) for run_id in run_ids if self.book.has_run(run_id)}
        if self.durable:
            families = {await self._family_on_medium(run_id) for run_id in run_ids}
        async with AsyncExitStack() as gates:
            for family in sorted(families, key=str):
                await gates.enter_async_context(self._gate(family))
            self._check()
            try:
                if self.durable:
                    for family in families:
                        await self._reload(family)
                self.book.check_forget(run_ids)
                await self._write(lambda: self._backend.forget(run_ids), f"forgetting {len(run_ids)} runs")
                self.book.forget(run_ids)
            finally:
                for family in families:
                    self._rest(family)

    # -- owning

    def owns(self, run_id: str) -> bool:
        """Whether this store may write the run, as far as it knows."""
        return not self.durable or run_id in self._leases

    async def renew(self) -> list[str]:
        """Prolong every lease; return the runs that another owner has taken over."""
        leases = list(self._leases.values())
        if not leases or self.fault is not None or self._closed:
            return []
        lost = await self._read(lambda: self._backend.renew(leases, seconds=self.lease_seconds))
        gone = [lease.run_id for lease in leases if lease.run_id in lost and self._leases.get(lease.run_id) is lease]
        for run_id in gone:
            del self._leases[run_id]
        return gone

    async def let_go(self, run_id: str) -> None:
        """Give up a run. Its state stays in the book for a while, where there is a medium to read it from again.

        Raises:
            PersistenceError: the lease could not be given up; it runs out by itself.
        """
        if self.fault is not None:  # closing tries, once it knows whether the medium answers
            return
        family = self._family(run_id)
        try:
            await self._give_up(run_id)
        finally:
            self._rest(family)

    # -- reading

    async def turn(self, run_id: str) -> Turn:
        """The facts of a run, as the medium holds them now where it is another's, or goes on nowhere.

        Raises:
            LostError: no such run is held. RestoreError: the medium holds facts that cannot be.
        """
        if self.book.has_run(run_id):
            turn = self.book.turn(run_id)
            if turn.closed is not None or self.owns(run_id):
                return turn
        elif not self.durable:
            raise LostError("run", run_id)
        self._check()
        family = await self._family_on_medium(run_id)
        async with self._gate(family):
            try:
                await self._reload(family)
                return self.book.turn(run_id)
            finally:
                self._rest(family)

    async def facts(self, run_id: str) -> tuple[list[Fact], bool]:
        """The facts of a run as the medium holds them now, none for one that is not there; and whether it is owned.

        In memory a run that has not ended is owned: it goes on here.
        """
        self._check()
        row = await self._read(lambda: self._backend.run(run_id))
        if row is None:
            return [], False
        facts = await self._read(lambda: self._backend.load_run(run_id))
        return facts, row.lease is not None or (not self.durable and row.outcome is None)

    async def output(self, run_id: str, exchange: int, position: int) -> str:
        """The full text that is kept of an output, as the medium holds it now. Reads the facts of its run.

        Raises:
            LostError: no such run, or nothing is kept of the call.
        """
        self._check()
        facts = await self._read(lambda: self._backend.load_run(run_id))
        if not facts:
            raise LostError("run", run_id)
        for fact in facts:
            if type(fact) is OutputKept and (fact.exchange, fact.position) == (exchange, position):
                return fact.text
        raise LostError("output", f"{run_id}/{exchange}.{position}")

    async def runs(self, *, unfinished: bool = False) -> list[RunRow]:
        """Runs, or those without an end, oldest first."""
        self._check()
        return await self._read(lambda: self._backend.runs(unfinished=unfinished))

    async def run_facts(self, run_id: str) -> tuple[RunRow, list[Fact]]:
        """A run's row and its facts, as the medium holds them now.

        Raises:
            LostError: no such run.
        """
        self._check()
        row = await self._row(run_id)
        facts = await self._read(lambda: self._backend.load_run(run_id))
        if not facts:  # another process forgot it between the two readings
            raise LostError("run", run_id)
        return row, facts

    async def conversation_facts(self, name: str) -> list[tuple[RunRow, list[Fact]]]:
        """The rows and the facts of a conversation's runs, oldest first, as the medium holds them now.

        The row of one that has ended tells no outcome: its facts do.

        Raises:
            LostError: there is none of that name.
        """
        live = (await self.conversation(name)).live
        row = None if live is None else await self._read(lambda: self._backend.run(live))
        runs: dict[str, list[Fact]] = {}
        for fact in await self._read(lambda: self._backend.load_conversation(name)):
            runs.setdefault(fact.run_id, []).append(fact)
        return [
            (row if row is not None and run_id == live else _row_of(facts[0]), facts) for run_id, facts in runs.items()
        ]

    async def conversations(self, *, prefix: str = "") -> list[ConversationRow]:
        """All conversations whose names begin so, by name."""
        self._check()
        return await self._read(lambda: self._backend.conversations(prefix=prefix))

    async def conversation(self, name: str) -> ConversationRow:
        """One conversation.

        Raises:
            LostError: there is none of that name.
        """
        self._check()
        row = await self._read(lambda: self._backend.conversation(name))
        if row is None:
            raise LostError("conversation", name)
        return row

    # -- life

    async def open(self) -> None:
        """Make the medium usable; see `Backend.open`."""
        await self._read(self._backend.open)

    async def close(self) -> None:
        """Stop writing, wait for the writes that go on, and release the medium. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._gate.idle()
        try:
            for run_id in list(self._leases):
                await self._give_up(run_id)
        except PersistenceError as error:  # the others would not fare better
            _log.warning("leases could not be given up, they run out by themselves: %s", error)
        finally:
            await self._backend.close()

    # -- private: writing

    async def _open(self, step: Step, family: Family, run_id: str, fresh: bool) -> bool:
        tries = 0
        while True:
            self._check()
            after = None
            try:
                if self.durable:
                    after = await self._look(family, run_id, fresh)
            except LostError:  # another process forgot it between two readings
                tries += 1
                if tries == _TRIES:
                    raise
                continue
            facts = tuple(step(self.book))
            if not facts:
                return False
            try:
                await self._append(facts, after=after, acquire=self.durable)
            except NotOwnerError:
                raise
            except ConflictError:  # another process was quicker; the step says what it finds there now
                tries += 1
                if tries == _TRIES:
                    raise
            else:
                return True

    async def _append(self, facts: Sequence[Fact], *, after: str | None = None, acquire: bool = False) -> None:
        """Write a batch as the run's owner, and install it."""
        run_id = facts[0].run_id
        if acquire:
            await self._acquire(run_id)
        lease = self._leases.get(run_id)
        if self.durable and lease is None:
            raise NotOwnerError(f"run {run_id!r}", "expected its owner, got one whose lease is gone")
        token = None if lease is None else lease.token
        try:
            await self._write(
                lambda: self._backend.append(facts, token=token, after=after), f"appending {len(facts)} facts"
            )
        except NotOwnerError:
            self._leases.pop(run_id, None)
            raise
        except ConflictError:
            if acquire:  # it is not open, so there is nothing to own
                await self._give_up_or_say(run_id)
            raise
        self.book.install(facts)

    async def _write(self, write: Callable[[], Awaitable[None]], what: str) -> None:
        """Await one write; stop writing when it does not end well, since what it did is unknown."""
        try:
            await write()
        except (AdmissionError, ConflictError, RestoreError):
            raise  # refused whole: nothing was written
        except BaseException as error:
            self.fault = f"{what} ended with {type(error).__name__}"
            if isinstance(error, PersistenceError) or not isinstance(error, Exception):
                raise
            raise PersistenceError(f"{self.fault}; writing stopped, reload the store") from error

    def _check(self) -> None:
        if self._closed:
            raise PersistenceError("the store is closed")
        if self.fault is not None:
            raise PersistenceError(f"{self.fault}; writing stopped, reload the store")

    # -- private: owning

    async def _acquire(self, run_id: str) -> None:
        self._leases[run_id] = await self._read(
            lambda: self._backend.acquire(run_id, self._owner, seconds=self.lease_seconds)
        )

    async def _give_up(self, run_id: str) -> None:
        lease = self._leases.pop(run_id, None)
        if lease is not None:
            await self._read(lambda: self._backend.release(lease))

    async def _give_up_or_say(self, run_id: str) -> None:
        try:
            await self._give_up(run_id)
        except PersistenceError as error:
            _log.warning("the lease of run %s could not be given up, it runs out by itself: %s", run_id, error)

    # -- private: reading

    def _family(self, run_id: str) -> Family:
        try:
            return Family.of(run_id, self.book.turn(run_id).opened.conversation)
        except LostError:
            return Family.of(run_id, None)

    async def _family_on_medium(self, run_id: str) -> Family:
        return Family.of(run_id, (await self._row(run_id)).conversation)

    async def _row(self, run_id: str) -> RunRow:
        row = await self._read(lambda: self._backend.run(run_id))
        if row is None:
            raise LostError("run", run_id)
        return row

    def _runs(self, family: Family) -> Sequence[str]:
        """Runs of a family that the book holds, oldest first."""
        if family.conversation is not None:
            known = self.book.conversation(family.conversation)
            return () if known is None else known.runs
        return (family.run_id,) if family.run_id is not None and self.book.has_run(family.run_id) else ()

    def _in_use(self, family: Family) -> bool:
        """Whether a run of it goes on here; only the newest one can."""
        runs = self._runs(family)
        return bool(runs) and runs[-1] in self._leases and self.book.turn(runs[-1]).closed is None

    async def _look(self, family: Family, run_id: str, fresh: bool) -> str | None:
        """Hold the family as the medium has it; return the newest run of a conversation, "" for none."""
        if self._in_use(family):
            return self._runs(family)[-1]
        if family.conversation is None:
            if not fresh:
                row = await self._read(lambda: self._backend.run(run_id))
                self._check_place(family, row)
                await self._reload(family, there=row is not None)
            return None
        if not fresh:
            self._check_place(family, await self._read(lambda: self._backend.run(run_id)))
        name = family.conversation
        at = await self._read(lambda: self._backend.conversation(name))
        known = self.book.conversation(name)
        if known is None or at is None or (tuple(known.runs), known.live) != (at.runs, at.live):
            await self._reload(family, there=at is not None)
        return "" if at is None or not at.runs else at.runs[-1]

    @staticmethod
    def _check_place(family: Family, row: RunRow | None) -> None:
        if row is not None and row.conversation != family.conversation:
            raise ConflictError(f"run {row.run_id!r}", "expected the input this run was started with, got another")

    async def _reload(
        self, family: Family, *, there: bool = True, anew: bool = False, trail: tuple[Family, ...] = ()
    ) -> None:
        """Hold a family as the medium has it, unless a run of it goes on here. The caller holds its gate.

        Args:
            there: whether the medium has it.
            anew: a run of it was only just owned, so that what the book holds of it may be out of date.
        """
        if not self.durable or (self._in_use(family) and not anew):
            return
        facts: list[Fact] = []
        if there:
            name, run_id = family
            if name is not None:
                facts = await self._read(lambda: self._backend.load_conversation(name))
            elif run_id is not None:
                facts = await self._read(lambda: self._backend.load_run(run_id))
            if not facts:
                if not trail:
                    await self._check_there(family)
                raise RestoreError("bad_record", str(family), "expected its facts, got none")
            if type(facts[0]) is ConversationBranched:
                await self._read_source(facts[0].source, (*trail, family))
        self.book.unload(list(self._runs(family)))
        if facts:
            self._restore(family, facts)

    async def _check_there(self, family: Family) -> None:
        """Raise `LostError` where another process has forgotten the family since its row was read."""
        name, run_id = family
        if name is not None:
            await self.conversation(name)
        elif run_id is not None:
            await self._row(run_id)

    async def _read_source(self, name: str, trail: tuple[Family, ...]) -> None:
        """Hold the conversation that another one branches off, until the caller next waits."""
        family = Family(name, None)
        if family in trail:
            raise RestoreError("bad_record", str(family), "expected a branch of another conversation")
        async with self._gate(family):
            await self._reload(family, trail=trail)
            self._rest(family)

    def _restore(self, family: Family, facts: list[Fact]) -> None:
        there = {fact.run_id for fact in facts if self.book.has_run(fact.run_id)}
        try:
            for fact in facts:
                if isinstance(fact, OriginOpened | RunRedacted | ConversationBranched):
                    at_home = fact.conversation == family.conversation
                else:
                    at_home = True
                if not at_home or family.run_id not in (None, fact.run_id):
                    raise RestoreError("bad_record", f"run {fact.run_id!r}", f"expected a fact of {family}")
            restore(self.book, facts)
        except BaseException:
            self.book.unload({fact.run_id for fact in facts} - there)
            raise

    def _rest(self, family: Family) -> None:
        """Note whether a family is in use; forget the state of those that have not been for long."""
        self._resting.pop(family, None)
        if self.durable and self._runs(family) and not self._in_use(family):
            self._resting[family] = None
            self._unload()

    def _unload(self) -> None:
        """Drop the state of families at rest but the newest."""
        over = len(self._resting) - _KEPT_FAMILIES
        oldest = [family for family in self._resting if not self._gate.busy(family)][: max(0, over)]
        for family in oldest:
            del self._resting[family]
            if not self._in_use(family):
                self.book.unload(list(self._runs(family)))

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Await one read; a medium that fails in a way of its own is a `PersistenceError`."""
        try:
            return await read()
        except AgentLoopError:
            raise
        except Exception as error:
            raise PersistenceError(f"reading the store ended with {type(error).__name__}") from error


def _row_of(first: Fact) -> RunRow:
    """The row of a run that nobody is at, from its first fact."""
    assert isinstance(first, OriginOpened | RunRedacted | ConversationBranched), "a run begins with one of them"
    return RunRow(
        run_id=first.run_id,
        conversation=first.conversation,
        agent=first.agent,
        opened_at_ms=first.at_ms,
        outcome=None,
        lease=None,
    )
