"""`agentloop run MODULE:AGENT "prompt"`: one run of an agent against an endpoint.

The text goes to standard output as it streams, everything else to standard error. With ``--json``
standard output has the run's events instead, one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ..agent import Agent
from ..errors import AgentLoopError, InputError
from ..events import ModelEnd, TextPreview
from ..providers import ChatCompletions
from ..results import RunResult
from ..runtime import Runtime
from ..sinks import JsonLinesSink
from .endpoint import add_endpoint_arguments, endpoint_provider, read_prompt
from .notices import error_lines, notice
from .screen import Screen

__all__ = ["AgentNotFound", "add_parser", "load_agent", "run"]


class AgentNotFound(InputError):
    """MODULE:AGENT names no agent; the message says what was looked for."""

    code = "agent_not_found"


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "run",
        help="run an agent of yours against an endpoint",
        description="Imports MODULE from the working directory and runs its AGENT once. Text, or the value of an "
        "agent with an output as one line of JSON, goes to standard output; tool calls and the outcome go to "
        "standard error. Exit 0 when the run completed, 1 when it ended "
        "otherwise, 2 on a usage error, 130 on Ctrl-C.",
    )
    parser.add_argument("agent", metavar="MODULE:AGENT", help="as in notes:assistant, or path/to/notes.py:assistant")
    parser.add_argument("prompt", help="what the user says; - reads it from standard input")
    add_endpoint_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the events as JSON lines instead of the text")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Run the agent once; the exit status is described in the command's help."""
    notices = Screen(sys.stderr)
    try:
        provider = endpoint_provider(args, os.environ)
        agent = load_agent(args.agent)
        prompt = read_prompt(args.prompt)
    except InputError as error:
        args.usage_error(str(error))  # exits with status 2
        raise
    try:
        result = asyncio.run(_run(agent, prompt, provider, as_json=args.json, notices=notices))
    except AgentLoopError as error:
        return _failed(notices, error)
    if result.outcome != "completed":
        notices.line(f"agentloop run: {result.outcome} ({result.reason}) {result.refusal or ''}".rstrip())
        return 1
    return 0


def load_agent(where: str) -> Agent[Any]:
    """The agent that ``MODULE:NAME`` names; MODULE is a module of the working directory, or a file.

    Raises:
        AgentNotFound: the module or the name is not there, the module cannot be imported, or the
            name is no Agent.
    """
    source, sep, name = where.rpartition(":")
    if not sep or not source or not name:
        raise AgentNotFound(f"expected MODULE:AGENT, as in notes:assistant, got {where!r}")
    module = _load_module(source)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            known = sorted(key for key, value in vars(module).items() if isinstance(value, Agent))
            raise AgentNotFound(f"{source} has no {name!r}; agents in it: {', '.join(known) or 'none'}")
        found = getattr(found, part)
    if not isinstance(found, Agent):
        raise AgentNotFound(f"{where}: expected an Agent, got {type(found).__name__}")
    return found


def _load_module(source: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        if not source.endswith(".py"):
            return importlib.import_module(source)
        path = Path(source).resolve()
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise AgentNotFound(f"no file {source}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # string annotations of its tools are looked up there
        spec.loader.exec_module(module)
    except AgentNotFound:
        raise
    except ModuleNotFoundError as error:
        raise AgentNotFound(f"{source}: no module named {error.name!r} (looked in {folder} too)") from error
    except Exception as error:
        raise AgentNotFound(f"{source} cannot be imported: {type(error).__name__}: {error}") from error
    return module


async def _run(
    agent: Agent[Any], prompt: str, provider: ChatCompletions, *, as_json: bool, notices: Screen
) -> RunResult[Any]:
    text, typed = Screen(sys.stdout), agent.output is not None
    lines = JsonLinesSink(sys.stdout.buffer) if as_json else None
    try:
        async with Runtime(provider) as runtime, runtime.start(agent, prompt) as events:
            async for event in events:
                if lines is not None:
                    await lines.emit(event)
                elif isinstance(event, TextPreview) and not typed:
                    text.piece(event.text)
                elif isinstance(event, ModelEnd):
                    text.end_text()
                notice(notices, event)
            result = await events.result()
            if result.has_value and lines is None:
                text.line(msgspec.json.encode(result.value).decode())
            return result
    finally:
        text.end_text()


def _failed(notices: Screen, error: AgentLoopError) -> int:
    told, *said = error_lines(error)
    notices.line(f"agentloop run: {told}")
    for line in said:
        notices.line(line)
    return 1
