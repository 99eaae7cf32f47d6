"""Runners of a runtime: calls on a durable store and a real socket, and what a dead process leaves of them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.cli import main
from agentloop.errors import ConflictError, InputError, LostError, NotOwnerError, OutputRefused, RestoreError
from agentloop.exchange import CallBasis, OriginOpened, ReplyTaken, RunClosed, SendEnded, SendStarted
from agentloop.messages import ModelReply
from agentloop.testing import Answer, RecordingSink, ReplayServer, ScriptedProvider, reply
from tests.mortal import Ground
from tests.runs import facts_of, on_backend


class Ticket(msgspec.Struct):
    """A typed value."""

    title: str


TICKET = al.Structured(Ticket)
AGENT = al.Agent(name="clerk")


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db")


class Held:
    """A provider that answers when its gate is open.

    Attributes:
        asked: set when it was asked.
    """

    def __init__(self) -> None:
        self.asked, self.gate = asyncio.Event(), asyncio.Event()
        self.provider = ScriptedProvider([self.answer, reply("again")])

    async def answer(self, request: al.ModelRequest) -> ModelReply:
        self.asked.set()
        await self.gate.wait()
        return reply("late")


# -- stored


async def test_a_call_is_a_run_of_its_own_with_its_facts(ground: Ground) -> None:
    """(R207, R253)"""
    script = [reply('{"title":"fire"}', usage=(9, 4)), reply("no json")]
    async with ground.runtime(ScriptedProvider(script)) as runtime:
        made = runtime.runner(transports=(TICKET,))
        result = await made.invoke("q", stage_id="triage", transport=TICKET)
        with pytest.raises(OutputRefused) as caught:
            await made.invoke("q", transport=TICKET)
        ref = result.invocation.ref
        status = await runtime.read(ref)
        assert (status.state, status.attempt_id) == ("found", result.invocation.invocation_id)
        assert status.reply is not None
        assert status.reply.text == '{"title":"fire"}'
        stored = await runtime.result(ref)
        assert (stored.outcome, stored.text, stored.model_calls) == ("completed", '{"title":"fire"}', 1)
        assert await runtime.unfinished() == []
        facts = await facts_of(runtime)
    first = [fact for fact in facts if fact.run_id == ref]
    assert [type(fact) for fact in first] == [OriginOpened, SendStarted, SendEnded, ReplyTaken, RunClosed]
    opened, closed = first[0], first[-1]
    assert isinstance(opened, OriginOpened)
    assert made.execution.diagnostics is not None
    assert opened.call == CallBasis(
        parent=made.execution.diagnostics.span_id,
        stage_id="triage",
        transport="structured:Ticket",
        route="json_schema",
    )
    assert (opened.agent, opened.conversation, opened.options.max_output_tokens) == ("triage", None, 1_024)
    assert isinstance(closed, RunClosed)
    assert closed.outcome == "completed"
    refused = [fact for fact in facts if fact.run_id == caught.value.ref]
    assert [type(fact) for fact in refused] == [OriginOpened, SendStarted, SendEnded, ReplyTaken, RunClosed]
    assert isinstance(refused[-1], RunClosed)
    assert (refused[-1].outcome, refused[-1].reason) == ("failed", caught.value.code)


@pytest.mark.parametrize("durable", [True, False])
async def test_a_name_that_no_record_can_hold_stops_no_store(tmp_path: Path, durable: bool) -> None:
    """One caller's bad word may not end the work of all others on the same medium."""
    provider = ScriptedProvider([reply("hi")])
    async with al.Runtime(provider, store=tmp_path / "store.db" if durable else None) as runtime:
        runner = runtime.runner(transports=(TICKET,))
        with pytest.raises(InputError, match="stage_id: expected text that UTF-8 can encode"):
            await runner.invoke("go", stage_id="half \ud83d")
        with pytest.raises(InputError, match="span_id: expected text that UTF-8 can encode"):
            runner.child("half \ud83d")
        assert (runner.total_call_count, provider.requests) == (0, [])
        assert (await runner.invoke("go")).value == "hi"
        assert await runtime.unfinished() == []


async def test_a_task_that_a_sink_of_a_call_began_may_close_the_runtime_and_is_cut_off() -> None:
    """(R143)"""

    class Closing:
        async def emit(self, event: al.OutputEvent) -> None:
            if isinstance(event, al.TextPreview):
                await asyncio.create_task(runtime.aclose())

    runtime = al.Runtime(ScriptedProvider([reply("hi")]))
    async with runtime:
        with pytest.raises(al.RunCancelled, match=r"^the call was cut off: its runtime closed$") as caught:
            await runtime.runner(sink=Closing()).invoke("go")
        assert (caught.value.what, caught.value.ref) == ("runtime", "")
        await runtime.aclose()
        with pytest.raises(InputError, match="got one that is closed"):
            runtime.runner()


class Denied(al.AgentLoopError):
    code = 403  # type: ignore[assignment]  # as a host may write that checks no types


class Picky:
    """A transport of a host's own that takes nothing."""

    id = "picky"

    def __init__(self, at: str) -> None:
        self._at = at

    def prepare(self, stage: al.Stage) -> al.Interaction[str]:
        return al.Interaction(create_response=lambda: self, route="picky")

    output_chars = 0

    def push(self, fragment: al.Fragment) -> None:
        if self._at == "push":
            raise Denied

    def finish(self, reply: ModelReply) -> str:
        raise Denied


@pytest.mark.parametrize("at", ["push", "finish"])
async def test_a_call_that_ended_with_any_error_can_be_read(tmp_path: Path, at: str) -> None:
    """(R62)"""
    picky = Picky(at)
    async with al.Runtime(ScriptedProvider([reply("hi")]), store=tmp_path / "store.db") as runtime:
        runner = runtime.runner(transports=(picky,))
        with pytest.raises(Denied):
            await runner.invoke("go", transport=picky)
        assert runner.last_call is not None
        ref, code = runner.last_call.ref, runner.last_call.code
    assert (ref is not None, code) == (True, "Denied")
    async with al.Runtime(ScriptedProvider([]), store=tmp_path / "store.db") as runtime:
        status = await runtime.read(ref or "")
        assert (status.state, status.reply is not None) == ("found", at == "finish")
        assert isinstance(await runtime.checkpoint(ref or ""), al.CompletedPoint)


@pytest.mark.parametrize(("status", "seconds"), [("429", "soon"), (429.5, True), (10**30, 10**400), (None, -1)])
async def test_what_a_provider_says_of_an_answer_is_kept_if_a_record_can_hold_it(
    tmp_path: Path, status: Any, seconds: Any
) -> None:
    refused = al.HTTPStatusError("no", status=status, retry_after=seconds)
    async with al.Runtime(ScriptedProvider([refused]), store=tmp_path / "store.db") as runtime:
        runner = runtime.runner()
        with pytest.raises(al.HTTPStatusError):
            await runner.invoke("go")
        assert await runtime.unfinished() == []
        ref = runner.last_call.ref if runner.last_call else None
    async with al.Runtime(ScriptedProvider([]), store=tmp_path / "store.db") as runtime:
        assert (await runtime.read(ref or "")).state == "found"


async def test_a_sink_of_a_call_cannot_close_the_runtime_that_would_wait_for_it() -> None:
    """(R143)"""

    class Closing:
        async def emit(self, event: al.OutputEvent) -> None:
            if isinstance(event, al.TextPreview):
                await runtime.aclose()

    runtime = al.Runtime(ScriptedProvider([reply("hi"), reply("again")]))
    async with runtime:
        with pytest.raises(InputError, match="expected a caller outside its runs, got a tool or a sink of one"):
            await runtime.runner(sink=Closing()).invoke("go")
        assert (await runtime.runner().invoke("go")).value == "again"


async def test_a_value_is_returned_once_it_is_stored(ground: Ground) -> None:
    """(R267)"""
    ref = ""
    async with ground.runtime(ScriptedProvider([reply("hi", usage=(1, 1))])) as runtime:
        result = await runtime.runner().invoke("q")
        ref = result.invocation.ref
    async with ground.runtime(ScriptedProvider([])) as later:
        status = await later.read(ref, result.invocation.invocation_id)
        assert status.reply is not None
        assert status.reply.text == result.value
        assert (await later.result(ref)).text == "hi"


async def test_runners_of_a_runtime_share_its_ledger_and_its_policy() -> None:
    """(R211)"""
    ledger = al.Ledger(model_calls=3)
    script: list[Any] = [al.ConnectionFailed("no"), reply("a"), reply("b")]
    policy = al.ResendPolicy(delay=0.001)
    async with al.Runtime(ScriptedProvider(script), ledger=ledger, resend=policy) as runtime:
        one, two = runtime.runner(), runtime.runner(max_calls=5)
        assert (await one.invoke("q")).value == "a"
        assert (one.call_count, two.remaining_calls) == (2, 1)
        assert (await runtime.run(AGENT, "q")).text == "b"
        with pytest.raises(al.BudgetError, match="model_calls: allowed 3, got at least 4"):
            await two.invoke("q")
        alone = runtime.runner(ledger=None, resend=None, max_calls=1)
        assert alone.remaining_calls == 1


async def test_observers_of_the_runtime_hear_of_the_calls_and_of_what_was_refused() -> None:
    observer, failing = RecordingSink(), RecordingSink(fails_on=(al.Event, ValueError("no")))
    async with al.Runtime(ScriptedProvider([reply("hi")]), observers=[failing, observer]) as runtime:
        made = runtime.runner(max_calls=1)
        assert (await made.invoke("q")).value == "hi"
        with pytest.raises(al.BudgetError):
            await made.invoke("q")
    assert observer.types == ["model.start", "model.output", "model.parsed", "model.end", "runtime.rejected"]


async def test_a_runner_needs_a_runtime_that_is_open() -> None:
    runtime = al.Runtime(ScriptedProvider([]))
    with pytest.raises(InputError):
        runtime.runner()
    async with runtime:
        made = runtime.runner()
    with pytest.raises(InputError):
        runtime.runner()
    with pytest.raises(al.RunCancelled):
        await made.invoke("q")


async def test_a_full_store_refuses_the_call_before_it_is_sent() -> None:
    provider = ScriptedProvider([])
    async with al.Runtime(provider, limits=al.BookLimits(item_bytes=1_024)) as runtime:
        made = runtime.runner()
        prepared = made.prepare()
        with pytest.raises(al.LimitExceeded):
            await made.invoke("x" * 5_000, prepared=prepared)
        assert (provider.requests, made.total_call_count, prepared.used) == ([], 0, False)
        assert not runtime._runs.host.goes_on("")


# -- while it goes on


@pytest.mark.parametrize("durable", [False, True])
async def test_nobody_settles_or_ends_a_call_that_goes_on_here(ground: Ground, durable: bool) -> None:
    held = Held()
    backend = ground.handle() if durable else None
    async with on_backend(backend, held.provider) as runtime:
        made = runtime.runner()
        going = asyncio.create_task(made.invoke("q"))
        await held.asked.wait()
        (row,) = await runtime.unfinished()
        assert await runtime.unsettled() == []
        (attempt,) = held.provider.attempts
        assert (await runtime.read(row.run_id)).state == "pending"
        with pytest.raises(NotOwnerError, match="got a runner's model call under way, which its signal cancels"):
            await runtime.cancel(row.run_id, author="Ann")
        with pytest.raises(NotOwnerError):
            await runtime.settle_send(row.run_id, attempt, author="Ann")
        with pytest.raises(NotOwnerError):
            await runtime.resume(row.run_id, AGENT)
        with pytest.raises(ConflictError):
            await runtime.forget(ref=row.run_id)
        with pytest.raises(LostError):
            runtime.follow(row.run_id)
        held.gate.set()
        assert (await going).value == "late"
        await runtime.cancel(row.run_id)
        assert (await runtime.read(row.run_id)).state == "found"
        await runtime.forget(ref=row.run_id)
        assert await runtime._store.runs() == []


@pytest.mark.parametrize("durable", [False, True])
async def test_closing_the_runtime_ends_the_calls_under_way_and_stores_that(ground: Ground, durable: bool) -> None:
    held = Held()
    backend = ground.handle() if durable else None
    async with on_backend(backend, held.provider) as runtime:
        made = runtime.runner()
        going = asyncio.create_task(made.invoke("q"))
        await held.asked.wait()
    with pytest.raises(al.RunCancelled):
        await going
    if durable:
        facts = await ground.facts()
        ended, closed = facts[-2:]
        assert isinstance(ended, SendEnded)
        assert (ended.outcome, ended.may_have_been_processed) == ("abandoned", True)
        assert isinstance(closed, RunClosed)
        assert closed.outcome == "cancelled"
    assert made.call_count == 1


# -- a process that died


async def die(ground: Ground, at: int, when: Any = "before") -> str:
    """Leave a call behind, dead at an append: 1 is its origin, 2 its claim, 3 its reply. Return its run."""
    async with ground.mortal(ScriptedProvider([reply("lost")]), at=at, when=when) as (dying, medium):
        made = dying.runner(transports=(TICKET,))
        going = asyncio.create_task(made.invoke("q", stage_id="triage"))
        await medium.dead.wait()
        medium.bury()
        await asyncio.wait({going})
        assert going.exception() is not None
    ground.clock.advance(31)
    (opened, *_) = await ground.facts()
    return opened.run_id


@pytest.mark.parametrize(("at", "when"), [(2, "after"), (3, "before")])
async def test_a_call_of_a_dead_process_is_unsettled_until_somebody_decides(ground: Ground, at: int, when: Any) -> None:
    ref = await die(ground, at, when)
    provider = ScriptedProvider([])
    async with ground.runtime(provider) as runtime:
        (row,) = await runtime.unfinished()
        assert (row.run_id, row.lease, row.agent) == (ref, None, "triage")
        (open_send,) = await runtime.unsettled()
        assert (open_send.ref, open_send.kind, open_send.attempt) == (ref, "send", 1)
        assert (await runtime.read(ref)).state == "unknown"
        with pytest.raises(RestoreError) as refused:
            await runtime.resume(ref, AGENT)
        assert str(refused.value) == (
            f"agent_changed: run {ref!r}: expected a run of an agent, got a model call of a runner (stage 'triage'), "
            "which is made once and not taken up"
        )
        with pytest.raises(al.UnsettledError):
            await runtime.cancel(ref)
        await runtime.settle_send(ref, open_send.effect_id, author="Ann")
        assert await runtime.unsettled() == []
        assert [row.run_id for row in await runtime.unfinished()] == [ref]
        await runtime.cancel(ref)
        assert await runtime.unfinished() == []
        with pytest.raises(al.OutcomeError, match="got cancelled"):
            await runtime.result(ref)
        await runtime.forget(ref=ref)
    assert provider.requests == []


async def test_a_call_of_a_dead_process_is_ended_by_whoever_says_so(ground: Ground) -> None:
    ref = await die(ground, 3)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        await runtime.cancel(ref, author="Ann")
        assert (await runtime.unfinished(), await runtime.unsettled()) == ([], [])
    ended = next(fact for fact in await ground.facts() if isinstance(fact, SendEnded))
    assert (ended.outcome, ended.author) == ("abandoned", "Ann")


async def test_a_call_that_was_never_claimed_has_nothing_to_settle(ground: Ground) -> None:
    ref = await die(ground, 1, "after")
    async with ground.runtime(ScriptedProvider([])) as runtime:
        assert [row.run_id for row in await runtime.unfinished()] == [ref]
        assert await runtime.unsettled() == []
        await runtime.cancel(ref)
        assert await runtime.unfinished() == []


async def test_a_call_whose_value_was_stored_is_over_although_nobody_was_told(ground: Ground) -> None:
    ref = await die(ground, 3, "after")
    async with ground.runtime(ScriptedProvider([])) as runtime:
        assert (await runtime.unfinished(), await runtime.unsettled()) == ([], [])
        assert (await runtime.result(ref)).text == "lost"


async def test_another_process_leaves_a_living_call_alone(ground: Ground) -> None:
    held = Held()
    async with ground.runtime(held.provider) as one, ground.runtime(ScriptedProvider([])) as two:
        going = asyncio.create_task(one.runner().invoke("q"))
        await held.asked.wait()
        (row,) = await two.unfinished()
        assert row.lease is not None
        assert await two.unsettled() == []
        for refused in (two.cancel(row.run_id, author="Ann"), two.resume(row.run_id, AGENT)):
            with pytest.raises(NotOwnerError):
                await refused
        held.gate.set()
        assert (await going).value == "late"


# -- looked into


def test_inspect_shows_a_call_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ground = Ground(tmp_path / "store.db")

    async def fill() -> str:
        ref = await die(ground, 3)
        async with ground.runtime(ScriptedProvider([reply("hi", usage=(3, 1))])) as runtime:
            await runtime.runner(models={"fast": ScriptedProvider([])}).invoke("q", stage_id="answer")
        return ref

    ref = asyncio.run(fill())
    path = str(tmp_path / "store.db")
    assert main(["inspect", path]) == 0
    table = capsys.readouterr().out
    assert "stage triage" in table
    assert "stage answer" in table
    assert f"to settle in run {ref}" in table
    assert main(["inspect", path, "--run", ref]) == 0
    timeline = capsys.readouterr().out
    assert "asked by     core:plain-text (text)\n" in timeline
    assert "opened  model call of stage triage, 0 tools" in timeline
    assert "made for" in timeline
    assert main(["inspect", path, "--json"]) == 0
    left, answered = json.loads(capsys.readouterr().out)["runs"]
    assert (left["call"]["stage_id"], left["call"]["model_id"], left["unsettled"]) == ("triage", None, 1)
    assert (answered["call"]["model_id"], answered["state"]) == ("default", "completed")
    assert main(["inspect", path, "--html", "-"]) == 0
    page = capsys.readouterr().out
    assert "stage answer" in page
    assert "asked by <bdi>core:plain-text (text), model default</bdi>" in page


# -- on a socket


def stream(text: str, *, finish: str = "stop") -> bytes:
    """A reply as an endpoint streams it, a character an event."""
    head = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in text
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({**head, "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}})
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


async def test_a_typed_value_comes_over_a_real_socket(replay_server: ReplayServer, tmp_path: Path) -> None:
    """(R207, R215, R219)"""
    replay_server.script(stream('{"title":"fire"}'))
    sink = RecordingSink()
    async with al.Runtime(al.ChatCompletions(replay_server.url, model="m"), store=tmp_path / "s.db") as runtime:
        made = runtime.runner(transports=(TICKET,), sink=sink, max_output_tokens=99)
        result = await made.invoke("q", transport=TICKET)
    assert result.value == Ticket(title="fire")
    assert result.invocation.usage is not None
    assert result.invocation.usage.total_tokens == 8
    (request,) = replay_server.requests
    assert request.headers["x-client-request-id"] == result.invocation.invocation_id
    assert request.json["response_format"]["json_schema"]["name"] == "Ticket"
    assert 99 in (request.json.get("max_tokens"), request.json.get("max_completion_tokens"))
    assert sink.text == '{"title":"fire"}'


async def test_an_answer_that_is_too_long_is_cut_off_at_the_socket(replay_server: ReplayServer) -> None:
    """(R213)"""
    replay_server.script(Answer(body=stream("abcdef" * 10), cut=2_000, ending="stall"))
    async with al.Runtime(al.ChatCompletions(replay_server.url, model="m")) as runtime:
        made = runtime.runner(max_output_chars=4)
        with pytest.raises(al.BudgetError, match="max_output_chars: allowed 4, got at least"):
            await made.invoke("q")
        await replay_server.wait_disconnects(1)


async def test_a_request_that_is_too_large_reaches_no_socket(replay_server: ReplayServer) -> None:
    provider = al.ChatCompletions(replay_server.url, model="m", max_request_bytes=400)
    async with al.Runtime(provider) as runtime:
        made = runtime.runner()
        with pytest.raises(al.LimitExceeded, match="max_request_bytes: allowed 400"):
            await made.invoke("x" * 500)
        assert (replay_server.requests, made.total_call_count) == ([], 0)


async def test_a_busy_server_is_not_asked_again_and_the_next_model_is(replay_server: ReplayServer) -> None:
    """(R211, R240)"""
    replay_server.script(Answer.error(429, {"error": {"message": "busy"}}), stream("hi"))
    busy, free = (al.ChatCompletions(replay_server.url, model=name) for name in ("busy", "free"))
    async with al.Runtime(busy) as runtime:
        policy = al.ResendPolicy(max_resends=0)
        made = runtime.runner(models={"free": free}, fallback=["free"], resend=policy)
        result = await made.invoke("q")
    await free.aclose()
    assert (result.value, result.invocation.model_id, result.invocation.call_sequence) == ("hi", "free", 2)
    assert [request.json["model"] for request in replay_server.requests] == ["busy", "free"]
