"""Calls that wait for a person, as a host sees them, and what it decides about them.

A call that waits has a reference of its own, which names its run, its place and its digest. Whoever
decides hands that back, so that a decision can meet no other call than the one that was shown.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from .errors import InputError
from .exchange import CHILD, Book, Fact, SlotState, Turn, WaitKind, call_digest, waiting_calls
from .limits import check_name
from .messages import ToolFeedback, ToolResult, require_tool_result

__all__ = [
    "Answer",
    "Approve",
    "CallRef",
    "Decision",
    "Deny",
    "WAITING",
    "WaitingCall",
    "by_run",
    "check_below",
    "joined_kinds",
    "read_decisions",
    "stored",
    "waiting_of",
]

WAITING: Final = "waiting_for_approval"
"""The outcome of a run that is suspended: calls of it wait for a host."""

_REF: Final = functools.cache(
    lambda: re.compile(r"(.+)/(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8}):([0-9a-f]{64})", re.DOTALL)
)


class _Decision(msgspec.Struct, frozen=True, kw_only=True):
    author: str = "host"

    def __post_init__(self) -> None:
        check_name("author", self.author)


class Approve(_Decision, frozen=True):
    """The call may run. It runs when its run is resumed.

    Attributes:
        author: who decides, 1 to 128 characters; stored with the decision.

    Raises:
        InputError: another type or form.
    """


class Deny(_Decision, frozen=True):
    """The call does not run. The model reads that it was denied, and why.

    Attributes:
        reason: for the model; "" gives none.
        author: as of `Approve`.

    Raises:
        InputError: another type or form.
    """

    reason: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.reason) is not str:
            raise InputError(f"Deny.reason: expected str, got {type(self.reason).__name__}")
        require_tool_result(ToolResult.error(self.reason))


class Answer(_Decision, frozen=True):
    """The host has done what the call asks for, or gives its result: its tool does not run here.

    Attributes:
        result: what the model reads: text, which is a success, or a `ToolResult`. It is never cut.
        author: as of `Approve`.

    Raises:
        InputError: another type or form.
    """

    result: str | ToolResult

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.result) is not str and type(self.result) is not ToolResult:
            raise InputError(f"Answer.result: expected str or ToolResult, got {type(self.result).__name__}")
        require_tool_result(self.as_result)

    @property
    def as_result(self) -> ToolResult:
        """The result, text made one."""
        return ToolResult.ok(self.result) if isinstance(self.result, str) else self.result


Decision = Approve | Deny | Answer
"""What a host decides about one call that waits."""


class WaitingCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that waits for a host (`Runtime.decide`, `Runtime.resume`).

    Attributes:
        ref: names the call and its digest; decisions are given by it.
        run: the run's id; of one that an agent does for another run's call, that is its own id. agent,
            conversation: whose it is, and where.
        kind: ``approval``: its tool runs once it is approved. ``external``: its result is given.
        tool, arguments: what the model asked for, the arguments exactly as it wrote them.
        exchange, position: which call. call_id: the provider's id of it.
        digest: hex SHA-256 over the conversation up to the call, the call itself, and its tool as the
            model was shown it.
        at_ms: when it began to wait; None where its record does not tell.
    """

    ref: str
    run: str
    agent: str
    conversation: str | None
    kind: WaitKind
    tool: str
    arguments: str
    exchange: int
    position: int
    call_id: str
    digest: str
    at_ms: int | None


class CallRef(msgspec.Struct, frozen=True):
    """The reference of a call that waits, taken apart."""

    run_id: str
    exchange: int
    position: int
    digest: str

    def __str__(self) -> str:
        return f"{self.run_id}/{self.exchange}.{self.position}:{self.digest}"

    @classmethod
    def read(cls, ref: object) -> CallRef:
        """Take a reference apart.

        Raises:
            InputError: it is none.
        """
        if type(ref) is not str:
            raise InputError(f"decisions: expected the ref of a WaitingCall, a str, got {type(ref).__name__}")
        found = _REF().fullmatch(ref)
        if found is None:
            raise InputError(
                "decisions: expected the ref of a WaitingCall, as Runtime.waiting lists them, got another text"
            )
        return cls(found[1], int(found[2]), int(found[3]), found[4])


def waiting_of(turn: Turn) -> tuple[WaitingCall, ...]:
    """The calls of a run that wait for a host, in call order; those of its child runs are not among them."""
    if turn.closed is not None or turn.last is None:
        return ()
    exchange, found = len(turn.entries) - 1, []
    for position in waiting_calls(turn):
        slot = turn.last.slots[position]
        if slot.code == CHILD:
            continue
        digest = call_digest(turn, exchange, position)
        found.append(
            WaitingCall(
                ref=str(CallRef(turn.run_id, exchange, position, digest)),
                run=turn.run_id,
                agent=turn.opened.agent,
                conversation=turn.opened.conversation,
                kind=cast("WaitKind", slot.code),
                tool=slot.call.name,
                arguments=slot.call.arguments.text,
                exchange=exchange,
                position=position,
                call_id=slot.call.id,
                digest=digest,
                at_ms=slot.waits_since_ms,
            )
        )
    return tuple(found)


def joined_kinds(kinds: Iterable[str]) -> str:
    """For what calls wait, together: "approval", "external" or "approval+external"; of such words, or of one kind."""
    return "+".join(sorted({kind for joined in kinds for kind in joined.split("+") if kind}))


def read_decisions(decisions: object, run_id: str | None = None, *, below: bool = False) -> dict[CallRef, Decision]:
    """Check what a host decides about the calls of one run.

    Args:
        run_id: the run; None takes that of the first reference.
        below: also takes calls of runs whose ids say that they are below it; `check_below` holds them to that.

    Raises:
        InputError: it is no mapping of references to decisions, is empty where no run is named, or names
            calls of another run.
    """
    if not isinstance(decisions, Mapping):
        raise InputError(f"decisions: expected a mapping of refs to decisions, got {type(decisions).__name__}")
    read: dict[CallRef, Decision] = {}
    given: Mapping[Any, Any] = decisions
    for text, decision in given.items():
        ref = CallRef.read(text)
        run_id = ref.run_id if run_id is None else run_id
        if ref.run_id != run_id and not (below and ref.run_id.startswith(f"{run_id}/")):
            raise _another(run_id, ref.run_id)
        if type(decision) not in (Approve, Deny, Answer):
            raise InputError(
                f"decisions: expected Approve, Deny or Answer for call {ref.exchange}.{ref.position}, "
                f"got {type(decision).__name__}"
            )
        read[ref] = decision
    if run_id is None:
        raise InputError("decisions: expected at least one, got none")
    return read


def by_run(decisions: Mapping[CallRef, Decision]) -> dict[str, dict[CallRef, Decision]]:
    """The decisions of each run, the deepest run first."""
    runs = sorted({ref.run_id for ref in decisions}, key=lambda run_id: (-run_id.count("/"), run_id))
    return {run_id: {ref: made for ref, made in decisions.items() if ref.run_id == run_id} for run_id in runs}


async def check_below(run_id: str, above: str, load: Callable[[str], Awaitable[Turn]]) -> None:
    """Hold a run that is named like one below another to what is stored.

    Args:
        load: reads a run.

    Raises:
        LostError: no such run. InputError: it, or one in between, is not done for a call of the run above it.
    """
    ref = run_id
    while ref != above:
        if (await load(ref)).opened.parent != ref:
            raise _another(above, run_id)
        ref = ref.rpartition("/")[0]


def _another(run_id: str, got: str) -> InputError:
    return InputError(f"decisions: expected calls of run {run_id!r}, got one of run {got!r}")


def stored(
    book: Book, turn: Turn, decisions: Mapping[CallRef, Decision], *, at_ms: int, max_bytes: int
) -> tuple[Fact, ...]:
    """The facts that store these decisions, together; none for those that are stored already.

    Args:
        max_bytes: what a result, or a denial, may take with its call id, as JSON.

    Raises:
        LostError, ConflictError, LimitExceeded: as `Waiting.decide_slot`, of any one of them.
    """
    facts: list[Fact] = []
    for ref, decision in decisions.items():
        slot = book.slot(turn, ref.exchange, ref.position)
        state, code, result = _meaning(decision)
        facts += book.decide_slot(
            turn,
            ref.exchange,
            ref.position,
            digest=ref.digest,
            state=state,
            code=code,
            feedback=None if result is None else ToolFeedback.of(slot.call.id, result),
            author=decision.author,
            at_ms=at_ms,
            max_bytes=max_bytes,
        )
    return tuple(facts)


def _meaning(decision: Decision) -> tuple[SlotState, str, ToolResult | None]:
    """What a decision makes of a call: its state, the decision as a word, and what the model reads."""
    if type(decision) is Approve:
        return "open", "approved", None
    if type(decision) is Deny:
        why = f" Reason: {decision.reason}" if decision.reason else ""
        return "skipped", "denied", ToolResult.error(f"This call was denied, and did not run.{why}")
    assert type(decision) is Answer, "a decision is one of three"
    result = decision.as_result
    return ("done" if result.status == "ok" else "failed"), "answered", result
