"""One complete exchange: a reply and exactly one feedback for each of its calls."""

from __future__ import annotations

from ..errors import HistoryError
from .feedback import ToolFeedback
from .parts import Value, require_type
from .reply import ModelReply

__all__ = ["ModelExchange"]


class ModelExchange(Value, frozen=True, tag="exchange", tag_field="role", dict=True, gc=True):
    """A reply and its feedback, in the reply's call order (R32).

    ``dict=True`` lets the encoder keep the encoded bytes with the value they belong to; nothing
    else may be stored there.

    Raises:
        HistoryError: ``missing_tool_result`` or ``orphan_tool_result``, with the position.
    """

    reply: ModelReply
    feedback: tuple[ToolFeedback, ...] = ()

    def __post_init__(self) -> None:
        require_type("ModelExchange.reply", self.reply, ModelReply)
        require_type("ModelExchange.feedback", self.feedback, tuple)
        calls = self.reply.calls
        for at, item in enumerate(self.feedback):
            require_type(f"ModelExchange.feedback[{at}]", item, ToolFeedback)
            if at >= len(calls) or item.tool_call_id != calls[at].id:
                raise HistoryError(
                    "orphan_tool_result", f"$.feedback[{at}]", "expected the feedback of the call at this position"
                )
        if len(self.feedback) < len(calls):
            raise HistoryError(
                "missing_tool_result",
                f"$.feedback[{len(self.feedback)}]",
                f"expected {len(calls)} feedbacks, one a call, got {len(self.feedback)}",
            )
