"""Events as JSON Lines."""

from __future__ import annotations

import io
from typing import BinaryIO

from ..errors import InputError
from ..events import Event, encode_event

__all__ = ["JsonLinesSink"]


class JsonLinesSink:
    """Writes each event as one JSON line; usable as a sink and as an observer.

    The file is written on the event loop: give it a local file or a pipe with a reader. It stays
    the caller's to close.

    Raises:
        InputError: ``file`` is not an open binary file.
    """

    def __init__(self, file: BinaryIO, *, flush: bool = True) -> None:
        if not callable(getattr(file, "write", None)) or isinstance(file, io.TextIOBase):
            raise InputError(f"JsonLinesSink.file: expected an open binary file, got {type(file).__name__}")
        self._file, self._flush = file, flush

    async def emit(self, event: Event) -> None:
        """Write one event."""
        self._file.write(encode_event(event) + b"\n")
        if self._flush:
            self._file.flush()

    async def observe(self, event: Event) -> None:
        """Write one event."""
        await self.emit(event)
