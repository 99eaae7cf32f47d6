"""What an agent asks of one server, prepared once, and what its replies come to.

The transports prepare it as they prepare a single model call, so both ask in the same words. Without an
output an agent asks as a `Session` does, for text and any number of calls; where it has no tools, as
`PlainText`. With one it asks by the route that `Structured` takes for the server, but not for a schema
where that would keep its models from calling the tools:

- ``json_schema``, ``json_text``: a reply without calls is the answer, and its text must be the value.
- ``call``: the output function is one more tool, a selection, and a call of it ends the run. It is forced,
  but as any forced call for the first model call only; where the agent has tools some call is, so that
  these can come first. Later the model is free, and a reply without calls is an answer without a value
  (``no_output``). Arguments that do not fit are refused with feedback, as those of any tool. Other calls
  of the same reply run as well, in call order, and the model does not read in this run what they found.
  One call may give the value: of several that fit nobody could say which is meant (``several_calls``).

A value is made of a checked reply alone, by a function of the agent and that reply. So nothing of it is
stored, and whoever reads the reply later makes the same value of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from ..effects import Label
from ..errors import OutputRefused, ToolDefinitionError
from ..exchange import OriginOpened
from ..messages import (
    Message,
    ModelOptions,
    ModelReply,
    ModelRequest,
    SystemMessage,
    UserMessage,
    require_model_request,
)
from ..messages.instruction import instructed
from ..tools import ToolSet, TypedOutput
from ..wire.dialect import Dialect
from .prepared import merged
from .transport import Interaction, Stage, Transport
from .transports import SESSION, PlainText, Route, Session, Structured

__all__ = ["Asking", "asked_by_route", "asked_plainly", "has_begun"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_STAGE: Final = Label().stage_id


class Asking(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True, eq=False):
    """The prepared call of one agent for one dialect. Any number of runs share it.

    Attributes:
        label: transport and route, for events.
        system: the messages that each run begins with. options, toolset: of each run.
        instruction: what the transport added to ``system``; None for nothing.
        final: name of the output function, in the ``call`` route.
        read: makes the value of a reply that ended its run; None where the agent has no output.
            Raises `OutputRefused` where there is none, `ToolDefinitionError` where the type is at fault.
    """

    label: Label
    system: tuple[SystemMessage, ...]
    options: ModelOptions
    toolset: ToolSet
    instruction: str | None = None
    final: str | None = None
    read: Callable[[ModelReply], T_co] | None = None

    @property
    def check(self) -> Callable[[ModelReply], str | None] | None:
        """Says why a reply gives no value, as a code; None where any reply will do."""
        return None if self.read is None else self._fault

    def _fault(self, reply: ModelReply) -> str | None:
        assert self.read is not None, "there is an output"
        try:
            self.read(reply)
        except OutputRefused as error:
            return error.code
        except ToolDefinitionError as error:
            if self.final is None:
                raise
            return error.code  # it ends the run when the call's turn comes
        return None


def asked_plainly(system: tuple[SystemMessage, ...], options: ModelOptions, toolset: ToolSet) -> Asking[None]:
    """What an agent without an output asks of every server."""
    transport: Transport[Any] = Session(SESSION, tools=toolset) if len(toolset) else PlainText()
    interaction = transport.prepare(Stage(stage_id=_STAGE, dialect=Dialect(name="any")))
    return Asking(
        label=Label(transport=transport.id, route=interaction.route),
        system=system,
        options=merged(options, interaction.options),
        toolset=toolset,
    )


def asked_by_route(
    output: Structured[T],
    dialect: Dialect,
    *,
    system: tuple[SystemMessage, ...],
    options: ModelOptions,
    toolset: ToolSet,
    with_function: ToolSet,
    route: Route | None = None,
) -> Asking[T]:
    """What an agent with an output asks.

    Args:
        toolset: the agent's own tools. with_function: these and the output function.
        route: this one, instead of what output and dialect say.

    Raises:
        InputError: options or messages that cannot be in one request with what is added.
    """
    stage = Stage(stage_id=_STAGE, dialect=dialect)
    interaction = output.prepare(stage) if route is None else output.by_route(route, stage)
    if route is None and len(toolset) and interaction.route == "json_schema" and not dialect.calls_beside_schema:
        interaction = output.prepare(Stage(stage_id=_STAGE, dialect=_without_schema(dialect)))
    by_call = interaction.route == "call"
    asked = merged(options, _free(interaction, options, toolset) if by_call else interaction.options)
    messages = instructed(system, interaction.instruction)
    tools = with_function if by_call else toolset
    probe: tuple[Message, ...] = (*messages, UserMessage(content="-"))
    require_model_request(ModelRequest(messages=probe, options=asked, tools=tools.specs))
    return Asking(
        label=Label(transport=output.id, route=interaction.route),
        system=cast("tuple[SystemMessage, ...]", messages),
        options=asked,
        toolset=tools,
        instruction=interaction.instruction,
        final=output.output.name if by_call else None,
        read=_of_calls(output.output, output.id) if by_call else _of_text(interaction),
    )


def has_begun(asking: Asking[Any], opened: OriginOpened) -> bool:
    """Whether a stored run was begun with the output that is asked for here, by this route."""
    if asking.final is not None:
        return asking.toolset.require(asking.final).spec in opened.tools
    if asking.label.route == "json_schema":
        return opened.options.response_format == asking.options.response_format
    said = (message.content for message in opened.instructions if type(message) is SystemMessage)
    return asking.instruction is not None and any(text.endswith(asking.instruction) for text in said)


def _without_schema(dialect: Dialect) -> Dialect:
    """The dialect for a request with tools, where those and a schema do not go together."""
    return msgspec.structs.replace(dialect, json_schema=False)


def _free(interaction: Interaction[Any], options: ModelOptions, toolset: ToolSet) -> ModelOptions:
    """What the ``call`` route asks for: with tools of the agent's own, any of them may be called first."""
    forced = interaction.options
    if not len(toolset) or not forced.forces_call:
        return forced
    return ModelOptions(tool_choice=options.tool_choice if options.forces_call else "required")


def _of_text(interaction: Interaction[T]) -> Callable[[ModelReply], T]:
    return lambda reply: interaction.create_response().finish(reply)


def _of_calls(output: TypedOutput[T], transport: str) -> Callable[[ModelReply], T]:
    def read(reply: ModelReply) -> T:
        values, refused = [], OutputRefused("no_output", "expected a call of the output function, got none")
        for call in reply.calls:
            if call.name == output.name:
                try:
                    values.append(output.from_call(call.arguments.text))
                except OutputRefused as error:
                    refused = error
        if len(values) > 1:
            refused = OutputRefused("several_calls", f"expected one call of the output function, got {len(values)}")
        if len(values) == 1:
            return values[0]
        raise OutputRefused(refused.code, refused.rule, transport=transport, feedback=refused.feedback)

    return read
