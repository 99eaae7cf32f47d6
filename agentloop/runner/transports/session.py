"""Text and calls in one answer, for a host that goes on with both itself (R199)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ...messages import ModelReply
from ...tools import Tool, ToolSet
from ..transport import Interaction, Stage
from .calls import CallsCollector
from .rules import declared_chars, fitting, require_id, require_tools

__all__ = ["SESSION", "Session", "SessionCall", "SessionReply"]

SESSION: Final = "core:session"
"""Id of the session by which an agent with tools asks."""


class SessionCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of an answer. It did not run, and is no receipt that it did (R204).

    Attributes:
        id: the provider's identifier; unique in its reply.
        name: of a registered tool.
        arguments_text: as the model wrote them.
        value: what a selection resolves to; of a tool with an effect its admitted arguments, as
            `Tool.invoke` takes them.
    """

    id: str
    name: str
    arguments_text: str
    value: Any


class SessionReply(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer of a session says.

    Attributes:
        text: its body text, maybe ``""``.
        calls: in call order, maybe none.
    """

    text: str
    calls: tuple[SessionCall, ...]


class Session:
    """Text and any number of calls, as one `SessionReply`; refused as a whole if one call does not fit.

    Args:
        id: names it among the transports of a runner, 1 to 128 characters.
        tools: 1 to 32 tools of any kind; none of them runs.

    Raises:
        InputError: the id is no such text, or there is no tool.
    """

    def __init__(self, id: str, tools: ToolSet | Sequence[Tool]) -> None:
        self._id = require_id("Session", id)
        self._tools = require_tools("Session", tools)

    @property
    def id(self) -> str:
        return self._id

    def prepare(self, stage: Stage, /) -> Interaction[SessionReply]:
        """An interaction with all tools visible, and the choice left to the model."""
        names, stage_id = self._tools.names, stage.stage_id

        def build(reply: ModelReply) -> SessionReply:
            calls = []
            for at, call in enumerate(reply.calls):
                tool, text = self._tools.require(call.name), call.arguments.text
                value = fitting(
                    lambda tool=tool, text=text: _value(tool, text, stage_id),  # type: ignore[misc]  # bound here
                    transport=self._id,
                    where=f"call {at}: ",
                )
                calls.append(SessionCall(id=call.id, name=call.name, arguments_text=text, value=value))
            return SessionReply(text=reply.text, calls=tuple(calls))

        return Interaction(
            create_response=lambda: CallsCollector(self._id, names, single=False, build=build),
            route="session",
            tools=self._tools.specs,
            schema_chars=declared_chars(self._tools.specs),
        )

    def __repr__(self) -> str:
        return f"<Session {self._id!r}: {', '.join(self._tools.names)}>"


def _value(tool: Tool, text: str, stage_id: str) -> object:
    return tool.resolve(text, stage_id=stage_id) if tool.kind == "selection" else tool.admit(text)
