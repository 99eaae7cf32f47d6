"""What is read off a function when it becomes a tool: its name, what the model sees, what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..errors import InputError, ToolDefinitionError
from ..messages import FunctionSpec
from ..messages.require import is_tool_name
from .arguments import Arguments
from .context import SelectionContext, ToolContext
from .schema import admit_schema
from .signature import Signature, read_signature, struct_schema
from .validator import compile_check

__all__ = ["Definition", "by_keyword", "check_tool_name", "is_async", "owner_of", "read_definition", "run_elsewhere"]


class Definition(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One function, read once.

    Attributes:
        spec: what the model sees.
        signature: what it takes. arguments: admits what a model wrote.
        owner: ``module.function``.
    """

    spec: FunctionSpec
    signature: Signature
    arguments: Arguments
    owner: str


def check_tool_name(name: object) -> str:
    """Return a name that is valid on the wire: 1 to 64 of ``A-Z a-z 0-9 _ -``.

    Raises:
        ToolDefinitionError: ``bad_tool_name``.
    """
    if type(name) is not str:
        raise ToolDefinitionError("bad_tool_name", "", f"expected a name of type str, got {type(name).__name__}")
    if not is_tool_name(name):
        got = "another character" if 1 <= len(name) <= 64 else f"{len(name)} characters"
        rule = f"expected 1 to 64 of A-Z a-z 0-9 _ -, got {got}"
        raise ToolDefinitionError("bad_tool_name", name[:80], rule)
    return name


def read_definition(
    fn: Callable[..., Any],
    *,
    name: str | None,
    description: str | None,
    scope: Mapping[str, Any],
    context: type[ToolContext[Any]] | type[SelectionContext],
    coerce: bool,
) -> Definition:
    """Read a typed function.

    Args:
        name: by default the function's.
        description: by default the first paragraph of its docstring.
        scope: names visible where the function is defined.
        context: what a parameter of that annotation is given; the model does not see it.
        coerce: whether arguments are converted, see `coercion`.

    Raises:
        ToolDefinitionError: it is no function that returns a value, or names the parameter, the
            schema path or the name that is wrong.
    """
    if isinstance(fn, type):
        raise ToolDefinitionError("bad_tool", fn.__name__[:80], "expected a function, got a class")
    if not callable(fn):
        raise ToolDefinitionError("bad_tool", "", f"expected a function, got {type(fn).__name__}")
    known = check_tool_name(getattr(fn, "__name__", None) if name is None else name)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ToolDefinitionError("bad_tool", known, "expected a function that returns a value, got a generator")
    signature = read_signature(known, fn, scope, context)
    schema = struct_schema(known, signature.arguments)
    schema.setdefault("properties", {})
    admitted = admit_schema(known, schema)
    return Definition(
        spec=FunctionSpec(
            name=known,
            description=_first_paragraph(fn) if description is None else description,
            parameters=admitted.text,
        ),
        signature=signature,
        arguments=Arguments(
            known,
            lambda: compile_check(known, admitted),
            signature.arguments,
            admitted.text if coerce else None,
        ),
        owner=owner_of(fn),
    )


def _first_paragraph(fn: Callable[..., Any]) -> str:
    text = inspect.getdoc(fn) or ""
    return " ".join(text.strip().split("\n\n")[0].split())


def owner_of(fn: Callable[..., Any]) -> str:
    """Where a function is defined, for errors: ``module.function``."""
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{getattr(fn, '__module__', None) or type(fn).__module__}.{name}"


def is_async(function: object) -> bool:
    """Whether calling it makes a coroutine, as far as its definition says."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def by_keyword(fn: Callable[..., Any], context: str | None) -> Callable[[dict[str, Any], Any], Any]:
    """Call a function with its arguments by name, and with the context where it has a parameter for it."""
    if context is None:
        return lambda arguments, _: fn(**arguments)
    return lambda arguments, given: fn(**arguments, **{context: given})


def run_elsewhere(name: str) -> Callable[..., Any]:
    """What stands in the place of the function of an external tool, which nothing here may call."""

    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise InputError(f"tool {name!r}: expected its result from the host, as it is external, got a call")

    return refuse
