"""Keys must not come back: which values are secret, and how texts from outside are cleared of them.

Servers quote the key they refuse, in error bodies, in error events and in headers. What they send
is cleared before it becomes an error's fact or a recording.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["redact", "redact_text", "secret_values"]

_SECRET_NAME: Final = functools.cache(
    lambda: re.compile(r"auth|key|token|secret|cookie|password|signature", re.IGNORECASE)
)
_SHORTEST: Final = 8


def secret_values(*given: Mapping[str, str] | None) -> tuple[str, ...]:
    """The values of headers and query members whose names say that they are secret, and their last words."""
    values = [value for pairs in given if pairs for name, value in pairs.items() if _SECRET_NAME().search(name)]
    return tuple(dict.fromkeys(part for value in values for part in (value, value.rsplit(" ", 1)[-1])))


def redact(text: bytes, secrets: Iterable[str]) -> bytes:
    """Blank each secret, byte for byte, so that the size stays what it was.

    Secrets under 8 bytes are placeholders ("x", "none"): blanking them would only spoil the text.
    """
    for secret in secrets:
        raw = secret.encode("utf-8", "surrogatepass")
        if len(raw) >= _SHORTEST:
            text = text.replace(raw, b"*" * len(raw))
    return text


def redact_text(text: str, secrets: Iterable[str]) -> str:
    """The same for a text that may have been shortened: a secret cut off at its end is blanked too."""
    for secret in secrets:
        if len(secret) < _SHORTEST:
            continue
        text = text.replace(secret, "*" * len(secret))
        kept = text.rstrip("…)'\"")
        for size in range(min(len(secret) - 1, len(kept)), _SHORTEST - 1, -1):
            if kept.endswith(secret[:size]):
                text = kept[:-size] + "*" * size + text[len(kept) :]
                break
    return text
