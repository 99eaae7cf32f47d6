"""A refused request is sent once more where the host asked for it, and never otherwise."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange import ReplyTaken, RunClosed, SendEnded, SendStarted
from agentloop.loop import advance
from agentloop.testing import ReplayServer, ScriptedProvider, broken, call, reply
from agentloop.testing.replay_server import Answer
from tests.effects.stage import Stage
from tests.mortal import Ground
from tests.runs import check_end, facts_of, follow_all, other_tasks

TEXT = (Path(__file__).parent / "recordings" / "text.sse").read_bytes()
BUSY = Answer.error(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}})
DOWN = Answer.error(503, {"error": {"message": "overloaded"}})
UNSEEN = TEXT.index(b"\n\n") + 2
"""The length of the stream before its first text."""
CUT = Answer(body=TEXT, cut=UNSEEN, ending="close")
SEEN = Answer(body=TEXT, cut=len(TEXT) // 2, ending="close")
SICK = Answer(body=b'data: {"error":{"code":429,"message":"slow down"}}\n\n')
NO_STREAM = Answer(body=b"{}", headers={"content-type": "application/json"})


@al.tool(idempotent=True)
async def ping() -> str:
    """Answer."""
    return "pong"


AGENT = al.Agent(name="a", tools=[ping])


class Naps:
    """A sleep that takes no time, and remembers what was asked of it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


class Endless:
    """A sleep without an end; ``begun`` is set when it is slept."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.begun.set()
        await asyncio.Event().wait()


@pytest.fixture
async def other() -> AsyncIterator[ReplayServer]:
    """A second server, to fall back to."""
    async with ReplayServer() as running:
        yield running


@pytest.fixture
def refusing() -> str:
    """The address of a server that is not there."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


def model_at(server: ReplayServer | str, **options: Any) -> al.ChatCompletions:
    url = server if isinstance(server, str) else server.url
    return al.ChatCompletions(url, **{"model": "m-1", **options})


def too_many(retry_after: float | None = None) -> al.HTTPStatusError:
    return al.HTTPStatusError("HTTP 429", status=429, retry_after=retry_after)


def unavailable() -> al.HTTPStatusError:
    return al.HTTPStatusError("HTTP 503", status=503, may_have_been_processed=True)


def cut() -> al.StreamRefused:
    return al.StreamRefused("truncated", 0, 0, "a whole stream", "the end of the connection")


async def sends(runtime: al.Runtime) -> list[tuple[str, str | None, bool]]:
    """Model, code and "may have been processed" of each attempt, as stored."""
    facts = await facts_of(runtime)
    ends = {fact.attempt_id: fact for fact in facts if isinstance(fact, SendEnded)}
    started = [fact for fact in facts if isinstance(fact, SendStarted)]
    assert len({fact.attempt_id for fact in started}) == len(started)
    assert len({(fact.request.digest, fact.request.exchanges) for fact in started}) == 1
    ended = [ends[fact.attempt_id] for fact in started]
    return [
        (fact.model, end.code, end.may_have_been_processed and end.outcome != "replied")
        for fact, end in zip(started, ended, strict=True)
    ]


# -- over HTTP


async def test_a_429_is_sent_once_more_with_the_same_bytes_as_a_new_attempt(replay_server: ReplayServer) -> None:
    """(R105, R114)"""
    replay_server.script(BUSY, BUSY, TEXT)
    naps = Naps()
    policy = al.ResendPolicy(delay=1)
    async with al.Runtime(model_at(replay_server), resend=policy, sleep=naps, random=lambda: 0.25) as runtime:
        result = await runtime.run(AGENT, "go")
        events = await check_end(runtime, result.ref, "completed")
        assert await sends(runtime) == [("m-1", "http_status", False)] * 2 + [("m-1", None, False)]
    bodies = [request.body for request in replay_server.requests]
    assert len(bodies) == 3
    assert len(set(bodies)) == 1
    attempts = [event.attempt_id for event in events if isinstance(event, al.ModelStart)]
    assert [request.headers["x-client-request-id"] for request in replay_server.requests] == attempts
    assert (result.model_calls, naps.seconds) == (3, [0.25, 0.5])
    told = [(e.attempt_id, e.code, e.delay_ms, e.model) for e in events if isinstance(e, al.ResendScheduled)]
    assert told == [(attempts[0], "http_status", 250, "m-1"), (attempts[1], "http_status", 500, "m-1")]


@pytest.mark.parametrize(
    ("said", "seconds"), [("7", 7.0), ("Thu, 01 Jan 1970 00:00:07 GMT", 7.0), ("Thu, 01 Jan 1970 00:00:00 GMT", None)]
)
async def test_the_server_says_how_long_to_wait(replay_server: ReplayServer, said: str, seconds: float | None) -> None:
    replay_server.script(Answer.error(429, {}, retry_after=said), TEXT)
    naps = Naps()
    provider = model_at(replay_server, wall_clock=lambda: 0.0)
    async with al.Runtime(provider, resend=al.ResendPolicy(), sleep=naps) as runtime:
        await runtime.run(AGENT, "go")
    assert naps.seconds == ([] if seconds is None else [seconds])
    assert len(replay_server.requests) == 2


async def test_a_server_that_wants_more_than_is_allowed_ends_the_run_at_once(replay_server: ReplayServer) -> None:
    replay_server.script(Answer.error(429, {}, retry_after="61"), TEXT)
    naps = Naps()
    async with al.Runtime(model_at(replay_server), resend=al.ResendPolicy(), sleep=naps) as runtime:
        with pytest.raises(al.HTTPStatusError) as caught:
            await runtime.run(AGENT, "go", run_id="r")
        assert caught.value.retry_after == 61
        await check_end(runtime, "r", "failed", "http_status")
    assert (len(replay_server.requests), naps.seconds) == (1, [])


async def test_a_refused_connection_is_tried_again_and_then_another_server_is_asked(
    refusing: str, other: ReplayServer
) -> None:
    other.script(TEXT)
    naps = Naps()
    policy = al.ResendPolicy(max_resends=1, fallbacks=(model_at(other, model="m-2"),))
    async with al.Runtime(model_at(refusing), resend=policy, sleep=naps, random=lambda: 1.0) as runtime:
        result = await runtime.run(AGENT, "go")
        events = await check_end(runtime, result.ref, "completed")
        refused = ("m-1", "connection_failed", False)
        assert await sends(runtime) == [refused, refused, ("m-2", None, False)]
    assert [request.json["model"] for request in other.requests] == ["m-2"]
    assert naps.seconds == [0.5]
    assert [e.model for e in events if isinstance(e, al.ResendScheduled)] == ["m-1", "m-2"]
    assert [e.model for e in events if isinstance(e, al.ModelStart)] == ["m-1", "m-1", "m-2"]


@pytest.mark.parametrize("opted", [False, True])
async def test_a_503_is_sent_once_more_only_where_the_host_said_so(replay_server: ReplayServer, opted: bool) -> None:
    """The fact keeps that it may have been processed."""
    replay_server.script(DOWN, TEXT)
    policy = al.ResendPolicy(on_unavailable=opted)
    async with al.Runtime(model_at(replay_server), resend=policy, sleep=Naps()) as runtime:
        if opted:
            await runtime.run(AGENT, "go")
        else:
            with pytest.raises(al.HTTPStatusError):
                await runtime.run(AGENT, "go")
        assert (await sends(runtime))[0] == ("m-1", "http_status", True)
    assert len(replay_server.requests) == 1 + opted


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer.error(500, {}), al.HTTPStatusError),
        (Answer.error(502, {}, retry_after="1"), al.HTTPStatusError),
        (Answer.error(400, {}), al.HTTPStatusError),
        (Answer.error(408, {}, retry_after="1"), al.HTTPStatusError),
        (Answer(status=307, headers={"location": "/v1/elsewhere"}), al.HTTPStatusError),
        (Answer(silent=True, ending="stall"), al.SendTimeout),
        (Answer(silent=True, ending="reset"), al.ConnectionLost),
        (Answer(body=TEXT, cut=len(TEXT) // 2, ending="stall"), al.StreamRefused),
        (SEEN, al.StreamRefused),
        (CUT, al.StreamRefused),
        (NO_STREAM, al.StreamRefused),
        (SICK, al.StreamRefused),
    ],
)
async def test_nothing_else_is_ever_sent_again(
    replay_server: ReplayServer, other: ReplayServer, answer: Answer, error: type[al.AgentLoopError]
) -> None:
    """(R114, R121)"""
    replay_server.script(answer, TEXT)
    other.script(TEXT)
    provider = model_at(replay_server, timeouts=al.Timeouts(total=0.2))
    policy = al.ResendPolicy(on_unavailable=True, fallbacks=(model_at(other),))
    async with al.Runtime(provider, resend=policy, sleep=Naps()) as runtime:
        with pytest.raises(error):
            await runtime.run(AGENT, "go", run_id="r")
        await check_end(runtime, "r", "failed")
    assert (len(replay_server.requests), len(other.requests)) == (1, 0)


# -- a refused stream


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (CUT, "truncated"),
        (Answer(body=TEXT, cut=UNSEEN, ending="reset"), "truncated"),
        (Answer(body=TEXT, cut=UNSEEN + 9), "truncated"),
        (SICK, "vendor_error"),
        (NO_STREAM, "not_event_stream"),
        (Answer(body=b"data: {}}\n\n"), "invalid_json"),
    ],
)
async def test_a_stream_that_was_refused_before_any_text_is_asked_for_again_where_the_host_said_so(
    replay_server: ReplayServer, answer: Answer, code: str, checkpoint: bool
) -> None:
    """Each time is charged, and the fact keeps that it may have been processed (R105, R114)."""
    replay_server.script(answer, answer, TEXT)
    naps, policy = Naps(), al.ResendPolicy(on_refused_stream=True)
    provider = model_at(replay_server)
    async with Ground(None).runtime(provider, resend=policy, sleep=naps, random=lambda: 1.0) as runtime:
        result = await runtime.run(AGENT, "go", checkpoint=checkpoint)
        events = await check_end(runtime, result.ref, "completed")
        assert await sends(runtime) == [("m-1", code, True)] * 2 + [("m-1", None, False)]
        ends = [fact for fact in await facts_of(runtime) if isinstance(fact, SendEnded)]
    assert [(end.stream_refused, end.previewed) for end in ends] == [(True, False)] * 2 + [(False, None)]
    assert (result.model_calls, naps.seconds) == (3, [0.5, 1.0])
    assert len({request.body for request in replay_server.requests}) == 1
    assert [e.code for e in events if isinstance(e, al.ResendScheduled)] == [code] * 2
    assert [e.retracted for e in events if isinstance(e, al.ModelEnd)] == [False] * 3


async def test_a_stream_that_was_refused_before_any_text_is_asked_for_of_a_fallback(
    replay_server: ReplayServer, other: ReplayServer
) -> None:
    replay_server.script(CUT)
    other.script(TEXT)
    policy = al.ResendPolicy(max_resends=0, on_refused_stream=True, fallbacks=(model_at(other, model="m-2"),))
    async with al.Runtime(model_at(replay_server), resend=policy, sleep=Naps()) as runtime:
        await runtime.run(AGENT, "go")
        assert await sends(runtime) == [("m-1", "truncated", True), ("m-2", None, False)]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize(
    ("answer", "error", "code"),
    [
        (SEEN, al.StreamRefused, "truncated"),
        (Answer(body=TEXT, cut=UNSEEN, ending="stall"), al.StreamRefused, "total_timeout"),
        (Answer(silent=True, ending="stall"), al.SendTimeout, "total_timeout"),
        (Answer(silent=True, ending="reset"), al.ConnectionLost, "connection_lost"),
        (Answer.error(500, {}), al.HTTPStatusError, "http_status"),
    ],
)
async def test_with_that_word_nothing_is_sent_again_after_text_or_a_clock_or_without_a_stream(
    replay_server: ReplayServer,
    other: ReplayServer,
    answer: Answer,
    error: type[al.AgentLoopError],
    code: str,
    checkpoint: bool,
) -> None:
    """(R114, R121, R267)"""
    replay_server.script(answer, TEXT)
    other.script(TEXT)
    provider = model_at(replay_server, timeouts=al.Timeouts(total=0.2))
    policy = al.ResendPolicy(on_refused_stream=True, fallbacks=(model_at(other),))
    async with Ground(None).runtime(provider, resend=policy, sleep=Naps()) as runtime:
        with pytest.raises(error):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=checkpoint)
        await check_end(runtime, "r", "failed", code)
    assert (len(replay_server.requests), len(other.requests)) == (1, 0)


async def test_with_that_word_a_reply_over_the_runs_bytes_still_ends_it_in_that_limit() -> None:
    """(R97)"""
    provider = ScriptedProvider([reply(calls=[call("ping", x="y" * 1_000)]), reply("never")])
    agent = al.Agent(name="a", tools=[ping], limits=al.LoopLimits(reply_bytes=500))
    async with al.Runtime(provider, resend=al.ResendPolicy(on_refused_stream=True), sleep=Naps()) as runtime:
        result = await runtime.run(agent, "go")
        await check_end(runtime, result.ref, "limit_reached", "reply_bytes")
        (end,) = [fact for fact in await facts_of(runtime) if isinstance(fact, SendEnded)]
    assert (end.code, end.stream_refused, end.previewed) == ("oversized", True, False)
    assert len(provider.requests) == 1


async def test_without_a_policy_nothing_is_sent_again(replay_server: ReplayServer) -> None:
    """(R114)"""
    replay_server.script(BUSY, TEXT)
    async with al.Runtime(model_at(replay_server)) as runtime:
        with pytest.raises(al.HTTPStatusError):
            await runtime.run(AGENT, "go", run_id="r")
        await check_end(runtime, "r", "failed", "http_status")
    assert len(replay_server.requests) == 1


# -- what is charged and told


async def test_every_attempt_is_charged_and_usage_is_what_was_reported() -> None:
    script = [too_many(), reply(calls=[call("ping")], usage=(3, 1)), too_many(), reply("done", usage=(5, 2))]
    provider = ScriptedProvider(script)
    async with al.Runtime(provider, resend=al.ResendPolicy(max_resends=1), sleep=Naps()) as runtime:
        result = await runtime.run(AGENT, "go")
        await check_end(runtime, result.ref, "completed")
    assert (result.model_calls, result.tool_calls) == (4, 1)
    assert result.usage == al.Usage(input_tokens=8, output_tokens=3, total_tokens=11)
    provider.assert_complete()


async def test_a_budget_that_is_used_up_ends_the_run_with_the_error() -> None:
    """(R95)"""
    provider = ScriptedProvider([too_many()] * 9)
    agent = al.Agent(name="a", limits=al.LoopLimits(max_model_calls=2))
    async with al.Runtime(provider, resend=al.ResendPolicy(max_resends=8), sleep=Naps()) as runtime:
        with pytest.raises(al.HTTPStatusError):
            await runtime.run(agent, "go", run_id="r")
        events = await check_end(runtime, "r", "failed", "http_status")
    assert len(provider.requests) == 2
    assert [event.type for event in events].count("resend.scheduled") == 1


async def test_a_refused_stream_that_no_budget_is_left_for_ends_the_run_with_its_error() -> None:
    """(R95)"""
    provider = ScriptedProvider([cut()] * 9)
    agent = al.Agent(name="a", limits=al.LoopLimits(max_model_calls=2))
    policy = al.ResendPolicy(max_resends=8, on_refused_stream=True)
    async with al.Runtime(provider, resend=policy, sleep=Naps()) as runtime:
        with pytest.raises(al.StreamRefused):
            await runtime.run(agent, "go", run_id="r")
        await check_end(runtime, "r", "failed", "truncated")
    assert len(provider.requests) == 2


async def test_the_last_error_is_raised_when_nobody_is_left_to_ask() -> None:
    second = ScriptedProvider([al.ConnectionFailed("no")])
    policy = al.ResendPolicy(max_resends=0, fallbacks=(second,))
    async with al.Runtime(ScriptedProvider([too_many()]), resend=policy) as runtime:
        with pytest.raises(al.ConnectionFailed):
            await runtime.run(AGENT, "go", run_id="r")
        await check_end(runtime, "r", "failed", "connection_failed")


@pytest.mark.parametrize("error", [al.ConnectionFailed("of another"), too_many(), unavailable(), cut()])
@pytest.mark.parametrize("at", ["model.start", "model.output", "model.parsed"])
async def test_an_error_of_a_sink_sends_nothing_again(error: al.AgentLoopError, at: str) -> None:
    """(R114)"""

    class Sink:
        async def emit(self, event: al.OutputEvent) -> None:
            if event.type == at:
                raise error

    provider = ScriptedProvider([reply("hi")] * 2)
    policy = al.ResendPolicy(on_unavailable=True, on_refused_stream=True)
    async with al.Runtime(provider, resend=policy, sleep=Naps()) as runtime:
        with pytest.raises(type(error)):
            await runtime.run(AGENT, "go", run_id="r", sink=Sink())
        events = await check_end(runtime, "r", "failed", error.code)
    assert [event.type for event in events].count("model.start") == 1


@pytest.mark.parametrize("error", [too_many(), unavailable(), cut()])
async def test_previews_that_were_shown_rule_a_resend_out(error: al.AgentLoopError) -> None:
    """(R267)"""
    provider = ScriptedProvider([broken(reply("half"), error), reply("done")])
    policy = al.ResendPolicy(on_unavailable=True, on_refused_stream=True)
    async with al.Runtime(provider, resend=policy, sleep=Naps()) as runtime:
        with pytest.raises(type(error)):
            await runtime.run(AGENT, "go")
    assert len(provider.requests) == 1


# -- fallbacks


class Closing(ScriptedProvider):
    """Counts how often it is closed."""

    closed = 0

    async def aclose(self) -> None:
        self.closed += 1


async def test_fallbacks_are_closed_with_the_runtime() -> None:
    providers = [Closing([]) for _ in range(3)]
    async with al.Runtime(providers[0], resend=al.ResendPolicy(fallbacks=tuple(providers[1:]))):
        pass
    assert [provider.closed for provider in providers] == [1, 1, 1]


async def test_the_next_reply_is_asked_of_the_first_provider_again() -> None:
    first = ScriptedProvider([too_many(), reply("done")], model="m-1")
    second = ScriptedProvider([reply(calls=[call("ping")])], model="m-2", dialect="groq")
    async with al.Runtime(first, resend=al.ResendPolicy(max_resends=0, fallbacks=(second,))) as runtime:
        result = await runtime.run(AGENT, "go")
        events = await check_end(runtime, result.ref, "completed")
        models = [fact.model for fact in await facts_of(runtime) if isinstance(fact, SendStarted)]
    assert models == ["m-1", "m-2", "m-1"]
    starts = [(e.model, e.dialect) for e in events if isinstance(e, al.ModelStart)]
    assert starts == [("m-1", "openai"), ("m-2", "groq"), ("m-1", "openai")]


async def test_a_fallback_has_its_own_ceiling_of_a_request() -> None:
    """(R103)"""
    second = ScriptedProvider([reply("never")], max_request_bytes=20)
    policy = al.ResendPolicy(max_resends=0, fallbacks=(second,))
    async with al.Runtime(ScriptedProvider([too_many()]), resend=policy) as runtime:
        result = await runtime.run(AGENT, "go")
        await check_end(runtime, result.ref, "limit_reached", "max_request_bytes")
    assert second.requests == []


async def test_room_for_the_next_request_is_judged_as_its_own_provider_encodes_it() -> None:
    """(R103)"""
    second = ScriptedProvider([reply(calls=[call("ping")])], model="a model with a much longer name")
    stage = Stage([too_many()], tools=[ping], max_request_bytes=10_000)
    scope = await stage.open(resend=al.ResendPolicy(max_resends=0, fallbacks=(second,)))
    for _ in range(3):
        await advance(scope)
    request = second.requests[0]
    assert scope.sent_bytes == stage.provider.inspect_request(request).body_bytes
    assert scope.sent_bytes < second.inspect_request(request).body_bytes


def test_anything_but_a_policy_is_refused() -> None:
    with pytest.raises(al.InputError, match=r"^Runtime\.resend: expected a ResendPolicy, got dict$"):
        al.Runtime(ScriptedProvider([]), resend={"max_resends": 1})  # type: ignore[arg-type]


# -- while it waits


async def test_a_cancel_ends_the_wait() -> None:
    """(R62)"""
    nap = Endless()
    provider = ScriptedProvider([too_many(), reply("never")])
    async with al.Runtime(provider, resend=al.ResendPolicy(), sleep=nap) as runtime:
        ref = await runtime.submit(AGENT, "go")
        await nap.begun.wait()
        await runtime.cancel(ref)
        events = await check_end(runtime, ref, "cancelled", "cancelled")
        assert [event.type for event in events][-2:] == ["resend.scheduled", "run.ended"]
    assert len(provider.requests) == 1
    assert other_tasks() == set()


async def test_the_clock_of_the_run_ends_the_wait() -> None:
    """(R102)"""
    provider = ScriptedProvider([too_many(), reply("never")])
    agent = al.Agent(name="a", limits=al.LoopLimits(max_seconds=0.05))
    async with al.Runtime(provider, resend=al.ResendPolicy(), sleep=Endless()) as runtime:
        result = await runtime.run(agent, "go")
        await check_end(runtime, result.ref, "limit_reached", "max_seconds")
    assert len(provider.requests) == 1


async def test_closing_ends_the_wait_of_a_run_of_this_process() -> None:
    nap = Endless()
    provider = ScriptedProvider([too_many(), reply("never")])
    async with al.Runtime(provider, resend=al.ResendPolicy(), sleep=nap) as runtime:
        ref = await runtime.submit(AGENT, "go")
        await nap.begun.wait()
    with pytest.raises(al.RunCancelled):
        await runtime.result(ref)
    assert len(provider.requests) == 1


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_closing_ends_the_wait_of_a_kept_run_at_once_and_leaves_it_unfinished(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ground, nap = Ground(tmp_path / "store.db" if kind == "sqlite" else None), Endless()
    async with ground.runtime(ScriptedProvider([too_many()]), resend=al.ResendPolicy(), sleep=nap) as runtime:
        ref = await runtime.submit(AGENT, "go", run_id="r")
        await nap.begun.wait()
        with caplog.at_level(logging.WARNING, logger="agentloop"):
            await runtime.aclose()
    assert caplog.records == []
    with pytest.raises(al.RunPaused):
        await runtime.result(ref)
    events = await follow_all(runtime, ref)
    assert isinstance(events[-1], al.RunEnded)
    assert events[-1].outcome == "paused"
    facts = await ground.facts()
    assert type(facts[-1]) is SendEnded
    naps = Naps()
    async with ground.runtime(
        ScriptedProvider([reply("done")]), resend=al.ResendPolicy(), sleep=naps, random=lambda: 1.0
    ) as again:
        result = await again.resume("r", AGENT)
        told = [event.type for event in await follow_all(again, "r")]
    assert (result.text, result.model_calls, naps.seconds) == ("done", 2, [0.5])
    assert told[:3] == ["run.started", "resend.scheduled", "model.start"]


# -- when the process dies

OPENED, CLAIMED, REFUSED, CLAIMED_AGAIN = 1, 2, 3, 4


async def refused_and_died(ground: Ground, error: Any, at: int, when: Any, **options: Any) -> None:
    """A run ``r`` whose process died after its first attempt was refused."""
    provider = ScriptedProvider([error, reply("never stored")], model="m-1")
    async with ground.mortal(provider, at=at, when=when, **options) as (runtime, medium):
        task = asyncio.ensure_future(runtime.run(AGENT, "go", run_id="r"))
        await medium.dead.wait()
        assert len(provider.requests) == 1
    with pytest.raises((al.AgentLoopError, asyncio.CancelledError)):
        await task
    ground.clock.advance(60)


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


@pytest.mark.parametrize(("at", "when"), [(REFUSED, "after"), (CLAIMED_AGAIN, "before")])
async def test_a_run_whose_process_died_between_two_attempts_goes_on_by_the_policy(
    ground: Ground, at: int, when: str
) -> None:
    """(R142)"""
    policy, naps = al.ResendPolicy(), Naps()
    await refused_and_died(ground, too_many(2.5), at, when, resend=policy, sleep=Naps())
    provider = ScriptedProvider([too_many(), reply("done")], model="m-1")
    async with ground.runtime(provider, resend=policy, sleep=naps, random=lambda: 1.0) as runtime:
        result = await runtime.resume("r", AGENT)
    assert (result.text, result.model_calls) == ("done", 3)
    assert naps.seconds == [2.5, 1.0]
    provider.assert_complete()
    facts = await ground.facts()
    ends = [(fact.outcome, fact.status) for fact in facts if isinstance(fact, SendEnded)]
    assert ends[:2] == [("failed", 429), ("failed", 429)]
    assert isinstance(facts[-2], ReplyTaken)
    assert isinstance(facts[-1], RunClosed)


async def test_a_refused_stream_is_asked_for_again_after_the_process_died_unless_it_was_seen(ground: Ground) -> None:
    """(R142)"""
    policy = al.ResendPolicy(on_refused_stream=True)
    await refused_and_died(ground, cut(), CLAIMED_AGAIN, "before", resend=policy, sleep=Naps())
    provider = ScriptedProvider([broken(reply("half"), cut()), reply("never")], model="m-1")
    async with ground.runtime(provider, resend=policy, sleep=Naps()) as runtime:
        with pytest.raises(al.StreamRefused):
            await runtime.resume("r", AGENT)
    assert len(provider.requests) == 1
    ends = [(fact.stream_refused, fact.previewed) for fact in await ground.facts() if isinstance(fact, SendEnded)]
    assert ends == [(True, False), (True, True)]


async def test_it_goes_on_with_the_fallback_that_was_next(ground: Ground) -> None:
    first, second = ScriptedProvider([]), ScriptedProvider([reply("done")], model="m-2")
    policy = al.ResendPolicy(max_resends=0, fallbacks=(second,))
    await refused_and_died(ground, too_many(), REFUSED, "after", resend=policy)
    async with ground.runtime(first, resend=policy) as runtime:
        result = await runtime.resume("r", AGENT)
    assert (result.text, first.requests, len(second.requests)) == ("done", [], 1)
    assert [fact.model for fact in await ground.facts() if isinstance(fact, SendStarted)] == ["m-1", "m-2"]


@pytest.mark.parametrize(
    ("error", "resend"),
    [
        (too_many(), None),
        (too_many(), al.ResendPolicy(on_rate_limit=False)),
        (too_many(), al.ResendPolicy(max_resends=0)),
        (too_many(99), al.ResendPolicy()),
        (unavailable(), al.ResendPolicy()),
        (al.SendTimeout("late", code="total_timeout"), al.ResendPolicy(on_unavailable=True)),
        (al.HTTPStatusError("HTTP 401", status=401), al.ResendPolicy(on_unavailable=True)),
        (cut(), al.ResendPolicy(on_unavailable=True)),
        (broken(reply("half"), cut()), al.ResendPolicy(on_refused_stream=True)),
    ],
)
async def test_it_ends_with_its_error_where_the_policy_of_the_day_says_so(
    ground: Ground, error: Any, resend: al.ResendPolicy | None
) -> None:
    """(R142)"""
    await refused_and_died(ground, error, REFUSED, "after", resend=al.ResendPolicy(on_unavailable=True), sleep=Naps())
    provider = ScriptedProvider([reply("never")])
    async with ground.runtime(provider, resend=resend, sleep=Naps()) as runtime:
        with pytest.raises(al.OutcomeError) as caught:
            await runtime.resume("r", AGENT)
    assert (caught.value.outcome, caught.value.reason) == ("failed", getattr(error, "error", error).code)
    assert provider.requests == []


async def test_an_attempt_whose_claim_stands_alone_is_never_sent_again(ground: Ground) -> None:
    """(R114, R133)"""
    policy = al.ResendPolicy(on_unavailable=True)
    await refused_and_died(ground, too_many(), CLAIMED_AGAIN, "after", resend=policy, sleep=Naps())
    provider = ScriptedProvider([reply("done")])
    async with ground.runtime(provider, resend=policy, sleep=Naps()) as runtime:
        with pytest.raises(al.UnsettledError) as caught:
            await runtime.resume("r", AGENT)
        assert provider.requests == []
        await runtime.settle_send("r", caught.value.sends[0], author="Ann")
        assert (await runtime.resume("r", AGENT)).text == "done"


# -- sends that live apart from whoever waits for them


def held(answer: Any) -> tuple[Any, asyncio.Event, asyncio.Event]:
    """An entry of a script that gives ``answer`` when it is told to; set when it was asked; what tells it."""
    asked, go = asyncio.Event(), asyncio.Event()

    async def entry(request: al.ModelRequest) -> Any:
        asked.set()
        await go.wait()
        return answer

    return entry, asked, go


async def test_a_send_that_was_left_and_refused_is_sent_once_more_by_whoever_takes_the_run_up(ground: Ground) -> None:
    """(R141)"""
    entry, _, go = held(too_many(2.0))
    provider, naps = ScriptedProvider([entry, too_many(), reply("done")]), Naps()
    async with ground.runtime(provider, resend=al.ResendPolicy(), sleep=naps, random=lambda: 1.0) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=0.02)
        pending = runtime._runs.sends.of("r")
        assert pending is not None
        go.set()
        await asyncio.wait({pending.task})
        assert len(provider.requests) == 1
        result = await runtime.resume("r", AGENT)
    assert (result.text, result.model_calls, naps.seconds) == ("done", 3, [2.0, 1.0])


@pytest.mark.parametrize("error", [al.ConnectionFailed("of another"), too_many(), unavailable()])
async def test_an_error_of_a_sink_says_nothing_of_a_send_under_way(ground: Ground, error: al.ProviderError) -> None:
    """(R114, R141)"""

    class Sink:
        async def emit(self, event: al.OutputEvent) -> None:
            raise error

    entry, _, _ = held(reply("never"))
    provider = ScriptedProvider([entry, reply("never")])
    policy = al.ResendPolicy(on_unavailable=True)
    async with ground.runtime(provider, resend=policy, sleep=Naps()) as runtime:
        with pytest.raises(al.ModelPending):
            await runtime.run(AGENT, "go", run_id="r", checkpoint=True, wait=0.02)
        with pytest.raises(type(error)):
            await runtime.resume("r", AGENT, sink=Sink())
    assert len(provider.requests) == 1
    (end,) = [fact for fact in await ground.facts() if isinstance(fact, SendEnded)]
    assert (end.outcome, end.may_have_been_processed, end.status) == ("abandoned", True, None)
