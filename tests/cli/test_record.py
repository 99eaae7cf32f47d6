"""`agentloop record`: one request to a live endpoint, its answer kept."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentloop.cli import main
from agentloop.providers import load_recordings
from agentloop.testing import Answer, ReplayServer

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
KEY = "sk-proj-0123456789abcdefghij"


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[ReplayServer]:
    for name in ("AGENTLOOP_MODEL", "AGENTLOOP_DIALECT", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    async with ReplayServer(RECORDINGS) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        yield running


async def record(*words: str) -> int:
    return await asyncio.to_thread(main, ["record", *words])


async def test_a_prompt_is_sent_and_its_answer_kept(
    server: ReplayServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert await record("Say something.", "--system", "Be brief.", "--model", "text", "--out", "kept") == 0
    (got,) = server.requests
    assert [message["content"] for message in got.json["messages"]] == ["Be brief.", "Say something."]
    assert got.headers["authorization"] == f"Bearer {KEY}"
    (recording,) = load_recordings("kept")
    assert recording.body == (RECORDINGS / "text.sse").read_bytes()
    out, err = capsys.readouterr()
    assert out.startswith("Streams carry text")
    assert err == "completed (stop)\nrecorded kept/0001-text.sse\n"


async def test_a_request_file_is_sent_with_its_tools_and_options(server: ReplayServer, tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}}
    body = {"model": "one-call", "temperature": 0, "tools": [tool], "messages": [{"role": "user", "content": "hi"}]}
    (tmp_path / "request.json").write_text(json.dumps(body))
    assert await record("--request", "request.json") == 0
    assert server.requests[0].json == {**body, "stream": True, "stream_options": {"include_usage": True}}
    assert load_recordings("recordings")[0].model == "one-call"


async def test_an_answer_that_is_refused_is_kept_and_status_1(
    server: ReplayServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script(Answer.error(429, {"error": {"code": "slow_down", "message": "wait"}}, retry_after="1"))
    assert await record("hi", "--model", "text") == 1
    assert await record("hi", "--model", "truncated") == 1
    limited, cut = load_recordings("recordings")
    assert (limited.status, limited.headers["retry-after"], cut.ended) == (429, "1", "cut")
    err = capsys.readouterr().err
    assert "got code slow_down\nthe server said: wait\n" in err
    assert "truncated" in err
    asked = [line for line in err.splitlines() if "agentloop check" in line]
    assert asked == ["ask whether a dialect admits it: agentloop check --dialect auto recordings/0001-truncated.sse"]
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["hi"],
        ["hi", "--model", "m", "--base-url", "ftp://x"],
        ["hi", "--model", "m", "--dialect", "nobody"],
        ["hi", "--model", "m", "--api-key-env", "NOT_SET_ANYWHERE"],
        ["--request", "missing.json"],
        ["hi", "--request", "missing.json"],
        ["--request", "bad.json", "--model", "m"],
        ["--request", "good.json", "--model", "m", "--system", "s"],
    ],
)
async def test_wrong_usage_is_status_2_and_sends_nothing(
    server: ReplayServer, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "good.json").write_text('{"messages":[{"role":"user","content":"hi"}]}')
    with pytest.raises(SystemExit) as caught:
        await record(*words)
    assert caught.value.code == 2
    assert "usage: agentloop record" in capsys.readouterr().err
    assert server.requests == []
