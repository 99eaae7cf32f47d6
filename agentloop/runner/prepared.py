"""A model call before it is made: what is asked of whom, and what that weighs.

A `Prepared` call is a handle of one runner. It fixes what a transport asks for (R241), can be measured
against any messages as often as one likes, and makes one call.
"""

from __future__ import annotations

import math
from typing import Any, Generic, TypeVar

import msgspec

from ..admission import is_unicode
from ..errors import BudgetError, InputError
from ..limits import check_count, check_name
from ..messages import (
    FunctionSpec,
    Message,
    ModelOptions,
    ModelRequest,
    UserMessage,
    messages_chars,
    require_model_request,
)
from ..messages.instruction import instructed
from ..wire.call_text import call_instruction
from .tokens import TokenBudget
from .transport import Interaction, Stage, Transport
from .transports.rules import declared_chars

__all__ = [
    "Measurement",
    "Prepared",
    "Sizes",
    "check_measured",
    "measured",
    "merged",
    "prepared_by",
    "require_asked",
]

T = TypeVar("T")


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """The three budgets of characters of one call, and that of tokens; none borrows from another (R213).

    Attributes:
        max_input_chars, max_output_chars: 0 and up, ``math.inf`` for no limit. max_schema_chars: 1 and up.
        tokens: None where tokens are not counted.
    """

    max_input_chars: float
    max_output_chars: float
    max_schema_chars: int
    tokens: TokenBudget | None = None


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What a call would weigh; neither a reservation nor a pass (R245, R246). Characters are Unicode code points.

    Attributes:
        message_chars: of the application's messages; images count 0.
        instruction_chars: of the transport's instruction, without declarations that stand in it.
        schema_chars: of the declarations, wherever they stand. Where a server's models write their calls in text,
            the declaration of tools is all that the instructions say of them. transport_chars: of both.
        input_chars: of messages and transport.
        max_input_chars, max_schema_chars: what ``message_chars`` and ``transport_chars`` may be.
        input_tokens: as the counter says, for the whole request; None without a counter (R243).
        max_input_tokens: the window without what is reserved for the answer and the margin; None as well.
        within_budget: whether all of it fits.
    """

    message_chars: int
    instruction_chars: int
    schema_chars: int
    transport_chars: int
    input_chars: int
    max_input_chars: float
    max_schema_chars: int
    input_tokens: int | None = None
    max_input_tokens: int | None = None

    @property
    def within_budget(self) -> bool:
        return self.over is None

    @property
    def over(self) -> tuple[str, int, int] | None:
        """The first limit that is exceeded: its name, what it allows, and what it would come to."""
        if self.message_chars > self.max_input_chars:
            return "max_input_chars", int(self.max_input_chars), self.message_chars
        if self.transport_chars > self.max_schema_chars:
            return "max_schema_chars", self.max_schema_chars, self.transport_chars
        tokens, allowed = self.input_tokens, self.max_input_tokens
        if tokens is not None and allowed is not None and tokens > allowed:
            return "max_input_tokens", allowed, tokens
        return None


class Prepared(Generic[T]):
    """One model call, prepared. Made by `ModelRunner.prepare`, consumed by one `ModelRunner.invoke`.

    Attributes:
        stage_id, model_id, max_output_tokens: as prepared.
        transport: id of the transport. route: how it asks for the value.
        call_words: what the request says of its tools in the instructions, where the server's models write their
            calls in text; None elsewhere.
        used: whether a call was made with it.
    """

    __slots__ = (
        "call_words",
        "interaction",
        "max_output_tokens",
        "model_id",
        "options",
        "owner",
        "stage_id",
        "transport",
        "used",
    )

    def __init__(
        self,
        owner: object,
        *,
        stage_id: str,
        model_id: str | None,
        max_output_tokens: int,
        transport: str,
        interaction: Interaction[T],
        options: ModelOptions,
        call_words: str | None = None,
    ) -> None:
        self.owner, self.stage_id, self.model_id = owner, stage_id, model_id
        self.max_output_tokens, self.transport = max_output_tokens, transport
        self.interaction, self.options, self.call_words = interaction, options, call_words
        self.used = False

    @property
    def route(self) -> str:
        return self.interaction.route

    def messages(self, said: tuple[Message, ...]) -> tuple[Message, ...]:
        """What is sent for these messages, see `instructed`."""
        return instructed(said, self.interaction.instruction)

    def __repr__(self) -> str:
        return f"<Prepared {self.stage_id!r} by {self.transport!r} ({self.route})>"


def prepared_by(
    owner: object,
    transport: Transport[T],
    stage: Stage,
    *,
    model_id: str | None,
    options: ModelOptions,
) -> Prepared[T]:
    """Prepare a call with a transport, and check what a transport of the host's own made of it.

    Args:
        options: the runner's, checked, with the reservation of this call as ``max_output_tokens``; what
            the transport asks for overrides the others.

    Raises:
        InputError: the transport cannot be used here, or prepared what is no valid interaction.
    """
    interaction = transport.prepare(stage)
    where = f"transport {transport.id!r}"
    if not isinstance(interaction, Interaction):
        raise InputError(f"{where}: expected an Interaction, got {type(interaction).__name__}")
    if not callable(interaction.create_response):
        raise InputError(f"{where}: expected create_response to be callable")
    if interaction.instruction is not None and type(interaction.instruction) is not str:
        raise InputError(f"{where}: expected an instruction of type str or None")
    if interaction.instruction is not None and not is_unicode(interaction.instruction):
        raise InputError(f"{where}: expected an instruction that UTF-8 can encode, got a lone surrogate")
    check_name(f"{where}: route", interaction.route)
    if type(interaction.options) is not ModelOptions or interaction.options.max_output_tokens is not None:
        raise InputError(f"{where}: expected ModelOptions without max_output_tokens, which the call says")
    check_count(f"{where}: schema_chars", interaction.schema_chars, 0)
    embeddable = min(interaction.schema_chars, len(interaction.instruction or ""))
    check_count(f"{where}: embedded_chars", interaction.embedded_chars, 0, embeddable)
    asked = options
    if interaction.options != _DEFAULTS or interaction.tools != ():
        asked = merged(options, interaction.options)
        require_asked(asked, interaction.tools)
    assert asked.max_output_tokens is not None, "it is reserved"
    call_text, words = stage.dialect.call_text, None
    if call_text is not None and interaction.tools:
        words = call_instruction(call_text, interaction.tools, asked)
    return Prepared(
        owner,
        stage_id=stage.stage_id,
        model_id=model_id,
        max_output_tokens=asked.max_output_tokens,
        transport=transport.id,
        interaction=interaction,
        options=asked,
        call_words=words,
    )


def measured(
    prepared: Prepared[Any], said: tuple[Message, ...], sizes: Sizes, *, max_chars: float = math.inf
) -> Measurement:
    """Weigh a call: the messages as they would be sent, the instruction and the declarations (R242).

    Args:
        said: the application's messages. max_chars: what these alone may be; it can only lower the limit.

    Raises:
        InputError: the token counter gave no count.
    """
    interaction = prepared.interaction
    message_chars = messages_chars(said)
    instruction_chars = len(interaction.instruction or "") - interaction.embedded_chars
    schema_chars, tools, sent = interaction.schema_chars, interaction.tools, prepared.messages(said)
    if prepared.call_words is not None:  # the tools are declared there, and so are no tools of the request
        schema_chars = max(0, schema_chars - declared_chars(tools)) + len(prepared.call_words)
        tools, sent = (), instructed(sent, prepared.call_words)
    transport_chars = instruction_chars + schema_chars
    tokens = allowed = None
    if sizes.tokens is not None:
        request = ModelRequest(messages=sent, options=prepared.options, tools=tools)
        tokens = sizes.tokens.count(request)
        allowed = sizes.tokens.input_limit(prepared.max_output_tokens)
    return Measurement(
        message_chars=message_chars,
        instruction_chars=instruction_chars,
        schema_chars=schema_chars,
        transport_chars=transport_chars,
        input_chars=message_chars + transport_chars,
        max_input_chars=min(sizes.max_input_chars, max_chars),
        max_schema_chars=sizes.max_schema_chars,
        input_tokens=tokens,
        max_input_tokens=allowed,
    )


def check_measured(measurement: Measurement) -> None:
    """Refuse what does not fit.

    Raises:
        BudgetError: names the limit, what it allows, and what it would come to.
    """
    over = measurement.over
    if over is not None:
        raise BudgetError(*over)


_DEFAULTS = ModelOptions()


def merged(base: ModelOptions, over: ModelOptions) -> ModelOptions:
    """Options with what a transport asks for; the same object where that is nothing."""
    changes = {
        name: value for name in over.__struct_fields__ if (value := getattr(over, name)) != getattr(_DEFAULTS, name)
    }
    return msgspec.structs.replace(base, **changes) if changes else base


def require_asked(options: ModelOptions, tools: tuple[FunctionSpec, ...] = ()) -> None:
    """Check in full what a call asks for besides its messages.

    Raises:
        AdmissionError: a value that is not admitted.
    """
    probe = (UserMessage(content="-"),)  # a request has at least one message
    require_model_request(ModelRequest(messages=probe, options=options, tools=tools))
