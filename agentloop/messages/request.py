"""What a model is asked: messages, options, the visible catalogue, and the exchanges so far."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import InputError
from ..limits import check_count, number_or_type
from .exchange import ModelExchange
from .parts import ImagePart, TextPart, Value, require_type

__all__ = [
    "FunctionSpec",
    "Message",
    "ModelOptions",
    "ModelRequest",
    "ResponseFormat",
    "SystemMessage",
    "ToolChoice",
    "UserMessage",
]


class SystemMessage(Value, frozen=True, tag="system", tag_field="role", dict=True, gc=True):
    """An instruction by the host. A tool's result never becomes one (R34)."""

    content: str

    def __post_init__(self) -> None:
        require_type("SystemMessage.content", self.content, str)


class UserMessage(Value, frozen=True, tag="user", tag_field="role", dict=True, gc=True):
    """What a person, or the host in their place, says.

    Attributes:
        content: text, or one or more parts.
    """

    content: str | tuple[TextPart | ImagePart, ...]

    def __post_init__(self) -> None:
        require_type("UserMessage.content", self.content, str, tuple)
        if type(self.content) is tuple:
            if not self.content:
                raise InputError("UserMessage.content: expected text or at least one part")
            for at, part in enumerate(self.content):
                require_type(f"UserMessage.content[{at}]", part, TextPart, ImagePart)


Message = SystemMessage | UserMessage | ModelExchange
"""One element of a conversation. An earlier turn's exchange stands between user messages."""


class FunctionSpec(Value, frozen=True):
    """A tool as the model sees it; holds no callable, endpoint or permission (R73, R174).

    Attributes:
        name: 1 to 64 of ``A-Z a-z 0-9 _ -``.
        description: what it does; may be empty.
        parameters: JSON text of the JSON Schema of its arguments object, as the model shall see it.
        strict: ask the provider to hold the schema itself; None says nothing.
    """

    name: str
    description: str = ""
    parameters: str = '{"properties":{},"type":"object"}'
    strict: bool | None = None

    def __post_init__(self) -> None:
        require_type("FunctionSpec.name", self.name, str)
        require_type("FunctionSpec.description", self.description, str)
        require_type("FunctionSpec.parameters", self.parameters, str)
        require_type("FunctionSpec.strict", self.strict, bool, type(None))


class ToolChoice(Value, frozen=True):
    """Force one named tool. The words ``auto``, ``none`` and ``required`` are plain strings."""

    name: str

    def __post_init__(self) -> None:
        require_type("ToolChoice.name", self.name, str)


class ResponseFormat(Value, frozen=True):
    """Ask for JSON: any object (``json``), or one that fits ``schema`` (``json_schema``).

    Attributes:
        kind: ``json`` or ``json_schema``.
        name: the schema's name, for ``json_schema``.
        schema: JSON text of the schema, for ``json_schema``.
        strict: ask the provider to enforce the schema.
    """

    kind: Literal["json", "json_schema"]
    name: str = "output"
    schema: str | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        if self.kind not in ("json", "json_schema"):
            raise InputError("ResponseFormat.kind: expected 'json' or 'json_schema'")
        require_type("ResponseFormat.name", self.name, str)
        require_type("ResponseFormat.schema", self.schema, str, type(None))
        require_type("ResponseFormat.strict", self.strict, bool)
        if (self.schema is None) != (self.kind == "json"):
            raise InputError("ResponseFormat.schema: expected a schema for 'json_schema', and none for 'json'")


class ModelOptions(Value, frozen=True):
    """Provider-neutral options of one call; None leaves the provider's default.

    Attributes:
        temperature: 0 to 2. top_p: 0 to 1.
        max_output_tokens: ceiling of this request, 1 and up.
        stop: up to 16 non-empty strings.
        seed: any integer.
        tool_choice: ``auto``, ``none``, ``required``, or a `ToolChoice`. One that forces a call
            applies to the first model call of a run only.
        parallel_tool_calls: whether a reply may hold several calls.
        response_format: see `ResponseFormat`.
        reasoning_effort: the provider's word.
        include_usage: ask for usage; off only with a dialect that needs none.
        extra: JSON text of one object whose members are added to the request as they
            are; it may not name a member that the encoder writes itself.

    Raises:
        InputError: a value of another type or outside its range, by name.
    """

    temperature: float | int | None = None
    top_p: float | int | None = None
    max_output_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    tool_choice: Literal["auto", "none", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    include_usage: bool = True
    extra: str = "{}"

    def __post_init__(self) -> None:
        _check_number("ModelOptions.temperature", self.temperature, 0, 2)
        _check_number("ModelOptions.top_p", self.top_p, 0, 1)
        if self.max_output_tokens is not None:
            check_count("ModelOptions.max_output_tokens", self.max_output_tokens, 1)
        require_type("ModelOptions.stop", self.stop, tuple)
        if len(self.stop) > 16 or any(type(word) is not str or not word for word in self.stop):
            raise InputError("ModelOptions.stop: expected up to 16 non-empty strings")
        require_type("ModelOptions.seed", self.seed, int, type(None))
        choice: Any = self.tool_choice
        if type(choice) is not ToolChoice and choice not in (None, "auto", "none", "required"):
            raise InputError("ModelOptions.tool_choice: expected 'auto', 'none', 'required' or a ToolChoice")
        require_type("ModelOptions.parallel_tool_calls", self.parallel_tool_calls, bool, type(None))
        require_type("ModelOptions.response_format", self.response_format, ResponseFormat, type(None))
        require_type("ModelOptions.reasoning_effort", self.reasoning_effort, str, type(None))
        require_type("ModelOptions.include_usage", self.include_usage, bool)
        require_type("ModelOptions.extra", self.extra, str)

    @property
    def forces_call(self) -> bool:
        """Whether ``tool_choice`` makes the model call a tool."""
        return self.tool_choice == "required" or type(self.tool_choice) is ToolChoice


def _check_number(name: str, value: object, low: int, high: int) -> None:
    if value is None:
        return
    if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
        raise InputError(f"{name}: expected a number from {low} to {high}, got {number_or_type(value)}")


class ModelRequest(Value, frozen=True):
    """One request, complete and provider neutral.

    Attributes:
        messages: the conversation up to the newest user message, oldest first.
        options: see `ModelOptions`.
        tools: the visible catalogue, in order; names unique.
        exchanges: the complete exchanges since then, oldest first (R165).
    """

    messages: tuple[Message, ...]
    options: ModelOptions = ModelOptions()
    tools: tuple[FunctionSpec, ...] = ()
    exchanges: tuple[ModelExchange, ...] = ()

    def __post_init__(self) -> None:
        require_type("ModelRequest.messages", self.messages, tuple)
        require_type("ModelRequest.options", self.options, ModelOptions)
        require_type("ModelRequest.tools", self.tools, tuple)
        require_type("ModelRequest.exchanges", self.exchanges, tuple)
