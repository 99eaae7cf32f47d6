"""Reading one answer to its checked end: the loop that live and replayed streams share.

A network read costs one coroutine here and one `ReplyAssembler.feed`: no task, timer or log call is
made for a read. Where the bytes come from, what a broken read means and what ending costs is the
business of a `ByteSource`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, Self

import msgspec

from ..errors import InputError, StreamRefused
from ..messages import ModelReply
from ..wire.assembler import ReplyAssembler
from ..wire.deltas import Delta
from .recording import Ended
from .secrets import redact_text

__all__ = ["ByteSource", "Cut", "ReplyStream"]


class Cut(msgspec.Struct, frozen=True):
    """Why a read ended the stream.

    Attributes:
        got: what happened, for the refusal.
        rest: bytes that had arrived before and were not read yet.
        code: the clock that ran out; None when the connection broke.
        expected: what the clock wanted.
    """

    got: str
    rest: bytes = b""
    code: str | None = None
    expected: str = "the rest of the stream"


class ByteSource(Protocol):
    """Where a `ReplyStream` reads from."""

    def read(self) -> Awaitable[bytes]:
        """Return the next bytes, any number of them; ``b""`` at the proper end of the body."""
        ...

    def cut(self, error: Exception) -> Cut | None:
        """Explain what `read` raised; None when it is no matter of the stream."""
        ...

    async def settle(self) -> None:
        """``[DONE]`` was read: see whether the body's end has arrived as well, without waiting for it."""
        ...

    def end(self, ended: Ended) -> None:
        """Nothing more is read. Called once; must not fail."""
        ...


class ReplyStream:
    """A `ModelStream` over a `ByteSource`.

    Attributes:
        reading: whether a read is being waited for. While it is not, the reader has the turn, and
            no clock of the server's runs.
        waiting_since: when the last event with data was taken in, or the first read began.
    """

    __slots__ = (
        "_assembler",
        "_failure",
        "_now",
        "_over",
        "_pending",
        "_read",
        "_reply",
        "_secrets",
        "_seen",
        "_source",
        "reading",
        "waiting_since",
    )

    def __init__(
        self,
        assembler: ReplyAssembler,
        source: ByteSource,
        *,
        now: Callable[[], float] = time.monotonic,
        secrets: Iterable[str] = (),
    ) -> None:
        self.reading = False
        self.waiting_since = now()
        self._assembler, self._source, self._now, self._secrets = assembler, source, now, tuple(secrets)
        self._read = source.read
        self._seen = assembler.progress
        self._pending: list[Delta] | None = None  # previews of one read, last first
        self._reply: ModelReply | None = None
        self._failure: Exception | None = None
        self._over = False

    @property
    def progress(self) -> int:
        """How many events with data have come."""
        return self._assembler.progress

    @property
    def bytes_seen(self) -> int:
        """How many bytes of the body were taken in."""
        return self._assembler.bytes_seen

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        if self._pending:
            return self._pending.pop()
        assembler = self._assembler
        while not self._over:
            if assembler.progress != self._seen:
                self._seen = assembler.progress
                self.waiting_since = self._now()
            self.reading = True
            try:
                chunk = await self._read()
            except Exception as error:  # noqa: BLE001  # the source knows its own; any other is raised again
                deltas = self._broken(error)
            except BaseException:  # cancelled: the send ends with its reader
                self.reading = False
                self.leave()
                raise
            else:
                self.reading = False
                if chunk:
                    try:
                        deltas = assembler.feed(chunk)
                    except StreamRefused as refusal:
                        raise self._fail(refusal, "refused") from None
                    if assembler.done:
                        await self._done()
                else:
                    deltas = []
                    self._finish()
            if deltas:
                if len(deltas) > 1:
                    self._pending = deltas[::-1]
                    return self._pending.pop()
                return deltas[0]
        if self._failure is not None:
            raise self._failure
        raise StopAsyncIteration

    async def reply(self) -> ModelReply:
        """Read what was not read, and return the checked reply. See `ModelStream.reply`."""
        async for _ in self:
            pass
        if self._reply is None:
            raise InputError("stream: expected one reader, got two at once")
        return self._reply

    def leave(self) -> None:
        """The reader goes: end an unfinished stream now. Harmless on one that has ended."""
        if not self._over:
            self._failure = InputError("stream: expected to be read inside its async with block, got a read after it")
            self._over = True
            self._source.end("abandoned")
        self._pending = None

    async def _done(self) -> None:
        try:
            self._keep_reply()
            await self._source.settle()
        finally:
            self._close("complete" if self._failure is None else "refused")

    def _finish(self) -> None:
        """The body ended properly, without ``[DONE]``: the dialect decides."""
        self._keep_reply()
        refused = isinstance(self._failure, StreamRefused)
        cut = refused and getattr(self._failure, "code", "") in ("truncated", "missing_done")
        self._close("complete" if not refused else "cut" if cut else "refused")

    def _keep_reply(self) -> None:
        try:
            self._reply = self._assembler.finish()
        except StreamRefused as refusal:
            self._failure = self._scrub(refusal)

    def _broken(self, error: Exception) -> list[Delta]:
        """A read raised: take in what had arrived, then fail after its previews."""
        self.reading = False
        cut = self._source.cut(error)
        if cut is None:
            self.leave()
            raise error
        deltas: list[Delta] = []
        if cut.rest:
            try:
                deltas = self._assembler.feed(cut.rest)
            except StreamRefused as refusal:
                raise self._fail(refusal, "refused") from None
        done = self._assembler.done
        self._keep_reply()  # without [DONE] this says what a proper end of the body would have been
        if done:
            self._close("complete" if self._failure is None else "refused")
            return deltas
        finished = self._reply is not None or getattr(self._failure, "code", None) == "missing_done"
        self._reply = None
        code = cut.code or ("missing_done" if finished else "truncated")
        self._fail(self._assembler.refusal(code, cut.expected, cut.got), "timeout" if cut.code else "cut")
        return deltas

    def _fail(self, refusal: StreamRefused, ended: Ended) -> StreamRefused:
        self._failure = refusal = self._scrub(refusal)
        self._close(ended)
        return refusal

    def _close(self, ended: Ended) -> None:
        if not self._over:
            self._over = True
            self._source.end(ended)

    def _scrub(self, refusal: StreamRefused) -> StreamRefused:
        """Blank keys that a vendor's error event repeats."""
        for name in ("vendor_code", "vendor_type", "vendor_message", "got"):
            text = getattr(refusal, name)
            if text is not None:
                setattr(refusal, name, redact_text(text, self._secrets))
        refusal.args = (*refusal.args[:4], refusal.got)
        refusal.__cause__ = refusal.__context__ = None  # the fault it came from has the text unblanked
        return refusal
