from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop.wire.assembler import ReplyAssembler
from benchmarks import serve, streams
from benchmarks.__main__ import TOPICS, main
from benchmarks.measure import Settings, compare


@pytest.mark.timeout(240)  # of all topics, also beside other work
def test_the_smoke_run_measures_every_topic_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    assert main(["--smoke", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert list(dict.fromkeys(row["topic"] for row in report["rows"])) == list(TOPICS)
    assert all(row["low"] <= row["ours"] <= row["high"] for row in report["rows"])
    assert all((row["floor"] is None) == (row["ratio"] is None) for row in report["rows"])
    assert report["smoke"] is True
    table = capsys.readouterr().out.splitlines()
    assert table[0] == report["machine"]
    assert len(table) == 2 + len(report["rows"])


def test_an_unknown_topic_is_wrong_usage() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["nothing"])
    assert caught.value.code == 2


def test_a_ratio_is_the_median_over_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([2.0, 1.0, 9.0, 3.0, 4.0, 2.0])
    monkeypatch.setattr("benchmarks.measure.sample", lambda work, seconds: next(spent))
    row = compare("t", "n", unit="s", scale=10, ours=int, floor=int, settings=Settings(rounds=3, seconds=0.0))
    assert (row.ours, row.low, row.high, row.floor, row.ratio) == (40.0, 20.0, 90.0, 20.0, 2.0)


def test_the_data_is_the_same_in_every_run() -> None:
    assert streams.text_events(30) == streams.text_events(30)
    assert streams.text_events(30) != streams.text_events(30, seed=2)
    assert serve.replies(2) == serve.replies(2)


def test_the_data_is_admitted_by_the_strict_dialect() -> None:
    for events in serve.replies(3):
        assembler = ReplyAssembler()
        for block in streams.blocks(events):
            assembler.feed(block)
        reply = assembler.finish()
        assert bool(reply.calls) != bool(reply.text)


def test_the_notes_come_in_so_many_deltas_and_are_json() -> None:
    events = streams.notes_events(50)
    assert len(events) == 50 + 4  # the role, the finish, the usage and the end
    assembler = ReplyAssembler()
    assembler.feed(b"".join(events))
    assert set(json.loads(assembler.finish().text)) == {"notes"}
