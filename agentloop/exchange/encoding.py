"""Values of this package as canonical JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..admission import canonical

__all__ = ["canonical_bytes", "sorted_bytes"]

_SORTED: Final = msgspec.json.Encoder(order="sorted")


def canonical_bytes(value: Any) -> bytes:
    """RFC 8785 bytes (integers exact, -0 kept) of messages, options, specs, and dicts of them."""
    return canonical(msgspec.json.decode(msgspec.json.encode(value)))


def sorted_bytes(value: Any) -> bytes:
    """The same bytes at C speed, for what holds no float and no dict: messages, specs, feedback.

    All member names of this package are ASCII, so their order is that of RFC 8785, and text is
    escaped as it says; only floats would be written in another form.
    """
    return _SORTED.encode(value)
