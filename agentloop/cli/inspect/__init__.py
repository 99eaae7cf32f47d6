"""``agentloop inspect``: what a store holds, as tables, as JSON or as a page."""

from .command import add_parser, run

__all__ = ["add_parser", "run"]
