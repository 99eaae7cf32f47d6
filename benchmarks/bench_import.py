"""`import agentloop` in a fresh interpreter, beside importing what it depends on."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

from .measure import Row, Settings

__all__ = ["measure"]

_DEPENDENCIES = "import aiohttp, anyio, fastjsonschema, msgspec"


def measure(settings: Settings) -> list[Row]:
    """CPU milliseconds over a bare interpreter."""
    rounds = 1 if settings.smoke else settings.rounds
    for code in (_DEPENDENCIES, "import agentloop"):  # compiled files and the page cache are warm after this
        _cpu_ms(code)
    pairs = []
    for _ in range(rounds):
        bare = _cpu_ms("pass")
        pairs.append((max(_cpu_ms("import agentloop") - bare, 0.1), max(_cpu_ms(_DEPENDENCIES) - bare, 0.1)))
    mine = [ours for ours, _ in pairs]
    return [
        Row(
            topic="import",
            name="import agentloop",
            unit="ms",
            ours=statistics.median(mine),
            low=min(mine),
            high=max(mine),
            floor=statistics.median(floor for _, floor in pairs),
            ratio=statistics.median(ours / floor for ours, floor in pairs),
        )
    ]


def _cpu_ms(code: str) -> float:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3
