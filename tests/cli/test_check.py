"""``agentloop check``, as scripts and people use it."""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentloop.cli import main
from tests.source import ROOT
from tests.wire.quirks import QUIRKS
from tests.wire.streams import (
    COUNTED,
    DONE,
    FIRST,
    HELLO,
    STOP,
    USAGE,
    call,
    calls,
    choice,
    chunk,
    needs_shared,
    shared,
    text,
)

KEYS = ["file", "verdict", "code", "event", "byte", "message", "dialect", "suggestion", "reply"]


@pytest.fixture(autouse=True)
def no_default_dialect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTLOOP_DIALECT", raising=False)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a stream to a file; its path."""

    def write(*events: bytes, name: str = "stream.sse") -> str:
        path = tmp_path / name
        path.write_bytes(b"".join(events))
        return str(path)

    return write


def check(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Run with --json; the exit status and the lines."""
    status = main(["check", "--json", *words])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def run(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "agentloop", "check", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=False, **options)


def test_an_accepted_stream_is_one_json_line_with_its_reply(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    thought = chunk(choice({"reasoning": "Hm", "refusal": "No"}))
    asked = calls(call(0, id="a", name="f", arguments='{"a":'), call(1, id="b", name="g", arguments=""))
    path = write(FIRST, thought, text("Hi é"), asked, chunk(choice({}, finish="length"), usage=USAGE), DONE)
    status, (line,) = check(capsys, path)
    assert status == 0
    assert line == {
        "file": path,
        "verdict": "accepted",
        "code": None,
        "event": None,
        "byte": None,
        "message": None,
        "dialect": "openai",
        "suggestion": None,
        "reply": {
            "text": "Hi é",
            "tool_calls": [
                {"id": "a", "name": "f", "arguments": '{"a":'},
                {"id": "b", "name": "g", "arguments": ""},
            ],
            "finish_reason": "length",
            "termination": "incomplete",
            "usage": {"input_tokens": 11, "output_tokens": 7, "total_tokens": 18},
            "reasoning": "Hm",
            "refusal": "No",
        },
    }
    assert list(line) == KEYS


def test_a_refused_stream_says_where_and_names_the_preset_that_admits_it(
    capsys: pytest.CaptureFixture[str], write: Any
) -> None:
    path = write(*QUIRKS["finish_repeated"].events)
    status, (line,) = check(capsys, path)
    assert status == 1
    assert list(line) == KEYS
    assert (line["verdict"], line["code"]) == ("refused", "duplicate_terminal")
    assert (line["event"], line["byte"]) == (3, len(FIRST + text("Hi") + STOP))
    assert (line["dialect"], line["suggestion"], line["reply"]) == ("openai", "openrouter", None)
    assert line["message"].endswith("(dialect 'openai'; dialect 'openrouter' admits it)")


def test_auto_takes_the_narrowest_preset(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    paths = [write(*HELLO), write(*QUIRKS["finish_repeated"].events, name="b"), write(*HELLO[:2], name="c")]
    status, lines = check(capsys, "--dialect", "auto", *paths)
    assert status == 1
    assert [(line["verdict"], line["dialect"]) for line in lines] == [
        ("accepted", "openai"),
        ("accepted", "openrouter"),
        ("refused", "lenient"),
    ]
    assert [line["file"] for line in lines] == paths


def test_the_environment_names_the_default_dialect(
    capsys: pytest.CaptureFixture[str], write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTLOOP_DIALECT", "openrouter")
    status, (line,) = check(capsys, write(*QUIRKS["finish_repeated"].events))
    assert (status, line["dialect"]) == (0, "openrouter")


def test_a_cut_admits_only_the_first_bytes(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    path = write(*HELLO)
    size = len(b"".join(HELLO))
    for cut in (0, 1, size - 1):
        status, (line,) = check(capsys, path, "--cut", str(cut))
        assert (status, line["verdict"]) == (1, "refused")
        assert line["code"] == ("missing_done" if cut == size - 1 else "truncated")
    for cut in (size, size + 1):
        assert check(capsys, path, "--cut", str(cut))[0] == 0


def test_people_are_told_of_a_refusal_inside_an_accepted_reply(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(ROOT / "tests/recordings/refusal.sse")]) == 0
    assert "completed ('stop'), 0 characters, a refusal of 23 characters, 26 tokens" in capsys.readouterr().out


def test_people_get_words(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    good, bad = write(*HELLO), write(FIRST, name="bad\x1b[31m.sse")
    assert main(["check", good, bad]) == 1
    assert capsys.readouterr().out == (
        f"accepted  {good}\n          completed ('stop'), 12 characters, 18 tokens, dialect openai\n"
        f"refused   {bad.replace(chr(27), chr(92) + 'x1b')}\n"
        f"          truncated at event 1, byte {len(FIRST)}: expected a finish and [DONE], got the end of the body "
        "(dialect 'openai')\n"
    )


def test_a_file_that_cannot_be_read_is_told_and_the_others_are_checked(
    capsys: pytest.CaptureFixture[str], write: Any, tmp_path: Path
) -> None:
    good = write(*HELLO)
    assert main(["check", "--json", str(tmp_path / "missing"), good, str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert [json.loads(line)["file"] for line in out.splitlines()] == [good]
    assert err.splitlines() == [
        f"agentloop check: {tmp_path}/missing: No such file or directory",
        f"agentloop check: {tmp_path}: Is a directory",
    ]


@pytest.mark.parametrize(
    "words", [[], ["--dialect", "opanai", "x"], ["--cut", "-1", "x"], ["--cut", "x", "x"], ["--nope", "x"]]
)
def test_wrong_usage_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", *words])
    assert caught.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_standard_input_is_a_dash(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"".join(HELLO))))
    status, (line,) = check(capsys, "-")
    assert (status, line["file"], line["reply"]["text"]) == (0, "-", "Hello, world")


ODD = [
    b"",
    b"\x00" * 100_000,
    b"\xff\xfe" * 50,
    b"\n" * 1_000,
    b"data: [DONE]\n\n",
    os.urandom(5_000),
    b"\x1f\x8b\x08\x00",
]


@pytest.mark.parametrize("body", ODD, ids=["empty", "zeros", "utf-16", "blank lines", "only done", "random", "gzip"])
@pytest.mark.parametrize("dialect", ["openai", "auto"])
def test_anything_else_is_refused_and_never_a_traceback(
    body: bytes, dialect: str, capsys: pytest.CaptureFixture[str], write: Any
) -> None:
    status, (line,) = check(capsys, "--dialect", dialect, write(body))
    assert (status, line["verdict"]) == (1, "refused")


def test_a_huge_file_is_refused_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(500 * 1024 * 1024)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

    for dialect in ("openai", "auto"):
        done = run("--json", "--dialect", dialect, str(path), preexec_fn=limit)
        assert (done.returncode, json.loads(done.stdout)["code"], done.stderr) == (1, "oversized", b"")


@pytest.mark.parametrize("dialect", ["openai", "auto"])
def test_an_input_without_end_is_left_at_the_refusal(dialect: str) -> None:
    command = [sys.executable, "-m", "agentloop", "check", "--json", "--dialect", dialect, "-"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"".join(HELLO[:2]) + b"junk\n\n")
        process.stdin.flush()
        line = json.loads(process.stdout.readline())  # while the input is still open
        assert (line["code"], line["suggestion"]) == ("bad_framing", None)
        assert process.wait(timeout=30) == 1


def test_a_reader_that_goes_away_ends_it_quietly(write: Any) -> None:
    path = write(*HELLO)
    command = [sys.executable, "-m", "agentloop", "check", "--json", *[path] * 3_000]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
@pytest.mark.parametrize("json", [[], ["--json"]])
def test_verdicts_that_cannot_be_written_are_no_refusal(write: Any, json: list[str]) -> None:
    command = [sys.executable, "-m", "agentloop", "check", *json, write(*HELLO)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (2, b"agentloop check: No space left on device\n")


def test_the_presets_are_named_shortly(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["check", "--dialect", "nobody", "x.sse"])
    said = capsys.readouterr().err
    assert caught.value.code == 2
    assert "--dialect: expected auto or one of openai, azure, " in said
    assert "NAME_no_usage" in said
    assert "openai_no_usage" not in said
    with pytest.raises(SystemExit):
        main(["check", "--help"])
    described = " ".join(capsys.readouterr().out.split())
    assert "Presets: openai, azure, " in described
    assert "openai_no_usage" not in described
    monkeypatch.setenv("AGENTLOOP_DIALECT", "nobody")
    with pytest.raises(SystemExit):
        main(["check", "x.sse"])
    assert "AGENTLOOP_DIALECT: expected auto or one of" in capsys.readouterr().err


def test_one_call_is_in_the_singular(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    path = write(
        FIRST,
        calls(call(0, id="a", name="f", arguments="{}")),
        chunk(choice({}, finish="tool_calls"), usage=USAGE),
        DONE,
    )
    assert main(["check", path]) == 0
    assert "0 characters, 1 call, 18 tokens" in capsys.readouterr().out


def test_ctrl_c_ends_it_quietly(write: Any) -> None:
    command = [sys.executable, "-m", "agentloop", "check", "--json", write(*HELLO), "-"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["verdict"] == "accepted"  # shown at once; now it waits for input
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 130


def test_with_standard_error_closed_no_error_slips_into_the_output() -> None:
    done = run("no such file", "--json", preexec_fn=lambda: os.close(2))
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_closed_standard_input_is_told() -> None:
    done = run("-", preexec_fn=lambda: os.close(0))
    assert done.returncode == 2
    assert done.stderr == b"agentloop check: -: standard input is closed\n"


def test_progress_is_shown_on_a_terminal_while_the_verdicts_go_elsewhere(
    capsys: pytest.CaptureFixture[str], write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["check", "--json", *[write(*HELLO)] * 3]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 3
    assert err == "\r1/3\r2/3\r3/3\r\x1b[K"


def test_usage_that_was_not_asked_for_points_to_a_preset(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    status, (line,) = check(capsys, write(FIRST, text("Hi"), STOP, DONE))
    assert (status, line["code"], line["suggestion"]) == (1, "missing_usage", "openai_no_usage")
    status, (line,) = check(capsys, "--dialect", line["suggestion"], line["file"])
    assert (status, line["reply"]["usage"]) == (0, None)


@needs_shared
def test_the_project_passes_its_own_yardstick() -> None:
    """R120: cases and recordings, through the command."""
    command = [sys.executable, str(shared("conformance.py")), "--python", sys.executable, "--min-accepted", "1.0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


@pytest.mark.parametrize("dialect", [(), ("--dialect", "ollama"), ("--dialect", "auto")])
def test_calls_in_text_are_read_where_one_says_so(
    capsys: pytest.CaptureFixture[str], write: Any, dialect: tuple[str, ...]
) -> None:
    """(R342)"""
    path = write(FIRST, text('Hm.<tool_call>{"name": "f", "arguments": {"a":1}}</tool_call>'), STOP, COUNTED, DONE)
    _, (plain,) = check(capsys, path, *dialect)
    assert (plain["reply"]["tool_calls"], plain["reply"]["text"][:5]) == ([], "Hm.<t")
    status, (line,) = check(capsys, path, "--call-text", *dialect)
    assert (status, line["dialect"]) == (0, "ollama" if "ollama" in dialect else "openai")
    assert line["reply"]["text"] == "Hm."
    assert line["reply"]["tool_calls"] == [{"id": "call_0", "name": "f", "arguments": '{"a":1}'}]


def test_a_suggestion_is_looked_for_with_calls_in_text(capsys: pytest.CaptureFixture[str], write: Any) -> None:
    words = text('<tool_call>{"name": "f"}</tool_call>')
    path = write(FIRST, words, chunk(choice({}, finish="tool_calls")), DONE)  # no usage
    status, (line,) = check(capsys, path, "--call-text")
    assert (status, line["code"], line["suggestion"]) == (1, "missing_usage", "openai_no_usage")
