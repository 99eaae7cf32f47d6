"""Values of this package as canonical JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..admission import canonical, digest_bytes
from ..messages import FunctionSpec, ModelOptions, SystemMessage, UserMessage

__all__ = ["canonical_bytes", "origin_digest", "sorted_bytes"]

_ORIGIN_DOMAIN: Final = "agentloop/origin/v1"

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


def origin_digest(
    messages: tuple[SystemMessage | UserMessage, ...],
    options: ModelOptions,
    tools: tuple[FunctionSpec, ...],
    continues: str | None,
) -> str:
    """The content digest of an origin; ``continues`` is the digest of the exchange it follows."""
    basis = b'{"continues":%b,"messages":%b,"options":%b,"tools":%b}' % (
        sorted_bytes(continues),
        sorted_bytes(messages),
        canonical_bytes(options) if _has_float(options) else sorted_bytes(options),
        sorted_bytes(tools),
    )
    return digest_bytes(_ORIGIN_DOMAIN, basis)


def _has_float(options: ModelOptions) -> bool:
    return type(options.temperature) is float or type(options.top_p) is float
