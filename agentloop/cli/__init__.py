"""The command line: `main`, and one module for each subcommand."""

from .commands import COMMANDS, main

__all__ = ["COMMANDS", "main"]
