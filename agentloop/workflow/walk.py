"""How a workflow runs: one node after the other, each in an order that is always the same (R297).

    what it requires is there -> its handler -> still wanted, and provided -> the patch is in the state
                              -> the first route whose guard says so

An error of a handler goes to the node that ``on_error`` names, with the state as it was before. Never taken there are
a cancel, whatever the handler raised when it met one, and what is no matter of business: a broken contract
(`WorkflowError`), a budget or limit (`LimitExceeded`), a store that stopped (`PersistenceError`), and a run or
call that somebody else ended, that goes on elsewhere, or that waits for a host (R298). An agent that reached a limit
is one of these where the workflow's budget, or one above it, has nothing left of that; a limit of the agent's own is
not. A group of errors is none of these where none of its members is. What guards and results raise is the
definition's own fault and passes through as it is.

Whether the run is wanted is asked before a node begins and before its patch is taken. Routes come after that: a cancel
by a guard is met before the next node, and a route that completes, for which nothing more waits, completes.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from ..decisions import WAITING
from ..effects import Ledger, Resource
from ..errors import (
    BudgetError,
    LimitExceeded,
    ModelPending,
    OutcomeError,
    PersistenceError,
    RunCancelled,
    RunPaused,
    ToolDefinitionError,
    UnsettledError,
    WorkflowError,
)
from .context import NodeContext
from .definition import Workflow
from .nodes import Node, Route
from .outcomes import Complete, Continue
from .request import STEP, Request, Visit

__all__ = ["Step", "Walk", "walk_steps"]

S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R")
T = TypeVar("T")

Step = Callable[[int, NodeContext], Awaitable[Continue | Complete[T]] | Continue | Complete[T]]
"""A round written by hand: gets its number, from 1, and its context."""

_PROTECTED: Final = (
    WorkflowError,
    LimitExceeded,
    PersistenceError,
    RunCancelled,
    RunPaused,
    ModelPending,
    ToolDefinitionError,
    UnsettledError,
)

_RESOURCES: Final[dict[str | None, Resource]] = {
    "max_model_calls": "model_calls",
    "max_tool_calls": "tool_calls",
    "max_tokens": "tokens",
}
"""What a run had none left of that ended with this limit."""


class Walk(Generic[S, R]):
    """One run of a workflow.

    Attributes:
        state: as it was committed last.
    """

    __slots__ = ("_max_rounds", "_request", "_workflow", "state")

    def __init__(self, workflow: Workflow[S, R], request: Request, state: S, max_rounds: int) -> None:
        self._workflow, self._request, self._max_rounds = workflow, request, max_rounds
        self.state = state

    async def go(self) -> R:
        """Walk from the start to a result.

        Raises:
            BudgetError: ``max_rounds``: one more round would begin.
            WorkflowError: a part of the workflow broke its contract. Exception: what a handler raised.
            BaseException: what the run was cancelled with.
        """
        nodes = self._workflow.nodes
        node, number = nodes[self._workflow.start], 1
        error: Exception | None = None
        while True:
            visit, error = await self._visit(node, number, error)
            if error is not None:
                assert node.on_error is not None, "an error without a route is raised"
                self._request.route(visit, None, node.on_error)
                node = nodes[node.on_error]
            else:
                at, route = self._route(node)
                if route.to is None:
                    value = self._result(node, at, route)
                    self._request.route(visit, at, None)
                    return value
                self._request.route(visit, at, route.to)
                node = nodes[route.to]
            if node.starts_round:
                number = _next_round(number, self._max_rounds)

    async def _visit(self, node: Node, number: int, before: Exception | None) -> tuple[Visit, Exception | None]:
        """Run one node; return the error that its ``on_error`` takes, None where it ended well."""
        request, kind = self._request, self._workflow.state
        request.signal.check()
        visit = request.enter(node.id, number)
        try:
            missing = kind.missing(self.state, node.requires)
            if missing:
                rule = f"expected the state to have {', '.join(node.requires)}, got none for {', '.join(missing)}"
                raise WorkflowError("missing_field", node.id, rule)
            patch: object = None
            if node.run is not None:
                try:
                    patch = await _answer(node.run(self.read(), NodeContext(request, visit, before)))
                except Exception as error:
                    if visit.over:
                        request.leave(visit, error)
                    request.signal.check()
                    if node.on_error is None or _is_protected(error, request.ledger):
                        raise
                    request.leave(visit, error)
                    return visit, error
            request.signal.check()
            self.state = kind.patched(self.state, patch, node.provides, node.id)
        except BaseException as error:
            request.leave(visit, error)
            raise
        request.leave(visit)
        return visit, None

    def read(self) -> S:
        """The state for one reader."""
        return self._workflow.state.read(self.state)

    def _route(self, node: Node) -> tuple[int, Route]:
        for at, route in enumerate(node.routes):
            if route.when is None or _bool(route.when(self.read()), node.id, f"routes[{at}].when"):
                return at, route
        raise WorkflowError(
            "no_route",
            node.id,
            "expected one of its guards to say yes, got none; a last route without when= takes what is left",
        )

    def _result(self, node: Node, at: int, route: Route) -> R:
        value = route.complete
        if callable(value):
            value = value(self.read())
            _refuse_awaitable(value, node.id, f"routes[{at}].complete: expected a value")
        is_result = self._workflow.is_result
        if is_result is not None and not _bool(is_result(value), node.id, "is_result"):
            rule = f"expected a value that is_result takes, got one of type {type(value).__name__}"
            raise WorkflowError("not_a_result", node.id, rule)
        return cast("R", value)


async def walk_steps(step: Step[T], request: Request, max_rounds: int) -> T:
    """Call a step, round after round, until it completes.

    Raises:
        BudgetError: ``max_rounds``. WorkflowError: ``bad_outcome``. Otherwise what the step raised.
    """
    number = 1
    while True:
        visit = request.enter(STEP, number)
        try:
            outcome: object = await _answer(step(number, NodeContext(request, visit)))
            request.signal.check()
            if type(outcome) is not Continue and type(outcome) is not Complete:
                rule = f"step: expected Continue() or Complete(value), got {type(outcome).__name__}"
                raise WorkflowError("bad_outcome", "", rule)
        except BaseException as error:
            request.leave(visit, error)
            raise
        request.leave(visit)
        if type(outcome) is Complete:
            return cast("T", outcome.value)
        number = _next_round(number, max_rounds)


def _next_round(number: int, max_rounds: int) -> int:
    if number >= max_rounds:
        raise BudgetError("max_rounds", max_rounds, number + 1)
    return number + 1


async def _answer(value: Any) -> Any:
    """What a handler returned, awaited where it is to be."""
    return await value if inspect.isawaitable(value) else value


def _bool(answer: object, node: str, where: str) -> bool:
    _refuse_awaitable(answer, node, f"{where}: expected True or False")
    if type(answer) is not bool:
        raise WorkflowError("bad_guard", node, f"{where}: expected True or False, got {type(answer).__name__}")
    return answer


def _refuse_awaitable(value: object, node: str, where: str) -> None:
    """Refuse what is to be awaited, and close it where it is a coroutine, since nobody will."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise WorkflowError("bad_guard", node, f"{where} at once, got an awaitable")


def _is_protected(error: BaseException, ledger: Ledger) -> bool:
    """Whether no error route takes it.

    Args:
        ledger: the budget of the workflow's run.
    """
    left = [error]
    while left:  # groups are as deep as somebody nests them
        one = left.pop()
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
        elif isinstance(one, OutcomeError):
            if _is_outcome_protected(one, ledger):
                return True
        elif isinstance(one, _PROTECTED) or not isinstance(one, Exception):
            return True
    return False


def _is_outcome_protected(error: OutcomeError, ledger: Ledger) -> bool:
    if error.outcome == WAITING:  # a run that waits for a host has not ended
        return True
    resource = _RESOURCES.get(error.reason) if error.outcome == "limit_reached" else None
    return resource is not None and ledger.left(resource) == 0
