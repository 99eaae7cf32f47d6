"""The full text of an output that is cut: stored with the answer, or said not to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.effects import Scope, ToolPool, answer_call, send
from agentloop.effects.tool_call import execute
from agentloop.exchange import Fact, OutputKept, SlotMoved
from agentloop.exchange.room import Rooms
from agentloop.messages import TextContent, ToolResult
from agentloop.persistence import MemoryBackend
from agentloop.testing import call, reply
from tests.effects.stage import Stage


@al.tool
async def say(text: str, times: int) -> str:
    """Say something again and again."""
    return text * times


@al.tool
async def parts(times: int) -> ToolResult:
    """Say it in two texts."""
    return ToolResult(status="ok", content=(TextContent(text="a" * times), TextContent(text="b" * times)))


@al.tool(max_output_bytes=300)
def little(times: int) -> list[int]:
    """Give a list."""
    return [1] * times


@al.tool
async def sorry(times: int, raised: bool) -> ToolResult:
    """Fail at length."""
    if raised:
        raise al.ToolFailed("no " * times)
    return ToolResult.error("no " * times)


TOOLS = [say, parts, little, sorry]


async def answered(*calls: Any, backend: Any = None, limits: Any = None, **options: Any) -> tuple[Stage, Scope]:
    """A scope whose calls were answered, in order."""
    stage = Stage([reply(calls=calls)], tools=TOOLS, backend=backend, **options)
    if limits is not None:
        stage.store.book._rooms = Rooms(limits)
    scope = await stage.open()
    await send(scope)
    for position in range(len(calls)):
        await answer_call(scope, 0, position)
    return stage, scope


def kept_of(facts: Sequence[Fact]) -> list[tuple[int, str, int]]:
    return [(fact.position, fact.text, fact.size) for fact in facts if isinstance(fact, OutputKept)]


def told(stage: Stage) -> list[bool | None]:
    return [event.kept for event in stage.events if isinstance(event, al.ToolEnded)]


def text_of(scope: Scope, position: int = 0) -> str:
    feedback = scope.turn.entries[0].slots[position].feedback
    assert feedback is not None
    return feedback.text


async def test_a_cut_output_is_kept_whole_in_the_batch_of_its_answer() -> None:
    written: list[list[str]] = []

    class Noting(MemoryBackend):
        async def append(self, facts: Sequence[Fact], **options: Any) -> None:
            written.append([type(fact).__name__ for fact in facts])
            await super().append(facts, **options)

    stage, scope = await answered(call("say", text="é", times=4_000), call("parts", times=3_000), backend=Noting())
    assert kept_of(await stage.facts()) == [(0, "é" * 4_000, 8_000), (1, "a" * 3_000 + "b" * 3_000, 6_000)]
    assert [names for names in written if "OutputKept" in names] == [["SlotMoved", "OutputKept"]] * 2
    assert told(stage) == [True, True]
    assert text_of(scope).endswith("é\n[cut: the full output is 8000 bytes, kept]")
    assert [slot.kept for slot in scope.turn.entries[0].slots] == [8_000, 6_000]
    (first, _) = [fact for fact in await stage.facts() if isinstance(fact, OutputKept)]
    assert (first.run_id, first.origin_id, first.exchange, first.at_ms) == ("r", "o", 0, stage.clock.now_ms())


async def test_an_output_over_its_tools_own_limit_is_kept_too() -> None:
    """(R101)"""
    stage, scope = await answered(call("little", times=1_000))
    assert kept_of(await stage.facts()) == [(0, "[" + ",".join(["1"] * 1_000) + "]", 2_001)]
    feedback = scope.turn.entries[0].slots[0].feedback
    assert feedback is not None
    assert len(msgspec.json.encode(ToolResult(status="ok", content=feedback.content))) == 300


async def test_what_the_model_reads_whole_is_not_kept_again() -> None:
    stage, _ = await answered(call("say", text="x", times=100))
    assert kept_of(await stage.facts()) == []
    assert told(stage) == [None]


@pytest.mark.parametrize("raised", [True, False])
async def test_the_text_of_an_error_is_cut_and_not_kept(raised: bool) -> None:
    stage, scope = await answered(call("sorry", times=3_000, raised=raised), feedback_bytes=1_000)
    assert kept_of(await stage.facts()) == []
    assert told(stage) == [False]
    assert text_of(scope).endswith(" bytes]")


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"item_bytes": 10_000}, True),
        ({"item_bytes": 9_999}, False),
        ({"total_bytes": 20_000}, True),
        ({"total_bytes": 19_999}, False),
    ],
)
async def test_an_answer_is_stored_and_says_so_where_its_text_has_no_room(limits: dict[str, int], kept: bool) -> None:
    """(R112)"""
    stage, scope = await answered(call("say", text="x", times=10_000), limits=al.BookLimits(**limits))
    assert told(stage) == [kept]
    assert (kept_of(await stage.facts()) != []) is kept
    assert text_of(scope).endswith(f"x\n[cut: the full output is 10000 bytes, {'kept' if kept else 'not kept'}]")
    assert scope.turn.entries[0].slots[0].state == "done"


@given(
    text=st.text('aé😀\n"\\\x01', min_size=1, max_size=30),
    times=st.integers(1, 200),
    limit=st.integers(256, 2_000),
)
async def test_the_model_reads_the_beginning_of_what_is_kept(text: str, times: int, limit: int) -> None:
    stage, scope = await answered(call("say", text=text, times=times), feedback_bytes=limit)
    whole = text * times
    read = text_of(scope)
    feedback = scope.turn.entries[0].slots[0].feedback
    assert len(msgspec.json.encode(feedback)) <= limit
    if told(stage) == [None]:
        assert (read, kept_of(await stage.facts())) == (whole, [])
    else:
        head, mark, rest = read.rpartition("\n[cut: the full output is ")
        assert mark
        assert rest == f"{len(whole.encode())} bytes, kept]"
        assert whole.startswith(head)
        assert kept_of(await stage.facts()) == [(0, whole, len(whole.encode()))]


async def test_without_a_store_an_output_is_cut_and_whoever_ran_the_tool_has_all_of_it() -> None:
    context = al.ToolContext(deps=None, run_id="r", agent="a", tool="say", call_id="c", effect_id="e")
    outcome = await execute(say, say.admit('{"text": "x", "times": 5000}'), context, pool=ToolPool(1))
    assert outcome.result is not None
    assert outcome.result.text.endswith("x\n[cut: the full output is 5000 bytes]")
    assert outcome.full == ToolResult.ok("x" * 5_000)


async def test_the_next_claim_follows_the_text_that_is_kept() -> None:
    """(R80)"""
    stage = Stage([reply(calls=[call("say", text="x", times=9_000), call("say", text="y", times=1)])], tools=TOOLS)
    scope = await stage.open()

    def following(entry: Any, done: int | None, _: Any) -> int | None:
        position = 0 if done is None else done + 1
        return position if position < len(entry.slots) else None

    await send(scope, following)
    for position in (0, 1):
        await answer_call(scope, 0, position, following)
    kinds = [
        f"{fact.state} {fact.position}" if isinstance(fact, SlotMoved) else type(fact).__name__
        for fact in await stage.facts()
    ]
    assert kinds[-5:] == ["started 0", "done 0", "OutputKept", "started 1", "done 1"]
