"""Paths into a JSON value, for errors: ``$``, ``$.items[2].name``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .patterns import pattern

__all__ = ["join_path", "path_step"]

_NAME: Final = pattern(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")


def path_step(step: str | int) -> str:
    """One step: ``[2]``, ``.name``, or ``[key of 70 characters]``.

    A key that is no short ASCII name may hold anything, so a path tells its length only.
    """
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _NAME().match(step) else f"[key of {len(step)} characters]"


def join_path(root: str, steps: Sequence[str | int]) -> str:
    """``root`` followed by ``steps``, outermost first."""
    return root + "".join(map(path_step, steps))
