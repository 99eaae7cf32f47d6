"""What a host says about an endpoint, checked once: URL, headers, query, key, dialect.

No message repeats a value that may hold a key.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from yarl import URL

from ..admission import pattern
from ..errors import InputError
from ..wire.dialect import Dialect
from ..wire.presets import dialect as preset
from ..wire.presets import dialect_for_host

__all__ = ["check_key", "choose_dialect", "read_base_url", "request_headers", "string_pairs"]

_HEADER_NAME: Final = pattern(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = pattern(r"[^\x00-\x08\x0a-\x1f\x7f]*")
_VISIBLE: Final = pattern(r"[\x21-\x7e]+")
_PORT: Final = functools.cache(
    lambda: re.compile(r"https?://(?:[^/?#]*@)?[^/?#@]*:(\d{1,20})(?:[/?#]|\Z)", re.IGNORECASE)
)
_LAST_PORT: Final = 65_535
_OWN_HEADERS: Final = frozenset(
    {"content-length", "content-type", "host", "transfer-encoding", "connection", "x-client-request-id"}
)


def read_base_url(text: str, *, where: str = "ChatCompletions.base_url") -> URL:
    """The part of the URL before ``/chat/completions``, without a slash at its end.

    Raises:
        InputError: it is no http or https URL with a host, or holds a user, a query or a fragment;
            says ``where`` it came from.
    """
    if type(text) is not str:
        raise InputError(f"{where}: expected a string")
    try:
        url = URL(text.rstrip("/"))
    except ValueError:
        port = _PORT().match(text)
        if port is not None and int(port[1]) > _LAST_PORT:
            raise InputError(f"{where}: expected a port from 0 to {_LAST_PORT}, got one out of range") from None
        raise InputError(f"{where}: expected an http or https URL, got no URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InputError(f"{where}: expected an http or https URL with a host")
    if url.user is not None or url.password is not None:
        raise InputError(f"{where}: expected no user or password in it; use api_key= or headers=")
    if url.raw_query_string or url.raw_fragment:
        raise InputError(f"{where}: expected no query or fragment in it; use query=")
    if url.path.endswith("/chat/completions"):
        raise InputError(f"{where}: expected the part before /chat/completions")
    return url


def choose_dialect(wanted: str | Dialect | None, host: str) -> Dialect:
    """The named preset, the given dialect, or the preset for the host.

    Raises:
        InputError: there is no such preset, or it is none of the three.
    """
    if wanted is None:
        return dialect_for_host(host)
    if type(wanted) is Dialect:
        return wanted
    if type(wanted) is str:
        return preset(wanted)
    raise InputError(f"ChatCompletions.dialect: expected a name, a Dialect or None, got {type(wanted).__name__}")


def check_key(key: Any, *, where: str = "ChatCompletions.api_key") -> None:
    """Refuse what no header can carry as a key.

    Raises:
        InputError: says ``where`` it came from, without the key.
    """
    if type(key) is not str or not _VISIBLE().fullmatch(key):
        raise InputError(f"{where}: expected a non-empty string of visible ASCII characters")


def request_headers(given: Mapping[str, str] | None, *, has_key: bool) -> dict[str, str]:
    """All headers of a request but the key and the attempt's id.

    Raises:
        InputError: a header that cannot be sent, or that is written here.
    """
    ours = {"User-Agent": "agentloop", "Accept": "text/event-stream", "Accept-Encoding": "identity"}
    theirs = string_pairs("headers", given)
    for name, value in theirs.items():
        if not _HEADER_NAME().fullmatch(name) or not _HEADER_VALUE().fullmatch(value):
            raise InputError("ChatCompletions.headers: expected header names and values without control characters")
        if name.lower() in _OWN_HEADERS:
            raise InputError(f"ChatCompletions.headers: expected no {name}, which is written here")
        if name.lower() == "authorization" and has_key:
            raise InputError("ChatCompletions.headers: expected no Authorization beside api_key")
    replaced = {name.lower() for name in theirs}
    kept = {name: value for name, value in ours.items() if name.lower() not in replaced}
    return {**kept, **theirs, "Content-Type": "application/json"}


def string_pairs(name: str, given: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of a mapping of strings; empty for None.

    Raises:
        InputError: says the argument's ``name``, for a name or value that is no string.
    """
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"ChatCompletions.{name}: expected a mapping, got {type(given).__name__}")
    pairs = dict(given or {})
    for key, value in pairs.items():
        if type(key) is not str or type(value) is not str or not key:
            raise InputError(f"ChatCompletions.{name}: expected names and values that are strings")
    return pairs
