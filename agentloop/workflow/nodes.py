"""What a workflow is made of: nodes, and the routes that lead from one to the next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from ..admission import is_unicode
from ..errors import InputError
from ..limits import check_name
from ..tools.definition import is_async
from .context import NodeContext

__all__ = ["Guard", "Handler", "Node", "Route"]

Handler = Callable[[Any, NodeContext], Awaitable[Mapping[str, Any] | None] | Mapping[str, Any] | None]
"""What a node does: gets the state to read and its context; returns a patch of the state, or None for none."""

Guard = Callable[[Any], bool]
"""Whether a route is taken, as a function of the state; sync, and exactly a bool (R295)."""


class Route(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Where a workflow goes from a node that ended well.

    Attributes:
        to: id of the node that comes next; or
        complete: the workflow's result: a value, None included, or a sync function of the state that returns it.
        when: whether this route is taken, see `Guard`; None is always, so nothing may come after it.
        label: what a drawing says beside it; by default the guard's name, its underscores as spaces.

    Raises:
        InputError: a value of another type; both of ``to`` and ``complete``, or none; an async function.
    """

    to: str | None = None
    complete: Any = UNSET
    when: Guard | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if (self.to is None) == (self.complete is UNSET):
            got = "none of them" if self.to is None else "both"
            raise InputError(f"Route: expected either to= or complete=, got {got}")
        if self.to is not None:
            check_name("Route.to", self.to)
        if self.when is not None and not callable(self.when):
            raise InputError(f"Route.when: expected a function of the state or None, got {type(self.when).__name__}")
        for name in ("when", "complete"):
            if callable(getattr(self, name)) and is_async(getattr(self, name)):
                raise InputError(f"Route.{name}: expected a sync function, got an async one")
        if self.label is not None:
            _check_text("Route.label", self.label)

    @property
    def text(self) -> str:
        """What a drawing says beside it; empty for nothing."""
        if self.label is not None:
            return self.label
        name = getattr(self.when, "__name__", "")
        return "" if self.when is None else "when" if name in ("", "<lambda>") else str(name).replace("_", " ").strip()


class Node(msgspec.Struct, frozen=True, eq=False):
    """One step of a workflow.

    Attributes:
        id: 1 to 128 characters, unique in the workflow.
        description: for people, in drawings.
        run: what it does, see `Handler`, sync or async; a sync one must not block. None does nothing, and only chooses
            a route.
        starts_round: entering it begins the next of the engine's bounded rounds.
        requires: fields of the state that must be there before it runs: not None, not `msgspec.UNSET`.
        provides: fields that it may patch; each that it leaves out of its patch must be there already.
        on_error: id of the node that comes next where ``run`` raised; it reads the error as ``context.error``. Nothing
            of the patch is kept then. Never taken for a cancel or a broken contract, see `agentloop.workflow.walk`.
        routes: tried in order; the first one whose guard says so is taken.

    Raises:
        InputError: a value of another type, by name.
    """

    id: str
    description: str
    run: Handler | None = None
    starts_round: bool = False
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    on_error: str | None = None
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        check_name("Node.id", self.id)
        where = f"Node {self.id!r}"
        _check_text(f"{where}.description", self.description)
        if self.run is not None and not callable(self.run):
            raise InputError(f"{where}.run: expected a function or None, got {type(self.run).__name__}")
        if type(self.starts_round) is not bool:
            raise InputError(f"{where}.starts_round: expected bool, got {type(self.starts_round).__name__}")
        for name, kind in (("requires", str), ("provides", str), ("routes", Route)):
            given = getattr(self, name)
            if type(given) is not tuple or any(type(one) is not kind for one in given):
                raise InputError(f"{where}.{name}: expected a tuple of {kind.__name__}, got {_kinds(given)}")
        if self.on_error is not None:
            check_name(f"{where}.on_error", self.on_error)


def _check_text(name: str, value: object) -> None:
    if type(value) is not str or not is_unicode(value):
        got = "text that UTF-8 cannot encode" if type(value) is str else type(value).__name__
        raise InputError(f"{name}: expected text, got {got}")


def _kinds(given: object) -> str:
    if type(given) is not tuple:
        return type(given).__name__
    return "a tuple of " + ", ".join(sorted({type(one).__name__ for one in given}))
