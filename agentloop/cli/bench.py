"""`agentloop bench FILE…`: what admitting recorded streams costs, in memory, beside bare decoding.

Each file is fed to a fresh assembler again and again, in blocks as a socket would give them. Rounds of
ours and of the floor (`floor.FloorReply`: the same bytes, no checks) alternate, so that both see
the same machine; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..errors import StreamRefused
from ..wire.assembler import ReplyAssembler
from ..wire.dialect import Dialect
from ..wire.presets import PRESET_NAMES, PRESETS, narrowest_first
from .floor import FloorReply

__all__ = ["Measurement", "add_parser", "measure", "run"]

_ROUNDS: Final = 7
_BLOCK: Final = 16 * 1024


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One file's result. Times are medians over the rounds; ``ratio`` is ours over the floor's.

    The floor's figures are None for a stream that bare decoding cannot read (its events span lines).
    """

    file: str
    dialect: str
    bytes: int
    events: int
    us_per_event: float
    events_per_s: int
    mb_per_s: float
    floor_us_per_event: float | None
    ratio: float | None


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "bench",
        help="measure the admission of recorded streams",
        description="Admits each recorded stream repeatedly in memory and prints events a second, microseconds an "
        "event and MB a second, beside the same bytes decoded without any check. Exit 0 when every file was "
        "measured, 1 when one is refused, 2 on wrong usage or a file that cannot be read.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recorded event stream")
    parser.add_argument(
        "--dialect",
        default="auto",
        metavar="NAME",
        help="a preset (default: auto, the narrowest that admits the stream)",
    )
    parser.add_argument("--seconds", type=_seconds, default=1.0, metavar="N", help="spent on each file (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object a file")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Measure every file; the exit status is described in the command's help."""
    if args.dialect != "auto" and args.dialect not in PRESETS:
        args.usage_error(f"--dialect: expected auto or one of {PRESET_NAMES}, got {args.dialect!r}")
    wanted = narrowest_first() if args.dialect == "auto" else (PRESETS[args.dialect],)
    status, rows = 0, []
    for name in args.files:
        try:
            with open(name, "rb") as file:
                body = file.read()
            rows.append(measure(name, body, wanted, seconds=args.seconds))
        except OSError as error:
            print(f"agentloop bench: {name}: {error.strerror or error}", file=sys.stderr)
            status = 2
        except StreamRefused as error:
            print(f"agentloop bench: {name}: {error}", file=sys.stderr)
            status = max(status, 1)
    if args.json:
        for row in rows:
            print(json.dumps(msgspec.to_builtins(row)))
    elif rows:
        _print_table(rows)
    return status


def measure(
    name: str,
    body: bytes,
    dialects: tuple[Dialect, ...],
    *,
    seconds: float = 1.0,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """Admit ``body`` repeatedly for about ``seconds`` under the first dialect that admits it.

    Raises:
        StreamRefused: none of them does; the first one's refusal.
    """
    dialect = _admitting(body, dialects)
    blocks = [body[at : at + _BLOCK] for at in range(0, len(body), _BLOCK)]
    events = _count_events(blocks, dialect)
    bare_blocks = _bare(blocks)
    ours: list[float] = []
    floor: list[float] = []
    part = seconds / (2 * _ROUNDS)
    for _ in range(_ROUNDS):
        ours.append(_time(lambda: _admit(blocks, dialect), part, clock))
        if bare_blocks:
            floor.append(_time(lambda: _decode(bare_blocks), part, clock))
    spent = statistics.median(ours)
    ratios = [mine / bare for mine, bare in zip(ours, floor, strict=False)]
    return Measurement(
        file=name,
        dialect=dialect.name,
        bytes=len(body),
        events=events,
        us_per_event=round(spent / events * 1e6, 2),
        events_per_s=round(events / spent),
        mb_per_s=round(len(body) / spent / 1e6, 1),
        floor_us_per_event=round(statistics.median(floor) / events * 1e6, 2) if floor else None,
        ratio=round(statistics.median(ratios), 2) if ratios else None,
    )


def _admitting(body: bytes, dialects: tuple[Dialect, ...]) -> Dialect:
    first, *others = dialects
    try:
        _admit([body], first)
    except StreamRefused:
        for dialect in others:
            try:
                _admit([body], dialect)
            except StreamRefused:
                continue
            return dialect
        raise  # the narrowest one's refusal says most
    return first


def _admit(blocks: list[bytes], dialect: Dialect) -> ReplyAssembler:
    assembler = ReplyAssembler(dialect, max_response_bytes=1 << 30, max_event_bytes=1 << 30)
    for block in blocks:
        assembler.feed(block)
    assembler.finish()
    return assembler


def _decode(blocks: list[bytes]) -> None:
    reply = FloorReply()
    for block in blocks:
        reply.feed(block)


def _bare(blocks: list[bytes]) -> list[bytes]:
    """The blocks as the floor reads them, with line feeds only; none when it cannot."""
    body = b"".join(blocks).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    bare = [body[at : at + _BLOCK] for at in range(0, len(body), _BLOCK)]
    try:
        _decode(bare)
    except msgspec.MsgspecError:
        return []
    return bare


def _count_events(blocks: list[bytes], dialect: Dialect) -> int:
    return max(1, _admit(blocks, dialect).progress)


def _time(work: Callable[[], object], seconds: float, clock: Callable[[], float]) -> float:
    """Seconds one ``work`` takes: repeated for ``seconds``, at least once."""
    gc.collect()
    times, began = 0, clock()
    while True:
        work()
        times += 1
        spent = clock() - began
        if spent >= seconds:
            return spent / times


def _print_table(rows: list[Measurement]) -> None:
    print(f"{'us/event':>9} {'floor':>7} {'ratio':>6} {'events/s':>10} {'MB/s':>7} {'events':>7}  {'dialect':<12} file")
    for row in rows:
        floor = "-" if row.floor_us_per_event is None else f"{row.floor_us_per_event:.2f}"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        print(
            f"{row.us_per_event:>9.2f} {floor:>7} {ratio:>6} {row.events_per_s:>10,} "
            f"{row.mb_per_s:>7.1f} {row.events:>7,}  {row.dialect:<12} {row.file}"
        )


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, up to 600, got {text!r}")
    return value
