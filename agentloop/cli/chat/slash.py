"""The commands of a chat, and the lines that name one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

__all__ = ["COMMANDS", "Command", "Slash", "choice_of", "read_slash", "said"]


class Command(msgspec.Struct, frozen=True):
    """One command: what it takes after its name, and what it is for."""

    takes: str
    purpose: str


COMMANDS: Final[dict[str, Command]] = {
    "help": Command("", "these lines"),
    "tools": Command("", "the agent's tools and how each is run"),
    "budget": Command("", "what the last turn used of its limits, and the tokens of this session"),
    "save": Command("FILE", "write the conversation as Markdown, readable by you alone; /save! replaces a file"),
    "resume": Command("[NAME]", "list the conversations, or go on with one and what it left unfinished"),
    "undo": Command("", "take back the last turn: go on before it under a new name; the old one stays"),
    "new": Command("", "begin another conversation"),
    "quit": Command("", "leave; so does Ctrl-D"),
}
"""By name, in the order in which they are listed."""


class Slash(msgspec.Struct, frozen=True):
    """A line that names a command, or tries to.

    Attributes:
        name: as typed, without the slash and the mark. argument: the rest of the line, trimmed.
        insists: whether a ``!`` follows the name.
    """

    name: str
    argument: str
    insists: bool


def read_slash(line: str) -> Slash | None:
    """The command of a line; None where it is something to say. ``//`` begins a text with one slash."""
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line[1:].partition(" ")
    return Slash(name.removesuffix("!").rstrip(), argument.strip(), name.endswith("!"))


def said(line: str) -> str:
    """The text that a line says where it names no command."""
    return line[1:] if line.startswith("//") else line


def choice_of(line: str, words: Iterable[str]) -> tuple[str, str] | None:
    """The word that a line begins with, or that its first letters stand for, and the rest; None where there is none."""
    typed, _, rest = line.strip().partition(" ")
    typed = typed.lower()
    found = [word for word in words if typed and word.startswith(typed)]
    if typed in found:
        found = [typed]
    return (found[0], rest.strip()) if len(found) == 1 else None
