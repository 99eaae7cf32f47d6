"""``agentloop chat MODULE:AGENT``: the arguments, and what a chat is made of."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, Final

from ...agent import Agent
from ...errors import AgentLoopError, InputError
from ...limits import check_name
from ...providers import ChatCompletions
from ...runtime import Runtime
from ..endpoint import add_endpoint_arguments, endpoint_provider
from ..notices import error_lines
from ..run import load_agent
from ..screen import Screen
from .front import Front
from .interrupts import Interrupts
from .plain import PlainFront
from .private import history_file
from .session import Chat
from .turns import Turns

__all__ = ["add_parser", "run"]

_SETTLE_SECONDS: Final = 2.0
"""How long an answer that comes may still come where the process is told to end."""


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "chat",
        help="talk to an agent of yours in the terminal",
        description="Imports MODULE from the working directory and lets you talk to its AGENT. /help lists the "
        "commands; Ctrl-C stops a turn, Ctrl-D leaves. A call that waits for you is shown with its arguments, and "
        "asked about. A terminal needs the extra cli. Where input or output is no terminal, each line of standard "
        "input is one thing said, or an answer; texts go to standard output, everything else to standard error. "
        "Exit 0, 1 when the store failed or, where nobody types, when a turn did not complete, 2 on a usage error.",
    )
    parser.add_argument("agent", metavar="MODULE:AGENT", help="as in notes:assistant, or path/to/notes.py:assistant")
    add_endpoint_arguments(parser)
    parser.add_argument(
        "--store", metavar="PATH", help="keep conversations in a SQLite file, or in postgresql://... (default: memory)"
    )
    parser.add_argument(
        "--conversation", metavar="NAME", help="go on with that one of the store, or begin it (default: a new one)"
    )
    parser.add_argument(
        "--no-history",
        action="store_true",
        help="keep no file of what you typed (default: agentloop/chat_history in XDG_STATE_HOME)",
    )
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Talk; the exit status is described in the command's help."""
    notices = Screen(sys.stderr)
    try:
        provider = endpoint_provider(args, os.environ)
        if args.conversation is not None:
            check_name("--conversation", args.conversation)
        agent = load_agent(args.agent)
    except InputError as error:
        args.usage_error(str(error))  # exits with status 2
        raise
    typed = sys.stdin is not None and sys.stdin.isatty()
    try:
        drawn = typed and sys.stdout.isatty() and _draws(os.environ)
        front = _terminal_front(notices, os.environ, remember=not args.no_history) if drawn else PlainFront()
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        notices.line(
            f"agentloop chat: expected the package {package}; install the extra 'cli': "
            "pip install 'agentloop-runtime[cli]'"
        )
        return 2
    try:
        failed = asyncio.run(_talk(args, agent, provider, front, typed=typed))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except AgentLoopError as error:
        for at, line in enumerate(error_lines(error)):
            notices.line(line if at else f"agentloop chat: {line}")
        return 2 if isinstance(error, InputError) else 1
    return 1 if failed and not typed else 0


def _draws(environ: Mapping[str, str]) -> bool:
    """Whether the terminal can move its cursor; that of Windows can, and has no name."""
    return environ.get("TERM", "dumb" if os.name != "nt" else "") != "dumb"


def _terminal_front(notices: Screen, environ: Mapping[str, str], *, remember: bool) -> Front:
    """The front that needs the extra.

    Raises:
        ImportError: a package of it is not there.
    """
    from .prompt import Prompt  # noqa: PLC0415  # an optional extra
    from .terminal import TerminalFront  # noqa: PLC0415  # an optional extra

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # whatever the encoding of the terminal lacks
    history = None
    if remember:
        try:
            history = history_file(environ)
        except OSError as error:
            notices.line(f"agentloop chat: what you type is not kept: {error.strerror}")
    return TerminalFront(Prompt(history))


async def _talk(
    args: argparse.Namespace, agent: Agent[Any], provider: ChatCompletions, front: Front, *, typed: bool
) -> bool:
    """Whether a turn failed."""
    here = asyncio.current_task()
    assert here is not None, "a coroutine is run by a task"
    async with Runtime(provider, store=args.store, settle_seconds=_SETTLE_SECONDS) as runtime:
        with Interrupts(None if typed else here.cancel, here.cancel) as interrupts:
            turns = Turns(runtime, agent, front, interrupts)
            try:
                await Chat(runtime, agent, front, turns, named=args.conversation, kept=args.store is not None).run()
            except asyncio.CancelledError:
                if interrupts.ended:
                    raise SystemExit(128 + signal.SIGTERM) from None
                raise
            return turns.failed
