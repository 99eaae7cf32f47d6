"""``agentloop inspect STORE``: the arguments, and which view goes where."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec

from ...errors import AgentLoopError, InputError
from ...persistence.reading import open_reader
from ...views import StoreView
from ..inert import clean
from ..screen import Screen
from .page import page
from .survey import survey
from .table import store_lines, timeline_lines

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "inspect",
        help="look into a store: conversations, runs, what is unsettled",
        description="Shows what a store holds. It takes no lease and writes nothing, so it may be used while "
        "others run. Exit 0, 1 when the store cannot be read or has no such run, 2 on wrong usage, a store that is "
        "not there or output that cannot be written.",
    )
    parser.add_argument("store", metavar="STORE", help="a SQLite store, a snapshot, or postgresql://...")
    parser.add_argument("--run", dest="ref", metavar="REF", help="one run, as a timeline")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--html", metavar="OUT", help="write one self-contained page; - is standard output")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Show it; 1 when it cannot be read, 2 when it is not there or the page cannot be written."""
    if args.json and args.html:
        args.usage_error("--json and --html: expected one of them")
    try:
        view = asyncio.run(_look(args.store, args.ref))
    except InputError as error:
        print(f"agentloop inspect: {clean(str(error))}", file=sys.stderr)
        return 2
    except AgentLoopError as error:
        print(f"agentloop inspect: {clean(str(error))}", file=sys.stderr)
        return 1
    if args.json:
        sys.stdout.write(msgspec.json.encode(view).decode() + "\n")
    elif args.html == "-":
        sys.stdout.write(page(view))
    elif args.html:
        try:
            Path(args.html).write_text(page(view), encoding="utf-8", newline="\n")
        except OSError as error:
            print(f"agentloop inspect: --html: {error.strerror}: {clean(args.html)}", file=sys.stderr)
            return 2
    else:
        screen = Screen(sys.stdout)
        lines = timeline_lines(view.runs[0], screen.style) if args.ref is not None else store_lines(view, screen.style)
        for line in lines:
            screen.line(line)
    return 0


async def _look(store: str, run_id: str | None) -> StoreView:
    async with open_reader(store) as reader:
        return await survey(reader, _name(store), run_id=run_id)


def _name(store: str) -> str:
    """The store without the user and password of an address."""
    scheme, found, rest = store.partition("://")
    if not found:
        return Path(store).name
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"
