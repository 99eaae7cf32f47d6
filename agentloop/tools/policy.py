"""How one tool may be run: its clock, its ceiling, and which of its errors a model may read."""

from __future__ import annotations

import msgspec

from ..errors import InputError
from ..limits import FEEDBACK_BYTES, TOOL_TIMEOUT, check_count, check_seconds

__all__ = ["ToolPolicy"]


class ToolPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contract of a tool's execution.

    Attributes:
        timeout: seconds one execution may take; None is no limit. The clock starts when the tool
            does. After it a tool that is not idempotent has an unknown outcome (R336).
        idempotent: running it twice with the same arguments does no more than running it once.
            Pure computation and reading are; mail, payments and writes elsewhere are not (R335).
        max_output_bytes: ceiling of its result as JSON, in bytes, 256 and up; None takes the
            run's feedback limit. Longer text is cut, with a mark that states its full size.
        errors: exception types whose message a model may read; any other exception than
            `ToolFailed` ends the run (R61, R62). A base class of the project's own errors
            declares none of those: they are declared by their own names only.

    Raises:
        InputError: a value of another type or outside its range, by name.
    """

    timeout: float | None = TOOL_TIMEOUT
    idempotent: bool = False
    max_output_bytes: int | None = None
    errors: tuple[type[Exception], ...] = ()

    def __post_init__(self) -> None:
        if self.timeout is not None:
            check_seconds("ToolPolicy.timeout", self.timeout)
        if type(self.idempotent) is not bool:
            raise InputError(f"ToolPolicy.idempotent: expected a bool, got {type(self.idempotent).__name__}")
        if self.max_output_bytes is not None:
            check_count("ToolPolicy.max_output_bytes", self.max_output_bytes, FEEDBACK_BYTES // 16)
        if type(self.errors) is not tuple:
            raise InputError(f"ToolPolicy.errors: expected a tuple of types, got {type(self.errors).__name__}")
        for at, kind in enumerate(self.errors):
            if not isinstance(kind, type) or not issubclass(kind, Exception):
                raise InputError(f"ToolPolicy.errors[{at}]: expected a subclass of Exception")
