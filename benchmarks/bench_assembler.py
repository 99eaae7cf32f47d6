"""Admission: bytes to one checked reply, beside bare decoding (split, typed decode, join; no check)."""

from __future__ import annotations

import json
from functools import partial
from typing import Final

from agentloop.cli.floor import FloorReply
from agentloop.messages import ModelReply
from agentloop.wire.assembler import ReplyAssembler
from agentloop.wire.call_text import ToolCallParser
from agentloop.wire.dialect import Dialect
from agentloop.wire.presets import OPENAI
from agentloop.wire.presets import dialect as preset
from agentloop.wire.written import join_written

from .measure import Row, Settings, compare
from .streams import blocks, tagged_events, text_events, tool_events

__all__ = ["measure"]

IN_TEXT: Final = preset("openai", call_text=ToolCallParser())


def measure(settings: Settings) -> list[Row]:
    """Text and tool calls, in reads of 16 KiB and of one event; of tagged calls a long one too, and twice as long."""
    size = 20 if settings.smoke else 2_000
    text = text_events(size)
    values = [{"note_id": n, "section": "summary of the day"} for n in range(size // 10)]
    calls = tool_events("get_note", values)
    tagged = tagged_events("get_note", values)
    long, longer = (tagged_events("put", [{"text": 'a "word" ' * n}], pieces=n) for n in (size, 2 * size))
    cases = {
        "text, 16 KiB reads": (blocks(text), len(text)),
        "text, one event a read": (text, len(text)),
        "calls, 16 KiB reads": (blocks(calls), len(calls)),
        "calls, one event a read": (calls, len(calls)),
    }
    in_text = {
        "tagged, 16 KiB reads": (blocks(tagged), len(tagged)),
        "tagged, one event a read": (tagged, len(tagged)),
        "tagged, one long call": (long, len(long)),
        "tagged, twice as long": (longer, len(longer)),
    }
    rows = []
    for name, (chunks, events) in {**cases, **in_text}.items():
        dialect = IN_TEXT if name in in_text else OPENAI
        reply, bare = _admit(chunks, dialect), _decode(chunks)
        if name in in_text:
            assert bare.text == join_written(reply, json.loads(reply.native.data)["call_text"]["written"])
            assert len(reply.calls) == bare.text.count("<tool_call>")
        else:
            assert reply.text == bare.text
            assert [(call.id, call.name, call.arguments.text) for call in reply.calls] == bare.calls
        row = compare(
            "assembler",
            name,
            unit="us/event",
            scale=1e6 / events,
            ours=partial(_admit, chunks, dialect),
            floor=partial(_decode, chunks),
            settings=settings,
        )
        rows.append(row)
    return rows


def _admit(chunks: list[bytes], dialect: Dialect) -> ModelReply:
    assembler = ReplyAssembler(dialect)
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler.finish()


def _decode(chunks: list[bytes]) -> FloorReply:
    reply = FloorReply()
    for chunk in chunks:
        reply.feed(chunk)
    return reply
