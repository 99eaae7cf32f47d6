"""`agentloop record`: send one request to a live endpoint and keep what it answers, whatever that is."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import AgentLoopError, InputError, StreamRefused
from ..messages import Message, ModelRequest, SystemMessage, UserMessage
from ..providers import ChatCompletions, Recorder
from ..wire.deltas import TextDelta
from ..wire.foreign import decode_request
from .endpoint import add_endpoint_arguments, endpoint_provider, read_prompt
from .screen import server_words

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    """Add the command's arguments."""
    parser = subparsers.add_parser(
        "record",
        help="record what a live endpoint answers",
        description="Sends one request and writes the answer's bytes and a description of them into a folder, also "
        "when the answer is an error or breaks off. Neither the key nor the request's text is written. The reply's "
        "text goes to standard output. Exit 0 when the reply was complete, 1 when it was not, 2 on a usage error.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("prompt", nargs="?", help="what the user says; - reads it from standard input")
    what.add_argument("--request", metavar="FILE", help="a Chat Completions request as JSON, instead of a prompt")
    parser.add_argument("--system", metavar="TEXT", help="an instruction before the prompt")
    parser.add_argument("--out", metavar="DIR", default="recordings", help="(default: recordings)")
    add_endpoint_arguments(parser)
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> int:
    """Send once; the exit status is described in the command's help."""
    try:
        request, named = _request(args)
        recorder = Recorder(args.out)
        provider = endpoint_provider(args, os.environ, model=named, recorder=recorder)
    except (InputError, OSError) as error:
        args.usage_error(str(error))  # exits with status 2
        raise
    fault = asyncio.run(_send(provider, request))
    for path in recorder.saved:
        print(f"recorded {path}", file=sys.stderr)
        if isinstance(fault, StreamRefused):
            print(f"ask whether a dialect admits it: agentloop check --dialect auto {path}", file=sys.stderr)
    return 0 if fault is None else 1


async def _send(provider: ChatCompletions, request: ModelRequest) -> AgentLoopError | None:
    """Print the reply's text; what was wrong with it, if anything was."""
    try:
        async with provider.stream(request, attempt_id="record") as stream:
            async for delta in stream:
                if isinstance(delta, TextDelta):
                    print(delta.text, end="", flush=True)
            reply = await stream.reply()
        print()
        calls = "".join(f", calls {call.name}" for call in reply.calls)
        print(f"{reply.termination.kind} ({reply.termination.reason}){calls}", file=sys.stderr)
        return None
    except AgentLoopError as error:
        print(f"\nagentloop record: {error}", file=sys.stderr)
        said = server_words(error)
        if said is not None:
            print(said, file=sys.stderr)
        return error
    finally:
        await provider.aclose()


def _request(args: argparse.Namespace) -> tuple[ModelRequest, str]:
    """The request, and the model it names."""
    if args.request is not None:
        if args.system is not None:
            raise InputError("--system goes with a prompt; a request file has its own messages")
        foreign = decode_request(Path(args.request).read_bytes())
        return foreign.request, foreign.model
    messages: list[Message] = [SystemMessage(content=args.system)] if args.system else []
    messages.append(UserMessage(content=read_prompt(args.prompt)))
    return ModelRequest(messages=tuple(messages)), ""
