"""What an agent is: an immutable definition that any number of runs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, get_args, overload

from .errors import InputError
from .exchange import OriginOpened
from .limits import LoopLimits, check_name
from .messages import ModelOptions, ModelRequest, SystemMessage, UserMessage, require_model_request
from .runner import Asking, ContextPlan, Route, Structured, asked_by_route, asked_plainly, has_begun
from .tools import Tool, ToolSet
from .wire.dialect import Dialect

__all__ = ["Agent"]

T_co = TypeVar("T_co", covariant=True)


class Agent(Generic[T_co]):
    """Instructions, tools, options and limits under one name; with an output, of the type of its values.

    Args:
        name: 1 to 128 characters; shown in events and records.
        instructions: the system message of each run; empty for none.
        tools: 0 to 32 tools, or a `ToolSet`; with an output up to 31. No tools is plain chat.
        output: the type of the value that a run gives (`RunResult.value`), as `Structured` takes it; or
            a `Structured`, which says name, instruction and route too. None for text. How the value is
            asked for, and when a run ends, is described at `agentloop.runner.asking`. A final reply that is not
            the value ends the run as ``incomplete``: it is not asked for again, or repaired (R205, R224).
        policy_version: names this tool policy; change it when the meaning of a tool changes in a
            way its schema does not show (R66). Part of the catalogue digest.
        options: see `ModelOptions`. A ``tool_choice`` that forces a call applies to the first
            model call of a run only.
        limits: see `LoopLimits`. A call of the output function is a tool call; it needs no further model call.
        context: which of a conversation's earlier turns a turn is asked with; None is all of them. Its
            budget, in characters, counts all that was said before and the new user message, which is
            the newest turn; what the turn itself brings is always whole. The plan has no messages of its
            own: places in ``pinned`` are those in `Runtime.history`. Nothing is cut of a conversation
            that is within the budget, and nothing is lost of any: see `agentloop.contexts`.

    Attributes:
        toolset: the tools as one set, without an output function. system: the messages every run begins
            with, without what asks for an output. output: as a `Structured`.

    Raises:
        InputError: a value of another type, by name; instructions that UTF-8 cannot encode; a
            forced tool that is not among the tools; an output that has no JSON Schema, or a
            ``response_format`` beside one.
        ToolDefinitionError: the tools cannot be one set, with the output function where there is one.
    """

    __slots__ = (
        "_asked",
        "_with_function",
        "context",
        "instructions",
        "limits",
        "name",
        "options",
        "output",
        "system",
        "toolset",
    )

    name: str
    instructions: str
    toolset: ToolSet
    options: ModelOptions
    limits: LoopLimits
    context: ContextPlan | None
    output: Structured[T_co] | None
    system: tuple[SystemMessage, ...]
    _asked: Asking[T_co] | dict[Dialect, Asking[T_co]]
    _with_function: ToolSet

    @overload
    def __init__(
        self: Agent[None],
        *,
        name: str,
        instructions: str = "",
        tools: Sequence[Tool] | ToolSet = (),
        output: None = None,
        policy_version: str = "",
        options: ModelOptions | None = None,
        limits: LoopLimits | None = None,
        context: ContextPlan | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        name: str,
        instructions: str = "",
        tools: Sequence[Tool] | ToolSet = (),
        output: type[T_co] | Structured[T_co],
        policy_version: str = "",
        options: ModelOptions | None = None,
        limits: LoopLimits | None = None,
        context: ContextPlan | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any],
        *,
        name: str,
        instructions: str = "",
        tools: Sequence[Tool] | ToolSet = (),
        output: Any,
        policy_version: str = "",
        options: ModelOptions | None = None,
        limits: LoopLimits | None = None,
        context: ContextPlan | None = None,
    ) -> None: ...
    def __init__(
        self,
        *,
        name: str,
        instructions: str = "",
        tools: Sequence[Tool] | ToolSet = (),
        output: Any = None,
        policy_version: str = "",
        options: ModelOptions | None = None,
        limits: LoopLimits | None = None,
        context: ContextPlan | None = None,
    ) -> None:
        check_name("Agent.name", name)
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
        structured = output if output is None or isinstance(output, Structured) else Structured(output)
        for field, value in (
            ("name", name),
            ("instructions", instructions),
            ("toolset", toolset),
            ("options", options),
            ("limits", limits),
            ("context", _checked_context(context)),
            ("output", structured),
            ("system", system),
            ("_with_function", toolset if structured is None else _with_function(structured, options, toolset)),
            ("_asked", asked_plainly(system, options, toolset) if structured is None else {}),
        ):
            object.__setattr__(self, field, value)

    def prepare(self, dialect: Dialect) -> Asking[T_co]:
        """What its runs ask of servers of this dialect; made once for each.

        Raises:
            InputError: the instructions of the agent and its output cannot be in one request.
        """
        known = self._asked
        if type(known) is Asking:
            return known
        assert type(known) is dict, "it has an output"
        asking: Asking[T_co] | None = known.get(dialect)
        if asking is None:
            asking = known[dialect] = self._ask(dialect)
        return asking

    def begun(self, opened: OriginOpened) -> Asking[T_co] | None:
        """What a stored run of the agent asked, by whatever route; None where it asked for another output, or none."""
        if self.output is None:
            return None
        asked = (self._ask(_ANY, route) for route in get_args(Route))
        return next((asking for asking in asked if has_begun(asking, opened)), None)

    def _ask(self, dialect: Dialect, route: Route | None = None) -> Asking[T_co]:
        assert self.output is not None, "it has an output"
        return asked_by_route(
            self.output,
            dialect,
            system=self.system,
            options=self.options,
            toolset=self.toolset,
            with_function=self._with_function,
            route=route,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Agent.{name}: an agent is immutable; make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Agent.{name}: an agent is immutable; make another one")

    def __repr__(self) -> str:
        return f"Agent(name={self.name!r}, tools={list(self.toolset.names)!r})"


_ANY = Dialect(name="any")


def _with_function(output: Structured[Any], options: ModelOptions, toolset: ToolSet) -> ToolSet:
    """The tools with the output function, whatever route it will be: what cannot be is refused at once."""
    if options.response_format is not None:
        raise InputError("Agent.options: expected no response_format with output=, which asks for its own")
    return ToolSet((*toolset, output.function), policy_version=toolset.policy_version)


def _checked_context(plan: ContextPlan | None) -> ContextPlan | None:
    if plan is None:
        return None
    if type(plan) is not ContextPlan:
        raise InputError(f"Agent.context: expected a ContextPlan or None, got {type(plan).__name__}")
    if plan.messages:
        raise InputError(f"Agent.context: expected a plan without messages, got one with {len(plan.messages)}")
    if plan.max_chars is None:
        raise InputError("Agent.context: expected a budget in characters (max_chars=), got one in tokens")
    return plan
