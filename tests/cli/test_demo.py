from __future__ import annotations

import os
import signal
import subprocess
import sys

import msgspec
import pytest

from agentloop.cli import demo, main
from agentloop.cli.notebook import NOTES, Note
from agentloop.providers import Recording
from agentloop.wire.assembler import ReplyAssembler
from tests.cli import demo_recordings

COMMAND = [sys.executable, "-m", "agentloop", "demo"]


def replies() -> list[Recording]:
    return demo.load_demo_recordings()


def test_the_shipped_recordings_are_what_the_script_makes() -> None:
    assert {f"{item.name}.sse": item.body for item in replies()} == demo_recordings.recordings()


def test_every_recording_is_admitted_by_the_strict_dialect() -> None:
    for recording in replies():
        assembler = ReplyAssembler()
        assembler.feed(recording.body)
        assert assembler.finish().usage is not None


def test_the_demo_shows_the_four_rounds_and_what_was_really_written(capsys: pytest.CaptureFixture[str]) -> None:
    """(R162, R171)"""
    assert main(["demo", "--pace", "0"]) == 0
    shown = capsys.readouterr().out
    written = Note.of(demo_recordings.TITLE, demo_recordings.TEXT)
    assert [number for number in range(1, 6) if f"\nRound {number}\n" in shown] == [1, 2, 3, 4]
    assert shown.count("\nRound 1\n") == 2  # once more for the refused stream
    assert all(f"{note.title}: {note.text}" in shown for note in NOTES)
    assert demo_recordings.ANSWER in shown
    assert f"written  {written.title}: {written.text}" in shown
    assert msgspec.json.encode(demo_recordings.TEXT).decode()[1:-1] in shown  # as the model asked for it
    assert "4 model calls in 4 requests, 3 tool calls" in shown
    assert "\x1b" not in shown


def test_the_demo_shows_a_whole_call_that_is_refused_and_not_run(capsys: pytest.CaptureFixture[str]) -> None:
    """(R117, R120)"""
    assert main(["demo", "--pace", "0"]) == 0
    shown = capsys.readouterr().out.partition("ends too early")[2]
    assert "arrived  a whole call, write_note {" in shown
    assert "its text is withdrawn" in shown
    assert "refused  truncated at event " in shown
    assert "requests sent: 1, tools run: 0, notes written: 0" in shown


def test_other_recordings_give_another_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """(R172)"""
    monkeypatch.setattr(demo_recordings, "TITLE", "A new title")
    monkeypatch.setattr(demo_recordings, "ANSWER", "Another answer.")
    made = [Recording(name=name, body=body) for name, body in demo_recordings.recordings().items()]
    monkeypatch.setattr(demo, "load_demo_recordings", lambda: made)
    assert main(["demo", "--pace", "0"]) == 0
    shown = capsys.readouterr().out
    assert "written  A new title: Launch on 12 May" in shown
    assert "text     Another answer." in shown


def test_a_demo_that_does_not_hold_says_so_by_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    only_answer = [item for item in replies() if b"write_note" in item.body or b"stop" in item.body]
    monkeypatch.setattr(demo, "load_demo_recordings", lambda: only_answer[::-1])  # the answer first: nothing is written
    assert main(["demo", "--pace", "0"]) == 1


def test_it_takes_a_few_seconds_at_most() -> None:
    events = sum(item.body.count(b"\n\n") for item in replies())
    assert events * demo._PACE < 4


def test_a_bad_pace_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--pace", "fast"])
    assert caught.value.code == 2
    assert "expected seconds from 0 to 1, got 'fast'" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_error() -> None:
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_output_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(COMMAND, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "agentloop demo: No space left on device\n")


@pytest.mark.skipif(os.name == "nt", reason="the shell's way to close standard output")
def test_a_closed_standard_output_is_no_error() -> None:
    command = ["/bin/sh", "-c", 'exec "$0" "$@" >&-', *COMMAND, "--pace", "0"]
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.name == "nt", reason="SIGINT is sent to a process by its id")
def test_ctrl_c_ends_it_quietly() -> None:
    with subprocess.Popen([*COMMAND, "--pace", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == b""
        assert process.wait() == 130
