"""Values of this package as canonical JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from ..admission import canonical

__all__ = ["canonical_bytes"]


def canonical_bytes(value: Any) -> bytes:
    """RFC 8785 bytes (integers exact, -0 kept) of messages, options, specs, and dicts of them."""
    return canonical(msgspec.json.decode(msgspec.json.encode(value)))
