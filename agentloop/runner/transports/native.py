"""A choice as a native tool call: the model proposes one call, and nothing runs (R174)."""

from __future__ import annotations

from collections.abc import Sequence

from ...messages import ModelOptions, ModelReply, ToolChoice
from ...tools import Tool, ToolSet
from ..transport import Interaction, Stage
from .calls import CallsCollector
from .rules import declared_chars, fitting, require_id, require_selections

__all__ = ["NativeCall"]


class NativeCall:
    """One call of one of several selections; the value is what the selection resolves to.

    The model is made to call a tool where its server can make it; elsewhere it is free to write
    text, which is refused. The answer is exactly one call: no second one, no text beside it, and
    arguments that are complete and fit (R194-R198).

    Args:
        id: names it among the transports of a runner, 1 to 128 characters.
        tools: 1 to 32 selections; all of them are visible.

    Raises:
        InputError: the id is no such text, there is no tool, or one has an effect.
    """

    def __init__(self, id: str, tools: ToolSet | Sequence[Tool]) -> None:
        self._id = require_id("NativeCall", id)
        self._tools = require_selections("NativeCall", tools)

    @property
    def id(self) -> str:
        return self._id

    def prepare(self, stage: Stage, /) -> Interaction[object]:
        """An interaction with all tools visible."""
        names, stage_id = self._tools.names, stage.stage_id
        options = ModelOptions()
        if stage.dialect.forces_calls:
            one = ToolChoice(name=names[0]) if len(names) == 1 else None
            options = ModelOptions(tool_choice=one or "required", parallel_tool_calls=False)

        def build(reply: ModelReply) -> object:
            (call,) = reply.calls
            tool = self._tools.require(call.name)
            return fitting(lambda: tool.resolve(call.arguments.text, stage_id=stage_id), transport=self._id)

        return Interaction(
            create_response=lambda: CallsCollector(self._id, names, single=True, build=build),
            route="call",
            options=options,
            tools=self._tools.specs,
            schema_chars=declared_chars(self._tools.specs),
        )

    def __repr__(self) -> str:
        return f"<NativeCall {self._id!r}: {', '.join(self._tools.names)}>"
