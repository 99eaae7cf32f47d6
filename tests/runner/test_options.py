"""What a runner is made of: numbers and their ranges, transports, models, and what is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop import limits
from agentloop.errors import InputError
from agentloop.limits import SAFE_INTEGER
from agentloop.runner.options import Models, RunnerOptions, checked_ledger, per_call, registry
from agentloop.testing import RecordingSink, ScriptedProvider

COUNTS = (
    # option, constant, default, least, whether math.inf is one
    ("max_calls", "MAX_RUNNER_CALLS", 8, 0, False),
    ("max_input_chars", "MAX_INPUT_CHARS", 32_000, 0, True),
    ("max_output_chars", "MAX_OUTPUT_CHARS", 16_000, 0, True),
    ("max_schema_chars", "MAX_SCHEMA_CHARS", 16_000, 1, False),
    ("max_output_tokens", "MAX_OUTPUT_TOKENS", 1_024, 1, False),
)


def runner(**options: Any) -> al.ModelRunner:
    return al.ModelRunner(ScriptedProvider([]), **options)


def default_of(option: str) -> float | None:
    """What a runner without options has there."""
    bounds = per_call({})
    return {
        "max_calls": checked_ledger({}).granted("model_calls"),
        "max_input_chars": bounds.sizes.max_input_chars,
        "max_output_chars": bounds.sizes.max_output_chars,
        "max_schema_chars": bounds.sizes.max_schema_chars,
        "max_output_tokens": bounds.options.max_output_tokens,
    }[option]


@pytest.mark.parametrize(("option", "constant", "default", "least", "endless"), COUNTS)
def test_the_numbers_and_where_they_stand(option: str, constant: str, default: int, least: int, endless: bool) -> None:
    """(R226, R228, R229, R230, R231)"""
    assert getattr(limits, constant) == default
    assert default_of(option) == default


def test_a_call_has_thirty_seconds() -> None:
    """(R227)"""
    assert limits.CALL_TIMEOUT == 30.0
    assert per_call({}).timeout == 30.0


@pytest.mark.parametrize(("option", "constant", "default", "least", "endless"), COUNTS)
def test_counts_have_their_ranges(option: str, constant: str, default: int, least: int, endless: bool) -> None:
    """(R232)"""
    for good in (least, 1, default, SAFE_INTEGER, *([math.inf] if endless else [])):
        runner(**{option: good})
    bad = [least - 1, SAFE_INTEGER + 1, 1.0, 1.5, math.nan, -math.inf, True, "1", None]
    for value in [*bad, *([] if endless else [math.inf])]:
        with pytest.raises(InputError, match=rf"^ModelRunner\.{option}: expected an integer from {least} to "):
            runner(**{option: value})


def test_the_time_of_a_call_has_its_range() -> None:
    """(R232)"""
    for good in (0.001, 1, 30.0, 2_147_483.647):
        assert per_call({"call_timeout": good}).timeout == good
    for bad in (0, -1, 0.0005, 2_147_483.648, math.inf, math.nan, True, None, "1"):
        with pytest.raises(InputError, match=r"^ModelRunner\.call_timeout: "):
            runner(call_timeout=bad)


@given(number=st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=3), st.none()))
def test_whatever_comes_is_in_the_range_or_refused_by_name(number: Any) -> None:
    """(R232)"""
    for option, _, _, least, endless in COUNTS:
        fits = (type(number) is int and least <= number <= SAFE_INTEGER) or (
            endless and type(number) is float and number == math.inf
        )
        if fits:
            runner(**{option: number})
        else:
            with pytest.raises(InputError, match=option):
                runner(**{option: number})


def test_a_runner_takes_a_provider_and_known_options() -> None:
    """(R206)"""
    made = runner(transports=(), execution=al.Execution(), max_calls=3)
    assert made.remaining_calls == 3
    with pytest.raises(InputError, match=r"^ModelRunner\.provider: expected a Provider, got str$"):
        al.ModelRunner("http://…")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^ModelRunner: expected the options transports, .*, got 'max_call'$"):
        runner(max_call=3)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"options": {"temperature": 0}}, "ModelRunner.options: expected ModelOptions, got dict"),
        (
            {"options": al.ModelOptions(max_output_tokens=5)},
            "ModelRunner.options: expected no max_output_tokens, which the runner has by itself",
        ),
        ({"reasoning": 1}, "ModelRunner.reasoning: expected bool, got int"),
        ({"execution": al.Ledger()}, "ModelRunner.execution: expected Execution, got Ledger"),
        ({"children": 3}, "ModelRunner.children: expected ChildLimits, got int"),
        ({"ledger": 3}, "ModelRunner.ledger: expected Ledger, got int"),
        ({"token_budget": 3}, "ModelRunner.token_budget: expected TokenBudget, got int"),
        ({"max_tokens": -1}, f"ModelRunner.max_tokens: expected an integer from 0 to {SAFE_INTEGER}, got -1"),
        ({"sink": 3}, "ModelRunner.sink: expected an object with an async emit(event), got int"),
        ({"resend": 3}, "ModelRunner.resend: expected a ResendPolicy, got int"),
        ({"observers": [3]}, "ModelRunner.observers[0]: expected an object with an async observe(event), got int"),
        ({"observers": 3}, "ModelRunner.observers: expected a list of observers, got int"),
    ],
)
def test_an_option_of_another_type_is_refused_by_name(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=f"^{re.escape(expected)}$"):
        runner(**options)


def test_what_binds_a_request_has_known_types() -> None:
    with pytest.raises(InputError, match=r"^Execution\.signal: expected Signal or None, got int$"):
        al.Execution(signal=3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^ModelRunner\.sink: expected none beside diagnostics"):
        runner(execution=al.Execution(diagnostics=al.Diagnostics()), sink=RecordingSink())


# -- transports


class Named:
    """A transport of one's own."""

    def __init__(self, id: Any) -> None:
        self.id = id

    def prepare(self, stage: al.Stage, /) -> al.Interaction[str]:
        return al.PlainText().prepare(stage)


def test_plain_text_alone_is_there_where_nothing_was_given() -> None:
    """(R209)"""
    assert list(registry(())) == ["core:plain-text"]
    assert list(registry([Named("a"), Named("b")])) == ["a", "b", "core:plain-text"]


@pytest.mark.parametrize(
    ("transports", "expected"),
    [
        ([Named("a"), Named("a")], "transports[1].id: expected unique ids, got 'a' twice"),
        ([al.PlainText(), al.PlainText()], "transports[1].id: expected unique ids, got 'core:plain-text' twice"),
        (
            [Named("core:plain-text")],
            "transports[0].id: expected another id than 'core:plain-text', which is plain text",
        ),
        ([Named("")], "transports[0].id: expected a string of 1 to 128 characters, got 0 characters"),
        ([Named("x" * 129)], "transports[0].id: expected a string of 1 to 128 characters, got 129 characters"),
        ([Named(3)], "transports[0].id: expected a string of 1 to 128 characters, got int"),
        ([Named("\ud800")], "transports[0].id: expected text that UTF-8 can encode, got a lone surrogate"),
        ([al.PlainText], "transports[0]: expected a transport, got type"),
        (["core:plain-text"], "transports[0]: expected a transport, got str"),
        ("core:plain-text", "transports: expected a sequence of transports, got str"),
        ({"a": Named("a")}, "transports: expected a sequence of transports, got dict"),
    ],
)
def test_ids_are_unique_and_transports_are_some(transports: Any, expected: str) -> None:
    """(R209)"""
    with pytest.raises(InputError) as caught:
        runner(transports=transports)
    assert str(caught.value) == expected


async def test_plain_text_that_was_given_is_the_one_that_is_registered() -> None:
    """(R209)"""
    own = al.PlainText()
    assert registry([own])["core:plain-text"] is own


# -- several models


def models(**given: Any) -> Models:
    options: RunnerOptions = {"resend": al.ResendPolicy(), **given}  # type: ignore[typeddict-item]
    return Models(ScriptedProvider([], model="own"), options)


def test_models_are_found_by_name() -> None:
    """(R240)"""
    alone = models()
    assert (alone.name(None), alone.provider(None).model) == (None, "own")
    fast = ScriptedProvider([], model="fast")
    several = models(models={"fast": fast})
    assert several.name(None) == "default"
    assert several.provider("fast") is fast
    assert several.provider("default").model == "own"
    with pytest.raises(InputError, match="model_id: expected one of default, fast, got 'slow'"):
        several.name("slow")
    with pytest.raises(InputError, match="model_id: expected one of no name: there is one model, got 'fast'"):
        alone.name("fast")


def test_where_a_call_goes_after_a_refusal_is_an_order_of_names() -> None:
    fast, last = ScriptedProvider([], model="fast"), ScriptedProvider([], model="last")
    several = models(models={"fast": fast, "last": last}, fallback=["last", "default"])
    names, policy = several.asked("default")
    assert names == ("default", "last")
    assert policy is not None
    assert policy.fallbacks == (last,)
    names, policy = several.asked("fast")
    assert names == ("fast", "last", "default")
    assert policy is not None
    assert [provider.model for provider in policy.fallbacks] == ["last", "own"]
    names, policy = several.asked("last")
    assert names == ("last", "default")
    assert models().asked(None)[0] == ()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"models": [1]}, "ModelRunner.models: expected names with providers, got list"),
        (
            {"models": {"default": 1}},
            "ModelRunner.models: expected other names than 'default', which is the runner's own",
        ),
        ({"models": {"": 1}}, "ModelRunner.models: a name: expected a string of 1 to 128 characters, got 0 characters"),
        (
            {"models": {"\ud800": 1}},
            "ModelRunner.models: a name: expected text that UTF-8 can encode, got a lone surrogate",
        ),
        ({"models": {"a": 1}}, "ModelRunner.models['a']: expected a Provider, got int"),
        ({"fallback": "fast"}, "ModelRunner.fallback: expected a list of model names, got str"),
        ({"fallback": ["slow"]}, "ModelRunner.fallback: expected names of models=, got 'slow'"),
        ({"fallback": ["fast", "fast"]}, "ModelRunner.fallback: expected each name once"),
        (
            {"fallback": ["fast"], "resend": None},
            "ModelRunner.fallback: expected resend= with it, which says when one is turned to",
        ),
        (
            {"resend": al.ResendPolicy(fallbacks=(ScriptedProvider([]),))},
            "ModelRunner.resend: expected no fallbacks of its own beside models=; name them in fallback=",
        ),
    ],
)
def test_names_that_do_not_fit_together_are_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError) as caught:
        models(**{"models": {"fast": ScriptedProvider([])}, **given})
    assert str(caught.value) == expected
