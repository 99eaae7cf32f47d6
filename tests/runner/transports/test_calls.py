"""The collector of calls: what fragments may be, and what they show too early to wait for the end."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.errors import OutputRefused
from agentloop.messages import ModelReply, Native
from agentloop.runner.transports.calls import CallsCollector
from agentloop.testing import call, reply
from agentloop.wire import CallDelta
from tests.wire.streams import COUNTED, DONE, FIRST, STOP, feed, text


def collector(*, single: bool = True, names: tuple[str, ...] = ("pick", "pick_all")) -> CallsCollector[ModelReply]:
    return CallsCollector("t", names, single=single, build=lambda of: of)


def delta(position: Any = 0, id: Any = "", name: Any = "", arguments: Any = "") -> CallDelta:
    return CallDelta(position, id, name, arguments)


def refused(of: CallsCollector[Any], *fragments: Any) -> OutputRefused:
    for fragment in fragments[:-1]:
        of.push(fragment)
    with pytest.raises(OutputRefused) as caught:
        of.push(fragments[-1])
    assert caught.value.transport == "t"
    assert "secret" not in str(caught.value)
    return caught.value


def test_a_native_collector_takes_text_or_the_pieces_of_a_call() -> None:
    """(R192)"""
    of = collector()
    of.push("")
    for piece in (
        delta(id="a"),
        delta(name="pick"),
        delta(id="a", name="pick", arguments='{"n":'),
        delta(arguments="1}"),
    ):
        of.push(piece)
    assert of.output_chars == 7
    talk = collector(single=False)
    talk.push("Hello")
    talk.push(delta(0, "a", "pick", "{}"))
    talk.push(delta(1, "b", "pick_all", "{}"))
    talk.push(delta(0, "", "", " "))
    talk.push("!")
    assert talk.output_chars == 11


@pytest.mark.parametrize("absent", [None, ""])
def test_what_is_absent_from_a_piece_is_none_or_empty(absent: Any) -> None:
    """(R193)"""
    of = collector()
    of.push(delta(0, absent, absent, absent))
    of.push(delta(0, "a", "pick", "{}"))
    of.push(delta(0, absent, absent, absent))
    assert of.output_chars == 2


@pytest.mark.parametrize(
    ("piece", "field"),
    [
        (delta(position=True), "position"),
        (delta(position=-1), "position"),
        (delta(position=0.0), "position"),
        (delta(position="0"), "position"),
        (delta(position=None), "position"),
        (delta(id=1), "id"),
        (delta(id=["secret"]), "id"),
        (delta(name=b"pick"), "name"),
        (delta(arguments={"secret": 1}), "arguments"),
        (delta(arguments=0), "arguments"),
    ],
)
@pytest.mark.parametrize("single", [True, False])
def test_the_fields_of_a_piece_have_their_types(piece: CallDelta, field: str, single: bool) -> None:
    """(R193)"""
    error = refused(collector(single=single), piece)
    assert error.code == "bad_fragment"
    assert f"CallDelta.{field}: expected" in error.rule


@pytest.mark.parametrize("fragment", [{"index": 0, "id": "a"}, [delta()], None, b"{}"])
def test_a_fragment_of_another_type_is_refused(fragment: Any) -> None:
    """(R192, R193)"""
    assert refused(collector(), fragment).code == "bad_fragment"


def test_a_call_that_begins_out_of_order_is_refused() -> None:
    assert refused(collector(single=False), delta(0, "a", "pick"), delta(2, "b", "pick")).code == "bad_fragment"


@pytest.mark.parametrize("single", [True, False])
def test_a_call_has_one_id_and_one_name(single: bool) -> None:
    """(R194)"""
    assert refused(collector(single=single), delta(id="a"), delta(id="secret")).code == "call_conflict"
    assert refused(collector(single=single), delta(name="pick"), delta(name="secret")).code == "call_conflict"
    shared = [delta(0, "a", "pick"), delta(1, "a", "pick")]
    assert refused(collector(single=False), *shared).code == "call_conflict"


def test_a_name_may_come_in_pieces_each_with_those_before_it() -> None:
    of = collector()
    for name in ("pi", "pick", "", "pick_a", "pick_all"):
        of.push(delta(name=name))
    assert refused(of, delta(name="pick")).code == "call_conflict"


def test_a_second_call_is_refused_when_it_begins() -> None:
    """(R195)"""
    assert refused(collector(), delta(0, "a", "pick", "{}"), delta(1, "b", "pick")).code == "several_calls"
    assert refused(collector(), delta(1, "b", "pick")).code == "several_calls"


@pytest.mark.parametrize("single", [True, False])
def test_an_unregistered_name_is_refused_when_it_can_become_no_registered_one(single: bool) -> None:
    """(R196)"""
    error = refused(collector(single=single), delta(0, "a", "picky_secret"))
    assert (error.code, error.rule) == ("unknown_tool", "expected one of pick, pick_all, got a call of another name")
    collector(single=single).push(delta(0, "a", "pick_"))
    with pytest.raises(OutputRefused) as caught:
        collector(single=single).finish(reply(calls=[call("pick_")]))
    assert caught.value.code == "unknown_tool"


@pytest.mark.parametrize("text", ["Sure.", " ", "\n"])
def test_any_text_beside_a_single_call_is_refused(text: str) -> None:
    """White space is text too: what a server sends beside a call is not judged by its looks (R197)."""
    assert refused(collector(), text).code == "unexpected_text"
    assert refused(collector(), delta(0, "a", "pick", "{}"), text).code == "unexpected_text"
    with pytest.raises(OutputRefused) as caught:
        collector().finish(reply(text=text, calls=[call("pick")]))
    assert caught.value.code == "unexpected_text"


def test_one_collector_serves_one_proposal_and_a_session() -> None:
    """Which of the two it is changes what is refused, and nothing else (R199)."""
    of = reply(calls=[call("pick", n=1)])
    for single in (True, False):
        made = collector(single=single)
        assert made.finish(of) is of
        assert made.output_chars == 7
    several = reply(text="Two:", calls=[call("pick", n=1), call("pick_all")])
    assert collector(single=False).finish(several) is several


def test_a_registered_name_is_told_for_diagnostics_and_no_other_word_of_the_reply() -> None:
    of = collector(single=False)
    of.push(delta(0, "a", "pick_"))
    assert of.call is None
    of.push(delta(0, "a", "pick_all", "{}"))
    of.push(delta(1, "b", "pick"))
    assert of.call == "pick_all"
    of.finish(reply(calls=[call("pick")]))
    assert of.call == "pick"
    of.finish(reply(text="none"))
    assert of.call is None


def test_a_call_that_could_not_be_read_is_refused_with_what_was_wrong_and_only_at_the_end() -> None:
    """(R347)"""
    dialect = al.dialect("openai", call_text=al.ToolCallParser())
    words = '<tool_call>{"name": "pick"}</tool_call><tool_call>{"secret"}</tool_call>'
    answer, shown = feed([FIRST, text(words), STOP, COUNTED, DONE], dialect)
    of = collector(single=False)
    for piece in shown:
        of.push(piece if isinstance(piece, CallDelta) else piece.text)
    with pytest.raises(OutputRefused) as caught:
        of.finish(answer)
    assert (caught.value.code, caught.value.transport) == ("malformed_call", "t")
    assert "call 1" in caught.value.rule
    assert "secret" not in str(caught.value)
    assert caught.value.feedback is not None
    assert "at character 9 ($.secret): expected ':'" in caught.value.feedback
    foreign = msgspec.structs.replace(answer, native=Native())
    with pytest.raises(OutputRefused, match="unknown_tool"):
        collector(single=False).finish(foreign)
