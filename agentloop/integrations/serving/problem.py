"""What went wrong with a request, as its client is told: a status, a stable word, a sentence, facts."""

from __future__ import annotations

import asyncio
import math
import re
from typing import Any, Final

import msgspec

from ...error_info import error_info
from ...errors import (
    AgentLoopError,
    ConflictError,
    InputError,
    LimitExceeded,
    LostError,
    ModelPending,
    NotOwnerError,
    OutcomeError,
    PersistenceError,
    RestoreError,
    UnsettledError,
)

__all__ = ["OWN_ENDS", "Problem", "problem_of"]

OWN_ENDS: Final = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""What ends the task that answers a request, or the process.

Whatever else a run ends with is told of it, also what is no `Exception`: a tool may raise that too, as panics of
extension modules are. An answer that broke off instead would invite its client to come back for ever, or to ask again.
"""

_KEY: Final = re.compile(r"\b[0-9a-f]{32}\.(?=[\w-])")
"""What the stored names of a user's things begin with, which no client knows."""


class Problem(Exception):
    """A request that is answered with an error.

    Attributes:
        status: of the answer, 400 to 599.
        code: a short stable word for programs. message: what was expected and what came; no body and no key.
        retry_after: seconds after which the client may ask again; None says nothing.
        facts: more members of the answer's error object.
        headers: more headers of the answer.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        retry_after: float | None = None,
        facts: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, code, message)
        self.status, self.code, self.message = status, code, message
        self.retry_after, self.facts, self.headers = retry_after, facts or {}, headers or {}
        if retry_after is not None:
            self.headers = {**self.headers, "Retry-After": str(max(1, math.ceil(retry_after)))}

    def body(self) -> bytes:
        """``{"error": {"code": …, "message": …}}``, with the facts."""
        return msgspec.json.encode({"error": {"code": self.code, "message": self.message, **self.facts}})


def problem_of(error: AgentLoopError) -> Problem:
    """An error of the runtime as its client is told."""
    info = error_info(error)
    message = _KEY.sub("", str(error))
    facts = {} if info.limit is None else {"limit": info.limit}
    match error:
        case LostError():
            return Problem(404, "not_found", "expected the ids of a conversation and a turn that are kept, got others")
        case NotOwnerError():
            return Problem(409, info.code, message, retry_after=error.seconds_left)
        case ConflictError() | UnsettledError() | RestoreError() | OutcomeError() | ModelPending():
            return Problem(409, info.code, message, facts=facts)
        case LimitExceeded():
            return Problem(413, info.code, message, facts=facts)
        case PersistenceError():
            return Problem(503, info.code, "the store cannot be used at the moment", retry_after=5)
        case InputError():
            return Problem(400, info.code, message)
        case _:
            return Problem(500, info.code, message, facts=facts)
