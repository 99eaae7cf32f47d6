from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.cli import commands, main
from agentloop.cli.run import AgentNotFound, load_agent
from agentloop.testing import Answer, ReplayServer
from tests.cli.demo_recordings import recordings
from tests.wire.streams import COUNTED, FIRST, STOP, text
from tests.wire.streams import DONE as ENDED

AGENTS = '''
import agentloop as al

@al.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@al.tool
async def explode() -> str:
    """Fail."""
    raise RuntimeError("boom")

assistant = al.Agent(name="assistant", instructions="Help.", tools=[add, explode])
limited = al.Agent(name="limited", tools=[add], limits=al.LoopLimits(max_model_calls=1))
typed = al.Agent(name="typed", tools=[add], output=al.Structured(list[int], name="numbers", route="call"))

@al.tool(approval="required")
async def sign(text: str) -> str:
    """Sign a text."""
    return text

signer = al.Agent(name="signer", tools=[sign])
chief = al.Agent(
    name="chief", tools=[al.delegate(signer, name="sum_up", description="Sum up.", tools=["sign"])]
)
not_an_agent = 17
'''
ANSWER = recordings()["4-answer.sse"]


def asks_for(tool: str, arguments: dict[str, Any]) -> bytes:
    """A stream that asks for one call."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    function = {"name": tool, "arguments": msgspec.json.encode(arguments).decode()}
    calls = [{"index": 0, "id": "call_1", "type": "function", "function": function}]
    chunks = [
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}]},
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"id": "r", "model": "m", "choices": [], "usage": usage},
    ]
    return b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with an agents.py, and no settings in the environment."""
    (tmp_path / "agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "agents", raising=False)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_KEY", "AGENTLOOP_MODEL", "AGENTLOOP_DIALECT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


async def run(server: ReplayServer, *arguments: str) -> int:
    """The command in a thread, against a server of this test's loop."""
    return await asyncio.to_thread(main, ["run", *arguments, "--base-url", server.url, "--model", "m"])


async def test_the_text_goes_to_stdout_and_the_rest_to_stderr(
    replay_server: ReplayServer, capsys: pytest.CaptureFixture[str]
) -> None:
    replay_server.script(asks_for("add", {"a": 2, "b": 3}), ANSWER)
    assert await run(replay_server, "agents:assistant", "Go on.") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("I read both notes")
    assert shown.out.count("\n") == 1
    assert 'call     add {"a":2,"b":3}' in shown.err
    assert "end      completed (stop), 2 model calls, 1 tool call, 441 tokens in" in shown.err
    assert replay_server.requests[1].json["messages"][-1]["content"] == "5"


async def test_a_model_that_writes_its_calls_in_text_is_run_with_an_argument(
    replay_server: ReplayServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The preset of the host stays what it is for everything else. (R342)"""
    calling = b"".join([FIRST, text('<tool_call>{"name": "add", "arguments": {"a":2,"b":3}}</tool_call>'), STOP])
    replay_server.script(Answer(body=calling + COUNTED + ENDED), ANSWER)
    assert await run(replay_server, "agents:assistant", "Go on.", "--call-text") == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("I read both notes")
    assert 'call     add {"a":2,"b":3}' in shown.err
    assert replay_server.requests[1].json["messages"][-1]["content"] == "<tool_response>\n5\n</tool_response>"


async def test_a_run_whose_agent_waits_for_a_person_says_so(
    replay_server: ReplayServer, capsys: pytest.CaptureFixture[str]
) -> None:
    replay_server.script(asks_for("sum_up", {"task": "t"}), asks_for("sign", {"text": "x"}))
    assert await run(replay_server, "agents:chief", "Go on.") == 1
    told = capsys.readouterr().err
    assert "waits    sum_up: for its agent, of which calls wait" in told
    assert "agentloop run: waiting_for_approval (approval)" in told


async def test_the_value_of_an_agent_with_an_output_is_one_line_of_json(
    replay_server: ReplayServer, capsys: pytest.CaptureFixture[str]
) -> None:
    replay_server.script(asks_for("add", {"a": 2, "b": 3}), asks_for("numbers", {"value": [5, 7]}), ANSWER)
    assert await run(replay_server, "agents:typed", "Go on.") == 0
    assert capsys.readouterr().out == "[5,7]\n"
    assert await run(replay_server, "agents:typed", "Go on.") == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "agentloop run: incomplete (no_output)" in shown.err


async def test_json_prints_every_event_as_one_line(
    replay_server: ReplayServer, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    replay_server.script(ANSWER)
    assert await run(replay_server, "agents:assistant", "Go on.", "--json") == 0
    events = [al.decode_event(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert events[0].type == "run.started"
    assert events[-1].type == "run.ended"
    assert [event.sequence for event in events] == sorted(event.sequence for event in events)
    assert "".join(event.text for event in events if isinstance(event, al.TextPreview)).startswith("I read")


async def test_the_prompt_may_come_from_standard_input(
    replay_server: ReplayServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "prompt").write_text("From a file.")
    replay_server.script(ANSWER)
    with (tmp_path / "prompt").open() as prompt:
        monkeypatch.setattr(sys, "stdin", prompt)
        assert await run(replay_server, "agents:assistant", "-") == 0
    assert replay_server.requests[0].json["messages"][-1] == {"role": "user", "content": "From a file."}


async def test_settings_come_from_the_environment(replay_server: ReplayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    replay_server.script(ANSWER)
    for name, value in {
        "OPENAI_BASE_URL": replay_server.url,
        "OPENAI_API_KEY": "key-from-env",
        "AGENTLOOP_MODEL": "model-from-env",
        "AGENTLOOP_DIALECT": "vllm",
    }.items():
        monkeypatch.setenv(name, value)
    assert await asyncio.to_thread(main, ["run", "agents:assistant", "Go on."]) == 0
    request = replay_server.requests[0]
    assert request.json["model"] == "model-from-env"
    assert request.headers["authorization"] == "Bearer key-from-env"


async def test_the_key_may_have_another_name(replay_server: ReplayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    replay_server.script(ANSWER)
    monkeypatch.setenv("MY_KEY", "another-key")
    assert await run(replay_server, "agents:assistant", "Go on.", "--api-key-env", "MY_KEY") == 0
    assert replay_server.requests[0].headers["authorization"] == "Bearer another-key"


async def test_an_outcome_other_than_completed_is_status_1(
    replay_server: ReplayServer, capsys: pytest.CaptureFixture[str]
) -> None:
    replay_server.script(asks_for("add", {"a": 2, "b": 3}))
    assert await run(replay_server, "agents:limited", "Go on.") == 1
    assert "agentloop run: limit_reached (max_model_calls)\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        (
            [Answer.error(401, {"error": {"message": "bad key", "code": "invalid_api_key"}})],
            "HTTPStatusError: HTTP 401: expected 200 with an event stream, got code invalid_api_key",
        ),
        ([Answer(body=ANSWER, cut=900)], "StreamRefused: truncated at event "),
        ([asks_for("explode", {})], "ToolCrashed: tool 'explode' raised RuntimeError"),
    ],
)
async def test_an_error_is_told_and_status_1(
    replay_server: ReplayServer, capsys: pytest.CaptureFixture[str], answers: list[Answer | bytes], says: str
) -> None:
    replay_server.script(*answers)
    assert await run(replay_server, "agents:assistant", "Go on.") == 1
    lines = capsys.readouterr().err.splitlines()
    quoted = ["the server said: bad key"] if "HTTP 401" in says else []
    assert [line for line in lines if line.startswith("the server")] == quoted
    assert lines[-1 - len(quoted)].startswith(f"agentloop run: {says}")


async def test_a_refused_stream_takes_its_text_back(
    replay_server: ReplayServer, capsys: pytest.CaptureFixture[str]
) -> None:
    replay_server.script(Answer(body=ANSWER, cut=3_000, pace=0.002))  # not all of it in one read
    assert await run(replay_server, "agents:assistant", "Go on.") == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("I read")
    assert shown.out.endswith("\n")
    assert "the text of this attempt is withdrawn" in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["agents:assistant", "x"], "expected --base-url URL, or OPENAI_BASE_URL"),
        (["agents:assistant", "x", "--base-url", "http://127.0.0.1/v1"], "expected --model NAME, or AGENTLOOP_MODEL"),
        (["agents:assistant", "x", "--base-url", "127.0.0.1", "--model", "m"], "--base-url: expected"),
        (["agents:assistant", "x", "--base-url", "http://127.0.0.1", "--model", "m", "--dialect", "no"], "dialect"),
        (
            ["agents:assistant", "x", "--base-url", "http://127.0.0.1", "--model", "m", "--api-key-env", "NO_KEY"],
            "--api-key-env: expected a key in the environment variable NO_KEY",
        ),
        (["agents", "x", "--base-url", "http://127.0.0.1", "--model", "m"], "expected MODULE:AGENT"),
        (["missing:a", "x", "--base-url", "http://127.0.0.1", "--model", "m"], "no module named 'missing'"),
        (
            ["agents:other", "x", "--base-url", "http://127.0.0.1", "--model", "m"],
            "agents in it: assistant, chief, limited",
        ),
        (["agents:not_an_agent", "x", "--base-url", "http://127.0.0.1", "--model", "m"], "expected an Agent, got int"),
        (["broken:a", "x", "--base-url", "http://127.0.0.1", "--model", "m"], "cannot be imported: ZeroDivisionError"),
        (["missing.py:a", "x", "--base-url", "http://127.0.0.1", "--model", "m"], "no file missing.py"),
    ],
)
def test_wrong_usage_is_status_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    (folder / "broken.py").write_text("1 / 0")
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("OPENAI_API_KEY", "schlüssel-geheim", "environment variable OPENAI_API_KEY: expected a non-empty string of"),
        ("OPENAI_BASE_URL", "ftp://x", "OPENAI_BASE_URL: expected an http or https URL"),
        ("OPENAI_BASE_URL", "http://x:99999/v1", "OPENAI_BASE_URL: expected a port from 0 to 65535"),
        ("AGENTLOOP_DIALECT", "auto", "AGENTLOOP_DIALECT: expected the name of one dialect, got auto"),
        ("AGENTLOOP_DIALECT", "nobody", "AGENTLOOP_DIALECT: expected one of openai, "),
    ],
)
def test_a_wrong_variable_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, value: str, says: str
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1/v1")
    monkeypatch.setenv("AGENTLOOP_MODEL", "m")
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        main(["run", "agents:assistant", "x"])
    assert caught.value.code == 2
    shown = capsys.readouterr().err
    assert says in shown
    assert "geheim" not in shown


@pytest.mark.parametrize("command", [["run", "agents:assistant"], ["record"]])
def test_a_prompt_that_is_no_text_is_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="latin-1"))
    for prompt, says in [("-", "standard input is not UTF-8 text"), ("caf\udce9", "the prompt is not UTF-8 text")]:
        with pytest.raises(SystemExit) as caught:
            main([*command, prompt, "--base-url", "http://127.0.0.1/v1", "--model", "m"])
        assert caught.value.code == 2
        assert says in capsys.readouterr().err


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert re.fullmatch(r"agentloop \d+\.\d+\.\d+\n", capsys.readouterr().out)
    monkeypatch.setattr(commands, "_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(SystemExit):
        main(["--version"])
    assert "no-such-distribution is not installed here" in " ".join(capsys.readouterr().out.split())


def test_a_module_may_be_named_by_its_file() -> None:
    assert load_agent("agents.py:assistant").name == "assistant"


def test_an_agent_may_be_an_attribute_of_something(folder: Path) -> None:
    (folder / "nested.py").write_text("import agents\n")
    assert load_agent("nested:agents.limited").name == "limited"
    with pytest.raises(AgentNotFound, match=r"no 'agents\.nothing'"):
        load_agent("nested:agents.nothing")


@pytest.mark.skipif(os.name == "nt", reason="SIGINT is sent to a process by its id")
async def test_ctrl_c_cancels_the_run_and_closes_the_connection(replay_server: ReplayServer) -> None:
    replay_server.script(Answer(body=ANSWER, cut=3_000, ending="stall"))
    words = ["run", "agents:assistant", "Go on.", "--base-url", replay_server.url, "--model", "m"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agentloop", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readexactly(6) == b"I read"
    process.send_signal(signal.SIGINT)
    await replay_server.wait_disconnects(1)
    output, errors = await process.communicate()
    assert process.returncode == 130
    assert output.endswith(b"\n")
    assert errors == b""
