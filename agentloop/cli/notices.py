"""What a person is told of a run beside its text: tool calls, limits, errors."""

from __future__ import annotations

from typing import Protocol

from ..errors import AgentLoopError
from ..events import (
    Event,
    ModelEnd,
    RequestRejected,
    RunEnded,
    ToolEnded,
    ToolProgress,
    ToolSkipped,
    ToolStarted,
)
from .inert import one_line
from .screen import counted, server_words, usage_words

__all__ = ["Labelled", "error_lines", "notice"]


class Labelled(Protocol):
    """Takes lines with a label before them."""

    def labelled(self, label: str, text: str, *, style: str = "dim") -> None:
        """One line with a label before it."""


def notice(out: Labelled, event: Event) -> None:
    """Tell what a person wants to know of an event beside the text."""
    match event:
        case ToolStarted():
            again = f" (attempt {event.attempt})" if event.attempt > 1 else ""
            out.labelled("call", f"{event.tool} {event.arguments}{again}", style="cyan")
        case ToolProgress():
            out.labelled("progress", f"{event.tool}: {event.message}")
        case ToolEnded(status="success"):
            size = counted(event.output_bytes, "byte")
            out.labelled("result", f"{event.tool}: {size}, {event.duration_ms} ms")
        case ToolEnded(status="waiting"):
            out.labelled("waits", f"{event.tool}: for its agent, of which calls wait")
        case ToolEnded() | ToolSkipped():
            out.labelled("result", f"{event.tool}: {event.slot} ({event.code})", style="red")
        case RequestRejected():
            out.labelled("rejected", f"{event.limit}: allowed {event.allowed}, got {event.got}", style="red")
        case ModelEnd(retracted=True):
            out.labelled("failed", "the text of this attempt is withdrawn", style="red")
        case RunEnded():
            calls = f"{counted(event.model_calls, 'model call')}, {counted(event.tool_calls, 'tool call')}"
            out.labelled("end", f"{event.outcome} ({event.reason}), {calls}, {usage_words(event.usage)}")
        case _:
            pass


def error_lines(error: AgentLoopError) -> list[str]:
    """An error in one line, with its cause, and a second one where the server said something about it."""
    cause = f": {type(error.__cause__).__name__}: {error.__cause__}" if error.__cause__ is not None else ""
    said = server_words(error)
    return [one_line(f"{type(error).__name__}: {error}{cause}"), *([] if said is None else [one_line(said)])]
