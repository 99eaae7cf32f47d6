"""How long a send and a call took, as `agentloop inspect` tells it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.cli import main
from agentloop.exchange import Fact
from agentloop.messages import Text, ToolResult
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import FakeClock, ScriptedProvider
from agentloop.testing import call as asked
from agentloop.testing import reply as scripted
from tests.exchange.desk import Desk, asking
from tests.messages.values import reply
from tests.persistence.sqlite_files import made_v1, store

EPOCH = 1_700_000_000_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "facts.db"


async def timed(path: Path) -> None:
    """Run ``r``: a send of 1.5 s, a call of 250 ms, one that never ran, and a send of 2 s that failed."""
    clock = FakeClock()

    async def first(_: al.ModelRequest) -> Any:
        clock.advance(1.5)
        return scripted("On it.", calls=[asked("wait"), asked("gone")])

    async def second(_: al.ModelRequest) -> Any:
        clock.advance(2)
        return al.ConnectionLost("gone")

    @al.tool
    async def wait() -> str:
        """Wait."""
        clock.advance(0.25)
        return "waited"

    options: dict[str, Any] = {"clock": clock, "now_ms": clock.now_ms}
    async with al.Runtime(ScriptedProvider([first, second]), store=SQLiteBackend(path), **options) as host:
        with pytest.raises(al.ConnectionLost):
            await host.run(al.Agent(name="a", tools=[wait]), "go", run_id="r")


async def stored(path: Path, facts: list[Fact]) -> None:
    async with store(path) as backend:
        await backend.append(facts)


def told(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    assert main(["inspect", str(path), *words]) == 0
    return capsys.readouterr().out


def attempts(capsys: pytest.CaptureFixture[str], path: Path) -> list[dict[str, Any]]:
    (run,) = json.loads(told(capsys, path, "--json", "--run", "r"))["runs"]
    return list(run["attempts"])


def span(item: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Offsets of start and end, and what was between."""
    start, end = (None if item[name] is None else item[name] - EPOCH for name in ("started_at_ms", "ended_at_ms"))
    return start, end, item["duration_ms"]


def test_the_timeline_tells_what_each_send_and_call_took(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    asyncio.run(timed(path))
    lines = [line.strip() for line in told(capsys, path, "--run", "r").splitlines()]
    sends = [line.partition("scripted-model, ")[2] for line in lines if "  model call " in line]
    assert sends == [
        "replied, took 1.5 s, 1.8 s to the next step",
        "failed (connection_lost), may have been processed, took 2.0 s, 2.0 s to the next step",
    ]
    assert "call 0.0  wait  done, 1 execution, 2 B in, 6 B out, took 250 ms" in lines
    (gone,) = (line for line in lines if line.startswith("call 0.1"))
    assert "took" not in gone


def test_json_tells_the_times_to_scripts(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    asyncio.run(timed(path))
    first, second = attempts(capsys, path)
    assert (span(first), first["step_ms"]) == ((0, 1_500, 1_500), 1_750)
    assert (span(second), second["step_ms"]) == ((1_750, 3_750, 2_000), 2_000)
    assert [span(call) for call in first["reply"]["calls"]] == [(1_500, 1_750, 250), (None, 1_750, None)]


def test_the_page_tells_them_too(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    asyncio.run(timed(path))
    page = told(capsys, path, "--html", "-")
    page = page.replace("</span>", " ·")
    assert [page.count(f"took {words} ·") for words in ("1.5 s", "2.0 s", "250 ms")] == [1, 1, 1]


def test_what_version_1_did_not_tell_is_null(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    asyncio.run(timed(path))
    made_v1(path)
    first, second = attempts(capsys, path)
    assert [span(item) for item in (first, second)] == [(0, None, None), (1_750, None, None)]
    assert [item["step_ms"] for item in (first, second)] == [1_750, 2_000]
    assert [span(call) for call in first["reply"]["calls"]] == [(None, None, None)] * 2
    assert told(capsys, path, "--run", "r").count("took") == 1  # the whole run
    assert "took" not in told(capsys, path, "--html", "-").partition("<footer>")[0]


def test_what_a_host_settled_has_an_end_and_no_duration(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    """Nobody knows when the effect itself ended."""
    desk = Desk()
    turn = desk.open("r")
    desk.add(desk.book.settle_send(turn, desk.send(turn), author="Ann", at_ms=EPOCH))
    desk.take(turn, asking("a"))
    desk.start(turn, 0, 0)
    desk.add(desk.book.lose_slots(turn, at_ms=EPOCH + 1))
    given = al.ToolFeedback.of("a", ToolResult.ok("x"))
    desk.add(desk.book.settle_slot(turn, 0, 0, state="done", feedback=given, author="Ann", at_ms=EPOCH + 2))
    desk.take(turn, reply(Text(text="done")))
    desk.close(turn)
    asyncio.run(stored(path, desk.facts))
    settled, asked_again, _ = attempts(capsys, path)
    assert (settled["ended_at_ms"], settled["duration_ms"]) == (EPOCH, None)
    (call,) = asked_again["reply"]["calls"]
    assert (call["started_at_ms"], call["ended_at_ms"], call["duration_ms"]) == (4, EPOCH + 2, None)


def test_a_call_that_runs_again_took_as_long_as_its_newest_execution(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    desk = Desk()
    turn = desk.open("r")
    desk.take(turn, asking("a"))
    effect = desk.start(turn, 0, 0)
    desk.add(desk.book.lose_slots(turn, at_ms=50))
    desk.add(desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=60))
    desk.add(desk.book.start_slot(turn, 0, 0, effect_id=effect, at_ms=100))
    given = desk.feedback(turn, 0, 0)
    desk.add(desk.book.receive(desk.receipt(turn, effect), 0, 0, state="done", feedback=given, at_ms=130))
    asyncio.run(stored(path, desk.facts))
    (attempt,) = attempts(capsys, path)
    (call,) = attempt["reply"]["calls"]
    assert (call["executions"], call["started_at_ms"], call["ended_at_ms"], call["duration_ms"]) == (2, 100, 130, 30)


def test_a_claim_that_was_given_back_counts_for_no_execution(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    desk = Desk()
    turn = desk.open("r")
    desk.take(turn, asking("a"))
    desk.add(desk.book.give_back(desk.receipt(turn, desk.start(turn, 0, 0)), 0, 0, at_ms=50))
    asyncio.run(stored(path, desk.facts))
    (attempt,) = attempts(capsys, path)
    (call,) = attempt["reply"]["calls"]
    assert (call["state"], call["effect_id"], call["executions"], call["started_at_ms"]) == ("open", None, 0, None)
