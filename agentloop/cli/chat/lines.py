"""Lines of a file descriptor, waited for in an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Final

from ...errors import InputError
from ...limits import ENCODED_REQUEST_BYTES

__all__ = ["Lines"]

_READ: Final = 1 << 16


class Lines:
    """Reads one line when it is asked for one; one task at a time may ask.

    A thread does it, since a file cannot be waited for otherwise; it keeps no process alive, and holds no
    lock of the interpreter's own input that would be missed at the end.

    Args:
        max_bytes: longest line, without its end.
    """

    def __init__(self, fd: int, *, max_bytes: int = ENCODED_REQUEST_BYTES) -> None:
        self._fd, self._max = fd, max_bytes
        self._buffer = bytearray()
        self._ended = False
        self._next_line: asyncio.Future[bytes | None] | None = None

    async def read(self) -> str:
        """The next line, without its end.

        Raises:
            EOFError: there is none. InputError: it is not UTF-8, or longer than it may be; after that one none
                is read. OSError: the descriptor cannot be read.
        """
        if self._next_line is None:
            loop = asyncio.get_running_loop()
            self._next_line = loop.create_future()
            arguments = (loop, self._next_line)
            threading.Thread(target=self._read, args=arguments, name="agentloop chat input", daemon=True).start()
        await asyncio.wait({self._next_line})  # one who is cancelled here leaves the line to the next one
        got, self._next_line = self._next_line, None
        raw = got.result()
        if raw is None:
            raise EOFError
        try:
            return raw.removesuffix(b"\r").decode()
        except UnicodeDecodeError:
            raise InputError("the line is not UTF-8 text") from None

    def drop(self) -> None:
        """Forget what came already and was not read, while nobody reads."""
        self._buffer.clear()

    def _read(self, loop: asyncio.AbstractEventLoop, got: asyncio.Future[bytes | None]) -> None:
        try:
            line: bytes | Exception | None = self._next()
        except (OSError, InputError) as error:
            line = error
        try:
            loop.call_soon_threadsafe(_give, got, line)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            return

    def _next(self) -> bytes | None:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > self._max:
                self._ended = True
                self._buffer.clear()
                raise InputError(f"expected a line of up to {self._max} bytes, got a longer one")
            chunk = b"" if self._ended else os.read(self._fd, _READ)
            if not chunk:
                self._ended = True
                rest = bytes(self._buffer)
                self._buffer.clear()
                return rest or None
            self._buffer += chunk
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def _give(got: asyncio.Future[bytes | None], line: bytes | Exception | None) -> None:
    if isinstance(line, Exception):
        got.set_exception(line)
    else:
        got.set_result(line)
