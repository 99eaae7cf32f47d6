"""`agentloop replay DIR`: recorded streams as a live endpoint on loopback."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from typing import Any, Final

from ..errors import InputError
from ..testing.replay_server import ReplayServer
from .numbers import port, seconds
from .stopping import stop_signal

__all__ = ["add_parser", "run"]

_PORT: Final = 8099


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "replay",
        help="serve recorded streams as a live endpoint",
        description="Answers POST PREFIX/chat/completions with the .sse recordings in DIR: those of the model that is "
        "asked for (or of that name), in the order of their names and around again; all of them for another model. "
        "Runs until it is interrupted.",
    )
    parser.add_argument("directory", metavar="DIR", help="a folder of .sse files, or one .sse file")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=port, default=_PORT, help=f"0 takes a free one (default {_PORT})")
    parser.add_argument(
        "--pace", type=seconds, default=0.0, metavar="SECONDS", help="between two writes of an answer (default 0)"
    )
    parser.add_argument("--prefix", default="/v1", help="the path before /chat/completions (default /v1)")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted or terminated; 2 when there is nothing to serve or nowhere to listen."""
    try:
        server = ReplayServer(args.directory, host=args.host, port=args.port, pace=args.pace, prefix=args.prefix)
    except (InputError, OSError) as error:
        args.usage_error(str(error))  # exits with status 2
        raise
    try:
        asyncio.run(_serve(server, f"{args.host}:{args.port}"))
    except InputError as error:
        args.usage_error(str(error))
        raise
    return 0


async def _serve(server: ReplayServer, where: str) -> None:
    stop = stop_signal()
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(server)
        except OSError as error:
            raise InputError(f"cannot listen on {where}: {error.strerror or error}") from error
        print(f"serving {', '.join(server.models)}", file=sys.stderr)
        print(server.url, flush=True)
        await stop.wait()
