"""How a call is recovered whose process died while its tool ran.

    none      not stated; it waits for a host, as ``settle`` does
    repeat    the tool runs again with the same `ToolContext.effect_id`; it is idempotent
    settle    a host says what became of it
    lookup    a function asks the resource what became of it, by the effect id

A lookup has the parameters of its tool, and a `ToolContext` where it asks for one. It returns what
the tool would have returned, or `NOT_DONE`; None is no answer, and the call waits for a host.
`NOT_DONE` only the resource can promise: a process that
was taken for dead may still be on its way with the effect, so whoever answers so must refuse that
id to latecomers, or know that none can come.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Final, Literal

__all__ = ["Lookup", "NOT_DONE", "NotDone", "RecoveryKind"]


class NotDone(enum.Enum):
    """The type of `NOT_DONE`, for the annotation of a lookup: ``-> Receipt | NotDone``."""

    NOT_DONE = "not_done"


NOT_DONE: Final = NotDone.NOT_DONE
"""What a lookup returns when the call has not taken effect and will not, so that its tool may run now."""

Lookup = Callable[..., Any]
"""Asks what became of a call; sync or async."""

RecoveryKind = Literal["none", "repeat", "settle", "lookup"]
"""See the module's docstring."""
