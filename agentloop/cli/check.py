"""``agentloop check``: admit recorded streams, or say why not."""

from __future__ import annotations

import argparse
import io
import json
import os
import stat
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

from ..messages.reply import ModelReply
from ..wire.call_text import CallText
from ..wire.check import Verdict, check_stream, narrowest_verdict
from ..wire.native import reasoning_text, refusal_text
from ..wire.presets import PRESET_NAMES, PRESETS
from ..wire.presets import dialect as preset
from .call_text import add_call_text, call_text
from .screen import counted

__all__ = ["add_parser", "run"]

_BLOCK: Final = 64 * 1024


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "check",
        help="admit recorded streams, or say why not",
        description="Checks recorded Chat Completions streams. Exit 0 when all are accepted, 1 when one is refused, "
        "2 on wrong usage, a file that cannot be read or output that cannot be written.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="a recorded event stream; - is standard input")
    parser.add_argument(
        "--dialect",
        metavar="NAME",
        help="a preset, or auto for the narrowest one that admits the stream (default: AGENTLOOP_DIALECT, else "
        f"openai). Presets: {PRESET_NAMES}",
    )
    add_call_text(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object a file")
    parser.add_argument("--cut", type=_count, metavar="N", help="admit only the first N bytes")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Check every file; the exit status is described in the command's help."""
    dialect, where = args.dialect, "--dialect"
    if dialect is None:
        dialect, where = os.environ.get("AGENTLOOP_DIALECT") or "openai", "AGENTLOOP_DIALECT"
    if dialect != "auto" and dialect not in PRESETS:
        args.usage_error(f"{where}: expected auto or one of {PRESET_NAMES}, got {dialect!r}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name or a finish word may hold anything
    progress = _Progress(len(args.files))
    status = 0
    for name in args.files:
        progress.step()
        try:
            verdict = _check_file(name, dialect, call_text(args), args.cut)
        except OSError as error:
            progress.clear()
            print(f"agentloop check: {_printable(name)}: {error.strerror or error}", file=sys.stderr)
            status = 2
            continue
        if verdict.reply is None:
            status = max(status, 1)
        print(_json_line(name, verdict) if args.json else _readable(name, verdict), flush=True)
    progress.clear()
    return status


def _check_file(name: str, dialect: str, way: CallText | None, cut: int | None) -> Verdict:
    """Check one file and, when it is refused, look for a preset that admits it.

    A regular file is read again for that. From anything else nothing is read past the refusal,
    because it may never end.

    Raises:
        OSError: the file cannot be read.
    """
    if name == "-":
        if sys.stdin is None:  # started with standard input closed
            raise OSError("standard input is closed")
        return _check_open(sys.stdin.buffer, dialect, way, cut)
    with open(name, "rb") as file:
        verdict = _check_open(file, dialect, way, cut)
        if verdict.reply is not None or dialect == "auto" or not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return verdict
        file.seek(0)
        other = narrowest_verdict(_blocks(file, cut), call_text=way)
    if other.reply is not None and verdict.refusal is not None:
        verdict.refusal.suggestion = other.dialect
    return verdict


def _check_open(file: BinaryIO, dialect: str, way: CallText | None, cut: int | None) -> Verdict:
    if dialect == "auto":
        return narrowest_verdict(_blocks(file, cut), call_text=way)
    return check_stream(_blocks(file, cut), preset(dialect, call_text=way))


def _blocks(file: BinaryIO, cut: int | None) -> Iterator[bytes]:
    """What is there, as it comes, to the end or the cut."""
    read = getattr(file, "read1", file.read)
    left = cut
    while left is None or left > 0:
        block = read(_BLOCK if left is None else min(left, _BLOCK))
        if not block:
            return
        if left is not None:
            left -= len(block)
        yield block


def _json_line(name: str, verdict: Verdict) -> str:
    """The stable form: ASCII, so that no terminal's or pipe's encoding can spoil it."""
    refusal = verdict.refusal
    return json.dumps(
        {
            "file": name,
            "verdict": "accepted" if refusal is None else "refused",
            "code": None if refusal is None else refusal.code,
            "event": None if refusal is None else refusal.event,
            "byte": None if refusal is None else refusal.byte,
            "message": None if refusal is None else str(refusal),
            "dialect": verdict.dialect,
            "suggestion": None if refusal is None else refusal.suggestion,
            "reply": None if verdict.reply is None else _reply(verdict.reply),
        }
    )


def _reply(reply: ModelReply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "text": reply.text,
        "tool_calls": [{"id": c.id, "name": c.name, "arguments": c.arguments.text} for c in reply.calls],
        "finish_reason": reply.termination.reason,
        "termination": reply.termination.kind,
        "usage": None
        if usage is None
        else {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        },
        "reasoning": reasoning_text(reply.native),
        "refusal": refusal_text(reply.native),
    }


def _readable(name: str, verdict: Verdict) -> str:
    if verdict.reply is None:
        return f"refused   {_printable(name)}\n          {verdict.refusal}"
    reply = verdict.reply
    calls = f", {counted(len(reply.calls), 'call')}" if reply.calls else ""
    words = refusal_text(reply.native)
    refusal = f", a refusal of {counted(len(words), 'character')}" if words else ""
    tokens = "no usage" if reply.usage is None else counted(reply.usage.total_tokens, "token")
    end = f"{reply.termination.kind} ({reply.termination.reason!r})"
    return (
        f"accepted  {_printable(name)}\n"
        f"          {end}, {counted(len(reply.text), 'character')}{refusal}{calls}, {tokens}, dialect {verdict.dialect}"
    )


def _printable(name: str) -> str:
    """A file name that cannot steer a terminal."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in name)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a number of bytes, got {text!r}")
    return int(text)


class _Progress:
    """A counter on a terminal, while the verdicts go somewhere else."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._shown = total > 1 and sys.stderr.isatty() and not sys.stdout.isatty()

    def step(self) -> None:
        self._done += 1
        if self._shown:
            print(f"\r{self._done}/{self._total}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
