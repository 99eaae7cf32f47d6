"""A typed function becomes a selection: a tool that builds what a model chose, and does nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, overload

from ..errors import ToolDefinitionError
from .context import SelectionContext
from .definition import read_definition
from .function import Tool
from .policy import selection_policy
from .resolver import Check, in_loop, read_resolver

__all__ = ["selection"]


@overload
def selection(fn: Callable[..., Any], /) -> Tool: ...
@overload
def selection(
    *,
    name: str | None = None,
    description: str | None = None,
    refine: tuple[Check, ...] = (),
    errors: tuple[type[Exception], ...] = (),
    max_output_bytes: int | None = None,
    coerce: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def selection(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    refine: tuple[Check, ...] = (),
    errors: tuple[type[Exception], ...] = (),
    max_output_bytes: int | None = None,
    coerce: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a selection of a typed sync function; used as ``@selection`` or ``@selection(…)``.

    Its parameters are the arguments, by the rules of `tool`. A parameter annotated
    `SelectionContext` gets the context and is not shown to the model. Its body builds the value,
    from arguments that are complete and validated; it must have no effect, since it may be
    called again (R176). `Tool.resolve` returns the value as it is. In an agent's loop it is called
    in place, without a thread or a clock, and the value becomes a result as that of any tool.

    Args:
        name: by default the function's.
        description: by default the first paragraph of its docstring.
        refine: sync checks, each called with the keyword arguments of the function, in this order and
            before it. A check returns None, or a str: the reason why the arguments are refused.
        errors, max_output_bytes: see `ToolPolicy`; they count in an agent's loop only.
        coerce: see `ToolPolicy`.

    Raises:
        ToolDefinitionError: as `tool`; the function or a check is async, or a check does not take
            the parameters.
        InputError: ``errors``, ``max_output_bytes`` or ``coerce`` is outside its range.
    """
    policy = selection_policy(errors=errors, max_output_bytes=max_output_bytes, coerce=coerce)
    scope = dict(sys._getframe(1).f_locals)  # types local to the defining function, for string annotations

    def make(function: Callable[..., Any]) -> Tool:
        if isinstance(function, Tool):
            raise ToolDefinitionError("bad_tool", "", "expected a function, got Tool")
        read = read_definition(
            function, name=name, description=description, scope=scope, context=SelectionContext, coerce=coerce
        )
        known = read.spec.name
        resolve = read_resolver(known, function, refine, read=read.signature)
        return Tool(
            read.spec,
            policy=policy,
            kind="selection",
            owner=read.owner,
            function=function,
            call=in_loop(known, resolve),
            lookup=None,
            arguments=read.arguments,
            resolve=resolve,
        )

    return make if fn is None else make(fn)
