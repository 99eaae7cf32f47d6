"""Find what is wrong with a text that the fast parser did not admit: path, rule, position.

A complete, iterative scanner of RFC 8259 JSON: it needs no stack of calls for deep nesting and
reads each character once. It runs only after the fast parser has refused, so its speed does not
matter, its verdict does: `tests` hold both to the same language.
"""

from __future__ import annotations

import functools
import re
import sys
from typing import Final

from ..errors import AdmissionError
from .paths import join_path
from .patterns import pattern

__all__ = ["INTEGER_DIGITS", "LONE_SURROGATE_ESCAPE", "find_fault"]

INTEGER_DIGITS: Final = 4_300
"""Most digits of an integer; the interpreter's own default bound on quadratic conversion."""

LONE_SURROGATE_ESCAPE: Final = functools.cache(
    lambda: re.compile(
        r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F])|.)", re.DOTALL
    )
)
"""Matches escapes one after the other; group ``lone`` is set for half a pair."""

_SPACE: Final = pattern(r"[ \t\n\r]*+")
_STRING: Final = pattern(r'"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_NUMBER: Final = functools.cache(
    lambda: re.compile(r"-?+(?:0|[1-9][0-9]*+)(?P<real>(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+)")
)
_WORDS: Final = ("true", "false", "null")
_CONSTANTS: Final = ("NaN", "Infinity", "-Infinity")


class _Frame:
    """One open container: the keys so far, and the step into the current item (None before the first)."""

    __slots__ = ("is_array", "keys", "step")

    def __init__(self, opener: str) -> None:
        self.is_array = opener == "["
        self.keys: set[str] = set()
        self.step: str | int | None = None


class _Scanner:
    def __init__(self, text: str, max_depth: int, max_values: int) -> None:
        self.text, self.at = text, 0
        self.max_depth, self.max_values = max_depth, max_values
        self.values = 0
        self.frames: list[_Frame] = []

    def fault(self, rule: str, at: int | None = None) -> AdmissionError:
        steps = [frame.step for frame in self.frames if frame.step is not None]
        return AdmissionError(join_path("$", steps), rule, self.at if at is None else at)

    def run(self) -> None:
        """Read the whole text; raise the first fault in it."""
        self.value()
        while self.frames:
            self.after_item() if self.frames[-1].step is not None else self.first_item()
        self.space()
        if self.at < len(self.text):
            raise self.fault("expected the end of the text after one JSON value")

    def space(self) -> str:
        """Skip white space; return the next character, '' at the end."""
        self.at = _SPACE().match(self.text, self.at).end()  # type: ignore[union-attr]  # matches the empty string
        return self.text[self.at : self.at + 1]

    def first_item(self) -> None:
        frame, char = self.frames[-1], self.space()
        if char == ("]" if frame.is_array else "}"):
            self.at += 1
            self.frames.pop()
        elif frame.is_array:
            frame.step = 0
            self.value()
        else:
            self.member(frame)

    def after_item(self) -> None:
        frame, char = self.frames[-1], self.space()
        closer = "]" if frame.is_array else "}"
        if char == closer:
            self.at += 1
            self.frames.pop()
            return
        if char != ",":
            raise self.fault(f"expected ',' or '{closer}', got {_name(char)}")
        self.at += 1
        if isinstance(frame.step, int):
            frame.step += 1
            self.value()
        else:
            self.member(frame)

    def member(self, frame: _Frame) -> None:
        """Read a key, its colon and the start of its value."""
        frame.step = None
        if (char := self.space()) != '"':
            raise self.fault(f"expected a key in double quotes, got {_name(char)}")
        start = self.at
        key = self.string()
        frame.step = key
        if key in frame.keys:
            raise self.fault("expected each key once in an object, got a duplicate", start)
        frame.keys.add(key)
        if (char := self.space()) != ":":
            raise self.fault(f"expected ':' after a key, got {_name(char)}")
        self.at += 1
        self.value()

    def value(self) -> None:
        """Read a scalar, or open a container."""
        char = self.space()
        self.values += 1
        if self.values > self.max_values:
            raise self.fault(f"expected at most {self.max_values} values, got more")
        if char and char in "{[":
            if len(self.frames) >= self.max_depth:
                raise self.fault(f"expected at most {self.max_depth} levels of nesting, got more")
            self.frames.append(_Frame(char))
            self.at += 1
        elif char == '"':
            self.string()
        elif self.text.startswith(_CONSTANTS, self.at):
            raise self.fault("expected a JSON number, got NaN or Infinity")
        elif self.text.startswith(_WORDS, self.at):
            self.at += 5 if char == "f" else 4
        elif char and char in "-0123456789":
            self.number()
        elif char == "\ufeff":
            raise self.fault("expected no byte order mark")
        else:
            raise self.fault(f"expected a JSON value, got {_name(char)}")

    def string(self) -> str:
        """Read a string; return it decoded."""
        start = self.at
        end = _STRING().match(self.text, start).end()  # type: ignore[union-attr]  # callers saw the opening quote
        body = self.text[start + 1 : end]
        for escape in LONE_SURROGATE_ESCAPE().finditer(body):
            if escape["lone"]:
                raise self.fault("expected surrogates in pairs, got half of one", start + 1 + escape.start())
        if (char := self.text[end : end + 1]) != '"':
            wrong = "control character" if char and char < " " else _name(char) if char != "\\" else "bad escape"
            raise self.fault(f"expected a string up to its closing quote, got {wrong}", end)
        self.at = end + 1
        return _unescape(body)

    def number(self) -> None:
        start, match = self.at, _NUMBER().match(self.text, self.at)
        if match is None:
            raise self.fault("expected a digit after '-'", start + 1)
        literal = match[0]
        if match["real"]:
            if float(literal) in (float("inf"), float("-inf")):
                raise self.fault("expected a number that a double can hold")
        elif len(literal.lstrip("-")) > (most := _integer_digits()):
            raise self.fault(f"expected an integer of at most {most} digits, got {len(literal.lstrip('-'))}")
        self.at = match.end()
        if (char := self.text[self.at : self.at + 1]) and char in "0123456789.eE+-":
            raise self.fault(f"expected the end of a number, got {_name(char)}")


def _integer_digits() -> int:
    """`INTEGER_DIGITS`, or fewer where the interpreter is set to convert fewer."""
    return min(INTEGER_DIGITS, sys.get_int_max_str_digits() or INTEGER_DIGITS)


def find_fault(text: str, *, max_depth: int, max_values: int) -> AdmissionError | None:
    """The first fault in ``text``, as the error to raise; None when there is none.

    Positions are character offsets. Linear in the text; uses no call stack for nesting.
    """
    try:
        _Scanner(text, max_depth, max_values).run()
    except AdmissionError as fault:
        return fault
    return None


_SIMPLE: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE: Final = pattern(r"(?:\\u[0-9a-fA-F]{4})+|\\.")


def _unescape(body: str) -> str:
    """Decode the escapes of a string body that matched the grammar."""

    def one(match: re.Match[str]) -> str:
        escape = match[0]
        if escape[1] != "u":
            return _SIMPLE.get(escape[1], escape[1])
        units = bytes.fromhex(escape.replace("\\u", ""))
        return units.decode("utf-16-be")

    return _ESCAPE().sub(one, body) if "\\" in body else body


def _name(char: str) -> str:
    """A character as an error names it: punctuation of ASCII by itself, everything else by its kind."""
    if not char:
        return "the end of the text"
    if char == '"':
        return "a double quote"
    if char.isascii() and char.isalnum():
        return "a letter or digit"
    if "!" <= char <= "~":
        return f"{char!r}"
    return "a byte order mark" if char == "\ufeff" else "another character"
