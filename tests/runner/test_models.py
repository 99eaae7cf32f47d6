"""Several models of one runner: who is asked, who is turned to after a refusal, and one budget for all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.errors import BudgetError, ConnectionFailed, ConnectionLost, HTTPStatusError, InputError, StreamRefused
from agentloop.exchange import SendEnded, SendStarted
from agentloop.testing import FakeClock, RecordingSink, ScriptedProvider, broken, reply
from agentloop.wire.presets import dialect

REFUSED = StreamRefused("missing_done", 3, 99, "[DONE]", "the end")
BUSY = HTTPStatusError("HTTP 429", status=429, may_have_been_processed=False)


def models(**scripts: Any) -> dict[str, ScriptedProvider]:
    return {name: ScriptedProvider(script, model=f"{name}-1") for name, script in scripts.items()}


def made_of(providers: dict[str, ScriptedProvider], **options: Any) -> al.ModelRunner:
    others = {name: provider for name, provider in providers.items() if name != "default"}
    return al.ModelRunner(providers["default"], models=others, **options)


def asked(providers: dict[str, ScriptedProvider]) -> dict[str, int]:
    return {name: len(provider.requests) for name, provider in providers.items()}


# -- names


async def test_a_call_names_its_model_and_all_share_one_budget() -> None:
    """(R240, R255)"""
    sink = RecordingSink()
    providers = models(default=[reply("a")], fast=[reply("b"), reply("c")])
    made = made_of(providers, max_calls=3, sink=sink)
    results = [await made.invoke("q"), await made.invoke("q", model_id="fast", stage_id="triage")]
    results.append(await made.child().invoke("q", model_id="fast"))
    told = [
        (result.value, result.invocation.model_id, result.invocation.model, result.invocation.stage_id)
        for result in results
    ]
    assert told == [
        ("a", "default", "default-1", "model"),
        ("b", "fast", "fast-1", "triage"),
        ("c", "fast", "fast-1", "model"),
    ]
    assert [(event.model_id, event.model) for event in sink.of(al.ModelStart)] == [
        ("default", "default-1"),
        ("fast", "fast-1"),
    ]
    with pytest.raises(BudgetError, match="model_calls"):
        await made.invoke("q", model_id="fast")
    assert asked(providers) == {"default": 1, "fast": 2}


async def test_a_handle_has_its_model() -> None:
    """(R240, R247)"""
    providers = models(default=[], fast=[reply("b")])
    made = made_of(providers)
    prepared = made.prepare(model_id="fast")
    assert prepared.model_id == "fast"
    with pytest.raises(InputError, match="invoke: expected prepared= alone"):
        await made.invoke("q", prepared=prepared, model_id="default")  # type: ignore[call-overload]
    assert (await made.invoke("q", prepared=prepared)).invocation.model_id == "fast"


async def test_one_model_has_no_name_and_a_name_that_is_none_is_refused() -> None:
    """(R255)"""
    provider = ScriptedProvider([reply("a")])
    made = al.ModelRunner(provider)
    with pytest.raises(InputError, match="model_id: expected one of no name: there is one model, got 'default'"):
        await made.invoke("q", model_id="default")
    assert (await made.invoke("q")).invocation.model_id is None
    several = made_of(models(default=[], fast=[]))
    with pytest.raises(InputError, match="model_id: expected one of default, fast, got 'slow'"):
        several.prepare(model_id="slow")


async def test_a_value_is_asked_for_as_the_named_server_can() -> None:
    number = al.Structured(int)
    plain = ScriptedProvider([reply('{"value":2}')], dialect=_without_schema())
    providers = {"default": ScriptedProvider([reply('{"value":1}')]), "plain": plain}
    made = made_of(providers, transports=(number,))
    by_schema, by_text = [await made.invoke("q", transport=number, model_id=name) for name in ("default", "plain")]
    assert (by_schema.value, by_text.value) == (1, 2)
    assert by_schema.invocation.route == "json_schema"
    assert by_text.invocation.route == "json_text"


def _without_schema() -> Any:
    return msgspec.structs.replace(dialect("openai"), json_schema=False, forced_call=False)


# -- who is turned to


@pytest.mark.parametrize("refusal", [ConnectionFailed("no"), BUSY, broken(reply(""), REFUSED)])
async def test_the_next_model_is_asked_when_the_first_did_nothing(refusal: Any) -> None:
    """(R211, R240, R255)"""
    sink, observer = RecordingSink(), RecordingSink()
    providers = models(default=[refusal], fast=[refusal], last=[reply("c", usage=(2, 1))])
    policy = al.ResendPolicy(max_resends=0, on_refused_stream=True)
    made = made_of(providers, fallback=["fast", "last"], resend=policy, max_calls=3, sink=sink, observers=[observer])
    prepared = made.prepare()
    result = await made.invoke("q", prepared=prepared)
    await made.aclose()
    assert (result.value, result.invocation.model_id, result.invocation.model) == ("c", "last", "last-1")
    assert result.invocation.call_sequence == 3
    assert (made.call_count, made.remaining_calls, prepared.used) == (3, 0, True)
    assert asked(providers) == {"default": 1, "fast": 1, "last": 1}
    starts, ends = sink.of(al.ModelStart), sink.of(al.ModelEnd)
    assert [(event.model_id, event.call_sequence) for event in starts] == [("default", 1), ("fast", 2), ("last", 3)]
    assert [end.status for end in ends] == ["error", "error", "success"]
    assert [trace.model_id for trace in made.journal.model] == ["default", "fast", "last"]
    assert [event.model for event in observer.of(al.ResendScheduled)] == ["fast-1", "last-1"]
    requests = [provider.requests[0] for provider in providers.values()]
    assert requests[0] == requests[1] == requests[2]
    (row,) = await made._host.store.runs()
    facts = await made._host.store._backend.load_run(row.run_id)
    assert [fact.model for fact in facts if isinstance(fact, SendStarted)] == ["default-1", "fast-1", "last-1"]
    assert [fact.outcome for fact in facts if isinstance(fact, SendEnded)] == ["failed", "failed", "replied"]


@pytest.mark.parametrize(
    ("answer", "policy"),
    [
        (ConnectionFailed("no"), None),
        (ConnectionFailed("no"), al.ResendPolicy(on_connection_failed=False)),
        (ConnectionLost("gone"), al.ResendPolicy(on_refused_stream=True, on_unavailable=True)),
        (HTTPStatusError("HTTP 500", status=500), al.ResendPolicy(on_unavailable=True)),
        (HTTPStatusError("HTTP 503", status=503), al.ResendPolicy()),
        (broken(reply(""), REFUSED), al.ResendPolicy()),
        (broken(reply("seen"), REFUSED), al.ResendPolicy(on_refused_stream=True)),
        (reply("cut", finish="length"), al.ResendPolicy(on_refused_stream=True)),
    ],
)
async def test_nobody_else_is_asked_about_what_may_have_been_done_or_was_seen(
    answer: Any, policy: al.ResendPolicy | None
) -> None:
    """(R211)"""
    providers = models(default=[answer], fast=[reply("b")])
    made = made_of(providers, resend=policy, fallback=["fast"] if policy else [])
    with pytest.raises((al.ProviderError, StreamRefused, al.OutputRefused)):
        await made.invoke("q")
    assert asked(providers) == {"default": 1, "fast": 0}
    assert made.call_count == 1


async def test_a_model_is_asked_again_before_the_next_one_as_often_as_its_policy_says() -> None:
    clock = FakeClock()
    no = ConnectionFailed("no")
    default, fast = ScriptedProvider([no, no], model="a"), ScriptedProvider([no, reply("b")], model="b")
    async with al.Runtime(default, sleep=clock.sleep, random=lambda: 0.0) as runtime:
        made = runtime.runner(models={"fast": fast}, fallback=["fast"], resend=al.ResendPolicy(max_resends=1))
        result = await made.invoke("q")
    assert (result.value, result.invocation.model_id, result.invocation.call_sequence) == ("b", "fast", 4)
    assert [trace.model_id for trace in made.journal.model] == ["default", "default", "fast", "fast"]


async def test_attempts_are_charged_and_end_with_the_budget() -> None:
    """(R211)"""
    providers = models(default=[ConnectionFailed("first")], fast=[ConnectionFailed("second")], last=[reply("c")])
    made = made_of(providers, fallback=["fast", "last"], resend=al.ResendPolicy(max_resends=0), max_calls=2)
    with pytest.raises(ConnectionFailed, match="second"):
        await made.invoke("q")
    assert asked(providers) == {"default": 1, "fast": 1, "last": 0}
    assert (made.call_count, made.remaining_calls) == (2, 0)


async def test_the_next_call_asks_the_first_model_again() -> None:
    providers = models(default=[ConnectionFailed("no"), reply("a")], fast=[reply("b")])
    made = made_of(providers, fallback=["fast"], resend=al.ResendPolicy(max_resends=0))
    assert [(await made.invoke("q")).invocation.model_id for _ in range(2)] == ["fast", "default"]


async def test_a_collector_is_made_anew_for_each_attempt() -> None:
    made_collectors = []

    class Once:
        id = "once"

        def prepare(self, stage: al.Stage, /) -> al.Interaction[str]:
            plain = al.PlainText().prepare(stage)

            def create() -> Any:
                made_collectors.append(plain.create_response())
                return made_collectors[-1]

            return al.Interaction(create_response=create, route="text")

    providers = models(default=[ConnectionFailed("no")], fast=[reply("b")])
    once = Once()
    made = made_of(providers, fallback=["fast"], resend=al.ResendPolicy(max_resends=0), transports=(once,))
    assert (await made.invoke("q", transport=once)).value == "b"
    assert [collector.output_chars for collector in made_collectors] == [0, 1]


async def test_a_request_that_the_next_model_cannot_take_ends_the_call_there() -> None:
    small = ScriptedProvider([reply("b")], max_request_bytes=300)
    providers = {**models(default=[ConnectionFailed("no")]), "small": small}
    made = made_of(providers, fallback=["small"], resend=al.ResendPolicy(max_resends=0))
    with pytest.raises(al.LimitExceeded, match="max_request_bytes: allowed 300"):
        await made.invoke("x" * 500)
    assert (asked(providers), made.call_count) == ({"default": 1, "small": 0}, 1)
    (row,) = await made._host.store.runs()
    assert row.outcome == "limit_reached"
