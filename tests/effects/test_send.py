"""One attempt: reserved, claimed, sent once, stored, then told."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import Any

import pytest

import agentloop as al
from agentloop.effects import Ledger, Overtaken, Patience, Rejected, Sends, measure, send
from agentloop.exchange import ReplyTaken, SendEnded, SendStarted
from agentloop.messages import UserMessage
from agentloop.testing import RecordingSink, broken, call, reply
from tests.effects.stage import Stage
from tests.runs import SlowBackend


async def test_a_send_claims_before_it_sends_and_stores_before_it_tells() -> None:
    """(R12, R80, R126)"""
    order: list[str] = []
    stage = Stage()

    class Telling(RecordingSink):
        async def emit(self, event: al.Event) -> None:
            order.append(f"{event.type} {[type(fact).__name__ for fact in await stage.facts()]}")

    async def answer(request: al.ModelRequest) -> Any:
        order.append(f"sent {[type(fact).__name__ for fact in await stage.facts()]}")
        return reply("hi")

    stage = Stage([answer], sink=Telling())
    scope = await stage.open()
    assert (await send(scope)).text == "hi"
    claimed, all_three = ["SendStarted"], ["SendStarted", "SendEnded", "ReplyTaken"]
    assert order == [
        f"model.start {claimed}",
        f"sent {claimed}",
        f"model.output {claimed}",
        f"model.parsed {claimed}",
        f"model.end {all_three}",
    ]


async def test_a_send_is_charged_once_and_its_tokens_when_they_are_known() -> None:
    stage = Stage([reply("hi", usage=(3, 4)), reply("no usage")], ledger=Ledger(model_calls=5, tokens=100))
    scope = await stage.open()
    await send(scope)
    assert (stage.ledger.spent("model_calls"), stage.ledger.spent("tokens")) == (1, 7)


async def test_usage_is_charged_before_anybody_is_told_of_it() -> None:
    """A sink that fails on it changes nothing of what was charged and stored (R258)."""
    seen: list[int] = []

    class Failing(RecordingSink):
        async def emit(self, event: al.Event) -> None:
            if isinstance(event, al.ModelParsed | al.ModelEnd):
                seen.append(stage.ledger.spent("tokens"))
            if isinstance(event, al.ModelEnd):
                raise ValueError("of a host")

    stage = Stage([reply("hi", usage=(3, 4))], sink=Failing())
    scope = await stage.open()
    await send(scope)
    assert seen == [7, 7]
    end = stage.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert end.usage == scope.turn.usage == al.Usage(input_tokens=3, output_tokens=4, total_tokens=7)
    assert stage.ledger.spent("tokens") == 7


@pytest.mark.parametrize("answer", [reply("hi"), al.ConnectionLost("gone")])
async def test_the_end_of_an_attempt_is_stored_with_its_time(answer: Any) -> None:
    async def slowly(request: al.ModelRequest) -> Any:
        stage.clock.advance(7)
        return answer

    stage = Stage([slowly])
    scope = await stage.open()
    began = stage.clock.now_ms()
    with contextlib.suppress(al.ConnectionLost):
        await send(scope)
    claimed, ended, *_ = await stage.facts()
    assert isinstance(claimed, SendStarted)
    assert isinstance(ended, SendEnded)
    assert (claimed.at_ms, ended.at_ms) == (began, began + 7_000)


async def test_a_failed_send_is_not_refunded() -> None:
    stage = Stage([al.ConnectionLost("gone")])
    scope = await stage.open()
    with pytest.raises(al.ConnectionLost):
        await send(scope)
    assert stage.ledger.spent("model_calls") == 1
    _, ended = await stage.facts()
    assert isinstance(ended, SendEnded)
    assert (ended.outcome, ended.code, ended.may_have_been_processed) == ("failed", "connection_lost", True)
    assert scope.turn.unknown_sends == (ended.attempt_id,)


async def test_a_send_that_never_left_is_known_not_to_have_been_processed() -> None:
    stage = Stage([al.ConnectionFailed("nobody there")])
    scope = await stage.open()
    with pytest.raises(al.ConnectionFailed):
        await send(scope)
    assert scope.turn.unknown_sends == ()


@pytest.mark.parametrize("resource", ["model_calls", "tokens"])
async def test_a_budget_refuses_before_anything_is_claimed_sent_or_charged(resource: str) -> None:
    """(R278, R321)"""
    stage = Stage([reply("hi")], ledger=Ledger(**{resource: 0}))  # type: ignore[arg-type]
    scope = await stage.open()
    with pytest.raises(Rejected) as caught:
        await send(scope)
    assert isinstance(caught.value.error, al.BudgetError)
    assert caught.value.error.limit == resource
    assert await stage.facts() == []
    assert stage.types == ["runtime.rejected"]
    rejected = stage.events[0]
    assert isinstance(rejected, al.RequestRejected)
    assert (rejected.code, rejected.limit, rejected.allowed, rejected.got) == ("BUDGET", resource, 0, 1)
    assert stage.provider.requests == []
    assert stage.sink.events == []
    assert stage.ledger.spent("model_calls") == 0


async def test_a_size_that_is_refused_debits_nothing() -> None:
    """(R103, R278, R321)"""
    stage = Stage([reply("hi")], max_wire_request_bytes=50)
    scope = await stage.open()
    with pytest.raises(Rejected) as caught:
        await send(scope)
    assert caught.value.error.limit == "max_wire_request_bytes"
    assert stage.ledger.spent("model_calls") == 0
    assert await stage.facts() == []


async def test_a_reply_over_the_runs_bytes_fails_the_attempt_and_names_the_runs_limit() -> None:
    """(R97)"""
    stage = Stage([reply("x" * 1_000)], reply_bytes=500)
    scope = await stage.open()
    with pytest.raises(Rejected) as caught:
        await send(scope)
    assert (caught.value.error.limit, caught.value.error.allowed) == ("reply_bytes", 500)
    assert [type(fact) for fact in await stage.facts()] == [SendStarted, SendEnded]
    end = stage.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert (end.code, end.retracted) == ("oversized", True)


async def test_previews_carry_body_text_alone_and_reasoning_as_its_own_kind() -> None:
    """(R123)"""
    for asked in (False, True):
        stage = Stage([reply("ab", calls=[call("t", x=1)], reasoning="hm")], deltas=1)
        await send(await stage.open(reasoning=asked))
        kinds = [event.type for event in stage.sink.events]
        assert kinds.count("model.output") == 2
        assert kinds.count("model.reasoning") == (2 if asked else 0)


async def test_a_parsed_reply_that_could_not_be_delivered_is_no_fact() -> None:
    """(R263, R265)"""
    sink = RecordingSink(fails_on=(al.ModelParsed, OSError("full")))
    stage = Stage([reply("hi", usage=(3, 4))], sink=sink)
    scope = await stage.open()
    with pytest.raises(OSError, match="full"):
        await send(scope)
    facts = await stage.facts()
    assert not [fact for fact in facts if isinstance(fact, ReplyTaken)]
    ended = facts[-1]
    assert isinstance(ended, SendEnded)
    assert (ended.outcome, ended.code, ended.may_have_been_processed) == ("abandoned", "delivery", True)
    assert ended.usage == al.Usage(input_tokens=3, output_tokens=4, total_tokens=7)
    assert [event.type for event in sink.events] == ["model.start", "model.output", "model.end"]


@pytest.mark.parametrize("slow", [False, True])
async def test_a_cancelled_attempt_is_abandoned_with_its_usage_unknown(slow: bool) -> None:
    reached = asyncio.Event()

    async def never(request: al.ModelRequest) -> Any:
        reached.set()
        await asyncio.Event().wait()

    stage = Stage([never], backend=SlowBackend() if slow else None)
    scope = await stage.open()
    task = asyncio.create_task(send(scope))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ended = (await stage.facts())[-1]
    assert isinstance(ended, SendEnded)
    assert (ended.outcome, ended.code, ended.usage) == ("abandoned", "cancelled", None)
    assert ended.may_have_been_processed
    end = stage.sink.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert (end.status, end.retracted) == ("cancelled", False)
    assert stage.provider._open == 0


async def test_previews_of_a_broken_stream_are_retracted() -> None:
    """(R267)"""
    stage = Stage([broken(reply("half"), al.StreamRefused("truncated", 0, 0, "x", "y"))])
    with pytest.raises(al.StreamRefused):
        await send(await stage.open())
    end = stage.sink.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert (end.status, end.retracted, end.code) == ("error", True, "truncated")


async def test_the_size_of_what_was_sent_is_known_afterwards() -> None:
    """Exact near a ceiling, else no less than it was (R103, R105)"""
    for ceiling in (4_096, 2**21):
        stage = Stage([reply("hi")], max_request_bytes=ceiling)
        scope = await stage.open()
        await send(scope)
        size = stage.provider.inspect_request(stage.provider.requests[0]).body_bytes
        assert scope.sent_bytes == size if ceiling == 4_096 else size < scope.sent_bytes < 2**18


async def test_what_is_measured_afterwards_is_the_request_that_was_sent_and_nothing_that_waits_since() -> None:
    """What waits is reserved for beside it (R103)."""
    stage = Stage([reply(calls=[call("none")])], max_request_bytes=4_096)
    scope = await stage.open()
    said = UserMessage(content="before")
    await scope.commit(lambda book: book.steer(scope.turn, said, author=None, at_ms=1))
    await send(scope)
    exact = scope.sent_bytes
    assert stage.provider.requests[0].messages[-1] == said
    await scope.commit(lambda book: book.steer(scope.turn, UserMessage(content="x" * 99), author=None, at_ms=1))
    scope.sent_bytes = 0
    measure(scope)
    assert scope.sent_bytes == exact


async def test_a_stop_that_comes_first_keeps_the_request_from_leaving() -> None:
    stage = Stage([])
    scope = await stage.open()
    await scope.commit(lambda book: book.ask_stop(scope.turn, author=None, at_ms=1))
    before = await stage.facts()
    with pytest.raises(Overtaken):
        await send(scope)
    assert await stage.facts() == before
    assert stage.provider.requests == stage.sink.events == []
    assert stage.ledger.spent("model_calls") == 0


async def test_a_request_is_measured_where_a_reply_may_not_fit_beside_its_bound() -> None:
    """The next request holds both, and a bound that is too high would refuse it (R103)."""

    async def told(ceiling: int) -> int:
        stage = Stage([reply("hi")], max_request_bytes=ceiling)
        scope = await stage.open()
        await send(scope)
        return scope.sent_bytes

    bound = await told(2**30)
    room = bound + Stage().limits.reply_bytes
    exact = await told(4_096)
    assert (await told(room), await told(room - 1)) == (bound, exact)
    assert exact < bound


@pytest.mark.parametrize(
    ("asked", "kept"), [(None, None), (0, 0.0), (1.5, 1.5), (math.inf, None), (math.nan, None), (-1, None)]
)
async def test_what_the_server_answered_in_place_of_a_stream_is_in_the_fact(asked: Any, kept: Any) -> None:
    error = al.HTTPStatusError("busy", status=503, may_have_been_processed=True, retry_after=asked)
    stage = Stage([error])
    scope = await stage.open()
    with pytest.raises(al.HTTPStatusError):
        await send(scope)
    ended = (await stage.facts())[-1]
    assert isinstance(ended, SendEnded)
    assert (ended.outcome, ended.status, ended.retry_after) == ("failed", 503, kept)
    assert ended.may_have_been_processed
    assert scope.turn.refused == (ended,)


@pytest.mark.parametrize(("kind", "outcome"), [(al.ModelStart, "abandoned"), (al.TextPreview, "failed")])
async def test_an_error_of_a_sink_is_never_the_servers_answer(kind: type[al.OutputEvent], outcome: str) -> None:
    """A sink may itself ask a model for something."""
    sink = RecordingSink(fails_on=(kind, al.HTTPStatusError("of another request", status=429, retry_after=1.0)))
    stage = Stage([reply("hi")], sink=sink)
    with pytest.raises(al.HTTPStatusError):
        await send(await stage.open())
    ended = (await stage.facts())[-1]
    assert isinstance(ended, SendEnded)
    assert (ended.outcome, ended.code, ended.status, ended.retry_after) == (outcome, "http_status", None, None)


CUT = al.StreamRefused("truncated", 0, 0, "x", "y")


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize(
    ("answer", "reasoning", "told"),
    [
        (CUT, False, ("failed", True, False)),
        (broken(reply("half"), CUT), False, ("failed", True, True)),
        (broken(reply(reasoning="hm"), CUT), False, ("failed", True, False)),
        (broken(reply(reasoning="hm"), CUT), True, ("failed", True, True)),
        (broken(reply(calls=[call("t")]), CUT), True, ("failed", True, False)),
        (broken(reply("half"), al.ConnectionLost("gone")), False, ("failed", False, True)),
        (al.ConnectionLost("gone"), False, ("failed", False, False)),
        (al.ConnectionFailed("no"), False, ("failed", False, False)),
        (OSError("of the provider"), False, ("abandoned", False, False)),
        (reply("hi"), False, ("replied", False, None)),
    ],
)
async def test_whether_a_stream_was_refused_and_anything_of_it_was_handed_on_is_in_the_fact(
    detached: bool, answer: Any, reasoning: bool, told: tuple[str, bool, bool | None]
) -> None:
    async def stored(run_id: str) -> None:
        """Nobody has to be told."""

    stage = Stage([answer])
    scope = await stage.open(reasoning=reasoning, sends=Sends(stored) if detached else None)
    with contextlib.suppress(al.AgentLoopError, OSError):
        await send(scope)
    (ended,) = [fact for fact in await stage.facts() if isinstance(fact, SendEnded)]
    assert (ended.outcome, ended.stream_refused, ended.previewed) == told


async def test_what_the_run_did_not_show_of_a_detached_send_was_handed_on_all_the_same() -> None:
    """(R141)"""

    async def stored(run_id: str) -> None:
        """Nobody has to be told."""

    go = asyncio.Event()

    async def entry(request: al.ModelRequest) -> Any:
        await go.wait()
        return broken(reply("half"), CUT)

    stage, sends = Stage([entry]), Sends(stored)
    scope = await stage.open(sends=sends, patience=Patience(0))
    with pytest.raises(al.ModelPending):
        await send(scope)
    pending = sends.of("r")
    assert pending is not None
    go.set()
    await asyncio.wait({pending.task})
    ended = (await stage.facts())[-1]
    assert isinstance(ended, SendEnded)
    assert (ended.outcome, ended.stream_refused, ended.previewed) == ("failed", True, True)
    assert "model.output" not in stage.types


@pytest.mark.parametrize("kind", [al.ModelStart, al.TextPreview, al.ModelParsed])
@pytest.mark.parametrize("detached", [False, True])
async def test_a_stream_that_a_sink_was_refused_is_not_this_ones(kind: type[al.OutputEvent], detached: bool) -> None:
    """A sink may itself ask a model for something."""

    async def stored(run_id: str) -> None:
        """Nobody has to be told."""

    stage = Stage([reply("hi", calls=[call("t")])], sink=RecordingSink(fails_on=(kind, CUT)))
    scope = await stage.open(sends=Sends(stored) if detached else None)
    with pytest.raises(al.StreamRefused):
        await send(scope)
    (ended,) = [fact for fact in await stage.facts() if isinstance(fact, SendEnded)]
    assert not ended.stream_refused


async def test_what_a_provider_makes_of_being_cut_off_is_no_refused_stream() -> None:
    asked = asyncio.Event()

    async def stored(run_id: str) -> None:
        """Nobody has to be told."""

    async def entry(request: al.ModelRequest) -> Any:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise CUT from None

    stage = Stage([entry])
    scope = await stage.open(sends=Sends(stored))
    task = asyncio.create_task(send(scope))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ended = (await stage.facts())[-1]
    assert isinstance(ended, SendEnded)
    assert (ended.outcome, ended.code, ended.stream_refused) == ("abandoned", "cancelled", False)
