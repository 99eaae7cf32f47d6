"""One attempt's collector: counted after each step, named in refusals, and asked for its word once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import agentloop as al
from agentloop.errors import BudgetError, OutputRefused
from agentloop.limits import SAFE_INTEGER
from agentloop.messages import ModelReply
from agentloop.runner.collection import Collection
from agentloop.testing import RecordingSink, ScriptedProvider, broken, reply
from agentloop.wire.deltas import CallDelta, TextDelta


class Counting:
    """A collector whose counts are given.

    Attributes:
        log: what it was asked for, in order.
    """

    def __init__(self, *counts: Any, call: Any = "word") -> None:
        self._counts, self._call = list(counts), call
        self.log: list[str] = []

    @property
    def output_chars(self) -> Any:
        self.log.append("count")
        return self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]

    @property
    def call(self) -> Any:
        self.log.append("call")
        if isinstance(self._call, Exception):
            raise self._call
        return self._call

    def push(self, fragment: Any, /) -> None:
        self.log.append(f"push {fragment if isinstance(fragment, str) else type(fragment).__name__}")

    def finish(self, reply: ModelReply, /) -> str:
        self.log.append("finish")
        return f"<{reply.text}>"


class Counted:
    """A transport of a collector with given counts."""

    id = "counted"

    def __init__(self, *counts: Any, call: Any = "word") -> None:
        self._counts, self._call = counts, call
        self.made: list[Counting] = []

    def prepare(self, stage: al.Stage, /) -> al.Interaction[str]:
        return al.Interaction(create_response=self.create, route="counted")

    def create(self) -> Counting:
        self.made.append(Counting(*self._counts, call=self._call))
        return self.made[-1]


def of(create: Callable[[], Any], max_chars: float = 10) -> Collection[Any]:
    return Collection(create, max_chars=max_chars, transport="t", ref="r")


TEXT = TextDelta(text="ab", offset=0)
PIECE = CallDelta(position=0, id="1", name="n", arguments="{}")
BAD = [math.nan, math.inf, -math.inf, -1, 1.5, 2.0, True, None, "3", SAFE_INTEGER + 1]


def test_what_it_holds_is_counted_when_it_is_made_after_each_fragment_and_at_its_end() -> None:
    """(R188)"""
    collector = Counting(0, 2, 4, 4)
    collection = of(lambda: collector)
    collection.begin()
    collection.take(TEXT)
    collection.take(PIECE)
    assert collection.finish(reply("ab")) is None
    assert collector.log == ["count", "push ab", "count", "push CallDelta", "count", "finish", "count"]
    assert (collection.value, collection.peak) == ("<ab>", 4)


@pytest.mark.parametrize("bad", BAD, ids=repr)
@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("max_chars", [10, math.inf])
def test_a_count_that_is_none_is_refused_wherever_it_is_read_and_however_much_is_allowed(
    bad: Any, at: int, max_chars: float
) -> None:
    """(R189, R190, R201)"""
    counts = [0, 0, 0]
    counts[at] = bad
    collection = of(lambda: Counting(*counts), max_chars)
    found: Exception | None = None
    try:
        collection.begin()
        collection.take(TEXT)
        found = collection.finish(reply("ab"))
    except OutputRefused as error:
        found = error
    assert type(found) is OutputRefused
    assert (found.code, found.transport, found.ref) == ("bad_output_chars", "t", "r")
    assert "expected output_chars to be an integer of 0 or more, got" in found.rule
    assert collection.peak == 0


def test_the_peak_is_of_valid_counts_and_a_buffer_may_be_released() -> None:
    """(R191)"""
    collection = of(lambda: Counting(0, 7, 3, 0))
    collection.begin()
    collection.take(TEXT)
    collection.take(TEXT)
    assert collection.finish(reply("ab")) is None
    assert collection.peak == 7
    torn = of(lambda: Counting(0, 7, -1))
    torn.begin()
    torn.take(TEXT)
    with pytest.raises(OutputRefused):
        torn.take(TEXT)
    assert torn.peak == 7


@pytest.mark.parametrize("at", range(3))
def test_more_than_is_allowed_ends_the_attempt_where_it_is_first_held(at: int) -> None:
    """(R188)"""
    counts = [10, 10, 10]
    counts[at] = 11
    collector = Counting(*counts)
    collection = of(lambda: collector)
    found: Exception | None = None
    try:
        collection.begin()
        collection.take(TEXT)
        found = collection.finish(reply("ab"))
    except BudgetError as error:
        found = error
    assert str(found) == "max_output_chars: allowed 10, got at least 11"
    assert collector.log.count("count") == at + 1
    assert collection.peak == 11


def test_there_is_room_for_anything_where_there_is_no_limit_and_for_nothing_at_zero() -> None:
    """(R190)"""
    collection = of(lambda: Counting(SAFE_INTEGER), math.inf)
    collection.begin()
    assert collection.peak == SAFE_INTEGER
    empty = of(lambda: Counting(0), 0)
    empty.begin()
    empty.take(TEXT)
    assert empty.finish(reply("")) is None


def test_a_refusal_in_the_stream_is_kept_for_the_end_and_the_collector_asked_nothing_more() -> None:
    """Neither a fragment nor a count: what it said first is what is wrong with the reply."""

    class Once(Counting):
        def push(self, fragment: Any, /) -> None:
            super().push(fragment)
            raise OutputRefused("no", f"rule {len(self.log)}")

    collector = Once(3, 99)  # a count that would be over
    collection = of(lambda: collector)
    collection.begin()
    collection.take(TEXT)
    collection.take(PIECE)
    found = collection.finish(reply("ab"))
    assert type(found) is OutputRefused
    assert (found.code, found.rule, found.transport, found.ref) == ("no", "rule 2", "t", "r")
    assert collection.finish(reply("ab")) is found
    assert collector.log == ["count", "push ab"]
    assert collection.peak == 3


@pytest.mark.parametrize("raised", [ValueError("own"), BudgetError("own", 1, 2), KeyboardInterrupt()], ids=repr)
def test_any_other_error_in_the_stream_ends_the_attempt_at_once(raised: BaseException) -> None:
    class Broken(Counting):
        def push(self, fragment: Any, /) -> None:
            raise raised

    collection = of(lambda: Broken(0))
    collection.begin()
    with pytest.raises(type(raised)) as caught:
        collection.take(TEXT)
    assert caught.value is raised


@pytest.mark.parametrize("at", ["made", "push", "finish"])
def test_a_refusal_gets_the_name_and_the_run_where_it_has_none(at: str) -> None:
    class Refusing(Counting):
        def push(self, fragment: Any, /) -> None:
            if at == "push":
                raise OutputRefused("no", "rule")

        def finish(self, reply: ModelReply, /) -> str:
            raise OutputRefused("no", "rule", transport="mine")

    def create() -> Refusing:
        if at == "made":
            raise OutputRefused("no", "rule")
        return Refusing(0)

    collection = of(create)
    found: Exception | None = None
    try:
        collection.begin()
        collection.take(TEXT)
        found = collection.finish(reply("ab"))
    except OutputRefused as error:
        found = error
    assert type(found) is OutputRefused
    assert (found.transport, found.ref) == ("mine" if at == "finish" else "t", "r")


# -- in a call


@pytest.mark.parametrize(
    ("word", "told"),
    [("pick", "pick"), (RuntimeError("no"), None), ("", None), ("x" * 129, None), ({"a": 1}, None), (None, None)],
    ids=["word", "throwing", "empty", "long", "object", "none"],
)
async def test_the_word_on_a_call_is_read_once_and_hides_nothing(word: Any, told: str | None) -> None:
    """(R200)"""
    sink = RecordingSink()
    transport = Counted(0, call=word)
    runner = al.ModelRunner(ScriptedProvider([reply("hi")]), transports=(transport,), sink=sink)
    result = await runner.invoke("q", transport=transport)
    assert result.value == "<hi>"
    assert transport.made[0].log.count("call") == 1
    end = sink.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert (end.status, end.call) == ("success", told)


async def test_a_word_that_cannot_be_read_leaves_the_error_of_its_call_and_the_end_is_told() -> None:
    """(R200)"""
    sink = RecordingSink()
    transport = Counted(0, call=RuntimeError("getter"))
    provider = ScriptedProvider([broken(reply("hi"), al.ConnectionLost("gone"))])
    runner = al.ModelRunner(provider, transports=(transport,), sink=sink)
    with pytest.raises(al.ConnectionLost, match="gone"):
        await runner.invoke("q", transport=transport)
    end = sink.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert (end.status, end.code, end.call) == ("error", "connection_lost", None)
    assert transport.made[0].log.count("call") == 1


@pytest.mark.parametrize("bad", [math.nan, -1, True], ids=repr)
async def test_a_bad_count_in_the_stream_ends_the_call_although_the_word_on_it_is_only_a_word(bad: Any) -> None:
    """(R201)"""
    transport = Counted(0, bad)
    runner = al.ModelRunner(ScriptedProvider([reply("hi")]), transports=(transport,), max_output_chars=math.inf)
    with pytest.raises(OutputRefused, match="bad_output_chars"):
        await runner.invoke("q", transport=transport)
    assert runner.total_call_count == 1


async def test_the_end_tells_the_most_that_was_held() -> None:
    """(R191)"""
    sink = RecordingSink()
    transport = Counted(0, 5, 2, 1)
    runner = al.ModelRunner(ScriptedProvider([reply("hi")], deltas=1), transports=(transport,), sink=sink)
    await runner.invoke("q", transport=transport)
    end = sink.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert end.output_chars == 5


class Late(Counting):
    async def finish(self, reply: ModelReply, /) -> str:  # type: ignore[override]
        return reply.text


class Taken(Counting):
    push = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (None, "a method push, not async, got none"),
        (Taken(0), "a method push, not async, got none"),
        (Late(0), "a method finish, not async, got an async one"),
    ],
)
async def test_what_is_no_collector_is_refused_before_anything_is_sent(made: Any, rule: str) -> None:
    """A coroutine is no value: it would be taken for one."""

    class Own:
        id = "own"

        def prepare(self, stage: al.Stage, /) -> al.Interaction[str]:
            return al.Interaction(create_response=lambda: made, route="own")

    own, provider = Own(), ScriptedProvider([reply("hi")])
    runner = al.ModelRunner(provider, transports=(own,))
    with pytest.raises(al.InputError) as caught:
        await runner.invoke("go", transport=own)
    assert str(caught.value) == f"transport 'own': expected a collector with {rule}"
    assert provider.requests == []
