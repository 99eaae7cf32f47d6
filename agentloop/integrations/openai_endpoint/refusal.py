"""What a client is told of an error: a status, an error object in OpenAI's form, and whether it may repeat the request.

The ``openai`` package repeats a request by itself after 408, 409, 429 and every 5xx, unless the header
``x-should-retry`` says otherwise. A run that had begun may have done what must not be done twice, so every answer
about one says ``false``; where repeating joins the same run, and that goes on elsewhere or later, it says ``true``.

No text of an error is passed on, only its code: what a server or a tool said is for the host.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from ...errors import (
    AgentLoopError,
    CallTimeout,
    ConflictError,
    LimitExceeded,
    NotOwnerError,
    OutcomeError,
    PersistenceError,
    ProviderError,
    RunCancelled,
    RunPaused,
    StreamRefused,
    ToolCrashed,
    UnsettledError,
)

__all__ = ["DRAINING", "NEEDS_PERSON", "RETRACTED", "Refusal", "RequestRefused", "refusal_of"]

_TYPES: Final = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_PAUSED_SECONDS: Final = 5.0


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """An error as its client is told.

    Attributes:
        status: of the answer, where no stream has begun.
        message: what was expected and what came. code: a short stable word for programs, None for none.
        param: the parameter at fault, None where it is none.
        retry_after: seconds after which the client may ask again; None says nothing.
        should_retry: whether a client may repeat the request by itself; None leaves that to it.
    """

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    should_retry: bool | None = None

    @property
    def type(self) -> str:
        """OpenAI's word for errors of this kind."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        headers = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(max(1, math.ceil(self.retry_after)))
        if self.should_retry is not None:
            headers["x-should-retry"] = "true" if self.should_retry else "false"
        return headers

    def body(self) -> bytes:
        """``{"error": {…}}``, the body of the answer, or the data of a stream's last event."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})


class RequestRefused(Exception):
    """A request that is answered with an error. Carries the `Refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


DRAINING: Final = Refusal(
    status=503,
    message="The server stopped before the run had ended.",
    code="draining",
    should_retry=False,
)
"""The answer was cut as the server stops."""

RETRACTED: Final = Refusal(
    status=502,
    message="The model's reply broke off, and what was sent of it does not stand.",
    code="retracted",
    should_retry=False,
)
"""Text that was streamed is taken back."""

NEEDS_PERSON: Final = Refusal(
    status=422,
    message="The agent waits for a person's decision, which cannot be given here. The run was cancelled.",
    code="approval_required",
    should_retry=False,
)
"""The run waits for a host."""


def refusal_of(error: BaseException, *, begun: bool, joins: bool = False) -> Refusal:
    """An error of the runtime, or any other, as the client is told.

    Args:
        begun: whether the run had begun.
        joins: whether the same request sent again joins the same run.
    """
    retry = False if begun else None
    match error:
        case NotOwnerError():
            message = "The run goes on in another process."
            wait = error.seconds_left or _PAUSED_SECONDS
            return _told(409, message, error, retry_after=wait, should_retry=joins)
        case ConflictError() if not begun:
            message = "Idempotency-Key: expected the request that it was first sent with, got another."
            return Refusal(status=409, message=message, code="idempotency_conflict", should_retry=False)
        case RunPaused():
            message = "The server is about to stop, and has left the run unfinished."
            return _told(503, message, error, retry_after=_PAUSED_SECONDS, should_retry=joins)
        case RunCancelled():
            return _told(503, "The run was cancelled.", error, should_retry=retry)
        case UnsettledError():
            return _told(500, "An operator must say what became of an effect of the run.", error, should_retry=False)
        case ProviderError() | StreamRefused() | CallTimeout():
            return _told(502, f"The model could not be asked, or gave no whole reply ({error.code}).", error, retry)
        case ToolCrashed():
            return _told(500, "A tool of the agent failed in a way that it does not declare.", error, retry)
        case LimitExceeded() if error.limit == "item_bytes" and not begun:
            return Refusal(status=413, message=f"messages: {error}", code=error.code, param="messages")
        case LimitExceeded():
            return _told(503, f"A limit of the server was reached ({error.limit}).", error, should_retry=retry)
        case PersistenceError():
            return _told(503, "The server's store cannot be used at the moment.", error, should_retry=retry)
        case OutcomeError():
            return Refusal(status=500, message=f"The run {_ended(error)}.", code=error.reason, should_retry=retry)
        case AgentLoopError():
            return _told(500, f"The run could not be made ({error.code}).", error, should_retry=retry)
        case _:
            return Refusal(status=500, message="The server failed.", code="internal_error", should_retry=retry)


def _told(
    status: int,
    message: str,
    error: AgentLoopError,
    should_retry: bool | None = None,
    *,
    retry_after: float | None = None,
) -> Refusal:
    return Refusal(status=status, message=message, code=error.code, retry_after=retry_after, should_retry=should_retry)


def _ended(error: OutcomeError) -> str:
    """How a run ended of which only that is stored; its reason is a code."""
    return f"ended as {error.outcome} ({error.reason})" if error.reason else f"ended as {error.outcome}"
