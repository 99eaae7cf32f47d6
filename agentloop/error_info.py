"""Any error as a few facts for programs."""

from __future__ import annotations

import math

import msgspec

from .errors import AgentLoopError, CallTimeout, HTTPStatusError, InputError, LimitExceeded, StreamRefused

__all__ = ["ErrorInfo", "error_info"]


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a program can decide by. Holds no text of the error, so it can be shown and logged.

    Attributes:
        code: the error's own ``code`` (``BUDGET`` of a `BudgetError`). Of others ``cancelled``,
            ``interrupted`` (KeyboardInterrupt, SystemExit), ``timeout`` or ``error``.
        kind: name of its class.
        may_have_been_processed: whether the effect may already have happened; of an error that is not
            ours nobody knows, so it may.
        retry_after: seconds to wait as a server asked, 0.0 and up; None when it did not say.
        limit: name of the limit that was reached, None where it is about none.
    """

    code: str
    kind: str
    may_have_been_processed: bool
    retry_after: float | None = None
    limit: str | None = None


def error_info(error: BaseException) -> ErrorInfo:
    """The facts of any error.

    Raises:
        InputError: ``error`` is no exception.
    """
    if not isinstance(error, BaseException):
        raise InputError(f"error_info: expected an exception, got {type(error).__name__}")
    kind = type(error).__name__
    if not isinstance(error, AgentLoopError):
        return ErrorInfo(code=_foreign_code(error), kind=kind, may_have_been_processed=True)
    return ErrorInfo(
        code=error.code,
        kind=kind,
        may_have_been_processed=error.may_have_been_processed,
        retry_after=_retry_after(error),
        limit=error.limit if isinstance(error, LimitExceeded | CallTimeout | StreamRefused) else None,
    )


def _foreign_code(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "interrupted"
    # an event loop's cancel is known by its name: this layer knows no event loop
    if not isinstance(error, Exception) and any(base.__name__ == "CancelledError" for base in type(error).__mro__):
        return "cancelled"
    return "error"


def _retry_after(error: AgentLoopError) -> float | None:
    seconds = error.retry_after if isinstance(error, HTTPStatusError) else None
    return None if seconds is None or not 0 <= seconds < math.inf else float(seconds)
