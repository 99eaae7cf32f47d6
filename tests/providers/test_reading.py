"""The reading loop, over reads that are made up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from agentloop.errors import InputError, StreamRefused
from agentloop.providers.reading import Cut, ReplyStream
from agentloop.providers.recording import Ended
from agentloop.wire.assembler import ReplyAssembler
from agentloop.wire.deltas import CallDelta, ReasoningDelta, TextDelta

TEXT = (Path(__file__).resolve().parents[1] / "recordings" / "text.sse").read_bytes()
MIXED = (
    b'data: {"id":"r","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"reasoning_content":"why","content":"what","tool_calls":[{"index":0,"id":"a","type":"function",'
    b'"function":{"name":"t","arguments":"{}"}}]},"finish_reason":null}]}\n\n'
)


class Reads:
    """A source whose reads are given; an exception among them is raised."""

    def __init__(self, *reads: bytes | BaseException, rest: bytes = b"") -> None:
        self.reads = list(reads)
        self.rest = rest
        self.ended: list[Ended] = []
        self.settled = 0

    async def read(self) -> bytes:
        read = self.reads.pop(0)
        if isinstance(read, BaseException):
            raise read
        return read

    def cut(self, error: Exception) -> Cut | None:
        return Cut("a broken wire", self.rest) if isinstance(error, OSError) else None

    async def settle(self) -> None:
        self.settled += 1

    def end(self, ended: Ended) -> None:
        self.ended.append(ended)


def opened(*reads: bytes | BaseException, rest: bytes = b"") -> tuple[ReplyStream, Reads]:
    source = Reads(*reads, rest=rest)
    return ReplyStream(ReplyAssembler(), source), source


def pieces(body: bytes, size: int) -> Iterable[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


async def test_one_read_is_one_text_preview() -> None:
    stream, source = opened(*pieces(TEXT, 3_000))
    previews = [delta async for delta in stream]
    assert len(previews) == 4
    assert source.ended == ["complete"]
    assert source.settled == 1


async def test_previews_of_one_read_come_one_by_one_and_are_gone_when_the_reader_leaves() -> None:
    stream, source = opened(MIXED, b"")
    kinds = {type(await anext(stream)), type(await anext(stream))}
    stream.leave()
    with pytest.raises(InputError):
        await anext(stream)
    assert kinds < {TextDelta, ReasoningDelta, CallDelta}
    assert source.ended == ["abandoned"]


async def test_reading_stops_at_done() -> None:
    stream, source = opened(TEXT, b"never read")
    assert (await stream.reply()).text
    assert source.reads == [b"never read"]


async def test_leaving_a_finished_stream_changes_nothing() -> None:
    stream, source = opened(TEXT)
    reply = await stream.reply()
    stream.leave()
    assert await stream.reply() is reply
    assert source.ended == ["complete"]


async def test_the_body_may_end_before_done_and_is_then_refused() -> None:
    stream, source = opened(TEXT[:3_000], b"")
    with pytest.raises(StreamRefused, match="truncated"):
        await stream.reply()
    assert source.ended == ["cut"]


async def test_a_broken_rule_ends_the_stream_at_once() -> None:
    stream, source = opened(TEXT[:3_000], b"\n\ndata: {broken\n\n", TEXT)
    with pytest.raises(StreamRefused, match="invalid_json"):
        await stream.reply()
    assert (source.ended, source.reads) == (["refused"], [TEXT])


async def test_bytes_that_came_before_the_break_are_taken_in() -> None:
    stream, source = opened(TEXT[:5_000], OSError(), rest=TEXT[5_000:])
    assert (await stream.reply()).text.endswith("🙂.")
    assert source.ended == ["complete"]


async def test_a_rule_broken_by_the_bytes_before_the_break_is_the_reason() -> None:
    stream, source = opened(TEXT[:3_000], OSError(), rest=b"\n\ndata: {broken\n\n")
    with pytest.raises(StreamRefused, match="invalid_json"):
        await stream.reply()
    assert source.ended == ["refused"]


async def test_an_error_that_is_no_matter_of_the_stream_passes_through() -> None:
    stream, source = opened(TEXT[:3_000], KeyError("bug"))
    with pytest.raises(KeyError):
        await stream.reply()
    with pytest.raises(InputError):
        await stream.reply()
    assert source.ended == ["abandoned"]


async def test_a_read_that_is_cancelled_ends_the_stream_at_once() -> None:
    stream, source = opened(TEXT[:3_000], asyncio.CancelledError(), TEXT[3_000:])
    await anext(stream)
    with pytest.raises(asyncio.CancelledError):
        await stream.reply()
    assert (source.ended, stream.reading) == (["abandoned"], False)
    with pytest.raises(InputError):
        await stream.reply()


async def test_the_idle_moment_moves_with_events_that_carry_data() -> None:
    now = iter(range(100))
    source = Reads(b": ping\n\n", b": ping\n\n", MIXED, b": ping\n\n", TEXT)
    stream = ReplyStream(ReplyAssembler(), source, now=lambda: float(next(now)))
    await anext(stream)
    assert stream.waiting_since == 0.0
    with pytest.raises(StreamRefused):  # a second reply in the same stream has another identity
        await stream.reply()
    assert stream.waiting_since == 1.0
    assert stream.progress == 1
    assert stream.reading is False
