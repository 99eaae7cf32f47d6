"""`agentloop demo`: a streamed tool loop on recorded streams, offline, and one stream that is refused.

The recordings are served over real HTTP on loopback by a server in this process; the tools really
run, on a notebook in memory. Every fact shown is taken from the run, the notebook or the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from importlib import resources
from typing import Any, Final

from ..errors import StreamRefused
from ..events import Event, ModelEnd, ModelStart, TextPreview, ToolEnded, ToolSkipped, ToolStarted
from ..providers import ChatCompletions, Recording
from ..runtime import Runtime
from ..testing import Answer, ReplayServer
from ..wire.assembler import ReplyAssembler
from ..wire.deltas import CallDelta
from .notebook import PROMPT, Note, Notebook, notes_agent
from .screen import Screen, counted, usage_words

__all__ = ["add_parser", "load_demo_recordings", "run"]

_MODEL: Final = "notes-demo"
_PACE: Final = 0.015
"""Seconds between two events of a recording: slow enough to watch, fast enough not to wait."""


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "demo",
        help="a streamed tool loop on recorded streams, offline",
        description="Runs an agent with two tools against recorded streams, over HTTP on loopback, then shows "
        "what happens to a stream that ends too early. Needs no key and no network.",
    )
    parser.add_argument(
        "--pace", type=_seconds, default=_PACE, metavar="SECONDS", help=f"between two events (default {_PACE})"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; 0 when everything it shows held."""
    screen = Screen(sys.stdout)
    try:
        return asyncio.run(_demo(screen, args.pace))
    finally:
        screen.end_text()


def load_demo_recordings() -> list[Recording]:
    """The recordings that the package ships, in the order of their names."""
    folder = resources.files(__package__) / "recordings"
    files = sorted((item for item in folder.iterdir() if item.name.endswith(".sse")), key=lambda item: item.name)
    return [Recording(name=item.name.removesuffix(".sse"), body=item.read_bytes(), model=_MODEL) for item in files]


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to 1, got {text!r}")
    return value


async def _demo(screen: Screen, pace: float) -> int:
    recordings = load_demo_recordings()
    notebook = Notebook()
    async with ReplayServer(recordings, pace=pace) as server:
        provider = ChatCompletions(server.url, model=_MODEL)
        async with Runtime(provider) as runtime:
            agent = notes_agent()
            screen.line(
                screen.style("An agent with two tools, over HTTP on loopback. Nothing leaves this machine.", "bold")
            )
            screen.labelled("server", f"{server.url} answers with {counted(len(recordings), 'recording')}")
            screen.labelled(
                "agent", f"{agent.name}: {', '.join(agent.toolset.names)} (dialect {provider.dialect.name})"
            )
            screen.labelled("user", PROMPT)
            ended_well = await _whole_run(screen, runtime, notebook, server)
            refused_well = await _refused_run(screen, runtime, notebook, server, recordings, pace)
    return 0 if ended_well and refused_well else 1


async def _whole_run(screen: Screen, runtime: Runtime, notebook: Notebook, server: ReplayServer) -> bool:
    """The four rounds; whether they ended as they should."""
    began = time.monotonic()
    intended = ""
    async with runtime.start(notes_agent(), PROMPT, deps=notebook) as events:
        async for event in events:
            _show(screen, event, notebook)
            if isinstance(event, ToolStarted):
                intended = event.arguments
        result = await events.result()
    written = [note for tool, note in notebook.log if tool == "write_note"]
    seen = [message for message in server.requests[-1].json["messages"] if message["role"] == "tool"]
    screen.line()
    screen.line(screen.style(f"The run is {result.outcome} ({result.reason}).", "bold"))
    screen.labelled(
        "cost",
        f"{counted(result.model_calls, 'model call')} in {counted(len(server.requests), 'request')}, "
        f"{counted(result.tool_calls, 'tool call')}, "
        f"{usage_words(result.usage)}, {time.monotonic() - began:.1f} s",
    )
    screen.labelled("asked", f"{intended}  (what the model wanted to write)")
    for note in written:
        screen.labelled("written", f"{_note(note)}  (what the tool really wrote)", style="green")
    screen.labelled("read", f"the last request carried {counted(len(seen), 'tool result')}")
    return result.outcome == "completed" and len(written) == 1 and len(seen) == result.tool_calls


async def _refused_run(
    screen: Screen,
    runtime: Runtime,
    notebook: Notebook,
    server: ReplayServer,
    recordings: list[Recording],
    pace: float,
) -> bool:
    """A stream with a whole tool call that ends before its finish; whether it was refused."""
    body, name = next((item.body, item.name) for item in recordings if b"write_note" in item.body)
    cut = body.rindex(b"data: ", 0, body.index(b'"finish_reason":"'))
    call = _call_in(body[:cut])
    server.script(Answer(body=body, cut=cut, pace=pace))
    requests, notes, log = len(server.requests), len(notebook), len(notebook.log)
    screen.line()
    screen.line(
        screen.style(f"Now a stream that ends too early: {name!r} again, cut at byte {cut} of {len(body)}.", "bold")
    )
    refusal: StreamRefused | None = None
    async with runtime.start(notes_agent(), PROMPT, deps=notebook) as events:
        try:
            async for event in events:
                _show(screen, event, notebook)
        except StreamRefused as error:
            refusal = error
    screen.labelled("arrived", f"a whole call, {call.name} {call.arguments}")
    screen.labelled("refused", str(refusal), style="red")
    ran, new = len(notebook.log) - log, len(notebook) - notes
    sent = len(server.requests) - requests
    screen.labelled("so", f"requests sent: {sent}, tools run: {ran}, notes written: {new}", style="green")
    return refusal is not None and (ran, new, sent) == (0, 0, 1)


def _show(screen: Screen, event: Event, notebook: Notebook) -> None:
    """One event of a run, as a line or a piece of one."""
    match event:
        case ModelStart():
            screen.line()
            screen.line(screen.style(f"Round {event.call_sequence}", "bold"))
        case TextPreview():
            screen.text("text", event.text)
        case ModelEnd(status="success"):
            screen.labelled("checked", usage_words(event.usage))
        case ModelEnd():
            shown = "its text is withdrawn" if event.retracted else "nothing of it was shown"
            screen.labelled("failed", f"{event.code}; {shown}", style="red")
        case ToolStarted():
            screen.labelled("call", f"{event.tool} {event.arguments}", style="cyan")
        case ToolEnded(status="success"):
            screen.labelled("result", _note(notebook.log[-1][1]), style="green")
        case ToolEnded() | ToolSkipped():
            screen.labelled("result", f"{event.slot}: {event.code}", style="red")
        case _:
            pass  # the start and the end of the run are told by the caller


def _note(note: Note) -> str:
    return f"{note.title}: {note.text}"


def _call_in(stream: bytes) -> CallDelta:
    """The tool call in the bytes of a stream that has not ended, its arguments known to be whole."""
    pieces = [delta for delta in ReplyAssembler().feed(stream) if isinstance(delta, CallDelta)]
    arguments = "".join(piece.arguments for piece in pieces)
    json.loads(arguments)
    return CallDelta(position=0, id=pieces[0].id, name=pieces[0].name, arguments=arguments)
