"""One call of a reply: refused with feedback, or run once and answered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.effects import Ledger, Scope, answer_call, give_back, send, skip_calls
from agentloop.effects.claims import claim_next
from agentloop.effects.pool import Execution
from agentloop.errors import BudgetError, ToolDefinitionError
from agentloop.exchange import Entry, Fact, SlotMoved
from agentloop.messages import ToolFeedback, ToolResult
from agentloop.testing import ScriptedProvider, call, reply
from agentloop.wire.call_text import MALFORMED_CALL
from tests.effects.stage import Stage
from tests.runs import SlowBackend
from tests.wire.streams import COUNTED, DONE, FIRST, STOP, feed, text


@al.tool
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n


async def asked(stage: Stage, **fields: Any) -> Scope:
    """A scope whose newest reply asks for tools."""
    scope = await stage.open(**fields)
    await send(scope)
    return scope


async def test_a_call_is_claimed_run_stored_and_told_in_that_order() -> None:
    """(R12, R80)"""
    seen: list[Any] = []

    @al.tool
    async def look(ctx: al.ToolContext[None]) -> str:
        """Look at what is stored so far."""
        slot = scope.turn.entries[0].slots[0]
        seen.append((slot.state, slot.effect_id, slot.attempt, ctx.effect_id, stage.types[-1]))
        return "ok"

    stage = Stage([reply(calls=[call("look")])], tools=[look])
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    assert seen == [("started", "r/0.0", 1, "r/0.0", "tool.started")]
    moves = [fact.state for fact in await stage.facts() if isinstance(fact, SlotMoved)]
    assert moves == ["started", "done"]
    assert stage.types[-2:] == ["tool.started", "tool.ended"]
    assert stage.ledger.spent("tool_calls") == 1


async def test_each_step_of_a_call_is_stored_with_its_time() -> None:
    @al.tool
    async def slow() -> str:
        """Take three seconds."""
        stage.clock.advance(3)
        return "ok"

    stage = Stage([reply(calls=[call("slow"), call("nobody")])], tools=[slow])
    scope = await asked(stage)
    began = stage.clock.now_ms()
    for position in range(2):
        await answer_call(scope, 0, position)
    moves = [(fact.state, fact.at_ms) for fact in await stage.facts() if isinstance(fact, SlotMoved)]
    assert moves == [("started", began), ("done", began + 3_000), ("failed", began + 3_000)]


async def test_a_value_becomes_the_text_of_its_json() -> None:
    """(R64, R160)"""
    stage = Stage([reply(calls=[call("double", n=21)])], tools=[double])
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    feedback = scope.turn.entries[0].slots[0].feedback
    assert feedback is not None
    assert (feedback.status, feedback.text) == ("ok", "42")


@pytest.mark.parametrize(
    ("name", "arguments", "code"),
    [
        ("nobody", "{}", "unknown_tool"),
        ("double", "{", "invalid_json"),
        ("double", "[1]", "not_an_object"),
        ("double", '{"n": "1"}', "schema_mismatch"),
        ("double", '{"n": 1, "m": 2}', "schema_mismatch"),
    ],
)
async def test_a_call_that_is_refused_starts_nothing_and_costs_nothing(name: str, arguments: str, code: str) -> None:
    """(R55, R56, R57, R81, R161)"""
    stage = Stage([reply(calls=[call(name, arguments_text=arguments)])], tools=[double])
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    slot = scope.turn.entries[0].slots[0]
    assert (slot.state, slot.code, slot.effect_id, slot.attempt) == ("failed", code, None, 0)
    assert slot.feedback is not None
    assert slot.feedback.status == "error"
    assert [fact.state for fact in await stage.facts() if isinstance(fact, SlotMoved)] == ["failed"]
    assert stage.types[-1] == "tool.skipped"
    assert stage.ledger.spent("tool_calls") == 0


async def test_a_call_without_budget_stays_open() -> None:
    """(R278)"""
    stage = Stage([reply(calls=[call("double", n=1)])], tools=[double], ledger=Ledger(tool_calls=0))
    scope = await asked(stage)
    with pytest.raises(BudgetError, match="tool_calls: allowed 0, got at least 1"):
        await answer_call(scope, 0, 0)
    assert scope.turn.entries[0].slots[0].state == "open"
    await skip_calls(scope, 0, [0], code="max_tool_calls", text="no budget is left")
    slot = scope.turn.entries[0].slots[0]
    assert (slot.state, slot.code) == ("skipped", "max_tool_calls")
    assert slot.feedback is not None
    assert slot.feedback.text == "This call was not run: no budget is left."


async def test_a_tool_may_set_a_smaller_output_limit_of_its_own() -> None:
    """(R98, R101)"""

    @al.tool(max_output_bytes=300)
    async def much() -> str:
        """Return a lot."""
        return "x" * 10_000

    @al.tool
    async def more() -> str:
        """Return a lot, too."""
        return "x" * 10_000

    stage = Stage([reply(calls=[call("much"), call("more")])], tools=[much, more], feedback_bytes=1_000)
    scope = await asked(stage)
    for position in (0, 1):
        await answer_call(scope, 0, position)
    sizes = []
    for slot in scope.turn.entries[0].slots:
        assert slot.feedback is not None
        assert slot.feedback.text.endswith("[cut: the full output is 10000 bytes, kept]")
        sizes.append(len(msgspec.json.encode(slot.feedback)))
    assert sizes[0] < 340
    assert 990 <= sizes[1] <= 1_000
    ends = [event for event in stage.events if isinstance(event, al.ToolEnded)]
    assert [end.output_bytes for end in ends] == [len(slot.feedback.text) for slot in scope.turn.entries[0].slots]  # type: ignore[union-attr]


@pytest.mark.parametrize("slow", [False, True])
async def test_a_cancelled_tool_leaves_an_unknown_slot_with_feedback(slow: bool) -> None:
    """(R62)"""
    reached = asyncio.Event()

    @al.tool
    async def hang() -> None:
        """Never returns."""
        reached.set()
        await asyncio.Event().wait()

    stage = Stage([reply(calls=[call("hang")])], tools=[hang], backend=SlowBackend() if slow else None)
    scope = await asked(stage)
    task = asyncio.create_task(answer_call(scope, 0, 0))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    slot = scope.turn.entries[0].slots[0]
    assert (slot.state, slot.code) == ("unknown", "cancelled")
    assert slot.feedback is not None
    assert "whether its effect happened is unknown" in slot.feedback.text


async def test_a_cancel_while_the_claim_is_written_is_known_to_have_run_nothing() -> None:
    """(R62)"""
    ran: list[int] = []

    @al.tool
    async def act() -> str:
        """Act."""
        ran.append(1)
        return "acted"

    async def hook(facts: Any) -> None:
        if isinstance(facts[0], SlotMoved) and facts[0].state == "started":
            task.cancel()
            await asyncio.sleep(0)

    stage = Stage([reply(calls=[call("act")])], tools=[act], backend=SlowBackend(hook))
    scope = await asked(stage)
    task = asyncio.create_task(answer_call(scope, 0, 0))
    with pytest.raises(asyncio.CancelledError):
        await task
    slot = scope.turn.entries[0].slots[0]
    assert (ran, slot.state) == ([], "started")
    await give_back(scope)
    assert (ran, slot.state, slot.effect_id, slot.attempt, slot.feedback) == ([], "open", None, 0, None)
    assert (scope.turn.tool_calls, "tool.started" in stage.types) == (0, False)
    facts = await stage.facts()
    await give_back(scope)
    assert await stage.facts() == facts


async def test_nothing_runs_beside_a_thread_that_has_not_ended() -> None:
    release = threading.Event()

    @al.tool(timeout=0.25, grace=0.02)  # in which its thread has begun
    def hold() -> None:
        """Hold a thread."""
        release.wait(10)

    stage = Stage([reply(calls=[call("hold"), call("double", n=1)])], tools=[hold, double])
    scope = await asked(stage)
    try:
        await answer_call(scope, 0, 0)
        await answer_call(scope, 0, 1)
        first, second = scope.turn.entries[0].slots
        assert (first.state, second.state, second.code) == ("unknown", "failed", "thread_busy")
        assert stage.ledger.spent("tool_calls") == 1
    finally:
        release.set()
        assert await stage.pool.wait_idle(5) == 0


async def test_a_crash_is_stored_before_it_is_raised_and_shows_nothing_of_the_error_to_the_model() -> None:
    """(R61, R62)"""

    class OddError(Exception):
        pass

    @al.tool
    async def crash() -> ToolResult:
        """Crash."""
        raise OddError("internal detail")

    stage = Stage([reply(calls=[call("crash", call_id="k")])], tools=[crash])
    scope = await asked(stage)
    with pytest.raises(al.ToolCrashed) as caught:
        await answer_call(scope, 0, 0)
    assert caught.value.error_type.endswith("OddError")
    assert (caught.value.tool, caught.value.call_id, caught.value.effect_id) == ("crash", "k", "r/0.0")
    slot = scope.turn.entries[0].slots[0]
    assert slot.state == "unknown"
    assert slot.feedback is not None
    assert "internal" not in slot.feedback.text


# -- repetitions after a timeout


SOON = 0.01


def late_tool(log: list[tuple[int, str]], *, in_time: int = 99, **policy: Any) -> al.Tool:
    """A tool that runs out of time until its execution of number ``in_time``."""

    @al.tool(name="late", **{"timeout": SOON, "idempotent": True, **policy})
    async def late(ctx: al.ToolContext[Any]) -> str:
        """Come late."""
        log.append((ctx.attempt, ctx.effect_id))
        if ctx.attempt < in_time:
            await asyncio.Event().wait()
        return "in time"

    return late


async def states(stage: Stage) -> list[tuple[str, int, str | None]]:
    return [(fact.state, fact.attempt, fact.code) for fact in await stage.facts() if isinstance(fact, SlotMoved)]


async def test_an_execution_that_ran_out_of_time_is_repeated_and_each_start_is_charged_stored_and_told() -> None:
    """Each under the same id, which stands in what is stored (R331, R332, R337)."""
    log: list[tuple[int, str]] = []
    stage = Stage([reply(calls=[call("late")])], tools=[late_tool(log, in_time=3)])
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    assert log == [(1, "r/0.0"), (2, "r/0.0"), (3, "r/0.0")]
    moves = [("started", 1, None), ("unknown", 1, "timeout"), ("started", 2, None), ("unknown", 2, "timeout")]
    assert await states(stage) == [*moves, ("started", 3, None), ("done", 3, None)]
    assert (stage.ledger.spent("tool_calls"), scope.turn.tool_calls) == (3, 3)
    assert stage.types[-6:] == ["tool.started", "tool.ended"] * 3
    started = [event.attempt for event in stage.events if isinstance(event, al.ToolStarted)]
    ended = [(event.slot, event.code, event.status) for event in stage.events if isinstance(event, al.ToolEnded)]
    assert started == [1, 2, 3]
    assert ended == [("unknown", "timeout", "error")] * 2 + [("done", None, "success")]


@pytest.mark.parametrize(
    ("policy", "starts", "state"),
    [
        ({}, 4, "failed"),
        ({"retries": 0}, 1, "failed"),
        ({"retries": 2}, 3, "failed"),
        ({"idempotent": False}, 1, "unknown"),
    ],
)
async def test_repetitions_end_with_the_number_that_a_policy_allows(
    policy: dict[str, Any], starts: int, state: str
) -> None:
    """(R331, R332, R334)"""
    log: list[tuple[int, str]] = []
    stage = Stage([reply(calls=[call("late")])], tools=[late_tool(log, **policy)])
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    slot = scope.turn.entries[0].slots[0]
    assert (len(log), slot.attempt, slot.state, slot.code) == (starts, starts, state, "timeout")
    assert stage.ledger.spent("tool_calls") == starts


@pytest.mark.parametrize("way", ["raises", "returns"])
async def test_an_error_of_the_tool_is_not_repeated(way: str) -> None:
    """(R333)"""
    ran: list[int] = []

    @al.tool(idempotent=True, errors=(TimeoutError,))
    async def fail() -> ToolResult:
        """Fail."""
        ran.append(1)
        if way == "raises":
            raise TimeoutError("upstream")
        return ToolResult.error("no")

    stage = Stage([reply(calls=[call("fail")])], tools=[fail])
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    assert (ran, stage.ledger.spent("tool_calls"), scope.turn.entries[0].slots[0].state) == ([1], 1, "failed")


async def test_without_a_tool_call_left_nothing_is_repeated_and_the_call_is_answered() -> None:
    """(R278, R331)"""
    log: list[tuple[int, str]] = []
    stage = Stage([reply(calls=[call("late")])], tools=[late_tool(log)], ledger=Ledger(tool_calls=2))
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    slot = scope.turn.entries[0].slots[0]
    assert (len(log), slot.state, slot.code, stage.ledger.spent("tool_calls")) == (2, "failed", "timeout", 2)


async def test_a_run_that_is_out_of_time_repeats_nothing() -> None:
    ran: list[int] = []

    @al.tool(timeout=SOON, idempotent=True)
    async def late() -> None:
        """Take the whole time of the run."""
        ran.append(1)
        stage.clock.advance(60)
        await asyncio.Event().wait()

    stage = Stage([reply(calls=[call("late")])], tools=[late], max_seconds=60)
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    slot = scope.turn.entries[0].slots[0]
    assert (ran, slot.state, slot.code, stage.ledger.spent("tool_calls")) == ([1], "failed", "timeout", 1)


async def test_a_run_that_is_paused_repeats_nothing_and_leaves_the_call_unanswered() -> None:
    """Whoever resumes it finds an execution without an answer."""
    log: list[tuple[int, str]] = []
    closing = asyncio.Event()
    stage = Stage([reply(calls=[call("late")])], tools=[late_tool(log)])
    scope = await asked(stage, paused=closing.is_set)
    closing.set()
    with pytest.raises(al.RunPaused):
        await answer_call(scope, 0, 0)
    assert (log, await states(stage)) == ([(1, "r/0.0")], [("started", 1, None)])
    assert isinstance(stage.events[-1], al.ToolEnded)
    assert (stage.events[-1].slot, stage.events[-1].code) == ("unknown", "paused")


async def test_a_cancel_while_a_repetition_is_claimed_leaves_an_unknown_slot() -> None:
    """(R62)"""
    log: list[tuple[int, str]] = []

    async def hook(facts: Any) -> None:
        if facts[-1].state == "started" and facts[-1].attempt == 2:
            task.cancel()
            await asyncio.sleep(0)

    backend = SlowBackend()
    stage = Stage([reply(calls=[call("late")])], tools=[late_tool(log)], backend=backend)
    scope = await asked(stage)
    backend.hook = hook
    task = asyncio.create_task(answer_call(scope, 0, 0))
    with pytest.raises(asyncio.CancelledError):
        await task
    slot = scope.turn.entries[0].slots[0]
    assert (len(log), slot.state, slot.code, slot.attempt) == (1, "unknown", "cancelled", 2)
    assert slot.feedback is not None
    assert stage.ledger.spent("tool_calls") == scope.turn.tool_calls == 2
    assert stage.types[-4:] == ["tool.started", "tool.ended"] * 2


# -- how often a tool may be called


async def test_a_call_over_its_tools_own_limit_is_refused_in_words_and_costs_nothing() -> None:
    """(R57, R278)"""

    @al.tool(max_calls=2)
    async def rare() -> str:
        """Be called rarely."""
        return "ok"

    stage = Stage([reply(calls=[call("rare"), call("rare"), call("rare"), call("double", n=1)])], tools=[rare, double])
    scope = await asked(stage)
    for position in range(4):
        await answer_call(scope, 0, position, following if position else None)
    slots = scope.turn.entries[0].slots
    assert [(slot.state, slot.code) for slot in slots] == [
        ("done", None),
        ("done", None),
        ("failed", "max_calls"),
        ("done", None),
    ]
    assert slots[2].feedback is not None
    assert slots[2].feedback.text == "Nothing ran: rare can be called 2 times in a run, and that is used up."
    assert (stage.ledger.spent("tool_calls"), scope.turn.tool_calls) == (3, 3)


async def test_repetitions_count_for_a_tools_own_limit() -> None:
    log: list[tuple[int, str]] = []
    stage = Stage([reply(calls=[call("late"), call("late")])], tools=[late_tool(log, max_calls=3)])
    scope = await asked(stage)
    for position in range(2):
        await answer_call(scope, 0, position)
    first, second = scope.turn.entries[0].slots
    assert (first.state, first.code, first.attempt) == ("failed", "timeout", 3)
    assert (second.state, second.code) == ("failed", "max_calls")
    assert len(log) == 3


async def test_a_run_that_is_resumed_counts_the_starts_that_its_facts_hold() -> None:
    log: list[tuple[int, str]] = []
    tool = late_tool(log, in_time=1, max_calls=2)
    stage = Stage([reply(calls=[call("late"), call("late"), call("late")])], tools=[tool])
    await lost(stage, 0)
    again = stage.open_again()
    for position in range(3):
        await answer_call(again, 0, position)
    slots = again.turn.entries[0].slots
    assert [(slot.state, slot.attempt) for slot in slots] == [("done", 2), ("failed", 0), ("failed", 0)]
    assert log == [(2, "r/0.0")]


async def test_a_lost_call_over_its_tools_own_limit_stays_unknown_and_says_so() -> None:
    """(R134)"""
    log: list[tuple[int, str]] = []
    stage = Stage([reply(calls=[call("late")])], tools=[late_tool(log, in_time=1, max_calls=1)])
    await lost(stage, 0)
    again = stage.open_again()
    await answer_call(again, 0, 0)
    slot = again.turn.entries[0].slots[0]
    assert (slot.state, slot.code, slot.attempt, log) == ("unknown", "max_calls", 1, [])
    assert slot.feedback is not None
    assert "An earlier execution of this call may have taken effect" in slot.feedback.text


# -- the claim of the next call


def following(entry: Entry, answered: int | None, feedback: ToolFeedback | None) -> int | None:
    """The call after the one that is answered, whatever a loop would say."""
    position = 0 if answered is None else answered + 1
    return position if position < len(entry.slots) else None


async def batches(stage: Stage, scope: Scope) -> list[list[str]]:
    """What is written together from here on, as the steps of slots; every call is answered."""
    written: list[list[str]] = []
    append = stage.backend.append

    async def noted(facts: Sequence[Fact], **options: Any) -> None:
        written.append([f"{fact.state} {fact.position}" for fact in facts if isinstance(fact, SlotMoved)])
        await append(facts, **options)

    stage.backend.append = noted  # type: ignore[method-assign]
    try:
        await send(scope, following)
        for position in range(len(scope.turn.entries[0].slots)):
            await answer_call(scope, 0, position, following)
    finally:
        del stage.backend.append  # type: ignore[method-assign]
    return written[1:]


async def test_a_claim_is_stored_with_the_reply_or_with_the_answer_before_it() -> None:
    """(R80)"""
    stage = Stage([reply(calls=[call("double", n=n) for n in (1, 2, 3)])], tools=[double])
    scope = await stage.open()
    assert await batches(stage, scope) == [["started 0"], ["done 0", "started 1"], ["done 1", "started 2"], ["done 2"]]
    assert (stage.ledger.spent("tool_calls"), scope.turn.tool_calls, scope.claim) == (3, 3, None)
    assert [event.type for event in stage.events[-6:]] == ["tool.started", "tool.ended"] * 3


@al.tool(coerce=True)
async def halve(n: int) -> int:
    """Halve a number."""
    return n // 2


@pytest.mark.parametrize("ahead", [True, False])
async def test_what_was_converted_for_a_tool_stands_in_its_claim_and_its_event(ahead: bool) -> None:
    """(R18)"""
    texts = ['{"n": "8"}', '{"n": 6}', '{"n": "2"}']
    stage = Stage([reply(calls=[call("halve", arguments_text=text) for text in texts])], tools=[halve])
    scope = await stage.open()
    await send(scope, following if ahead else None)
    for position in range(3):
        await answer_call(scope, 0, position, following if ahead else None)
    line = ("$.n: string to integer",)
    moves = [fact for fact in await stage.facts() if isinstance(fact, SlotMoved)]
    assert [fact.converted for fact in moves if fact.state == "started"] == [line, (), line]
    assert [fact.converted for fact in moves if fact.state == "done"] == [(), (), ()]
    starts = [event for event in stage.events if isinstance(event, al.ToolStarted)]
    assert [(event.converted, event.arguments) for event in starts] == list(zip([line, (), line], texts, strict=True))
    slots = scope.turn.entries[0].slots
    assert [slot.call.arguments.text for slot in slots] == texts
    assert [slot.feedback and slot.feedback.text for slot in slots] == ["4", "3", "1"]


async def test_a_call_that_would_be_refused_is_not_claimed_and_the_one_after_it_is() -> None:
    """(R55, R57)"""
    calls = [call("double", n=1), call("double", n="x"), call("nobody"), call("double", n=2)]
    stage = Stage([reply(calls=calls)], tools=[double])
    scope = await stage.open()
    expected = [["started 0"], ["done 0"], ["failed 1"], ["failed 2", "started 3"], ["done 3"]]
    assert await batches(stage, scope) == expected
    assert stage.ledger.spent("tool_calls") == 2


async def test_nothing_is_claimed_ahead_in_a_run_that_is_paused_or_has_no_budget() -> None:
    """(R278)"""
    for fields, ledger in (({"paused": lambda: True}, None), ({}, Ledger(tool_calls=0))):
        stage = Stage([reply(calls=[call("double", n=1)])], tools=[double], ledger=ledger and ledger.child())
        scope = await stage.open(**fields)
        entry = Entry(reply(calls=[call("double", n=1)]), "a", b"", 1, None)
        assert claim_next(scope, following, 0, entry) is None
        assert stage.ledger.spent("tool_calls") == 0


async def test_nothing_is_claimed_ahead_beside_a_thread_that_has_not_ended() -> None:
    release = threading.Event()

    @al.tool(timeout=0.25, grace=0.02)  # in which its thread has begun
    def hold() -> None:
        """Hold a thread."""
        release.wait(10)

    stage = Stage([reply(calls=[call("hold"), call("double", n=1)])], tools=[hold, double])
    try:
        assert await batches(stage, await stage.open()) == [["started 0"], ["unknown 0"], ["failed 1"]]
    finally:
        release.set()
        assert await stage.pool.wait_idle(5) == 0


async def test_nothing_is_claimed_with_the_record_of_a_crash() -> None:
    """(R62)"""

    @al.tool
    async def crash() -> None:
        """Crash."""
        raise LookupError

    stage = Stage([reply(calls=[call("crash"), call("double", n=1)])], tools=[crash, double])
    scope = await stage.open()
    with pytest.raises(al.ToolCrashed):
        await batches(stage, scope)
    assert [slot.state for slot in scope.turn.entries[0].slots] == ["unknown", "open"]


# -- taking up what an earlier owner began


async def lost(stage: Stage, *positions: int, **fields: Any) -> Scope:
    """A scope whose newest reply has calls that were started and whose owner died."""
    scope = await asked(stage, **fields)
    for position in positions:
        await scope.commit(
            lambda book, at=position: book.start_slot(scope.turn, 0, at, effect_id=f"r/0.{at}", at_ms=4)  # type: ignore[misc]
        )
    await scope.commit(lambda book: book.lose_slots(scope.turn, at_ms=4))
    return scope


@pytest.mark.parametrize("paused", [False, True])
async def test_a_cancel_while_a_second_claim_is_written_does_not_say_that_nothing_ran(paused: bool) -> None:
    """(R62)"""

    async def hook(facts: Any) -> None:
        if isinstance(facts[0], SlotMoved) and facts[0].attempt == 2:
            if paused:
                closing.set()
            task.cancel()
            await asyncio.sleep(0)

    stage = Stage([reply(calls=[call("double", n=1)])], tools=[double], backend=SlowBackend(hook))
    closing = asyncio.Event()
    scope = await lost(stage, 0, paused=closing.is_set)
    task = asyncio.create_task(answer_call(scope, 0, 0))
    with pytest.raises(asyncio.CancelledError):
        await task
    await give_back(scope)
    slot = scope.turn.entries[0].slots[0]
    if paused:  # whoever resumes the run finds it unanswered
        assert (slot.state, slot.attempt, slot.feedback) == ("started", 2, None)
        return
    assert (slot.state, slot.attempt) == ("unknown", 2)
    assert slot.feedback is not None
    assert "whether its effect happened is unknown" in slot.feedback.text
    (told,) = (event for event in stage.events if isinstance(event, al.ToolSkipped))
    assert (told.slot, told.code) == ("unknown", "cancelled")


async def test_a_call_whose_first_execution_may_still_go_on_in_a_thread_waits() -> None:
    """(R134)"""
    release = threading.Event()

    @al.tool(timeout=0.5)
    def hold() -> None:
        """Hold a thread."""
        release.wait(10)

    stage = Stage([reply(calls=[call("hold")])], tools=[hold])
    scope = await lost(stage, 0)
    began, loop = asyncio.Event(), asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        release.wait(10)

    earlier = asyncio.create_task(stage.pool.run_thread(Execution("r", "hold"), work, seconds=None, grace=1))
    try:
        await began.wait()
        earlier.cancel()
        await asyncio.wait({earlier})
        with pytest.raises(al.UnsettledError) as caught:
            await answer_call(scope, 0, 0)
        assert (caught.value.ref, caught.value.calls) == ("r", ("0.0",))
        slot = scope.turn.entries[0].slots[0]
        assert (slot.state, slot.feedback, stage.ledger.spent("tool_calls")) == ("unknown", None, 0)
    finally:
        release.set()
        assert await stage.pool.wait_idle(5) == 0


async def test_a_call_that_could_not_be_read_runs_nothing_and_is_answered_with_what_was_wrong() -> None:
    """No tool can have its name. (R55, R347)"""
    with pytest.raises(ToolDefinitionError, match="bad_tool_name"):
        al.tool(lambda: None, name=MALFORMED_CALL, description="None.")
    written = '<tool_call>{"name": "double", "arguments": {"n": 1,}}</tool_call>'
    dialect = al.dialect("openai", call_text=al.ToolCallParser())
    answer, _ = feed([FIRST, text(written), STOP, COUNTED, DONE], dialect)
    stage = Stage([answer], tools=[double])
    scope = await asked(stage)
    assert claim_next(scope, lambda entry, at, told: 0, 0, scope.turn.entries[0]) is None
    await answer_call(scope, 0, 0)
    slot = scope.turn.entries[0].slots[0]
    assert (slot.state, slot.code) == ("failed", "malformed_call")
    assert slot.feedback is not None
    assert slot.feedback.status == "error"
    assert slot.feedback.text.startswith("Nothing ran. What follows <tool_call> is no call: ")
    assert "at character 40 ($.arguments)" in slot.feedback.text
    assert stage.ledger.spent("tool_calls") == 0


async def test_a_call_of_such_a_name_without_a_text_is_one_of_an_unknown_tool() -> None:
    stage = Stage([reply(calls=[call(MALFORMED_CALL)])], tools=[double])
    scope = await asked(stage)
    await answer_call(scope, 0, 0)
    assert scope.turn.entries[0].slots[0].code == "unknown_tool"


async def test_arguments_whose_type_raises_a_cancel_cost_the_call_before_no_answer() -> None:
    class Odd(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            raise asyncio.CancelledError

    @al.tool
    async def odd(of: Odd) -> None:
        """Never."""

    agent = al.Agent(name="a", tools=[double, odd])
    asked_for = reply(calls=[call("double", n=2), call("odd", call_id="2", of={"n": 1})])
    async with al.Runtime(ScriptedProvider([asked_for])) as runtime:
        with pytest.raises((al.RunCancelled, asyncio.CancelledError)):
            await runtime.run(agent, "go", run_id="r")
        slots = runtime._store.book.turn("r").entries[0].slots
        assert [slot.state for slot in slots] == ["done", "skipped"]
