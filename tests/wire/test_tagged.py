"""Text with calls in it: what is seen, what is called, and that neither depends on the cuts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentloop.errors import InputError
from agentloop.messages import ModelReply, Termination, Text, ToolCall
from agentloop.wire import CallTextRefused, TextCall, ToolCallParser
from agentloop.wire.call_text import MALFORMED_CALL, CallText
from agentloop.wire.tagged import TaggedText
from agentloop.wire.written import join_written

PARSER = ToolCallParser()
OPEN, CLOSE = PARSER.opening, PARSER.closing
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
ROME = '{"name": "weather", "arguments": {"city": "Rome"}}'


class Square(ToolCallParser, frozen=True, kw_only=True):
    """The same JSON between tags that share their beginnings."""

    opening: str = "[[call]]"
    closing: str = "[[/call]]"


class Arrow:
    """Calls as ``name(arguments)``, which is no JSON."""

    opening = "=>"
    closing = "<="
    json_strings = False

    def format_instruction(self, specs: object, /) -> str:
        return f"Write =>name(arguments)<= to call one of {specs}."

    def parse(self, text: str, /, *, closed: bool) -> tuple[TextCall, ...]:
        name, mark, rest = text.partition("(")
        if not (closed and name and mark and rest.endswith(")")):
            raise CallTextRefused("Expected name(arguments).")
        return (TextCall(name=name, arguments=rest[:-1]),)

    def write_call(self, call: object, /) -> str:
        return f"=>{call}<="

    def write_result(self, call: object, feedback: object, /) -> str:
        return f"{call}: {feedback}"


class Seen(NamedTuple):
    """What a text comes to."""

    visible: str
    calls: list[tuple[str, str, str]]
    native: dict[str, Any]
    text_at: int | None

    @property
    def faults(self) -> dict[str, str]:
        found: dict[str, str] = self.native.get("faults", {})
        return found


def split(pieces: Iterable[str], call_text: CallText = PARSER) -> Seen:
    """Feed the pieces; after each, nothing that was shown may be of a tag, and little may be held back."""
    tagged = TaggedText(call_text)
    tags = (call_text.opening, call_text.closing)
    visible, written = "", ""
    for piece in pieces:
        tagged.feed(piece)
        written += piece
        visible += tagged.take()
        assert not any(tag in visible for tag in tags)
        assert len(tagged._held) < max(map(len, tags))
    tagged.end()
    visible += tagged.take()
    assert not any(tag in visible for tag in tags)
    native = tagged.native()
    assert "".join(tagged.written) == written
    assert (native is None) == (not tagged.calls)
    if native is None:
        assert visible == written
    else:
        assert join_written(reply_of(visible, tagged.calls), native["written"]) == written
    calls = [(call.id, call.name, call.arguments.text) for call in tagged.calls]
    assert [id_ for id_, _, _ in calls] == [f"call_{at}" for at in range(len(calls))]
    return Seen(visible, calls, native or {}, tagged.text_at)


def reply_of(visible: str, calls: list[ToolCall]) -> ModelReply:
    texts = (Text(text=visible),) if visible else ()
    return ModelReply(id="", model="", output=(*texts, *calls), termination=Termination.of("stop"), usage=None)


def tokens(text: str, call_text: CallText) -> Iterator[tuple[str, str]]:
    """The same text taken apart a character at a time: text, bodies of calls, closing tags alone."""
    seen, at, size = "", 0, len(text)
    while at < size:
        if text.startswith(call_text.closing, at):
            yield "text", seen
            yield "alone", ""
            seen, at = "", at + len(call_text.closing)
            continue
        if not text.startswith(call_text.opening, at):
            seen += text[at]
            at += 1
            continue
        yield "text", seen
        seen, at = "", at + len(call_text.opening)
        begin, inside, trusted = at, False, call_text.json_strings
        since, after_string = at, False
        while at < size and (inside or not text.startswith(call_text.closing, at)):
            char = text[at]
            if inside and char == "\\" and at + 1 < size and text[at + 1] >= " ":
                at += 1
            elif inside and (char < " " or char == "\\") and (at + 1 < size or char < " "):
                inside = trusted = False
                at -= char == "\\"
                at += char == "\\"
            elif char == '"' and inside:
                inside, since, after_string = False, at + 1, True
            elif char == '"' and trusted:
                inside = trusted = begins_string(text[since:at], after_string)
            at += 1
        yield ("open" if at >= size else "body"), text[begin:at]
        at += len(call_text.closing)
    yield "text", seen


def begins_string(gap: str, after_string: bool) -> bool:
    """Whether JSON can go on with a string after what stands since the last one."""
    last = gap.strip(" \t\r\n")[-1:]
    words = re.split(r"[][{},: \t\r\n]", gap)
    plain = all(re.sub("true|false|null|-?[0-9][0-9.eE+-]*", "", word) == "" for word in words)
    return plain and (last in ("{", "[", ",", ":") or (last == "" and not after_string))


def visible_of(parts: list[tuple[str, str]]) -> str:
    """The rule about white space, said of the whole text at once."""
    shown, gap, called = "", "", False
    for kind, text in parts:
        if kind != "text":
            called = True
            continue
        core = text.strip(" \t\r\n")
        if not called:
            shown += text
        elif core:
            lead = text[: text.index(core)]
            kept = shown.rstrip(" \t\r\n")
            gap = shown[len(kept) :] or gap or lead or "\n"
            shown = (kept + gap if kept else "") + text[len(lead) :]
            called, gap = False, ""
        elif not gap and not shown.endswith((" ", "\t", "\r", "\n")):
            gap = text
    return shown.rstrip(" \t\r\n") if called else shown


def expected(text: str, call_text: CallText) -> tuple[str, list[tuple[str, str]]]:
    parts = list(tokens(text, call_text))
    calls: list[tuple[str, str]] = []
    for kind, body in parts:
        if kind == "alone":
            calls.append((MALFORMED_CALL, ""))
        elif kind != "text":
            try:
                found = call_text.parse(body, closed=kind == "body")
            except CallTextRefused:
                calls.append((MALFORMED_CALL, body))
            else:
                calls += [(call.name, call.arguments) for call in found]
    return visible_of(parts), calls


TEXTS = {
    "no call": "It is cold in Oslo. 😀 <b>really</b>\n",
    "one call": f"I look.\n{OPEN}\n{OSLO}\n{CLOSE}",
    "two calls": f"{OPEN}{OSLO}{CLOSE}\n{OPEN}\n{ROME}\n{CLOSE}\n",
    "an array": f"{OPEN}[{OSLO}, {ROME}]{CLOSE}",
    "text around": f"First.\n\n{OPEN}{OSLO}{CLOSE}\nThen <tool is no tag, nor is </tool_cal>.",
    "a tag of two halves": f"<tool_{OPEN}{OSLO}{CLOSE}call>",
    "a closing tag in a string": f'{OPEN}{{"name": "w", "arguments": {{"t": "a{CLOSE}b \\" {OPEN} \\\\"}}}}{CLOSE}ok',
    "a code fence": f"```xml\n{OPEN}\n{OSLO}\n{CLOSE}\n```",
    "nested tags": f"{OPEN}{OPEN}{OSLO}{CLOSE}{CLOSE}",
    "a closing tag alone": f"So: {CLOSE} was it.",
    "broken JSON": f'{OPEN}{{"name": "a", "arguments": {{"x": "b}}}}\n{CLOSE} And more "text".',
    "no closing tag": f"I look. {OPEN}{OSLO}",
    "half a closing tag": f"{OPEN}{OSLO}</tool_",
    "half an opening tag": "I look. <tool_call",
    "an escape at the end": f'{OPEN}{{"name": "\\',
    "characters of four bytes": f'Grüße 😀{OPEN}{{"name": "é", "arguments": {{"😀": "\\ud83d\\ude00"}}}}{CLOSE}😀',
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("call_text", [PARSER], ids=["default"])
def test_a_text_is_the_same_at_every_split(text: str, call_text: CallText) -> None:
    """(R342, R348)"""
    whole = split([text], call_text)
    assert (whole.visible, [call[1:] for call in whole.calls]) == expected(text, call_text)
    assert split(text, call_text) == whole
    for first in range(len(text) + 1):
        assert split([text[:first], text[first:]], call_text) == whole
        for second in range(first, len(text) + 1, 7):
            assert split([text[:first], text[first:second], text[second:]], call_text) == whole


@pytest.mark.parametrize(
    ("name", "visible", "called"),
    [
        ("no call", TEXTS["no call"], []),
        ("one call", "I look.", ["weather"]),
        ("two calls", "", ["weather", "weather"]),
        ("an array", "", ["weather", "weather"]),
        ("text around", "First.\n\nThen <tool is no tag, nor is </tool_cal>.", ["weather"]),
        ("a tag of two halves", "<tool_\ncall>", ["weather"]),
        ("a closing tag in a string", "ok", ["w"]),
        ("a code fence", "```xml\n```", ["weather"]),
        ("nested tags", "", [MALFORMED_CALL, MALFORMED_CALL]),
        ("a closing tag alone", "So: was it.", [MALFORMED_CALL]),
        ("broken JSON", 'And more "text".', [MALFORMED_CALL]),
        ("no closing tag", "I look.", ["weather"]),
        ("half a closing tag", "", [MALFORMED_CALL]),
        ("half an opening tag", "I look. <tool_call", []),
        ("an escape at the end", "", [MALFORMED_CALL]),
        ("characters of four bytes", "Grüße 😀\n😀", ["é"]),
    ],
)
def test_what_is_seen_and_what_is_called(name: str, visible: str, called: list[str]) -> None:
    """(R342, R348, R358)"""
    seen = split([TEXTS[name]])
    assert (seen.visible, [call[1] for call in seen.calls]) == (visible, called)


def test_arguments_are_a_slice_of_what_the_model_wrote() -> None:
    """(R18, R342)"""
    written = '{ "city" : "Os\\u006co" ,\n "n": 1e2, "big": 123456789012345678901234567890 }'
    seen = split([f'{OPEN}\n{{"arguments" : {written} , "name":"weather"}}\n{CLOSE}'])
    assert seen.calls == [("call_0", "weather", written)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f'{OPEN}{{"name": "a", "arguments": {{"x": tru}}}}{CLOSE}',
            "at character 33 ($.arguments.x): expected a JSON",
        ),
        (f"{OPEN}{CLOSE}", "at character 0: expected a JSON value"),
        (f"{OPEN}```json\n{OSLO}\n```{CLOSE}", "at character 0: expected a JSON value"),
        (f'{OPEN}{{"name": "a", "arguments": {{"x": 1, "x": 2}}}}{CLOSE}', "each key once"),
        (f'{OPEN}{{"arguments": {{}}}}{CLOSE}', "$.name: expected the name of a function, got none"),
        (f'{OPEN}{{"name": 7}}{CLOSE}', "$.name: expected the name of a function, got an integer"),
        (f'{OPEN}{{"name": ""}}{CLOSE}', "$.name: expected the name of a function, got an empty string"),
        (f'{OPEN}{{"name": "a", "arguments": "{{}}"}}{CLOSE}', "$.arguments: expected an object, got a string"),
        (f'{OPEN}{{"name": "a", "arguments": []}}{CLOSE}', "$.arguments: expected an object, got an array"),
        (f'{OPEN}{{"name": "a", "args": {{}}}}{CLOSE}', "expected the members name and arguments only, got 'args'"),
        (f"{OPEN}[]{CLOSE}", "got an empty array"),
        (f"{OPEN}7{CLOSE}", "got an integer"),
        (f"{OPEN}[{OSLO}, null]{CLOSE}", "$[1]: expected an object, got null"),
        (f'{OPEN}{{"name": "{MALFORMED_CALL}"}}{CLOSE}', "names no function"),
        (f"{OPEN}{OSLO[:-3]}", f"end of the text, and the closing tag {CLOSE} is missing. Expected"),
        (f"{OPEN}{{}}", f"got none, and the closing tag {CLOSE} is missing. Expected"),
        (
            f'{OPEN}{{"name": "a", "x": "{CLOSE} and more',
            f"up to its closing quote, got the end of the text, and {CLOSE} stands in its strings only. Expected",
        ),
        (f'{OPEN}{{"name": "a", "x": "{CLOSE}"}}', f"got 'x', and {CLOSE} stands in its strings only. Expected"),
        (
            f"{OPEN}{OSLO}\n{OPEN}{ROME}{CLOSE}",
            f"after one JSON value, and {OPEN} opens again before {CLOSE}. Expected",
        ),
        (f'{OPEN}{{"name": "{OPEN}", "arguments": oh}}{CLOSE}', "got a letter or digit. Expected"),
        (f"{OPEN}{{'name':'it\"s'}}{CLOSE}", 'at character 1: expected a key in double quotes, got "\'". Expected'),
        (
            f"{OPEN}\n```json\n{OSLO}\n```\n{CLOSE}",
            "at character 1: expected a JSON value, got '`' (write it without code fences). Expected",
        ),
        (f"Well.{CLOSE}", f"{CLOSE} stands where no {OPEN} is open"),
    ],
)
def test_what_is_no_call_is_answered_with_what_is_wrong_and_where(text: str, said: str) -> None:
    """One slot, which runs nothing; nothing is cut or mended. (R19, R55, R346, R347)"""
    seen = split([text])
    ((id_, name, _),) = seen.calls
    assert (id_, name) == ("call_0", MALFORMED_CALL)
    assert said in seen.faults["0"]
    assert len(seen.faults["0"]) <= 560


@pytest.mark.parametrize("broken", ['"\n', "no", "{'no': \"", '{"no" '])
def test_a_broken_call_breaks_no_other(broken: str) -> None:
    whole = f'{OPEN}{{"name": "w", "arguments": {{"t": "{CLOSE}"}}}}{CLOSE}'
    text = f"{OPEN}{broken}{CLOSE}{whole}"
    for seen in (split([text]), split(text)):
        assert [call[1] for call in seen.calls] == [MALFORMED_CALL, "w"]


@pytest.mark.parametrize(
    "broken",
    [
        "{'name':'it\"s'}",
        '{"name": "f", "arguments": {"q": "it\'s 5" tall"}}',
        '{"name": "f"} oops "',
        '{name: "f}',
        '{"name": tru"',
        '{"name" "f',
        '"" "',
        '{"name": "f"}"',
        '`"',
        '\u00a0"',
    ],
)
def test_a_quotation_mark_in_broken_json_swallows_no_call_and_no_text(broken: str) -> None:
    """No string can begin there, so the next closing tag counts. (R342, R347)"""
    text = f"{OPEN}{broken}{CLOSE} tail {OPEN}{OSLO}{CLOSE} end"
    whole = split([text])
    assert whole.visible == "tail end"
    assert [call[1] for call in whole.calls] == [MALFORMED_CALL, "weather"]
    assert CLOSE not in whole.faults["0"].partition("Expected <")[0]
    assert split(text) == whole
    for cut in range(len(text)):
        assert split([text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize(
    "before", ["", "[", " [ {} , [ ] ,", "[-1.5e+3,", '["", true,null ,false,\r\n\t', '{"":', '[["a"] , ']
)
def test_a_closing_tag_is_text_in_every_string_that_json_can_have(before: str) -> None:
    """(R342)"""
    seen = split([f'{OPEN}{before}"{CLOSE}"\n{CLOSE}ok'])
    assert (seen.visible, len(seen.calls)) == ("ok", 1)


class Odd(Arrow):
    """A reader that may answer with anything; it raises what is an exception."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def parse(self, text: str, /, *, closed: bool) -> Any:
        if callable(self.answer):
            return self.answer()
        return self.answer


NO_CALLS = [
    ("abc", "expected a tuple of 1 or more TextCall, got str"),
    ([1], "expected a tuple of 1 or more TextCall, got list"),
    ({"a": 1}, "expected a tuple of 1 or more TextCall, got dict"),
    (5, "expected a tuple of 1 or more TextCall, got int"),
    (None, "expected a tuple of 1 or more TextCall, got NoneType"),
    ((), "expected a tuple of 1 or more TextCall, got none; raise CallTextRefused for no call"),
    ((TextCall(name="f", arguments=""), "f"), "expected a TextCall at [1], got str"),
    (lambda: (TextCall(name="\ud800", arguments=""),), "TextCall.name: expected text that UTF-8 can encode"),
    (lambda: (TextCall(name="f", arguments="\ud800"),), "TextCall.arguments: expected text that UTF-8 can encode"),
    (lambda: (TextCall(name=5, arguments=""),), "TextCall.name: expected str, got int"),  # type: ignore[arg-type]
    (lambda: (TextCall(name="f", arguments=None),), "TextCall.arguments: expected str, got NoneType"),  # type: ignore[arg-type]
    (lambda: CallTextRefused(5), "CallTextRefused.feedback: expected str, got int"),  # type: ignore[arg-type]
    (lambda: CallTextRefused("\ud800"), "CallTextRefused.feedback: expected text that UTF-8 can encode"),
    (lambda: CallTextRefused(""), "CallTextRefused.feedback: expected a non-empty string"),
]


@pytest.mark.parametrize(("answer", "said"), NO_CALLS)
@pytest.mark.parametrize("closed", [True, False])
def test_a_reader_that_answers_with_no_calls_is_named(answer: object, said: str, closed: bool) -> None:
    """Nothing between two tags is dropped without a word. (R342)"""
    tagged = TaggedText(Odd(answer))
    tagged.feed("a =>b")
    with pytest.raises(InputError) as caught:
        tagged.feed("<=") if closed else tagged.end()
    assert str(caught.value).startswith(f"Dialect.call_text: Odd.parse: {said}")
    assert type(caught.value) is InputError
    assert tagged.calls == []


def test_what_a_model_reads_of_a_malformed_call_is_short() -> None:
    assert len(CallTextRefused("x" * 560).feedback) == len(CallTextRefused("x" * 561).feedback) == 560
    assert CallTextRefused("x" * 561).feedback.endswith("…")


def test_a_good_call_beside_a_bad_one_is_a_call() -> None:
    """(R342, R347)"""
    seen = split([f"{OPEN}{OSLO}{CLOSE}{OPEN}no{CLOSE}{OPEN}{ROME}{CLOSE}"])
    assert [call[:2] for call in seen.calls] == [
        ("call_0", "weather"),
        ("call_1", MALFORMED_CALL),
        ("call_2", "weather"),
    ]
    assert list(seen.faults) == ["1"]


def test_a_text_knows_how_many_calls_came_before_it() -> None:
    assert split([f"a{OPEN}{OSLO}{CLOSE}"]).text_at == 0
    assert split([f"{OPEN}{OSLO}{CLOSE} a"]).text_at == 1
    assert split([f"{OPEN}{OSLO}{CLOSE}"]).text_at is None


PIECES = st.sampled_from(
    [
        OPEN,
        CLOSE,
        "<tool",
        "_call>",
        "</tool",
        "<",
        ">",
        OSLO,
        '{"name":"f"}',
        '{"name":"f","arguments":{"x":"',
        '"}}',
        '"',
        "\\",
        "\n",
        "  ",
        "\t",
        "a",
        "é😀",
        "[",
        ",",
        "]",
        "```",
        "[[call]]",
        "[[/call]]",
        "=>",
        "<=",
        "f(",
        ")",
    ]
)
CUTS = st.lists(st.integers(0, 400), max_size=12)


@pytest.mark.parametrize("call_text", [PARSER, Square(), Arrow()], ids=["default", "square", "arrow"])
@given(
    text=st.lists(PIECES, max_size=14).map("".join) | st.text(alphabet=st.sampled_from(f'{OPEN}/"\\\n a'), max_size=60),
    cuts=CUTS,
)
@example(text=f'{OPEN}"\\\n{CLOSE}"{CLOSE}', cuts=[])
@example(text=f'{OPEN}"\n"{CLOSE}a', cuts=[])
@example(text=f" {OPEN}{OSLO}{CLOSE} a {CLOSE} {OPEN}", cuts=[])
@settings(max_examples=400, deadline=None)
def test_any_text_with_any_cuts_is_what_the_rules_say(call_text: CallText, text: str, cuts: list[int]) -> None:
    """A second reader, which takes the whole text a character at a time, says the same. (R342, R347, R348)"""
    whole = split([text], call_text)
    assert (whole.visible, [call[1:] for call in whole.calls]) == expected(text, call_text)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert split([text[a:b] for a, b in pairwise(edges)], call_text) == whole
    assert split(text, call_text) == whole


@given(
    names=st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=8,
    ),
    indent=st.sampled_from([None, 2]),
    ascii_only=st.booleans(),
)
def test_whatever_json_a_call_holds_is_read_as_it_was_written(
    names: list[str], value: object, indent: int | None, ascii_only: bool
) -> None:
    """(R18, R342)"""
    arguments = json.dumps({"v": value, "close": CLOSE}, indent=indent, ensure_ascii=ascii_only)
    calls = [f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}' for name in names]
    for text in ("".join(f"{OPEN}\n{call}\n{CLOSE}" for call in calls), f"{OPEN}[{', '.join(calls)}]{CLOSE}"):
        seen = split([text])
        assert (seen.visible, seen.calls) == ("", [(f"call_{at}", name, arguments) for at, name in enumerate(names)])
