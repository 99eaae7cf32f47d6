"""What a tool answered, and the same addressed to one call."""

from __future__ import annotations

from typing import Any, Literal

from ..errors import InputError
from .parts import TextContent, Value, require_type

__all__ = ["ToolFeedback", "ToolResult"]


def _check(where: str, status: object, content: Any) -> None:
    if status not in ("ok", "error") or type(status) is not str:
        raise InputError(f"{where}.status: expected 'ok' or 'error'")
    require_type(f"{where}.content", content, tuple)
    for at, item in enumerate(content):
        require_type(f"{where}.content[{at}]", item, TextContent)


class ToolResult(Value, frozen=True):
    """A tool's answer (R30). An error is said by ``status``, never by wording (R33).

    Attributes:
        status: ``ok`` or ``error``.
        content: texts, in order; may be empty.
    """

    status: Literal["ok", "error"]
    content: tuple[TextContent, ...]

    def __post_init__(self) -> None:
        _check("ToolResult", self.status, self.content)

    @classmethod
    def ok(cls, text: str) -> ToolResult:
        """A success with one text."""
        return cls(status="ok", content=(TextContent(text=text),))

    @classmethod
    def error(cls, text: str) -> ToolResult:
        """A failure that the model shall read."""
        return cls(status="error", content=(TextContent(text=text),))

    @property
    def text(self) -> str:
        """The texts, joined."""
        return "".join(item.text for item in self.content)


class ToolFeedback(Value, frozen=True):
    """A `ToolResult` addressed to the call with ``tool_call_id`` (R31)."""

    tool_call_id: str
    status: Literal["ok", "error"]
    content: tuple[TextContent, ...]

    def __post_init__(self) -> None:
        require_type("ToolFeedback.tool_call_id", self.tool_call_id, str)
        if not self.tool_call_id:
            raise InputError("ToolFeedback.tool_call_id: expected a non-empty string")
        _check("ToolFeedback", self.status, self.content)

    @classmethod
    def of(cls, tool_call_id: str, result: ToolResult) -> ToolFeedback:
        """Address a result to a call."""
        return cls(tool_call_id=tool_call_id, status=result.status, content=result.content)

    @property
    def text(self) -> str:
        """The texts, joined."""
        return "".join(item.text for item in self.content)
