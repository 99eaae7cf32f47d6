"""How one tool may be run: its clock, its ceiling, how it is recovered, and which of its errors a model may read."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..errors import InputError
from ..limits import FEEDBACK_BYTES, TOOL_GRACE, TOOL_RETRIES, TOOL_TIMEOUT, check_count, check_seconds
from .context import ToolContext
from .recovery import Lookup, RecoveryKind

__all__ = ["ApprovalKind", "NeedsApproval", "ToolPolicy", "external_policy", "selection_policy"]

NeedsApproval = Callable[[dict[str, Any], ToolContext[Any]], bool]
"""Says of one call whether it needs an approval; sync and pure."""

ApprovalKind = Literal["none", "required", "predicate"]


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contract of a tool's execution.

    Attributes:
        timeout: seconds one execution may take; None is no limit. The clock starts when the tool
            does. After it a tool that is not idempotent has an unknown outcome (R336). A `TimeoutError`
            that the tool raises is the tool's own error, never this clock.
        grace: seconds an execution has to end after ``timeout``, or, of an async tool, after its run was
            cancelled. An async tool is cancelled before them. A sync tool cannot be stopped: Python has no
            way to end a thread, so it is only waited for. What has not ended then is left over: its call
            is answered, and no other tool of the run, or of its conversation, begins before it has ended
            (`Runtime.left_over`). A value that comes within them counts as one in time.
        idempotent: running it twice with the same arguments does no more than running it once.
            Pure computation and reading are; mail, payments and writes elsewhere are not (R335).
        retries: how often an execution that ran out of time is repeated, with the same ``effect_id``, 0
            and up; None is 3 for an idempotent tool and 0 for another one, which may not have any
            (R331, R332, R334). Each is a started call of every budget. An error that the tool raised or
            returned is never a reason (R333), and what is left over is not overlapped by a repetition.
        max_calls: how often it may be started in one run, repetitions included, 1 and up; None is no
            limit of its own. A call over it is refused with feedback that says so, and the run goes on.
        max_output_bytes: ceiling of its result as JSON, in bytes, 256 and up; None takes the
            run's feedback limit. Longer text is cut, with a mark that states its full size; in a run it
            is kept whole besides, where there is room (`Runtime.output`).
        errors: exception types whose message a model may read; any other exception than
            `ToolFailed` ends the run (R61, R62). A base class of the project's own errors
            declares none of those: they are declared by their own names only.
        recovery: what happens to a call whose process died while the tool ran. ``"repeat"``: it
            runs again with the same ``effect_id``; needs ``idempotent``, which alone states as
            much. ``"settle"``: a host says what became of it (`Runtime.settle_call`). A function:
            it asks the resource what became of ``ctx.effect_id``; it takes the tool's own
            parameters, and returns what the tool would have returned, or `NOT_DONE`. None: not
            stated; such a call waits for a host.
        coerce: whether arguments whose JSON types do not fit the schema are converted where their meaning
            is beyond doubt: ``"3"`` for an integer, ``12`` for a string, a string that holds an object
            for an object (`agentloop.tools.coercion`). What was converted is stored and told.
        approval: whether a call waits for a person before it runs in an agent's loop. None: it does not.
            ``"required"``: every call does. A function: those of which it returns True. It is called with
            the arguments, as the tool takes them, and a `ToolContext`. It is sync, returns exactly a bool,
            and may be asked more than once about a call, so it must be pure: the same answer for the same
            arguments, without an effect. What it raises ends the run (`ApprovalFailed`), and the call
            does not run. A call is asked about once a reply is stored; an approved one is not asked again.

    Raises:
        InputError: a value of another type or outside its range, by name.
    """

    timeout: float | None = TOOL_TIMEOUT
    grace: float = TOOL_GRACE
    idempotent: bool = False
    retries: int | None = None
    max_calls: int | None = None
    max_output_bytes: int | None = None
    errors: tuple[type[Exception], ...] = ()
    recovery: Literal["repeat", "settle"] | Lookup | None = None
    coerce: bool = False
    approval: Literal["required"] | NeedsApproval | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_seconds("ToolPolicy.timeout", self.timeout)
        for name in ("idempotent", "coerce"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise InputError(f"ToolPolicy.{name}: expected a bool, got {type(value).__name__}")
        check_seconds("ToolPolicy.grace", self.grace)
        if self.retries is not None:
            check_count("ToolPolicy.retries", self.retries, 0)
            if self.retries and not self.idempotent:
                raise InputError(
                    f"ToolPolicy.retries: expected idempotent=True with more than 0, got {self.retries} of a tool "
                    "that is not"
                )
        if self.max_calls is not None:
            check_count("ToolPolicy.max_calls", self.max_calls, 1)
        if self.max_output_bytes is not None:
            check_count("ToolPolicy.max_output_bytes", self.max_output_bytes, FEEDBACK_BYTES // 16)
        if type(self.errors) is not tuple:
            raise InputError(f"ToolPolicy.errors: expected a tuple of types, got {type(self.errors).__name__}")
        for at, kind in enumerate(self.errors):
            if not isinstance(kind, type) or not issubclass(kind, Exception):
                raise InputError(f"ToolPolicy.errors[{at}]: expected a subclass of Exception")
        if self.approval is not None and self.approval != "required" and not callable(self.approval):
            got = repr(self.approval[:80]) if type(self.approval) is str else type(self.approval).__name__
            raise InputError(f"ToolPolicy.approval: expected None, 'required' or a function, got {got}")
        if callable(self.approval) and inspect.iscoroutinefunction(self.approval):
            raise InputError("ToolPolicy.approval: expected a function that is sync, got an async one")
        if callable(self.approval):
            try:
                inspect.signature(self.approval).bind({}, None)
            except (TypeError, ValueError) as error:
                rule = f"expected a function that takes the arguments and a ToolContext: {error}"
                raise InputError(f"ToolPolicy.approval: {rule}") from error
        if self.recovery is None or callable(self.recovery):
            return
        if self.recovery not in ("repeat", "settle"):
            got = repr(self.recovery[:80]) if type(self.recovery) is str else type(self.recovery).__name__
            raise InputError(f"ToolPolicy.recovery: expected None, 'repeat', 'settle' or a function, got {got}")
        if self.recovery == "repeat" and not self.idempotent:
            raise InputError("ToolPolicy.recovery: expected idempotent=True with 'repeat', got a tool that is not")

    @property
    def stated_retries(self) -> int | None:
        """How often it is repeated, where that is another number than by default."""
        return None if self.most_retries == (TOOL_RETRIES if self.idempotent else 0) else self.retries

    @property
    def most_retries(self) -> int:
        """How often an execution that ran out of time is repeated."""
        if self.retries is None:
            return TOOL_RETRIES if self.idempotent else 0
        return self.retries

    @property
    def recovery_kind(self) -> RecoveryKind:
        """How a call is recovered, as a word; ``none`` where nothing is stated."""
        if callable(self.recovery):
            return "lookup"
        return self.recovery or ("repeat" if self.idempotent else "none")

    @property
    def approval_kind(self) -> ApprovalKind:
        """Which calls need an approval, as a word."""
        if callable(self.approval):
            return "predicate"
        return self.approval or "none"


def selection_policy(
    *, errors: tuple[type[Exception], ...], max_output_bytes: int | None, coerce: bool = False
) -> ToolPolicy:
    """The policy of a selection: it has no effect, so it may be built again, and it has no clock.

    Raises:
        InputError: as `ToolPolicy`.
    """
    return ToolPolicy(timeout=None, idempotent=True, errors=errors, max_output_bytes=max_output_bytes, coerce=coerce)


def external_policy() -> ToolPolicy:
    """The policy of an external tool: nothing of it runs here, and a host says what became of a call."""
    return ToolPolicy(timeout=None, recovery="settle")
