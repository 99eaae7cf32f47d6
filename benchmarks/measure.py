"""Timing in interleaved rounds: ours and a floor alternate, so both see the same machine.

Times are CPU seconds of this process, so that a busy neighbour adds little. A ratio is the median
over rounds of ours / floor in one round; single times move with the machine and say less.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import msgspec

__all__ = ["Row", "Settings", "compare", "sample"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How much to measure.

    Attributes:
        rounds: interleaved rounds. seconds: CPU seconds of one sample, at least one repetition.
        smoke: everything tiny; the numbers mean nothing then.
    """

    rounds: int = 7
    seconds: float = 0.25
    smoke: bool = False


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the table.

    Attributes:
        topic, name: what was measured. unit: of ``ours`` and ``floor``.
        ours, floor: medians over the rounds; ``floor`` is None where there is nothing to compare with.
        low, high: the least and the most of ours over the rounds.
        ratio: median over the rounds of ours / floor in the same round.
    """

    topic: str
    name: str
    unit: str
    ours: float
    low: float
    high: float
    floor: float | None = None
    ratio: float | None = None


def sample(work: Callable[[], object], seconds: float) -> float:
    """CPU seconds of one ``work``: repeated until ``seconds`` were spent, at least once."""
    gc.collect()
    times, began = 0, time.process_time()
    while True:
        work()
        times += 1
        spent = time.process_time() - began
        if spent >= seconds:
            return spent / times


def compare(
    topic: str,
    name: str,
    *,
    unit: str,
    scale: float,
    ours: Callable[[], object],
    floor: Callable[[], object] | None,
    settings: Settings,
) -> Row:
    """Measure ``ours`` beside ``floor``. A time times ``scale`` is in ``unit``."""
    mine: list[float] = []
    bare: list[float] = []
    ours()
    if floor is not None:
        floor()
    for _ in range(settings.rounds):
        mine.append(sample(ours, settings.seconds) * scale)
        if floor is not None:
            bare.append(sample(floor, settings.seconds) * scale)
    return Row(
        topic=topic,
        name=name,
        unit=unit,
        ours=statistics.median(mine),
        low=min(mine),
        high=max(mine),
        floor=statistics.median(bare) if bare else None,
        ratio=statistics.median(a / b for a, b in zip(mine, bare, strict=True)) if bare else None,
    )
