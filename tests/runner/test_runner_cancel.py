"""A model call can be cut off at any moment: it ends once, says so, and its value stands or was never made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import agentloop as al
from agentloop.effects import Bound
from agentloop.exchange import OriginOpened, RunClosed, SendStarted
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider, broken, reply
from tests.runner.calls import LazySink, check_calls, facts_of, runner_on
from tests.runs import SlowBackend, other_tasks
from tests.stepper import HeldTimers, Stepper


class Reason(Exception):
    """Why a host wants no more of it."""


class Cut:
    """One call that is cut off in one way at some of its suspensions, and what became of it."""

    def __init__(self, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.way, self.reason = way, Reason()
        self.clock = FakeClock()
        self.timers = HeldTimers(monkeypatch, Bound)
        self.above = al.Signal("above", seconds=60, clock=self.clock)
        self.values: list[str] = []
        self.error: BaseException | None = None
        self.acted = False
        self.late: asyncio.CancelledError | None = None

    def act(self) -> None:
        self.acted = True
        task = asyncio.current_task()
        assert task is not None
        if self.way == "task":
            task.cancel("the host's words")
        elif self.way == "signal":
            self.above.cancel(self.reason)
        elif self.way == "deadline":
            self.clock.advance(60)
            self.timers.fire("_at_deadline")
        else:
            self.timers.fire("_run_out")

    async def call(self, runner: al.ModelRunner) -> None:
        """Call, and say what it came to, and whether a cancel was still to come."""
        try:
            self.values.append((await runner.invoke("go")).value)
        except BaseException as error:  # noqa: BLE001  # whichever it is
            self.error = error
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError as cancel:
            self.late = cancel

    def check(self) -> None:
        """What it raised is what cut it off; a cancel of the caller's own that came too late is not lost."""
        error = self.error
        assert (error is None) == bool(self.values)
        met = isinstance(error, asyncio.CancelledError)
        assert (self.late is not None) == (self.way == "task" and self.acted and not met)
        assert self.late is None or self.late.args == ("the host's words",)
        if error is None or isinstance(error, al.StreamRefused):
            return
        if self.way == "task":
            assert type(error) is asyncio.CancelledError
            assert error.args == ("the host's words",)
        elif self.way == "signal":
            assert error is self.reason
        else:
            assert isinstance(error, al.CallTimeout)
            assert error.limit == ("deadline" if self.way == "deadline" else "call_timeout")


WAYS = ("task", "signal", "deadline", "timeout")
ANSWERS: dict[str, Callable[[], list[Any]]] = {
    "answers": lambda: [reply("Hello there.")],
    "breaks": lambda: [broken(reply("Hello"), al.StreamRefused("truncated", 3, 99, "the rest", "its end"))],
    "asked again": lambda: [al.HTTPStatusError("busy", status=503), reply("Hello there.")],
}


def answering(answer: str) -> ScriptedProvider:
    """Answers ``go`` in one of these ways, and anything after it at once."""
    script = ANSWERS[answer]()

    def next_of(request: al.ModelRequest) -> Any:
        return script.pop(0) if request.messages[-1] == al.UserMessage(content="go") else reply("again")

    return ScriptedProvider([next_of] * 4, deltas=3)


async def cut_off(
    *at: int, way: str, answer: str, slow: bool, child: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, str]:
    """A call that is cut off at these suspensions; how many there were, and what it came to.

    Args:
        child: it is one of a child, which has a sink that waits.
    """
    with monkeypatch.context() as patch:
        cut, backend, provider = Cut(way, patch), SlowBackend() if slow else None, answering(answer)
        seen, sink = RecordingSink(), LazySink()
        options: dict[str, Any] = {"max_calls": 4, "call_timeout": 5, "execution": al.Execution(signal=cut.above)}
        if answer == "asked again":
            options["resend"] = al.ResendPolicy(on_unavailable=True, delay=1e-9, max_delay=1e-9)
        async with runner_on(backend, provider, observers=[seen], **options) as root:
            runner = root.child("part", sink=sink) if child else root
            stepper = Stepper(cut.call(runner), set(at), cut.act)
            await asyncio.create_task(stepper)
            cut.check()
            assert provider._open == 0
            assert cut.above._listeners == {}
            facts = await facts_of(root)
            admitted = sum(isinstance(fact, SendStarted) for fact in facts)
            assert (runner.call_count, runner.remaining_calls) == (admitted, 4 - admitted)
            came = type(cut.error).__name__ if cut.error else "completed"
            if not cut.above.cancelled:  # the runner can be used again
                cut.values.append((await runner.invoke("again")).value)
                facts = await facts_of(root)
        assert backend is None or set(backend.log) == {"whole"}
        check_calls(seen.events, facts, cut.values)
        if child:
            told = [event for event in seen.events if isinstance(event, al.OutputEvent)]
            assert sink.events == told
        tasks = other_tasks()
        assert not tasks, tasks
        return stepper.count, came


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
@pytest.mark.parametrize("child", [False, True], ids=["root", "child with a sink"])
@pytest.mark.parametrize("answer", list(ANSWERS))
@pytest.mark.parametrize("way", WAYS)
async def test_a_call_can_be_cut_off_at_every_await_of_it(
    way: str, answer: str, child: bool, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(R212, R263, R265, R267, R276, R324)"""
    outcomes: list[str] = []
    suspensions = 1
    while suspensions > len(outcomes):  # until a call has no such await any more, so that nothing met it
        suspensions, outcome = await cut_off(
            len(outcomes) + 1, way=way, answer=answer, slow=slow, child=child, monkeypatch=monkeypatch
        )
        outcomes.append(outcome)
    last = outcomes[-1]
    assert last == ("StreamRefused" if answer == "breaks" else "completed")
    cut = {"task": "CancelledError", "signal": "Reason"}.get(way, "CallTimeout")
    early = outcomes.index(last)
    assert early > 2
    assert set(outcomes[:early]) == {cut}
    assert set(outcomes[early:]) == {last}  # once it stands, nothing takes it back


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
@pytest.mark.parametrize("way", WAYS)
async def test_a_second_cancel_while_the_first_is_recorded_changes_nothing(
    way: str, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(R265)"""
    at, outcome = 0, ""
    while outcome != "completed":
        at += 1
        _, outcome = await cut_off(
            at, at + 1, at + 2, way=way, answer="answers", slow=slow, child=True, monkeypatch=monkeypatch
        )
    assert at > 8


# -- single moments


class Never:
    """Answers of a script that never come; says when so many requests have."""

    def __init__(self, count: int = 1) -> None:
        self._left, self.asked = count, asyncio.Event()

    async def __call__(self, request: al.ModelRequest) -> al.ModelReply:
        self._left -= 1
        if not self._left:
            self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError


class Hook(RecordingSink):
    """A sink that does something at events of one kind."""

    def __init__(self, kind: type[al.Event], act: Callable[[], Any]) -> None:
        super().__init__()
        self._kind, self._act = kind, act

    async def emit(self, event: al.Event) -> None:
        await super().emit(event)
        if isinstance(event, self._kind):
            made = self._act()
            if asyncio.iscoroutine(made):
                await made


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
@pytest.mark.parametrize("kind", [al.ModelStart, al.TextPreview, al.ModelParsed, al.ModelEnd])
async def test_a_sink_that_cancels_the_very_call_it_is_told_of(kind: type[al.Event], slow: bool) -> None:
    """Until the value is stored the signal has its way; after that the value stands (R263, R267, R324)."""
    signal, reason, seen = al.Signal(), Reason(), RecordingSink()
    sink, provider = Hook(kind, lambda: signal.cancel(reason)), ScriptedProvider([reply("hi")])
    options: Any = {"sink": sink, "execution": al.Execution(signal=signal), "observers": [seen]}
    async with runner_on(SlowBackend() if slow else None, provider, **options) as runner:
        values = []
        if kind is al.ModelEnd:
            values.append((await runner.invoke("go")).value)
        else:
            with pytest.raises(Reason) as caught:
                await runner.invoke("go")
            assert caught.value is reason
        await asyncio.sleep(0)  # nothing of it is left in this task
        facts = await facts_of(runner)
    check_calls(seen.events, facts, values)
    (end,) = sink.of(al.ModelEnd)
    assert end.status == ("success" if values else "cancelled")
    assert len(provider.requests) == (kind is not al.ModelStart)


@pytest.mark.parametrize("kind", [al.ModelStart, al.TextPreview, al.ModelParsed])
@pytest.mark.parametrize("way", WAYS)
async def test_a_sink_that_keeps_a_cancel_to_itself_does_not_make_a_value_of_the_call(
    way: str, kind: type[al.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(R62, R263, R267)"""
    cut, seen, reached = Cut(way, monkeypatch), RecordingSink(), asyncio.Event()

    async def keep_it() -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    options: Any = {"execution": al.Execution(signal=cut.above), "observers": [seen]}
    async with runner_on(None, ScriptedProvider([reply("hi")]), sink=Hook(kind, keep_it), **options) as runner:
        task = asyncio.create_task(cut.call(runner))
        await reached.wait()
        if way == "task":
            task.cancel("the host's words")
        else:
            cut.act()
        await task
        assert cut.values == []
        if way != "task":
            cut.check()
        assert type(cut.error) is {"task": asyncio.CancelledError, "signal": Reason}.get(way, al.CallTimeout)
        facts = await facts_of(runner)
    check_calls(seen.events, facts, [])


@pytest.mark.parametrize("way", WAYS)
async def test_a_call_that_is_cut_off_while_it_is_opened_costs_nothing(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(R278)"""
    cut, seen = Cut(way, monkeypatch), RecordingSink()

    async def hook(facts: Any) -> None:
        if isinstance(facts[0], OriginOpened):
            if way == "task":
                task.cancel("the host's words")
            else:
                cut.act()
            cut.acted = True

    provider = ScriptedProvider([])
    options: Any = {"execution": al.Execution(signal=cut.above), "observers": [seen], "max_calls": 3}
    async with runner_on(SlowBackend(hook), provider, **options) as runner:
        task = asyncio.create_task(cut.call(runner))
        await task
        cut.check()
        facts = await facts_of(runner)
        assert (runner.call_count, runner.remaining_calls) == (0, 3)
    check_calls(seen.events, facts, [])
    assert [type(fact) for fact in facts] == [OriginOpened, RunClosed]
    assert seen.events == []


@pytest.mark.parametrize(
    ("way", "code"),
    [("task", "cancelled"), ("signal", "cancelled"), ("deadline", "call_timeout"), ("timeout", "call_timeout")],
)
async def test_the_end_of_a_call_says_why_it_was_cut_off(way: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """(R265, R320)"""
    cut = Cut(way, monkeypatch)
    sink = Hook(al.TextPreview, cut.act)
    runner = al.ModelRunner(ScriptedProvider([reply("hi")]), sink=sink, execution=al.Execution(signal=cut.above))
    task = asyncio.create_task(cut.call(runner))
    await task
    cut.check()
    (end,) = sink.of(al.ModelEnd)
    assert (end.status, end.code, end.retracted) == ("cancelled", code, True)
    trace = runner.last_call
    assert trace is not None
    assert (trace.status, trace.code) == ("cancelled", code)
    ended, closed = (await facts_of(runner))[-2:]
    assert (ended.code, closed.reason) == (code, code)  # type: ignore[union-attr]
    assert closed.outcome == "cancelled"  # type: ignore[union-attr]


@pytest.mark.parametrize("answer", ["answers", "breaks"])
async def test_a_sink_that_never_returns_from_the_last_event_neither_holds_a_call_up_nor_changes_it(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(R264, R265)"""
    monkeypatch.setattr("agentloop.sinks.emitter.MODEL_END_SECONDS", 0)
    sink = Hook(al.ModelEnd, asyncio.Event().wait)
    runner = al.ModelRunner(answering(answer), sink=sink)
    if answer == "answers":
        assert (await runner.invoke("go")).value == "Hello there."
    else:
        with pytest.raises(al.StreamRefused, match="truncated"):
            await runner.invoke("go")
    (end,) = sink.of(al.ModelEnd)
    assert end.status == ("success" if answer == "answers" else "error")
    assert runner.last_call is not None
    assert (await runner.invoke("more")).value == "again"


async def test_the_wait_for_a_turn_counts_towards_the_deadline_and_not_towards_the_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(R212, R276, R280)"""
    clock, asked, gate = FakeClock(), asyncio.Event(), asyncio.Event()
    timers = HeldTimers(monkeypatch, Bound)

    async def later(request: al.ModelRequest) -> Any:
        asked.set()
        await gate.wait()
        return reply("hi")

    provider = ScriptedProvider([later, later, Never()])
    signal = al.Signal(seconds=60, clock=clock)
    root = al.ModelRunner(provider, call_timeout=5, execution=al.Execution(signal=signal))
    first, second, third = root.child("1"), root.child("2"), root.child("3")
    calls = [asyncio.create_task(child.invoke("go")) for child in (first, second, third)]
    await asked.wait()
    assert sorted(timers.seconds) == [5, 60, 60, 60, 60]  # one call's time, and each wait for a turn its deadline
    gate.set()
    assert [(await call).value for call in calls[:2]] == ["hi", "hi"]
    clock.advance(60)
    timers.fire("_at_deadline")
    with pytest.raises(al.CallTimeout, match="deadline"):
        await calls[2]
    assert len(provider.requests) <= 3
    assert signal._listeners == {}


async def test_a_deadline_that_passes_while_a_call_waits_for_its_turn_costs_no_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(R276, R278)"""
    clock, timers, never = FakeClock(), HeldTimers(monkeypatch, Bound), Never()
    root = al.ModelRunner(
        ScriptedProvider([never]), max_calls=4, execution=al.Execution(signal=al.Signal(seconds=60, clock=clock))
    )
    first, second = root.child("1"), root.child("2")
    calls = [asyncio.create_task(child.invoke("go")) for child in (first, second)]
    await never.asked.wait()
    clock.advance(60)
    timers.fire("_at_deadline")
    for call in calls:
        with pytest.raises(al.CallTimeout) as caught:
            await call
        assert (caught.value.limit, caught.value.seconds) == ("deadline", 60)
    assert (first.call_count, second.call_count, root.remaining_calls) == (1, 0, 3)


async def test_a_cancel_of_a_runner_reaches_every_descendant_with_its_reason() -> None:
    """Also one that waits for its turn (R276, R282, R324)."""
    reason, never = Reason(), Never(2)
    root = al.ModelRunner(
        ScriptedProvider([never, never]), children=al.ChildLimits(max_depth=3, max_concurrent_calls=2)
    )
    deep = root.child("1").child("1.1").child("1.1.1")
    runners = [deep, root.child("2"), root.child("3")]
    calls = [asyncio.create_task(runner.invoke("go")) for runner in runners]
    await never.asked.wait()
    root.signal.cancel(reason)
    for call in calls:
        with pytest.raises(Reason) as caught:
            await call
        assert caught.value is reason
    assert deep.signal.reason is reason
    with pytest.raises(Reason):
        deep.child()
    with pytest.raises(Reason):
        await root.invoke("go")


async def test_a_child_s_own_signal_and_time_end_it_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """(R273, R276, R282)"""
    timers, reason, own = HeldTimers(monkeypatch, Bound), Reason(), al.Signal()
    root = al.ModelRunner(ScriptedProvider([reply("root")]))
    by_signal, by_time = root.child("1", signal=own), root.child("2", timeout=7)
    assert (by_signal.signal.seconds_left(), root.signal.seconds_left()) == (None, None)
    left = by_time.signal.seconds_left()
    assert left is not None
    assert 6 < left <= 7
    own.cancel(reason)
    with pytest.raises(Reason):
        await by_signal.invoke("go")
    assert by_time.signal.reason is None
    assert (await root.invoke("go")).value == "root"
    assert timers.waiting == 0


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
async def test_clocks_and_scopes_around_a_call_work_as_around_anything(slow: bool) -> None:
    """(R324)"""
    seen, provider = RecordingSink(), ScriptedProvider([Never(), Never()])
    async with runner_on(SlowBackend() if slow else None, provider, observers=[seen]) as runner:

        async def never() -> None:
            await runner.invoke("go")

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(never(), 0.01)
        with anyio.move_on_after(0.01) as scope:
            await never()
        assert scope.cancelled_caught
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        facts = await facts_of(runner)
    check_calls(seen.events, facts, [])


async def test_a_runner_can_be_closed_by_the_sink_of_its_own_call() -> None:
    sink = Hook(al.TextPreview, lambda: runner.aclose())  # noqa: PLW0108  # it is not made yet
    runner = al.ModelRunner(ScriptedProvider([reply("hi")]), sink=sink)
    with pytest.raises(al.RunCancelled):
        await runner.invoke("go")
    assert sink.types == ["model.start", "model.output", "model.end"]
    await runner.aclose()
