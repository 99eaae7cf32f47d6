"""Streams that are cut, shuffled or damaged: the same outcome, a refusal, or exactly what is left."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import StreamRefused
from agentloop.messages import ModelReply
from agentloop.wire import LENIENT, OPENAI, PRESETS, Dialect, ReplyAssembler, reasoning_text
from tests.wire.streams import (
    CALLED,
    COUNTED,
    DONE,
    FIRST,
    STOP,
    call,
    calls,
    choice,
    chunk,
    facts,
    text,
)

DIALECTS = st.sampled_from(
    [OPENAI, LENIENT, PRESETS["gemini"], PRESETS["azure"], PRESETS["perplexity"], PRESETS["mistral"]]
)
WORDS = st.text(alphabet=st.sampled_from('ab "\\\n é你😀'), max_size=5)
SMALL = st.integers(-1, 2) | st.none() | st.sampled_from([True, "0", 1.0])
PIECES = st.builds(
    call,
    st.sampled_from([0, 0, 1, 1, 2, -1, None, ...]),
    id=st.sampled_from(["a", "b", "", None, ...]),
    name=st.sampled_from(["f", "g", "", None, ...]),
    arguments=st.sampled_from(["{}", '{"a":', "1}", "", None, ..., {"a": 1}]),
)
DELTAS = st.fixed_dictionaries(
    {},
    optional={
        "content": WORDS
        | st.none()
        | st.sampled_from([[{"type": "text", "text": "p"}], [{"type": "thinking", "thinking": "t"}], 5]),
        "reasoning": WORDS,
        "reasoning_content": WORDS | st.none(),
        "refusal": st.sampled_from(["", None, "no"]),
        "tool_calls": st.lists(PIECES, max_size=2),
    },
)
FINISHES = st.sampled_from([None, None, None, None, "stop", "tool_calls", "length", "", ...])
USAGES = st.sampled_from([..., None, {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}, {}])
CHUNKS = st.builds(
    chunk,
    st.builds(
        choice, DELTAS | st.sampled_from([None, ...]), finish=FINISHES, index=st.sampled_from([0, 0, 0, 0, 1, ...])
    ),
    id=st.sampled_from(["chatcmpl-1"] * 6 + ["", "x", ...]),
    usage=USAGES,
    error=st.sampled_from([...] * 9 + [{"message": "x"}]),
)
ODD = st.sampled_from(
    [b": ping\n\n", b"data:\n\n", b"event: error\ndata: x\n\n", b"data: [1]\n\n", b"junk\n\n", b"data: \xff\n\n"]
)
EVENTS = st.lists(
    st.one_of(WORDS.map(text), WORDS.map(text), CHUNKS, st.sampled_from([FIRST, STOP, CALLED, COUNTED, DONE]), ODD),
    max_size=9,
)


def outcome(reads: list[bytes], dialect: Dialect, **limits: Any) -> ModelReply | tuple[Any, ...]:
    assembler = ReplyAssembler(dialect, **limits)
    try:
        for read in reads:
            assembler.feed(read)
        return assembler.finish()
    except StreamRefused as refusal:
        return facts(refusal)


@settings(max_examples=200)
@given(EVENTS, st.booleans(), st.lists(st.integers(0, 3_000), max_size=6), DIALECTS, st.sampled_from([None, 300]))
def test_where_the_bytes_are_cut_changes_nothing(
    events: list[bytes], ends: bool, cuts: list[int], dialect: Dialect, limit: int | None
) -> None:
    """R120: neither a reply nor a refusal, its event and its byte included."""
    events = [FIRST, *events, *([STOP, COUNTED, DONE] if ends else [])]
    body = b"".join(events)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    whole = outcome([body], dialect, max_reply_bytes=limit)
    assert outcome([body[a:b] for a, b in itertools.pairwise(edges)], dialect, max_reply_bytes=limit) == whole
    assert outcome(events, dialect, max_reply_bytes=limit) == whole
    assert outcome([body[at : at + 1] for at in range(len(body))], dialect, max_reply_bytes=limit) == whole


@given(EVENTS, DIALECTS, st.sampled_from([b"\r\n", b"\r"]))
def test_the_kind_of_line_end_changes_no_reply(events: list[bytes], dialect: Dialect, end: bytes) -> None:
    body = b"".join([FIRST, *events, STOP, COUNTED, DONE])
    whole, other = outcome([body], dialect), outcome([body.replace(b"\n", end)], dialect)
    if isinstance(whole, ModelReply):
        assert other == whole
    else:
        assert other[:2] == whole[:2]


# An independent reference, only for what it is sure of: what the deltas of a sound stream say.


def said(events: list[bytes]) -> tuple[str, str, list[str]]:
    """Text, reasoning and arguments by index, read naively up to [DONE]."""
    words, thoughts, texts = "", "", {}
    for event in events:
        data = event.removeprefix(b"data:").strip()
        if data == b"[DONE]":
            break
        if not event.startswith(b"data:") or not data:
            continue
        for item in json.loads(data)["choices"]:
            delta = item["delta"]
            words += delta.get("content") or ""
            thoughts += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls") or ():
                texts[piece["index"]] = texts.get(piece["index"], "") + (piece["function"].get("arguments") or "")
    return words, thoughts, [texts[index] for index in sorted(texts)]


SOUND = [
    FIRST,
    chunk(choice({"reasoning_content": "Think "})),
    chunk(choice({"reasoning_content": "twice."})),
    text("I "),
    text("look "),
    text("it up."),
    calls(call(0, id="a", name="f", arguments="")),
    calls(call(0, arguments='{"a":')),
    calls(call(1, id="b", name="g", arguments="{")),
    calls(call(0, arguments="1}")),
    calls(call(1, arguments="}")),
    CALLED,
    COUNTED,
    DONE,
]
EDITS = st.one_of(
    st.tuples(st.just("drop"), st.integers(0, len(SOUND) - 1), st.just(0)),
    st.tuples(st.just("repeat"), st.integers(0, len(SOUND) - 1), st.just(0)),
    st.tuples(st.just("swap"), st.integers(0, len(SOUND) - 1), st.integers(0, len(SOUND) - 1)),
    st.tuples(st.just("cut"), st.integers(0, len(SOUND)), st.just(0)),
)


def edited(events: list[bytes], edits: list[tuple[str, int, int]]) -> list[bytes]:
    events = list(events)
    for kind, at, other in edits:
        if kind == "cut":
            events = events[:at]
        elif at >= len(events) or other >= len(events):
            continue
        elif kind == "drop":
            del events[at]
        elif kind == "repeat":
            events.insert(at, events[at])
        else:
            events[at], events[other] = events[other], events[at]
    return events


@settings(max_examples=200)
@given(st.lists(EDITS, min_size=1, max_size=3), st.sampled_from([OPENAI, LENIENT]))
def test_a_stream_with_events_dropped_repeated_swapped_or_cut_is_refused_or_says_what_is_left(
    edits: list[tuple[str, int, int]], dialect: Dialect
) -> None:
    """R117, R119, R120: never a guess, never more or less than the remaining deltas."""
    events = edited(SOUND, edits)
    for reads in ([b"".join(events)], events):
        found = outcome(reads, dialect)
        if isinstance(found, ModelReply):
            assert b'"finish_reason":"' in b"".join(events)
            made = [item.arguments.text for item in found.calls]
            assert (found.text, reasoning_text(found.native)) == said(events)[:2]
            if dialect is OPENAI:
                assert made == said(events)[2]
            else:
                assert "".join(sorted("".join(made))) == "".join(sorted("".join(said(events)[2])))


@pytest.mark.parametrize("at", range(len(SOUND) - 1))
def test_dropping_any_event_but_a_text_is_noticed_or_loses_only_itself(at: int) -> None:
    """R120."""
    events = [event for number, event in enumerate(SOUND) if number != at]
    found = outcome(events, OPENAI)
    if isinstance(found, ModelReply):
        assert (found.text, reasoning_text(found.native), [item.arguments.text for item in found.calls]) == said(events)
    else:
        assert at in (6, 8, 11, 12)  # openings of calls, the finish, the usage


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=60) | EVENTS.map(b"".join), max_size=6), DIALECTS)
def test_no_bytes_raise_anything_but_a_refusal(reads: list[bytes], dialect: Dialect) -> None:
    """R120."""
    outcome(reads, dialect, max_event_bytes=2_000, max_response_bytes=5_000, max_reply_bytes=400)


KEYS = (
    *("choices", "index", "delta", "content", "tool_calls", "function", "arguments", "name", "id", "type"),
    *("error", "usage", "finish_reason", "message", "reasoning_details", "thinking_blocks", "extra_content"),
)
SIMPLE = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.sampled_from(["", "x", "stop"])
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SIMPLE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(VALUES, DIALECTS)
def test_any_json_as_a_chunk_is_admitted_or_refused(value: object, dialect: Dialect) -> None:
    """R120."""
    event = b"data: " + json.dumps(value).encode() + b"\n\n"
    for head in ([], [FIRST], [FIRST, STOP]):
        outcome([*head, event, STOP, COUNTED, DONE], dialect)
