"""From a Python function to the parameters that a model fills in.

The signature is read once, when the tool is defined. Annotations may be strings (``from __future__
import annotations``); names are looked up in the function's module, in what it closes over, and in
the scope that defines it, so types local to a test function work too.
"""

from __future__ import annotations

import decimal
import enum
import inspect
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Final

import msgspec

from ..errors import ToolDefinitionError
from .context import SelectionContext, ToolContext

__all__ = ["Signature", "read_lookup", "read_signature", "struct_schema"]

_MUTABLE: Final = (list, dict, set, bytearray)
_KEPT: Final = (bytes, bytearray, datetime, date, time, timedelta, uuid.UUID, decimal.Decimal)


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What a function takes.

    Attributes:
        arguments: a generated struct with one field a parameter; closed, keyword-only.
        context: name of the parameter that gets the context, None when there is none.
    """

    arguments: type[msgspec.Struct]
    context: str | None


def read_signature(
    tool: str,
    function: Callable[..., Any],
    scope: Mapping[str, Any],
    kind: type[ToolContext[Any]] | type[SelectionContext] = ToolContext,
) -> Signature:
    """Read the parameters of ``function``.

    Args:
        tool: the tool's name, for errors.
        scope: names visible where the function is defined.
        kind: of the context that it is given.

    Raises:
        ToolDefinitionError: ``bad_tool``, names the parameter and what is wrong with it.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError("bad_tool", tool, f"expected a function with a signature: {error}") from error
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    context: str | None = None
    for parameter in parameters:
        annotation = _annotation(tool, function, parameter, scope)
        given = _context_kind(annotation)
        if given is not None:
            if given is not kind:  # as an argument, the model would fill it in
                raise _bad(tool, parameter.name, f"expected a {kind.__name__}, got a {given.__name__}")
            if context is not None:
                raise _bad(tool, parameter.name, f"expected one {kind.__name__}; there is another")
            context = parameter.name
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            _check_default(tool, parameter.name, annotation, parameter.default)
            fields.append((parameter.name, annotation, _default(parameter.default)))
    try:
        arguments = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True, frozen=True)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError("bad_tool", tool, f"its parameters cannot be a JSON object: {error}") from error
    return Signature(arguments=arguments, context=context)


def read_lookup(tool: str, lookup: Callable[..., Any], scope: Mapping[str, Any], of: Signature) -> str | None:
    """Hold the parameters of a lookup against those of its tool; return which one gets the `ToolContext`.

    Raises:
        ToolDefinitionError: ``bad_tool``: they have other names, or cannot be read.
    """
    if isinstance(lookup, type):
        raise ToolDefinitionError("bad_tool", tool, "recovery: expected a function, got a class")
    try:
        own = read_signature(tool, lookup, scope)
    except ToolDefinitionError as error:
        raise ToolDefinitionError("bad_tool", tool, f"recovery: {error.rule}") from error
    expected, got = of.arguments.__struct_fields__, own.arguments.__struct_fields__
    if set(expected) != set(got):
        rule = f"recovery: expected the parameters ({', '.join(expected)}), got ({', '.join(got)})"
        raise ToolDefinitionError("bad_tool", tool, rule)
    return own.context


def _annotation(tool: str, function: Callable[..., Any], parameter: inspect.Parameter, scope: Mapping[str, Any]) -> Any:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise _bad(tool, name, "expected a parameter with a name of its own; * and ** take anything")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise _bad(tool, name, "expected a parameter that can be passed by name, got a positional-only one")
    if parameter.annotation is parameter.empty:
        method = "; to make a tool of a method, bind it first: tool(obj.method)" if name in ("self", "cls") else ""
        raise _bad(tool, name, f"expected a type annotation{method}")
    inner = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    names = {**scope, **_closure(inner)}
    holder = types.SimpleNamespace(__annotations__={name: parameter.annotation})
    try:
        hints = typing.get_type_hints(holder, getattr(inner, "__globals__", {}), names, include_extras=True)
    except Exception as error:  # the annotation is code, and may raise anything
        raise _bad(tool, name, f"its annotation cannot be resolved: {type(error).__name__}: {error}") from error
    return hints[name]


def _closure(function: Any) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue  # assigned later than the function: no annotation can mean it
    return found


def _context_kind(annotation: Any) -> type[Any] | None:
    """Which context it is: ``ToolContext``, ``ToolContext[D]``, ``SelectionContext``, or one of them ``| None``."""
    while typing.get_origin(annotation) is Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        choices = [choice for choice in typing.get_args(annotation) if choice is not types.NoneType]
        return _context_kind(choices[0]) if len(choices) == 1 else None
    kind = typing.get_origin(annotation) or annotation
    return kind if kind is ToolContext or kind is SelectionContext else None


def _check_default(tool: str, parameter: str, annotation: Any, default: Any) -> None:
    """Refuse a default that its own annotation does not admit: the model would be shown one that it may not send."""
    if default is msgspec.UNSET:
        return
    try:
        fitting = _converted(default, annotation)
    except msgspec.ValidationError as error:
        hint = "; annotate it as `T | None`" if default is None else ""
        raise _bad(tool, parameter, f"its default does not fit its type: {_lower(error)}{hint}") from None
    except (TypeError, ValueError, NotImplementedError):
        return  # the type itself is at fault, and told where its schema is made
    if isinstance(default, (str, int)) and not isinstance(fitting, (str, int, float)):
        rule = f"expected `{type(fitting).__name__}`, got `{type(default).__name__}`"  # what a model may write for it
        raise _bad(tool, parameter, f"its default does not fit its type: {rule}")


def _lower(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:]


def _converted(value: Any, annotation: Any) -> Any:
    """What a value is under an annotation; members of an enumeration are values of theirs, as everything in them.

    Raises:
        msgspec.ValidationError: it is nothing of the kind.
    """
    try:
        return msgspec.convert(value, annotation)
    except msgspec.ValidationError:
        try:
            plain = msgspec.to_builtins(value, builtin_types=_KEPT)
        except (TypeError, ValueError, OverflowError):
            plain = value
        fitting = msgspec.convert(plain, annotation)
        return value if isinstance(value, enum.Enum) else fitting


def _default(value: Any) -> Any:
    """Python's meaning of a default: the object itself, shared by all calls."""
    return msgspec.field(default_factory=lambda: value) if isinstance(value, _MUTABLE) else value


def _bad(tool: str, parameter: str, rule: str) -> ToolDefinitionError:
    return ToolDefinitionError("bad_tool", tool, f"parameter {parameter!r}: {rule}")


def struct_schema(tool: str, kind: Any) -> dict[str, Any]:
    """The JSON Schema of a type that msgspec can describe; closed at every level, references local.

    msgspec leaves nested objects open and then drops their unknown members while decoding; here
    they are closed, so an unknown member is refused instead of dropped (R54, R161).

    Raises:
        ToolDefinitionError: ``bad_tool``: a type has no JSON Schema; names the parameter.
    """
    try:
        (schema,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    except (TypeError, ValueError, NotImplementedError) as error:
        raise _no_schema(tool, kind, error) from error
    for part in parts.values():
        if part.get("required") == []:
            del part["required"]  # draft-04 wants at least one name there
        if "properties" in part:
            part.setdefault("additionalProperties", False)
            for member in part["properties"].values():
                if "default" in member:
                    member["default"] = _tuples_as_lists(member["default"])
        elif "prefixItems" in part:
            part.setdefault("items", False)
    ref = schema.get("$ref", "")
    name = ref.removeprefix("#/$defs/")
    if not ref or len(schema) > 1 or _used(name, parts):
        return {**schema, "$defs": parts} if parts else schema
    root = dict(parts.pop(name))
    root.pop("title", None)
    return {**root, "$defs": parts} if parts else root


def _tuples_as_lists(value: Any) -> Any:
    if type(value) is dict:
        return {name: _tuples_as_lists(item) for name, item in value.items()}
    return [_tuples_as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _no_schema(tool: str, kind: Any, error: Exception) -> ToolDefinitionError:
    """The error for the first parameter that has no JSON Schema by itself."""
    reason = str(error).splitlines()[-1]  # above it stands advice on hooks that a tool does not have
    for field in msgspec.structs.fields(kind):
        try:
            msgspec.json.schema_components([field.type])
        except (TypeError, ValueError, NotImplementedError):
            return _bad(tool, field.encode_name, f"expected a type with a JSON Schema: {reason}")
    return ToolDefinitionError("bad_tool", tool, f"expected parameters with a JSON Schema: {reason}")


def _used(name: str, parts: Mapping[str, Any]) -> bool:
    """Whether a component refers to the component ``name``: then it must keep its name."""
    return f'"#/$defs/{name}"'.encode() in msgspec.json.encode(parts)
