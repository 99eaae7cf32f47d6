"""A typed function stub becomes an external tool: the model may call it, and the host gives the result."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, overload

from ..errors import ToolDefinitionError
from .context import ToolContext
from .definition import read_definition, run_elsewhere
from .function import Tool
from .policy import external_policy

__all__ = ["external"]


@overload
def external(fn: Callable[..., Any], /) -> Tool: ...
@overload
def external(*, name: str | None = None, description: str | None = None) -> Callable[[Callable[..., Any]], Tool]: ...
def external(
    fn: Callable[..., Any] | None = None, /, *, name: str | None = None, description: str | None = None
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make an external tool of a typed function; used as ``@external`` or ``@external(…)``.

    Its parameters are the arguments, by the rules of `tool`, and a model's are checked before its
    call waits for the host. Its body is never called: a docstring is enough, and ``-> None`` keeps type
    checkers content. Nor has it a use for a `ToolContext`.

    Args:
        name: by default the function's.
        description: by default the first paragraph of its docstring.

    Raises:
        ToolDefinitionError: as `tool`, or a parameter is annotated `ToolContext`.
    """
    scope = dict(sys._getframe(1).f_locals)  # types local to the defining function, for string annotations

    def make(stub: Callable[..., Any]) -> Tool:
        if isinstance(stub, Tool):
            raise ToolDefinitionError("bad_tool", "", "expected a function, got Tool")
        read = read_definition(stub, name=name, description=description, scope=scope, context=ToolContext, coerce=False)
        if read.signature.context is not None:
            rule = f"{read.signature.context}: expected no ToolContext, as nothing of an external tool runs here"
            raise ToolDefinitionError("bad_tool", read.spec.name, rule)
        elsewhere = run_elsewhere(read.spec.name)
        return Tool(
            read.spec,
            policy=external_policy(),
            kind="external",
            owner=read.owner,
            function=elsewhere,
            call=elsewhere,
            lookup=None,
            arguments=read.arguments,
        )

    return make if fn is None else make(fn)
