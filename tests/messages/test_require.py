"""What a host hands in is checked in full, every time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import messages
from agentloop.errors import AdmissionError, HistoryError, InputError
from agentloop.messages import (
    FunctionSpec,
    JsonText,
    ModelExchange,
    ModelOptions,
    ModelReply,
    ModelRequest,
    Native,
    ResponseFormat,
    Termination,
    Text,
    TextContent,
    ToolCall,
    ToolChoice,
    ToolFeedback,
    ToolResult,
    Usage,
    UserMessage,
    decode_model_exchange,
    decode_model_reply,
    decode_model_request,
    decode_tool_feedback,
    decode_tool_result,
    require_model_exchange,
    require_model_reply,
    require_model_request,
    require_tool_feedback,
    require_tool_result,
)
from tests.messages.values import call, exchange, exchanges, replies, reply, request, requests, results

FEEDBACK = ToolFeedback(tool_call_id="c1", status="ok", content=(TextContent(text="x"),))
PAIRS: list[tuple[Callable[[Any], Any], Callable[[Any], Any], Any]] = [
    (require_model_request, decode_model_request, request(exchanges=(exchange("c1"),))),
    (require_model_reply, decode_model_reply, reply(Text(text="a"), call("c1"))),
    (require_tool_result, decode_tool_result, ToolResult.ok("x")),
    (require_tool_feedback, decode_tool_feedback, FEEDBACK),
    (require_model_exchange, decode_model_exchange, exchange("c1", "c2")),
]


def changed(value: Any, **fields: Any) -> Any:
    """The value, changed behind its constructor's back."""
    for name, item in fields.items():
        msgspec.structs.force_setattr(value, name, item)
    return value


def refusal(check: Callable[[Any], Any], value: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        check(value)
    return caught.value


def test_there_is_one_check_for_each_thing_a_host_hands_in() -> None:
    """(R36)"""
    names = [name for name in messages.__all__ if name.startswith("require_")]
    assert names == [
        "require_model_exchange",
        "require_model_reply",
        "require_model_request",
        "require_tool_feedback",
        "require_tool_result",
    ]


@pytest.mark.parametrize(("require", "_decode", "value"), PAIRS)
def test_a_check_returns_the_object_it_was_given(require: Any, _decode: Any, value: Any) -> None:
    """(R37)"""
    assert require(value) is value


@given(requests)
def test_any_request_that_can_be_made_is_admitted_and_read_back(value: ModelRequest) -> None:
    """(R36)"""
    assert require_model_request(value) is value
    assert decode_model_request(msgspec.json.encode(value)) == value


@given(replies | exchanges | results)
def test_any_reply_exchange_and_result_is_admitted_and_read_back(value: Any) -> None:
    """(R36)"""
    decode = {ModelReply: decode_model_reply, ModelExchange: decode_model_exchange, ToolResult: decode_tool_result}
    require = {ModelReply: require_model_reply, ModelExchange: require_model_exchange, ToolResult: require_tool_result}
    assert require[type(value)](value) is value
    assert decode[type(value)](msgspec.json.encode(value)) == value


def test_a_value_changed_after_a_check_is_refused_by_the_next() -> None:
    """No trust is kept between two checks (R37)."""
    value = reply(Text(text="a"))
    require_model_reply(value)
    changed(value.output[0], text=7)
    assert str(refusal(require_model_reply, value)) == "$.output[0].text: expected str, got int"


@pytest.mark.parametrize(("require", "_decode", "value"), PAIRS)
@pytest.mark.parametrize("wrong", [None, {}, [], (), "x", 1, object(), type, Text(text="a")])
def test_anything_but_the_value_itself_is_refused(require: Any, _decode: Any, value: Any, wrong: Any) -> None:
    """(R46)"""
    error = refusal(require, wrong)
    assert str(error) == f"$: expected {type(value).__name__}, got {type(wrong).__name__}"


class SubReply(ModelReply, frozen=True):
    @property
    def text(self) -> str:
        return "another text each time"


class SubText(Text, frozen=True, tag="text"):
    pass


class SubStr(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class SubInt(int):
    pass


class SubTuple(tuple[Any, ...]):
    __slots__ = ()

    def __iter__(self) -> Any:
        return iter(())


class Proxy:
    """Answers for another object, its class included."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __getattribute__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "target"), name)


class Liar:
    __class__ = ModelReply  # type: ignore[assignment]


def test_a_subclass_with_its_own_properties_is_refused() -> None:
    """(R43)"""
    fields = {name: getattr(reply(), name) for name in ModelReply.__struct_fields__}
    assert str(refusal(require_model_reply, SubReply(**fields))) == "$: expected ModelReply, got SubReply"
    value = changed(reply(), output=(SubText(text="a"),))
    assert str(refusal(require_model_reply, value)) == "$.output[0]: expected Text or ToolCall, got SubText"


def test_proxies_and_objects_that_claim_a_class_are_refused() -> None:
    """(R44)"""
    assert isinstance(Proxy(reply()), ModelReply)
    assert isinstance(Liar(), ModelReply)
    assert refusal(require_model_reply, Proxy(reply())).args[:2] == ("$", "expected ModelReply, got Proxy")
    assert refusal(require_model_reply, Liar()).args[:2] == ("$", "expected ModelReply, got Liar")
    value = changed(exchange("c1"), reply=Proxy(exchange("c1").reply))
    assert str(refusal(require_model_exchange, value)) == "$.reply: expected ModelReply, got Proxy"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"id": SubStr("a")}, "$.id: expected str, got SubStr"),
        ({"id": b"a"}, "$.id: expected str, got bytes"),
        ({"model": "a\ud800"}, "$.model: expected Unicode text, got half a surrogate pair"),
        ({"output": SubTuple()}, "$.output: expected tuple, got SubTuple"),
        ({"output": []}, "$.output: expected tuple, got list"),
        ({"output": ({"kind": "text", "text": "a"},)}, "$.output[0]: expected Text or ToolCall, got dict"),
        ({"termination": None}, "$.termination: expected Termination, got NoneType"),
        ({"usage": 1}, "$.usage: expected Usage or None, got int"),
        ({"format_version": 2}, "$.format_version: expected 1, got another int"),
        ({"format_version": True}, "$.format_version: expected 1, got another bool"),
        ({"format_version": SubInt(1)}, "$.format_version: expected 1, got another SubInt"),
        ({"native": None}, "$.native: expected Native, got NoneType"),
    ],
)
def test_every_field_has_its_exact_type(fields: dict[str, Any], message: str) -> None:
    """(R40, R46)"""
    assert str(refusal(require_model_reply, changed(reply(), **fields))) == message


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: changed(Usage(input_tokens=1, output_tokens=1, total_tokens=2), input_tokens=True), "$.usage"),
        (lambda: changed(Usage(input_tokens=1, output_tokens=1, total_tokens=2), output_tokens=-1), "$.usage"),
        (lambda: changed(Usage(input_tokens=1, output_tokens=1, total_tokens=2), total_tokens=SubInt(3)), "$.usage"),
        (lambda: changed(Usage(input_tokens=1, output_tokens=1, total_tokens=2), total_tokens=10**5000), "$.usage"),
        (lambda: changed(Usage(input_tokens=1, output_tokens=1, total_tokens=2), total_tokens=1.0), "$.usage"),
    ],
)
def test_counts_are_exact_integers(make: Any, path: str) -> None:
    """(R46)"""
    error = refusal(require_model_reply, changed(reply(), usage=make()))
    assert str(error).startswith(path)


def test_a_cycle_is_refused() -> None:
    """(R45)"""
    value = exchange("c1")
    changed(value.reply, output=(value,))
    assert (
        str(refusal(require_model_exchange, value)) == "$.reply.output[0]: expected Text or ToolCall, got ModelExchange"
    )
    loop = ToolResult.ok("x")
    changed(loop, content=(loop,))
    assert str(refusal(require_tool_result, loop)) == "$.content[0]: expected TextContent, got ToolResult"


def test_two_calls_with_one_id_are_refused() -> None:
    """(R41)"""
    value = changed(reply(call("c1"), call("c2")), output=(call("c1"), call("c1")))
    assert "output[1].id: expected an id unique in the reply" in str(refusal(require_model_reply, value))


@pytest.mark.parametrize(
    ("feedback", "code", "path"),
    [
        ((), "missing_tool_result", "$.exchanges[1].feedback[0]"),
        ((FEEDBACK, FEEDBACK), "orphan_tool_result", "$.exchanges[1].feedback[1]"),
        (
            (ToolFeedback(tool_call_id="c2", status="ok", content=()),),
            "orphan_tool_result",
            "$.exchanges[1].feedback[0]",
        ),
    ],
)
def test_incomplete_feedback_is_refused_with_its_place(feedback: Any, code: str, path: str) -> None:
    """(R42)"""
    value = request(exchanges=(exchange("c0"), changed(exchange("c1"), feedback=feedback)))
    error = refusal(require_model_request, value)
    assert isinstance(error, HistoryError)
    assert (error.code, error.path) == (code, path)


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ("", "the end of the text"),
        ("[]", "got list"),
        ("null", "got NoneType"),
        ('{"a":NaN}', "NaN"),
        ('{"a":1,"a":1}', "duplicate"),
        ('{"a":' + "[" * 70 + "]" * 70 + "}", "64 levels"),
        ('{"a":"\\ud800"}', "surrogate"),
        ('{"a":[' + "0," * 100_000 + "0]}", "100000 values"),
    ],
)
def test_native_data_is_one_strict_json_object(data: str, word: str) -> None:
    """(R46, R107)"""
    error = refusal(require_model_reply, changed(reply(), native=changed(Native(), data=data)))
    assert str(error).startswith("$.native.data: expected the text of a JSON object")
    assert word in str(error)


@pytest.mark.parametrize("text", ["", "{", "{}}", '{"a":1,"a":2}', "SECRET"])
def test_the_text_of_arguments_is_not_read(text: str) -> None:
    """(R18, R19)"""
    value = reply(call(arguments=text))
    assert require_model_reply(value).calls[0].arguments == JsonText(text=text)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": ()}, "$.messages"),
        ({"messages": ("hi",)}, "$.messages[0]"),
        ({"messages": (UserMessage(content="a"), reply())}, "$.messages[1]"),
        ({"exchanges": (reply(),)}, "$.exchanges[0]"),
        ({"tools": (FunctionSpec(name="a"), FunctionSpec(name="b"), FunctionSpec(name="a"))}, "$.tools[2].name"),
        ({"tools": (FunctionSpec(name="no spaces"),)}, "$.tools[0].name"),
        ({"tools": (FunctionSpec(name="x" * 65),)}, "$.tools[0].name"),
        ({"tools": (FunctionSpec(name=""),)}, "$.tools[0].name"),
        ({"tools": (FunctionSpec(name="a\n"),)}, "$.tools[0].name"),
        ({"tools": (FunctionSpec(name="a", parameters="[]"),)}, "$.tools[0].parameters"),
        ({"options": ModelOptions(extra="{")}, "$.options.extra"),
        (
            {"options": ModelOptions(response_format=ResponseFormat(kind="json_schema", schema="1"))},
            "$.options.response_format.schema",
        ),
        ({"options": ModelOptions(tool_choice=ToolChoice(name="absent"))}, "$.options.tool_choice"),
        ({"options": changed(ModelOptions(), tool_choice="sometimes")}, "$.options.tool_choice"),
        ({"options": changed(ModelOptions(), temperature=3)}, "$.options"),
        ({"options": changed(ModelOptions(), temperature=float("nan"))}, "$.options.temperature"),
        ({"options": changed(ModelOptions(), stop=("",))}, "$.options"),
    ],
)
def test_a_request_has_rules_between_its_parts(fields: dict[str, Any], path: str) -> None:
    """(R46)"""
    error = refusal(require_model_request, request(**fields))
    assert isinstance(error, AdmissionError)
    assert error.path == path


def test_size_is_bounded_as_json() -> None:
    """(R107)"""
    fits = ToolResult.ok("x" * (2 * 1024 * 1024 - 100))
    assert require_tool_result(fits) is fits
    assert "2097152 bytes" in str(refusal(require_tool_result, ToolResult.ok("x" * 2 * 1024 * 1024)))
    assert "2097152 bytes" in str(refusal(require_tool_result, ToolResult.ok("\n" * (1024 * 1024 + 1))))
    shared = (TextContent(text="x" * 100_000),) * 90_000
    assert "2097152 bytes" in str(refusal(require_tool_result, ToolResult(status="ok", content=shared)))


def test_the_number_of_values_is_bounded() -> None:
    """(R107)"""
    many = ToolResult(status="ok", content=(TextContent(text=""),) * 50_001)
    assert "100000 values" in str(refusal(require_tool_result, many))


def tampered(value: Any, edit: Callable[[dict[str, Any]], object]) -> str:
    record = json.loads(msgspec.json.encode(value))
    edit(record)
    return json.dumps(record)


@pytest.mark.parametrize(("_require", "decode", "value"), PAIRS)
def test_unknown_fields_are_refused_at_every_level(_require: Any, decode: Any, value: Any) -> None:
    """(R39)"""

    def objects(record: Any) -> list[dict[str, Any]]:
        if isinstance(record, dict):
            return [record, *(found for item in record.values() for found in objects(item))]
        return [found for item in record for found in objects(item)] if isinstance(record, list) else []

    count = len(objects(json.loads(msgspec.json.encode(value))))
    assert count > 1
    for at in range(count):
        text = tampered(value, lambda record, at=at: objects(record)[at].update(another=1))  # type: ignore[misc]
        error = refusal(decode, text)
        assert error.args[1] == "expected no field of this name"
        assert str(error.args[0]).endswith(".another")


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record.update(format_version=2),
        lambda record: record.update(format_version="1"),
        lambda record: record.update(format_version=None),
        lambda record: record["native"].update(version=2),
        lambda record: record["native"].update(format="responses"),
    ],
)
def test_unknown_versions_are_refused(edit: Any) -> None:
    """(R23, R40)"""
    error = refusal(decode_model_reply, tampered(reply(), edit))
    assert isinstance(error, AdmissionError)
    assert error.path in ("$.format_version", "$.native.version", "$.native.format")


def test_a_record_with_two_equal_keys_is_refused() -> None:
    """(R46)"""
    text = msgspec.json.encode(ToolResult.ok("x")).decode()
    error = refusal(decode_tool_result, text[:-1] + ',"status":"error"}')
    assert str(error).startswith("$.status: expected each key once")


def test_a_decoded_exchange_needs_complete_feedback() -> None:
    """(R42)"""
    error = refusal(decode_model_exchange, tampered(exchange("c1", "c2"), lambda record: record["feedback"].pop()))
    assert isinstance(error, HistoryError)
    assert (error.code, error.path) == ("missing_tool_result", "$.feedback[1]")


SECRET = "SECRET-7f3a"


@given(st.data())
def test_no_error_holds_the_body(data: st.DataObject) -> None:
    """Whatever is wrong with a value full of secrets, the error shows none (R47)."""
    value = ModelExchange(
        reply=ModelReply(
            id=SECRET,
            model=SECRET,
            output=(Text(text=SECRET), ToolCall(id=SECRET, name=SECRET, arguments=JsonText(text=SECRET))),
            termination=Termination(kind="incomplete", reason=SECRET),
            usage=None,
            native=Native(data=json.dumps({"reasoning_content": SECRET})),
        ),
        feedback=(ToolFeedback.of(SECRET, ToolResult.error(SECRET)),),
    )
    places = [
        (value, "feedback"),
        (value, "reply"),
        *((value.reply, name) for name in ModelReply.__struct_fields__),
        *((value.reply.output[1], name) for name in ToolCall.__struct_fields__),
        *((value.feedback[0], name) for name in ToolFeedback.__struct_fields__),
        (value.reply.native, "data"),
        (value.reply.termination, "kind"),
    ]
    target, name = data.draw(st.sampled_from(places))
    wrong = data.draw(
        st.sampled_from([SECRET + "\ud800", SECRET.encode(), [SECRET], {SECRET: SECRET}, SubStr(SECRET), object()])
    )
    changed(target, **{name: wrong})
    error = refusal(require_model_exchange, value)
    seen: BaseException | None = error
    while seen is not None:
        assert SECRET not in str(seen)
        assert SECRET not in repr(seen)
        seen = seen.__cause__ or seen.__context__


@pytest.mark.parametrize(
    "text",
    [
        f'{{"{SECRET}',
        f'{{"status":"{SECRET}","content":[]}}',
        f'{{"status":"ok","content":"{SECRET}"}}',
        f'{{"status":"ok","content":[{{"kind":"{SECRET}","text":""}}]}}',
        f'{{"status":"ok","content":[],"the {SECRET}":1}}',
        f'["{SECRET}"]',
    ],
)
def test_no_error_about_a_record_holds_its_body(text: str) -> None:
    """(R47)"""
    error = refusal(decode_tool_result, text)
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None
