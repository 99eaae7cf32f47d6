"""Tool calls written in a model's text, for models whose server has no calls of its own (R342).

Such a model is told its tools in the instructions, writes a call between two tags in its text, and reads what the
tools answered in a user message. `CallText` is the contract of one way to write all that; `ToolCallParser` is
the way of the Hermes and Qwen chat templates (NousResearch/Hermes-Function-Calling, 2024; Qwen 2.5 and 3, 2024 to
2025), which many open models were trained on:

    <tool_call>
    {"name": "read_note", "arguments": {"id": "n1"}}
    </tool_call>

A `Dialect` with a ``call_text`` reads and writes calls so. What a tag is, is decided by `agentloop.wire.tagged`;
what is between two tags, by the parser. Text that is no call is never mended: it becomes a call of the name
`MALFORMED_CALL`, which no tool can have, runs nothing, and is answered with what is wrong and where.
"""

from __future__ import annotations

import functools
import unicodedata
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from ..admission import is_unicode
from ..admission.strict_json import parse
from ..errors import AdmissionError, InputError
from ..messages.feedback import ToolFeedback, ToolResult
from ..messages.parts import JsonText, ToolCall, require_type
from ..messages.reply import ModelReply
from ..messages.request import FunctionSpec, ModelOptions, ToolChoice
from .catalogue import declared_tool
from .fault import kind_of
from .written import join_written

__all__ = [
    "CallText",
    "CallTextRefused",
    "MALFORMED_CALL",
    "TextCall",
    "ToolCallParser",
    "call_instruction",
    "malformed_feedback",
    "read_calls",
    "require_call_text",
    "written_result",
    "written_text",
]

MALFORMED_CALL: Final = "<malformed call>"
"""The name of a call that could not be read: outside of what a tool's name may be, so it is no tool's."""

_FEEDBACK_CHARS: Final = 560
_TAG_CHARS: Final = 64
_TO_JSON: Final = msgspec.json.Encoder().encode


class TextCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call as it was read from a text.

    Attributes:
        name: not empty.
        arguments: the JSON text of the arguments exactly as the model wrote it; ``""`` where there are none.

    Raises:
        InputError: a member of another type or with a lone surrogate, or an empty name.
    """

    name: str
    arguments: str

    def __post_init__(self) -> None:
        _require_text("TextCall.name", self.name)
        _require_text("TextCall.arguments", self.arguments)
        if not self.name:
            raise InputError("TextCall.name: expected a non-empty string")


class CallTextRefused(InputError):
    """A text between the tags is no call. Nothing runs.

    Attributes:
        feedback: what the model shall read: what was expected, what came, and where; not empty, up to 560
            characters.

    Raises:
        InputError: feedback that is no such text.
    """

    code = "malformed_call"

    def __init__(self, feedback: str) -> None:
        _require_text("CallTextRefused.feedback", feedback)
        if not feedback:
            raise InputError("CallTextRefused.feedback: expected a non-empty string")
        super().__init__(feedback)
        self.feedback = feedback if len(feedback) <= _FEEDBACK_CHARS else feedback[: _FEEDBACK_CHARS - 1] + "…"


@runtime_checkable
class CallText(Protocol):
    """One way to write calls in text. Plain objects may implement it.

    A value of it is part of a dialect: it is hashable, never changes, and equal values read and write the same.
    What it writes is text that UTF-8 can encode; where it gives something else, an `InputError` names the member.
    For each tool catalogue, `write_call` and `write_result` are asked for an example too, a call without arguments
    of which nothing ran: what writes no text is found before a request is sent.

    Attributes:
        opening, closing: the tags around a call: 1 to 64 characters without white space and control characters;
            neither holds the other.
        json_strings: whether what is between the tags is JSON, so that a closing tag inside one of its strings
            is text; such a ``closing`` holds no quotation mark.
    """

    def __hash__(self) -> int: ...

    @property
    def opening(self) -> str: ...

    @property
    def closing(self) -> str: ...

    @property
    def json_strings(self) -> bool: ...

    def format_instruction(self, specs: tuple[FunctionSpec, ...], /) -> str:
        """What the model is told of 1 or more tools and of how to call them; asked once for each tool catalogue."""
        ...

    def parse(self, text: str, /, *, closed: bool) -> tuple[TextCall, ...]:
        """The calls, 1 or more, in what stood between the tags.

        Args:
            closed: whether the closing tag came; without it the text goes on to the end of the reply.

        Raises:
            CallTextRefused: it is no call.
        """
        ...

    def write_call(self, call: ToolCall, /) -> str:
        """The text of a call that was not written by this model: with its tags."""
        ...

    def write_result(self, call: ToolCall, feedback: ToolFeedback, /) -> str:
        """The text in which the model reads the answer to one of its calls."""
        ...


class ToolCallParser(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls as JSON in tags: an object ``{"name": …, "arguments": {…}}``, or an array of such objects.

    The text is strict JSON, and taken whole or not at all: an array with one bad member is no call. ``arguments`` is an
    object, or null or missing where there are none; another member is refused, so that nothing the model says is
    dropped. Code fences, comments and cut brackets are not taken away or mended. Where the closing tag is
    missing, because a server takes it for a stop sequence and keeps it, the text must be complete without it.

    A subclass may write the instruction, the calls and the results in another way.

    Attributes:
        opening, closing: the tags around a call.
        result_opening, result_closing: the tags around a tool's answer, whose text stands between them as it is.

    Raises:
        InputError: a tag that is none, by name.
    """

    opening: str = "<tool_call>"
    closing: str = "</tool_call>"
    result_opening: str = "<tool_response>"
    result_closing: str = "</tool_response>"

    def __post_init__(self) -> None:
        for name in ("result_opening", "result_closing"):
            _require_tag(f"ToolCallParser.{name}", getattr(self, name))
        require_call_text(self, where="ToolCallParser")

    @property
    def json_strings(self) -> bool:
        return True

    def format_instruction(self, specs: tuple[FunctionSpec, ...], /) -> str:
        """The tools, a JSON object a line, and how a call is written.

        Raises:
            AdmissionError: a schema that is no JSON object.
        """
        declared = (_TO_JSON(declared_tool(spec, f"$.tools[{at}]", strict=False)) for at, spec in enumerate(specs))
        tools = "\n".join(item.decode() for item in declared)
        return (
            "# Tools\n\n"
            "You can call functions to help with what the user asks. "
            "Each line between <tools> and </tools> is the JSON declaration of one function:\n"
            f"<tools>\n{tools}\n</tools>\n\n"
            "To call a function, write a JSON object with its name and its arguments "
            f"between {self.opening} and {self.closing}:\n"
            f'{self.opening}\n{{"name": <function name>, "arguments": <JSON object of arguments>}}\n{self.closing}\n'
            f"Write one such block for each call, and end your turn after the last one. "
            f"You then read the results, in the order of the calls, between {self.result_opening} "
            f"and {self.result_closing}."
        )

    def parse(self, text: str, /, *, closed: bool) -> tuple[TextCall, ...]:
        """See `CallText.parse`."""
        try:
            return _read(text)
        except AdmissionError as error:
            reason = self._broken(text, error)
        except CallTextRefused as refused:
            reason = refused.feedback
        if not closed and self.closing in text:
            reason += f", and {self.closing} stands in its strings only"
        elif not closed:
            reason += f", and the closing tag {self.closing} is missing"
        raise CallTextRefused(
            f"What follows {self.opening} is no call: {reason}. Expected "
            f'{self.opening}{{"name": …, "arguments": {{…}}}}{self.closing}, or an array of such objects.'
        )

    def _broken(self, text: str, error: AdmissionError) -> str:
        """Where the JSON breaks, and whether a code fence or another call begins there."""
        broken_at = error.position or 0
        at = "" if error.position is None else f" at character {error.position}"
        where = at + ("" if error.path == "$" else f" ({error.path[:120]})")
        reason = f"it is not one JSON text{where}: {error.rule}"
        if text.startswith("```", broken_at):
            reason += " (write it without code fences)"
        if self.opening in text[broken_at:]:
            reason += f", and {self.opening} opens again before {self.closing}"
        return reason

    def write_call(self, call: ToolCall, /) -> str:
        """See `CallText.write_call`."""
        name = _TO_JSON(call.name).decode()
        return f'{self.opening}\n{{"name": {name}, "arguments": {call.arguments.text or "{}"}}}\n{self.closing}'

    def write_result(self, _call: ToolCall, feedback: ToolFeedback, /) -> str:
        """See `CallText.write_result`; results stand in the order of the calls."""
        return f"{self.result_opening}\n{feedback.text}\n{self.result_closing}"


class _RawCall(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()


@functools.cache
def _decoders() -> tuple[msgspec.json.Decoder[_RawCall], msgspec.json.Decoder[list[_RawCall]]]:
    """Of one call and of several; made when the first one is read."""
    return msgspec.json.Decoder(_RawCall), msgspec.json.Decoder(list[_RawCall])


def _read(text: str) -> tuple[TextCall, ...]:
    """Read one object or an array of them; the arguments are a slice of the text."""
    value = parse(text)
    if type(value) is dict:
        _check_call(value, "")
        raw = [_decoders()[0].decode(text)]
    elif type(value) is list and value:
        for at, item in enumerate(value):
            _check_call(item, f"[{at}]")
        raw = _decoders()[1].decode(text)
    else:
        got = "an empty array" if value == [] else kind_of(value)
        raise CallTextRefused(f"expected an object or an array of objects, got {got}")
    return tuple(TextCall(name=call.name, arguments=bytes(call.arguments).decode()) for call in raw)


def _check_call(value: Any, place: str) -> None:
    if type(value) is not dict:
        raise CallTextRefused(f"${place}: expected an object, got {kind_of(value)}")
    if "name" not in value:
        raise CallTextRefused(f"${place}.name: expected the name of a function, got none")
    name = value["name"]
    if type(name) is not str or not name:
        raise CallTextRefused(f"${place}.name: expected the name of a function, got {kind_of(name)}")
    arguments = value.get("arguments")
    if arguments is not None and type(arguments) is not dict:
        raise CallTextRefused(f"${place}.arguments: expected an object, got {kind_of(arguments)}")
    others = sorted(value.keys() - {"name", "arguments"})
    if others:
        shown = others[0] if len(others[0]) <= 40 else others[0][:39] + "…"
        raise CallTextRefused(f"${place}: expected the members name and arguments only, got {shown!r}")


def require_call_text(value: object, *, where: str) -> None:
    """Refuse what is no `CallText`.

    Raises:
        InputError: it has no such member, its tags cannot be told apart, or it is not hashable; begins with ``where``.
    """
    try:
        hash(value)
    except TypeError:
        raise InputError(f"{where}: expected a hashable value, got {type(value).__name__}") from None
    if isinstance(value, type) or not isinstance(value, CallText):
        got = value.__name__ if isinstance(value, type) else type(value).__name__
        raise InputError(f"{where}: expected a ToolCallParser, or an object that is a CallText, got {got}")
    for name in ("opening", "closing"):
        _require_tag(f"{where}.{name}", getattr(value, name))
    if value.opening in value.closing or value.closing in value.opening:
        raise InputError(f"{where}: expected tags of which neither holds the other")
    if type(value.json_strings) is not bool:
        raise InputError(f"{where}.json_strings: expected bool, got {type(value.json_strings).__name__}")
    if value.json_strings and '"' in value.closing:
        raise InputError(f"{where}.closing: expected no quotation mark, since JSON strings end with one")


def _require_tag(name: str, tag: object) -> None:
    require_type(name, tag, str)
    assert isinstance(tag, str), "checked just now"
    if not 1 <= len(tag) <= _TAG_CHARS or tag.split() != [tag] or not is_unicode(tag):
        raise InputError(f"{name}: expected 1 to {_TAG_CHARS} characters without white space")
    for at, char in enumerate(tag):
        if unicodedata.category(char) == "Cc":
            raise InputError(f"{name}: expected no control character, got U+{ord(char):04X} at character {at}")


def _require_text(name: str, text: object) -> None:
    require_type(name, text, str)
    assert isinstance(text, str), "checked just now"
    if not is_unicode(text):
        raise InputError(f"{name}: expected text that UTF-8 can encode, got a lone surrogate")


def _member(call_text: CallText, name: str) -> str:
    """How an error names a member of a dialect's ``call_text``."""
    return f"Dialect.call_text: {type(call_text).__name__}.{name}"


def read_calls(call_text: CallText, text: str, *, closed: bool) -> tuple[TextCall, ...]:
    """What `CallText.parse` says, checked.

    Raises:
        CallTextRefused: it is no call.
        InputError: an answer that is no tuple of calls, or feedback or a call that is no text; names the member.
    """
    where = _member(call_text, "parse")
    try:
        calls: object = call_text.parse(text, closed=closed)
    except CallTextRefused:
        raise
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    if not isinstance(calls, tuple):
        raise InputError(f"{where}: expected a tuple of 1 or more TextCall, got {type(calls).__name__}")
    if not calls:
        raise InputError(
            f"{where}: expected a tuple of 1 or more TextCall, got none; raise CallTextRefused for no call"
        )
    for at, call in enumerate(calls):
        if not isinstance(call, TextCall):
            raise InputError(f"{where}: expected a TextCall at [{at}], got {type(call).__name__}")
    return calls


def written_result(call_text: CallText, call: ToolCall, feedback: ToolFeedback) -> str:
    """What `CallText.write_result` says, checked.

    Raises:
        InputError: an answer that is no text; names the member.
    """
    said = call_text.write_result(call, feedback)
    _require_text(_member(call_text, "write_result"), said)
    return said


def _written_call(call_text: CallText, call: ToolCall) -> str:
    said = call_text.write_call(call)
    _require_text(_member(call_text, "write_call"), said)
    return said


@functools.lru_cache(maxsize=64)
def _catalogue_instruction(call_text: CallText, tools: tuple[FunctionSpec, ...]) -> str:
    said = call_text.format_instruction(tools)
    _require_text(_member(call_text, "format_instruction"), said)
    example = ToolCall(id="call_0", name=tools[0].name, arguments=JsonText(text="{}"))
    _written_call(call_text, example)
    written_result(call_text, example, ToolFeedback.of(example.id, ToolResult.error("Nothing ran.")))
    return said


def call_instruction(call_text: CallText, tools: tuple[FunctionSpec, ...], options: ModelOptions) -> str:
    """All that a request says of its tools where calls are text; ``""`` without tools.

    What ``tool_choice`` and ``parallel_tool_calls`` ask for is said in words, which a model may ignore.

    Raises:
        AdmissionError, InputError: the instruction cannot be made, or a call or a result could not be written.
    """
    if not tools:
        return ""
    words = [_catalogue_instruction(call_text, tools)]
    choice = options.tool_choice
    if type(choice) is ToolChoice:
        words.append(f"Your next answer must call the function {choice.name}.")
    elif choice == "required":
        words.append("Your next answer must call a function.")
    elif choice == "none":
        words.append("Your next answer must not call a function.")
    if options.parallel_tool_calls is False:
        words.append("Make at most one call in an answer.")
    return "\n".join(words)


def written_text(reply: ModelReply, native: dict[str, Any], call_text: CallText) -> str:
    """A reply as its model wrote it; one that was written in another way, as this way writes it.

    Raises:
        AdmissionError: what is kept of the text does not fit the reply.
        InputError: ``call_text`` writes a call as what is no text.
    """
    if "call_text" in native:
        kept = native["call_text"]
        return join_written(reply, kept.get("written") if type(kept) is dict else kept)
    written = (_written_call(call_text, item) if isinstance(item, ToolCall) else item.text for item in reply.output)
    return "\n".join(written)


def malformed_feedback(reply: ModelReply, position: int) -> str | None:
    """What the model shall read on a call that could not be read; None for any other call.

    Args:
        position: of the call among those of the reply.
    """
    if reply.calls[position].name != MALFORMED_CALL:
        return None
    kept = msgspec.json.decode(reply.native.data).get("call_text")
    faults = kept.get("faults") if type(kept) is dict else None
    said = faults.get(str(position)) if type(faults) is dict else None
    return said if type(said) is str else None
