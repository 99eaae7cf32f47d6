"""What an agent is: an immutable definition that any number of runs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import InputError
from .limits import LoopLimits
from .messages import ModelOptions, ModelRequest, SystemMessage, UserMessage, require_model_request
from .tools import Tool, ToolSet

__all__ = ["Agent"]


class Agent:
    """Instructions, tools, options and limits under one name.

    Args:
        name: 1 to 128 characters; shown in events and records.
        instructions: the system message of each run; empty for none.
        tools: 0 to 32 tools, or a `ToolSet`. No tools is plain chat.
        policy_version: names this tool policy; change it when the meaning of a tool changes in a
            way its schema does not show (R66). Part of the catalogue digest.
        options: see `ModelOptions`. A ``tool_choice`` that forces a call applies to the first
            model call of a run only.
        limits: see `LoopLimits`.

    Attributes:
        toolset: the tools as one set. system: the messages every run begins with.

    Raises:
        InputError: a value of another type, by name; instructions that UTF-8 cannot encode; a
            forced tool that is not among the tools.
        ToolDefinitionError: the tools cannot be one set.
    """

    __slots__ = ("instructions", "limits", "name", "options", "system", "toolset")

    name: str
    instructions: str
    toolset: ToolSet
    options: ModelOptions
    limits: LoopLimits
    system: tuple[SystemMessage, ...]

    def __init__(
        self,
        *,
        name: str,
        instructions: str = "",
        tools: Sequence[Tool] | ToolSet = (),
        policy_version: str = "",
        options: ModelOptions | None = None,
        limits: LoopLimits | None = None,
    ) -> None:
        if type(name) is not str or not 1 <= len(name) <= 128:
            got = f"{len(name)} characters" if type(name) is str else type(name).__name__
            raise InputError(f"Agent.name: expected a string of 1 to 128 characters, got {got}")
        if type(instructions) is not str:
            raise InputError(f"Agent.instructions: expected str, got {type(instructions).__name__}")
        options = ModelOptions() if options is None else options
        limits = LoopLimits() if limits is None else limits
        if type(options) is not ModelOptions:
            raise InputError(f"Agent.options: expected ModelOptions, got {type(options).__name__}")
        if type(limits) is not LoopLimits:
            raise InputError(f"Agent.limits: expected LoopLimits, got {type(limits).__name__}")
        toolset = tools if isinstance(tools, ToolSet) else ToolSet(tools, policy_version=policy_version)
        system = (SystemMessage(content=instructions),) if instructions else ()
        probe = (*system, UserMessage(content="-"))  # a request has at least one message
        require_model_request(ModelRequest(messages=probe, options=options, tools=toolset.specs))
        for field, value in (
            ("name", name),
            ("instructions", instructions),
            ("toolset", toolset),
            ("options", options),
            ("limits", limits),
            ("system", system),
        ):
            object.__setattr__(self, field, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Agent.{name}: an agent is immutable; make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Agent.{name}: an agent is immutable; make another one")

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, tools={list(self.toolset.names)!r})"
