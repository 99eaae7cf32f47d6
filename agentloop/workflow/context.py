"""What a node's handler, or a step, is given besides the state."""

from __future__ import annotations

from typing import Any

from ..effects import Signal
from ..errors import InputError
from .ports import AgentPort, ModelPort
from .request import Request, Visit
from .tool_port import ToolPort

__all__ = ["NodeContext"]


class NodeContext:
    """One visit of a node, or one round of a step.

    Hand ``signal`` on to whatever waits inside, and call `check` before each effect of your own: a cancel stops the
    engine's waiting, and cannot stop code that keeps going (R291).

    Attributes:
        round: of the engine's run, from 1. node: id of the node, ``step`` for a step.
        invocation_id: of this visit, in its events.
        error: what the node before raised, where its error led here; None otherwise.
    """

    __slots__ = ("_request", "_visit", "error", "invocation_id", "node", "round")

    def __init__(self, request: Request, visit: Visit, error: Exception | None = None) -> None:
        self._request, self._visit, self.error = request, visit, error
        self.round, self.node, self.invocation_id = visit.round, visit.node, visit.id

    @property
    def deps(self) -> Any:
        """What the host passed as ``deps=``: the application's, and no part of the workflow's state (R299)."""
        return self._request.deps

    @property
    def signal(self) -> Signal:
        """Whether this work is still wanted; cancelled when the run is over, however it ended."""
        return self._request.signal

    def check(self) -> None:
        """Go on, or raise what the run was cancelled with.

        Raises:
            BaseException: the reason, as it is.
        """
        self._request.signal.check()

    @property
    def model(self) -> ModelPort:
        """Model calls, by ``invoke`` and ``prepare``; see `ModelPort`.

        Raises:
            InputError: the engine has no model.
        """
        model = self._request.model
        if model is None:
            raise InputError("context.model: expected an engine with a model, got one that has none")
        return ModelPort(self._request, self._visit, model)

    @property
    def tools(self) -> ToolPort:
        """Tools, by ``call``, which returns a `ToolAnswer`; see `ToolPort`."""
        return ToolPort(self._request, self._visit)

    @property
    def agents(self) -> AgentPort:
        """Agents, by ``run``, each a run of its own on the same budget; see `AgentPort`."""
        return AgentPort(self._request, self._visit)

    def __repr__(self) -> str:
        """Names the visit, and leaves out ``deps``, which may hold secrets."""
        return f"NodeContext(node={self.node!r}, round={self.round})"
