"""JSON text in, plain values out; nothing is lost, guessed or silently replaced on the way.

The reader of the standard library works at C speed, but keeps the last of two equal keys, admits
NaN, turns ``1e400`` into infinity, ``-0`` into 0 and half a surrogate pair into a string that
cannot be encoded. It runs here under hooks that see the first three, between checks of the text
that see the rest: a cheap upper bound (a count of brackets and commas) decides almost every text,
a walk over the value the others. Only a text that is going to be refused is read again, slowly, to say where.
"""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any, Final, NoReturn

from ..errors import AdmissionError
from ..limits import JSON_BYTES, JSON_DEPTH, JSON_VALUES
from .json_fault import INTEGER_DIGITS, LONE_SURROGATE_ESCAPE, find_fault
from .patterns import pattern

__all__ = ["parse"]


class _Refused(ValueError):
    """A hook saw what is not admitted; where it is, is found afterwards."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _Refused
    return value


def _float(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise _Refused
    return value


def _integer(literal: str) -> int | float:
    """Used only where the text may hold ``-0``, or the interpreter does not bound integers itself."""
    if literal == "-0":
        return -0.0
    if len(literal) > INTEGER_DIGITS and len(literal.lstrip("-")) > INTEGER_DIGITS:
        raise _Refused
    return int(literal)


def _constant(_literal: str) -> NoReturn:
    raise _Refused


_READ: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant).raw_decode
_READ_EVERY_INTEGER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_constant=_constant, parse_int=_integer
).raw_decode
_NOT_BRACKETS: Final = pattern(r'(?:"(?:[^"\\]++|\\.)*+"|[^][{}"]++)++', re.DOTALL)
_PAIR: Final = pattern(r"\[\]|\{\}")
_SURROGATE_ESCAPE: Final = pattern(r"\\u[dD][89a-fA-F]")
_CONTAINERS: Final = (dict, list)
_SAFE_DEPTH: Final = 2_000
_SPACE: Final = " \t\n\r"


def parse(
    text: str | bytes,
    *,
    max_bytes: int = JSON_BYTES,
    max_depth: int = JSON_DEPTH,
    max_values: int = JSON_VALUES,
) -> Any:
    """Read one JSON text (RFC 8259) into dict, list, str, int, float, bool and None.

    Integers are exact, up to 4,300 digits; the integer literal ``-0`` becomes the float -0.0, since
    no integer keeps its sign. A scalar has depth 0, ``[]`` has depth 1; keys are not values.

    Raises:
        AdmissionError: the text is no JSON, or is more than the limits allow, or holds a duplicate
            key, NaN, Infinity, a number that no double can hold, half a surrogate pair, a byte
            order mark or invalid UTF-8. It tells path, rule and character position, not the value.
    """
    text = _decoded(text, max_bytes)
    openers = text.count("{") + text.count("[")
    if openers > _SAFE_DEPTH and sys.getrecursionlimit() > _SAFE_DEPTH and _too_deep(text, max_depth):
        raise _fault(text, max_depth, max_values)
    read = _READ
    if "-0" in text or not 0 < sys.get_int_max_str_digits() <= INTEGER_DIGITS:
        read = _READ_EVERY_INTEGER
    value, end = None, -1
    try:
        value, end = read(text, len(text) - len(text.lstrip(_SPACE)))
    except (ValueError, RecursionError):
        pass  # what these say is found again below; a JSONDecodeError holds the whole text, so none is chained
    if end < 0 or (end != len(text) and text[end:].strip(_SPACE)):
        raise _fault(text, max_depth, max_values)
    if (openers > max_depth or openers + text.count(",") >= max_values) and not _fits(value, max_depth, max_values):
        raise _fault(text, max_depth, max_values)
    if _SURROGATE_ESCAPE().search(text) and any(escape["lone"] for escape in LONE_SURROGATE_ESCAPE().finditer(text)):
        raise _fault(text, max_depth, max_values)
    return value


def _decoded(text: str | bytes, max_bytes: int) -> str:
    """The text as ``str`` without lone surrogates, at most ``max_bytes`` long in UTF-8."""
    if type(text) is str:
        size = len(text)
        if size <= max_bytes and not text.isascii():
            try:
                size = len(text.encode())
            except UnicodeEncodeError as error:
                raise AdmissionError("$", "expected Unicode text, got half a surrogate pair", error.start) from None
    elif type(text) is bytes:
        size = len(text)
    else:
        raise AdmissionError("$", f"expected JSON text as str or bytes, got {type(text).__name__}")
    if size > max_bytes:
        raise AdmissionError("$", f"expected at most {max_bytes} bytes of JSON, got at least {size}")
    if type(text) is str:
        return text
    try:
        return text.decode()  # type: ignore[union-attr]  # bytes, by the branches above
    except UnicodeDecodeError as error:
        position = len(text[: error.start].decode())  # type: ignore[union-attr]
        raise AdmissionError("$", "expected valid UTF-8", position) from None


def _fault(text: str, max_depth: int, max_values: int) -> AdmissionError:
    """Say what is wrong with a text that was refused."""
    fault = find_fault(text, max_depth=max_depth, max_values=max_values)
    # Without a fault it is well-formed and within limits that the interpreter's own stack cannot serve.
    return fault or AdmissionError("$", f"expected less nesting than max_depth={max_depth} allows here")


def _fits(value: Any, max_depth: int, max_values: int) -> bool:
    """Whether a parsed value keeps both limits: it is walked level by level, containers only."""
    level: list[Any] = [value] if type(value) in _CONTAINERS else []
    left = max_values - 1
    depth = 0
    while level:
        depth += 1
        left -= sum(map(len, level))
        if depth > max_depth or left < 0:
            return False
        level = [
            item
            for parent in level
            for item in (parent.values() if type(parent) is dict else parent)
            if type(item) is dict or type(item) is list
        ]
    return left >= 0


def _too_deep(text: str, depth: int) -> bool:
    """Whether brackets nest more than ``depth`` levels; True also where they do not match.

    Needed only where a host raised the recursion limit so far that the reader could exhaust the
    stack. Brackets alone are left of the text; each pass takes away the innermost pairs, so as
    many passes as there are levels leave nothing.
    """
    brackets = _NOT_BRACKETS().sub("", text)
    for _ in range(depth):
        if not brackets:
            return False
        fewer = _PAIR().sub("", brackets)
        if len(fewer) == len(brackets):
            return True
        brackets = fewer
    return bool(brackets)
