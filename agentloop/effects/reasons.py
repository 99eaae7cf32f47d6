"""The words that records and events have for what ended an effect.

Errors come from providers, transports, sinks and tools of a host as well, whose classes may say anything.
A record can hold a short word, and has to be readable for ever.
"""

from __future__ import annotations

from typing import Final

from ..errors import AgentLoopError, LimitExceeded

__all__ = ["code_of", "limit_of", "type_name"]

_CHARS: Final = 128


def code_of(error: BaseException) -> str:
    """The code of an error; the name of its class where it has none, or none of 1 to 128 ASCII characters."""
    if not isinstance(error, AgentLoopError):
        return _class_name(error)
    try:
        return _word(error.code, error)
    except Exception:  # noqa: BLE001  # a property of somebody else's
        return _class_name(error)


def type_name(error: BaseException) -> str:
    """The qualified name of an error's class, without the module of built-in ones."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def limit_of(error: LimitExceeded) -> str:
    """The name of the limit that was reached; the name of the error's class where that is no word."""
    return _word(error.limit, error)


def _word(given: object, error: BaseException) -> str:
    if type(given) is str and 1 <= len(given) <= _CHARS and given.isascii():
        return given
    return _class_name(error)


def _class_name(error: BaseException) -> str:
    return type(error).__name__[:_CHARS]
