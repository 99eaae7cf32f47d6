"""The pieces that messages are made of. Frozen; equal content is an equal value."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..errors import InputError

__all__ = [
    "ImagePart",
    "JsonText",
    "Native",
    "Termination",
    "Text",
    "TextContent",
    "TextPart",
    "ToolCall",
    "Usage",
    "Value",
    "require_type",
]


def require_type(name: str, value: object, *kinds: type) -> None:
    """Refuse a value whose type is not exactly one of ``kinds`` (a subclass is refused too).

    Raises:
        InputError: names the field, the types expected and the type that came, never the value.
    """
    if type(value) not in kinds:
        wanted = " or ".join(kind.__name__ for kind in kinds).replace("NoneType", "None")
        raise InputError(f"{name}: expected {wanted}, got {type(value).__name__}")


class Value(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """Base of every value here: frozen, keyword-only, closed.

    A value holds text, numbers and other values only, and is made after what it holds: it can be in no
    cycle, so the garbage collector need not look at it. That goes for events and facts too. (A struct
    with a ``__dict__`` cannot say so; it is tracked only where it holds something that is.)
    """


class Text(Value, frozen=True, tag="text", tag_field="kind"):
    """Body text of a reply, exactly as streamed.

    Attributes:
        text: any Unicode scalars; may be empty only when a host makes a reply itself.
    """

    text: str

    def __post_init__(self) -> None:
        require_type("Text.text", self.text, str)


class JsonText(Value, frozen=True):
    """Raw JSON text as a model wrote it: never parsed, repaired or reformatted here (R18)."""

    text: str
    encoding: Literal["json-text"] = "json-text"

    def __post_init__(self) -> None:
        require_type("JsonText.text", self.text, str)
        if self.encoding != "json-text":
            raise InputError("JsonText.encoding: expected 'json-text'")


class ToolCall(Value, frozen=True, tag="tool-call", tag_field="kind"):
    """One function call asked for by a model, exactly as admitted.

    Attributes:
        id: the provider's identifier, not empty; unique within its reply only.
        name: tool name as sent, not empty. Looked up later, so it may name no known tool.
        arguments: the raw argument text, not yet checked against anything.
    """

    id: str
    name: str
    arguments: JsonText

    def __post_init__(self) -> None:
        require_type("ToolCall.id", self.id, str)
        require_type("ToolCall.name", self.name, str)
        require_type("ToolCall.arguments", self.arguments, JsonText)
        if not self.id:
            raise InputError("ToolCall.id: expected a non-empty string")
        if not self.name:
            raise InputError("ToolCall.name: expected a non-empty string")


class Termination(Value, frozen=True):
    """How a reply ended.

    Attributes:
        kind: ``completed`` for the words stop and tool_calls, ``refused`` for content_filter,
            ``incomplete`` for every other word (R24-R26). Protocol completion only: it says
            nothing about the success of a tool or a task (R27).
        reason: the provider's word, verbatim; None where a dialect inferred the end.
    """

    kind: Literal["completed", "refused", "incomplete"]
    reason: str | None

    def __post_init__(self) -> None:
        require_type("Termination.reason", self.reason, str, type(None))
        if self.kind not in ("completed", "refused", "incomplete"):
            raise InputError("Termination.kind: expected 'completed', 'refused' or 'incomplete'")

    @classmethod
    def of(cls, word: str | None) -> Termination:
        """Map a provider's finish word; None (inferred from a checked end) counts as completed."""
        if word in ("stop", "tool_calls", None):
            return cls(kind="completed", reason=word)
        if word == "content_filter":
            return cls(kind="refused", reason=word)
        return cls(kind="incomplete", reason=word)


class Usage(Value, frozen=True):
    """Tokens as the provider reported them; never estimated here.

    Attributes:
        input_tokens, output_tokens, total_tokens: non-negative; the total may be more than the
            sum (hidden reasoning).
        cached_input_tokens, reasoning_tokens: parts of the above, None where not told.
    """

    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None and name in ("cached_input_tokens", "reasoning_tokens"):
                continue
            if type(value) is not int or value < 0:
                raise InputError(f"Usage.{name}: expected an integer of 0 or more, got {type(value).__name__}")

    def __add__(self, other: Usage) -> Usage:
        """Sum two reports; a part is kept where either tells it."""

        def both(a: int | None, b: int | None) -> int | None:
            return None if a is None and b is None else (a or 0) + (b or 0)

        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            total_tokens=self.total_tokens + other.total_tokens,
            cached_input_tokens=both(self.cached_input_tokens, other.cached_input_tokens),
            reasoning_tokens=both(self.reasoning_tokens, other.reasoning_tokens),
        )


class Native(Value, frozen=True):
    """What the provider's protocol needs to continue and the common fields do not hold.

    Attributes:
        format, version: which protocol ``data`` belongs to.
        data: canonical JSON text of one object, ``"{}"`` when there is nothing. For
            chat-completions its keys are ``reasoning_content``, ``reasoning``,
            ``reasoning_details``, ``thinking_blocks``, ``refusal``, ``content`` (parts as sent),
            ``extra_content``, ``calls`` (extra fields by position in the reply, such as
            signatures; those of a call's function are under ``function``) and ``call_text``, where
            calls were written in the text: ``written`` is all of it, in pieces that refer to the
            visible text and the arguments (see `agentloop.wire.written`), ``faults`` what was wrong
            with the calls that could not be read, by position.
    """

    format: Literal["chat-completions"] = "chat-completions"
    version: Literal[1] = 1
    data: str = "{}"

    def __post_init__(self) -> None:
        require_type("Native.version", self.version, int)
        require_type("Native.data", self.data, str)
        if self.format != "chat-completions" or self.version != 1:
            raise InputError("Native: expected format 'chat-completions', version 1")


class TextPart(Value, frozen=True, tag="text", tag_field="kind"):
    """Text in a user message that has several parts."""

    text: str

    def __post_init__(self) -> None:
        require_type("TextPart.text", self.text, str)


class ImagePart(Value, frozen=True, tag="image", tag_field="kind"):
    """An image in a user message.

    Attributes:
        url: an ``https:`` URL, or a ``data:image/...;base64,`` URL.
        detail: how closely the model shall look, where the provider knows the word.
    """

    url: str
    detail: Literal["auto", "low", "high"] | None = None

    def __post_init__(self) -> None:
        require_type("ImagePart.url", self.url, str)
        if not self.url.startswith(("https://", "data:image/")):
            raise InputError("ImagePart.url: expected an https: or data:image/ URL")
        if self.detail not in (None, "auto", "low", "high"):
            raise InputError("ImagePart.detail: expected 'auto', 'low', 'high' or None")


class TextContent(Value, frozen=True, tag="text", tag_field="kind"):
    """Text in a tool's result."""

    text: str

    def __post_init__(self) -> None:
        require_type("TextContent.text", self.text, str)
