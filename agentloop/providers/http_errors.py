"""What an HTTP answer other than a stream says: vendor error, retry-after, and what may have happened.

Vendors agree on little. Seen in recordings: an ``error`` object with string, integer or null
codes; ``error`` as plain text with ``code`` beside it; an ``error`` inside ``error``; a list with
one object; a bare object with ``detail`` or ``message``; HTML of a proxy; plain text; nothing.
Only short strings are taken from a body: it is never kept or shown whole. The text of an error has
none of a vendor's sentences, which may quote the request; they are an attribute.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec

from ..admission import pattern
from ..errors import HTTPStatusError
from .secrets import redact, redact_text

__all__ = [
    "ERROR_BODY_BYTES",
    "VENDOR_MESSAGE_CHARS",
    "VendorError",
    "body_kind",
    "may_have_been_processed",
    "parse_error_body",
    "parse_retry_after",
    "shorten",
    "status_error",
]

ERROR_BODY_BYTES: Final = 64 * 1024
"""How much of an error's body is read."""

VENDOR_MESSAGE_CHARS: Final = 300
"""How much of a vendor's message is kept."""

_CODE_CHARS: Final = 100
_WORD: Final = pattern(r"[A-Za-z0-9_.:/-]{1,64}")
_NUMBER: Final = pattern(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")
_HTML_TITLE: Final = rb"(?is)<(?:title|h1)[^>]*>(.*?)</(?:title|h1)>"
_PROCESSED_4XX: Final = frozenset({408, 409, 499})


class VendorError(msgspec.Struct, frozen=True):
    """What the body of an error said; None where it did not say.

    Attributes:
        code, type, message: the vendor's, each a short line.
        upstream: what a router quotes of the vendor behind it.
    """

    code: str | None = None
    type: str | None = None
    message: str | None = None
    upstream: str | None = None


def parse_error_body(body: bytes, *, secrets: Iterable[str] = ()) -> VendorError:
    """Take code, type and message from the body of an error, of whatever shape.

    Never raises: a body that says nothing gives a `VendorError` without facts. ``secrets`` are
    blanked, because servers quote the key they refuse.
    """
    secrets = tuple(secrets)
    found = _read(redact(body[:ERROR_BODY_BYTES], secrets).strip())
    if not secrets:
        return found
    facts = {name: getattr(found, name) for name in found.__struct_fields__}
    return VendorError(**{name: fact and redact_text(fact, secrets) for name, fact in facts.items()})


def _read(text: bytes) -> VendorError:
    if text[:1] in (b"{", b"["):
        try:
            return _from_json(json.loads(text))
        except (ValueError, RecursionError):
            return VendorError()
    if text[:1] == b"<":
        import html  # noqa: PLC0415  # its table of entities takes a millisecond to import, and few answers are pages

        title = re.search(_HTML_TITLE, text)
        inner = re.sub(rb"<[^>]*>", b"", title.group(1)) if title else b""
        return VendorError(message=shorten(html.unescape(inner.decode("utf-8", "replace"))) or None)
    return VendorError(message=shorten(text.split(b"\n", 1)[0].decode("utf-8", "replace")) or None)


def status_error(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    attempt_id: str,
    now: float,
    secrets: Iterable[str] = (),
) -> HTTPStatusError:
    """Build the error for an answer whose status is not 200.

    Args:
        headers: as for `parse_retry_after`.
        body: its first bytes, up to `ERROR_BODY_BYTES`.
        now: POSIX time, for a ``Retry-After`` date.
        secrets: texts that the error must not repeat.
    """
    secrets = tuple(secrets)
    vendor = parse_error_body(body, secrets=secrets)
    request_id = headers.get("x-request-id")
    request_id = redact_text(shorten(request_id, _CODE_CHARS), secrets) if request_id else None
    message = " / ".join(text for text in (vendor.message, vendor.upstream) if text)
    return HTTPStatusError(
        f"HTTP {status}: expected 200 with an event stream, got {_facts(vendor, request_id)}",
        status=status,
        attempt_id=attempt_id,
        may_have_been_processed=may_have_been_processed(status),
        retry_after=parse_retry_after(headers, now=now),
        vendor_code=vendor.code,
        vendor_type=vendor.type,
        vendor_message=redact_text(shorten(message), secrets) or None,
        request_id=request_id,
    )


def _facts(vendor: VendorError, request_id: str | None) -> str:
    """Type, code and request id for the text of an error; each only if it is one plain word."""
    named = (("type", vendor.type), ("code", vendor.code), ("request id", request_id))
    return ", ".join(f"{name} {word}" for name, word in named if word and _WORD().fullmatch(word)) or "no code"


def _from_json(value: Any) -> VendorError:
    """Read the object of an error: the first of a list, and the innermost ``error``."""
    outer: dict[str, Any] = {}
    for _ in range(4):
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict):
            break
        inner = value.get("error")
        if not isinstance(inner, (dict, list)) or not inner:
            return _from_object(value, outer)
        outer, value = value, inner
    if isinstance(value, dict):
        return _from_object(value, outer)
    return VendorError(code=_word(outer.get("code")), message=_message(value))


def _from_object(error: dict[str, Any], outer: dict[str, Any]) -> VendorError:
    message = next((text for key in ("message", "error", "detail", "msg") if (text := _message(error.get(key)))), None)
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    kind = error.get("type")
    if kind is None and outer.get("type") != "error":
        kind = outer.get("type")
    code = error.get("code")
    return VendorError(
        code=_word(outer.get("code") if code is None else code),
        type=_word(kind),
        message=message,
        upstream=_read(raw.encode("utf-8", "replace").strip()).message if isinstance(raw, str) else None,
    )


def _word(value: Any) -> str | None:
    """A code or type as a short string; integers are codes too."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return shorten(str(value), _CODE_CHARS) or None


def _message(value: Any) -> str | None:
    if isinstance(value, str):
        return shorten(value) or None
    if isinstance(value, list) and value:  # one entry for each invalid field
        first = value[0]
        return _message(first.get("msg") or first.get("message")) if isinstance(first, dict) else _message(first)
    if isinstance(value, dict):
        return _message(value.get("message") or value.get("msg"))
    return None


def shorten(text: str, limit: int = VENDOR_MESSAGE_CHARS) -> str:
    """One line of at most ``limit`` characters, without control characters."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: limit * 4]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def parse_retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Seconds to wait, as the server asked; None when it did not say, or said nothing readable.

    ``Retry-After-Ms`` is the finer form where it is above 0 (one gateway sends 0 beside
    ``Retry-After: 1``); then ``Retry-After`` in seconds or as an HTTP date (RFC 9110 section 10.2.3).

    Args:
        headers: looked up by lower-case names, so a mapping that ignores case, or lower-case keys.
        now: POSIX time against which a date is measured; a date in the past gives 0.
    """
    finer = _number(headers.get("retry-after-ms"))
    if finer:
        return finer / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return finer if seconds is None else seconds
    try:
        moment = parsedate_to_datetime(text.strip())
        at = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return finer
    return max(0.0, at - now) if math.isfinite(at) else finer


def _number(text: str | None) -> float | None:
    return float(text) if text is not None and _NUMBER().fullmatch(text := text.strip()) else None


def may_have_been_processed(status: int) -> bool:
    """Whether a request that was answered with this status may have been worked on (and charged).

    - 3xx and 4xx: refused before any work, so no; 429 is the case a host may want to repeat.
    - 408, 409, 499: the server gave up on, or clashed with, a request it had begun: maybe.
    - 5xx: maybe. That includes 503: a server that is only overloaded has done nothing, but proxies
      send the same status when a backend dropped the connection after it had taken the request.
      So 503 is not *known* to be safe, and repeating it is the host's explicit choice.
    - any other status: maybe.
    """
    return not 300 <= status < 500 or status in _PROCESSED_4XX


def body_kind(content_type: str, first: bytes) -> str:
    """Say in a few words what a body is, without quoting it."""
    start = first.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not first:
        kind = "an empty body"
    elif start[:1] in (b"{", b"["):
        kind = "a body that begins like JSON"
    elif start[:1] == b"<":
        kind = "a body that begins like HTML"
    elif start.startswith((b"data:", b"event:", b":", b"id:", b"retry:")):
        kind = "a body that begins like an event stream"
    else:
        kind = "a body of another kind"
    return f"{shorten(content_type, 60) or 'no content type'!r} and {kind}"
