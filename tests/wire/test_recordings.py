"""The recorded streams beside the project: what many servers really send."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentloop.errors import StreamRefused
from agentloop.wire import LENIENT, OPENAI, ReplyAssembler, narrowest_verdict, reasoning_text, refusal_text
from tests.wire.streams import SHARED, facts, needs_shared, shared


def rows() -> list[dict[str, Any]]:
    if not SHARED.is_dir():
        return []
    lines: list[dict[str, Any]] = msgspec.json.Decoder().decode_lines(shared("streams", "index.jsonl").read_bytes())
    return lines


@needs_shared
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["file"])
def test_a_recorded_stream_is_admitted_with_its_reply_or_refused(row: dict[str, Any]) -> None:
    """R3, R21, R115 to R120."""
    verdict = narrowest_verdict([shared("streams", row["file"]).read_bytes()])
    if verdict.reply is None:
        assert row["must"] != "accept"
        return
    assert row["must"] != "refuse"
    reply, want = verdict.reply, row["expected"]
    assert reply.text == want["text"]
    assert [(made.name, made.arguments.text) for made in reply.calls] == [
        (made["name"], made["arguments"]) for made in want["tool_calls"]
    ]
    assert reply.termination.reason == want["finish_reason"]
    assert reasoning_text(reply.native) == want["reasoning"]
    assert refusal_text(reply.native) == want["refusal"]
    if want["usage"]:
        assert reply.usage is not None
        assert reply.usage.total_tokens == want["usage"]["total"]


@needs_shared
@pytest.mark.parametrize("name", ["captures", "streams"])
def test_no_file_changes_its_outcome_with_the_reads(name: str) -> None:
    """R120: whole, in blocks of 1,000 bytes, and an event a read, under the strictest and the widest rules."""
    for path in sorted(shared(name).glob("*.sse")):
        body = path.read_bytes()
        events = [part + b"\n\n" for part in body.split(b"\n\n")]
        events[-1] = events[-1][:-2]
        blocks = [body[at : at + 1_000] for at in range(0, len(body), 1_000)]
        for dialect in (OPENAI, LENIENT):
            outcomes = []
            for reads in ([body], blocks, events):
                assembler = ReplyAssembler(dialect)
                try:
                    for read in reads:
                        assembler.feed(read)
                    outcomes.append(assembler.finish())
                except StreamRefused as refusal:
                    outcomes.append(facts(refusal))
            assert outcomes[0] == outcomes[1] == outcomes[2], path.name


CAPTURED = {
    "aimock__disconnect": "truncated",
    "aimock__truncate": "truncated",
    "haproxy__server_timeout_midstream": "truncated",
    "llamacpp__text_cut_by_client_timeout": "truncated",
    "llamacpp__text_include_usage": None,
    "llamacpp__tools_required_cut_by_max_tokens": "missing_usage",
    "llmock__fault_disconnect": "truncated",
    "llmock__fault_tool_call_then_disconnect": "truncated",
    "llmock__text": "missing_usage",
    "llmock__text_usage": None,
    "nginx__gzip_raw": "invalid_utf8",
    "nginx__html_503": "bad_framing",
    "faulty__corrupt50pct_2": "invalid_utf8",
}


@needs_shared
@pytest.mark.parametrize(("name", "code"), CAPTURED.items())
def test_what_real_programs_sent_on_loopback_is_judged_by_the_strict_rules(name: str, code: str | None) -> None:
    assembler = ReplyAssembler(OPENAI)
    found = None
    try:
        assembler.feed(shared("captures", f"{name}.sse").read_bytes())
        assembler.finish()
    except StreamRefused as refusal:
        found = refusal.code
    assert found == code
