"""Allowances: each is needed by its stream, enough for it, and loses nothing."""

from __future__ import annotations

import json

import msgspec
import pytest

from agentloop.wire import ALLOWANCES, LENIENT, OPENAI, CallDelta, Dialect, TextDelta, reasoning_text
from tests.wire.quirks import QUIRKS, Quirk
from tests.wire.streams import (
    CALLED,
    COUNTED,
    DONE,
    FIRST,
    OSLO,
    ROME,
    STOP,
    USAGE,
    accepted,
    allowing,
    arguments,
    call,
    calls,
    choice,
    chunk,
    feed,
    refused,
    text,
)

REQUESTED = {
    "stream_options",
    "json_schema",
    "schema_with_tools",
    "forced_call",
}  # about requests: they allow a stream nothing


def flags() -> list[str]:
    return [
        field.name for field in msgspec.structs.fields(Dialect) if field.type is bool and field.name not in REQUESTED
    ]


def test_a_dialect_is_frozen_given_by_name_and_closed() -> None:
    with pytest.raises(AttributeError):
        OPENAI.usage_absent = True  # type: ignore[misc]
    with pytest.raises(TypeError):
        Dialect("other")  # type: ignore[misc]
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.convert({"name": "other", "usage_abscent": True}, Dialect)


def test_every_allowance_has_its_reason_and_its_evidence() -> None:
    assert sorted(ALLOWANCES) == sorted(flags())
    for name, reason in ALLOWANCES.items():
        assert "(" in reason, name
        assert any(year in reason for year in ("2024", "2025", "2026")), name


def test_the_strict_rules_allow_nothing() -> None:
    assert OPENAI.allowances() == ()


def test_every_allowance_has_a_stream() -> None:
    assert sorted([*QUIRKS, "arguments_placeholder"]) == sorted(ALLOWANCES)


@pytest.mark.parametrize(("name", "quirk"), QUIRKS.items(), ids=QUIRKS)
def test_an_allowance_is_what_its_stream_needs(name: str, quirk: Quirk) -> None:
    """R115, R116, R117, R118, R119, R120: refused without it, and the same reply however it is read with it."""
    assert refused(*quirk.events).code == quirk.code
    reply = accepted(*quirk.events, dialect=allowing(name))
    assert (reply.text, tuple(arguments(reply))) == (quirk.text, quirk.calls)
    if name != "usage_absent":
        assert reply.usage is not None
        assert reply.usage.total_tokens == 18


@pytest.mark.parametrize("name", ALLOWANCES)
def test_an_allowance_changes_nothing_for_a_stream_that_does_not_need_it(name: str) -> None:
    usual = (FIRST, text("Hi"), calls(call(0, id="a", name="f", arguments=OSLO)), CALLED, COUNTED, DONE)
    assert accepted(*usual, dialect=allowing(name)) == accepted(*usual)


# identity


def test_a_late_identity_settles_once() -> None:
    """R115."""
    events = (chunk(id="", model=...), chunk(choice({"content": "Hi"}), model=""), STOP, COUNTED, DONE)
    reply = accepted(*events, dialect=allowing("identity_late"))
    assert (reply.id, reply.model) == ("chatcmpl-1", "model-1")
    for changed in ({"id": "x"}, {"id": ""}, {"model": "x"}, {"model": ...}):
        odd = chunk(choice({"content": "!"}), **changed)
        assert refused(*events[:3], odd, dialect=allowing("identity_late")).code == "identity_changed"


@pytest.mark.parametrize("field", ["id", "model"])
@pytest.mark.parametrize("delta", [{"content": "a"}, {"role": "assistant", "content": ""}, {"audio": None}])
@pytest.mark.parametrize("nothing", [..., None, ""])
def test_the_first_chunk_says_what_every_one_must_also_where_it_says_nothing(
    field: str, delta: object, nothing: object
) -> None:
    """R115: whether or not the first one is a plain delta."""
    first = chunk(choice(delta), **{field: nothing})
    assert refused(first, text("b"), STOP, COUNTED, DONE).code == "identity_changed"
    rest = [part.replace(b'"id":"chatcmpl-1"', b'"id":null') for part in (text("b"), STOP, COUNTED)]
    if field == "id":
        assert accepted(first, *rest, DONE).id == ""


def test_a_free_id_is_the_first_one_and_frees_no_model() -> None:
    events = QUIRKS["id_changes"].events
    assert accepted(*events, dialect=allowing("id_changes")).id == "chatcmpl-1"
    assert refused(*events, chunk(model="x"), dialect=allowing("model_changes")).code == "identity_changed"


def test_an_absent_delta_may_not_hide_a_message() -> None:
    """R120: what is in ``message`` or ``text`` would be lost."""
    for hiding in ({"message": {"content": "Hi"}}, {"text": "Hi"}):
        odd = chunk(choice(finish="stop", **hiding))
        assert refused(FIRST, odd, COUNTED, DONE, dialect=allowing("delta_absent")).code == "bad_shape"


# content as parts


def test_thinking_parts_are_reasoning_and_all_parts_are_kept() -> None:
    """R21, R123."""
    events = QUIRKS["content_parts"].events
    reply, shown = feed(events, allowing("content_parts"))
    assert "".join(delta.text for delta in shown if isinstance(delta, TextDelta)) == "Hi"
    assert reasoning_text(reply.native) == "Hm"
    assert json.loads(reply.native.data)["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
        {"type": "text", "text": "H"},
        {"type": "reference", "reference_ids": [1]},
        {"type": "text", "text": "i"},
    ]


@pytest.mark.parametrize(
    "parts",
    [
        "x",
        [1],
        [{"type": "image_url"}],
        [{"text": "x"}],
        [{"type": "text", "text": 1}],
        [{"type": "thinking", "thinking": 1}],
    ],
)
def test_other_parts_are_refused(parts: object) -> None:
    odd = chunk(choice({"content": parts if parts != "x" else ["x"]}))
    assert refused(FIRST, odd, dialect=allowing("content_parts")).code == "bad_shape"


# calls


def test_a_base_of_minus_one_is_taken_from_the_first_call() -> None:
    events = (
        FIRST,
        calls(call(-1, id="a", name="f", arguments="{}"), call(0, id="b", name="g", arguments="{}")),
        CALLED,
    )
    reply = accepted(*events, COUNTED, DONE, dialect=allowing("index_base"))
    assert [made.id for made in reply.calls] == ["a", "b"]


def test_another_base_leaves_no_gap() -> None:
    for first, second in ((1, 3), (1, 0), (2, 3), (0, 2), (-2, -1)):
        odd = calls(call(first, id="a", name="f"), call(second, id="b", name="f"))
        assert refused(FIRST, odd, dialect=allowing("index_base")).code in ("index_gap", "bad_shape")


def test_calls_on_one_index_are_told_apart_by_their_ids_even_when_their_pieces_alternate() -> None:
    events = (
        FIRST,
        calls(call(0, id="a", name="f", arguments=OSLO[:5])),
        calls(call(0, id="b", name="g", arguments=ROME[:5])),
        calls(call(0, id="a", arguments=OSLO[5:])),
        calls(call(0, id="b", arguments=ROME[5:])),
        calls(call(1, id="c", name="h", arguments="{}")),
        CALLED,
        COUNTED,
        DONE,
    )
    reply = accepted(*events, dialect=allowing("index_shared"))
    assert arguments(reply) == [("a", "f", OSLO), ("b", "g", ROME), ("c", "h", "{}")]


@pytest.mark.parametrize("index", [0, ...])
def test_calls_with_neither_index_nor_id_begin_with_a_name_and_arguments(index: object) -> None:
    dialect = allowing("index_absent", "index_shared", "call_id_absent")
    events = (
        FIRST,
        calls(call(index, name="f", arguments=OSLO)),
        calls(call(index, name="f", arguments=ROME[:4])),
        calls(call(index, name="f", arguments=ROME[4:])),
        CALLED,
        COUNTED,
        DONE,
    )
    assert arguments(accepted(*events, dialect=dialect)) == [("call_0", "f", OSLO), ("call_1", "f", ROME)]


@pytest.mark.parametrize("index", [0, ...])
def test_a_name_again_without_id_and_arguments_is_refused_because_it_may_be_another_call(index: object) -> None:
    """R120: a call without arguments is never taken for a repetition of the one before."""
    dialect = allowing("index_absent", "index_shared", "call_id_absent")
    for first in ({}, {"arguments": ""}, {"arguments": OSLO}):
        events = (FIRST, calls(call(index, name="f", **first)), calls(call(index, name="f", arguments="")), CALLED)
        assert refused(*events, dialect=dialect).code == "missing_call_id"


def test_only_an_object_begins_another_call_without_an_id() -> None:
    """White space around arguments is no call, and does not hide one."""
    dialect = allowing("index_absent", "call_id_absent")
    entries = [call(name="f", arguments=text) for text in (OSLO, " ", "\n", ROME[:4], ROME[4:], " ")]
    made = arguments(accepted(FIRST, *(calls(entry) for entry in entries), CALLED, COUNTED, DONE, dialect=dialect))
    assert made == [("call_0", "f", OSLO + " \n"), ("call_1", "f", ROME + " ")]


def test_previews_of_a_call_that_is_looked_at_on_the_way_leave_nothing_out() -> None:
    dialect = allowing("index_absent", "call_id_absent")
    pieces = (OSLO[:3], OSLO[3:6], OSLO[6:])
    events = [FIRST, *(calls(call(name="f", arguments=piece)) for piece in pieces), CALLED, COUNTED, DONE]
    for reads in (events, [b"".join(events[:2]), b"".join(events[2:])]):
        _, shown = feed(reads, dialect)
        assert "".join(delta.arguments for delta in shown if isinstance(delta, CallDelta)) == OSLO


def test_a_minted_id_is_never_one_that_the_vendor_used() -> None:
    dialect = allowing("call_id_absent", "call_id_duplicated")
    entries = [call(0, name="f"), call(1, id="call_0", name="f"), call(2, id="x", name="f"), call(3, id="x", name="f")]
    events = (FIRST, calls(*entries, call(4, id="x#3", name="f")), CALLED, COUNTED, DONE)
    ids = [made.id for made in accepted(*events, dialect=dialect).calls]
    assert ids == ["call_0#", "call_0", "x", "x#3#", "x#3"]


def test_equal_calls_count_once_only_when_all_of_them_is_equal() -> None:
    """R120: a call with other arguments is never dropped."""
    other = calls(call(0, id="a", name="f", arguments=OSLO), call(1, id="a", name="f", arguments=ROME))
    assert refused(FIRST, other, CALLED, dialect=allowing("call_repeated")).code == "duplicate_call_id"
    both = allowing("call_repeated", "call_id_duplicated")
    assert len(accepted(FIRST, other, CALLED, COUNTED, DONE, dialect=both).calls) == 2


def test_a_name_comes_in_pieces_only_before_its_arguments() -> None:
    events = (FIRST, calls(call(0, id="a", name="f", arguments="{")), calls(call(0, name="g", arguments="}")))
    assert refused(*events, dialect=allowing("name_pieces")).code == "name_conflict"


@pytest.mark.parametrize("nothing", ["", None])
def test_arguments_that_are_empty_do_not_end_a_name_in_pieces(nothing: str | None) -> None:
    events = (
        FIRST,
        calls(call(0, id="a", name="get_", arguments=nothing)),
        calls(call(0, arguments=nothing)),
        calls(call(0, name="weather", arguments=nothing)),
        calls(call(0, arguments=OSLO)),
        CALLED,
        COUNTED,
        DONE,
    )
    (made,) = accepted(*events, dialect=allowing("name_pieces")).calls
    assert (made.name, made.arguments.text) == ("get_weather", OSLO)


def test_an_object_of_arguments_must_come_whole() -> None:
    """R18: nothing is glued to it."""
    dialect = allowing("arguments_object")
    opened = calls(call(0, id="a", name="f", arguments={"a": 1}))
    for more in ({"b": 2}, '{"b":2}'):
        assert refused(FIRST, opened, calls(call(0, arguments=more)), dialect=dialect).code == "bad_shape"
    late = (FIRST, calls(call(0, id="a", name="f", arguments="{")), calls(call(0, arguments={"a": 1})))
    assert refused(*late, dialect=dialect).code == "bad_shape"
    assert refused(FIRST, calls(call(0, id="a", name="f", arguments=[1])), dialect=dialect).code == "bad_shape"
    twice = (
        b'data: {"id":"chatcmpl-1","model":"model-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a",'
    )
    twice += b'"function":{"name":"f","arguments":{"a":1,"a":2}}}]}}]}\n\n'
    assert refused(FIRST, twice, dialect=dialect).code == "bad_shape"


def test_an_object_of_arguments_keeps_its_numbers() -> None:
    raw = (
        b'data: {"id":"chatcmpl-1","model":"model-1","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a",'
    )
    raw += b'"function":{"name":"f","arguments":{"z":-0,"n":123456789012345678901234567890,"x":1e3}}}]}}]}\n\n'
    reply = accepted(FIRST, raw, CALLED, COUNTED, DONE, dialect=allowing("arguments_object"))
    assert reply.calls[0].arguments.text == '{"n":123456789012345678901234567890,"x":1000,"z":-0}'


def test_a_placeholder_gives_way_to_the_real_arguments() -> None:
    events = (
        FIRST,
        calls(call(0, id="a", name="f", arguments="{}")),
        calls(call(0, arguments=OSLO)),
        CALLED,
        COUNTED,
        DONE,
    )
    assert accepted(*events).calls[0].arguments.text == "{}" + OSLO
    assert accepted(*events, dialect=allowing("arguments_placeholder")).calls[0].arguments.text == OSLO
    only = (*events[:2], CALLED, COUNTED, DONE)
    assert accepted(*only, dialect=allowing("arguments_placeholder")).calls[0].arguments.text == "{}"


def test_unknown_fields_of_a_call_are_kept_by_its_position() -> None:
    """R21: signatures must go back with the call they belong to."""
    signature = {"google": {"thought_signature": "s1"}}
    events = (
        FIRST,
        calls(call(0, id="a", name="f", arguments="{}")),
        calls(call(1, id="b", name="g", arguments="{", extra_content=signature)),
        calls({"index": 1, "function": {"arguments": "}", "strict": True}, "note": "x", "empty": None}),
        CALLED,
        COUNTED,
        DONE,
    )
    reply = accepted(*events)
    assert json.loads(reply.native.data) == {
        "calls": {"1": {"extra_content": signature, "function": {"strict": True}, "note": "x"}}
    }
    assert arguments(reply)[1] == ("b", "g", "{}")


def test_unknown_fields_stay_with_their_call_when_another_one_counted_once() -> None:
    """R21."""
    entries = [call(0, id="a", name="f"), call(1, id="a", name="f"), call(2, id="b", name="g", signature="s")]
    reply = accepted(FIRST, calls(*entries), CALLED, COUNTED, DONE, dialect=allowing("call_repeated"))
    assert [made.id for made in reply.calls] == ["a", "b"]
    assert json.loads(reply.native.data) == {"calls": {"1": {"signature": "s"}}}


# surrogates


def half(channel: str, escape: str, *, finish: str = "null") -> bytes:
    deltas = {
        "content": f'{{"content":"{escape}"}}',
        "reasoning": f'{{"reasoning":"{escape}"}}',
        "arguments": f'{{"tool_calls":[{{"index":0,"function":{{"arguments":"{escape}"}}}}]}}',
    }
    head = 'data: {"id":"chatcmpl-1","model":"model-1","choices":[{"index":0,"delta":'
    return f'{head}{deltas[channel]},"finish_reason":{finish}}}]}}\n\n'.encode()


@pytest.mark.parametrize("channel", ["content", "reasoning", "arguments"])
def test_a_preview_never_shows_half_a_character(channel: str) -> None:
    """R123."""
    opened = calls(call(0, id="a", name="f", arguments=""))
    parts = [
        FIRST,
        opened,
        half(channel, "x\\ud83d"),
        half(channel, "\\ude00y\\ud83d"),
        half(channel, "\\ude01"),
        half(channel, "z"),
    ]
    reply, shown = feed([*parts, CALLED, COUNTED, DONE], allowing("surrogates_split"))
    pieces = [getattr(delta, "text", None) or getattr(delta, "arguments", "") for delta in shown]
    assert "".join(pieces) == "x😀y😁z"
    for piece in pieces:
        piece.encode()
    whole = reply.text or reasoning_text(reply.native) or reply.calls[0].arguments.text
    assert whole == "x😀y😁z"
    assert accepted(*parts, CALLED, COUNTED, DONE, dialect=allowing("surrogates_split")) == reply


@pytest.mark.parametrize(
    "odd",
    [
        half("content", "\\ud83d") + half("content", "x"),
        half("content", "\\ude00"),
        half("content", "\\ude00\\ud83d") + half("content", "\\ude00"),
        half("content", "\\ud83d\\ud83d") + half("content", "\\ude00"),
        half("content", "\\ud83d") + STOP,
        half("content", "\\ud83d", finish='"stop"'),
        half("content", "\\ud83d") + half("reasoning", "\\ude00") + STOP,
    ],
)
def test_half_a_character_alone_is_refused(odd: bytes) -> None:
    assert refused(FIRST, odd, COUNTED, DONE, dialect=allowing("surrogates_split")).code == "invalid_json"


def test_half_a_character_in_a_name_is_refused() -> None:
    odd = b'data: {"id":"\\ud83d","model":"model-1","choices":[]}\n\n'
    assert refused(odd, dialect=allowing("surrogates_split")).code == "invalid_json"


# finish and end


def test_a_repeated_finish_must_be_equal_and_bring_nothing() -> None:
    """R117."""
    dialect = allowing("finish_repeated")
    assert refused(FIRST, STOP, CALLED, dialect=dialect).code == "duplicate_terminal"
    again = chunk(choice({"content": "more"}, finish="stop"))
    assert refused(FIRST, text("Hi"), STOP, again, dialect=dialect).code == "after_terminal"


def test_a_finish_is_inferred_only_from_calls_that_are_json_and_done() -> None:
    """R117, R119."""
    dialect = allowing("finish_inferred")
    whole = calls(call(0, id="a", name="f", arguments=OSLO))
    reply = accepted(FIRST, whole, COUNTED, DONE, dialect=dialect)
    assert (reply.termination.kind, reply.termination.reason) == ("completed", None)
    assert refused(FIRST, whole, COUNTED, dialect=dialect).code == "truncated"
    assert refused(FIRST, text("Hi"), COUNTED, DONE, dialect=dialect).code == "missing_terminal"
    cut = calls(call(0, id="a", name="f", arguments=OSLO[:-1]))
    assert refused(FIRST, cut, COUNTED, DONE, dialect=dialect).code == "missing_terminal"


def test_without_done_a_body_may_end_only_between_events() -> None:
    """R119."""
    dialect = allowing("done_absent")
    events = (FIRST, text("Hi"), STOP, COUNTED)
    assert accepted(*events, b": bye\n\n: and", dialect=dialect).text == "Hi"
    assert accepted(*events, b"data: [DONE]", dialect=dialect).text == "Hi"
    for rest in (b"d", b"data", b"data: {", b"data: [DON", b"event: x\n", b"data: {}\n"):
        found = refused(*events, rest, dialect=dialect)
        assert found.code == "missing_done", rest
    assert refused(FIRST, text("Hi"), dialect=dialect).code == "truncated"


def test_a_done_that_is_not_ended_is_still_the_whole_word() -> None:
    dialect = allowing("done_unended")
    events = QUIRKS["done_unended"].events[:-1]
    for rest in (b"data: [DONE]", b"data:[DONE]\n", b"data: [DONE]\r"):
        assert accepted(*events, rest, dialect=dialect).text == "Hi"
    for rest in (b"data: [DONE", b"data: [DONE]\ndata: x", b"", b": [DONE]"):
        assert refused(*events, rest, dialect=dialect).code == "missing_done"
    assert refused(FIRST, text("Hi"), b"data: [DONE]", dialect=dialect).code == "missing_terminal"


def test_calls_that_come_after_the_finish_are_checked_at_the_end() -> None:
    late = calls(call(0, id="a", name="f", arguments=OSLO))
    dialect = allowing("calls_after_finish")
    assert accepted(FIRST, CALLED, late, COUNTED, DONE, dialect=dialect).calls
    assert refused(FIRST, CALLED, COUNTED, DONE, dialect=dialect).code == "terminal_conflict"
    assert refused(FIRST, CALLED, text("x"), dialect=dialect).code == "after_terminal"
    assert refused(FIRST, STOP, late, dialect=allowing("delta_after_finish")).code == "after_terminal"


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "x"}]}]},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"reasoning_details": [{"type": "reasoning.text", "text": "x"}]},
        {"refusal": "x"},
    ],
    ids=lambda delta: next(iter(delta)),
)
def test_no_part_of_a_reply_may_follow_its_finish(delta: dict[str, object]) -> None:
    late = chunk(choice(delta))
    assert refused(FIRST, text("Hi"), STOP, late, dialect=allowing("content_parts")).code == "after_terminal"


@pytest.mark.parametrize("late", [calls(call(0, id="a", name="f", arguments='{"n":1}')), text("more")])
def test_what_comes_after_the_finish_needs_done_whatever_else_is_allowed(late: bytes) -> None:
    """R119: without [DONE] nothing tells whether the rest of it came."""
    dialect = allowing("calls_after_finish", "delta_after_finish", "done_absent", "usage_absent")
    assert accepted(FIRST, STOP, late, DONE, dialect=dialect).output
    assert accepted(FIRST, STOP, late, b"data: [DONE]", dialect=dialect).output
    assert refused(FIRST, STOP, late, dialect=dialect).code == "missing_done"
    assert refused(FIRST, STOP, late, dialect=LENIENT).code == "missing_done"


# usage


def test_running_usage_is_the_last_one_and_never_a_sum() -> None:
    """R118."""
    counts = [{"prompt_tokens": 5, "completion_tokens": n, "total_tokens": 5 + n} for n in (1, 2, 3)]
    events = (chunk(choice({"content": "a"}), usage=counts[0]), chunk(choice({}, finish="stop"), usage=counts[1]))
    usage = accepted(*events, chunk(usage=counts[2]), DONE, dialect=allowing("usage_running")).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (5, 3, 8)
    assert refused(*events, chunk(usage={}), DONE, dialect=allowing("usage_running")).code == "bad_usage"


@pytest.mark.parametrize("missing", USAGE)
def test_one_missing_count_is_computed_from_the_others(missing: str) -> None:
    """R118."""
    partial = {name: value for name, value in USAGE.items() if name != missing}
    usage = accepted(FIRST, STOP, chunk(usage=partial), DONE, dialect=allowing("usage_partial")).usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 7, 18)


def test_a_computed_count_is_held_to_the_same_range() -> None:
    most = {"prompt_tokens": 2**53 - 1, "completion_tokens": 0}
    events = (FIRST, text("Hi"), STOP)
    dialect = allowing("usage_partial")
    reply = accepted(*events, chunk(usage=most), DONE, dialect=dialect)
    assert reply.usage is not None
    assert reply.usage.total_tokens == 2**53 - 1
    over = {**most, "completion_tokens": 1}
    assert refused(*events, chunk(usage=over), dialect=dialect).code == "bad_usage"


def test_counts_are_never_guessed() -> None:
    """R118."""
    for bad in ({"total_tokens": 18}, {}, {"prompt_tokens": 20, "total_tokens": 18}, {**USAGE, "total_tokens": "18"}):
        assert refused(FIRST, STOP, chunk(usage=bad), DONE, dialect=allowing("usage_partial")).code == "bad_usage"


def test_cached_and_reasoning_tokens_are_taken_where_they_are_told() -> None:
    told = {
        **USAGE,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    usage = accepted(FIRST, STOP, chunk(usage=told), DONE).usage
    assert usage is not None
    assert (usage.cached_input_tokens, usage.reasoning_tokens) == (4, 3)
    silent = accepted(FIRST, STOP, chunk(usage={**USAGE, "prompt_tokens_details": None}), DONE).usage
    assert silent is not None
    assert (silent.cached_input_tokens, silent.reasoning_tokens) == (None, None)


def test_a_chunk_without_choices_is_only_taken_for_its_usage() -> None:
    dialect = allowing("choices_absent")
    assert refused(FIRST, chunk(choices=...), dialect=dialect).code == "bad_shape"
    assert refused(FIRST, chunk(choices=None, usage=None), dialect=dialect).code == "bad_shape"
    assert accepted(FIRST, STOP, chunk(choices=None, usage=USAGE), DONE, dialect=dialect).usage
