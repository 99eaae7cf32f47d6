"""The full text of an output that is cut for the model: kept beside the answer, where there is room for it.

It is stored in the batch of the answer, and a model reads the beginning of it and a mark that says its full
size and whether it is kept. A host reads it by its place (`Runtime.output`). Only what a tool came to is kept:
the text of an error is cut, and that is all. An answer is never refused because its text is too large to keep.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ..exchange import Slot
from ..messages import ToolFeedback, ToolResult
from ..persistence import Step
from ..tools import cut_result
from .scope import Scope

__all__ = ["Answer", "LONGEST_NOTE", "answer_of"]

_KEPT: Final = ", kept"

LONGEST_NOTE: Final = ", not kept"
"""What a mark says at most besides the full size."""


class Answer(msgspec.Struct, frozen=True):
    """What a model reads of a result, and what is stored besides.

    Attributes:
        feedback: cut where it has to be.
        kept: whether the full text of what was cut is to be kept; None where nothing was cut.
        text: the full text, where it is.
    """

    feedback: ToolFeedback
    kept: bool | None
    text: str | None

    def stored_by(self, step: Step, scope: Scope, exchange: int, position: int) -> Step:
        """The step that stores the answer, and with it the full text where it is to be kept."""
        text = self.text
        if text is None:
            return step
        return lambda book: (
            *step(book),
            *book.keep_output(scope.turn, exchange, position, text=text, at_ms=scope.now_ms()),
        )


def answer_of(scope: Scope, slot: Slot, result: ToolResult, room: int) -> Answer:
    """Address a result to its call.

    Args:
        result: as the tool gave it. room: bytes of JSON that the model may read of it.
    """
    cut = cut_result(result, room)
    if cut is result or cut.status != "ok":
        return Answer(ToolFeedback.of(slot.call.id, cut), None if cut is result else False, None)
    text = result.text
    kept = scope.store.book.has_room_for_output(len(text.encode()), scope.conversation, scope.run_id)
    cut = cut_result(result, room, note=_KEPT if kept else LONGEST_NOTE)
    return Answer(ToolFeedback.of(slot.call.id, cut), kept, text if kept else None)
