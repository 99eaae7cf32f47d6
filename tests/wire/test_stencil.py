"""The quickest way of reading gives what the rules would have given, or nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import StreamRefused
from agentloop.wire import OPENAI, ReplyAssembler
from agentloop.wire.plain import PlainChunk, plain_decoder
from agentloop.wire.stencil import Stencil, StencilMaker
from tests.wire.streams import COUNTED, DONE, FIRST, STOP, accepted, choice, chunk, facts, feed, refused, text


def learned(event: bytes) -> Stencil | None:
    data = event[6:-2]
    maker = StencilMaker()
    maker.missed(data, plain_decoder()(data))
    assert maker.current is None, "the first one is shown first"
    maker.missed(data, plain_decoder()(data))
    return maker.current


def test_a_stencil_reads_the_text_out_of_like_events() -> None:
    stencil = learned(text("Hello"))
    assert stencil is not None
    assert stencil.read_one(text(", wörld 😀")) == ", wörld 😀"
    assert stencil.read_one(text("")) == ""
    assert stencil.read_one(text('a"b\\c\nd')) == 'a"b\\c\nd'
    assert stencil.read_block(text("a") + text("b")) == ["ab"]
    assert stencil.read_block(text("a") + text('"\n') + text("b")) == ["a", '"\n', "b"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_a_stencil_may_be_one_of_reasoning(field: str) -> None:
    stencil = learned(chunk(choice({field: "Think"})))
    assert stencil is not None
    assert stencil.field == field


@pytest.mark.parametrize(
    "event",
    [
        text('needs "escapes"'),
        text(""),
        chunk(choice({"content": "x", "reasoning": "y"})),
        chunk(choice({"content": "x", "tool_calls": [{"index": 0, "function": {"arguments": "x"}}]})),
        chunk(choice({"role": "assistant", "content": "assistant"})),
    ],
)
def test_what_cannot_be_proven_is_not_learned(event: bytes) -> None:
    assert learned(event) is None


@pytest.mark.parametrize(
    "event",
    [
        chunk(choice({"content": "x"}), id="other"),
        chunk(choice({"content": "x"}, finish="stop")),
        chunk(choice({"content": "x"}), error={"message": "x"}),
        chunk(choice({"content": "x"}, index=1)),
        text("x")[:-1],
        text("x") + b"\n",
        text("x") + b": c\n\n",
        text("x")[:-2] + b"\r\n\r\n",
        text("#").replace(b"#", b'"'),
        text("#").replace(b"#", b"\\"),
        text("#").replace(b"#", b"\n"),
        text("#").replace(b"#", b"\t"),
        text("#").replace(b"#", b"\xff"),
        text("#").replace(b'"#"', b'"x","content":"y"'),
        text("#").replace(b'"#"', b'"x"},"delta":{"content":"y"'),
        text("#").replace(b"#", b"\\ud83d"),
        text("")[:30],
    ],
)
def test_a_stencil_declines_whatever_differs(event: bytes) -> None:
    """R115, R116, R117, R120: nothing a rule would refuse gets through."""
    stencil = learned(text("Hello"))
    assert stencil is not None
    assert stencil.read_one(event) is None
    assert stencil.read_block(text("a") + event) is None
    assert stencil.read_block(event) is None


def test_two_pieces_cannot_lean_on_each_other() -> None:
    """A gap that opens a string which the next event closes is no text."""
    stencil = learned(text("Hello"))
    assert stencil is not None
    left, right = text("#").replace(b"#", b"a\\"), text("#").replace(b"#", b',"b')
    assert stencil.read_block(left + right) is None


def test_an_identity_that_changes_drops_the_stencil() -> None:
    """R115."""
    events = [FIRST, text("a"), text("b"), text("c"), chunk(choice({"content": "d"}), id="other"), text("e")]
    assert refused(*events).code == "identity_changed"


def test_servers_that_vary_every_chunk_are_soon_left_alone() -> None:
    maker = StencilMaker()
    tries = 0
    for number in range(2_000):
        data = chunk(choice({"content": "x"}), obfuscation=f"n{number}")[6:-2]
        maker.missed(data, plain_decoder()(data))
        tries += maker.current is not None
    assert tries < 20


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("read", "again"), [(4, False), (5, True)])
def test_a_stencil_that_has_read_enough_is_followed_by_another_at_once(read: int, again: bool, whole: bool) -> None:
    maker = StencilMaker()
    data = text("x")[6:-2]
    for _ in range(2):
        maker.missed(data, plain_decoder()(data))
    assert maker.current is not None
    for block in [text("y") * read] if whole else [text("y")] * read:
        assert (maker.current.read_block if whole else maker.current.read_one)(block)
    other = chunk(choice({"reasoning": "x"}))[6:-2]
    maker.missed(other, plain_decoder()(other))
    assert (maker.current is not None) is again


def test_texts_that_look_like_framing_stay_texts() -> None:
    words = [
        "a",
        "b",
        "data: ",
        '"}}]}',
        "\n\ndata: {}",
        "[DONE]",
        '"},"finish_reason":"stop"',
        "\\",
        "\\\\",
        "\u2028",
        "\x00",
        "",
    ]
    assert accepted(FIRST, *map(text, words), STOP, COUNTED, DONE).text == "".join(words)


class NoStencils(StencilMaker):
    """Learns nothing, so that every event is decoded."""

    def missed(self, data: bytes, chunk: PlainChunk) -> None:
        pass


RAW = st.text(alphabet=st.sampled_from('a"\\\n{}[],:ué😀/'), max_size=8)


@given(st.lists(RAW, max_size=12), st.integers(1, 300))
def test_any_texts_come_out_as_they_went_in(words: list[str], size: int) -> None:
    body = b"".join([FIRST, *map(text, words), STOP, COUNTED, DONE])
    reply, _ = feed([body[at : at + size] for at in range(0, len(body), size)])
    assert reply.text == "".join(words)


@given(
    st.lists(
        st.binary(max_size=6) | st.sampled_from([b'"', b"\\", b'\\"', b'","', b"\\u00e9", b"\xc3\xa9"]), max_size=8
    )
)
def test_any_bytes_in_the_gap_are_judged_as_the_rules_judge_them(gaps: list[bytes]) -> None:
    """R120: with the stencil and without it."""
    events = [text("#").replace(b"#", gap) for gap in gaps]
    body = [FIRST, text("one"), text("two"), *events, STOP, COUNTED, DONE]

    def outcome(reads: list[bytes], *, stencils: bool) -> object:
        assembler = ReplyAssembler(OPENAI)
        if not stencils:
            assembler._draft.stencils = NoStencils()
        try:
            for read in reads:
                assembler.feed(read)
            return json.loads(json.dumps(assembler.finish().text))
        except StreamRefused as refusal:
            return facts(refusal)

    slow = outcome([b"".join(body)], stencils=False)
    assert outcome(body, stencils=True) == slow
    assert outcome([*body[:3], b"".join(body[3:])], stencils=True) == slow
