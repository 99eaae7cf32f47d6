"""Admission: bytes to one checked reply, beside bare decoding (split, typed decode, join; no check)."""

from __future__ import annotations

from functools import partial

from agentloop.cli.floor import FloorReply
from agentloop.messages import ModelReply
from agentloop.wire.assembler import ReplyAssembler

from .measure import Row, Settings, compare
from .streams import blocks, text_events, tool_events

__all__ = ["measure"]


def measure(settings: Settings) -> list[Row]:
    """Text and tool calls, in reads of 16 KiB and of one event."""
    size = 20 if settings.smoke else 2_000
    text = text_events(size)
    calls = tool_events("get_note", [{"note_id": n, "section": "summary of the day"} for n in range(size // 10)])
    cases = {
        "text, 16 KiB reads": (blocks(text), len(text)),
        "text, one event a read": (text, len(text)),
        "calls, 16 KiB reads": (blocks(calls), len(calls)),
        "calls, one event a read": (calls, len(calls)),
    }
    rows = []
    for name, (chunks, events) in cases.items():
        reply, bare = _admit(chunks), _decode(chunks)
        assert reply.text == bare.text
        assert [(call.id, call.name, call.arguments.text) for call in reply.calls] == bare.calls
        row = compare(
            "assembler",
            name,
            unit="us/event",
            scale=1e6 / events,
            ours=partial(_admit, chunks),
            floor=partial(_decode, chunks),
            settings=settings,
        )
        rows.append(row)
    return rows


def _admit(chunks: list[bytes]) -> ModelReply:
    assembler = ReplyAssembler()
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler.finish()


def _decode(chunks: list[bytes]) -> FloorReply:
    reply = FloorReply()
    for chunk in chunks:
        reply.feed(chunk)
    return reply
