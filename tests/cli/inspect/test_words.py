"""Times, sizes and states in words."""

from __future__ import annotations

import pytest

from agentloop.cli.inspect.words import clock, counted, cut, duration, size
from agentloop.views import RunView


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (None, "-"),
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1.0 s"),
        (59_949, "59.9 s"),
        (60_000, "1 min 00 s"),
        (3_599_999, "59 min 59 s"),
        (3_600_000, "1 h 00 min"),
        (48 * 3_600_000, "2 d 0 h"),
    ],
)
def test_a_span_has_the_unit_that_suits_it(ms: int | None, words: str) -> None:
    assert duration(ms) == words


def test_what_a_run_is_not_asked_with_is_counted_in_turns() -> None:
    assert cut(RunView(run_id="r")) is None
    assert cut(RunView(run_id="r", summarised=7, summaries=["s"])) == "with 1 summary of 7 turns (s)"
    both = RunView(run_id="r", left_out=2, summarised=1, summaries=[None])
    assert cut(both) == "without 2 turns, with 1 summary of 1 turn (the host)"


@pytest.mark.parametrize(
    ("count", "words"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1024**2, "1.0 MiB"), (5 * 1024**4, "5120.0 GiB")],
)
def test_sizes(count: int, words: str) -> None:
    assert size(count) == words


def test_clocks_far_away_are_still_told() -> None:
    assert clock(1_700_000_000_999) == "2023-11-14 22:13:20"
    assert clock(-1) == "1969-12-31 23:59:59"
    assert clock(10**20) == f"{10**20} ms"


def test_counts_are_grouped() -> None:
    assert (counted(1, "run"), counted(2000, "run")) == ("1 run", "2,000 runs")
