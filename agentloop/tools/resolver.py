"""From the complete, validated arguments of a selection to the value that they stand for.

    checks, in the order they were declared  ->  the function  ->  the value, an object of the host

Synchronous: an ``async def`` is refused when the selection is defined, and an awaitable when one
comes back. A check returns None when the arguments may stand, or a str: the reason, as the model
shall read it. The first reason is the one that is told; the checks behind it are not asked.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from ..errors import ToolDefinitionError, ToolResultError
from .arguments import ArgumentsRefused
from .context import SelectionContext, ToolContext
from .definition import by_keyword, is_async
from .result import clean_text, require_value
from .signature import Signature

__all__ = ["Check", "Resolve", "in_loop", "read_resolver"]

_REASON: Final = "expected None or a reason of type str"

Check = Callable[..., str | None]
"""Says why arguments are refused, or None. It must not change what it is given."""

Resolve = Callable[[dict[str, Any], SelectionContext], Any]
"""Builds a selection's value from its arguments."""


def read_resolver(
    tool: str, function: Callable[..., Any], refine: tuple[Check, ...], *, read: Signature | None = None
) -> Resolve:
    """What a selection resolves with: its checks, then its function.

    Args:
        tool: the selection's name, for errors.
        read: what the function takes, where it and the checks are called by keyword. Otherwise it
            gets the arguments as one dict and the context, and a check gets the dict.

    Raises:
        ToolDefinitionError: ``bad_tool``: the function or a check is async, is none, or does not
            take what it is given.
    """
    if type(refine) is not tuple:
        raise ToolDefinitionError("bad_tool", tool, f"refine: expected a tuple of checks, got {type(refine).__name__}")
    _require_sync(tool, function, "its function")
    if read is None:
        _require_taking(tool, function, "its function", 2)
    for at, check in enumerate(refine):
        _require_sync(tool, check, f"refine[{at}]")
        _require_taking(tool, check, f"refine[{at}]", 1 if read is None else read.arguments.__struct_fields__)
    build: Resolve = function if read is None else by_keyword(function, read.context)

    def resolve(arguments: dict[str, Any], context: SelectionContext) -> Any:
        for at, check in enumerate(refine):
            said = check(arguments) if read is None else check(**arguments)
            reason = require_value(tool, said, f"refine[{at}]: {_REASON}, got an awaitable")
            if reason is not None:
                raise _refusal(tool, at, reason)
        return require_value(tool, build(arguments, context), "expected a value, got an awaitable; a selection is sync")

    return resolve


def _refusal(tool: str, at: int, reason: object) -> Exception:
    if not isinstance(reason, str):  # True and False each could mean either
        return ToolResultError(tool, f"refine[{at}]: {_REASON}, got {type(reason).__name__}")
    text = clean_text(str.__str__(reason)).strip() or "no reason was given"
    end = "" if text.endswith((".", "!", "?")) else "."
    return ArgumentsRefused("refined", f"The arguments are not accepted: {text}{end}")


def _require_sync(tool: str, function: object, what: str) -> None:
    if isinstance(function, type) or not callable(function):
        got = "a class" if isinstance(function, type) else type(function).__name__
        raise ToolDefinitionError("bad_tool", tool, f"{what}: expected a function, got {got}")
    if is_async(function):
        raise ToolDefinitionError("bad_tool", tool, f"{what}: expected a sync function, got an async one")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        rule = f"{what}: expected a function that returns a value, got a generator"
        raise ToolDefinitionError("bad_tool", tool, rule)


def _require_taking(tool: str, function: Callable[..., Any], what: str, given: int | tuple[str, ...]) -> None:
    """Refuse what cannot be called so: with as many arguments, or with these keywords."""
    try:
        signature = inspect.signature(function)
        if isinstance(given, int):
            signature.bind(*[None] * given)
        else:
            signature.bind(**dict.fromkeys(given))
    except (TypeError, ValueError) as error:
        rule = f"{what}: expected a function that takes the arguments: {error}"
        raise ToolDefinitionError("bad_tool", tool, rule) from error


def in_loop(tool: str, resolve: Resolve) -> Callable[[dict[str, Any], ToolContext[Any]], Any]:
    """A selection as an agent's loop calls it, where the agent is the stage."""
    return lambda arguments, context: resolve(arguments, SelectionContext(stage_id=context.agent, tool=tool))
