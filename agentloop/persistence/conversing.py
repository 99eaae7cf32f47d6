"""The store's steps on whole conversations: read, branch, redact and forget them.

Each is one write of the medium. Two processes that do one of the last three to the same
conversation would not see each other in it, so a lease on the conversation keeps them apart; runs
need none, for the medium checks where a conversation stands when one is opened.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeVar

from ..errors import ConflictError, LostError
from ..exchange import Book, ExchangeRef, OriginOpened, State, Turn, branch, restore, tombstone
from .backend import Lease
from .gate import Gate
from .lineage import children_of, made_from, read_conversation, summarising
from .store import Family, Store

__all__ = ["ConversationStore"]

T = TypeVar("T")

_LONGEST_ID: Final = 128


class ConversationStore(Store):
    """A `Store` that a host may also change conversations in. Arguments and attributes: `Store`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._changing: Gate[str] = Gate()

    async def read_conversation(self, name: str) -> State:
        """A conversation as the medium has it now, apart from the book.

        Raises:
            LostError: there is none of that name. RestoreError: it holds facts that cannot be.
        """
        self._check()
        return await self._read(lambda: read_conversation(self._backend, name))

    async def look(self, name: str, read: Callable[[Book], T]) -> T:
        """Read of the book, which holds the conversation as the medium has it now.

        Args:
            read: answers at once, and changes nothing.

        Raises:
            RestoreError: the medium holds facts that cannot be. PersistenceError: it failed, or stopped.
        """
        family = Family(name, None)
        async with self._gate(family):
            self._check()
            try:
                if self.durable:
                    await self._look_anew(family)
                return read(self.book)
            finally:
                self._rest(family)

    async def branch(self, name: str, *, run_id: str, source: str, at: ExchangeRef, at_ms: int) -> None:
        """Begin a conversation that goes on from an exchange of another.

        Raises:
            ConflictError: the name is taken, the digest is another exchange's, or another process has
                forgotten the exchange just now. LostError: there is no such exchange.
            NotOwnerError: another process forgets, redacts or branches one of the two just now.
            Otherwise as `commit`.
        """
        self._check()
        new, old = Family(name, None), Family(source, None)
        async with self._apart({name, source}):
            if await self._read(lambda: self._backend.conversation(name)) is not None:
                raise ConflictError(f"conversation {name!r}", "expected a name that is not used yet")
            async with self._gate(new), self._gate(old):  # in the order in which a branch reads what it goes on from
                self._check()
                try:
                    await self._reload(new, there=False)
                    await self._reload(old)
                    facts = branch(self.book, run_id=run_id, conversation=name, source=source, at=at, at_ms=at_ms)
                    after = "" if self.durable else None
                    await self._write(lambda: self._backend.append(facts, after=after), "branching a conversation")
                    self.book.install(facts)
                finally:
                    self._rest(old)
                    self._rest(new)

    async def redact(self, run_id: str, *, author: str, at_ms: int) -> None:
        """Remove the texts of an ended run; its digests stay. Doing so again changes nothing.

        A summary that another run is asked with is made of texts, so what was made from a run is
        redacted before it; see `made_from`. Runs that another process opens meanwhile are not seen.

        Raises:
            ConflictError: it has not ended, or a run is on its conversation, or here on a branch of it;
                or other runs have to be redacted before it, which it names.
            LostError: no such run is held. NotOwnerError: as `branch`. Otherwise as `commit`.
        """
        self._check()
        name = (await self.turn(run_id)).opened.conversation
        family = Family.of(run_id, name)
        async with self._apart(() if name is None else (name,)), AsyncExitStack() as gates:
            branches = [] if name is None else [Family(known.name, None) for known in self.book.branches_of(name)]
            for one in (*reversed(branches), family):
                await gates.enter_async_context(self._gate(one))
            self._check()
            await self._reload(family)
            self._check_at_rest(name)
            turn = self.book.turn(run_id)
            fact = tombstone(turn, author=author, at_ms=at_ms)
            await self._check_first(turn)
            self._check()
            await self._write(lambda: self._backend.redact(fact), "redacting a run")
            await self._replace(family, branches)

    async def forget(self, run_ids: Sequence[str]) -> None:
        """As `Store.forget`; a conversation that another one branched off from is kept.

        With a conversation that was asked with summaries go the calls that made them, and others that
        were made for the same turns.

        Raises:
            ConflictError: also for that. NotOwnerError: as `branch`.
        """
        self._check()
        names = set()
        for run_id in run_ids:
            known = self.book.run_conversation(run_id) if self.book.has_run(run_id) else None
            if known is None and self.durable:
                known = (await self._row(run_id)).conversation
            if known is not None:
                names.add(known)
        if not names:  # ended runs of their own, on which nothing goes on
            await super().forget(run_ids)
            return
        async with self._apart(names):
            calls = [ref for name in names for ref in await self._summaries_of(name) if ref not in run_ids]
            await super().forget([*run_ids, *dict.fromkeys(calls)])

    async def check_caller(self, run_id: str) -> None:
        """Refuse a run that an agent did for another one which has not ended: its call would be made anew.

        Raises:
            ConflictError: names the other run. LostError: no such run is held.
        """
        parent = (await self.turn(run_id)).opened.parent
        caller = "" if parent is None else parent.rpartition("/")[0]
        row = await self._read(lambda: self._backend.run(caller)) if caller else None
        if row is not None and row.outcome is None:
            raise ConflictError(f"run {run_id!r}", f"expected the run that it was done for to have ended, {caller!r}")

    async def children_of(self, run_ids: Sequence[str]) -> list[str]:
        """Runs that agents did for these; see `lineage.children_of`."""
        self._check()
        return await self._read(lambda: children_of(self._backend, run_ids))

    # -- private

    async def _summaries_of(self, name: str) -> list[str]:
        """Calls that go with a conversation."""
        facts = await self._read(lambda: self._backend.load_conversation(name))
        opened = [fact for fact in facts if type(fact) is OriginOpened]
        if not any(fact.context is not None and fact.context.summaries for fact in opened):
            return []
        origins, runs = {fact.origin_id for fact in opened}, {fact.run_id for fact in opened}
        return await self._read(lambda: summarising(self._backend, origins, runs))

    async def _look_anew(self, family: Family) -> None:
        try:
            await self._look(family, "", fresh=True)
        except LostError:  # another process forgot it between two readings
            self.book.unload(list(self._runs(family)))

    async def _replace(self, family: Family, branches: Sequence[Family]) -> None:
        """Hold a redacted family anew; what branched off from it is read again when it is asked for."""
        if self.durable:
            for one in (*reversed(branches), family):
                self.book.unload(list(self._runs(one)))
                self._resting.pop(one, None)
            return
        for one in (family, *branches):
            if one.conversation is not None:
                facts = await self._read(lambda name=one.conversation: self._backend.load_conversation(name))  # type: ignore[misc]
            else:
                facts = await self._read(lambda: self._backend.load_run(str(family.run_id)))
            self.book.unload(list(self._runs(one)))
            restore(self.book, facts)

    async def _check_first(self, turn: Turn) -> None:
        if turn.redacted is not None:
            return
        others = await self._read(lambda: made_from(self._backend, turn))
        if others:
            names = ", ".join(map(repr, others))
            rule = f"expected {names} to be redacted before it: they hold a summary of it, or made one that it holds"
            raise ConflictError(f"run {turn.run_id!r}", rule)

    def _check_at_rest(self, name: str | None) -> None:
        known = None if name is None else self.book.conversation(name)
        for one in () if known is None else (known, *self.book.branches_of(known.name)):
            if one.live is not None:
                raise ConflictError(f"conversation {one.name!r}", f"expected no run on it, got run {one.live!r}")

    @asynccontextmanager
    async def _apart(self, names: Iterable[str]) -> AsyncIterator[None]:
        """Be the only one, of all processes, who branches, redacts or forgets these conversations.

        Between processes the lock is a lease on an id that no run can have, for it is too long.
        """
        async with AsyncExitStack() as stack:
            for name in sorted(names):
                await stack.enter_async_context(self._changing(name))
                if self.durable:
                    lock = f"{'conversation ':.<{_LONGEST_ID + 1}}{name}"
                    lease = await self._read(
                        lambda lock=lock: self._backend.acquire(lock, self._owner, seconds=self.lease_seconds)  # type: ignore[misc]
                    )
                    stack.push_async_callback(self._unlock, lease)
            yield

    async def _unlock(self, lease: Lease) -> None:
        if self.fault is None:  # else it runs out by itself
            await self._read(lambda: self._backend.release(lease))
