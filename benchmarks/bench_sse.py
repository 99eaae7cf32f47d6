"""Framing: bytes to server-sent events, beside splitting lines and nothing else."""

from __future__ import annotations

from functools import partial

from agentloop.wire.sse import SSEDecoder

from .measure import Row, Settings, compare
from .streams import blocks, text_events

__all__ = ["measure"]


def measure(settings: Settings) -> list[Row]:
    """Reads of 16 KiB, of one event, and streams whose lines end in CRLF."""
    events = text_events(50 if settings.smoke else 2_000)
    crlf = [event.replace(b"\n", b"\r\n") for event in events]
    cases = {
        "16 KiB reads": (blocks(events), b"\n"),
        "one event a read": (events, b"\n"),
        "16 KiB reads, CRLF": (blocks(crlf), b"\r\n"),
    }
    rows = []
    for name, (chunks, line_end) in cases.items():
        assert _decode(chunks) == _split(chunks, line_end) == len(events)
        row = compare(
            "sse",
            name,
            unit="us/event",
            scale=1e6 / len(events),
            ours=partial(_decode, chunks),
            floor=partial(_split, chunks, line_end),
            settings=settings,
        )
        rows.append(row)
    return rows


def _decode(chunks: list[bytes]) -> int:
    decoder, events = SSEDecoder(), 0
    for chunk in chunks:
        events += len(decoder.feed(chunk))
    decoder.close()
    return events


def _split(chunks: list[bytes], line_end: bytes) -> int:
    tail, events = b"", 0
    for chunk in chunks:
        lines = (tail + chunk).split(line_end)
        tail = lines.pop()
        events += sum(1 for line in lines if line)
    return events
