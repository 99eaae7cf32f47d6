"""SHA-256 over canonical JSON, each use in a domain of its own, so that no two uses can collide."""

from __future__ import annotations

import hashlib
from typing import Any

from ..errors import InputError
from .canonical import canonical

__all__ = ["chain", "digest", "digest_bytes"]


def digest(domain: str, value: Any) -> str:
    """Hex SHA-256 of ``domain``, a line feed and the canonical JSON of ``value``.

    Args:
        domain: what the digest is for and its version, as ``agentloop/origin/v1``.

    Raises:
        AdmissionError: the value is not plain.
        InputError: the domain is empty or holds a line feed.
    """
    return digest_bytes(domain, canonical(value))


def digest_bytes(domain: str, data: bytes) -> str:
    """Hex SHA-256 of ``domain``, a line feed and ``data``."""
    return _begin(domain, data).hexdigest()


def chain(domain: str, previous: str, *parts: bytes) -> str:
    """Hex SHA-256 that continues ``previous`` with ``parts``.

    Each part is framed by its length, so moving bytes from one part to the next changes the digest.

    Args:
        previous: the digest so far, "" at the beginning.
    """
    hasher = _begin(domain, previous.encode() + b"\n")
    for part in parts:
        hasher.update(b"%d:" % len(part))
        hasher.update(part)
    return hasher.hexdigest()


def _begin(domain: str, data: bytes) -> hashlib._Hash:
    if not domain or "\n" in domain:
        raise InputError("digest domain: expected a non-empty string without a line feed")
    return hashlib.sha256(domain.encode() + b"\n" + data)
