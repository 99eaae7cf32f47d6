"""What calls of runners stand on: each is a run of its own, and closing waits for those under way."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange import OriginOpened, RunClosed
from agentloop.messages import ModelRequest
from agentloop.persistence import MemoryBackend
from agentloop.providers import RequestInspection
from agentloop.runner.host import Host
from agentloop.testing import RecordingSink, ScriptedProvider, reply
from tests.runner.calls import facts_of, runner_on
from tests.runs import SlowBackend, other_tasks

OPTIONS: dict[str, Any] = {
    "stage_id": "model",
    "messages": (al.UserMessage(content="go"),),
    "options": al.ModelOptions(),
    "tools": (),
    "call": al.CallBasis(parent="p", stage_id="model", transport="core:plain-text", route="text"),
}


class FullBackend(MemoryBackend):
    """A medium that takes so many writes and no more."""

    def __init__(self, writes: int) -> None:
        super().__init__()
        self.left = writes

    async def append(self, facts: Any, *, token: int | None = None, after: str | None = None) -> None:
        if not self.left:
            raise OSError("disk full")
        self.left -= 1
        await super().append(facts, token=token, after=after)


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
async def test_each_call_is_a_run_of_its_own_with_what_it_asked_for(slow: bool) -> None:
    """(R217, R221)"""
    provider = ScriptedProvider([reply("hi"), al.ConnectionLost("gone")])
    async with runner_on(SlowBackend() if slow else None, provider) as runner:
        result = await runner.invoke("go", stage_id="triage")
        with pytest.raises(al.ConnectionLost):
            await runner.invoke("go")
        facts = await facts_of(runner)
    opened = [fact for fact in facts if isinstance(fact, OriginOpened)]
    assert [fact.call.stage_id for fact in opened if fact.call is not None] == ["triage", "model"]
    assert all(fact.call is not None and fact.call.parent == runner.execution.diagnostics.span_id for fact in opened)  # type: ignore[union-attr]
    assert all(fact.conversation is None for fact in opened)
    assert result.invocation.ref == opened[0].run_id != opened[1].run_id
    assert [trace.ref for trace in runner.journal.model] == [fact.run_id for fact in opened]  # of the failed one too
    closed = [(fact.outcome, fact.reason) for fact in facts if isinstance(fact, RunClosed)]
    assert closed == [("completed", "stop"), ("failed", "connection_lost")]


async def test_a_runner_alone_keeps_the_newest_calls_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentloop.runner.host._KEPT_CALLS", 2)
    monkeypatch.setattr("agentloop.runner.host._DROPPED_CALLS", 1)
    runner = al.ModelRunner(ScriptedProvider([reply(str(at)) for at in range(4)]))
    refs = [(await runner.invoke("go")).invocation.ref for _ in range(4)]
    kept = {fact.run_id for fact in await facts_of(runner)}
    assert kept == set(refs[2:])


async def test_a_call_that_somebody_has_forgotten_keeps_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentloop.runner.host._KEPT_CALLS", 1)
    monkeypatch.setattr("agentloop.runner.host._DROPPED_CALLS", 2)
    async with al.Runtime(ScriptedProvider([reply(str(at)) for at in range(4)])) as runtime:
        runner = runtime.runner()
        refs = []
        for _ in range(4):
            refs.append((await runner.invoke("go")).invocation.ref)
            if len(refs) == 1:
                await runtime.forget(ref=refs[0])
        assert [row.run_id for row in await runner._host.store.runs()] == refs[2:]


async def test_a_call_on_disk_can_be_read_when_its_runner_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "calls.db")
    async with al.Runtime(ScriptedProvider([reply("hi")]), store=path) as runtime:
        ref = (await runtime.runner().invoke("go")).invocation.ref
    assert ref is not None
    async with al.Runtime(ScriptedProvider([]), store=path) as runtime:
        assert await runtime.unfinished() == []
        status = await runtime.read(ref)
        assert status.reply is not None
        assert status.reply.text == "hi"


@pytest.mark.parametrize("slow", [False, True], ids=["memory", "slow medium"])
async def test_closing_cuts_off_the_calls_under_way_and_waits_for_their_ends(slow: bool) -> None:
    """(R210, R265)"""
    asked, seen = asyncio.Event(), RecordingSink()

    async def never(request: al.ModelRequest) -> al.ModelReply:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    backend = SlowBackend() if slow else None
    async with runner_on(backend, ScriptedProvider([never]), observers=[seen]) as runner:
        calls = [asyncio.create_task(runner.child(str(at)).invoke("go")) for at in range(2)]  # one waits for its turn
        await asked.wait()
        await runner._host.close()
        facts = await facts_of(runner)
        assert sum(isinstance(fact, RunClosed) for fact in facts) == 1
        for call in calls:
            with pytest.raises(al.RunCancelled):
                await call
        with pytest.raises(al.RunCancelled):
            await runner.invoke("go")
        with pytest.raises(al.RunCancelled):
            runner.child()
    assert seen.types == ["model.start", "model.end"]
    assert not other_tasks()


async def test_closing_a_runtime_cuts_off_the_calls_of_its_runners() -> None:
    asked = asyncio.Event()

    async def never(request: al.ModelRequest) -> al.ModelReply:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    runtime = al.Runtime(ScriptedProvider([never]))
    async with runtime:
        call = asyncio.create_task(runtime.runner().invoke("go"))
        await asked.wait()
    with pytest.raises(al.RunCancelled):
        await call
    with pytest.raises(al.InputError):
        runtime.runner()
    assert not other_tasks()


async def test_closing_one_runner_of_a_runtime_leaves_the_others_alone() -> None:
    async with al.Runtime(ScriptedProvider([reply("hi")])) as runtime:
        async with runtime.runner() as first:
            second = runtime.runner()
        assert first.signal.cancelled
        with pytest.raises(al.RunCancelled):
            await first.invoke("go")
        assert (await second.invoke("go")).value == "hi"


async def test_a_call_that_cannot_be_opened_holds_nothing_up() -> None:
    host = Host.alone()
    host.store._backend = FullBackend(0)
    with pytest.raises(al.PersistenceError):
        await host.open("r", **OPTIONS)
    await host.close()

    def broken() -> str:
        raise LookupError

    host = Host.alone()
    host.new_id = broken
    with pytest.raises(LookupError):
        await host.open("r", **OPTIONS)
    await host.close()


@pytest.mark.parametrize("writes", range(4))
async def test_a_medium_that_fails_ends_the_call_and_no_value_is_made(writes: int) -> None:
    """(R62, R263)"""
    seen, provider = RecordingSink(), ScriptedProvider([reply("hi")])
    runner = al.ModelRunner(provider, observers=[seen])
    runner._host.store._backend = FullBackend(writes)
    if writes == 3:
        assert (await runner.invoke("go")).value == "hi"
    else:
        with pytest.raises(al.PersistenceError):
            await runner.invoke("go")
        with pytest.raises(al.PersistenceError):
            await runner.invoke("go")  # the store has stopped
    await runner.aclose()
    statuses = [event.status for event in seen.of(al.ModelEnd)]
    assert len(statuses) == len(seen.of(al.ModelStart))
    assert statuses == {0: [], 1: [], 2: ["error"], 3: ["success"]}[writes]
    assert len(provider.requests) == (writes > 1)


async def test_the_end_of_a_call_is_stored_once() -> None:
    host = Host.alone()
    turn = await host.open("r", **OPTIONS)
    await host.end(turn, "failed", "x", LookupError())
    second = LookupError()
    await host.end(turn, "cancelled", "y", second)
    assert not hasattr(second, "__notes__")
    await host.leave("r")
    facts = await host.store._backend.load()
    assert [(fact.outcome, fact.reason) for fact in facts if isinstance(fact, RunClosed)] == [("failed", "x")]
    await host.close()
    await host.close()


class Weighing(ScriptedProvider):
    """Counts how often a request was measured."""

    weighed = 0

    def inspect_request(self, request: ModelRequest) -> RequestInspection:
        self.weighed += 1
        return super().inspect_request(request)


async def test_a_request_that_no_other_one_follows_is_measured_only_near_the_ceiling_of_its_provider() -> None:
    small, tight = Weighing([reply("Yes.")]), Weighing([], max_request_bytes=4_000)
    await al.ModelRunner(small).invoke("Well?")
    assert small.weighed == 1  # by the provider, when it is sent
    with pytest.raises(al.LimitExceeded) as caught:
        await al.ModelRunner(tight).invoke("Well? " * 1_000)
    assert caught.value.limit == "max_request_bytes"
    assert (tight.weighed, tight.requests) == (1, [])


async def test_options_that_are_not_admitted_are_refused_when_the_runner_is_made() -> None:
    options = al.ModelOptions(stop=("\ud800",))
    with pytest.raises(al.AdmissionError):
        al.ModelRunner(ScriptedProvider([]), options=options)
