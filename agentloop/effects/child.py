"""What a call's child run may come to besides a result: it cannot go on now, and so its call cannot end.

A tool may have an agent run for it (`ToolContext.spawn`). That run has facts, effects and a reference of
its own; the call only waits for it. Where the child stops without an end, the call stays as it is.
"""

from __future__ import annotations

from ..errors import AgentLoopError

__all__ = ["ChildWaits"]


class ChildWaits(BaseException):
    """The child run has not ended, and goes on later; ``error`` says what it waits for.

    No `Exception`, as it is not for a tool to handle: only the loop knows how a run is left.
    """

    def __init__(self, error: AgentLoopError) -> None:
        super().__init__(error)
        self.error = error
