"""Which pages of other sites may use the backend: none, but those that are named.

A browser says in ``Origin`` where the page comes from that sends a request. One of another site is refused before
anything is done, so that no page can act in the name of a person who is signed in here; a page that only reads gets
no answer that the browser would show it. Source: WHATWG Fetch, "CORS protocol".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from ...errors import InputError
from ..serving.problem import Problem

__all__ = ["Origins"]

_SAFE: Final = ("GET", "HEAD")
_PREFLIGHT_SECONDS: Final = "600"


class Origins:
    """The pages that may.

    Args:
        allowed: origins such as ``https://app.example``, without a path.
        hosts: names by which the server may be reached, without a port; ``()`` is any. One that is only meant for this
            machine names ``localhost`` and its addresses, so that no foreign name can be pointed at it.

    Raises:
        InputError: one of them has another form.
    """

    def __init__(self, allowed: Sequence[str] = (), hosts: Sequence[str] = ()) -> None:
        for name, given in (("origins", allowed), ("hosts", hosts)):
            if isinstance(given, str) or not isinstance(given, Sequence):
                raise InputError(f"{name}: expected a list, got {type(given).__name__}")
        for origin in allowed:
            parts = urlsplit(origin)
            if (
                parts.scheme not in ("http", "https")
                or not parts.netloc
                or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise InputError(f"origins: expected such as https://app.example, got {origin!r}")
        self._allowed, self._hosts = frozenset(allowed), frozenset(host.lower() for host in hosts)

    def check(self, request: web.Request) -> None:
        """Refuse a request that a page of another site sends, or that is meant for another host.

        Raises:
            Problem: 421 or 403.
        """
        if self._hosts and _host_of(f"//{request.host}") not in self._hosts:
            raise Problem(421, "wrong_host", f"host: expected one of {', '.join(sorted(self._hosts))}, got another")
        origin = request.headers.get("Origin")
        if origin is None or origin in self._allowed or request.method in _SAFE:
            return
        if _netloc_of(origin) != request.host:
            raise Problem(403, "foreign_origin", "origin: expected a page of this server, got one of another")

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks whether a page may; None where it does not ask."""
        if request.method != "OPTIONS" or "Access-Control-Request-Method" not in request.headers:
            return None
        if request.headers.get("Origin") not in self._allowed:
            raise Problem(403, "foreign_origin", "origin: expected a page of this server, got one of another")
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": "GET, POST, DELETE",
                "Access-Control-Allow-Headers": "authorization, content-type, idempotency-key, last-event-id",
                "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
            },
        )

    def headers(self, request: web.Request) -> dict[str, str]:
        """What lets a browser show the answer to the page that asked; nothing for other pages."""
        origin = request.headers.get("Origin")
        if origin is None or origin not in self._allowed:
            return {"Vary": "Origin"} if self._allowed else {}
        return {
            "Access-Control-Allow-Origin": origin,
            "Access-Control-Allow-Credentials": "true",
            "Access-Control-Expose-Headers": "retry-after",
            "Vary": "Origin",
        }


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _netloc_of(url: str) -> str | None:
    """Host and port; None where a browser would not write such a URL."""
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None
