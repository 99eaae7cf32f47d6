"""`python -m benchmarks [TOPIC …] [--json OUT] [--smoke]`: a table, and the same as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from . import (
    bench_assembler,
    bench_durable,
    bench_import,
    bench_loop,
    bench_request,
    bench_runner,
    bench_sse,
    bench_workflow,
)
from .measure import Row, Settings

__all__ = ["main"]

TOPICS: dict[str, Callable[[Settings], list[Row]]] = {
    "sse": bench_sse.measure,
    "assembler": bench_assembler.measure,
    "request": bench_request.measure,
    "loop": bench_loop.measure,
    "runner": bench_runner.measure,
    "workflow": bench_workflow.measure,
    "durable": bench_durable.measure,
    "import": bench_import.measure,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the topics and print what came out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Benchmarks on seeded data.")
    parser.add_argument("topics", nargs="*", metavar="TOPIC", help=f"{', '.join(TOPICS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default 7)")
    parser.add_argument("--json", metavar="OUT", help="write the rows there as well")
    parser.add_argument("--smoke", action="store_true", help="everything tiny: does it run? The numbers mean nothing")
    args = parser.parse_args(arguments)
    unknown = [topic for topic in args.topics if topic not in TOPICS]
    if unknown or args.rounds < 1:
        parser.error(f"no topic {', '.join(unknown)}" if unknown else "--rounds: expected 1 or more")
    settings = Settings(rounds=2, seconds=0.002, smoke=True) if args.smoke else Settings(rounds=args.rounds)
    where = machine()  # once: the load changes while it measures
    print(f"{where}\n{_line('topic', 'case', 'ours', 'low', 'high', 'floor', 'ratio', 'unit')}")
    rows: list[Row] = []
    for topic in args.topics or TOPICS:
        for row in TOPICS[topic](settings):
            rows.append(row)
            print(_row(row), flush=True)
    if args.json:
        report = {
            "machine": where,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "smoke": args.smoke,
            "rounds": settings.rounds,
            "rows": msgspec.to_builtins(rows),
        }
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")
    return 0


def machine() -> str:
    """One line about where the numbers come from."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} "
        f"{platform.machine()}, {_processor()} x{os.cpu_count()}{load}; msgspec {msgspec.__version__}"
    )


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def _row(row: Row) -> str:
    floor = "-" if row.floor is None else f"{row.floor:.2f}"
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
    return _line(row.topic, row.name, f"{row.ours:.2f}", f"{row.low:.2f}", f"{row.high:.2f}", floor, ratio, row.unit)


def _line(topic: str, name: str, ours: str, low: str, high: str, floor: str, ratio: str, unit: str) -> str:
    return f"{topic:<10} {name:<26} {ours:>9} {low:>9} {high:>9} {floor:>9} {ratio:>6}  {unit}"


if __name__ == "__main__":
    sys.exit(main())
