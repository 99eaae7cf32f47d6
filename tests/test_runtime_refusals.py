"""What does not match what is stored is not taken up: it is refused by its code, and nothing is sent or run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.exchange import Fact, OriginOpened, ReplyTaken, SendEnded, SendStarted, SlotMoved
from agentloop.messages import ToolFeedback, ToolResult
from agentloop.testing import ScriptedProvider, broken, call, reply
from tests.mortal import Ground

replace: Callable[..., Any] = msgspec.structs.replace
RAN: list[str] = []


@al.tool(recovery="settle")
async def note(text: str) -> str:
    """Note something down."""
    RAN.append(text)
    return f"noted {text}"


AGENT = al.Agent(name="clerk", instructions="Be brief.", tools=[note])
ASKS = reply(calls=[call("note", text="x", call_id="1"), call("note", text="y", call_id="2")])


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    RAN.clear()
    return Ground(tmp_path / "store.db")


async def left_behind(ground: Ground, *, at: int = 6) -> None:
    """Leave run ``r`` behind, by default with one exchange of two calls, before its second send."""
    async with ground.mortal(ScriptedProvider([ASKS]), at=at) as (dying, medium):
        await dying.submit(AGENT, "go", run_id="r", conversation="c")
        await medium.dead.wait()
    ground.clock.advance(31)
    RAN.clear()


async def refused(ground: Ground, agent: al.Agent = AGENT, **options: Any) -> al.RestoreError:
    """Hold that run ``r`` is not taken up, and that nothing happened; the error."""
    facts, provider = await ground.facts(), ScriptedProvider([])
    async with ground.runtime(provider) as runtime:
        with pytest.raises(al.RestoreError) as caught:
            await runtime.resume("r", agent, **options)
        (row,) = await runtime.unfinished()
        assert row.lease is None  # given back at once
    assert (provider.requests, RAN) == ([], [])
    assert await ground.facts() == facts
    return caught.value


# -- another agent, catalogue or input


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"name": "cook"}, "agent_changed"),
        ({"instructions": "Be long."}, "input_changed"),
        ({"options": al.ModelOptions(temperature=1)}, "input_changed"),
        ({"policy_version": "2"}, "catalogue_changed"),
        ({"tools": [al.tool(name="note")(note._function)]}, "catalogue_changed"),  # it states no recovery any more
    ],
)
async def test_what_is_not_the_runs_own_agent_does_not_take_it_up(
    ground: Ground, changes: dict[str, Any], code: str
) -> None:
    """(R136, R138)"""
    await left_behind(ground)
    given = {"name": "clerk", "instructions": "Be brief.", "tools": [note], **changes}
    assert (await refused(ground, al.Agent(**given))).code == code


async def test_another_input_does_not_take_a_run_up(ground: Ground) -> None:
    """(R136, R138)"""
    await left_behind(ground)
    error = await refused(ground, input="stop")
    assert error.code == "input_changed"
    assert "stop" not in str(error)
    async with ground.runtime(ScriptedProvider([reply("done")])) as runtime:
        with pytest.raises(al.InputError, match="input: expected str"):
            await runtime.resume("r", AGENT, input=7)  # type: ignore[arg-type]
        result = await runtime.resume("r", AGENT, input=al.UserMessage(content="go"))
        assert result.text == "done"
        assert await runtime.resume("r", AGENT, input="go") == result
        with pytest.raises(al.RestoreError) as caught:  # also where the run has ended
            await runtime.resume("r", AGENT, input="stop")
        assert caught.value.code == "input_changed"
    assert RAN == []


# -- facts that cannot be


def feedback_of(call_id: str) -> ToolFeedback:
    return ToolFeedback.of(call_id, ToolResult.ok("forged"))


Change = Callable[[list[Fact]], None]
"""Changes the facts of a run: its origin, claim, end of the send, reply, and two steps for each call."""


def changed(kind: type, nth: int = 0, **fields: Any) -> Change:
    def change(facts: list[Fact]) -> None:
        at = [at for at, fact in enumerate(facts) if type(fact) is kind][nth]
        facts[at] = replace(facts[at], **fields)

    return change


def removed(kind: type, nth: int = 0) -> Change:
    def change(facts: list[Fact]) -> None:
        del facts[[at for at, fact in enumerate(facts) if type(fact) is kind][nth]]

    return change


def swapped(at: int) -> Change:
    def change(facts: list[Fact]) -> None:
        facts[at], facts[at + 1] = facts[at + 1], facts[at]

    return change


def other_prefix(facts: list[Fact]) -> None:
    sent = facts[1]
    assert isinstance(sent, SendStarted)
    facts[1] = replace(sent, request=replace(sent.request, digest="0" * 64))


BROKEN: dict[str, tuple[Change, str]] = {
    "the origin is another": (changed(OriginOpened, messages=()), "messages"),
    "the digest of the origin is another": (changed(OriginOpened, digest="0" * 64), "the digest of its content"),
    "it continues nothing that is there": (
        changed(OriginOpened, continues=al.ExchangeRef(origin_id="o", index=0, digest="0" * 64)),
        "the newest exchange before it",
    ),
    "the prefix is another": (other_prefix, "the request of all exchanges so far"),
    "the order is another": (swapped(3), "the reply of the attempt that ended with one"),
    "the reply is of an attempt that was not claimed": (
        changed(ReplyTaken, attempt_id="nobody"),
        "the attempt that ended with a reply just now",
    ),
    "the end is of an attempt that was not claimed": (
        changed(SendEnded, attempt_id="nobody"),
        "an attempt that was started and has not ended",
    ),
    "the claim of the send is missing": (removed(SendStarted), "an attempt that was started and has not ended"),
    "the feedback is of a call that was not asked": (
        changed(SlotMoved, 1, feedback=feedback_of("7")),
        "the feedback of this call",
    ),
    "the feedback is of another call": (changed(SlotMoved, 1, feedback=feedback_of("2")), "the feedback of this call"),
    "the feedback is of a place that the reply has not": (
        changed(SlotMoved, 1, position=2),
        "a call of the newest reply",
    ),
    "a second feedback": (changed(SlotMoved, 3, position=0, effect_id="r/0.0"), "cannot become done"),
    "the answer is of an execution that was not started": (
        changed(SlotMoved, 1, effect_id="r/9.9"),
        "the execution that was started",
    ),
    "the start of the execution is missing": (removed(SlotMoved), "cannot become done"),
    "an execution stands for two calls": (changed(SlotMoved, 2, effect_id="r/0.0"), "of this call alone"),
    "an outcome was settled that was known": (changed(SlotMoved, 1, author="Ann"), "on an unknown outcome only"),
}


@pytest.mark.parametrize(("change", "rule"), BROKEN.values(), ids=BROKEN)
async def test_a_run_whose_facts_cannot_be_is_not_taken_up(
    ground: Ground, tmp_path: Path, change: Change, rule: str
) -> None:
    """Unknown feedback and sources that were never claimed among them (R136, R137, R138)."""
    await left_behind(ground)
    facts = await ground.facts()
    assert [type(fact) for fact in facts] == [OriginOpened, SendStarted, SendEnded, ReplyTaken, *[SlotMoved] * 4]
    change(facts)
    other = Ground(tmp_path / "other.db")
    handle = other.handle()
    await handle.open()
    await handle.append(facts)
    await handle.close()
    error = await refused(other)
    assert error.code == "bad_record"
    assert "run 'r', fact " in error.where
    assert rule in error.rule


async def test_facts_without_their_origin_are_no_run(ground: Ground, tmp_path: Path) -> None:
    """(R132, R138)"""
    await left_behind(ground)
    facts = (await ground.facts())[1:]
    other, provider = Ground(tmp_path / "other.db"), ScriptedProvider([])
    handle = other.handle()
    await handle.open()
    with pytest.raises(al.ConflictError, match="expected a run that is there"):
        await handle.append(facts)
    await handle.close()
    async with other.runtime(provider) as runtime:
        with pytest.raises(al.LostError):
            await runtime.resume("r", AGENT)
    assert (provider.requests, RAN) == ([], [])


# -- an end that is stored


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ([al.ConnectionFailed("no")], "connection_failed"),
        ([broken(reply("half"), al.StreamRefused("truncated", 0, 0, "x", "y"))], "truncated"),
        ([ASKS, RuntimeError("a bug")], "RuntimeError"),
    ],
)
async def test_a_run_that_failed_is_not_taken_up(ground: Ground, script: list[Any], code: str) -> None:
    """(R135, R138, R142)"""
    async with ground.runtime(ScriptedProvider(script)) as runtime:
        with pytest.raises(Exception):  # noqa: B017, PT011
            await runtime.run(AGENT, "go", run_id="r")
    facts, provider = await ground.facts(), ScriptedProvider([])
    RAN.clear()
    async with ground.runtime(provider) as runtime:
        with pytest.raises(al.OutcomeError) as caught:
            await runtime.resume("r", AGENT, input="go")
        assert (caught.value.code, caught.value.outcome, caught.value.reason) == ("outcome", "failed", code)
        point = await runtime.checkpoint("r")
        assert isinstance(point, al.CompletedPoint)
        assert (point.outcome, point.reason) == ("failed", code)
    assert (provider.requests, RAN) == ([], [])
    assert await ground.facts() == facts


@pytest.mark.parametrize("kept", [True, False], ids=["sqlite", "memory"])
async def test_what_is_no_id_of_a_run_is_refused_before_the_store_is_asked(tmp_path: Path, kept: bool) -> None:
    """A row, an error or a result is easily handed on whole in the place of its id."""
    provider = ScriptedProvider([reply("done")])
    async with al.Runtime(provider, store=tmp_path / "store.db" if kept else None) as runtime:
        wrong: Any = await runtime.run(AGENT, "go", run_id="r")
        for attempt in (
            lambda: runtime.resume(wrong, AGENT),
            lambda: runtime.read(wrong),
            lambda: runtime.result(wrong),
            lambda: runtime.checkpoint(wrong),
            lambda: runtime.cancel(wrong),
            lambda: runtime.settle_send(wrong, "a", author="Ann"),
            lambda: runtime.settle_call(wrong, 0, 0, author="Ann"),
            lambda: runtime.redact(wrong, author="Ann"),
            lambda: runtime.forget(ref=wrong),
        ):
            with pytest.raises(al.InputError, match=r"^ref: expected the id of a run, a str, got RunResult$"):
                await attempt()
        with pytest.raises(al.InputError, match=r"^ref: expected the id of a run"):
            runtime.follow(wrong)
        assert (await runtime.result("r")).text == "done"


@pytest.mark.parametrize(("exchange", "position", "name"), [("r/0.0", 0, "exchange"), (0, None, "position")])
async def test_a_place_of_a_call_that_is_no_number_is_refused(
    ground: Ground, exchange: Any, position: Any, name: str
) -> None:
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.InputError, match=f"^{name}: expected an integer from 0"):
            await runtime.settle_call("r", exchange, position, author="Ann")
