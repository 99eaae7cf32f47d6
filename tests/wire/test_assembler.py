"""What the strict rules admit and refuse, event by event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import msgspec
import pytest

from agentloop.errors import StreamRefused
from agentloop.messages import Native, Termination, Text, ToolCall, Usage
from agentloop.wire import CallDelta, ReasoningDelta, ReplyAssembler, TextDelta, reasoning_text, refusal_text
from tests.wire.streams import (
    CALLED,
    COUNTED,
    DONE,
    FIRST,
    HELLO,
    OSLO,
    ROME,
    STOP,
    USAGE,
    WEATHER,
    accepted,
    allowing,
    arguments,
    call,
    calls,
    choice,
    chunk,
    event,
    feed,
    is_linear,
    refused,
    text,
)


def test_a_text_stream_becomes_a_reply_with_its_identity_and_usage() -> None:
    """R3, R16, R17, R24, R115, R117, R118, R119."""
    reply = accepted(*HELLO)
    assert (reply.format_version, reply.id, reply.model) == (1, "chatcmpl-1", "model-1")
    assert reply.output == (Text(text="Hello, world"),)
    assert reply.termination == Termination(kind="completed", reason="stop")
    assert reply.usage == Usage(input_tokens=11, output_tokens=7, total_tokens=18)
    assert reply.native == Native()


def test_a_call_keeps_its_raw_argument_text() -> None:
    """R17, R18, R24: arguments stay text, here one that is no JSON at all."""
    reply = accepted(*WEATHER[:3], calls(call(0, arguments='NaN, "x')), CALLED, COUNTED, DONE)
    (made,) = reply.output
    assert type(made) is ToolCall
    assert (made.id, made.name) == ("call_a", "get_weather")
    assert (made.arguments.encoding, made.arguments.text) == ("json-text", '{"city":NaN, "x')
    assert reply.termination.kind == "completed"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("stop", "completed"),
        ("content_filter", "refused"),
        ("length", "incomplete"),
        ("eos", "incomplete"),
        ("error", "incomplete"),
        ("Stop", "incomplete"),
        ("функция", "incomplete"),
    ],
)
def test_each_finish_word_maps_to_one_kind_and_is_kept(word: str, kind: str) -> None:
    """R24, R25, R26."""
    reply = accepted(FIRST, text("Hi"), chunk(choice({}, finish=word)), COUNTED, DONE)
    assert (reply.termination.kind, reply.termination.reason) == (kind, word)


def test_text_and_calls_stand_in_the_order_in_which_they_began() -> None:
    """R16: `output` is ordered."""
    opening = calls(call(0, id="a", name="f", arguments="{}"))
    before = accepted(text("I"), opening, text(" ask"), CALLED, COUNTED, DONE)
    after = accepted(FIRST, opening, text("I"), text(" asked"), CALLED, COUNTED, DONE)
    assert [type(item) for item in before.output] == [Text, ToolCall]
    assert [type(item) for item in after.output] == [ToolCall, Text]
    assert before.text == "I ask"


# harmless


@pytest.mark.parametrize(
    "odd",
    [
        chunk(choice({"content": "x", "role": None}), created=5, system_fingerprint="fp"),
        chunk(choice({"content": "x"}, finish=...)),
        chunk(choice({"content": "x", "tool_calls": None}, message={"content": "x"})),
        chunk(choice({"content": "x", "tool_calls": [], "function_call": None, "reasoning": None})),
        chunk(choice({"content": "x"}), usage=None, obfuscation="q9", x_groq={"id": "req"}),
        chunk(choice({"content": "x", "audio": {"id": "a"}}, logprobs={"content": []})),
        b": keep-alive\n\n" + text("x"),
        b"data:\n\n" + text("x"),
        b"retry: 3000\nid: 5\nevent: message\n" + text("x"),
        b"event: ping\n\n" + text("x"),
        chunk(choice({"content": None})) + chunk(choice({"content": ""})) + text("x"),
        chunk() + text("x"),
        chunk(choice({"content": "x", "function_call": {"name": "", "arguments": ""}})),
    ],
)
def test_what_can_lose_nothing_is_harmless(odd: bytes) -> None:
    assert accepted(FIRST, odd, STOP, COUNTED, DONE).text == "x"


@pytest.mark.parametrize(
    "late",
    [
        chunk(choice({})),
        chunk(choice({"content": ""})),
        chunk(choice({"content": None, "role": "assistant", "tool_calls": []})),
        chunk(),
        chunk(usage=None),
        calls(call(0, id="", type="", name="", arguments="")),
    ],
)
def test_an_empty_delta_after_the_finish_is_harmless(late: bytes) -> None:
    opened = calls(call(0, id="call_a", name="f", arguments=OSLO))
    assert accepted(FIRST, opened, CALLED, late, COUNTED, late, DONE).calls


def test_a_continuation_may_repeat_what_is_known_or_say_nothing() -> None:
    opened = calls(call(0, id="call_a", name="f", arguments="", type="function"))
    reply = accepted(
        FIRST,
        opened,
        calls(call(0, id="call_a", name="f", arguments='{"city"', type="function")),
        calls(call(0, id=None, name=None, arguments=":", type=None)),
        calls(call(0, id="", name="", arguments='"Oslo"', type="")),
        calls({"index": 0, "function": None}),
        calls({"index": 0}),
        calls(call(0, arguments=None), call(0, arguments="}")),
        CALLED,
        COUNTED,
        DONE,
    )
    assert arguments(reply) == [("call_a", "f", OSLO)]


def test_pieces_of_two_calls_may_alternate() -> None:
    """R116: the index says which call a piece belongs to, never its place in the stream."""
    reply = accepted(
        FIRST,
        calls(call(0, id="a", name="f"), call(1, id="b", name="g", arguments="")),
        calls(call(1, arguments=ROME[:6])),
        calls(call(0, arguments=OSLO[:5])),
        calls(call(1, arguments=ROME[6:]), call(0, arguments=OSLO[5:])),
        CALLED,
        COUNTED,
        DONE,
    )
    assert arguments(reply) == [("a", "f", OSLO), ("b", "g", ROME)]


def test_id_and_name_may_come_after_the_call_began() -> None:
    reply = accepted(
        FIRST,
        calls(call(0, arguments="{")),
        calls(call(0, id="a")),
        calls(call(0, name="f", arguments="}")),
        CALLED,
        COUNTED,
        DONE,
    )
    assert arguments(reply) == [("a", "f", "{}")]


def test_a_stop_with_calls_is_sound() -> None:
    reply = accepted(FIRST, calls(call(0, id="a", name="f", arguments="{}")), STOP, COUNTED, DONE)
    assert (len(reply.calls), reply.termination.reason) == (1, "stop")


def test_the_finish_may_stand_beside_the_last_delta_and_the_usage() -> None:
    reply = accepted(FIRST, chunk(choice({"content": "Hi"}, finish="stop"), usage=USAGE), DONE)
    assert (reply.text, reply.usage and reply.usage.total_tokens) == ("Hi", 18)


def test_a_constant_empty_or_absent_id_is_an_identity() -> None:
    for missing in ("", None, ...):
        events = (
            chunk(choice({"content": "Hi"}), id=missing),
            chunk(choice({}, finish="stop"), id=missing, usage=USAGE),
        )
        assert accepted(*events, DONE).id == ""


# refused


CASES = {
    "bad_shape": [
        (event([1, 2]), "one JSON object", 1),
        (event(None), "one JSON object", 1),
        (event("text"), "one JSON object", 1),
        (chunk(choices=...), "$.choices", 1),
        (chunk(choices=None), "$.choices", 1),
        (chunk(choices={}), "$.choices", 1),
        (chunk("x"), "$.choices[0]", 1),
        (chunk(choice()), "$.choices[0].delta", 1),
        (chunk(choice(None)), "$.choices[0].delta", 1),
        (chunk(choice({}, index=None)), "$.choices[0].index", 1),
        (chunk(choice({}, index=...)), "$.choices[0].index", 1),
        (chunk(choice({}, index=True)), "$.choices[0].index", 1),
        (chunk(choice({}, index=-1)), "$.choices[0].index", 1),
        (chunk(choice({}, index="0")), "$.choices[0].index", 1),
        (chunk(choice({}, finish="")), "finish_reason", 1),
        (chunk(choice({}, finish=1)), "finish_reason", 1),
        (chunk(choice({}), id=5), "$.id", 1),
        (chunk(choice({}), model=["m"]), "$.model", 1),
        (text(5), "delta.content", 1),  # type: ignore[arg-type]
        (text([{"type": "text", "text": "Hi"}]), "delta.content", 1),  # type: ignore[arg-type]
        (chunk(choice({"reasoning_content": {}})), "delta.reasoning_content", 1),
        (chunk(choice({"refusal": 1})), "delta.refusal", 1),
        (chunk(choice({"reasoning_details": "x"})), "delta.reasoning_details", 1),
        (chunk(choice({"tool_calls": {}})), "delta.tool_calls", 1),
        (calls("x"), "delta.tool_calls[0]", 1),
        (calls(call(-1, id="a", name="f")), "tool_calls[0].index", 1),
        (calls(call(True, id="a", name="f")), "tool_calls[0].index", 1),
        (calls(call("0", id="a", name="f")), "tool_calls[0].index", 1),
        (calls(call(0, id="a", name="f", type="custom")), "tool_calls[0].type", 1),
        (calls(call(0, id=7, name="f")), "tool_calls[0].id", 1),
        (calls(call(0, id="a", name=7)), "function.name", 1),
        (calls(call(0, id="a", name="f", arguments={"city": "Oslo"})), "function.arguments", 1),
        (calls({"index": 0, "function": "f"}), "tool_calls[0].function", 1),
        (chunk(choice({"function_call": {"name": "f", "arguments": "{}"}})), "delta.function_call", 1),
    ],
    "invalid_json": [
        (b'data: {"choices": [\n\n', "JSON", 1),
        (b"data: data: {}\n\n", "JSON", 1),
        (b"data: {}{}\n\n", "JSON", 1),
        (b"data: \xef\xbb\xbf{}\n\n", "JSON", 1),
        (b"data: undefined\n\n", "JSON", 1),
        (b'data: {"choices":NaN}\n\n', "JSON", 1),
        (b'data: {"choices":1e999}\n\n', "JSON", 1),
        (b'data: {"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}\n\n", "nested", 1),
        (b'data: {"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}\n\n', "whole characters", 1),
        (b'data: {"choices":[{"index":0,"delta":{"content":"\\ude00\\ud83d"}}]}\n\n', "whole characters", 1),
        (b'data: {"choices":[{"index":0,"delta":{"content":"a\tb"}}]}\n\n', "JSON", 1),
    ],
    "identity_changed": [
        (chunk(choice({"content": "x"}), id="chatcmpl-2"), "the id", 1),
        (chunk(choice({"content": "x"}), model="model-2"), "the model", 1),
        (chunk(choice({"content": "x"}), id=""), "the id", 1),
        (chunk(choice({"content": "x"}), model=...), "the model", 1),
        (chunk(id="chatcmpl-2"), "the id", 1),
        (chunk(choice(...), id=""), "the id", 1),
    ],
    "unexpected_choice": [
        (chunk(choice({"content": "x"}, index=1)), "index 0", 1),
        (chunk(choice({"content": "x"}), choice({"content": "y"}, index=1)), "index 0", 1),
    ],
    "missing_index": [
        (calls(call(id="a", name="f", arguments="{}")), "an index", 1),
        (calls(call(None, id="a", name="f", arguments="{}")), "an index", 1),
    ],
    "index_gap": [
        (calls(call(1, id="a", name="f", arguments="{}")), "index 0", 1),
        (calls(call(0, id="a", name="f"), call(2, id="b", name="f")), "index 1", 1),
    ],
    "index_conflict": [
        (calls(call(0, id="a", name="f"), call(0, id="b", name="f")), "one id", 1),
        (calls(call(0, id="a", name="f", arguments="{}")) + calls(call(0, id="b", arguments="{}")), "one id", 2),
    ],
    "duplicate_call_id": [
        (calls(call(0, id="a", name="f"), call(1, id="a", name="f")), "no other call", 1),
        (calls(call(0, id="a", name="f"), call(1, name="g")) + calls(call(1, id="a")), "no other call", 2),
    ],
    "name_conflict": [
        (calls(call(0, id="a", name="f"), call(0, name="g")), "one name", 1),
        (calls(call(0, id="a", name="get_")) + calls(call(0, name="weather")), "one name", 2),
    ],
    "missing_call_id": [(calls(call(0, name="f", arguments="{}")) + CALLED, "an id", 2)],
    "missing_call_name": [(calls(call(0, id="a", arguments="{}")) + CALLED, "a name", 2)],
    "after_terminal": [
        (STOP + text("x"), "no delta", 2),
        (STOP + calls(call(0, id="a", name="f")), "no delta", 2),
        (STOP + chunk(choice({"reasoning": "x"})), "no delta", 2),
        (STOP + chunk(choice({"refusal": "x"})), "no delta", 2),
        (STOP + chunk(choice({"content": "x"}, finish="stop")), "no delta", 2),
    ],
    "duplicate_terminal": [
        (STOP + STOP, "one finish", 2),
        (STOP + CALLED, "one finish", 2),
        (chunk(choice({}, finish="stop"), choice({}, finish="stop")), "one finish", 1),
    ],
    "missing_terminal": [(DONE, "a finish", 1), (COUNTED + DONE, "a finish", 2), (text("x") + DONE, "a finish", 2)],
    "terminal_conflict": [(text("I will") + CALLED, "a call", 2)],
    "missing_usage": [(STOP + DONE, "usage once", 2), (STOP + chunk(usage=None) + DONE, "usage once", 3)],
    "duplicate_usage": [
        (STOP + COUNTED + COUNTED, "exactly once", 3),
        (STOP + COUNTED + chunk(usage={**USAGE, "total_tokens": 99}), "exactly once", 3),
        (COUNTED + COUNTED, "exactly once", 2),
    ],
    "bad_usage": [
        (COUNTED + STOP, "at or after the finish", 2),
        (STOP + chunk(usage={**USAGE, "prompt_tokens": "11"}), "usage.prompt_tokens", 2),
        (STOP + chunk(usage={**USAGE, "completion_tokens": -1}), "usage.completion_tokens", 2),
        (STOP + chunk(usage={**USAGE, "total_tokens": 18.0}), "usage.total_tokens", 2),
        (STOP + chunk(usage={**USAGE, "total_tokens": True}), "usage.total_tokens", 2),
        (STOP + chunk(usage={**USAGE, "total_tokens": 2**53}), "usage.total_tokens", 2),
        (STOP + chunk(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 2**53}}), "cached_tokens", 2),
        (STOP + chunk(usage={"prompt_tokens": 1, "completion_tokens": 1}), "usage.total_tokens", 2),
        (STOP + chunk(usage={}), "usage.prompt_tokens", 2),
        (STOP + chunk(usage=[]), "an object", 2),
        (STOP + chunk(usage={**USAGE, "prompt_tokens_details": {"cached_tokens": -1}}), "cached_tokens", 2),
    ],
}


@pytest.mark.parametrize(
    ("code", "odd", "expected", "at"),
    [(code, *case) for code, cases in CASES.items() for case in cases],
    ids=[f"{code}-{number}" for code, cases in CASES.items() for number in range(len(cases))],
)
def test_each_fault_is_refused_with_its_code_event_and_byte(code: str, odd: bytes, expected: str, at: int) -> None:
    """R115, R116, R117, R118, R120: every code, at the first byte of the event that breaks the rule."""
    found = refused(FIRST, odd, STOP, COUNTED, DONE)
    assert found.code == code
    assert expected in found.expected
    assert found.event == at
    body = FIRST + odd + STOP + COUNTED + DONE
    assert found.byte == sum(len(part) + 2 for part in body.split(b"\n\n")[:at])
    assert str(found).startswith(f"{code} at event {at}, byte {found.byte}: expected {found.expected}, got {found.got}")


ERRORS = [
    (
        event({"error": {"message": "queue is full", "type": "overloaded", "code": 503}}),
        "503",
        "overloaded",
        "queue is full",
    ),
    (event({"error": "model crashed"}), None, None, "model crashed"),
    (chunk(choice({"content": "x"}), error={"code": "502", "message": "upstream"}), "502", None, "upstream"),
    (chunk(choice({}, finish="error", error={"code": 400, "message": "bad"})), "400", None, "bad"),
    (chunk(choice({"error": {"message": "in the delta"}})), None, None, "in the delta"),
    (b"event: error\n" + event({"message": "bad gateway", "code": "502"}), "502", None, "bad gateway"),
    (b"event: error\n" + event({"error": {"message": "deep", "type": "x"}}), None, "x", "deep"),
    (b"event: error\ndata: upstream went away\n\n", None, None, "upstream went away"),
    (b"event: error\ndata: [DONE]\n\n", None, None, "[DONE]"),
    (b"event: error\n\n", None, None, None),
    (event({"object": "error", "message": "too long", "code": 40303}), "40303", None, "too long"),
    (event({"type": "error", "message": "late"}), None, "error", "late"),
    (chunk(choice({}), x_groq={"id": "req", "error": "over capacity"}), None, None, "over capacity"),
    (event({"error": {}}), None, None, None),
    (event({"error": False}), None, None, None),
]


@pytest.mark.parametrize(("odd", "code", "kind", "message"), ERRORS)
def test_an_error_anywhere_is_the_vendors(odd: bytes, code: str | None, kind: str | None, message: str | None) -> None:
    """R120: an error is never an empty success, and its facts are kept."""
    found = refused(FIRST, text("The answer"), odd, STOP, COUNTED, DONE)
    assert (found.code, found.event) == ("vendor_error", 2)
    assert (found.vendor_code, found.vendor_type, found.vendor_message) == (code, kind, message)


def test_a_long_vendor_message_is_shortened_and_kept_out_of_the_error_text() -> None:
    found = refused(event({"error": {"message": "x" * 10_000}}))
    assert found.vendor_message is not None
    assert len(found.vendor_message) == 300
    assert "xxx" not in str(found)


@pytest.mark.parametrize("code", ["the words of a reply", "two\nlines", "x" * 65])
def test_a_vendors_code_that_is_no_word_is_kept_out_of_the_error_text(code: str) -> None:
    found = refused(event({"error": {"code": code, "type": "rate_limit"}}))
    assert (found.vendor_code, found.got) == (code, "an error (type 'rate_limit')")


def test_an_error_counts_before_anything_else_in_its_chunk() -> None:
    odd = chunk(choice(None, index=4), id="other", error={"message": "x"})
    assert refused(FIRST, odd).code == "vendor_error"


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ((), "truncated"),
        ((FIRST,), "truncated"),
        ((FIRST, text("The answer is")), "truncated"),
        ((FIRST, calls(call(0, id="a", name="f", arguments=OSLO))), "truncated"),
        ((FIRST, text("Hi"), STOP[:-1]), "truncated"),
        ((FIRST, text("Hi"), STOP[:-9]), "truncated"),
        ((FIRST, text("Hi"), STOP), "missing_done"),
        ((FIRST, text("Hi"), STOP, COUNTED), "missing_done"),
        ((FIRST, text("Hi"), STOP, COUNTED, b"data: [DO"), "missing_done"),
        ((FIRST, text("Hi"), STOP, COUNTED, b"data: [DONE]"), "missing_done"),
        ((FIRST, text("Hi"), STOP, COUNTED, b"data: [DONE]\n"), "missing_done"),
        ((FIRST, text("Hi"), DONE[:-1]), "truncated"),
    ],
)
def test_a_body_that_ends_too_early_is_no_reply(events: tuple[bytes, ...], code: str) -> None:
    """R117, R119: before the finish it is truncated, after it [DONE] is missing."""
    found = refused(*events)
    body = b"".join(events)
    assert (found.code, found.event, found.byte) == (code, body.count(b"\n\n"), len(body))


def test_after_done_nothing_is_read() -> None:
    """R122."""
    assembler = ReplyAssembler()
    assembler.feed(b"".join(HELLO) + text("ghost") + b"data: {broken\n\n\xff\xfe junk")
    assert assembler.done
    assert assembler.feed(b"\xff" * 100) == []
    assert assembler.finish().text == "Hello, world"
    assert assembler.finish() is assembler.finish()


def test_a_refusal_stays() -> None:
    """R120."""
    assembler = ReplyAssembler()
    with pytest.raises(StreamRefused) as first:
        assembler.feed(FIRST + event([]))
    for again in (lambda: assembler.feed(b"".join(HELLO)), assembler.finish):
        with pytest.raises(StreamRefused) as later:
            again()
        assert later.value is first.value


def test_what_only_a_driver_sees_is_refused_at_the_present_place() -> None:
    assembler = ReplyAssembler(allowing("usage_absent"))
    assembler.feed(FIRST + b": ping\n\n" + text("Hi")[:9])
    found = assembler.refusal("idle_timeout", "an event within 30 s", "none")
    assert (found.code, found.event, found.byte, found.dialect) == ("idle_timeout", 1, len(FIRST) + 17, "test")


# limits


def test_a_reply_over_its_limit_is_refused_at_the_event_that_crosses_it() -> None:
    """R148: the reply's size, in text, in reasoning and in arguments alike."""
    for piece in (
        text("x" * 100),
        chunk(choice({"reasoning_content": "x" * 100})),
        chunk(choice({"reasoning": "x" * 50, "content": "x" * 50})),
    ):
        found = refused(FIRST, *[piece] * 6, STOP, COUNTED, DONE, max_reply_bytes=450)
        assert (found.code, found.limit, found.allowed) == ("oversized", "max_reply_bytes", 450)
        assert (found.event, found.byte) == (5, len(FIRST) + 4 * len(piece))
    opened, more = calls(call(0, id="a", name="f", arguments="")), calls(call(0, arguments="x" * 100))
    found = refused(FIRST, opened, *[more] * 6, CALLED, COUNTED, DONE, max_reply_bytes=450)
    assert (found.code, found.event) == ("oversized", 6)


def test_the_size_of_a_reply_is_that_of_its_json() -> None:
    reply = accepted(*HELLO, max_reply_bytes=4_096)
    size = len(msgspec.json.encode(reply))
    assert accepted(*HELLO, max_reply_bytes=size) == reply
    found = refused(*HELLO, max_reply_bytes=size - 1)
    assert (found.code, found.event, found.got) == ("oversized", 5, f"at least {size}")


def test_event_and_response_limits_are_named() -> None:
    """R148."""
    found = refused(FIRST, text("x" * 2_000), STOP, COUNTED, DONE, max_event_bytes=1_000)
    assert (found.code, found.limit, found.event, found.byte) == ("oversized", "max_event_bytes", 1, len(FIRST))
    found = refused(*HELLO, max_response_bytes=300)
    assert (found.code, found.limit) == ("oversized", "max_response_bytes")
    assert accepted(*HELLO, max_response_bytes=len(b"".join(HELLO))).text == "Hello, world"


@pytest.mark.parametrize("kind", ["text", "arguments"])
def test_cost_grows_linearly_with_the_number_of_deltas(kind: str) -> None:
    def seconds(count: int) -> float:
        opened = calls(call(0, id="a", name="f", arguments="")) if kind == "arguments" else b""
        piece = calls(call(0, arguments=" ab")) if kind == "arguments" else text(" ab")
        body = FIRST + opened + piece * count + (CALLED if opened else STOP) + COUNTED + DONE
        begun = time.process_time()
        reply, _ = feed([body[at : at + 16_384] for at in range(0, len(body), 16_384)], max_response_bytes=1 << 30)
        assert len(reply.text or reply.calls[0].arguments.text) == 3 * count
        return time.process_time() - begun

    assert is_linear(seconds, 5_000)


@pytest.mark.parametrize(
    ("begin", "more", "allowances"),
    [
        (call(0, id="a", name="f", arguments="{}"), lambda at: call(0, extra={f"k{at}": at}), ()),
        (call(0, id="a", name="f", arguments="{}"), lambda at: {"index": 0, "function": {f"k{at}": at}}, ()),
        (call(name="f", arguments="{"), lambda at: call(name="f", arguments=" "), ("index_absent", "call_id_absent")),
        (call(name="f", arguments="{"), lambda at: call(name="f", arguments="{}"), ("index_absent", "call_id_absent")),
    ],
)
def test_cost_grows_linearly_with_the_pieces_of_one_call(
    begin: object, more: Callable[[int], object], allowances: tuple[str, ...]
) -> None:
    def seconds(count: int) -> float:
        pieces = [more(at) for at in range(count)]
        body = b"".join([FIRST, calls(begin), *(calls(*pieces[at : at + 500]) for at in range(0, count, 500))])
        begun = time.process_time()
        feed([body, CALLED, COUNTED, DONE], allowing(*allowances), max_response_bytes=1 << 30)
        return time.process_time() - begun

    assert is_linear(seconds, 4_000)


def test_a_long_number_as_an_error_code_is_shortened() -> None:
    found = refused(event({"error": {"code": 10**4000, "message": "no"}}))
    assert found.code == "vendor_error"
    assert len(str(found)) < 600


def test_one_byte_more_than_the_response_may_have_is_refused_where_whole_events_come_at_once() -> None:
    body = b"".join(HELLO)
    assert accepted(*HELLO, max_response_bytes=len(body)).text == "Hello, world"
    assert refused(*HELLO, max_response_bytes=len(body) - 1).limit == "max_response_bytes"


def test_a_bare_carriage_return_between_members_ends_a_line_also_in_an_event_of_its_own() -> None:
    """JSON takes it for white space, server-sent events do not."""
    broken = text("b").replace(b',"model"', b',\r"model"')
    assert b"\r" in broken
    assert refused(FIRST, text("a"), broken, STOP, COUNTED, DONE).code == "bad_framing"


# previews


def test_texts_of_one_read_are_one_preview_with_the_offset_before_it() -> None:
    assembler = ReplyAssembler()
    assert assembler.feed(FIRST + text("Hel") + text("lo") + text(", 😀")[:-20]) == [TextDelta("Hello", 0)]
    assert assembler.feed(text(", 😀")[-20:]) == [TextDelta(", 😀", 5)]
    assert assembler.feed(text("!")) == [TextDelta("!", 8)]
    assert assembler.feed(b": ping\n\n") == []
    assert assembler.feed(STOP + COUNTED + DONE) == []


def test_only_body_text_is_shown_as_text() -> None:
    """R123: reasoning, arguments and refusals have deltas of their own, or none."""
    shown = feed(
        [
            FIRST + chunk(choice({"reasoning_content": "Think"})) + chunk(choice({"reasoning_content": "ing"})),
            chunk(choice({"refusal": "No."})),
            text("Body"),
            calls(call(0, id="call_a", name="f", arguments="{")) + calls(call(0, arguments='"a":1')),
            calls(call(0, arguments="}")),
            CALLED + COUNTED + DONE,
        ]
    )[1]
    assert shown == [
        ReasoningDelta("Thinking", 0),
        TextDelta("Body", 0),
        CallDelta(0, "call_a", "f", '{"a":1'),
        CallDelta(0, "call_a", "f", "}"),
    ]


def test_previews_together_are_the_reply() -> None:
    """R123."""
    for parts in (HELLO, [b"".join(HELLO)], [b"".join(HELLO)[at : at + 7] for at in range(0, 2_000, 7)]):
        reply, shown = feed(parts)
        texts = [delta for delta in shown if isinstance(delta, TextDelta)]
        assert "".join(delta.text for delta in texts) == reply.text
        assert [delta.offset for delta in texts] == [
            sum(len(delta.text) for delta in texts[:at]) for at in range(len(texts))
        ]


def test_progress_counts_events_with_data_and_no_pings() -> None:
    assembler = ReplyAssembler()
    counts = []
    for part in (b": ping\n\n", FIRST, b"data:\n\n", b"event: ping\n\n", text("a"), text("b") + text("c"), b": x\n\n"):
        assembler.feed(part)
        counts.append(assembler.progress)
    assert counts == [0, 1, 1, 1, 2, 4, 4]
    assert assembler.events == 5


# continuation material


def test_reasoning_is_kept_for_later_requests_and_is_no_text() -> None:
    """R21."""
    reply = accepted(
        FIRST,
        chunk(choice({"reasoning_content": "Think. "})),
        chunk(choice({"reasoning_content": "Done."})),
        text("42"),
        STOP,
        COUNTED,
        DONE,
    )
    assert reply.text == "42"
    assert json.loads(reply.native.data) == {"reasoning_content": "Think. Done."}
    assert reasoning_text(reply.native) == "Think. Done."


def test_equal_reasoning_in_two_fields_is_shown_once() -> None:
    events = (
        FIRST,
        chunk(choice({"reasoning": "Think.", "reasoning_content": "Think."})),
        text("42"),
        STOP,
        COUNTED,
        DONE,
    )
    reply, shown = feed(events)
    assert [delta for delta in shown if isinstance(delta, ReasoningDelta)] == [ReasoningDelta("Think.", 0)]
    assert reasoning_text(reply.native) == "Think."


def test_a_refusal_is_not_an_empty_answer() -> None:
    reply = accepted(
        FIRST, chunk(choice({"refusal": "I can"})), chunk(choice({"refusal": "not."})), STOP, COUNTED, DONE
    )
    assert (reply.text, refusal_text(reply.native)) == ("", "I cannot.")
    assert reply.termination.kind == "completed"


def test_two_equal_deltas_in_one_choice_list_are_folded_in_order() -> None:
    assert accepted(chunk(choice({"content": "a"}), choice({"content": "b"})), STOP, COUNTED, DONE).text == "ab"
