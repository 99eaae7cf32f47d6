"""A value of a type as the answer, asked for in the best way that a server has.

Three routes, chosen by what the server's dialect says, in this order:

- ``json_schema``: the response format holds the schema, and the text is exactly one JSON text;
- ``call``: a forced call of one output function, whose arguments are the value;
- ``json_text``: the instruction holds the schema, and the JSON is found in the text by the rule of
  `agentloop.runner.transports.json_text`.

Whichever it is, the same decode makes the value, so the route changes no value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, Literal, TypeVar, get_args, overload

from ...admission import is_unicode
from ...errors import InputError, OutputRefused
from ...messages import ModelOptions, ModelReply, ResponseFormat, ToolChoice
from ...tools import Tool, TypedOutput
from ...wire.dialect import Dialect
from ..transport import Interaction, Stage
from .calls import CallsCollector
from .json_call import json_in
from .rules import declared_chars, fitting, require_id
from .text import TextCollector

__all__ = ["Route", "Structured"]

T = TypeVar("T")

Route = Literal["json_schema", "call", "json_text"]
"""How a typed value is asked for."""

_INSTRUCTION: Final = "Answer with exactly one JSON object and nothing else. It fits this JSON Schema:\n"
_DESCRIPTION: Final = "Give the answer in this form."


class Structured(Generic[T]):
    """A value of one type that msgspec can decode: ``Structured(Ticket)`` gives a ``Ticket``.

    Text becomes a value by the strict way of `TypedOutput`: what does not fit is refused. A type
    that is no JSON object is asked for as ``{"value": …}``, in every route.

    Args:
        of: the type: a struct, dataclass, typed dict, list, literal, union, ``Annotated`` type…
        id: names it among the transports of a runner, 1 to 128 characters; by default
            ``structured:`` and the name.
        name: what the server is told the output is called, 1 to 64 of ``A-Z a-z 0-9 _ -``; by
            default the name of the class, or ``output``.
        instruction: added to the instructions of the call, in every route.
        route: the one to use, whatever the dialect says.

    Raises:
        InputError: the type has no JSON Schema, or another argument is not as above.
    """

    @overload
    def __init__(
        self,
        of: type[T],
        /,
        *,
        id: str | None = None,
        name: str | None = None,
        instruction: str | None = None,
        route: Route | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Structured[Any],
        of: Any,
        /,
        *,
        id: str | None = None,
        name: str | None = None,
        instruction: str | None = None,
        route: Route | None = None,
    ) -> None: ...
    def __init__(
        self,
        of: Any,
        /,
        *,
        id: str | None = None,
        name: str | None = None,
        instruction: str | None = None,
        route: Route | None = None,
    ) -> None:
        if route not in (None, *get_args(Route)):
            raise InputError(f"Structured.route: expected None or one of {', '.join(get_args(Route))}")
        if instruction is not None and type(instruction) is not str:
            raise InputError(f"Structured.instruction: expected str or None, got {type(instruction).__name__}")
        if instruction is not None and not is_unicode(instruction):
            raise InputError("Structured.instruction: expected text that UTF-8 can encode, got a lone surrogate")
        self._output: TypedOutput[T] = TypedOutput(of, name=name)
        self._id = require_id("Structured", f"structured:{self._output.name}" if id is None else id)
        self._instruction, self._route = instruction, route

    @property
    def id(self) -> str:
        return self._id

    @property
    def output(self) -> TypedOutput[T]:
        """The type with its schema and its decode."""
        return self._output

    @property
    def function(self) -> Tool:
        """The output function, whose arguments are the value; what the ``call`` route shows the model."""
        return self._output.tool(_DESCRIPTION)

    def prepare(self, stage: Stage, /) -> Interaction[T]:
        """An interaction by the route that is asked for, or else by the first that the dialect has."""
        return self.by_route(self._route or _route(stage.dialect), stage)

    def by_route(self, route: Route, stage: Stage) -> Interaction[T]:
        """An interaction by this route, whatever was asked for and the dialect says."""
        if route == "json_schema":
            return self._by_schema()
        return self._by_call(stage.dialect) if route == "call" else self._by_text()

    def _by_schema(self) -> Interaction[T]:
        output = self._output
        wanted = ResponseFormat(kind="json_schema", name=output.name, schema=output.schema, strict=output.strict)
        return Interaction(
            create_response=self._collector(lambda text: output.decode(_whole(text))),
            route="json_schema",
            options=ModelOptions(response_format=wanted),
            instruction=self._instruction,
            schema_chars=len(output.name) + len(output.schema),
        )

    def _by_call(self, dialect: Dialect) -> Interaction[T]:
        output, spec = self._output, self.function.spec
        choice = ToolChoice(name=output.name)
        forced = ModelOptions(tool_choice=choice, parallel_tool_calls=False) if dialect.forces_calls else ModelOptions()

        def build(reply: ModelReply) -> T:
            (call,) = reply.calls
            return fitting(lambda: output.decode(call.arguments.text), transport=self._id)

        return Interaction(
            create_response=lambda: CallsCollector(self._id, (output.name,), single=True, build=build),
            route="call",
            options=forced,
            tools=(spec,),
            instruction=self._instruction,
            schema_chars=declared_chars((spec,)),
        )

    def _by_text(self) -> Interaction[T]:
        output = self._output
        own = "" if self._instruction is None else f"{self._instruction}\n\n"
        return Interaction(
            create_response=self._collector(lambda text: output.decode(json_in(text))),
            route="json_text",
            instruction=own + _INSTRUCTION + output.schema,
            schema_chars=len(output.schema),
            embedded_chars=len(output.schema),
        )

    def _collector(self, build: Callable[[str], T]) -> Callable[[], TextCollector[T]]:
        return lambda: TextCollector(self._id, build)

    def __repr__(self) -> str:
        return f"<Structured {self._id!r}>"


def _route(dialect: Dialect) -> Route:
    if dialect.json_schema:
        return "json_schema"
    return "call" if dialect.forces_calls else "json_text"


def _whole(text: str) -> str:
    if not text:
        raise OutputRefused("no_json", "expected one JSON text, got an empty one")
    return text
