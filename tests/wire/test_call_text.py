"""Calls in text on the wire: streams that hold them, requests that ask for them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import InputError
from agentloop.limits import RESPONSE_BYTES
from agentloop.messages import (
    FunctionSpec,
    JsonText,
    ModelExchange,
    ModelOptions,
    ModelReply,
    ModelRequest,
    Native,
    SystemMessage,
    Termination,
    Text,
    ToolCall,
    ToolChoice,
    ToolFeedback,
    ToolResult,
    UserMessage,
    require_model_reply,
)
from agentloop.wire import (
    OPENAI,
    PRESETS,
    CallDelta,
    Delta,
    Dialect,
    ReplyAssembler,
    TextDelta,
    ToolCallParser,
    check_stream,
    dialect,
    encode_message,
    encode_request,
    narrowest_verdict,
)
from agentloop.wire.call_text import MALFORMED_CALL, malformed_feedback
from agentloop.wire.written import join_written
from tests.wire.streams import (
    CALLED,
    COUNTED,
    DONE,
    FIRST,
    STOP,
    accepted,
    call,
    calls,
    choice,
    chunk,
    event,
    feed,
    refused,
    text,
)

TAGGED = dialect("openai", call_text=ToolCallParser())
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'
WEATHER = FunctionSpec(
    name="weather", description="Tell the weather.", parameters='{"type":"object","x":1.0}', strict=True
)
NOTE = FunctionSpec(name="note")


def tagged(*bodies: str) -> str:
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


def streamed(words: str, *, size: int = 3, finish: bytes = STOP) -> list[bytes]:
    """A stream that brings the words in deltas of ``size`` characters."""
    pieces = [words[at : at + size] for at in range(0, len(words), size)]
    return [FIRST, *map(text, pieces), finish, COUNTED, DONE]


def shown_text(shown: list[Delta]) -> str:
    """The previewed text; its offsets count what was shown."""
    seen = ""
    for delta in shown:
        if isinstance(delta, TextDelta):
            assert delta.offset == len(seen)
            seen += delta.text
    return seen


def shown_calls(shown: list[Delta]) -> list[tuple[int, str, str, str]]:
    return [(d.position, d.id, d.name, d.arguments) for d in shown if isinstance(d, CallDelta)]


WORDS = f"Grüße 😀, I look.\n{tagged(OSLO, ROME)}\n<b>and</b> {tagged('no')}"


def test_a_reply_has_visible_text_calls_and_what_was_written() -> None:
    """Ids are minted from positions. (R18, R342)"""
    reply = accepted(*streamed(WORDS), dialect=TAGGED)
    assert require_model_reply(reply) is reply
    assert reply.text == "Grüße 😀, I look.\n<b>and</b>"
    assert [(item.id, item.name, item.arguments.text) for item in reply.calls] == [
        ("call_0", "weather", '{"city": "Oslo"}'),
        ("call_1", "weather", '{"city": "Rome"}'),
        ("call_2", MALFORMED_CALL, "\nno\n"),
    ]
    assert [type(item) for item in reply.output] == [Text, ToolCall, ToolCall, ToolCall]
    kept = json.loads(reply.native.data)["call_text"]
    assert join_written(reply, kept["written"]) == WORDS
    assert list(kept["faults"]) == ["2"]
    assert malformed_feedback(reply, 1) is None
    assert "at character 1: expected a JSON value" in str(malformed_feedback(reply, 2))


def test_text_after_the_calls_stands_after_them() -> None:
    reply = accepted(*streamed(f"{tagged(OSLO)} Wait."), dialect=TAGGED)
    assert [type(item) for item in reply.output] == [ToolCall, Text]
    assert reply.text == "Wait."


def test_a_reply_without_a_tag_is_as_under_the_plain_dialect() -> None:
    events = streamed(" Hello, <tool> world \n\n")
    assert accepted(*events, dialect=TAGGED) == accepted(*events)
    assert feed(events, TAGGED)[0].native == Native()


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_previews_are_the_visible_text_and_whole_calls_however_deltas_and_reads_are_cut(size: int) -> None:
    """At every byte. (R342, R348)"""
    body = b"".join(streamed(WORDS, size=size))
    want, _ = feed([body], TAGGED)
    reads = [[body], [body[at : at + 1] for at in range(len(body))], streamed(WORDS, size=size)]
    reads += [[body[:at], body[at:]] for at in range(0, len(body), 1 if size == 5 else 17)]
    for parts in reads:
        reply, shown = feed(parts, TAGGED)
        assert reply == want
        assert shown_text(shown) == reply.text
        assert shown_calls(shown) == [
            (at, item.id, item.name, item.arguments.text) for at, item in enumerate(reply.calls)
        ]


LOOKALIKES = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<tool", "_call>", "</", OSLO, "no", " ", "\n", "```", "é", "😀", '"', "\\"]
    ),
    max_size=10,
).map("".join)


@given(
    words=LOOKALIKES, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30), cuts=st.lists(st.integers(0, 3000))
)
@settings(max_examples=150, deadline=None)
def test_no_cut_of_deltas_or_bytes_changes_a_reply_or_shows_a_tag(
    words: str, sizes: list[int], cuts: list[int]
) -> None:
    """(R342, R348, R358)"""
    want, _ = feed([FIRST, text(words), STOP, COUNTED, DONE], TAGGED)
    pieces, at = [], 0
    for size in [*sizes, len(words) + 1]:
        pieces.append(text(words[at : at + size]))
        at += size
    body = b"".join([FIRST, *pieces, STOP, COUNTED, DONE])
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    reply, shown = feed([body[a:b] for a, b in pairwise(edges)], TAGGED)
    assert reply == want
    seen = shown_text(shown)
    assert seen == reply.text
    assert "<tool_call>" not in seen
    assert "</tool_call>" not in seen
    assert [(item[1], item[2], item[3]) for item in shown_calls(shown)] == [
        (item.id, item.name, item.arguments.text) for item in reply.calls
    ]


@pytest.mark.parametrize("finish", [STOP, CALLED], ids=["stop", "tool_calls"])
def test_the_calls_decide_and_not_the_finish_word(finish: bytes) -> None:
    reply = accepted(*streamed(tagged(OSLO), finish=finish), dialect=TAGGED)
    assert reply.termination.kind == "completed"
    assert len(reply.calls) == 1


def test_a_finish_of_calls_without_one_is_refused_in_text_too() -> None:
    assert refused(*streamed("Hello.", finish=CALLED), dialect=TAGGED).code == "terminal_conflict"


def test_a_closing_tag_that_a_server_kept_for_itself_is_not_missed() -> None:
    """A complete JSON text cannot go on; any other is no call. (R347)"""
    whole = accepted(*streamed(f"<tool_call>\n{OSLO}\n"), dialect=TAGGED)
    assert [item.name for item in whole.calls] == ["weather"]
    cut = accepted(*streamed(f"<tool_call>\n{OSLO[:-1]}"), dialect=TAGGED)
    assert [item.name for item in cut.calls] == [MALFORMED_CALL]
    assert "the closing tag </tool_call> is missing" in str(malformed_feedback(cut, 0))


def test_a_reply_that_was_cut_by_length_is_incomplete_whatever_calls_it_has() -> None:
    reply = accepted(*streamed(tagged(OSLO), finish=chunk(choice({}, finish="length"))), dialect=TAGGED)
    assert reply.termination.kind == "incomplete"


def test_a_native_call_is_refused_where_calls_are_text() -> None:
    """Nobody could say which of the two came first."""
    native = calls(call(0, id="a", name="weather", arguments="{}"))
    refusal = refused(FIRST, text(tagged(OSLO)), native, CALLED, COUNTED, DONE, dialect=TAGGED)
    assert (refusal.code, refusal.event) == ("bad_shape", 2)
    assert "call_text" in refusal.expected


def test_tags_in_reasoning_are_no_calls() -> None:
    thought = chunk(choice({"reasoning_content": f"I could write {tagged(OSLO)}"}))
    reply, shown = feed([FIRST, thought, text("Hello."), STOP, COUNTED, DONE], TAGGED)
    assert (reply.text, reply.calls, shown_text(shown)) == ("Hello.", (), "Hello.")


def test_content_in_parts_holds_calls_too_and_is_kept_as_parts() -> None:
    parts = dialect("mistral", call_text=ToolCallParser())
    first = chunk(
        choice({"content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look.<tool_"}]})
    )
    reply = accepted(FIRST, first, text(f"call>{OSLO}</tool_call>"), STOP, COUNTED, DONE, dialect=parts)
    assert (reply.text, [item.name for item in reply.calls]) == ("I look.", ["weather"])
    before = text(f"Hm. {tagged(ROME)}")
    later = accepted(FIRST, before, first, text(f"call>{OSLO}</tool_call>"), STOP, COUNTED, DONE, dialect=parts)
    assert later.text == "Hm. I look."
    assert json.loads(later.native.data)["content"][0]["text"] == f"Hm. {tagged(ROME)}"
    native = json.loads(reply.native.data)
    assert native["content"][-1]["text"] == f"I look.<tool_call>{OSLO}</tool_call>"
    assert join_written(reply, native["call_text"]["written"]) == native["content"][-1]["text"]


def test_halves_of_a_character_are_joined_before_tags_are_looked_for() -> None:
    halves = msgspec.structs.replace(TAGGED, surrogates_split=True)
    first, second = (
        b'data: {"id":"chatcmpl-1","model":"model-1","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % half
        for half in (b"\\ud83d", b"\\ude00<tool_call>")
    )
    reply = accepted(FIRST, first, second, text(f"{OSLO}</tool_call>"), STOP, COUNTED, DONE, dialect=halves)
    assert (reply.text, len(reply.calls)) == ("😀", 1)


def test_text_after_the_finish_is_read_where_a_dialect_allows_it() -> None:
    late = msgspec.structs.replace(TAGGED, delta_after_finish=True)
    words = f"I look.{tagged(OSLO)}"
    reply = accepted(FIRST, text(words[:12]), CALLED, text(words[12:]), COUNTED, DONE, dialect=late)
    assert (reply.text, len(reply.calls)) == ("I look.", 1)


def test_a_body_that_ends_without_done_has_shown_all_its_text() -> None:
    ended = msgspec.structs.replace(TAGGED, done_absent=True)
    reply, shown = feed([FIRST, text("a <tool_"), STOP, COUNTED], ended)
    assert reply.text == shown_text(shown) == "a <tool_"


@pytest.mark.parametrize("visible", [True, False])
def test_text_between_tags_counts_against_the_limit_of_a_reply(visible: bool) -> None:
    words = "x" * 3000 if visible else f"<tool_call>{'x' * 3000}</tool_call>"
    for size in (7, 100, 5000):
        refusal = refused(*streamed(words, size=size), dialect=TAGGED, max_reply_bytes=2000)
        assert (refusal.code, refusal.limit) == ("oversized", "max_reply_bytes")
    assert accepted(*streamed(words), dialect=TAGGED, max_reply_bytes=RESPONSE_BYTES)


def test_a_recorded_stream_is_checked_with_calls_in_its_text() -> None:
    body = b"".join(streamed(tagged(OSLO)))
    verdict = check_stream([body], TAGGED)
    assert verdict.reply is not None
    assert len(verdict.reply.calls) == 1
    narrow = narrowest_verdict([body], call_text=ToolCallParser())
    assert narrow.dialect == "openai"
    assert narrow.reply == verdict.reply
    plain = narrowest_verdict([body])
    assert plain.reply is not None
    assert plain.reply.calls == ()


# dialects and parsers


def test_any_preset_takes_a_way_to_write_calls() -> None:
    """(R342)"""
    for name, preset in PRESETS.items():
        made = dialect(name, call_text=ToolCallParser())
        assert made == msgspec.structs.replace(preset, call_text=ToolCallParser())
        assert hash(made) == hash(dialect(name, call_text=ToolCallParser()))
        assert made != preset
        assert (made.forces_calls, made.calls_beside_schema) == (False, False)
    assert dialect("openai") is OPENAI
    assert (OPENAI.forces_calls, OPENAI.calls_beside_schema) == (True, True)


class Unhashable(ToolCallParser, frozen=True, kw_only=True):
    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("<tool_call>", "expected a ToolCallParser, or an object that is a CallText, got str"),
        (ToolCallParser, "got ToolCallParser"),
        (object(), "got object"),
    ],
)
def test_what_is_no_way_to_write_calls_is_refused_by_name(value: Any, said: str) -> None:
    with pytest.raises(InputError, match=r"^Dialect\.call_text: ") as caught:
        Dialect(name="x", call_text=value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("tags", "said"),
    [
        ({"opening": ""}, "ToolCallParser.opening: expected 1 to 64 characters"),
        ({"opening": "x" * 65}, "ToolCallParser.opening: expected 1 to 64 characters"),
        ({"closing": "<a b>"}, "ToolCallParser.closing: expected 1 to 64 characters without white space"),
        ({"closing": "\ud800"}, "ToolCallParser.closing: "),
        ({"closing": "\x01E"}, "ToolCallParser.closing: expected no control character, got U+0001 at character 0"),
        ({"opening": "<\x00>"}, "ToolCallParser.opening: expected no control character, got U+0000 at character 1"),
        ({"result_closing": "a\x7f"}, "result_closing: expected no control character, got U+007F at character 1"),
        ({"closing": "\x9c"}, "ToolCallParser.closing: expected no control character, got U+009C at character 0"),
        ({"opening": 7}, "ToolCallParser.opening: expected str, got int"),
        ({"result_opening": " "}, "ToolCallParser.result_opening: "),
        ({"opening": "<c>", "closing": "<c>>"}, "neither holds the other"),
        ({"opening": "<c>", "closing": "<c>"}, "neither holds the other"),
        ({"closing": '"'}, "expected no quotation mark"),
    ],
)
def test_tags_that_cannot_be_told_apart_are_refused(tags: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as caught:
        ToolCallParser(**tags)
    assert said in str(caught.value)


def test_a_parser_that_cannot_be_hashed_is_refused() -> None:
    with pytest.raises(InputError, match=r"^ToolCallParser: expected a hashable value, got Unhashable$"):
        Unhashable()


# requests


def asked(
    messages: tuple[Any, ...],
    *,
    options: ModelOptions | None = None,
    tools: tuple[FunctionSpec, ...] = (WEATHER, NOTE),
    way: Dialect = TAGGED,
    exchanges: tuple[ModelExchange, ...] = (),
) -> tuple[dict[str, Any], Any]:
    request = ModelRequest(messages=messages, options=options or ModelOptions(), tools=tools, exchanges=exchanges)
    encoded = encode_request(request, model="m", dialect=way)
    assert encoded.body_bytes == len(encoded.body)
    return json.loads(encoded.body), encoded


def test_tools_are_told_in_the_instructions_and_nowhere_else() -> None:
    """Each schema stands as its own text, between the tags of the common templates. (R342, R348)"""
    options = ModelOptions(tool_choice="auto", parallel_tool_calls=True, temperature=0)
    body, encoded = asked((SystemMessage(content="Be brief."), UserMessage(content="hi")), options=options)
    assert not body.keys() & {"tools", "tool_choice", "parallel_tool_calls"}
    first, second = body["messages"]
    assert second == {"role": "user", "content": "hi"}
    said = first["content"]
    assert said.startswith("Be brief.\n\n# Tools\n\n")
    lines = said.partition("<tools>\n")[2].partition("\n</tools>")[0].split("\n")
    assert (
        lines[0] == '{"type":"function","function":{"name":"weather","description":"Tell the weather.",'
        '"parameters":{"type":"object","x":1.0}}}'
    )
    assert json.loads(lines[1])["function"]["name"] == "note"
    assert "<tool_call>" in said
    instruction = said.removeprefix("Be brief.\n\n")
    assert encoded.tool_bytes == len(json.dumps(instruction, ensure_ascii=False).encode()) - 2
    assert said.endswith("</tool_response>.")


def test_without_a_system_message_the_instruction_is_one() -> None:
    body, _ = asked((UserMessage(content="hi"),))
    assert [message["role"] for message in body["messages"]] == ["system", "user"]


def test_the_last_of_several_leading_system_messages_is_made_longer() -> None:
    said = (SystemMessage(content="one"), SystemMessage(content="two"), UserMessage(content="hi"))
    body, _ = asked((*said, SystemMessage(content="three")))
    first, second, _, last = (message["content"] for message in body["messages"])
    assert (first, last) == ("one", "three")
    assert second.startswith("two\n\n# Tools")


def test_without_tools_nothing_is_said() -> None:
    body, encoded = asked((SystemMessage(content="Be brief."), UserMessage(content="hi")), tools=())
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert encoded.tool_bytes == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ModelOptions(tool_choice=ToolChoice(name="note")), "Your next answer must call the function note."),
        (ModelOptions(tool_choice="required"), "Your next answer must call a function."),
        (ModelOptions(tool_choice="none"), "Your next answer must not call a function."),
        (ModelOptions(parallel_tool_calls=False), "Make at most one call in an answer."),
    ],
)
def test_what_a_choice_asks_for_is_said_in_words(options: ModelOptions, words: str) -> None:
    body, _ = asked((UserMessage(content="hi"),), options=options)
    assert body["messages"][0]["content"].endswith(f"\n{words}")


def test_a_forced_tool_that_is_not_visible_is_refused_as_everywhere() -> None:
    with pytest.raises(InputError, match="expected the name of a visible tool"):
        asked((UserMessage(content="hi"),), options=ModelOptions(tool_choice=ToolChoice(name="other")))
    with pytest.raises(InputError, match="expected tools for 'required'"):
        asked((UserMessage(content="hi"),), options=ModelOptions(tool_choice="required"), tools=())


def answered(reply: ModelReply, *texts: str) -> ModelExchange:
    pairs = zip(reply.calls, texts, strict=True)
    return ModelExchange(reply=reply, feedback=tuple(ToolFeedback.of(c.id, ToolResult.ok(said)) for c, said in pairs))


def test_an_exchange_goes_back_as_the_model_wrote_it_with_results_in_tags() -> None:
    """(R341, R342)"""
    reply = accepted(*streamed(WORDS), dialect=TAGGED)
    encoded = json.loads(b"[%b]" % encode_message(answered(reply, "cold", "warm", "broken"), TAGGED))
    assert encoded == [
        {"role": "assistant", "content": WORDS},
        {
            "role": "user",
            "content": "<tool_response>\ncold\n</tool_response>\n<tool_response>\nwarm\n</tool_response>\n"
            "<tool_response>\nbroken\n</tool_response>",
        },
    ]


def test_native_calls_of_another_model_are_written_in_the_tags() -> None:
    reply = ModelReply(
        id="",
        model="",
        output=(
            Text(text="I look."),
            ToolCall(id="x", name='we"ather', arguments=JsonText(text='{"a": 1}')),
            ToolCall(id="y", name="note", arguments=JsonText(text="")),
        ),
        termination=Termination.of("tool_calls"),
        usage=None,
        native=Native(data='{"calls":{"0":{"extra":1}}}'),
    )
    first, _ = json.loads(b"[%b]" % encode_message(answered(reply, "1", "2"), TAGGED))
    assert first == {
        "role": "assistant",
        "content": 'I look.\n<tool_call>\n{"name": "we\\"ather", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "note", "arguments": {}}\n</tool_call>',
    }
    written = first["content"]
    again = accepted(*streamed(written), dialect=TAGGED)
    assert [(c.name, json.loads(c.arguments.text)) for c in again.calls] == [('we"ather', {"a": 1}), ("note", {})]


def test_calls_in_text_are_native_calls_to_a_server_that_has_them() -> None:
    reply = accepted(*streamed(f"I look.{tagged(OSLO)}"), dialect=TAGGED)
    first, second = json.loads(b"[%b]" % encode_message(answered(reply, "cold"), OPENAI))
    assert first["content"] == "I look."
    assert first["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert second == {"role": "tool", "tool_call_id": "call_0", "content": "cold"}


def test_a_call_that_could_not_be_read_is_text_for_every_server() -> None:
    """No server takes a call of such a name."""
    reply = accepted(*streamed(tagged("no")), dialect=TAGGED)
    exchange = answered(reply, "Nothing ran.")
    assert encode_message(exchange, OPENAI) == encode_message(exchange, TAGGED)


def test_what_a_dialect_replays_goes_back_beside_the_text() -> None:
    way = dialect("deepseek", call_text=ToolCallParser())
    thought = chunk(choice({"reasoning_content": "hm"}))
    reply, _ = feed([FIRST, thought, text(tagged(OSLO)), STOP, COUNTED, DONE], way)
    first, _ = json.loads(b"[%b]" % encode_message(answered(reply, "cold"), way))
    assert first == {"role": "assistant", "content": tagged(OSLO), "reasoning_content": "hm"}


def test_parts_of_content_are_replayed_only_where_they_hold_the_calls() -> None:
    way = dialect("mistral", call_text=ToolCallParser())
    native = Native(data='{"content":[{"text":"I look.","type":"text"}]}')
    item = ToolCall(id="x", name="note", arguments=JsonText(text="{}"))
    reply = ModelReply(
        id="",
        model="",
        output=(Text(text="I look."), item),
        termination=Termination.of("stop"),
        usage=None,
        native=native,
    )
    first, _ = json.loads(b"[%b]" % encode_message(answered(reply, "1"), way))
    assert first["content"].endswith("</tool_call>")


def test_parts_with_tags_are_not_replayed_beside_native_calls() -> None:
    way = dialect("mistral", call_text=ToolCallParser())
    parts = chunk(choice({"content": [{"type": "text", "text": f"I look.{tagged(OSLO)}"}]}))
    reply = accepted(FIRST, parts, STOP, COUNTED, DONE, dialect=way)
    exchange = answered(reply, "cold")
    first, _ = json.loads(b"[%b]" % encode_message(exchange, PRESETS["mistral"]))
    assert (first["content"], len(first["tool_calls"])) == ("I look.", 1)
    again, _ = json.loads(b"[%b]" % encode_message(exchange, way))
    assert again == {"role": "assistant", "content": [{"type": "text", "text": f"I look.{tagged(OSLO)}"}]}


def test_a_refusal_without_a_body_goes_back_as_one() -> None:
    reply, _ = feed([FIRST, chunk(choice({"refusal": "No."})), STOP, COUNTED, DONE], TAGGED)
    first = json.loads(encode_message(ModelExchange(reply=reply, feedback=()), TAGGED))
    assert first == {"role": "assistant", "content": None, "refusal": "No."}


def test_ways_that_write_differently_are_kept_apart_and_equal_ones_are_not() -> None:
    reply = accepted(*streamed("Hello."), dialect=OPENAI)
    item = ToolCall(id="x", name="note", arguments=JsonText(text="{}"))
    exchange = answered(msgspec.structs.replace(reply, output=(item,)), "1")
    other = dialect("openai", call_text=ToolCallParser(opening="[TOOL_CALL]", closing="[/TOOL_CALL]"))
    assert b"[TOOL_CALL]" in encode_message(exchange, other)
    assert b"<tool_call>" in encode_message(exchange, TAGGED)
    assert b'"tool_calls"' in encode_message(exchange, OPENAI)
    assert encode_message(exchange, TAGGED) is encode_message(exchange, dialect("azure", call_text=ToolCallParser()))


def test_a_request_is_a_prefix_of_the_next_and_encodes_what_is_new_only() -> None:
    """The instruction is made once for a catalogue, and not again for each request. (R348)"""
    asked_for: list[int] = []

    class Counting(ToolCallParser, frozen=True, kw_only=True):
        def format_instruction(self, specs: tuple[FunctionSpec, ...], /) -> str:
            asked_for.append(len(specs))
            return ToolCallParser.format_instruction(self, specs)

    way = dialect("openai", call_text=Counting())
    system, user = SystemMessage(content="Be brief."), UserMessage(content="hi")
    options, tools = ModelOptions(), (WEATHER, NOTE)
    exchanges: tuple[ModelExchange, ...] = ()
    bodies = []
    for turn in range(4):
        request = ModelRequest(messages=(system, user), options=options, tools=tools, exchanges=exchanges)
        encoded = encode_request(request, model="m", dialect=way)
        assert encoded.fresh == (3 if turn == 0 else 1)
        bodies.append(encoded.body)
        reply = accepted(*streamed(f"{turn} {tagged(OSLO)}"), dialect=way)
        exchanges = (*exchanges, answered(reply, "cold"))
    assert all(after.startswith(before.removesuffix(b"]}")) for before, after in pairwise(bodies))
    assert asked_for == [2]
    other = ModelRequest(messages=(user,), options=ModelOptions(temperature=1), tools=(WEATHER, NOTE))
    encode_request(other, model="other", dialect=way)
    assert asked_for == [2]


def test_requests_in_turn_for_different_tools_and_messages_do_not_mix() -> None:
    one, two = SystemMessage(content="one"), SystemMessage(content="two")
    user = UserMessage(content="hi")
    for system in (one, two, one):
        for tools in ((WEATHER,), (NOTE,), (WEATHER,)):
            content = asked((system, user), tools=tools)[0]["messages"][0]["content"]
            assert content.startswith(f"{system.content}\n\n")
            assert [name for name in ("weather", "note") if f'"name":"{name}"' in content] == [tools[0].name]
    assert asked((one, user), way=OPENAI)[0]["messages"][0]["content"] == "one"


NO_TEXTS = [
    (7, "expected str, got int"),
    (None, "expected str, got NoneType"),
    ("\ud800", "expected text that UTF-8 can encode, got a lone surrogate"),
]


class Odd(ToolCallParser, frozen=True, kw_only=True):
    """Writes something else in one member; of its tools' calls only where ``tool`` is."""

    member: str
    answer: Any
    tool: str = ""

    def _said(self, member: str, said: str, tool: str = "") -> Any:
        return self.answer if member == self.member and self.tool in ("", tool) else said

    def format_instruction(self, specs: tuple[FunctionSpec, ...], /) -> Any:
        return self._said("format_instruction", ToolCallParser.format_instruction(self, specs))

    def write_call(self, call: ToolCall, /) -> Any:
        return self._said("write_call", ToolCallParser.write_call(self, call), call.name)

    def write_result(self, call: ToolCall, feedback: ToolFeedback, /) -> Any:
        return self._said("write_result", ToolCallParser.write_result(self, call, feedback), call.name)


@pytest.mark.parametrize(("answer", "said"), NO_TEXTS)
@pytest.mark.parametrize("member", ["format_instruction", "write_call", "write_result"])
def test_what_writes_no_text_is_named_before_a_request_with_tools_is_made(
    member: str, answer: object, said: str
) -> None:
    """(R342)"""
    with pytest.raises(InputError) as caught:
        asked((UserMessage(content="hi"),), way=dialect("openai", call_text=Odd(member=member, answer=answer)))
    assert str(caught.value) == f"Dialect.call_text: Odd.{member}: {said}"
    body, _ = asked((UserMessage(content="hi"),), way=dialect("openai", call_text=Odd(member="", answer=7)))
    assert len(body["messages"]) == 2


@pytest.mark.parametrize(("answer", "said"), NO_TEXTS)
@pytest.mark.parametrize("member", ["write_call", "write_result"])
def test_what_writes_no_text_for_one_call_is_named_when_it_does(member: str, answer: object, said: str) -> None:
    """(R342)"""
    item = ToolCall(id="x", name="note", arguments=JsonText(text="{}"))
    reply = ModelReply(id="", model="", output=(item,), termination=Termination.of("tool_calls"), usage=None)
    way = dialect("openai", call_text=Odd(member=member, answer=answer, tool="note"))
    asked((UserMessage(content="hi"),), tools=(WEATHER,), way=way)
    with pytest.raises(InputError) as caught:
        encode_message(answered(reply, "1"), way)
    assert str(caught.value) == f"Dialect.call_text: Odd.{member}: {said}"


class Blind(ToolCallParser, frozen=True, kw_only=True):
    def parse(self, text: str, /, *, closed: bool) -> Any:
        return None


@pytest.mark.parametrize("finish", [STOP, CALLED], ids=["stop", "tool_calls"])
@pytest.mark.parametrize("words", [f"<tool_call>{OSLO}</tool_call> and more", f"<tool_call>{OSLO}"])
def test_a_reader_that_answers_with_no_calls_is_never_a_fault_of_the_stream(words: str, finish: bytes) -> None:
    """However the stream is read, and when it is read on. (R342)"""
    way = dialect("openai", call_text=Blind())
    events = streamed(words, finish=finish)
    body = b"".join(events)
    for reads in ([body], events, [body[at : at + 1] for at in range(len(body))]):
        assembler = ReplyAssembler(way)
        failures = []
        for read in reads:
            try:
                assembler.feed(read)
            except InputError as error:
                failures.append(str(error))
        with pytest.raises(InputError, match=r"^Dialect\.call_text: Blind\.parse: expected a tuple"):
            assembler.finish()
        assert failures
        assert all(said.startswith("Dialect.call_text: Blind.parse: ") for said in failures)


def test_a_reply_that_could_not_be_read_at_its_end_is_none_later() -> None:
    way = dialect("openai", call_text=Blind())
    way = msgspec.structs.replace(way, done_absent=True, delta_after_finish=True)
    assembler = ReplyAssembler(way)
    assembler.feed(b"".join([FIRST, text(f"<tool_call>{OSLO}"), STOP, COUNTED]))
    for _ in range(2):
        with pytest.raises(InputError, match="Blind"):
            assembler.finish()


def test_a_vendor_error_is_one_in_text_too() -> None:
    assert refused(FIRST, text("<tool_call>"), event({"error": {"code": "x"}}), dialect=TAGGED).code == "vendor_error"
