"""Typed functions as tools: what a model sees, what it may pass, and what it reads back."""

from .arguments import ArgumentsRefused
from .context import ToolContext
from .function import Tool, tool
from .policy import ToolPolicy
from .toolset import ToolSet

__all__ = ["ArgumentsRefused", "Tool", "ToolContext", "ToolPolicy", "ToolSet", "tool"]
