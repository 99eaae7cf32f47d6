"""One batch of facts, and the conditions under which any medium takes it.

Every medium checks them in the transaction that writes, and refuses in the same words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final, get_args

import msgspec

from ..errors import AdmissionError, ConflictError, NotOwnerError, StaleHeadError
from ..exchange import ConversationBranched, Fact, OriginOpened, RunClosed, RunRedacted
from .backend import Lease

__all__ = [
    "Batch",
    "HeldRun",
    "KINDS",
    "Opening",
    "check_ended",
    "check_forget",
    "check_head",
    "check_no_owner",
    "check_owner",
    "check_presence",
    "check_source",
    "require_batch",
]

KINDS: Final[frozenset[type]] = frozenset(get_args(Fact))
"""Every kind of fact there is."""

Opening = OriginOpened | ConversationBranched | RunRedacted
"""What may be a run's first fact. The last two are all of it: they open and end."""

_WHOLE: Final = (ConversationBranched, RunRedacted)


class Batch(msgspec.Struct, frozen=True):
    """Facts of one run that are written together.

    Attributes:
        opened: the fact that opens the run, where the batch does. closed: the one that ends it, where it does.
    """

    run_id: str
    facts: tuple[Fact, ...]
    opened: Opening | None
    closed: RunClosed | ConversationBranched | RunRedacted | None


def require_batch(facts: Sequence[Fact]) -> Batch:
    """Check that these are facts of one run, of which only the first may open it; keep a copy.

    Raises:
        AdmissionError: they are not. Says at which.
    """
    kept = tuple(facts)
    opened = closed = None
    for at, fact in enumerate(kept):
        kind = type(fact)
        if kind not in KINDS:
            raise AdmissionError(f"$[{at}]", f"expected a fact, got {kind.__name__}")
        if fact.run_id != kept[0].run_id:
            raise AdmissionError(f"$[{at}].run_id", "expected facts of one run")
        if kind is OriginOpened or kind in _WHOLE:
            if at:
                raise AdmissionError(f"$[{at}]", "expected the origin only as a batch's first fact")
            opened = fact
        if kind is RunClosed or kind in _WHOLE:
            closed = fact
    if not kept:
        raise AdmissionError("$", "expected at least one fact")
    if type(kept[0]) in _WHOLE and len(kept) > 1:
        raise AdmissionError("$[1]", "expected nothing beside a fact that is a whole run")
    return Batch(kept[0].run_id, kept, opened, closed)  # type: ignore[arg-type]  # narrowed by kind


def check_presence(batch: Batch, *, there: bool) -> None:
    """A batch that opens a run needs it absent, any other needs it there.

    Raises:
        ConflictError: it is not so.
    """
    if there is (batch.opened is not None):
        rule = "expected a run that is not there yet" if there else "expected a run that is there"
        raise ConflictError(f"run {batch.run_id!r}", rule)


def check_ended(run_id: str, *, ended: bool | None) -> None:
    """A run may be redacted, or forgotten, when it has ended.

    Args:
        ended: None when it is not there.

    Raises:
        ConflictError: it has not, or is not there.
    """
    if not ended:
        got = "none" if ended is None else "one that goes on"
        raise ConflictError(f"run {run_id!r}", f"expected a run that ended, got {got}")


class HeldRun(msgspec.Struct, frozen=True):
    """A run as a medium has it when it is to be forgotten."""

    run_id: str
    conversation: str | None
    ended: bool


def check_forget(
    run_ids: Collection[str], held: Sequence[HeldRun], branches: Iterable[ConversationBranched], *, unfinished: bool
) -> None:
    """Runs may be forgotten that ended, with all of their conversation, when nothing that stays goes on from it.

    Args:
        run_ids: those to be forgotten. held: of these the ones that are there, and every run of their
            conversations. branches: every branch that is there, of any conversation.
        unfinished: whether those that have not ended may be forgotten too.

    Raises:
        ConflictError: it is not so; names what is in the way.
    """
    ours = [run for run in held if run.run_id in run_ids]
    for run in ours:
        check_ended(run.run_id, ended=run.ended or unfinished)
    for run in held:
        if run.run_id not in run_ids:
            rule = f"expected all its runs to be forgotten, got run {run.run_id!r} besides"
            raise ConflictError(f"conversation {run.conversation!r}", rule)
    names = {run.conversation for run in ours}
    for branched in branches:
        if branched.source in names and branched.run_id not in run_ids:
            rule = f"expected no branch of it, got conversation {branched.conversation!r}"
            raise ConflictError(f"conversation {branched.source!r}", rule)


def check_source(opened: ConversationBranched, openings: Iterable[Fact]) -> None:
    """A branch may be made from an exchange whose run is there.

    Args:
        openings: the first fact of each run of its source.

    Raises:
        ConflictError: the source is not there, or another one of its name; it was forgotten meanwhile.
    """
    origin = opened.continues.origin_id
    if not any(isinstance(fact, OriginOpened | RunRedacted) and fact.origin_id == origin for fact in openings):
        rule = f"expected the run with origin {origin!r} that its branch goes on from, got none"
        raise ConflictError(f"conversation {opened.source!r}", rule)


def check_owner(run_id: str, *, token: int | None, held: Lease | None) -> None:
    """Only the run's last owner may write, or anyone while nobody ever owned it.

    Args:
        token: the writer's. held: the run's lease, expired or not; None without one.

    Raises:
        NotOwnerError: the tokens differ; says who the owner is and for how long still.
    """
    got = "one without a lease" if token is None else f"token {token}"
    if held is None:
        if token is not None:
            raise NotOwnerError(f"run {run_id!r}", f"expected a writer without a lease, got {got}")
    elif token != held.token:
        rule = f"expected the owner with token {held.token}, got {got}"
        left = max(0.0, held.seconds_left)
        raise NotOwnerError(f"run {run_id!r}", rule, owner=held.owner, seconds_left=left)


def check_no_owner(run_id: str, *, owner: str, seconds_left: float) -> None:
    """A run is free when its last owner's lease has run out.

    Raises:
        NotOwnerError: it has not; says who the owner is and for how long still.
    """
    if seconds_left > 0:
        rule = f"expected a run that nobody owns, got one of {owner!r} for {seconds_left:.3f} s more"
        raise NotOwnerError(f"run {run_id!r}", rule, owner=owner, seconds_left=seconds_left)


def check_head(conversation: str, *, after: str | None, newest: str, ended: bool) -> None:
    """A run may be opened on a conversation that stands where its opener believes, and is at rest.

    Args:
        after: the newest run as the opener knows it, "" for none; None asks for no check.
        newest: the newest run there is, "" for none. ended: whether that one has ended.

    Raises:
        StaleHeadError: it stands elsewhere; names both runs.
    """
    if after is None or (newest == after and ended):
        return
    got = f"run {newest!r}" if newest else "none"
    rule = f"expected its newest run to be {after!r}, got {got}" if newest != after else f"expected {got} to have ended"
    raise StaleHeadError(conversation, after, newest, rule)
