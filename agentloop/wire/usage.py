"""The tokens that a provider reports: exactly once, at or after the finish (R118)."""

from __future__ import annotations

from typing import Any

from ..limits import SAFE_INTEGER
from ..messages.parts import Usage
from .dialect import Dialect
from .fault import Fault, kind_of

__all__ = ["UsageReport", "read_usage"]

_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
_RULE = "a non-negative integer"


class UsageReport:
    """Collects the reports of one stream and says which one counts."""

    __slots__ = ("_dialect", "_early", "_last")

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._last: Any = None  # as it came; read when it is known to be the one that counts
        self._early = False

    def add(self, report: Any, *, finished: bool) -> None:
        """Take one report; ``finished`` says that the finish came before it or with it.

        Raises:
            Fault: ``duplicate_usage`` or ``bad_usage``.
        """
        if not self._dialect.usage_running:
            if self._last is not None:
                raise Fault("duplicate_usage", "usage exactly once", "a second usage")
            read_usage(report, partial=self._dialect.usage_partial)
        self._last = report
        self._early = not finished

    def finish(self) -> None:
        """The finish came in a chunk after the reports so far.

        Raises:
            Fault: ``bad_usage``, when one of them stands before the finish.
        """
        if self._early and not self._dialect.usage_running:
            raise Fault("bad_usage", "usage at or after the finish", "usage before it")

    def settle(self) -> Usage | None:
        """The usage of the whole reply; None where the dialect allows that.

        Raises:
            Fault: ``missing_usage`` or ``bad_usage``.
        """
        if self._last is None:
            if not self._dialect.usage_absent:
                raise Fault("missing_usage", "usage once, at or after the finish", "none")
            return None
        return read_usage(self._last, partial=self._dialect.usage_partial)


def read_usage(report: Any, *, partial: bool) -> Usage:
    """One report as a `Usage`; with ``partial`` one missing count is computed from the two others.

    Raises:
        Fault: ``bad_usage`` names the field.
    """
    if type(report) is not dict:
        raise Fault("bad_usage", "usage: an object", kind_of(report))
    counts = {name: _count(report, name) for name in _COUNTS}
    missing = [name for name in _COUNTS if counts[name] is None]
    if partial and len(missing) == 1:
        whole, one, other = counts["total_tokens"], counts["prompt_tokens"], counts["completion_tokens"]
        if whole is None:
            counts["total_tokens"] = (one or 0) + (other or 0)
        else:
            counts[missing[0]] = whole - (one or 0) - (other or 0)
    for name, value in counts.items():
        if value is None or not 0 <= value <= SAFE_INTEGER:
            raise Fault("bad_usage", f"usage.{name}: {_RULE}", _got(value))
    return Usage(
        input_tokens=counts["prompt_tokens"] or 0,
        output_tokens=counts["completion_tokens"] or 0,
        total_tokens=counts["total_tokens"] or 0,
        cached_input_tokens=_detail(report, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=_detail(report, "completion_tokens_details", "reasoning_tokens"),
    )


def _count(owner: dict[str, Any], name: str, path: str = "usage") -> int | None:
    value = owner.get(name)
    if value is not None and (type(value) is not int or not 0 <= value <= SAFE_INTEGER):
        raise Fault("bad_usage", f"{path}.{name}: {_RULE}", _got(value))
    return value


def _got(value: object) -> str:
    return "one over 2**53 - 1" if type(value) is int and value > SAFE_INTEGER else kind_of(value)


def _detail(report: dict[str, Any], group: str, name: str) -> int | None:
    details = report.get(group)
    if details is None:
        return None
    if type(details) is not dict:
        raise Fault("bad_usage", f"usage.{group}: an object or null", kind_of(details))
    return _count(details, name, f"usage.{group}")
