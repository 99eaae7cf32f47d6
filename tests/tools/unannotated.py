"""Functions without ``from __future__ import annotations``: their annotations are objects."""

from agentloop.tools import ToolContext

__all__ = ["plain", "with_context"]


def plain(count: int, names: list[str]) -> int:
    """Count."""
    return count + len(names)


def with_context(count: int, context: ToolContext) -> str:
    """Count with context."""
    return f"{count} {context.run_id}"
