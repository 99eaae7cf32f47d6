"""What a call's child run may come to besides a result: it cannot go on now, and so its call cannot end.

A tool may have an agent run for it (`ToolContext.spawn`). That run has facts, effects and a reference of
its own; the call only waits for it. Where the child stops without an end, the call stays as it is; where the
child waits for a host, the call waits for it.
"""

from __future__ import annotations

from ..errors import AgentLoopError

__all__ = ["ChildWaits"]


class ChildWaits(BaseException):
    """The child run has not ended, and goes on later; ``error`` says what it waits for.

    No `Exception`, as it is not for a tool to handle: only the loop knows how a run is left.

    Attributes:
        ref: the child run's id.
        kinds: for what calls of it, or of runs below it, wait for a host: ``approval``, ``external`` or
            ``approval+external``; None where they do not, and it was left for another reason.
    """

    def __init__(self, ref: str, error: AgentLoopError, *, kinds: str | None = None) -> None:
        super().__init__(ref, error)
        self.ref, self.error, self.kinds = ref, error, kinds
