"""Plain values: what JSON can hold, and nothing that merely looks like it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from ..errors import AdmissionError
from ..limits import JSON_DEPTH, JSON_VALUES
from .json_fault import INTEGER_DIGITS
from .paths import join_path

__all__ = ["INTEGER_BOUND", "is_unicode", "require_plain"]

INTEGER_BOUND: Final = 10**INTEGER_DIGITS
"""Integers are admitted strictly between this and its negative."""


def is_unicode(text: str) -> bool:
    """Whether ``text`` is made of Unicode scalars only, so that it has a UTF-8 form."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_plain(value: Any, path: str = "$", *, max_depth: int = JSON_DEPTH, max_values: int = JSON_VALUES) -> Any:
    """Check that ``value`` is made of exact dict, list, str, int, float, bool and None; return it.

    Subclasses are refused, because they may answer differently each time they are asked; so are
    cycles, keys that are no str, NaN, infinities, half surrogate pairs and integers of more than
    4,300 digits. A list or dict that occurs twice without a cycle is fine.

    Raises:
        AdmissionError: path and rule of the first value that is not plain; never the value.
    """
    steps: list[str | int] = []
    parents: list[int] = []
    iterators: list[Iterator[tuple[str | int, Any]]] = []
    count = 0
    item = value
    while True:
        count += 1
        if count > max_values:
            raise AdmissionError(join_path(path, steps), f"expected at most {max_values} values, got more")
        children = _children(item, path, steps)
        if children is not None:
            if id(item) in parents:
                raise AdmissionError(join_path(path, steps), "expected no cycle")
            if len(parents) >= max_depth:
                raise AdmissionError(
                    join_path(path, steps), f"expected at most {max_depth} levels of nesting, got more"
                )
            parents.append(id(item))
            iterators.append(children)
            steps.append("")
        while iterators:
            step = next(iterators[-1], None)
            if step is not None:
                steps[-1], item = step
                break
            iterators.pop()
            parents.pop()
            steps.pop()
        else:
            return value


def _children(value: Any, path: str, steps: list[str | int]) -> Iterator[tuple[str | int, Any]] | None:
    """The members of a container, None for a scalar that is plain."""
    kind = type(value)
    rule = None
    if kind is dict:
        for key in value:
            if type(key) is not str:
                rule = f"expected keys of type str, got {type(key).__name__}"
            elif not is_unicode(key):
                rule = "expected keys without half surrogate pairs"
            if rule:
                raise AdmissionError(join_path(path, steps), rule)
        return iter(list(value.items()))
    if kind is list:
        return iter(list(enumerate(value)))
    if kind is str:
        rule = None if is_unicode(value) else "expected Unicode text, got half a surrogate pair"
    elif kind is float:
        rule = None if math.isfinite(value) else "expected a finite number"
    elif kind is int:
        rule = None if -INTEGER_BOUND < value < INTEGER_BOUND else f"expected at most {INTEGER_DIGITS} digits, got more"
    elif kind is not bool and value is not None:
        rule = f"expected dict, list, str, int, float, bool or None, got {kind.__name__}"
    if rule:
        raise AdmissionError(join_path(path, steps), rule)
    return None
