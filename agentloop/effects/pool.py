"""Where tools run, so that a run can leave one that does not end.

An async tool has a task of its own, whose first step is taken at once; a sync tool has a thread. When its
time is over, or its run is cancelled, a task is cancelled and has some seconds to end. Python cannot stop a
thread, and a task may keep its cancels to itself: what goes on after its call is *left over*. The pool
remembers it until it ends, and says in the log that it was left and when it ended. Whatever it comes to then
is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final, Generic, Literal, TypeVar, cast

import msgspec

from ..events.envelope import wall_ms
from ..limits import TOOL_THREADS, check_count
from .eager import Eager

__all__ = ["Came", "Execution", "LeftOver", "NoThreadError", "OutOfTimeError", "ToolPool"]

_log: Final = logging.getLogger("agentloop.effects")

T = TypeVar("T")

Came = tuple[Any, BaseException | None]
"""What an execution came to: its value, or what it raised."""


class Execution(msgspec.Struct, frozen=True):
    """Whose execution it is."""

    run_id: str
    tool: str
    effect_id: str = ""


class LeftOver(msgspec.Struct, frozen=True, kw_only=True):
    """An execution that has not ended though its call is over.

    Attributes:
        run_id, tool, effect_id: whose it is.
        kind: ``task`` of an async tool that keeps its cancels to itself, or ``thread`` of a sync one.
        since_ms: when its call was over, wall clock, milliseconds.
    """

    run_id: str
    tool: str
    effect_id: str
    kind: Literal["task", "thread"]
    since_ms: int


class NoThreadError(Exception):
    """No thread was free in time, so the work never began."""


class OutOfTimeError(TimeoutError):
    """The work did not end in time. ``left``: it has not ended by now, and is left over."""

    def __init__(self, *, left: bool) -> None:
        super().__init__(left)
        self.left = left


class ToolPool:
    """Runs tools, and remembers those that outlived their call.

    One event loop uses it. A thread that goes on after its call keeps its place, so at most
    ``size`` tools run in threads at any time. Tasks have no such bound: a loop awaits the calls of a
    run in order, or as many at once as its limits say.

    Args:
        size: threads for sync tools, 1 and up.
        now_ms: wall clock, milliseconds.
    """

    def __init__(self, size: int = TOOL_THREADS, *, now_ms: Callable[[], int] = wall_ms) -> None:
        check_count("ToolPool.size", size, 1)
        self.size, self._now_ms = size, now_ms
        self._places = asyncio.Semaphore(size)
        self._unbounded: Any = None  # the places are what bounds
        self._tasks: dict[asyncio.Task[Came], str] = {}  # that have not ended: run id
        self._left: dict[object, tuple[LeftOver, float]] = {}  # without a caller; since when by the loop's clock
        self._lock = threading.Lock()
        self._changed = asyncio.Event()

    # -- what is left over

    @property
    def left_over(self) -> tuple[LeftOver, ...]:
        """What has outlived its call and not ended, the oldest first."""
        with self._lock:
            return tuple(left for left, _ in self._left.values())

    def busy(self, run_id: str) -> str | None:
        """Name of a tool of this run whose call is over and which has not ended; else None."""
        return self.busy_in((run_id,))

    def busy_in(self, run_ids: Collection[str]) -> str | None:
        """As `busy`, of any of these runs, and of those below them, whose ids begin with one of theirs and a slash."""
        if not self._left:
            return None
        below = tuple(f"{run_id}/" for run_id in run_ids)
        found = (left.tool for left in self.left_over if left.run_id in run_ids or left.run_id.startswith(below))
        return next(found, None)

    async def wait_idle(self, seconds: float | None = None, *, run_id: str | None = None) -> int:
        """Wait until nothing is left over, of one run or of all.

        Returns:
            How many are left: 0, or more when ``seconds`` passed first; None waits without end.
        """
        try:
            async with asyncio.timeout(seconds):
                while self._count(run_id):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._count(run_id)

    def cancel_left(self) -> None:
        """Cancel the tasks that are left over once more. Threads cannot be."""
        for job in list(self._left):
            if isinstance(job, asyncio.Task):
                job.cancel()

    def _count(self, run_id: str | None) -> int:
        return sum(run_id is None or left.run_id == run_id for left in self.left_over)

    @property
    def run_here(self) -> str | None:
        """Id of the run whose async tool the present task is; else None."""
        return self._tasks.get(cast("asyncio.Task[Came]", asyncio.current_task())) if self._tasks else None

    # -- tasks

    async def run_task(
        self, execution: Execution, work: Callable[[], Awaitable[Any]], *, seconds: float | None, grace: float
    ) -> Came:
        """Await ``work`` in a task of its own; return its value, or what it raised, a CancelledError included.

        It sees the caller's context variables, and its first step is taken at once: one that waits for
        nothing is over when that is. A value that comes late is still the truth; an error that comes late
        may be how it took its cancel, and is out of time.

        Args:
            seconds: how long it may take; None is no limit. grace: how long it has to end once it is
                cancelled; it is left over then.

        Raises:
            OutOfTimeError: it did not end in time.
            asyncio.CancelledError: the caller was cancelled, also where the work kept that to itself.
        """
        me = cast("asyncio.Task[Any]", asyncio.current_task())
        requests = me.cancelling()
        job = Eager(_kept(work))
        task = job.task(f"agentloop tool {execution.tool} of run {execution.run_id}")
        self._tasks[task] = execution.run_id
        job.begin()
        cancel, late = None, False
        if job.over is None:
            try:
                await asyncio.wait({task}, timeout=seconds)
            except asyncio.CancelledError as met:
                cancel = met
            if not task.done():
                late = True
                task.cancel()
                cancel = await _wait_out(task, grace) or cancel
            if not task.done():
                self._leave_task(task, execution)
        if task.done() or job.over is not None:
            del self._tasks[task]
        if cancel is not None or me.cancelling() > requests:
            if task.done() and not task.cancelled():
                task.exception()  # retrieved: the cancel came first
            raise cancel or asyncio.CancelledError
        if job.over is not None:
            return job.over.value  # type: ignore[no-any-return]
        if not task.done():
            raise OutOfTimeError(left=True)
        value, error = task.result()
        if late and error is not None:
            raise OutOfTimeError(left=False) from error
        return value, error

    def _leave_task(self, task: asyncio.Task[Came], execution: Execution) -> None:
        self._leave(task, execution, "task")
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Came]) -> None:
        self._tasks.pop(task, None)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()  # retrieved, whatever it is
        self._forget(task, task.result()[1] if error is None else error)

    # -- threads

    async def run_thread(
        self, execution: Execution, work: Callable[[], Any], *, seconds: float | None, grace: float
    ) -> Came:
        """Run ``work`` in a thread; return its value, or what it raised.

        A cancel of the caller leaves at once. A value and an error that come late are as of `run_task`.

        Args:
            seconds: how long to wait for a place, and again for the work; None waits without end.
            grace: how much longer, until it is left over.

        Raises:
            NoThreadError: there was no place in time; the work did not begin.
            OutOfTimeError: it did not end in time.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError:
            raise NoThreadError from None
        import anyio  # noqa: PLC0415  # many programs have no sync tool

        if self._unbounded is None:
            self._unbounded = anyio.CapacityLimiter(math.inf)
        job = _Job(self, execution, work)
        value: Any = None
        error: BaseException | None = None
        late = False
        try:
            async with asyncio.timeout(None if seconds is None else seconds + grace):
                value, error = await anyio.to_thread.run_sync(job, abandon_on_cancel=True, limiter=self._unbounded)
        except TimeoutError:
            late = True
        finally:
            state = job.leave()
        if late and state == "waiting":
            raise NoThreadError
        if late:
            raise OutOfTimeError(left=state == "running")
        if error is not None and seconds is not None and job.seconds > seconds:
            raise OutOfTimeError(left=False) from error
        return value, error

    # -- both

    def _leave(self, key: object, execution: Execution, kind: Literal["task", "thread"]) -> None:
        left = LeftOver(
            run_id=execution.run_id,
            tool=execution.tool,
            effect_id=execution.effect_id,
            kind=kind,
            since_ms=self._now_ms(),
        )
        with self._lock:
            self._left[key] = (left, asyncio.get_running_loop().time())
        _log.warning(
            "tool %s of run %s has not ended though its call is over (%s)", execution.tool, execution.run_id, kind
        )

    def _forget(self, key: object, error: BaseException | None) -> None:
        with self._lock:
            known = self._left.pop(key, None)
        if known is not None:
            left, since = known
            came = "with a value" if error is None else f"with {type(error).__name__}"
            seconds = asyncio.get_running_loop().time() - since
            _log.warning("tool %s of run %s ended %.1f s after its call, %s", left.tool, left.run_id, seconds, came)
        self._changed.set()


async def _kept(work: Callable[[], Awaitable[Any]]) -> Came:
    try:
        return await work(), None
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # handed over as a value
        return None, error


async def _wait_out(task: asyncio.Task[Came], seconds: float) -> asyncio.CancelledError | None:
    """Wait for a cancelled task to end; a cancel of the caller cancels it once more, and is returned."""
    clock = asyncio.get_running_loop().time
    end, met = clock() + seconds, None
    while not task.done() and (left := end - clock()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError as cancel:
            met = cancel
            task.cancel()
    return met


class _Job(Generic[T]):
    """One piece of work on its way through a thread: waiting, running, then over; or dropped.

    Attributes:
        seconds: how long it took, once it is over.
    """

    def __init__(self, pool: ToolPool, execution: Execution, work: Callable[[], T]) -> None:
        self._pool, self._execution, self._work = pool, execution, work
        self._loop = asyncio.get_running_loop()
        self._state: Literal["waiting", "running", "over"] = "waiting"
        self._began = self._loop.time()
        self.seconds = 0.0

    def __call__(self) -> tuple[T | None, BaseException | None]:
        """Called in the thread."""
        pool = self._pool
        with pool._lock:
            if self._state == "over":  # the caller left before the thread began
                return None, None
            self._state = "running"
        raised: BaseException | None = None
        try:
            return self._work(), None
        except BaseException as error:  # noqa: BLE001  # handed over as a value, whatever it is
            raised = error
            return None, error
        finally:
            self.seconds = self._loop.time() - self._began
            with pool._lock:
                self._state = "over"
            try:
                self._loop.call_soon_threadsafe(self._free, raised)
            except RuntimeError:
                with pool._lock:  # the loop is closed: nobody waits any more
                    pool._left.pop(self, None)
            raised = None

    def leave(self) -> Literal["waiting", "running", "over"]:
        """The caller goes, with or without an answer; say where the work is. One that waits never begins."""
        with self._pool._lock:
            state = self._state
            if state != "running":
                self._state = "over"
        if state == "running":  # what frees it runs in this thread, and so later
            self._pool._leave(self, self._execution, "thread")
        elif state == "waiting":
            self._free(None)
        return state

    def _free(self, error: BaseException | None) -> None:
        self._pool._places.release()
        self._pool._forget(self, error)
