"""The wait before a request is sent once more."""

from __future__ import annotations

import math

from ..events import ResendScheduled
from .resend import Resend
from .scope import Scope

__all__ = ["rest"]


async def rest(scope: Scope, resend: Resend) -> None:
    """Tell who is asked next, and wait. Nothing is under way meanwhile, so whatever ends the run ends it."""
    seconds = resend.at_least + scope.random() * (resend.at_most - resend.at_least)
    scope.emitter.process(
        ResendScheduled,
        resend.attempt_id,
        attempt_id=resend.attempt_id,
        code=resend.code,
        delay_ms=math.ceil(seconds * 1000),
        model=scope.provider.model,
    )
    if seconds:
        await scope.sleep(seconds)
