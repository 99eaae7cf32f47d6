"""The hand-made cases beside the project, at the level of the assembler, fed as they say."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from agentloop.errors import StreamRefused
from agentloop.messages import ModelReply
from agentloop.wire import OPENAI, Dialect, ReplyAssembler, reasoning_text, refusal_text
from tests.wire.streams import SHARED, allowing, needs_shared, shared

ALLOWANCES = {  # the cases' own words for what would admit them
    "gemini-compat": ("index_absent", "arguments_placeholder"),
    "ollama": ("index_shared",),
    "localai": ("call_repeated",),
    "mint-ids": ("call_id_duplicated",),
    "name-append": ("name_pieces",),
    "minimax": ("arguments_object",),
    "first-finish": ("finish_first",),
    "finish-is-end": ("done_absent", "usage_absent"),
    "no-done": ("done_absent",),
    "nim": ("finish_inferred",),
    "no-usage": ("usage_absent",),
    "free-model": ("model_changes",),
    "azure": ("identity_empty_later", "delta_absent"),
    "mistral": ("content_parts",),
    "join-surrogates": ("surrogates_split",),
    "deepseek": (),
}


def rows() -> list[dict[str, Any]]:
    if not SHARED.is_dir():
        return []
    lines: list[dict[str, Any]] = msgspec.json.Decoder().decode_lines(shared("cases", "cases.jsonl").read_bytes())
    return [row for row in lines if row["file"].endswith(".sse") and "verdict" in row["expected"]]


def parts(body: bytes, row: dict[str, Any]) -> Iterator[bytes]:
    """The body in the reads that the case asks for."""
    splits = row["feed"].get("splits", [])
    edges = range(len(body) + 1) if splits == "bytewise" else [0, *splits, len(body)]
    for begin, end in pairwise(edges):
        yield body[begin:end]


def outcome(row: dict[str, Any], dialect: Dialect, *, bytewise: bool) -> ModelReply | StreamRefused:
    """Feed a case to its end, as a driver would: by EOF, by a reset, or by a clock while it stalls."""
    body = shared("cases", row["file"]).read_bytes()
    assembler = ReplyAssembler(dialect)
    reads = (body[at : at + 1] for at in range(len(body))) if bytewise else parts(body, row)
    try:
        for read in reads:
            assembler.feed(read)
        end = row["feed"].get("end", "eof")
        if assembler.done or end == "eof":
            return assembler.finish()
        code = "truncated" if end == "reset" else "idle_timeout"
        return assembler.refusal(code, "the rest of the stream", "nothing more")
    except StreamRefused as refusal:
        return refusal


def compare(reply: ModelReply, want: dict[str, Any]) -> None:
    said = want["text"]
    assert reply.text == (said if isinstance(said, str) else said["repeat"][0] * said["repeat"][1])
    made = [{"id": item.id, "name": item.name, "arguments": item.arguments.text} for item in reply.calls]
    assert made == want["tool_calls"]
    assert reply.termination.reason == want["finish_reason"]
    if want["usage"] is None:
        assert reply.usage is None
    else:
        assert reply.usage is not None
        assert {name: getattr(reply.usage, name) for name in want["usage"]} == want["usage"]
    if "termination" in want:
        assert reply.termination.kind == want["termination"]
    assert reasoning_text(reply.native) == want.get("reasoning", "")
    assert refusal_text(reply.native) == want.get("refusal", "")


@needs_shared
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["file"])
def test_a_case_has_its_verdict_under_the_strict_rules_however_it_is_fed(row: dict[str, Any]) -> None:
    """R120, R122."""
    want = row["expected"]
    small = shared("cases", row["file"]).stat().st_size < 20_000
    for bytewise in (False, True) if small else (False,):
        found = outcome(row, OPENAI, bytewise=bytewise)
        if isinstance(found, StreamRefused):
            assert found.code in (want["code"], *want.get("alt", ()))
        else:
            assert want["verdict"] == "accepted"
            compare(found, want)


@needs_shared
@pytest.mark.parametrize("row", [row for row in rows() if "with_allowance" in row], ids=lambda row: row["file"])
def test_a_case_is_admitted_with_the_allowance_that_it_names(row: dict[str, Any]) -> None:
    """R115 to R120."""
    want = row["with_allowance"]
    found = outcome(row, allowing(*ALLOWANCES[want["allowance"]]), bytewise=False)
    assert isinstance(found, ModelReply)
    compare(found, want)
