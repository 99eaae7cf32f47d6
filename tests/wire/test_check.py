"""Verdicts: one dialect, or the narrowest that admits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentloop.wire import LENIENT, OPENAI, PRESETS, check_stream, narrowest_first, narrowest_verdict
from agentloop.wire.check import Verdict
from tests.wire.quirks import QUIRKS
from tests.wire.streams import DONE, FIRST, HELLO, STOP, text


def test_a_verdict_has_either_a_reply_or_a_refusal() -> None:
    good, bad = check_stream(HELLO), check_stream(HELLO[:-1])
    assert (good.reply is None, good.refusal, good.dialect) == (False, None, "openai")
    assert (bad.reply, bad.refusal and bad.refusal.code, bad.dialect) == (None, "missing_done", "openai")


def test_a_verdict_is_frozen_and_given_by_name() -> None:
    verdict = check_stream(HELLO)
    with pytest.raises(AttributeError):
        verdict.reply = None  # type: ignore[misc]
    with pytest.raises(TypeError):
        Verdict(verdict.reply, None, "openai")  # type: ignore[misc]


def test_nothing_is_read_past_the_end_or_the_refusal() -> None:
    """R122."""

    def endless(*events: bytes) -> Iterator[bytes]:
        yield from events
        pytest.fail("read on")

    assert check_stream(endless(*HELLO)).reply is not None
    assert check_stream(endless(FIRST, b"junk\n\n")).refusal is not None
    assert narrowest_verdict(endless(*HELLO)).dialect == "openai"
    assert narrowest_verdict(endless(FIRST, b"junk\n\n")).refusal is not None


def test_an_endless_stream_is_refused_at_the_limit_whatever_is_looked_for() -> None:
    def endless() -> Iterator[bytes]:
        yield FIRST
        for _ in range(100):
            yield text("x" * 1_000)
        pytest.fail("read on")

    for verdict in (
        check_stream(endless(), max_response_bytes=50_000),
        narrowest_verdict(endless(), max_response_bytes=50_000),
    ):
        assert verdict.refusal is not None
        assert (verdict.refusal.code, verdict.refusal.limit) == ("oversized", "max_response_bytes")


@pytest.mark.parametrize("name", [name for name in QUIRKS if name != "finish_inferred"])
def test_the_narrowest_preset_is_the_first_that_admits(name: str) -> None:
    verdict = narrowest_verdict(QUIRKS[name].events)
    admitting = [preset.name for preset in narrowest_first() if check_stream(QUIRKS[name].events, preset).reply]
    assert verdict.dialect == admitting[0]
    assert verdict.reply == check_stream(QUIRKS[name].events, PRESETS[admitting[0]]).reply


def test_when_no_preset_admits_the_refusal_is_the_one_that_read_furthest() -> None:
    verdict = narrowest_verdict(QUIRKS["identity_late"].events[:3])
    assert verdict.refusal is not None
    assert (verdict.dialect, verdict.refusal.code) == ("lenient", "truncated")


@pytest.mark.parametrize("preset", narrowest_first(), ids=lambda preset: preset.name)
def test_what_any_preset_admits_the_widest_one_admits(preset: object) -> None:
    for quirk in QUIRKS.values():
        if check_stream(quirk.events, preset).reply is not None:  # type: ignore[arg-type]
            assert check_stream(quirk.events, LENIENT).reply is not None


def test_a_stream_without_a_finish_is_admitted_by_none() -> None:
    """R117."""
    assert narrowest_verdict([FIRST, text("Hi"), DONE]).refusal is not None
    assert narrowest_verdict([FIRST, text("Hi"), STOP, DONE]).dialect == "openai_no_usage"
    assert OPENAI.name == "openai"
