"""The argument of commands that read a model's calls in its text."""

from __future__ import annotations

import argparse

from ..wire.call_text import CallText, ToolCallParser

__all__ = ["add_call_text", "call_text"]


def add_call_text(parser: argparse.ArgumentParser) -> None:
    """Add ``--call-text``, which every dialect takes."""
    parser.add_argument(
        "--call-text",
        action="store_true",
        help="the model writes tool calls in its text, in <tool_call> tags, and the server knows none",
    )


def call_text(args: argparse.Namespace) -> CallText | None:
    """How calls are written in the text; None for native calls."""
    return ToolCallParser() if args.call_text else None
