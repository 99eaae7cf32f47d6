"""Seeded event streams in the exact form of OpenAI's own."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

__all__ = ["MODEL", "blocks", "notes_events", "tagged_events", "text_events", "tool_events"]

MODEL = "bench-model"
BLOCK = 16 * 1024
"""What one socket read gives at most, about."""

_WORDS = (
    " the",
    " note",
    ",",
    " agents",
    " wait",
    " caf\u00e9",
    " \u2014",
    ".",
    " 42",
    " tools",
    "\n\n",
    ' "yes"',
    "ning",
)


def text_events(deltas: int, *, seed: int = 1) -> list[bytes]:
    """A reply of so many text deltas, one event each, with role, finish, usage and `[DONE]`."""
    rng = random.Random(seed)
    pieces = [{"content": rng.choice(_WORDS)} for _ in range(deltas)]
    return _events([{"role": "assistant", "content": "", "refusal": None}, *pieces], "stop", seed)


def notes_events(deltas: int, *, seed: int = 1) -> list[bytes]:
    """A reply whose text is ``{"notes": [{"title": …, "stock": …}, …]}``, in so many text deltas."""
    rng = random.Random(seed)
    notes = [
        {"title": "".join(rng.choices(_WORDS, k=6)), "stock": rng.randrange(1_000)} for _ in range(1 + deltas // 20)
    ]
    text = json.dumps({"notes": notes}, ensure_ascii=False, separators=(",", ":"))
    edges = [len(text) * at // deltas for at in range(deltas + 1)]
    pieces = [{"content": text[start:end]} for start, end in pairwise(edges)]
    return _events([{"role": "assistant", "content": "", "refusal": None}, *pieces], "stop", seed)


def tool_events(name: str, arguments: list[dict[str, Any]], *, seed: int = 1, pieces: int = 8) -> list[bytes]:
    """A reply with one call for each of ``arguments``, their text in so many pieces."""
    rng = random.Random(seed)
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": None, "refusal": None}]
    for index, value in enumerate(arguments):
        head = {"id": f"call_{rng.getrandbits(96):024x}", "type": "function"}
        deltas.append({"tool_calls": [{"index": index, **head, "function": {"name": name, "arguments": ""}}]})
        text = json.dumps(value)
        step = -(-len(text) // pieces)
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": text[at : at + step]}}]}
            for at in range(0, len(text), step)
        ]
    return _events(deltas, "tool_calls", seed)


def tagged_events(name: str, arguments: list[dict[str, Any]], *, seed: int = 1, pieces: int = 8) -> list[bytes]:
    """A reply with a call in its text for each of ``arguments``, each in so many text deltas."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "", "refusal": None}]
    for value in arguments:
        text = f'\n<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(value)}}}\n</tool_call>'
        step = -(-len(text) // pieces)
        deltas += [{"content": text[at : at + step]} for at in range(0, len(text), step)]
    return _events(deltas, "stop", seed)


def blocks(events: list[bytes]) -> list[bytes]:
    """The same bytes in reads of 16 KiB."""
    body = b"".join(events)
    return [body[at : at + BLOCK] for at in range(0, len(body), BLOCK)]


def _events(deltas: list[dict[str, Any]], finish: str, seed: int) -> list[bytes]:
    reply_id = f"chatcmpl-{random.Random(seed).getrandbits(116):029x}"
    usage = {"prompt_tokens": 57, "completion_tokens": len(deltas), "total_tokens": 57 + len(deltas)}
    events = [_chunk(reply_id, _choice(delta, None), None) for delta in deltas]
    return [*events, _chunk(reply_id, _choice({}, finish), None), _chunk(reply_id, [], usage), b"data: [DONE]\n\n"]


def _choice(delta: dict[str, Any], finish: str | None) -> list[Any]:
    return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]


def _chunk(reply_id: str, choices: list[Any], usage: dict[str, int] | None) -> bytes:
    chunk = {
        "id": reply_id,
        "object": "chat.completion.chunk",
        "created": 1795910400,
        "model": MODEL,
        "service_tier": "default",
        "system_fingerprint": "fp_bench",
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
