"""What a client makes of chunks: the parts of a message, held to the protocol's rules."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from agentloop.integrations.ui_stream.chunks import Chunk, encode_chunk

__all__ = ["fold", "kinds", "plain", "text_of"]

LAST = {"finish", "error", "abort"}


def plain(chunks: Iterable[Chunk]) -> list[dict[str, Any]]:
    """Chunks as a client reads them."""
    return [json.loads(encode_chunk(chunk)) for chunk in chunks]


def kinds(chunks: Iterable[dict[str, Any]]) -> list[str]:
    """Their types."""
    return [chunk["type"] for chunk in chunks]


def text_of(parts: Sequence[dict[str, Any]]) -> str:
    """All text of a message, joined."""
    return "".join(part["text"] for part in parts if part["type"] == "text")


def fold(chunks: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
    """The parts of a message whose chunks are all there.

    Asserts that it begins once and ends once, that every part and step that begins ends, that no id begins twice, and
    that what comes of a call comes after it.

    Args:
        before: the parts that the message had, where it goes on.
    """
    assert chunks[0]["type"] == "start"
    assert [chunk["type"] for chunk in chunks if chunk["type"] in LAST] == [chunks[-1]["type"]]
    assert [chunk["type"] for chunk in chunks].count("start") == 1
    parts = [dict(part) for part in before]
    open_parts: dict[str, dict[str, Any]] = {}
    begun: set[str] = set()
    in_step = False
    for chunk in chunks[1:-1]:
        kind = chunk["type"]
        if kind == "start-step":
            assert not in_step
            in_step = True
            parts.append({"type": "step-start"})
        elif kind == "finish-step":
            assert in_step
            assert not open_parts
            in_step = False
        elif kind == "reset-step":
            assert in_step
            assert not open_parts
            while parts[-1]["type"] != "step-start":
                parts.pop()
        elif kind in ("text-start", "reasoning-start"):
            assert in_step
            assert chunk["id"] not in begun
            begun.add(chunk["id"])
            open_parts[chunk["id"]] = part = {"type": kind.removesuffix("-start"), "text": ""}
            parts.append(part)
        elif kind in ("text-delta", "reasoning-delta"):
            assert chunk["delta"]
            open_parts[chunk["id"]]["text"] += chunk["delta"]
        elif kind in ("text-end", "reasoning-end"):
            assert open_parts.pop(chunk["id"])["text"]
        elif kind in ("tool-input-available", "tool-input-error"):
            state = {"tool-input-available": "input-available", "tool-input-error": "output-error"}[kind]
            assert chunk["dynamic"]
            known = [part for part in _step(parts) if part.get("toolCallId") == chunk["toolCallId"]]
            if known:
                known[0] |= {**chunk, "type": "dynamic-tool", "state": state}
            else:
                parts.append({**chunk, "type": "dynamic-tool", "state": state})
        elif kind.startswith("tool-"):
            _tool(parts, chunk)
        else:
            assert kind.startswith("data-")
            if not chunk.get("transient"):
                parts.append(chunk)
    assert not open_parts
    assert not in_step
    return parts


def _step(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    starts = [at for at, part in enumerate(parts) if part["type"] == "step-start"]
    return parts[starts[-1] :]


def _tool(parts: list[dict[str, Any]], chunk: dict[str, Any]) -> None:
    kind = chunk["type"].removeprefix("tool-")
    if kind == "approval-response":
        (part,) = [part for part in parts if part.get("approval", {}).get("id") == chunk["approvalId"]]
        part["approval"]["approved"] = chunk["approved"]
        return
    (part,) = [part for part in parts if part.get("toolCallId") == chunk["toolCallId"]]
    if kind == "approval-request":
        part["state"], part["approval"] = "approval-requested", {"id": chunk["approvalId"]}
        return
    assert kind in ("output-available", "output-error", "output-denied")
    part["state"] = kind
    part |= {name: chunk[name] for name in ("output", "errorText") if name in chunk}
