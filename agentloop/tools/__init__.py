"""Typed functions as tools: what a model sees, what it may pass, and what it reads back."""

from .arguments import ArgumentsRefused
from .context import SelectionContext, Spawn, ToolContext
from .function import Tool, tool
from .output import TypedOutput
from .pipeline import ToolInvocation, ToolJournal, ToolPipeline
from .policy import ToolPolicy
from .recovery import NOT_DONE, NotDone
from .result import clean_text, cut_result, require_value
from .selection import selection
from .toolset import ToolSet

__all__ = [
    "ArgumentsRefused",
    "NOT_DONE",
    "NotDone",
    "SelectionContext",
    "Spawn",
    "Tool",
    "ToolContext",
    "ToolInvocation",
    "ToolJournal",
    "ToolPipeline",
    "ToolPolicy",
    "ToolSet",
    "TypedOutput",
    "clean_text",
    "cut_result",
    "require_value",
    "selection",
    "tool",
]
