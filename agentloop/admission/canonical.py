"""One text for each value: RFC 8785 (JSON Canonicalization Scheme), with two exceptions.

Integers are written exactly (the RFC would round them to doubles), and -0.0 is written ``-0``
(the RFC writes ``0``), because changed material must never have the same digest.

Floats are written as ECMAScript does, section 3.2.2.3 of the RFC: 1.0 is ``1``. So a float and the
integer with the digits it prints are one canonical value, as they are one JSON number.
"""

from __future__ import annotations

from json.encoder import encode_basestring
from typing import Any

from ..errors import AdmissionError
from ..limits import JSON_DEPTH, JSON_VALUES
from .plain import INTEGER_BOUND, require_plain

__all__ = ["canonical", "canonical_text"]


class _NotPlain(Exception):
    """Something in the value has no canonical form; `require_plain` says what and where."""


def canonical(value: Any) -> bytes:
    """The canonical JSON of a plain value, as UTF-8.

    ``parse(canonical(x))`` gives ``x`` again, the sign of zero included; a float with an integral
    value comes back as the integer that its digits say.

    Raises:
        AdmissionError: path and rule of what is not plain (see `require_plain`), of more than 64
            levels or 100,000 values.
    """
    try:
        return _write(value, JSON_DEPTH).encode()
    except (_NotPlain, UnicodeEncodeError):
        pass  # the path is found below, outside of this error, whose facts hold the text
    raise _fault(value)


def canonical_text(value: Any) -> str:
    """`canonical` as a string."""
    return canonical(value).decode()


def _write(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is str:
        return encode_basestring(value)
    if kind is dict:
        if not depth:
            raise _NotPlain
        return _object(value, depth - 1)
    if kind is list:
        if not depth:
            raise _NotPlain
        return "[" + ",".join([_write(item, depth - 1) for item in value]) + "]"
    if value is None:
        return "null"
    if kind is bool:
        return "true" if value else "false"
    if kind is int and -INTEGER_BOUND < value < INTEGER_BOUND:
        return int.__repr__(value)
    if kind is float:
        return _float(value)
    raise _NotPlain


def _object(value: dict[Any, Any], depth: int) -> str:
    ascii_only = True
    for key in value:
        if type(key) is not str:
            raise _NotPlain
        ascii_only = ascii_only and key.isascii()
    keys = sorted(value) if ascii_only else sorted(value, key=_utf16)
    return "{" + ",".join([f"{encode_basestring(key)}:{_write(value[key], depth)}" for key in keys]) + "}"


def _utf16(key: str) -> bytes:
    """Sort key: UTF-16 code units, as section 3.2.3 of the RFC wants; big-endian bytes compare alike."""
    return key.encode("utf-16-be")


def _float(value: float) -> str:
    """A double in the shortest form of ECMAScript's Number::toString (ECMA-262, 6.1.6.1.20).

    `repr` finds the same shortest digits; only the place of the point differs.
    """
    text = repr(value)
    if text.endswith(".0") and "e" not in text:
        return text[:-2]
    if "e" not in text:
        return text if "n" not in text and not text.startswith(("0.0000", "-0.0000")) else _rare_float(text)
    return _rare_float(text)


def _rare_float(text: str) -> str:
    if "n" in text:  # nan, inf
        raise _NotPlain
    sign = "-" if text.startswith("-") else ""
    mantissa, _, exponent = text.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    power = point - 1
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{'+' if power > 0 else '-'}{abs(power)}"


def _fault(value: Any) -> AdmissionError:
    try:
        require_plain(value, max_depth=JSON_DEPTH, max_values=JSON_VALUES)
    except AdmissionError as fault:
        return AdmissionError(fault.path, fault.rule)
    return AdmissionError("$", "expected a value that nobody changes while it is read")
