"""A broken rule without its place: raised by the parts of the assembler, which knows where it is."""

from __future__ import annotations

from typing import Any

from ..errors import StreamRefused

__all__ = ["Fault", "kind_of"]


class Fault(Exception):
    """Which rule of the table is broken, what it wants and what came.

    Raised inside `agentloop.wire` only; the assembler turns it into a `StreamRefused` with the
    event and the byte. ``facts`` are further keyword arguments of `StreamRefused`.
    """

    def __init__(self, code: str, expected: str, got: str, **facts: Any) -> None:
        super().__init__(code, expected, got)
        self.code, self.expected, self.got, self.facts = code, expected, got, facts

    def at(self, event: int, byte: int, *, dialect: str) -> StreamRefused:
        """The refusal that users see."""
        return StreamRefused(self.code, event, byte, self.expected, self.got, dialect=dialect, **self.facts)


def kind_of(value: object) -> str:
    """The JSON kind of a decoded value, for messages that must not hold the value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "a negative integer" if value < 0 else "an integer"
        case float():
            return "a number with a fraction"
        case str():
            return "an empty string" if not value else "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
        case _:
            return type(value).__name__
