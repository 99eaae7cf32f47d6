"""Framing: what an event is, where it begins, and what is no event stream."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import StreamRefused
from agentloop.wire.sse import ServerSentEvent, SSEDecoder
from tests.wire.streams import is_linear


def decode(*chunks: bytes) -> list[tuple[str, bytes, int]]:
    decoder = SSEDecoder()
    return [(event.name, event.data, event.byte) for chunk in chunks for event in decoder.feed(chunk)]


def bytewise(body: bytes) -> list[bytes]:
    return [body[at : at + 1] for at in range(len(body))]


def refusal(*chunks: bytes, max_event_bytes: int = 1 << 20, max_response_bytes: int = 1 << 21) -> StreamRefused:
    decoder = SSEDecoder(max_event_bytes=max_event_bytes, max_response_bytes=max_response_bytes)
    try:
        for chunk in chunks:
            decoder.feed(chunk)
        decoder.close()
    except StreamRefused as found:
        return found
    pytest.fail("the body was not refused")


def test_an_event_has_the_data_and_the_offset_of_its_first_byte() -> None:
    assert decode(b"data: one\n\ndata: two\n\n") == [("", b"one", 0), ("", b"two", 11)]


def test_data_lines_of_one_event_are_joined_by_a_line_feed() -> None:
    assert decode(b"data: a\ndata: b\ndata:\n\n") == [("", b"a\nb\n", 0)]


def test_one_space_after_the_colon_belongs_to_the_framing_and_a_second_to_the_data() -> None:
    assert decode(b"data:a\n\ndata: b\n\ndata:  c\n\ndata\n\n") == [
        ("", b"a", 0),
        ("", b"b", 8),
        ("", b" c", 17),
        ("", b"", 27),
    ]


def test_a_name_holds_for_one_event() -> None:
    assert decode(b"event: ping\ndata: a\n\ndata: b\n\n") == [("ping", b"a", 0), ("", b"b", 21)]


def test_comments_ids_and_retries_are_no_events_and_are_part_of_the_one_they_precede() -> None:
    body = b": ping\n\nid: 7\n\nretry: 1\n\nevent: ping\n\n: x\nid: 8\ndata: a\n\n"
    assert decode(body) == [("", b"a", 38)]


def test_a_bare_error_event_is_not_overlooked() -> None:
    assert decode(b"event: error\n\n") == [("error", b"", 0)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_all_three_line_ends_end_a_line_however_they_are_cut(end: bytes) -> None:
    body = b"data: a\n\nevent: e\ndata: b\n\n: c\n\ndata: d\n\n".replace(b"\n", end)
    whole = decode(body)
    assert [event[:2] for event in whole] == [("", b"a"), ("e", b"b"), ("", b"d")]
    assert body[whole[2][2] :].startswith(b"data: d")
    assert decode(*bytewise(body)) == whole


def test_a_carriage_return_at_the_end_of_a_read_ends_the_event_at_once() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\r\r") == [ServerSentEvent(b"a", "", 0)]
    assert decoder.feed(b"\ndata: b\r\n\r") == [ServerSentEvent(b"b", "", 10)]
    assert decoder.feed(b"\n") == []


def test_other_separators_of_unicode_end_no_line() -> None:
    data = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg".encode()
    assert decode(b"data: " + data + b"\n\n") == [("", data, 0)]


def test_a_byte_order_mark_is_dropped_at_the_very_start_only() -> None:
    assert decode(b"\xef\xbb\xbfdata: a\n\n") == [("", b"a", 0)]
    assert decode(b"\xef", b"\xbb", b"\xbf", b"data: a\n\n") == [("", b"a", 0)]
    found = refusal(b"data: a\n\n\xef\xbb\xbfdata: b\n\n")
    assert (found.code, found.event, found.byte) == ("bad_framing", 1, 9)


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (b"<html><body>\n", "a line of HTML or XML"),
        (b'{"choices": []}\n', "a line of JSON outside a data field"),
        (b"Data: {}\n", "field 'Data'"),
        (b"dat: {}\n", "field 'dat'"),
        (b"HTTP/1.1 502 Bad Gateway\n", "a line of 24 bytes that is no field"),
    ],
)
def test_a_line_with_no_known_field_is_refused_without_quoting_it(body: bytes, got: str) -> None:
    """The standard would drop it, and text with it."""
    found = refusal(b"data: a\n\n: c\n" + body)
    assert (found.code, found.event, found.byte, found.got) == ("bad_framing", 1, 9, got)


def test_a_body_without_any_line_end_is_judged_when_it_ends() -> None:
    assert refusal(b"<html></html>").code == "bad_framing"


@pytest.mark.parametrize(
    "rest", [b"d", b"dat", b"data", b"data:", b"data: {", b": pi", b"even", b"id: 4", b"", b"\xef\xbb"]
)
def test_a_line_that_may_have_become_a_field_is_only_cut_off(rest: bytes) -> None:
    decoder = SSEDecoder()
    decoder.feed(rest)
    assert decoder.close() == []


def test_an_event_that_no_blank_line_ends_is_not_dispatched_but_can_be_seen() -> None:
    decoder = SSEDecoder()
    assert decoder.feed(b"data: a\n\ndata: [DONE]\n") == [ServerSentEvent(b"a", "", 0)]
    assert decoder.close() == []
    assert decoder.pending == ServerSentEvent(b"[DONE]", "", 9)
    assert decoder.is_cut


def test_a_body_that_ends_in_a_comment_is_not_cut() -> None:
    decoder = SSEDecoder()
    decoder.feed(b"data: a\n\n: bye")
    decoder.close()
    assert decoder.pending is None
    assert not decoder.is_cut


@pytest.mark.parametrize(
    "bad",
    [b"\xff", b"\xc0\xaf", b"\xed\xa0\xbd\xed\xb8\x80", b"\xf4\x90\x80\x80", b"\xe4\xbd"],
    ids=["stray byte", "overlong", "surrogates", "too large", "cut off"],
)
def test_bytes_that_are_no_character_are_refused_at_their_event(bad: bytes) -> None:
    found = refusal(b"data: a\n\ndata: " + bad + b"\n\n")
    assert (found.code, found.event, found.byte) == ("invalid_utf8", 1, 9)


def test_characters_may_be_cut_anywhere() -> None:
    body = "data: café 你好 😀\n\n".encode()
    assert decode(*bytewise(body)) == [("", "café 你好 😀".encode(), 0)]


def test_an_event_over_the_limit_names_the_limit_and_is_refused_while_it_comes() -> None:
    decoder = SSEDecoder(max_event_bytes=16)
    decoder.feed(b"data: 1234567890\n\ndata: 1234567890")
    with pytest.raises(StreamRefused) as caught:
        decoder.feed(b"1")
    found = caught.value
    assert (found.code, found.limit, found.allowed) == ("oversized", "max_event_bytes", 16)
    assert (found.event, found.byte) == (1, 18)
    assert "at least 17" in str(found)


def test_an_event_of_many_lines_counts_as_a_whole() -> None:
    found = refusal(b": " + b"x" * 8 + b"\ndata: 12345\n\n", max_event_bytes=20)
    assert (found.code, found.limit) == ("oversized", "max_event_bytes")


def test_a_line_without_end_is_refused_with_little_memory_and_time() -> None:
    decoder = SSEDecoder(max_event_bytes=1 << 20, max_response_bytes=1 << 30)
    for _ in range(16):
        assert decoder.feed(b"\0" * 65_536) == []
    with pytest.raises(StreamRefused):
        decoder.feed(b"\0")


def test_the_whole_body_has_a_limit_of_its_own() -> None:
    found = refusal(b"data: a\n\n" * 4, max_response_bytes=30)
    assert (found.code, found.limit, found.allowed) == ("oversized", "max_response_bytes", 30)
    assert (found.event, found.byte) == (3, 27)


def test_what_comes_before_the_limit_is_judged_first() -> None:
    assert refusal(b"data: a\n\njunk\n" + b"x" * 50, max_response_bytes=30).code == "bad_framing"


def test_cost_is_linear_when_an_event_comes_byte_by_byte() -> None:
    def seconds(size: int) -> float:
        decoder = SSEDecoder()
        body = b"data: " + b"x" * size + b"\n\n"
        begun = time.process_time()
        events = [event for at in range(len(body)) for event in decoder.feed(body[at : at + 1])]
        assert len(events) == 1
        return time.process_time() - begun

    assert is_linear(seconds, 20_000)


LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b"event: e", b"event: error", b"id: 1", b": c", b"", b"", b"junk", b"data: \xff"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.lists(st.integers(0, 200), max_size=8), st.integers(6, 40))
def test_where_the_bytes_are_cut_changes_neither_events_nor_refusals(
    lines: list[tuple[bytes, bytes]], cuts: list[int], limit: int
) -> None:
    """R120."""
    body = b"".join(line + end for line, end in lines)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]

    def outcome(chunks: list[bytes]) -> tuple[list[ServerSentEvent], tuple[str, int, int] | None]:
        decoder = SSEDecoder(max_event_bytes=limit, max_response_bytes=4 * limit)
        events: list[ServerSentEvent] = []
        try:
            for chunk in chunks:
                events += decoder.feed(chunk)
            decoder.close()
        except StreamRefused as found:
            return [], (found.code, found.event, found.byte)
        return events, None

    assert outcome([body[a:b] for a, b in itertools.pairwise(edges)]) == outcome([body])
    assert outcome(bytewise(body)) == outcome([body])


def test_a_line_that_begins_with_text_of_the_reply_is_not_quoted() -> None:
    with pytest.raises(StreamRefused) as caught:
        SSEDecoder().feed(b"SECRETWORD: x\n\n")
    assert caught.value.code == "bad_framing"
    assert caught.value.got == "a field of another name, 10 letters long"
