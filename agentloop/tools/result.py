"""From what a tool returned to what a model reads.

``str`` is sent as its own text. Every other value becomes JSON text, by msgspec: numbers, None,
lists, dicts, structs, dataclasses, UUIDs, dates. NaN and infinities have no JSON, and bytes would
arrive as base64 that no model reads: both are refused, wherever they are inside the value.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, Final

import msgspec

from ..admission.paths import path_step
from ..errors import ToolResultError
from ..limits import JSON_DEPTH
from ..messages import TextContent, ToolResult
from .recovery import NotDone

__all__ = ["clean_text", "cut_result", "encode_result", "require_value"]

_BINARY: Final = (bytes, bytearray, memoryview)
_ENCODER: Final = msgspec.json.Encoder()


def clean_text(text: str) -> str:
    """The same text with each lone surrogate replaced by U+FFFD; pairs become their character.

    Such text comes from bad bytes (``surrogateescape``) and has no UTF-8, so no request could hold it.
    """
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def require_value(tool: str, value: object, rule: str) -> Any:
    """Return a value that is no awaitable; close a coroutine, which nobody will await.

    Args:
        rule: what was expected and what came, for the error.

    Raises:
        ToolResultError: it is an awaitable.
    """
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # it never ran
        raise ToolResultError(tool, rule)
    return value


def encode_result(tool: str, value: object) -> ToolResult:
    """Make the result that a returned value stands for (R160).

    Raises:
        ToolResultError: the value has no JSON, or holds NaN, an infinity or bytes; says where.
    """
    if type(value) is ToolResult:
        return _clean_result(value)
    if type(value) is str:
        return ToolResult.ok(clean_text(value))
    if isinstance(value, ToolResult):
        raise ToolResultError(tool, f"expected a ToolResult, got its subclass {type(value).__name__}")
    if isinstance(value, NotDone):
        raise ToolResultError(tool, "expected a result, got NOT_DONE, which only a lookup returns")
    if isinstance(value, str):
        return ToolResult.ok(clean_text(str.__str__(value)))
    return ToolResult.ok(_json(tool, value))


def _clean_result(result: ToolResult) -> ToolResult:
    texts = [item.text for item in result.content]
    cleaned = [clean_text(text) for text in texts]
    if cleaned == texts:
        return result
    return ToolResult(status=result.status, content=tuple(TextContent(text=text) for text in cleaned))


def _json(tool: str, value: object) -> str:
    try:
        plain = msgspec.to_builtins(value, str_keys=True, builtin_types=_BINARY)
        plain = _checked(plain, "$", JSON_DEPTH)
    except _Unfit as error:
        raise ToolResultError(tool, f"{error.path}: {error.rule}") from None
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise ToolResultError(tool, f"expected a value with a JSON form: {str(error)[:200]}") from error
    return _ENCODER.encode(plain).decode()


class _Unfit(Exception):
    def __init__(self, path: str, rule: str) -> None:
        super().__init__(path, rule)
        self.path, self.rule = path, rule


def _checked(value: Any, path: str, depth: int) -> Any:
    """Refuse what JSON cannot say; replace lone surrogates. Values without either come back as they are."""
    kind = type(value)
    if kind is str:
        return clean_text(value)
    if kind is float and not math.isfinite(value):
        raise _Unfit(path, "expected a finite number, got NaN or an infinity")
    if kind in _BINARY:
        raise _Unfit(path, f"expected text, got {kind.__name__}")
    if kind is dict:
        if not depth:
            raise _Unfit("$", f"expected at most {JSON_DEPTH} levels")
        return {clean_text(key): _checked(item, path + path_step(key), depth - 1) for key, item in value.items()}
    if kind in (list, tuple):
        if not depth:
            raise _Unfit("$", f"expected at most {JSON_DEPTH} levels")
        return [_checked(item, f"{path}[{at}]", depth - 1) for at, item in enumerate(value)]
    return value


def cut_result(result: ToolResult, max_bytes: int, *, note: str = "") -> ToolResult:
    """The result, cut to ``max_bytes`` of JSON (`ToolResult` encoded, escapes included).

    A cut text ends in a mark that states the full size; characters and escapes stay whole.
    ``max_bytes`` below about 160 leaves the mark alone, which may then be longer.

    Args:
        note: what the mark says besides.
    """
    size = len(_ENCODER.encode(result))
    if size <= max_bytes:
        return result
    whole = result.text
    mark = f"\n[cut: the full output is {len(whole.encode())} bytes{note}]"
    room = max_bytes - len(_ENCODER.encode(ToolResult(status=result.status, content=(TextContent(text=mark),))))
    return ToolResult(status=result.status, content=(TextContent(text=_head(whole, room) + mark),))


def _head(text: str, room: int) -> str:
    """The longest beginning of ``text`` that takes ``room`` bytes inside a JSON string, or a few less."""
    escaped = _ENCODER.encode(text[: max(room, 0)])[1:-1]
    end = min(max(room, 0), len(escaped))
    while end > 0:
        try:
            return msgspec.json.decode(b'"' + escaped[:end] + b'"', type=str)
        except (msgspec.DecodeError, UnicodeDecodeError):
            end -= 1  # inside a character or an escape, which are at most 6 bytes long
    return ""
