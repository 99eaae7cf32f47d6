"""`agentloop replay`, as a process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from agentloop.cli import main

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"


@pytest.mark.skipif(os.name == "nt", reason="signals of another kind")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_serves_and_ends_on_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "agentloop", "replay", str(RECORDINGS), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            url = process.stdout.readline().strip()
            asked = urllib.request.Request(f"{url}/chat/completions", data=b'{"model":"text","stream":true}')
            with urllib.request.urlopen(asked, timeout=10) as answer:  # loopback
                assert answer.read() == (RECORDINGS / "text.sse").read_bytes()
        finally:
            process.send_signal(number)
        assert process.wait(10) == 0
        assert process.stderr.read() == "serving made-1, notes-demo\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
def test_an_address_that_cannot_be_written_ends_it_with_status_2() -> None:
    command = [sys.executable, "-m", "agentloop", "replay", str(RECORDINGS), "--port", "0"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[1:] == ["agentloop replay: No space left on device"]


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as caught:
            main(["replay", str(RECORDINGS), "--port", port])
    assert caught.value.code == 2
    assert f"cannot listen on 127.0.0.1:{port}: " in capsys.readouterr().err


def test_a_file_that_is_no_recording_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["replay", __file__])
    assert caught.value.code == 2
    assert "expected a .sse file, got 'test_replay.py'" in capsys.readouterr().err


WRONG = [
    ["no-such-folder"],
    [str(RECORDINGS), "--port", "70000"],
    [str(RECORDINGS), "--pace", "-1"],
    [str(RECORDINGS), "--prefix", "v1"],
]


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["replay", *words])
    assert caught.value.code == 2
    assert "usage: agentloop replay" in capsys.readouterr().err
