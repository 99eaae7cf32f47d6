"""What a tool is given besides its arguments."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from ..errors import InputError
from .result import clean_text

__all__ = ["PROGRESS_CHARS", "STAGE_CHARS", "SelectionContext", "Spawn", "ToolContext"]

PROGRESS_CHARS: Final = 500
"""Longer progress messages are cut."""

STAGE_CHARS: Final = 128
"""Longest name of a stage."""

D = TypeVar("D")

Spawn = Callable[[Any, Any], Awaitable[Any]]
"""Runs an agent for one call: ``result = await spawn(agent, input)``, an `Agent`, a `RunInput` and a `RunResult`."""


class ToolContext(msgspec.Struct, Generic[D], frozen=True, kw_only=True, eq=False):
    """Injected into a parameter annotated ``ToolContext`` or ``ToolContext[D]``; the model never sees it.

    Attributes:
        deps: what the host passed as ``deps=`` when it started the run.
        run_id, agent: which run, and the agent's name.
        conversation: the conversation's name, None when the run belongs to none.
        tool, call_id: the tool's name and the provider's id of the call.
        effect_id: one key for this call (run, exchange, position), the same when the tool is run
            again: hand it on as an idempotency key (R337). A lookup asks what became of it.
        attempt: 1, or more for a repeated run; a lookup gets that of the execution it asks about.
        spawn: has an agent run for this call, as a child of the run: see `agentloop.delegation`. None
            outside of an agent's loop.
    """

    deps: D
    run_id: str
    agent: str
    tool: str
    call_id: str
    effect_id: str
    conversation: str | None = None
    attempt: int = 1
    on_progress: Callable[[str, float | None], Awaitable[None]] | None = None
    spawn: Spawn | None = None

    async def progress(self, message: str, fraction: float | None = None) -> None:
        """Tell whoever watches the run how far the tool is.

        A tool that runs in a thread calls ``anyio.from_thread.run(ctx.progress, "half way", 0.5)``.

        Args:
            message: shown to people, never to the model; cut to 500 characters.
            fraction: 0 to 1, where known.

        Raises:
            InputError: the message is no str, or the fraction no number from 0 to 1.
        """
        if not isinstance(message, str):
            raise InputError(f"progress: expected a message of type str, got {type(message).__name__}")
        if fraction is not None:
            number: Any = fraction
            if type(number) not in (int, float) or not math.isfinite(number) or not 0 <= number <= 1:
                raise InputError("progress: expected a fraction from 0 to 1")
            fraction = float(number)
        if self.on_progress is not None:
            text = clean_text(message)
            await self.on_progress(text if len(text) <= PROGRESS_CHARS else text[: PROGRESS_CHARS - 1] + "…", fraction)

    def __repr__(self) -> str:
        """Names the call, and leaves out ``deps``, which may hold secrets."""
        return (
            f"ToolContext(run_id={self.run_id!r}, tool={self.tool!r}, call_id={self.call_id!r}, attempt={self.attempt})"
        )


class SelectionContext(msgspec.Struct, frozen=True, kw_only=True):
    """Injected into a parameter of a selection annotated ``SelectionContext``; the model never sees it.

    Attributes:
        stage_id: where in the application the choice is made; in an agent's loop, the agent's name.
        tool: the selection's own name.
    """

    stage_id: str
    tool: str
