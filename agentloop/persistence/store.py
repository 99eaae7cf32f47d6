"""Append, then install, then publish: the only way a fact comes to be.

A step is checked against the book, its facts are appended to the medium, and only then does the
book (and with it every reader) see them. Steps of one run, and the openings on one conversation,
are serialised, so a check still holds when its facts are installed; runs that have nothing to do
with each other share a commit of the medium.

On a durable medium a run is written by its owner only: the one whose lease has the newest token.
The book holds the runs that are in use here; the others are read when they are asked for, and
checked again before they count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from ..errors import AgentLoopError, ConflictError, LostError, NotOwnerError, PersistenceError
from ..exchange import Book, ConversationBranched, ExchangeRef, Fact, State, Turn, branch, restore, tombstone
from .backend import Backend, ConversationRow, Lease, RunRow
from .lineage import load_lineage, read_conversation
from .memory import MemoryBackend

__all__ = ["Step", "Store"]

Step = Callable[[Book], Sequence[Fact]]
"""Checks the book and returns the facts to add. Changes nothing."""

T = TypeVar("T")

_LONGEST_ID = 128


class _Gate:
    """One lock a name, as long as somebody holds or wants it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    def __call__(self, name: str) -> AbstractAsyncContextManager[None]:
        return _Pass(self._locks, name)


class _Pass(AbstractAsyncContextManager[None]):
    def __init__(self, locks: dict[str, tuple[asyncio.Lock, int]], name: str) -> None:
        self._locks, self._name = locks, name

    async def __aenter__(self) -> None:
        lock, users = self._locks.get(self._name, (None, 0))
        if lock is None:
            lock = asyncio.Lock()
        self._locks[self._name] = (lock, users + 1)
        try:
            await lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._locks[self._name][0].release()
        self._leave()

    def _leave(self) -> None:
        lock, users = self._locks.pop(self._name)
        if users > 1:
            self._locks[self._name] = (lock, users - 1)


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
        self.fault: str | None = None
        self.waits = type(backend) is not MemoryBackend
        self.durable = backend.durable
        self.lease_seconds = lease_seconds
        self._backend, self._owner = backend, owner
        self._gate = _Gate()
        self._leases: dict[str, Lease] = {}
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
        async with self._gate(f"run {run_id}"):
            self._check()
            facts = tuple(step(self.book))
            if facts:
                lease = self._leases.get(run_id)
                token = None if lease is None else lease.token
                await self._write(lambda: self._backend.append(facts, token=token), f"appending {len(facts)} facts")
                self.book.install(facts)
            return facts

    async def open_run(self, step: Step, *, run_id: str, conversation: str | None) -> bool:
        """Run the step that opens a run, against what the medium holds now; say whether it is new.

        Raises:
            ConflictError, StaleHeadError: the id is taken, or another run is on the conversation.
            NotOwnerError: the run is there, and somebody else's.
            Otherwise as `commit`.
        """
        gate = f"run {run_id}" if conversation is None else f"conversation {conversation}"
        async with self._gate(gate):
            self._check()
            after = None
            if self.durable:
                if conversation is not None:
                    after = await self._refresh(conversation)
                if not self.book.has_run(run_id):
                    await self._load(run_id)
            facts = tuple(step(self.book))
            if facts:
                token = None
                if self.durable:
                    lease = await self._read(lambda: self._acquire(run_id))
                    token = lease.token
                await self._write(
                    lambda: self._backend.append(facts, token=token, after=after), f"appending {len(facts)} facts"
                )
                self.book.install(facts)
            return bool(facts)

    async def take_over(self, run_id: str) -> Turn:
        """Own a run that has not ended, with its facts as they are on the medium now.

        What an earlier owner had started and not answered is ``unknown`` from here on.

        Raises:
            LostError: no such run. NotOwnerError: its owner lives; says for how long its lease does.
            RestoreError: the medium holds facts that cannot be. Otherwise as `commit`.
        """
        async with self._gate(f"run {run_id}"):
            self._check()
            await self._read(lambda: self._acquire(run_id))
            turn = await self._reload(run_id)
            if turn.closed is not None:
                await self._release(run_id)
                return turn
        await self.commit(lambda book: book.lose_slots(book.turn(run_id)), run_id=run_id)
        return self.book.turn(run_id)

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Drop runs that ended, from the medium and from the book.

        Raises:
            ConflictError: one is running, only part of a conversation was named, or another
                conversation branched off from it.
            LostError: one is not held. NotOwnerError: as `branch`.
            PersistenceError: as `commit`.
        """
        self._check()
        for run_id in run_ids:
            if not self.book.has_run(run_id):
                await self._load(run_id)
        names = self.book.check_forget(run_ids)
        async with self._apart(names):
            if names:
                for name in names:
                    await self._read_again(name)
                self.book.check_forget(run_ids)
                await self._check_branches(names)
            await self._write(lambda: self._backend.forget(run_ids), f"forgetting {len(run_ids)} runs")
            self.book.forget(run_ids)

    async def branch(self, name: str, *, run_id: str, source: str, at: ExchangeRef, at_ms: int) -> None:
        """Begin a conversation that goes on from an exchange of another.

        Raises:
            ConflictError: the name is taken, or the digest is another exchange's.
            LostError: there is no such exchange.
            NotOwnerError: another process forgets, redacts or branches one of the two just now.
            Otherwise as `commit`.
        """
        self._check()
        async with self._apart({name, source}):
            await self._read_again(source)
            await self._read_again(name)
            facts = branch(self.book, run_id=run_id, conversation=name, source=source, at=at, at_ms=at_ms)
            after = "" if self.durable else None
            await self._write(lambda: self._backend.append(facts, after=after), "branching a conversation")
            self.book.install(facts)

    async def redact(self, run_id: str, *, author: str, at_ms: int) -> None:
        """Remove the texts of an ended run; its digests stay. Doing so again changes nothing.

        Raises:
            ConflictError: it has not ended, or a run is on its conversation, or on a branch of that.
            LostError: no such run is held. NotOwnerError: as `branch`. Otherwise as `commit`.
        """
        self._check()
        name = (await self.turn(run_id)).opened.conversation
        async with self._apart(() if name is None else (name,)):
            if name is not None:
                await self._read_again(name)
                self._check_at_rest(name)
            fact = tombstone(self.book.turn(run_id), author=author, at_ms=at_ms)
            await self._write(lambda: self._backend.redact(fact), "redacting a run")
            if name is None:
                self.book.unload([run_id])
                restore(self.book, (fact,))
                return
            for known in [name, *(known.name for known in self.book.branches_of(name))]:
                await self._reload_conversation(known)

    # -- owning

    async def renew(self) -> list[str]:
        """Prolong every lease; return the runs that another owner has taken over."""
        leases = list(self._leases.values())
        if not leases or not self.durable:
            return []
        lost = await self._read(lambda: self._backend.renew(leases, seconds=self.lease_seconds))
        for run_id in lost:
            self._leases.pop(run_id, None)
        return lost

    async def let_go(self, run_id: str, *, unload: bool = False) -> None:
        """Give up a run: its lease, and its state where the medium has it."""
        await self._release(run_id)
        if unload and self.durable and self.book.has_run(run_id):
            name = self.book.turn(run_id).opened.conversation
            known = None if name is None else self.book.conversation(name)
            self.book.unload([run_id] if known is None else known.runs)

    # -- reading

    async def turn(self, run_id: str) -> Turn:
        """The facts of a run, from the medium when it is not in use here.

        Raises:
            LostError: no such run is held.
        """
        if not self.book.has_run(run_id):
            self._check()
            await self._load(run_id)
        return self.book.turn(run_id)

    async def runs(self, *, unfinished: bool = False) -> list[RunRow]:
        """Runs, or those without an end, oldest first."""
        self._check()
        return await self._read(lambda: self._backend.runs(unfinished=unfinished))

    async def conversations(self) -> list[ConversationRow]:
        """All conversations, by name."""
        self._check()
        return await self._read(self._backend.conversations)

    async def read_conversation(self, name: str) -> State:
        """A conversation as the medium has it now, apart from the book.

        Raises:
            LostError: there is none of that name. RestoreError: it holds facts that cannot be.
        """
        self._check()
        return await self._read(lambda: read_conversation(self._backend, name))

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
        await self._backend.open()

    async def close(self) -> None:
        """Stop writing and release the medium. Idempotent."""
        if not self._closed:
            self._closed = True
            for run_id in list(self._leases):
                await self._release(run_id)
            await self._backend.close()

    # -- private

    async def _acquire(self, run_id: str) -> Lease:
        lease = await self._backend.acquire(run_id, self._owner, seconds=self.lease_seconds)
        self._leases[run_id] = lease
        return lease

    async def _release(self, run_id: str) -> None:
        lease = self._leases.pop(run_id, None)
        if lease is not None and self.durable and self.fault is None:
            await self._read(lambda: self._backend.release(lease))

    async def _refresh(self, name: str) -> str:
        """Hold the conversation as the medium has it; return its newest run, "" for none."""
        row = await self._read(lambda: self._backend.conversation(name))
        known = self.book.conversation(name)
        same = known is not None and row is not None and (tuple(known.runs), known.live) == (row.runs, row.live)
        if known is not None and known.live in self._leases:
            pass  # a run of this process is on it, and its facts are here
        elif row is not None and not same:
            await self._reload_conversation(name)
        elif row is None and known is not None:
            self.book.unload(known.runs)
        return "" if row is None or not row.runs else row.runs[-1]

    async def _reload_conversation(self, name: str) -> None:
        """Hold a conversation anew, with those that it branched off from where they are missing."""
        lineage = await self._read(lambda: load_lineage(self._backend, name, has=self._has))
        for facts in lineage:
            opened = facts[0] if facts else None
            known = self.book.conversation(getattr(opened, "conversation", None) or name)
            if known is not None:
                self.book.unload(known.runs)
            restore(self.book, facts)

    def _has(self, ref: ExchangeRef) -> bool:
        try:
            self.book.exchange(ref)
        except AgentLoopError:
            return False
        return True

    async def _read_again(self, name: str) -> None:
        """Hold a conversation as the medium has it, unless a run of this process is on it: that one is newest here."""
        if self.durable:
            known = self.book.conversation(name)
            if known is None or known.live not in self._leases:
                await self._reload_conversation(name)

    @asynccontextmanager
    async def _apart(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Be the only one, of all processes, who forgets, redacts or branches these conversations.

        A lease on an id that no run can have, for it is too long, is the lock between processes.
        """
        async with AsyncExitStack() as stack:
            for name in sorted(names):
                await stack.enter_async_context(self._gate(f"conversation {name}"))
                if self.durable:
                    lock = f"{'conversation ':.<{_LONGEST_ID + 1}}{name}"
                    lease = await self._read(
                        lambda lock=lock: self._backend.acquire(lock, self._owner, seconds=self.lease_seconds)  # type: ignore[misc]
                    )
                    stack.push_async_callback(self._unlock, lease)
            yield

    async def _unlock(self, lease: Lease) -> None:
        if self.fault is None:  # else the lease runs out by itself
            await self._read(lambda: self._backend.release(lease))

    async def _check_branches(self, names: set[str]) -> None:
        """Refuse when a conversation that stays goes on from one of these."""
        for row in await self._read(self._backend.runs):
            if row.outcome == "branched" and row.conversation is not None and row.conversation not in names:
                for fact in await self._read(lambda row=row: self._backend.load_run(row.run_id)):  # type: ignore[misc]
                    if type(fact) is ConversationBranched and fact.source in names:
                        rule = f"expected no branch of it, got conversation {fact.conversation!r}"
                        raise ConflictError(f"conversation {fact.source!r}", rule)

    def _check_at_rest(self, name: str) -> None:
        for known in (self.book.conversation(name), *self.book.branches_of(name)):
            if known is not None and known.live is not None:
                rule = f"expected no run on it, got run {known.live!r}"
                raise ConflictError(f"conversation {known.name!r}", rule)

    async def _load(self, run_id: str) -> None:
        """Read a run, and its conversation with it, unless it is in use; nothing when it is not there."""
        row = await self._read(lambda: self._backend.run(run_id))
        if row is None or self.book.has_run(run_id):
            return
        if row.conversation is not None:
            await self._reload_conversation(row.conversation)
        else:
            restore(self.book, await self._read(lambda: self._backend.load_run(run_id)))

    async def _reload(self, run_id: str) -> Turn:
        if self.book.has_run(run_id):
            name = self.book.turn(run_id).opened.conversation
            known = None if name is None else self.book.conversation(name)
            self.book.unload([run_id] if known is None else known.runs)
        await self._load(run_id)
        return self.book.turn(run_id)

    async def _read(self, read: Callable[[], Awaitable[T]]) -> T:
        """Await one read; a medium that fails in a way of its own is a `PersistenceError`."""
        try:
            return await read()
        except AgentLoopError:
            raise
        except Exception as error:
            raise PersistenceError(f"reading the store ended with {type(error).__name__}") from error

    async def _write(self, write: Callable[[], Awaitable[None]], what: str) -> None:
        """Await one write; stop writing when it does not end well, since what it did is unknown."""
        try:
            await write()
        except (ConflictError, NotOwnerError):
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
