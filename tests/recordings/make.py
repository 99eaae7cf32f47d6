"""Write the recordings in this folder: `python tests/recordings/make.py`. Same seed, same bytes.

Every stream is made here; none was recorded from a vendor. They speak the strict protocol, apart
from `truncated`, which ends in the middle of a word.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SEED = 20261129
MODEL = "made-1"
WORDS = ("the", "stream", "carries", "small", "pieces", "of", "text", "and", "each", "is", "checked", "first")
NOTE_A = "6f1f6c1e-3d5b-4f57-9a4e-2a5b8f4b7a01"
NOTE_B = "b0d8a5c2-7e2f-4a5c-8d3e-94c1d7e6f502"


class Stream:
    """One made stream: chunks of one reply, framed as server-sent events."""

    def __init__(self, name: str, rng: random.Random, *, model: str = MODEL) -> None:
        self.id = f"chatcmpl-{rng.randrange(16**12):012x}"
        self.name, self.rng, self.model = name, rng, model
        self.events: list[str] = []
        self.chunk({"role": "assistant", "content": "", "refusal": None})

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        self.event({"choices": [choice], "usage": None})

    def event(self, members: dict[str, Any]) -> None:
        head = {"id": self.id, "object": "chat.completion.chunk", "created": 1780000000, "model": self.model}
        self.events.append(json.dumps({**head, **members}, ensure_ascii=False, separators=(",", ":")))

    def text(self, text: str, field: str = "content") -> None:
        for piece in self.pieces(text):
            self.chunk({field: piece})

    def call(self, index: int, call_id: str, name: str, arguments: dict[str, Any]) -> None:
        opening = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        self.chunk({"tool_calls": [opening]})
        for piece in self.pieces(json.dumps(arguments, ensure_ascii=False)):
            self.chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})

    def pieces(self, text: str) -> Iterator[str]:
        at = 0
        while at < len(text):
            size = self.rng.randint(2, 7)
            yield text[at : at + size]
            at += size

    def end(self, finish: str, *, prompt: int, completion: int, reasoning: int = 0) -> bytes:
        self.chunk({}, finish)
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        if reasoning:
            usage["completion_tokens_details"] = {"reasoning_tokens": reasoning}  # type: ignore[assignment]
        self.event({"choices": [], "usage": usage})
        return self.body(done=True)

    def body(self, *, done: bool = False) -> bytes:
        lines = [f"data: {event}\n\n" for event in self.events] + (["data: [DONE]\n\n"] if done else [])
        return "".join(lines).encode()


def save(stream: Stream, body: bytes) -> None:
    """Write a body, and its sidecar with read sizes that cut events and characters anywhere."""
    reads, at, ms = [], 0, 180.0
    while at < len(body):
        size = min(stream.rng.choice((1, 60, 190, 400, 1400)), len(body) - at)
        reads.append([round(ms, 3), size])
        at += size
        ms += stream.rng.uniform(0.5, 30)
    sidecar = {
        "version": 1,
        "model": stream.model,
        "date": "2026-11-29T12:00:00.000+00:00",
        "status": 200,
        "headers": {"content-type": "text/event-stream; charset=utf-8"},
        "reads": reads,
        "ended": "cut" if stream.name == "truncated" else "complete",
    }
    (HERE / f"{stream.name}.sse").write_bytes(body)
    (HERE / f"{stream.name}.json").write_text(json.dumps(sidecar, indent=1) + "\n", encoding="utf-8")


def single_streams() -> None:
    """One stream a case."""
    rng = random.Random(SEED)

    stream = Stream("text", rng)
    stream.text("Streams carry text: " + " ".join(rng.choice(WORDS) for _ in range(40)) + ". Größe, 数, 🙂.")
    save(stream, stream.end("stop", prompt=21, completion=64))

    stream = Stream("one-call", rng)
    stream.call(0, "call_w1", "get_weather", {"city": "Zürich", "days": 2})
    save(stream, stream.end("tool_calls", prompt=55, completion=19))

    stream = Stream("two-calls", rng)
    stream.text("Looking at both.")
    stream.call(0, "call_p1", "get_weather", {"city": "Oslo"})
    stream.call(1, "call_p2", "get_weather", {"city": "Rome"})
    save(stream, stream.end("tool_calls", prompt=57, completion=41))

    stream = Stream("reasoning", rng)
    stream.text("Half of twelve is six, and six and one are seven.", "reasoning_content")
    stream.text("Seven.")
    save(stream, stream.end("stop", prompt=18, completion=26, reasoning=20))

    stream = Stream("refusal", rng)
    stream.text("I can't help with that.", "refusal")
    save(stream, stream.end("stop", prompt=17, completion=9))

    stream = Stream("length", rng)
    stream.text("This answer was cut because its ceiling was")
    save(stream, stream.end("length", prompt=20, completion=8))

    stream = Stream("truncated", rng)
    stream.text("This stream ends in the mid")
    save(stream, stream.body()[:-9])


def notes_task() -> None:
    """Four rounds of one task: read a note, read another, write one, answer."""
    rng = random.Random(SEED + 1)
    rounds: list[tuple[str, str, dict[str, Any]]] = [
        ("call_read_1", "read_note", {"id": NOTE_A}),
        ("call_read_2", "read_note", {"id": NOTE_B}),
        ("call_write_1", "write_note", {"title": "Summary", "body": "Alpha and beta agree: ship on Friday."}),
    ]
    for number, (call_id, name, arguments) in enumerate(rounds, 1):
        stream = Stream(f"notes-demo-{number}", rng, model="notes-demo")
        if number == 1:
            stream.text("Reading the first note.")
        stream.call(0, call_id, name, arguments)
        save(stream, stream.end("tool_calls", prompt=110 + 60 * number, completion=24))
    stream = Stream("notes-demo-4", rng, model="notes-demo")
    stream.text("Both notes agree, so I wrote a summary: ship on Friday.")
    save(stream, stream.end("stop", prompt=350, completion=17))


if __name__ == "__main__":
    single_streams()
    notes_task()
