"""One execution of one tool: what came of it, as a value. Knows no store, no ledger, no retry.

    done      a value came back, and is a result
    failed    the tool said so: `ToolFailed`, a declared error, or a returned error result; or an
              idempotent tool ran out of time, or no thread was free, so that it never ran
    unknown   a tool that is not idempotent ran out of time: it may have taken effect, or may yet
    crashed   any other exception, or a value that cannot be a result: the run ends (R62)

A selection is called in place: it has no effect, no clock and no thread, and a refused refinement is
a failure. An async tool is awaited in the caller's own task. A sync tool runs in a thread of `ToolThreads`,
with the caller's context variables; Python cannot stop a thread, so one that runs out of time, or
whose caller was cancelled, goes on, and the pool remembers it until it has ended.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, Final, Generic, Literal, TypeVar, cast

import anyio
import msgspec

from ..errors import AgentLoopError, InputError, ToolFailed, ToolResultError
from ..limits import FEEDBACK_BYTES, TOOL_THREADS, check_count
from ..messages import ToolResult
from ..tools import ArgumentsRefused, Tool, ToolContext, clean_text, cut_result, require_value

__all__ = ["NoThreadError", "ToolOutcome", "ToolThreads", "encoded", "execute", "run_once"]

_MESSAGE_CHARS: Final = 2_000
"""Longer error messages are cut before they are measured in bytes."""

_AWAITABLE: Final = "expected a value, got an awaitable; define the tool with async def"

T = TypeVar("T")


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What came of one execution.

    Attributes:
        kind: see the module's docstring.
        result: what the model shall read; None when it crashed. full: as much, before it was cut.
        code: ``tool_failed``, ``tool_error`` (declared), ``error_result``, ``refined``, ``timeout``,
            ``no_thread``, ``tool_crashed`` or ``invalid_tool_result``; None when it is done.
        error: the exception behind a failure or a crash.
        duration: seconds from the start of the tool to its outcome.
    """

    kind: Literal["done", "failed", "unknown", "crashed"]
    result: ToolResult | None
    full: ToolResult | None = None
    code: str | None = None
    error: BaseException | None = None
    duration: float = 0.0


class NoThreadError(Exception):
    """No thread was free in time, so the work never began."""


class ToolThreads:
    """Threads for sync tools, and the memory of those that outlived their call.

    One event loop uses it. A thread that goes on after its call keeps its place, so at most
    ``size`` tools run in threads at any time.

    Args:
        size: how many, 1 and up.
    """

    def __init__(self, size: int = TOOL_THREADS) -> None:
        check_count("ToolThreads.size", size, 1)
        self.size = size
        self._places = asyncio.Semaphore(size)
        self._unbounded = anyio.CapacityLimiter(math.inf)  # the places are what bounds
        self._left: dict[object, tuple[str, str]] = {}  # threads without a caller: run id, tool name
        self._lock = threading.Lock()
        self._changed = asyncio.Event()

    def busy(self, run_id: str) -> str | None:
        """Name of a tool of this run whose call is over but whose thread has not ended; else None."""
        return self.busy_in((run_id,))

    def busy_in(self, run_ids: Collection[str]) -> str | None:
        """As `busy`, of any of these runs."""
        if not self._left:
            return None
        with self._lock:
            return next((tool for run, tool in self._left.values() if run in run_ids), None)

    async def wait_idle(self, seconds: float | None = None, *, run_id: str | None = None) -> int:
        """Wait until no thread is left over, of one run or of all.

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

    def _count(self, run_id: str | None) -> int:
        with self._lock:
            return sum(run_id is None or run == run_id for run, _ in self._left.values())

    async def run(
        self, run_id: str, tool: str, work: Callable[[], T], *, seconds: float | None
    ) -> tuple[T | None, BaseException | None]:
        """Run ``work`` in a thread; return its value, or what it raised.

        A timeout and a cancel leave at once; the thread goes on, keeps its place, and is remembered.

        Args:
            seconds: how long to wait for a place, and again for the work; None waits without end.

        Raises:
            NoThreadError: there was no place in time; the work did not begin.
            TimeoutError: the work did not end in time.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError:
            raise NoThreadError from None
        job = _Job(self, (run_id, tool), work)
        try:
            async with asyncio.timeout(seconds):
                return await anyio.to_thread.run_sync(job, abandon_on_cancel=True, limiter=self._unbounded)
        finally:
            job.leave()


class _Job(Generic[T]):
    """One piece of work on its way through a thread: waiting, running, then over; or dropped."""

    def __init__(self, threads: ToolThreads, name: tuple[str, str], work: Callable[[], T]) -> None:
        self._threads, self._name, self._work = threads, name, work
        self._loop = asyncio.get_running_loop()
        self._state: Literal["waiting", "running", "over"] = "waiting"

    def __call__(self) -> tuple[T | None, BaseException | None]:
        """Called in the thread."""
        threads = self._threads
        with threads._lock:
            if self._state == "over":  # the caller left before the thread began
                return None, None
            self._state = "running"
        try:
            return self._work(), None
        except BaseException as error:  # noqa: BLE001  # handed over as a value, whatever it is
            return None, error
        finally:
            with threads._lock:
                self._state = "over"
                threads._left.pop(self, None)
            try:
                self._loop.call_soon_threadsafe(self._free)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

    def leave(self) -> None:
        """The caller goes, with or without an answer."""
        with self._threads._lock:
            if self._state == "running":
                self._threads._left[self] = self._name
                return
            never_began, self._state = self._state == "waiting", "over"
        if never_began:
            self._free()

    def _free(self) -> None:
        self._threads._places.release()
        self._threads._changed.set()


async def execute(
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext[Any],
    *,
    pool: ToolThreads,
    max_output_bytes: int = FEEDBACK_BYTES,
    clock: Callable[[], float] = time.perf_counter,
) -> ToolOutcome:
    """Run a tool once with arguments it admitted.

    Args:
        pool: where sync tools run. No tool of a run may begin while `ToolThreads.busy` names one.
        max_output_bytes: ceiling of the result as JSON; longer text is cut, with a mark.
        clock: seconds, for ``duration`` only.

    Raises:
        InputError: a thread of the same run has not ended, and the tool is no selection.
        asyncio.CancelledError: the caller was cancelled, also where the tool kept that to itself.
            An async tool has ended by then; a thread may go on.
    """
    left = pool.busy(context.run_id)
    if left is not None and tool.kind != "selection":  # which has no effect that could overlap another
        raise InputError(f"execute: expected no thread of this run, got one of tool {left!r} that has not ended")
    began = clock()
    try:
        if tool.kind == "selection":
            value, error = _in_place(tool, arguments, context)
        else:
            value, error = await run_once(
                lambda: tool.invoke(arguments, context),
                is_async=tool.is_async,
                run_id=context.run_id,
                tool=tool,
                pool=pool,
            )
    except TimeoutError:
        outcome = _timed_out(tool)
    except NoThreadError as missing:
        text = f"The tool did not run: no thread was free for it within {tool.policy.timeout:g} s."
        outcome = ToolOutcome(kind="failed", result=ToolResult.error(text), code="no_thread", error=missing)
    else:
        outcome = _answered(tool, value) if error is None else _raised(tool, error)
    result = outcome.result
    return msgspec.structs.replace(
        outcome,
        result=None if result is None else cut_result(result, max_output_bytes),
        full=result,
        duration=clock() - began,
    )


def _in_place(tool: Tool, arguments: dict[str, Any], context: ToolContext[Any]) -> tuple[Any, BaseException | None]:
    try:
        return tool.invoke(arguments, context), None
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # judged by the caller; nobody cancelled
        return None, error


async def run_once(
    work: Callable[[], Any], *, is_async: bool, run_id: str, tool: Tool, pool: ToolThreads
) -> tuple[Any, BaseException | None]:
    """Run a tool's function, or its lookup, within the tool's timeout; return its value, or what it raised.

    Args:
        work: calls the function; its value is awaited when ``is_async``, and it runs in a thread otherwise.

    Raises:
        TimeoutError: it did not end in time. NoThreadError: it never began.
        asyncio.CancelledError: as `execute`.
    """
    if is_async:
        return await _in_task(work, tool.policy.timeout)
    return await pool.run(run_id, tool.name, work, seconds=tool.policy.timeout)


async def _in_task(work: Callable[[], Any], seconds: float | None) -> tuple[Any, BaseException | None]:
    """Await the tool in this task; TimeoutError is the clock's, never the tool's own.

    Who cancelled is told by the task's count of cancel requests: the clock's is taken back when
    it is done, the caller's stays, and a tool that raises CancelledError by itself makes none.
    """
    task = cast("asyncio.Task[Any]", asyncio.current_task())
    requests = task.cancelling()
    value: Any = None
    raised: BaseException | None = None
    async with asyncio.timeout(seconds) as clock:
        try:
            value = await work()
        except asyncio.CancelledError as error:
            if task.cancelling() > requests:
                raise
            raised = error
        except Exception as error:  # noqa: BLE001  # judged by the caller
            raised = error
    if task.cancelling() > requests:
        raise asyncio.CancelledError from raised
    if raised is not None and clock.expired():
        raise TimeoutError from raised  # what it raised is how it took the clock's cancel
    return value, raised


def _timed_out(tool: Tool) -> ToolOutcome:
    seconds = f"The tool did not finish within {tool.policy.timeout:g} s."
    if tool.policy.idempotent:
        result = ToolResult.error(f"{seconds} It is safe to call it again.")
        return ToolOutcome(kind="failed", result=result, code="timeout")
    text = (
        f"{seconds} Its outcome is unknown: it may have taken effect, or may still do so. "
        "Assume neither success nor failure, and check before calling it again."
    )
    return ToolOutcome(kind="unknown", result=ToolResult.error(text), code="timeout")


def encoded(tool: Tool, value: object) -> ToolResult:
    """The result that a returned value stands for.

    Raises:
        ToolResultError: it is an awaitable, or has no JSON. Encoding calls code of the value's
            class, which may raise anything.
    """
    return tool.encode(require_value(tool.name, value, _AWAITABLE))


def _answered(tool: Tool, value: object) -> ToolOutcome:
    try:
        result = encoded(tool, value)
    except Exception as error:  # noqa: BLE001  # encoding calls code of the value's class
        code = error.code if isinstance(error, ToolResultError) else "tool_crashed"
        return ToolOutcome(kind="crashed", result=None, code=code, error=error)
    if result.status == "error":
        return ToolOutcome(kind="failed", result=result, code="error_result")
    return ToolOutcome(kind="done", result=result)


def _raised(tool: Tool, error: BaseException) -> ToolOutcome:
    if tool.kind == "selection":
        if isinstance(error, ArgumentsRefused):
            text = f"Nothing ran. {error.feedback}"
            return ToolOutcome(kind="failed", result=ToolResult.error(text), code=error.code, error=error)
        if isinstance(error, ToolResultError):
            return ToolOutcome(kind="crashed", result=None, code=error.code, error=error)
    leaves = _leaves(error)
    if all(_is_declared(leaf, tool.policy.errors) for leaf in leaves):
        try:
            text = "; ".join(_message(leaf) for leaf in leaves)
        except Exception as fault:  # noqa: BLE001  # a __str__ of the tool's own
            return ToolOutcome(kind="crashed", result=None, code="tool_crashed", error=fault)
        code = "tool_failed" if isinstance(leaves[0], ToolFailed) else "tool_error"
        return ToolOutcome(kind="failed", result=ToolResult.error(text), code=code, error=error)
    return ToolOutcome(kind="crashed", result=None, code="tool_crashed", error=error)


def _leaves(error: BaseException) -> list[BaseException]:
    """The errors of a group, which is how a task group inside a tool hands them on."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    return [leaf for inner in error.exceptions for leaf in _leaves(inner)]


def _is_declared(error: BaseException, errors: tuple[type[Exception], ...]) -> bool:
    if isinstance(error, ToolFailed):
        return True
    if isinstance(error, AgentLoopError):  # protected, unless it is declared as what it is (R62)
        errors = tuple(kind for kind in errors if issubclass(kind, AgentLoopError))
    return isinstance(error, errors)


def _message(error: BaseException) -> str:
    text = clean_text(str(error)).strip()
    if len(text) > _MESSAGE_CHARS:
        text = text[: _MESSAGE_CHARS - 1] + "…"
    if isinstance(error, ToolFailed):
        return text or "The tool failed."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
