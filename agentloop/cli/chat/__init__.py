"""``agentloop chat``: a person talks to an agent, at a terminal or over pipes."""

from .command import add_parser, run

__all__ = ["add_parser", "run"]
