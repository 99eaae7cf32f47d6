"""What a step of an engine comes to."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

__all__ = ["Complete", "Continue"]

T_co = TypeVar("T_co", covariant=True)


class Continue(msgspec.Struct, frozen=True):
    """Another round."""


class Complete(msgspec.Struct, Generic[T_co], frozen=True):
    """The end, with a value; None is one like any other (R293)."""

    value: T_co
