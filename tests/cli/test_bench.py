from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop.cli import main
from agentloop.cli.bench import measure
from agentloop.cli.floor import FloorReply
from agentloop.errors import StreamRefused
from agentloop.wire.presets import OPENAI, PRESETS
from tests.cli.demo_recordings import ANSWER, FOLDER, TEXT, recordings

FILES = sorted(str(path) for path in FOLDER.glob("*.sse"))
QUICK = ["--seconds", "0.01"]


def test_a_table_has_one_line_for_each_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *QUICK, *FILES]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["us/event", "floor", "ratio", "events/s", "MB/s", "events", "dialect", "file"]
    assert [line.split()[-1] for line in lines] == FILES


def test_json_has_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *QUICK, "--json", FILES[0]]) == 0
    row = json.loads(capsys.readouterr().out)
    body = Path(FILES[0]).read_bytes()
    assert (row["file"], row["dialect"], row["bytes"]) == (FILES[0], "openai", len(body))
    assert row["events"] == body.count(b"\n\n")
    assert row["us_per_event"] > 0
    assert row["ratio"] > 0
    assert row["events_per_s"] == pytest.approx(1e6 / row["us_per_event"], rel=0.1)


def test_a_refused_stream_is_status_1_and_the_others_are_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "cut.sse"
    cut.write_bytes(Path(FILES[0]).read_bytes()[:900])
    assert main(["bench", *QUICK, str(cut), FILES[0]]) == 1
    shown = capsys.readouterr()
    assert f"{cut}: truncated at event " in shown.err
    assert shown.out.splitlines()[1].endswith(FILES[0])


def test_wrong_usage_is_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(tmp_path / "missing.sse")]) == 2
    assert "No such file" in capsys.readouterr().err
    for words in (["--seconds", "0", FILES[0]], ["--dialect", "nobody", FILES[0]], []):
        with pytest.raises(SystemExit) as caught:
            main(["bench", *words])
        assert caught.value.code == 2


def test_auto_takes_the_narrowest_dialect_that_admits_the_stream(capsys: pytest.CaptureFixture[str]) -> None:
    without_done = recordings()["4-answer.sse"].removesuffix(b"data: [DONE]\n\n")
    dialects = (OPENAI, PRESETS["lenient"])
    assert measure("x", without_done, dialects, seconds=0.01).dialect == "lenient"
    with pytest.raises(StreamRefused, match="missing_done"):
        measure("x", without_done, (OPENAI,), seconds=0.01)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
def test_the_floor_reads_every_line_end(line_end: bytes) -> None:
    body = recordings()["4-answer.sse"].replace(b"\n", line_end)
    assert measure("x", body, (OPENAI,), seconds=0.01).ratio is not None


def test_what_the_floor_cannot_read_has_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folded = tmp_path / "folded.sse"
    folded.write_bytes(recordings()["4-answer.sse"].replace(b',"choices":', b',\ndata: "choices":'))
    assert main(["bench", *QUICK, str(folded)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1:3] == ["-", "-"]


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_the_floor_reads_the_same_reply(size: int) -> None:
    streams = recordings()
    answer, write = FloorReply(), FloorReply()
    for reply, body in ((answer, streams["4-answer.sse"]), (write, streams["3-write.sse"])):
        for at in range(0, len(body), size):
            reply.feed(body[at : at + size])
    assert answer.text == ANSWER
    [(call_id, name, arguments)] = write.calls
    assert (call_id[:5], name, json.loads(arguments)["text"]) == ("call_", "write_note", TEXT)
