"""Where a run is, as one of four points with the evidence for it: derived from facts, never stored.

    prepared        the origin is stored, and nothing was asked
    model-waiting   a send is claimed, and its reply is not taken in
    tools           a reply is taken in; its calls are answered one by one
    completed       the end of the run is stored

Within one model call a run goes from ``model-waiting`` to ``tools`` and never back; the next call
begins with ``model-waiting`` again. An attempt that failed or was settled stays the run's point
until the next one is claimed or the run's end is stored. A final reply has no calls: it is at
``tools``, with nothing to answer, until the run's end is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .facts import Fact, OriginOpened, RequestRef, RunOutcome, RunRedacted
from .slots import SlotState
from .state import State
from .turn import Turn
from .waiting import waiting_calls

__all__ = [
    "Checkpoint",
    "CompletedPoint",
    "ModelPoint",
    "PreparedPoint",
    "ToolClaim",
    "ToolsPoint",
    "checkpoint_in",
    "checkpoint_of",
]


class _Point(msgspec.Struct, frozen=True, tag_field="point"):
    pass


class PreparedPoint(_Point, frozen=True, tag="prepared"):
    """The origin is stored, and nothing was asked (R132).

    Attributes:
        origin_id, origin_digest: the fixed origin.
        catalogue_digest: of the executable tools that it was opened with.
    """

    origin_id: str
    origin_digest: str
    catalogue_digest: str


class ModelPoint(_Point, frozen=True, tag="model-waiting"):
    """A send is claimed, and its reply is not taken in (R133).

    Attributes:
        request: the origin and the exact prefix that it was given.
        attempt_id: as the server saw it. call_sequence: number of the model call in the run, from 1.
        model: what was asked.
        feedback: how many answers of tools are stored, all of them in the request.
    """

    request: RequestRef
    attempt_id: str
    call_sequence: int
    model: str
    feedback: int


class ToolClaim(msgspec.Struct, frozen=True, kw_only=True):
    """One call that was claimed: its place in the reply, the exact execution, and its state."""

    position: int
    effect_id: str
    state: SlotState


class ToolsPoint(_Point, frozen=True, tag="tools"):
    """A reply is taken in; its calls are answered one by one (R134).

    Attributes:
        exchange: its place in the origin, from 0. attempt_id: the send that brought it.
        cursor: position of the first call without feedback; None when every call has some.
        effects: the calls that were claimed; the first one mostly together with the reply.
        feedback: positions of the calls that have feedback.
        waiting: positions of those that wait for a decision of a host, or for their child runs.
    """

    exchange: int
    attempt_id: str
    cursor: int | None
    effects: tuple[ToolClaim, ...]
    feedback: tuple[int, ...]
    waiting: tuple[int, ...] = ()


class CompletedPoint(_Point, frozen=True, tag="completed"):
    """The end of the run is stored (R135).

    Attributes:
        outcome, reason: how it ended.
        digest: the chain over the origin and all exchanges.
        attempt_id: the send that brought the last reply; None where there is none, or its texts
            were removed.
    """

    outcome: RunOutcome
    reason: str | None
    digest: str
    attempt_id: str | None


Checkpoint = PreparedPoint | ModelPoint | ToolsPoint | CompletedPoint


def checkpoint_of(turn: Turn) -> Checkpoint:
    """The point that a run is at. Reads the state and changes nothing."""
    last, sent = turn.last, turn.sent
    if turn.closed is not None:
        return CompletedPoint(
            outcome=turn.closed.outcome,
            reason=turn.closed.reason,
            digest=turn.digests[-1],
            attempt_id=None if last is None else last.attempt_id,
        )
    if sent is None:
        opened = turn.opened
        return PreparedPoint(
            origin_id=opened.origin_id, origin_digest=opened.digest, catalogue_digest=opened.catalogue_digest
        )
    if last is None or last.attempt_id != sent.attempt_id:
        return ModelPoint(
            request=sent.request,
            attempt_id=sent.attempt_id,
            call_sequence=sent.call_sequence,
            model=sent.model,
            feedback=sum(len(entry.slots) for entry in turn.entries),
        )
    answered = tuple(at for at, slot in enumerate(last.slots) if slot.feedback is not None)
    return ToolsPoint(
        exchange=len(turn.entries) - 1,
        attempt_id=last.attempt_id,
        cursor=next((at for at, slot in enumerate(last.slots) if slot.feedback is None), None),
        effects=tuple(
            ToolClaim(position=at, effect_id=slot.effect_id, state=slot.state)
            for at, slot in enumerate(last.slots)
            if slot.effect_id is not None
        ),
        feedback=answered,
        waiting=waiting_calls(turn),
    )


def checkpoint_in(facts: Iterable[Fact]) -> Checkpoint:
    """The point of one run by its own facts, without the turns that it continues. They are not checked.

    Raises:
        LookupError: they do not fit together.
    """
    state, run_id = State(), ""
    for fact in facts:
        run_id = fact.run_id
        if type(fact) is OriginOpened:  # a point needs none of the history before
            state.install((msgspec.structs.replace(fact, conversation=None, continues=None, context=None),))
        elif type(fact) is RunRedacted:
            state.install((msgspec.structs.replace(fact, conversation=None, continues=None),))
        else:
            state.install((fact,))
    return checkpoint_of(state.turn(run_id))
