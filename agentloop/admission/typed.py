"""Plain values to typed ones, with errors that never hold a value."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from ..errors import AdmissionError, HistoryError, InputError
from .paths import path_step

__all__ = ["to_type"]

_T = TypeVar("_T")

_AT: Final = re.compile(r"(.*?)(?: - at `\$?([^`]*)`)?\Z", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(?P<name>.*)`\Z", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(?P<name>\w+)`\Z")
_SAFE: Final = re.compile(r"Expected [^'\"]*\Z")


def to_type(value: Any, kind: type[_T], *, path: str = "$") -> _T:
    """Convert what `parse` returned into ``kind``, strictly: no string becomes a number.

    Raises:
        AdmissionError: path and rule of the first mismatch.
        HistoryError: the value is an exchange whose calls and results do not belong together.
    """
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        fault = _fault(error, path)
    raise fault  # outside of the handler: msgspec's own text may quote the value, so it is not chained


def _fault(error: msgspec.ValidationError, root: str) -> InputError:
    what, at = _AT.findall(str(error))[0]  # any text matches
    path = root + at
    cause = error.__cause__
    if isinstance(cause, HistoryError):
        return HistoryError(cause.code, path + cause.path.removeprefix("$"), cause.rule)
    if isinstance(cause, AdmissionError):
        return AdmissionError(path + cause.path.removeprefix("$"), cause.rule)
    if isinstance(cause, InputError):
        return AdmissionError(path, str(cause))
    if unknown := _UNKNOWN.match(what):
        return AdmissionError(path + path_step(unknown["name"]), "expected no field of this name")
    if missing := _MISSING.match(what):
        return AdmissionError(f"{path}.{missing['name']}", "expected this field, got none")
    if _SAFE.match(what):
        return AdmissionError(path, what.replace("`", "").replace("Expected", "expected", 1))
    return AdmissionError(path, "expected one of the known words")
