"""A type as what a model is asked to give: its schema, and the strict way from text to value.

The way is the one of tool arguments (`agentloop.tools.arguments`): strict JSON, the schema, the
typed decode. A model's output and a tool's arguments can therefore not differ in what they take.

A schema for an output is the schema of an object in every route: servers that hold one take no
other, and the arguments of a call are one. A type that is no object is the one member ``value``.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast, overload

import msgspec

from ..admission import parse
from ..errors import InputError, OutputRefused, ToolDefinitionError
from ..messages import FunctionSpec, ToolResult
from ..messages.require import is_tool_name
from .arguments import Admitted, Arguments, ArgumentsRefused
from .context import SelectionContext, ToolContext
from .function import Tool
from .policy import selection_policy
from .schema import AdmittedSchema, admit_schema
from .signature import struct_schema
from .validator import compile_check

__all__ = ["TypedOutput"]

T = TypeVar("T")

_WHOLE: Final = "value"
_TAKEN: Final = ToolResult.ok("The answer is taken.")
_STRICT_KEYWORDS: Final = frozenset({
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maximum", "minItems", "minimum", "multipleOf", "pattern",
    "properties", "required", "title", "type",
})  # fmt: skip
_STRICT_FORMATS: Final = frozenset({
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uuid",
})  # fmt: skip


class TypedOutput(Generic[T]):
    """One type that msgspec can decode, as an output. Fixed once made; any number of calls may use it.

    Args:
        of: the type: a struct, dataclass, typed dict, list, literal, union, ``Annotated`` type…
        name: what servers are told it is called, 1 to 64 of ``A-Z a-z 0-9 _ -``; by default the
            name of the class, or ``output``.

    Attributes:
        name: see above.
        schema: JSON text of the schema of an object, closed at every level.
        wrapped: whether the object is ``{"value": …}``, because the type is none.
        strict: whether OpenAI's strict mode takes the schema: every object closed, every member
            required, and only keywords that it knows (OpenAI's guide to structured outputs).

    Raises:
        InputError: the type has no JSON Schema, or one that no validator here enforces; its annotations
            cannot be resolved; or the name is none.
    """

    __slots__ = ("_arguments", "name", "schema", "strict", "wrapped")

    name: str
    schema: str
    strict: bool
    wrapped: bool
    _arguments: _Whole

    @overload
    def __init__(self, of: type[T], *, name: str | None = None) -> None: ...
    @overload
    def __init__(self: TypedOutput[Any], of: Any, *, name: str | None = None) -> None: ...
    def __init__(self, of: Any, *, name: str | None = None) -> None:
        known = _name(of, name)
        try:
            kind, schema = _kind_and_schema(known, of)
            admitted = admit_schema(known, schema)
            arguments = _Whole(known, lambda: compile_check(known, admitted), kind)
            if admitted.needs:
                compile_check(known, admitted)  # now, since the validator of newer rules may be missing
        except ToolDefinitionError as error:
            raise InputError(f"output {known!r}: {error.rule}") from error
        fixed = object.__setattr__
        fixed(self, "name", known)
        fixed(self, "schema", admitted.text)
        fixed(self, "wrapped", kind is not of)
        fixed(self, "strict", _is_strict(admitted))
        fixed(self, "_arguments", arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: an output is fixed once it is made")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: an output is fixed once it is made")

    def decode(self, text: str) -> T:
        """The value that one JSON text says; nothing is repaired, converted or dropped, and only
        defaults of the type itself fill what was not given.

        Raises:
            OutputRefused: ``invalid_json``, ``not_an_object`` or ``schema_mismatch``; its rule
                holds nothing of the text but names of the schema, its feedback may.
            ToolDefinitionError: the type is at fault: its own code raises, or changes what it is given.
        """
        return self._value(lambda: self._arguments.decode(text))

    def from_call(self, text: str) -> T:
        """The value that the arguments of a call of `tool` say: as `decode`, but ``""`` and ``null`` are ``{}``.

        It takes what that tool admits, and nothing else.

        Raises:
            OutputRefused, ToolDefinitionError: as `decode`.
        """
        return self._value(lambda: self._arguments.take(text))

    def tool(self, description: str) -> Tool:
        """The output as one more function that a model may call: a selection, whose value is the output's.

        In an agent's loop the model is told that its answer is taken; the value is not repeated to it.
        """
        return Tool(
            FunctionSpec(name=self.name, description=description, parameters=self.schema),
            policy=selection_policy(errors=(), max_output_bytes=None),
            kind="selection",
            owner=f"output {self.name!r}",
            function=self._resolve,
            call=_taken,
            lookup=None,
            arguments=self._arguments,
            resolve=self._resolve,
        )

    def _resolve(self, arguments: dict[str, Any], _context: SelectionContext) -> object:
        value = arguments[_WHOLE]
        return value.value if self.wrapped else value

    def _value(self, take: Callable[[], Any]) -> T:
        refused: OutputRefused
        try:
            value = take()
        except ArgumentsRefused as error:
            refused = OutputRefused(error.code, error.rule, feedback=error.feedback)
        else:
            return cast(T, value.value if self.wrapped else value)
        raise refused  # outside of the handler: its text may name what the model wrote

    def __repr__(self) -> str:
        return f"<TypedOutput {self.name!r}>"


class _Whole(Arguments):
    """Admits the arguments of an output as one value, since a type need not have members that are keywords."""

    __slots__ = ()

    def admit(self, text: str) -> Admitted:
        return Admitted({_WHOLE: self.take(text)})


def _taken(_arguments: dict[str, Any], _context: ToolContext[Any]) -> ToolResult:
    return _TAKEN


def _name(of: Any, given: str | None) -> str:
    if given is not None:
        if type(given) is not str or not is_tool_name(given):
            raise InputError("output name: expected 1 to 64 of A-Z a-z 0-9 _ -")
        return given
    own = of.__name__ if isinstance(of, type) and of.__module__ not in ("builtins", "typing") else ""
    return own if is_tool_name(own) else "output"


def _kind_and_schema(name: str, of: Any) -> tuple[Any, dict[str, Any]]:
    """What to decode into, and its schema: the type itself if it is an object, else one around it."""
    if typing.get_origin(of) is typing.ClassVar or of is typing.ClassVar:
        raise ToolDefinitionError("bad_tool", name, "expected a type of values, got ClassVar")
    try:
        around = msgspec.defstruct("Output", [("value", of)], kw_only=True, forbid_unknown_fields=True, frozen=True)
        wrapped = struct_schema(name, around)  # first, since its errors name what is wrong with a type
    except ToolDefinitionError:
        raise
    except Exception as error:  # an annotation is code, and may raise anything
        rule = f"expected a type whose annotations can be resolved: {type(error).__name__}: {error}"
        raise ToolDefinitionError("bad_tool", name, rule) from error
    schema = struct_schema(name, of)
    parts = schema.get("$defs", {})
    if "$ref" in schema:  # a type that refers to itself, or is annotated
        target = parts[schema.pop("$ref").removeprefix("#/$defs/")]
        schema = {**target, **schema}
    return (of, schema) if schema.get("type") == "object" else (around, wrapped)


def _is_strict(admitted: AdmittedSchema) -> bool:
    pending = [parse(admitted.text)]
    while pending:
        node = pending.pop()
        if type(node) is not dict or not node.keys() <= _STRICT_KEYWORDS:
            return False
        if "$ref" in node and len(node) > 1 and "$defs" not in node:
            return False  # it wants a reference to stand alone
        if not node.keys() & {"$ref", "anyOf", "const", "enum", "type"}:
            return False
        if node.get("type") == "object" and not _is_exact(node):
            return False
        if node.get("format", "date") not in _STRICT_FORMATS:
            return False
        pending += [*node.get("properties", {}).values(), *node.get("$defs", {}).values(), *node.get("anyOf", ())]
        pending += [node["items"]] if "items" in node else []
    return True


def _is_exact(node: dict[str, Any]) -> bool:
    members = node.get("properties", {})
    return node.get("additionalProperties") is False and sorted(members) == sorted(node.get("required", ()))
