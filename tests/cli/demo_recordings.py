"""Makes the recordings that the demo ships with: `python -m tests.cli.demo_recordings`.

Four answers of a Chat Completions server to the notes task, in the exact form of OpenAI's own streams:
text and arguments in pieces of a seeded random size, usage in a chunk of its own, `[DONE]`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from agentloop.cli.notebook import NOTES

FOLDER = Path(__file__).resolve().parents[2] / "agentloop" / "cli" / "recordings"
MODEL = "notes-demo"
SEED = 20261129

TITLE = "Launch  summary"  # the notebook keeps it with single white space: intended and kept differ
TEXT = "Launch on 12 May: doors at nine, demo at ten.\nOpen: a projector, and 12 people more than the room holds.\n"
ANSWER = (
    "I read both notes and wrote a summary of them. The launch is on 12 May with the doors open at nine. "
    "Two things are open: nobody brings the projector yet, and the room is 12 places too small."
)


def rounds() -> Iterator[tuple[str, str, tuple[str, str] | None]]:
    """Name, text and call of each answer, in order."""
    for number, note in enumerate(NOTES, 1):
        text = "I start with the plan." if number == 1 else ""
        yield f"{number}-read", text, ("read_note", json.dumps({"id": str(note.id)}))
    yield "3-write", "Both are read, so I can write.", ("write_note", json.dumps({"title": TITLE, "text": TEXT}))
    yield "4-answer", ANSWER, None


def recordings() -> dict[str, bytes]:
    """File name to content, the same at each call."""
    rng = random.Random(SEED)
    return {f"{name}.sse": _stream(rng, name, text, call) for name, text, call in rounds()}


def _stream(rng: random.Random, name: str, text: str, call: tuple[str, str] | None) -> bytes:
    deltas: list[dict[str, object]] = [{"role": "assistant", "content": "" if text else None, "refusal": None}]
    deltas += [{"content": piece} for piece in _pieces(rng, text)]
    if call:
        function, arguments = call
        head = {"id": f"call_{rng.getrandbits(96):024x}", "type": "function"}
        deltas.append({"tool_calls": [{"index": 0, **head, "function": {"name": function, "arguments": ""}}]})
        deltas += [
            {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in _pieces(rng, arguments)
        ]
    reply_id = f"chatcmpl-{rng.getrandbits(116):029x}"
    spent = len(deltas) - 1
    usage = {
        "prompt_tokens": 160 + 70 * int(name[0]),
        "completion_tokens": spent,
        "total_tokens": 160 + 70 * int(name[0]) + spent,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    events = [_chunk(reply_id, delta, None) for delta in deltas]
    events.append(_chunk(reply_id, {}, "tool_calls" if call else "stop"))
    events.append(_event(reply_id, [], usage))
    return b"".join(events) + b"data: [DONE]\n\n"


def _pieces(rng: random.Random, text: str) -> list[str]:
    pieces = []
    while text:
        size = rng.randint(2, 9)
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def _chunk(reply_id: str, delta: dict[str, object], finish: str | None) -> bytes:
    return _event(reply_id, [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}], None)


def _event(reply_id: str, choices: list[object], usage: object) -> bytes:
    chunk = {
        "id": reply_id,
        "object": "chat.completion.chunk",
        "created": 1795910400,
        "model": MODEL,
        "service_tier": "default",
        "system_fingerprint": "fp_demo",
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, content in recordings().items():
        (FOLDER / file_name).write_bytes(content)
        print(f"{file_name}: {len(content)} bytes")
