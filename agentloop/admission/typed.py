"""Plain values to typed ones, with errors that never hold a value."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec

from ..errors import AdmissionError, HistoryError, InputError
from .paths import path_step

__all__ = ["to_type"]

_T = TypeVar("_T")

_AT: Final = r"(?s)(.*?)(?: - at `\$?([^`]*)`)?\Z"  # these are compiled when an error is told
_UNKNOWN: Final = r"(?s)Object contains unknown field `(?P<name>.*)`\Z"
_MISSING: Final = r"Object missing required field `(?P<name>\w+)`\Z"
_SAFE: Final = r"Expected [^'\"]*\Z"


def to_type(value: Any, kind: type[_T], *, path: str = "$", builtin_types: tuple[type, ...] | None = None) -> _T:
    """Convert what `parse` returned into ``kind``, strictly: no string becomes a number.

    Args:
        builtin_types: types beside those of JSON whose values stay as they are; no text becomes one of them.

    Raises:
        AdmissionError: path and rule of the first mismatch.
        HistoryError: the value is an exchange whose calls and results do not belong together.
    """
    try:
        return msgspec.convert(value, kind, strict=True, builtin_types=builtin_types)
    except msgspec.ValidationError as error:
        fault = _fault(error, path)
    raise fault  # outside of the handler: msgspec's own text may quote the value, so it is not chained


def _fault(error: msgspec.ValidationError, root: str) -> InputError:
    what, at = re.findall(_AT, str(error))[0]  # any text matches
    path = root + at
    cause = error.__cause__
    if isinstance(cause, HistoryError):
        return HistoryError(cause.code, path + cause.path.removeprefix("$"), cause.rule)
    if isinstance(cause, AdmissionError):
        return AdmissionError(path + cause.path.removeprefix("$"), cause.rule)
    if isinstance(cause, InputError):
        return AdmissionError(path, str(cause))
    if unknown := re.match(_UNKNOWN, what):
        return AdmissionError(path + path_step(unknown["name"]), "expected no field of this name")
    if missing := re.match(_MISSING, what):
        return AdmissionError(f"{path}.{missing['name']}", "expected this field, got none")
    if re.match(_SAFE, what):
        return AdmissionError(path, what.replace("`", "").replace("Expected", "expected", 1))
    return AdmissionError(path, "expected one of the known words")
