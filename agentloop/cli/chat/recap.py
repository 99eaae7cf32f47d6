"""A turn as far as it is stored, in the words in which it would have been told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...views import CallView, RunView
from ..screen import counted
from .front import Front

__all__ = ["Told", "recap", "tell"]


class Told(NamedTuple):
    """One thing that is told: what the person said (``>``), a text of the model (``""``), or a labelled line."""

    label: str
    text: str
    style: str = "dim"


def recap(view: RunView, *, texts: bool) -> list[Told]:
    """What was said, the replies that are stored, and their calls, in order.

    Args:
        texts: whether the texts of replies are for people.
    """
    return list(_recap(view, texts=texts))


def tell(front: Front, told: Told) -> None:
    """Show one of them."""
    match told.label:
        case ">":
            front.line(f"> {told.text}")
        case "":
            front.document(told.text)
        case label:
            front.labelled(label, told.text, style=told.style)


def _recap(view: RunView, *, texts: bool) -> Iterator[Told]:
    own = [message for message in view.messages if message.role == "user"]
    yield from (Told(">", message.text) for message in own[-1:])
    yield from _steers(view, 0)
    for begun, attempt in enumerate(view.attempts, 1):
        reply = attempt.reply
        if reply is not None:
            if texts and reply.text.strip():
                yield Told("", reply.text)
            for call in reply.calls:
                yield from _call(call)
        yield from _steers(view, begun)


def _steers(view: RunView, model_calls: int) -> Iterator[Told]:
    said = (steer.message for steer in view.steers_after(model_calls))
    yield from (Told(">", message.text) for message in said if message is not None)


def _call(call: CallView) -> Iterator[Told]:
    yield Told("call", f"{call.tool} {call.arguments}", "cyan")
    if call.feedback_status == "ok":
        took = "" if call.duration_ms is None else f", {call.duration_ms} ms"
        yield Told("result", f"{call.tool}: {counted(call.feedback_bytes, 'byte')}{took}")
    elif call.feedback is not None:
        yield Told("result", f"{call.tool}: {call.state} ({call.code})", "red")
