"""The page for a person: static files of this package, under a strict content security policy."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from aiohttp import web

from ..serving.problem import Problem

__all__ = ["CONTENT_SECURITY_POLICY", "page_routes"]

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify"
)
"""Nothing from elsewhere, nothing inline, and no markup but what the sanitiser has passed."""

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-DNS-Prefetch-Control": "off",  # a browser may look up the host of a link that nobody follows: it would tell it
}
_FOLDER: Final = Path(__file__).parent / "page"
_TYPES: Final = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
}


def page_routes() -> list[web.RouteDef]:
    """``/`` and ``/page/…``: the files that are here, read once; no path is made of a request."""
    files = {
        path.relative_to(_FOLDER).as_posix(): _File(path)
        for path in sorted(_FOLDER.rglob("*"))
        if path.is_file() and path.suffix in _TYPES
    }
    index = files["index.html"]

    async def root(request: web.Request) -> web.Response:
        if not request.path.endswith("/"):  # mounted below a prefix; the page names its files relative to it
            raise web.HTTPMovedPermanently(request.path.rpartition("/")[2] + "/")  # relative: a proxy may add a prefix
        return index.answer(request)

    async def file(request: web.Request) -> web.Response:
        found = files.get(request.match_info["name"])
        if found is None:
            raise Problem(404, "not_found", "expected a file of the page, got another name")
        return found.answer(request)

    return [web.get("", root), web.get("/", root), web.get("/page/{name:.+}", file)]


class _File:
    def __init__(self, path: Path) -> None:
        self._body = path.read_bytes()
        self._type = _TYPES[path.suffix]
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:32]}"'

    def answer(self, request: web.Request) -> web.Response:
        headers = {**_HEADERS, "ETag": self._tag}
        if request.headers.get("If-None-Match") == self._tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=self._body, content_type=self._type, charset="utf-8", headers=headers)
