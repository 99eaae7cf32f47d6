"""The body of a request, read within limits."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from aiohttp import ClientError, web

from ...admission import parse, to_type
from ...errors import AdmissionError
from ...limits import WebLimits
from .problem import Problem

__all__ = ["read_body", "read_json"]

T = TypeVar("T")


async def read_body(request: web.Request, limits: WebLimits) -> bytes:
    """All bytes of a JSON body.

    Raises:
        Problem: 415, it is of another type, or compressed. 413: it is larger than ``body_bytes``. 408: it took longer
            than ``body_seconds``. 400: it was cut off.
    """
    if request.content_type != "application/json":
        raise Problem(415, "content_type", "content-type: expected application/json, got another or none")
    if request.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise Problem(415, "content_encoding", "content-encoding: expected none, got one")
    allowed = limits.body_bytes
    if request.content_length is not None and request.content_length > allowed:
        raise _too_large(allowed)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.content.iter_any():
                body += chunk
                if len(body) > allowed:
                    raise _too_large(allowed)
    except TimeoutError:
        message = f"body: expected it within {limits.body_seconds:g} seconds, got {len(body)} bytes of it"
        raise Problem(408, "body_timeout", message, headers={"Connection": "close"}) from None
    except (ClientError, ConnectionError, web.HTTPException, ValueError) as error:
        raise Problem(400, "bad_body", "body: expected all of it, got a part") from error
    return bytes(body)


async def read_json(request: web.Request, kind: type[T], limits: WebLimits) -> T:
    """A JSON body as a value: strict JSON, no unknown member.

    Raises:
        Problem: as `read_body`; 400, it is no such value, with the path and the rule.
    """
    body = await read_body(request, limits)
    try:
        return to_type(parse(body, max_bytes=limits.body_bytes), kind)
    except AdmissionError as error:
        raise Problem(400, "bad_request", str(error), facts={"path": error.path}) from None


def _too_large(allowed: int) -> Problem:
    message = f"body: allowed {allowed} bytes, got more"
    facts = {"limit": "body_bytes", "allowed": allowed}
    return Problem(413, "body_too_large", message, facts=facts, headers={"Connection": "close"})
