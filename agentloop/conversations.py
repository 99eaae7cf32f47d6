"""Conversations as a host sees them: listed, read at any exchange, branched, redacted, forgotten.

Reading takes what the medium holds now, whichever process wrote it, and never touches a run. Only
whole exchanges count: what a run has begun and not completed is not part of any reading.
"""

from __future__ import annotations

from collections.abc import Callable

from .admission import is_unicode
from .errors import InputError, LostError
from .exchange import ExchangeRef
from .limits import check_name
from .messages import Message
from .persistence import ConversationRow, ConversationStore
from .runs import Runs
from .views import RunView, run_view
from .windows import check_ref

__all__ = ["Conversations"]


class Conversations:
    """The part of `Runtime` that is about conversations."""

    _store: ConversationStore
    _runs: Runs
    _new_id: Callable[[], str]
    _now_ms: Callable[[], int]

    async def conversations(self, *, prefix: str = "") -> list[ConversationRow]:
        """All conversations whose names begin with ``prefix``, by name, in the order of code points.

        Raises:
            PersistenceError: the store failed, or has stopped.
        """
        if type(prefix) is not str or not is_unicode(prefix):
            raise InputError(f"prefix: expected Unicode text, got {type(prefix).__name__}")
        return await self._store.conversations(prefix=prefix)

    async def turns(self, conversation: str) -> list[RunView]:
        """The runs of a conversation as a person looks at them, oldest first; see `view`.

        Raises:
            LostError: there is no such conversation. RestoreError: the store holds facts that cannot be.
            PersistenceError: the store failed, or has stopped.
        """
        check_name("conversation", conversation)
        return [run_view(row, facts) for row, facts in await self._store.conversation_facts(conversation)]

    async def view(self, ref: str) -> RunView:
        """A run as a person looks at it: what was said, each attempt with its reply and calls, what is unsettled.

        It is read from the medium, whoever is at the run, and is as far as what is stored. A run that nobody
        owns is ``unfinished``; in memory nothing is owned, and `is_live` says whether it goes on.

        Raises:
            LostError: no such run. RestoreError: the store holds facts that cannot be.
            PersistenceError: the store failed, or has stopped.
        """
        check_ref(ref)
        return run_view(*await self._store.run_facts(ref))

    def is_live(self, ref: str) -> bool:
        """Whether a run goes on in this runtime at this moment."""
        check_ref(ref)
        live = self._runs.live.get(ref)
        return live is not None and live.goes_on

    async def exchanges(self, conversation: str) -> tuple[ExchangeRef, ...]:
        """The complete exchanges that a conversation goes through, oldest first.

        Those that it branched off after come first; one that was redacted is named like any other.

        Raises:
            LostError: there is no such conversation.
            RestoreError: the store holds facts of it that cannot be.
        """
        check_name("conversation", conversation)
        state = await self._store.read_conversation(conversation)
        known = state.conversation(conversation)
        ref = None if known is None else known.head
        refs: list[ExchangeRef] = []
        while ref is not None:
            turn = state.exchange(ref)
            refs += [
                ExchangeRef(origin_id=ref.origin_id, index=index, digest=turn.digests[index + 1])
                for index in range(ref.index, -1, -1)
            ]
            ref = turn.opened.continues
        return tuple(reversed(refs))

    async def history(self, conversation: str, at: ExchangeRef | None = None) -> tuple[Message, ...]:
        """All that was said up to an exchange, as the next turn after it is given it.

        The instructions are the newest before it. What was redacted is missing, and a turn that
        came to no exchange never was part of it.

        Args:
            at: one of `exchanges`; None is the newest. An empty conversation reads as ``()``.

        Raises:
            LostError: there is no such conversation, or no such exchange in it.
            ConflictError: the exchange has another digest.
            RestoreError: the store holds facts of it that cannot be.
        """
        check_name("conversation", conversation)
        _check_exchange("at", at, optional=True)
        state = await self._store.read_conversation(conversation)
        known = state.conversation(conversation)
        head = None if known is None else known.head
        if at is None:
            return () if head is None else state.messages(head)
        ref, messages = head, state.messages(at)
        while ref is not None and ref.origin_id != at.origin_id:
            ref = state.exchange(ref).opened.continues
        if ref is None or ref.index < at.index:
            raise LostError("exchange", f"{at.origin_id}/{at.index} of {conversation}")
        return messages

    async def branch(self, conversation: str, at: ExchangeRef, name: str) -> None:
        """Begin the conversation ``name``, which goes on from an exchange of another one.

        Nothing is copied: what was said before stays where it is, and the digest of the first new
        turn chains to that exchange. Continue it with ``run(…, conversation=name)``.

        Args:
            at: one of `exchanges`. It may be of a conversation that this one branched off from.

        Raises:
            LostError: there is no such conversation, or no such exchange in it.
            ConflictError: ``name`` is taken, the exchange has another digest, or another process has
                forgotten it just now.
            NotOwnerError: another process branches, redacts or forgets one of the two just now.
            PersistenceError: the store failed.
        """
        check_name("conversation", conversation)
        _check_exchange("at", at)
        check_name("name", name)
        await self.history(conversation, at)
        source = (await self._store.read_conversation(conversation)).exchange(at).opened.conversation
        assert source is not None, "an exchange that a conversation goes through is of a conversation"
        work = self._store.branch(name, run_id=self._new_id(), source=source, at=at, at_ms=self._now_ms())
        await self._runs.whole(work)

    async def redact(self, ref: str, *, author: str) -> None:
        """Remove all texts of a run that ended: what was said and asked, the replies, calls and feedback.

        A tombstone stays in their place, with the digests that later turns chain to, the counts and
        ``author``. Later turns, and branches, no longer hold those texts. On SQLite they are
        overwritten in the file; Postgres drops them when it vacuums. Backups, and what other
        processes hold in memory, are not reached. Redacting again changes nothing.

        A summary of this run is never left behind unsaid: the calls that were given it to read, and
        runs that are asked with what came of it, are redacted first; the calls before such a run.

        Raises:
            LostError: no such run. ConflictError: it, or a run on its conversation, or the one that it was
                done for, has not ended; or it names the runs that have to be redacted first.
            NotOwnerError: another process branches, redacts or forgets its conversation just now.
            PersistenceError: the store failed.
        """
        check_ref(ref)
        check_name("author", author)
        await self._store.check_caller(ref)
        await self._runs.whole(self._store.redact(ref, author=author, at_ms=self._now_ms()))
        self._runs.live.pop(ref, None)

    async def forget(self, *, conversation: str | None = None, ref: str | None = None) -> None:
        """Drop an ended run, or a conversation with all its ended runs, and the room they take.

        With a run go those that agents did for it (`delegate`); with a conversation also the calls that made
        summaries of it. One that was made for a start of which no run came is dropped with them where the
        conversation has other ones, and else by its ``ref``.

        Raises:
            InputError: not exactly one of the two was given.
            LostError: nothing of that name is kept. ConflictError: a run of it goes on, here or in
                another process, it was done for a run that has not ended, it is one turn of a
                conversation, or another conversation branched off from it; nothing was dropped.
            NotOwnerError: another process branches, redacts or forgets it just now.
        """
        if (conversation is None) == (ref is None):
            raise InputError("Runtime.forget: expected either conversation= or ref=")
        if conversation is not None:
            check_name("conversation", conversation)
            runs = list((await self._store.conversation(conversation)).runs)
        else:
            check_ref(ref)
            assert ref is not None, "one of the two is given"
            await self._store.check_caller(ref)
            runs = [ref]
        runs += await self._store.children_of(runs)
        await self._runs.whole(self._store.forget(runs))
        for run_id in runs:
            self._runs.live.pop(run_id, None)


def _check_exchange(field: str, value: object, *, optional: bool = False) -> None:
    if type(value) is not ExchangeRef and not (optional and value is None):
        raise InputError(f"{field}: expected an ExchangeRef, got {type(value).__name__}")
