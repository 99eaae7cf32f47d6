"""One execution of one tool: what came of it, as a value. Knows no store, no ledger, no retry.

    done      a value came back, and is a result
    failed    the tool said so: `ToolFailed`, a declared error, or a returned error result; or an
              idempotent tool ran out of time, or no thread was free, so that it never ran
    unknown   a tool that is not idempotent ran out of time: it may have taken effect, or may yet
    crashed   any other exception, or a value that cannot be a result: the run ends (R62)

A selection is called in place: it has no effect, no clock and no thread, and a refused refinement is
a failure. Any other tool runs in the `ToolPool`, with the caller's context variables; what does not end in
time goes on there without its call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

import msgspec

from ..errors import AgentLoopError, ToolFailed, ToolResultError
from ..limits import FEEDBACK_BYTES
from ..messages import ToolResult
from ..tools import ArgumentsRefused, Tool, ToolContext, clean_text, cut_result, require_value
from .pool import Came, Execution, NoThreadError, OutOfTimeError, ToolPool

__all__ = ["ToolOutcome", "encoded", "execute", "run_once", "run_tool"]

_MESSAGE_CHARS: Final = 2_000
"""Longer error messages are cut before they are measured in bytes."""

_AWAITABLE: Final = "expected a value, got an awaitable; define the tool with async def"


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What came of one execution.

    Attributes:
        kind: see the module's docstring.
        result: what the model shall read; None when it crashed. full: as much, before it was cut.
        code: ``tool_failed``, ``tool_error`` (declared), ``error_result``, ``refined``, ``timeout``,
            ``no_thread``, ``tool_crashed`` or ``invalid_tool_result``; None when it is done.
        error: the exception behind a failure or a crash.
        duration: seconds from the start of the tool to its outcome.
        left: whether it ran out of time and goes on without its call.
    """

    kind: Literal["done", "failed", "unknown", "crashed"]
    result: ToolResult | None
    full: ToolResult | None = None
    code: str | None = None
    error: BaseException | None = None
    duration: float = 0.0
    left: bool = False


async def run_tool(
    tool: Tool,
    arguments: dict[str, Any],
    context_of: Callable[[int], ToolContext[Any]],
    *,
    pool: ToolPool,
    max_output_bytes: int = FEEDBACK_BYTES,
    before_retry: Callable[[int], Awaitable[bool]] | None = None,
    attempt: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> ToolOutcome:
    """Run a tool with arguments it admitted, and again where it ran out of time and its policy allows that.

    Nothing is stored or charged here. An execution that is left over is not repeated: two would overlap.
    An error that the tool raised or returned never is.

    Args:
        context_of: the context of an execution, by its number.
        pool: where it runs. The caller sees to it that `ToolPool.busy` names no tool of the run.
        max_output_bytes: ceiling of the result as JSON; longer text is cut, with a mark.
        before_retry: charges and records the next execution, by its number; False is to leave it, and the
            outcome is the timeout. What it raises is raised. None charges nobody.
        attempt: number of the first execution; repetitions before it are some of `ToolPolicy.retries`.
        clock: seconds, for ``duration`` only.

    Raises:
        asyncio.CancelledError: the caller was cancelled, also where the tool kept that to itself. An async
            tool has ended by then, or is left over; a thread may go on.
    """
    while True:
        outcome = await execute(
            tool, arguments, context_of(attempt), pool=pool, max_output_bytes=max_output_bytes, clock=clock
        )
        if outcome.code != "timeout" or outcome.left or attempt > tool.policy.most_retries:
            return outcome
        if before_retry is not None and not await before_retry(attempt + 1):
            return outcome
        attempt += 1


async def execute(
    tool: Tool,
    arguments: dict[str, Any],
    context: ToolContext[Any],
    *,
    pool: ToolPool,
    max_output_bytes: int = FEEDBACK_BYTES,
    clock: Callable[[], float] = time.perf_counter,
) -> ToolOutcome:
    """Run a tool once; see `run_tool`."""
    began = clock()
    try:
        if tool.kind == "selection":
            value, error = _in_place(tool, arguments, context)
        else:
            execution = Execution(context.run_id, tool.name, context.effect_id)
            work = lambda: tool.invoke(arguments, context)  # noqa: E731  # called once, here or in a thread
            value, error = await run_once(work, execution, is_async=tool.is_async, tool=tool, pool=pool)
    except OutOfTimeError as late:
        outcome = _timed_out(tool, context.attempt, left=late.left)
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


def _in_place(tool: Tool, arguments: dict[str, Any], context: ToolContext[Any]) -> Came:
    try:
        return tool.invoke(arguments, context), None
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # judged by the caller; nobody cancelled
        return None, error


async def run_once(
    work: Callable[[], Any], execution: Execution, *, is_async: bool, tool: Tool, pool: ToolPool
) -> Came:
    """Run a tool's function, or its lookup, within the tool's timeout; return its value, or what it raised.

    Args:
        work: calls the function; its value is awaited when ``is_async``, and it runs in a thread otherwise.

    Raises:
        OutOfTimeError: it did not end in time. NoThreadError: it never began.
        asyncio.CancelledError: as `run_tool`.
    """
    run = pool.run_task if is_async else pool.run_thread
    return await run(execution, work, seconds=tool.policy.timeout, grace=tool.policy.grace)


def _timed_out(tool: Tool, attempt: int, *, left: bool) -> ToolOutcome:
    times = "" if attempt == 1 else f", {attempt} times"
    seconds = f"The tool did not finish within {tool.policy.timeout:g} s{times}."
    if tool.policy.idempotent:
        result = ToolResult.error(f"{seconds} It is safe to call it again.")
        return ToolOutcome(kind="failed", result=result, code="timeout", left=left)
    text = (
        f"{seconds} Its outcome is unknown: it may have taken effect, or may still do so. "
        "Assume neither success nor failure, and check before calling it again."
    )
    return ToolOutcome(kind="unknown", result=ToolResult.error(text), code="timeout", left=left)


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
    found, waiting = [], [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting += reversed(one.exceptions)
        else:
            found.append(one)
    return found


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
