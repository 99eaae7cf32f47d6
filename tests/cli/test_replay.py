"""`agentloop replay`, as a process."""

from __future__ import annotations

import os
import signal
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


WRONG = [["no-such-folder"], [str(RECORDINGS), "--port", "70000"], [str(RECORDINGS), "--pace", "-1"]]


@pytest.mark.parametrize("words", WRONG)
def test_wrong_usage_is_status_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["replay", *words])
    assert caught.value.code == 2
    assert "usage: agentloop replay" in capsys.readouterr().err
