"""What an engine is made of, checked when it is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypedDict

import msgspec

from ..effects import Ledger, ToolPool
from ..errors import InputError
from ..events.envelope import random_id, wall_ms
from ..limits import MAX_ROUNDS, check_count
from ..runner import Execution
from ..tools import Tool, ToolSet
from .agents import Spawn
from .models import ModelDefinition, ModelService

__all__ = ["EngineOptions", "Settings"]


class EngineOptions(TypedDict, total=False):
    """What an engine takes by keyword.

    Attributes:
        model, model_runtime, tools: bound when it is made, see `Engine.bind_model`, `Engine.bind_model_runtime` and
            `Engine.bind_tool_runtime`.
        max_rounds: rounds of one run, 1 and up, 8 by default (R287). One more ends it with `BudgetError`
            (``max_rounds``): what a run returns is its result, and half of one is none. `Engine.state` is kept.
        max_tool_calls: tool calls of one run, those of its agents included, 0 and up; None is no limit of its own.
        ledger: what tools and agents are debited to; by default that of the bound `ModelRunner`.
        execution: what the engine's runs are a part of: its signal cancels them, and below its diagnostics they are
            told. By default those of the bound runner, where it exists already.
        spawn: runs agents; None can run none.
        pool: where tools run; by default one of its own.
        new_id, clock, now_ms: as for `Runtime`.
    """

    model: ModelDefinition | None
    model_runtime: ModelService | None
    tools: Sequence[Tool] | ToolSet | None
    max_rounds: int
    max_tool_calls: int | None
    ledger: Ledger | None
    execution: Execution | None
    spawn: Spawn | None
    pool: ToolPool | None
    new_id: Callable[[], str]
    clock: Callable[[], float]
    now_ms: Callable[[], int]


class Settings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What an engine and its forks share; see `EngineOptions`.

    Raises:
        InputError: a value of another type or outside its range, by name.
    """

    max_rounds: int = MAX_ROUNDS
    max_tool_calls: int | None = None
    ledger: Ledger | None = None
    execution: Execution | None = None
    spawn: Spawn | None = None
    pool: ToolPool | None = None
    new_id: Callable[[], str] = random_id
    clock: Callable[[], float] = time.monotonic
    now_ms: Callable[[], int] = wall_ms

    def __post_init__(self) -> None:
        check_count("Engine.max_rounds", self.max_rounds, 1)
        if self.max_tool_calls is not None:
            check_count("Engine.max_tool_calls", self.max_tool_calls, 0)
        for name, kind in (("ledger", Ledger), ("pool", ToolPool), ("execution", Execution)):
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                raise InputError(f"Engine.{name}: expected {kind.__name__} or None, got {type(value).__name__}")
        for name in ("new_id", "clock", "now_ms"):
            value = getattr(self, name)
            if not callable(value):
                raise InputError(f"Engine.{name}: expected a function, got {type(value).__name__}")
        if self.spawn is not None and not callable(self.spawn):
            raise InputError(f"Engine.spawn: expected a function or None, got {type(self.spawn).__name__}")
