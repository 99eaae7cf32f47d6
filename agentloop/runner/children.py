"""Parts of one request on one budget: how many runners there may be below a root, and tasks that share it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from ..effects import Bound, Signal, settle
from ..errors import BudgetError, InputError
from ..limits import CHILD_CONCURRENT_CALLS, CHILD_COUNT, CHILD_DEPTH, check_count

__all__ = ["ChildLimits", "Family", "run_children"]

T = TypeVar("T")


class ChildLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all runners below one root share; fixed at the root (R280, R281).

    Attributes:
        max_depth: how deep children may be, the root being at 0; 0 and up, where 0 allows none.
        max_concurrent_calls: model calls of children at a time, 1 and up; further ones wait, in order.
        max_children: how many there may ever be, 0 and up; one that ended makes no room for another.

    Raises:
        InputError: a value that is no integer in its range, by name.
    """

    max_depth: int = CHILD_DEPTH
    max_concurrent_calls: int = CHILD_CONCURRENT_CALLS
    max_children: int = CHILD_COUNT

    def __post_init__(self) -> None:
        check_count("ChildLimits.max_depth", self.max_depth, 0)
        check_count("ChildLimits.max_concurrent_calls", self.max_concurrent_calls, 1)
        check_count("ChildLimits.max_children", self.max_children, 0)


class _Root:
    """What the runners of one tree share."""

    __slots__ = ("born", "limits", "turns")

    def __init__(self, limits: ChildLimits) -> None:
        self.limits, self.born = limits, 0
        self.turns = asyncio.Semaphore(limits.max_concurrent_calls)  # first come, first served


class Family:
    """The place of one runner in the tree of its root.

    Attributes:
        depth: 0 for the root.
    """

    __slots__ = ("_root", "depth")

    def __init__(self, limits: ChildLimits) -> None:
        self._root, self.depth = _Root(limits), 0

    @property
    def turn(self) -> asyncio.Semaphore | None:
        """What a call waits for; None at the root, whose own calls do not wait for those of children."""
        return self._root.turns if self.depth else None

    def check(self) -> None:
        """Refuse one more child where there is no place for it; takes none.

        Raises:
            BudgetError: ``children.max_depth`` or ``children.max_children``.
        """
        limits = self._root.limits
        if self.depth >= limits.max_depth:
            raise BudgetError("children.max_depth", limits.max_depth, self.depth + 1)
        if self._root.born >= limits.max_children:
            raise BudgetError("children.max_children", limits.max_children, self._root.born + 1)

    def below(self) -> Family:
        """The place of one more child; it is never given back.

        Raises:
            BudgetError: as `check`.
        """
        self.check()
        self._root.born += 1
        place = Family.__new__(Family)
        place._root, place.depth = self._root, self.depth + 1
        return place


async def run_children(tasks: Sequence[Callable[[], Awaitable[T]]], *, max_concurrent: int) -> list[T]:
    """Run tasks side by side, at most so many at a time, and return their results in their order (R283).

    Structured: when it returns or raises, none of them goes on. The first failure cancels the others,
    also those that have not begun, and is raised as itself.

    Args:
        tasks: functions without arguments that return an awaitable, each with its own `ModelRunner.child` for
            instance.
        max_concurrent: 1 and up.

    Raises:
        InputError: a task is no function, or the number is out of range; nothing was begun, and coroutines
            that were handed over in place of functions are closed. Or a function returned no awaitable,
            which is a failure as any other.
        asyncio.CancelledError: the caller was cancelled, or a task raised it of its own.
        Exception: the first failure.
    """
    check_count("max_concurrent", max_concurrent, 1)
    if isinstance(tasks, str) or not isinstance(tasks, Sequence):
        raise InputError(f"tasks: expected a sequence of functions, got {type(tasks).__name__}")
    for at, task in enumerate(tasks):
        if not callable(task):
            _close(tasks)
            raise InputError(f"tasks[{at}]: expected a function without arguments, got {_kind(task)}")
    crew = _Crew(tasks)
    async with Bound(Signal()):  # a cancel of the caller's own comes before what a task raised
        await crew.run(min(max_concurrent, len(tasks)))
    return [crew.results[at] for at in range(len(tasks))]


class _Failed(Exception):
    """A task raised ``_Crew.first``."""


class _Crew(Generic[T]):
    """Workers that take one task after the other, until there is none or one has failed.

    Not a task group: one of Python 3.11 leaves its own cancel on the count of its caller, and those of
    other libraries cancel again at every await, which would cut off what a cancelled call has to tell.
    """

    def __init__(self, tasks: Sequence[Callable[[], Awaitable[T]]]) -> None:
        self._waiting = iter(enumerate(tasks))
        self.results: dict[int, T] = {}
        self.first: BaseException | None = None

    async def run(self, workers: int) -> None:
        crew = [asyncio.create_task(self._work(), name="agentloop child") for _ in range(workers)]
        try:
            if crew:
                await asyncio.wait(crew, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for worker in crew:
                worker.cancel()
            await settle(_ended(crew))
        if self.first is not None:
            raise self.first

    async def _work(self) -> None:
        me = asyncio.current_task()
        assert me is not None, "a coroutine runs in a task"
        for at, task in self._waiting:
            try:
                self.results[at] = await _awaitable(task(), at)
            except BaseException as error:
                self.first = self.first or error
                raise _Failed from error
            if me.cancelling():  # the task kept that to itself; none is begun after it
                raise asyncio.CancelledError


def _awaitable(given: Awaitable[T], at: int) -> Awaitable[T]:
    if not inspect.isawaitable(given):
        rule = f"expected a function that returns an awaitable, got one that returned {type(given).__name__}"
        raise InputError(f"tasks[{at}]: {rule}")
    return given


def _close(tasks: Sequence[object]) -> None:
    """Close the coroutines among tasks that are refused: nobody will await them."""
    for task in tasks:
        if inspect.iscoroutine(task):
            task.close()


def _kind(task: object) -> str:
    return "a coroutine; hand over the function itself" if inspect.iscoroutine(task) else type(task).__name__


async def _ended(crew: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*crew, return_exceptions=True)  # which is why no error of theirs is lost
