"""The table of subcommands, each a module that is imported when it is asked for.

A subcommand's module has ``add_parser(subparsers)``, which adds one parser with its arguments, and
``run(args) -> int``, which returns the exit status: 0, 1 for a negative answer, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

__all__ = ["COMMANDS", "main"]

COMMANDS: Final[dict[str, str]] = {
    "demo": "a streamed tool loop on recorded streams, offline",
    "run": "run an agent of yours against an endpoint",
    "chat": "talk to an agent of yours in the terminal",
    "serve": "serve agents of yours to browsers and other clients",
    "check": "admit recorded streams, or say why not",
    "inspect": "look into a store: conversations, runs, what is unsettled",
    "bench": "measure the admission of recorded streams",
    "replay": "serve recorded streams as a live endpoint",
    "record": "record what a live endpoint answers",
}
"""Name of a subcommand and of its module here, and what it is for."""

_DISTRIBUTION: Final = "agentloop-runtime"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    A reader that goes away (``| head``) and Ctrl-C end it quietly, with the status that a shell
    gives for the signal. Output that cannot be written (a full disk) is one line and status 2.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with it closed: what is written to it goes nowhere
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # while the process lives
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        args = _parse(words)
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # What is still buffered has no reader either: without this the interpreter complains on exit.
        _drop_output()
        return 128 + 13  # SIGPIPE, which not every platform's signal module names
    except OSError as error:
        _drop_output()
        print(f"agentloop {words[0] if words else ''}: {error.strerror or error}", file=sys.stderr)
        return 2


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    """The name and the installed version; looked up only when it is asked for, since that takes its time."""
    metadata = import_module("importlib.metadata")
    try:
        return f"agentloop {metadata.version(_DISTRIBUTION)}"
    except ModuleNotFoundError:
        return f"agentloop, of no known version: {_DISTRIBUTION} is not installed here"


def _parse(words: list[str]) -> argparse.Namespace:
    """Parse with the full parser of the command that was named, and one line for each of the others.

    Raises:
        SystemExit: 0 after help, 2 on wrong usage; argparse has said why.
    """
    parser = argparse.ArgumentParser(
        prog="agentloop", description="An agent runtime whose replies are checked to the end of their stream."
    )
    version = _version() if words[:1] == ["--version"] else ""
    parser.add_argument("--version", action="version", version=version, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, purpose in COMMANDS.items():
        if words[:1] == [name]:
            module = import_module(f".{name}", __package__)
            module.add_parser(subparsers)
            parser.set_defaults(run=module.run)
        else:
            subparsers.add_parser(name, help=purpose, add_help=False)
    return parser.parse_args(words)
