"""One HTTP answer as a source of bytes, and what its failures mean."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

import aiohttp

from ..errors import ConnectionFailed, ConnectionLost, ProviderError
from ..limits import Timeouts
from .clock import ClockExpired, Watchdog
from .http_errors import ERROR_BODY_BYTES
from .reading import Cut, ReplyStream
from .recording import Ended, Tape

__all__ = ["HTTPSource", "is_event_stream", "read_some", "translate_error"]


class HTTPSource:
    """Owns the connection, the clock, the tape and the slot of one send; `end` frees them all."""

    __slots__ = ("_ended", "_slots", "read", "response", "tape", "watchdog")

    def __init__(self, response: aiohttp.ClientResponse, slots: asyncio.Semaphore | None, tape: Tape | None) -> None:
        self.response, self.tape = response, tape
        self.watchdog: Watchdog | None = None
        self._slots = slots
        self._ended = False
        # The reader's own read, without a wrapper around it unless a tape runs.
        self.read: Callable[[], Awaitable[bytes]] = response.content.readany
        if tape is not None:
            tape.answered(response.status, response.headers)
            self.read = functools.partial(_read_taped, response.content, tape)

    def watch(
        self, stream: ReplyStream, timeouts: Timeouts, *, started: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Start the clocks; what runs out wakes the read that waits, or the next one."""
        self.watchdog = Watchdog(stream, timeouts, started=started, loop=loop, inbox=self.response.content)

    def cut(self, error: Exception) -> Cut | None:
        if isinstance(error, ClockExpired):
            return Cut("nothing more", self._rest(), error.code, error.expected)
        if isinstance(error, (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError)):
            return Cut(f"a broken connection ({type(error).__name__})", self._rest())
        return None

    def _rest(self) -> bytes:
        """What had arrived and was not read: the reader drops it once an error is set, so take that back."""
        content = self.response.content
        content.set_exception(None)  # type: ignore[arg-type]  # no other way to the bytes it holds
        rest = content.read_nowait()
        if rest and self.tape is not None:
            self.tape.add(rest)
        return rest

    async def settle(self) -> None:
        """Let the loop look at the socket once: the end of the body is often there already."""
        for _ in range(2):  # the look comes after the first step back to this task
            if self.response.content.is_eof():
                return
            await asyncio.sleep(0)

    def end(self, ended: Ended) -> None:
        if self._ended:
            return
        self._ended = True
        if self.watchdog is not None:
            self.watchdog.stop()
            self.watchdog = None  # it knows the stream, which knows this source: a cycle
        if self._slots is not None:
            self._slots.release()
        # Only a body that was read to its end leaves a connection that can be used again.
        if ended == "complete" and self.response.content.is_eof():
            self.response.release()
        else:
            self.response.close()
        if self.tape is not None:
            self.tape.stop(ended)


def is_event_stream(response: aiohttp.ClientResponse) -> bool:
    """Whether the answer says that it is one; parameters and case do not matter."""
    kind: str = response.headers.get("Content-Type", "")
    return kind.split(";", 1)[0].strip().lower() == "text/event-stream"


async def read_some(content: aiohttp.StreamReader, until: float) -> tuple[bytes, bool]:
    """Read up to `ERROR_BODY_BYTES` until a moment; say whether that is the whole body."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout_at(until):
            while size < ERROR_BODY_BYTES:
                chunk = await content.readany()
                if not chunk:
                    return b"".join(chunks), True
                chunks.append(chunk)
                size += len(chunk)
    except (aiohttp.ClientError, aiohttp.http.HttpProcessingError, OSError):
        pass  # the status is known; the reason is what came of it
    return b"".join(chunks)[:ERROR_BODY_BYTES], False


def translate_error(error: Exception, attempt_id: str, *, server: str) -> ProviderError:
    """Translate what the HTTP library raised, without what it may hold of the request but scheme, host and port."""
    kind = type(error).__name__
    if isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)):
        inner = getattr(error, "os_error", None)
        detail = f"{kind}, {type(inner).__name__}" if inner is not None else kind
        hint = ""
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            hint = ": its certificate was not accepted"
        elif isinstance(error, aiohttp.ClientConnectorSSLError):
            hint = ": no TLS was agreed on; a server without TLS has an http:// URL"
        failed = ConnectionFailed(
            f"expected a connection to {server}, got none ({detail}){hint}",
            attempt_id=attempt_id,
            may_have_been_processed=False,
        )
        failed.__cause__ = inner if isinstance(inner, OSError) else None
        return failed
    lost = ConnectionLost(f"expected an HTTP answer, got a connection that ended ({kind})", attempt_id=attempt_id)
    lost.__cause__ = None if isinstance(error, aiohttp.ClientResponseError) else error
    return lost


async def _read_taped(content: aiohttp.StreamReader, tape: Tape) -> bytes:
    chunk = await content.readany()
    if chunk:
        tape.add(chunk)
    return chunk
