"""What every transport must do, whatever it asks for.

A subclass gives the transport, its stage, and replies with the values that they stand for. Fragments
are cut from the replies here, as a stream would give them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentloop.errors import OutputRefused
from agentloop.messages import ModelReply, Text
from agentloop.runner import Fragment, Interaction, Stage, Transport
from agentloop.testing import call, reply
from agentloop.wire import OPENAI, CallDelta, Dialect

__all__ = ["MARKS", "TransportContract", "answer", "fragments", "refusal_of", "texts_with_marks"]

MARKS = ("xyzzy", "xyzzy.q[0]", 'xy"zzy', "$.xyzzy", "xyzzy\n")
SECRET = "zzy"
CHECKS = settings(suppress_health_check=[HealthCheck.differing_executors])


def fragments(of: ModelReply, cuts: list[int]) -> Iterator[Fragment]:
    """The pieces of a reply, each text cut at the given places."""
    position = 0
    for item in of.output:
        text = item.text if isinstance(item, Text) else item.arguments.text
        edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
        pieces = [text[a:b] for a, b in itertools.pairwise(edges)] or [""]
        for at, piece in enumerate(pieces):
            if isinstance(item, Text):
                yield piece
            else:
                known = at == 0 or len(cuts) % 2  # a later piece may say id and name again, or not
                yield CallDelta(position, item.id if known else "", item.name if known else "", piece)
        position += not isinstance(item, Text)


def answer(interaction: Interaction[Any], of: ModelReply, cuts: list[int] | None = None) -> tuple[Any, list[int]]:
    """The value of a reply and what `output_chars` was at each moment."""
    collector = interaction.create_response()
    counted = [collector.output_chars]
    for fragment in () if cuts is None else fragments(of, cuts):
        collector.push(fragment)
        counted.append(collector.output_chars)
    value = collector.finish(of)
    return value, [*counted, collector.output_chars]


def refusal_of(interaction: Interaction[Any], of: ModelReply, cuts: list[int] | None = None) -> OutputRefused | None:
    """The refusal of a reply, None when it has a value."""
    try:
        answer(interaction, of, cuts)
    except OutputRefused as error:
        return error
    return None


def texts_with_marks() -> st.SearchStrategy[str]:
    """Texts that hold a mark: prose, JSON of any shape, JSON with a fault, fenced or not."""
    names = st.sampled_from([*MARKS, "tool", "input", "value", "n", "labels", "kind", "when", "even", "pick"])
    scalars = st.sampled_from([*MARKS, "pick", "high", 1, 2.5, None, True, 10**30, -0.0])
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner), max_leaves=8
    )
    whole = values.map(json.dumps)
    faulty = st.tuples(whole, st.integers(0, 40), st.sampled_from(["", "xyzzy", ",", '"', "}", "\\x"])).map(
        lambda item: item[0][: item[1]] + item[2] + item[0][item[1] :]
    )
    texts = whole | faulty | st.sampled_from(MARKS)
    return texts | texts.map(lambda text: f"xyzzy:\n```xyzzy\n{text}\n```\n")


class TransportContract:
    """Inherit, and implement the three."""

    dialect: Dialect = OPENAI

    def transport(self) -> Transport[Any]:
        raise NotImplementedError

    def accepted(self) -> list[tuple[ModelReply, Any]]:
        """Replies and their values."""
        raise NotImplementedError

    def refused(self) -> list[tuple[ModelReply, str]]:
        """Complete replies and the codes that they are refused with."""
        raise NotImplementedError

    def interaction(self) -> Interaction[Any]:
        return self.transport().prepare(Stage(stage_id="stage", dialect=self.dialect))

    def test_a_transport_has_an_id_and_prepares_what_is_added_to_a_request(self) -> None:
        """(R185)"""
        transport = self.transport()
        assert isinstance(transport, Transport)
        assert 1 <= len(transport.id) <= 128
        interaction = self.interaction()
        assert isinstance(interaction, Interaction)
        assert interaction.route
        assert interaction.schema_chars >= interaction.embedded_chars >= 0
        assert interaction.embedded_chars <= len(interaction.instruction or "")
        again = transport.prepare(Stage(stage_id="stage", dialect=self.dialect))
        assert msgspec.structs.replace(again, create_response=interaction.create_response) == interaction

    def test_a_reply_gives_its_value(self) -> None:
        """(R185, R187)"""
        for of, value in self.accepted():
            assert answer(self.interaction(), of)[0] == value

    def test_a_reply_that_is_not_what_was_asked_for_is_refused(self) -> None:
        """A value is made of a reply that was checked in full, or not at all (R187)."""
        for of, code in self.refused():
            with pytest.raises(OutputRefused) as caught:
                answer(self.interaction(), of)
            assert (caught.value.code, caught.value.transport) == (code, self.transport().id)

    @pytest.mark.parametrize("kind", ["incomplete", "refused", "refusal"])
    def test_a_reply_that_was_cut_off_or_refused_gives_no_value(self, kind: str) -> None:
        """(R187, R198)"""
        for of, _ in self.accepted():
            if kind == "refusal":
                native = reply(refusal="xyzzy").native
                broken = msgspec.structs.replace(of, native=native)
            else:
                ended = reply(finish="length" if kind == "incomplete" else "content_filter").termination
                broken = msgspec.structs.replace(of, termination=ended)
            with pytest.raises(OutputRefused) as caught:
                answer(self.interaction(), broken)
            assert caught.value.code == ("incomplete" if kind == "incomplete" else "refused")
            assert SECRET not in str(caught.value)

    def test_each_call_has_a_collector_of_its_own(self) -> None:
        """One that was used, or refused, leaves no trace in the next (R186)."""
        interaction = self.interaction()
        for (of, value), (bad, _) in zip(self.accepted(), self.refused() * 9, strict=False):
            first, second = interaction.create_response(), interaction.create_response()
            assert first is not second
            for fragment in fragments(of, [1, 2]):
                first.push(fragment)
            assert second.output_chars == interaction.create_response().output_chars
            with pytest.raises(OutputRefused):
                answer(interaction, bad)
            assert second.finish(of) == value
            assert first.finish(of) == value

    @CHECKS
    @given(data=st.data(), cuts=st.lists(st.integers(0, 400), max_size=8))
    def test_where_fragments_are_cut_changes_nothing(self, data: st.DataObject, cuts: list[int]) -> None:
        of, value = data.draw(st.sampled_from(self.accepted()))
        got, counted = answer(self.interaction(), of, cuts)
        assert got == value
        assert all(type(chars) is int and chars >= 0 for chars in counted)
        assert counted == sorted(counted)
        assert counted[-1] == counted[-2] == answer(self.interaction(), of)[1][-1]

    def test_the_value_is_the_replys_and_never_the_fragments(self) -> None:
        """(R187, R204)"""
        replies = self.accepted()
        for of, value in replies:
            for other, _ in replies:
                collector = self.interaction().create_response()
                for fragment in fragments(other, [3]):
                    collector.push(fragment)
                assert collector.finish(of) == value

    @pytest.mark.parametrize("fragment", [None, 1, b"text", {"index": 0}, [], object()])
    def test_what_is_no_fragment_is_the_providers_fault(self, fragment: Any) -> None:
        """(R192)"""
        collector = self.interaction().create_response()
        with pytest.raises(OutputRefused) as caught:
            collector.push(fragment)
        assert caught.value.code == "bad_fragment"

    @CHECKS
    @given(data=st.data())
    def test_no_refusal_quotes_the_reply(self, data: st.DataObject) -> None:
        text = data.draw(texts_with_marks())
        names = st.sampled_from(["pick", "Answer", *MARKS])
        calls = [
            call(data.draw(names), arguments_text=data.draw(texts_with_marks()), call_id=f"xyzzy{at}")
            for at in range(data.draw(st.integers(0, 2)))
        ]
        of = reply(text=data.draw(st.sampled_from(["", text])), calls=calls)
        error = refusal_of(self.interaction(), of, data.draw(st.none() | st.just([2])))
        if error is not None:
            told = {name: value for name, value in error.__dict__.items() if name != "feedback"}  # which may quote it
            assert SECRET not in f"{error} {error!r} {error.args} {told}"
            assert error.__cause__ is None
            assert error.__context__ is None
