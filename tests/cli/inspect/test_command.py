"""``agentloop inspect``, as people and scripts use it."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import sqlite3
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.cli import main
from agentloop.persistence.snapshot import write_snapshot
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import ScriptedProvider, call, reply
from tests.cli.inspect.stores import (
    HOSTILE,
    fill,
    fill_with_recovery,
    fill_with_steers,
    fill_with_waiting,
    fill_with_waiting_agent,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in" / "facts.db"


@pytest.fixture
def runs(path: Path) -> dict[str, str]:
    return asyncio.run(fill(path))


@pytest.fixture
def recovered(path: Path) -> Path:
    asyncio.run(fill_with_recovery(path))
    return path


def inspect(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["inspect", *words]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    return said.out


def fault(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The status, and the one line that says why."""
    status = main(["inspect", *words])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return status, said.err.removeprefix("agentloop inspect: ").rstrip()


def bytes_in(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


class Page(HTMLParser):
    """A page read strictly: elements that balance, their attributes, and the text a reader sees."""

    VOID = frozenset({"meta", "img", "br", "hr", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


# -- tables


def test_the_tables_list_conversations_runs_and_what_is_to_settle(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]
) -> None:
    lines = inspect(capsys, str(path)).splitlines()
    assert lines[0] == "facts.db: 4 conversations, 8 runs, 2 unfinished, 2 to settle"
    rows = {line.split()[0]: line for line in lines if line}
    assert "branch of talk" in next(line for line in lines if "branched" not in line and "branch of" in line)
    assert "completed" in rows[runs["done"]]
    assert "2 replied  1 done, 2 failed  1,2" in rows[runs["done"]]
    assert "failed (connection_failed)" in rows["failing"]
    assert "redacted, was completed" in rows["hidden"]
    assert "unfinished, 1 to settle" in next(line for line in lines if line.startswith("sending"))
    assert any(line.split() == ["call", "0.0", "pay", "started", "calling/0.0"] for line in lines)
    assert any(line.split()[:4] == ["send", "model", "call", "1"] and line.endswith("attempt-s") for line in lines)


def test_what_a_model_wrote_cannot_steer_a_terminal(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]
) -> None:
    for words in ([str(path)], [str(path), "--run", runs["hostile"]]):
        out = inspect(capsys, *words)
        assert not {"\x1b", "\u202e", "\0"} & set(out)
    assert "\ufffd[31m" in out  # and the run's timeline shows the rest


def test_a_run_is_a_timeline_with_sizes_and_usage(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]
) -> None:
    out = inspect(capsys, str(path), "--run", runs["done"])
    assert out.startswith(f"run {runs['done']}  completed\n")
    for words in (
        "conversation talk",
        "2 model calls, 2 tool executions",
        "+0.000  opened  agent clerk, 1 tool",
        "user  10 B",
        "Note this.",
        "model call 1  model scripted-model, replied",
        "call 0.0  note  done, 1 execution, 12 B in, 7 B out",
        "→ noted x",
        "call 0.1  note  failed (tool_failed), 1 execution",
        "call 0.2  gone  failed (unknown_tool), ",
        "model call 2  model scripted-model, replied, 1,200 in, 34 out",
        "All noted.",
        "ended  completed",
    ):
        assert words in out
    assert "no end" in inspect(capsys, str(path), "--run", "sending")
    assert "checkpoint   completed: outcome completed, exchanges " in out
    assert "redacted by  Ada" in inspect(capsys, str(path), "--run", "hidden")


def test_what_a_user_said_meanwhile_and_a_stop_stand_where_they_came(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    asyncio.run(fill_with_steers(path))
    order = ("first", "early", "model call 1", "Ada", "between", "model call 2", "stop")
    out = inspect(capsys, str(path), "--run", "spoken").partition("opened  agent")[2]
    places = [out.index(words) for words in order]
    assert places == sorted(places)
    assert "user by Ada  " in out
    assert "+0.003  user  5 B" in out
    assert "+0.004  asked to stop by Bob" in out
    (run,) = json.loads(inspect(capsys, str(path), "--json"))["runs"]
    steers = [(one["message"] and one["message"]["role"], one["model_calls"], one["author"]) for one in run["steers"]]
    assert steers == [("user", 0, None), ("user", 1, "Ada"), (None, 2, "Bob")]
    text = Page(inspect(capsys, str(path), "--html", "-")).text.partition("User")[2]
    told = [
        text.index(words) for words in ("first", "early", "Model call 1", "by Ada", "between", "Model call 2", "Asked")
    ]
    assert told == sorted(told)
    assert "Asked to stop by Bob" in text


def test_a_run_says_which_point_it_is_at(capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]) -> None:
    """(R133, R134)"""

    def point(ref: str) -> str:
        lines = inspect(capsys, str(path), "--run", ref).splitlines()
        return next((line.partition("checkpoint")[2].strip() for line in lines if "checkpoint" in line), "")

    assert point("sending") == "model-waiting: model call 1, attempt attempt-s, 0 answers stored"
    assert point("calling") == "tools: exchange 0, 0 answers stored, at call 0.0"
    assert point("failing").startswith("completed: outcome failed, exchanges ")
    assert point("hidden").startswith("completed: outcome completed, exchanges ")
    assert point(runs["branched"]).startswith("completed: outcome completed")
    view = json.loads(inspect(capsys, str(path), "--json"))
    points = {run["run_id"]: run["checkpoint"] for run in view["runs"] if run["kind"] != "branch"}
    assert [run["checkpoint"] for run in view["runs"] if run["kind"] == "branch"] == [None]
    claim = {"position": 0, "effect_id": "calling/0.0", "state": "started"}
    waiting, tools = points["sending"], points["calling"]
    assert (waiting["point"], waiting["attempt_id"], waiting["feedback"]) == ("model-waiting", "attempt-s", 0)
    assert (tools["point"], tools["cursor"], tools["effects"], tools["feedback"]) == ("tools", 0, [claim], [])


def test_what_a_server_answered_in_place_of_a_stream_is_shown_with_its_wait(
    capsys: pytest.CaptureFixture[str], recovered: Path
) -> None:
    (row,) = (line for line in inspect(capsys, str(recovered)).splitlines() if line.startswith("refused"))
    assert "1 failed (429, wait 0.01 s), 1 replied" in row
    told = "HTTP 429, asked to wait 0.01 s"
    timeline = inspect(capsys, str(recovered), "--run", "refused")
    assert f"model call 1  model scripted-model, failed (http_status), {told}, was not processed" in timeline
    assert timeline.count("HTTP") == 1
    view = json.loads(inspect(capsys, str(recovered), "--run", "refused", "--json"))
    attempts = view["runs"][0]["attempts"]
    assert [(item["status"], item["retry_after"]) for item in attempts] == [(429, 0.01), (None, None)]
    assert Page(inspect(capsys, str(recovered), "--html", "-")).text.count(told) == 1


def test_runs_with_recovery_points_are_marked_and_the_page_says_where_each_is(
    capsys: pytest.CaptureFixture[str], recovered: Path
) -> None:
    """(R129, R133, R134)"""
    heads, *rows = inspect(capsys, str(recovered)).splitlines()[5:10]
    column = slice(heads.index("RECOVERY"), heads.index("TIME"))
    assert {row.split()[0]: row[column].strip() for row in rows} == {
        "asking": "points",
        "mailing": "points",
        "found": "points",
        "refused": "-",
    }
    assert "recovery     points" in inspect(capsys, str(recovered), "--run", "found")
    assert "recovery  " not in inspect(capsys, str(recovered), "--run", "refused")
    view = json.loads(inspect(capsys, str(recovered), "--json"))
    assert [run["recovery_points"] for run in view["runs"]] == [True, True, True, False]
    text = Page(inspect(capsys, str(recovered), "--html", "-")).text
    assert text.count("recovery points") == 3
    assert text.count("checkpoint ") == 4
    for words in (
        "model-waiting · model call 1, attempt ",
        "tools · exchange 0, 0 answers stored, at call 0.0",
        "completed · outcome completed, exchanges ",
        "settled by recovery:pay",
    ):
        assert words in text


def test_whether_a_redacted_run_had_recovery_points_is_not_known(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]
) -> None:
    view = json.loads(inspect(capsys, str(path), "--run", "hidden", "--json"))
    assert view["runs"][0]["recovery_points"] is None


# -- JSON


def test_json_says_the_same_to_scripts(capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]) -> None:
    view = json.loads(inspect(capsys, str(path), "--json"))
    assert [item["name"] for item in view["conversations"]][-2:] == ["left", "talk"]
    by_id = {run["run_id"]: run for run in view["runs"]}
    assert {run["kind"] for run in view["runs"]} == {"run", "branch", "redacted"}
    done = by_id[runs["done"]]
    assert [attempt["state"] for attempt in done["attempts"]] == ["replied", "replied"]
    calls = done["attempts"][0]["reply"]["calls"]
    assert [(call["tool"], call["state"], call["code"]) for call in calls] == [
        ("note", "done", None),
        ("note", "failed", "tool_failed"),
        ("gone", "failed", "unknown_tool"),
    ]
    assert done["attempts"][0]["duration_ms"] is not None
    assert by_id["calling"]["attempts"][0]["reply"]["calls"][0]["arguments"] == '{"n": -0}'
    assert by_id[runs["hostile"]]["messages"][0]["text"] == HOSTILE
    one = json.loads(inspect(capsys, str(path), "--json", "--run", "sending"))
    assert (len(one["runs"]), one["conversations"], one["runs"][0]["unsettled"]) == (1, [], 1)


# -- the page


def test_the_page_shows_everything_and_needs_nothing(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    assert inspect(capsys, str(path), "--html", str(out)) == ""
    source = out.read_text(encoding="utf-8")
    assert inspect(capsys, str(path), "--html", "-") == source
    page = Page(source)
    for words in ("facts.db", "Note this.", "All noted.", "noted x", "unknown_tool", "to settle", "Ada", runs["done"]):
        assert words in page.text
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "img", "iframe", "object", "base", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in source
    assert "@import" not in source
    assert "prefers-color-scheme: dark" in source
    policy = next(item["content"] for tag, item in page.tags if item.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_hostile_text_is_shown_as_text_wherever_it_stands(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]
) -> None:
    shown = HOSTILE.translate({0x1B: "\ufffd", 0x202E: "\ufffd", 0: "\ufffd"})
    page = Page(inspect(capsys, str(path), "--html", "-"))
    assert page.text.count(shown) >= 4  # the conversation twice, the message, the reply


def test_every_link_of_the_page_leads_somewhere_and_every_run_has_a_heading(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]
) -> None:
    page = Page(inspect(capsys, str(path), "--html", "-"))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(attributes["href"] or "")[1:] for tag, attributes in page.tags if tag == "a"}
    assert targets <= set(ids)
    assert sum(tag == "article" for tag, _ in page.tags) == 8
    named = {attributes["aria-labelledby"] for tag, attributes in page.tags if tag == "article"}
    assert named <= set(ids)


# -- looking only


def test_nothing_is_written_and_no_lease_taken_while_others_run(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    async def look() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(_: al.ModelRequest) -> al.ModelReply:
            begun.set()
            await go_on.wait()
            return al.testing.reply("x")

        async with al.Runtime(ScriptedProvider([slowly]), store=SQLiteBackend(path)) as host:
            ref = await host.submit(al.Agent(name="a"), "hi", run_id="r")
            await begun.wait()
            names = ("facts.db", "facts.db-wal")
            before = [bytes_in(path.parent)[name] for name in names]
            said: dict[str, Any] = json.loads(await asyncio.to_thread(inspect, capsys, str(path), "--json"))
            assert [bytes_in(path.parent)[name] for name in names] == before
            assert (said["runs"][0]["state"], said["runs"][0]["unsettled"]) == ("running", 0)
            assert said["runs"][0]["owner"] == host._runs._owner
            go_on.set()
            await host.result(ref)

    asyncio.run(look())


def test_a_store_at_rest_stays_as_it_is_to_the_byte(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]
) -> None:
    before = bytes_in(path.parent)
    for mode in (0o600, 0o400):
        path.chmod(mode)
        inspect(capsys, str(path))
        inspect(capsys, str(path), "--run", runs["done"])
        assert bytes_in(path.parent) == before


def test_a_snapshot_is_looked_into_like_a_store(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str], tmp_path: Path
) -> None:
    async def write() -> bytes:
        backend = SQLiteBackend(path)
        await backend.open()
        await write_snapshot(backend, out := io.BytesIO())
        await backend.close()
        return out.getvalue()

    snapshot = tmp_path / "facts.db"
    snapshot.write_bytes(asyncio.run(write()))
    assert inspect(capsys, str(snapshot)) == inspect(capsys, str(path))
    snapshot.write_bytes(snapshot.read_bytes()[:-200])
    status, words = fault(capsys, str(snapshot))
    assert status == 1
    assert "line" in words


# -- what cannot be shown


def test_what_is_not_there_or_not_ours_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, path: Path, runs: dict[str, str]
) -> None:
    assert fault(capsys, str(tmp_path / "none.db"))[0] == 2
    assert not (tmp_path / "none.db").exists()
    assert fault(capsys, str(tmp_path))[0] == 2
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    assert fault(capsys, str(other)) == (1, f"{other}: expected a store of facts, got another file")
    (tmp_path / "text").write_text("hello" * 1000)
    assert fault(capsys, str(tmp_path / "text"))[0] == 1
    assert fault(capsys, str(path), "--run", "nobody") == (1, "lost: no run 'nobody' is kept")


def test_a_newer_store_and_a_damaged_one_say_so(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str]
) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE facts SET crc = crc + 1 WHERE seq = 3")
    connection.close()
    status, words = fault(capsys, str(path))
    assert (status, words.endswith("fact 3: expected the checksum it was written with, got another")) == (1, True)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET version = 99")
    connection.close()
    status, words = fault(capsys, str(path))
    assert (status, "expected schema version" in words, "got 99" in words) == (1, True, True)


def test_wrong_usage_and_a_page_that_cannot_be_written(
    capsys: pytest.CaptureFixture[str], path: Path, runs: dict[str, str], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["inspect", str(path), "--json", "--html", "x"])
    assert caught.value.code == 2
    capsys.readouterr()
    page = tmp_path / "no" / "page.html"
    assert fault(capsys, str(path), "--html", str(page)) == (2, f"--html: No such file or directory: {page}")


def test_a_password_is_never_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    status, words = fault(capsys, "postgresql://ada:hunter2@127.0.0.1:1/facts")
    assert status in (1, 2)
    assert "hunter2" not in words


# -- what was converted, and what is kept


def test_what_was_converted_and_how_much_is_kept_is_shown_and_not_the_text(
    capsys: pytest.CaptureFixture[str], path: Path, tmp_path: Path
) -> None:
    @al.tool(coerce=True)
    async def fetch(times: int) -> str:
        """Fetch a page."""
        return "a page of many <b>words</b> " * times

    async def ran() -> None:
        asked = [call("fetch", arguments_text='{"times": "1000"}'), call("fetch", times=1)]
        async with al.Runtime(ScriptedProvider([reply(calls=asked), reply("ok")]), store=path) as runtime:
            await runtime.run(al.Agent(name="a", tools=[fetch]), "go", run_id="r")

    asyncio.run(ran())
    lines = [line.strip() for line in inspect(capsys, str(path), "--run", "r").splitlines()]
    assert lines.count("full output kept: 27.3 KiB (28,000 bytes)") == 1
    assert lines.count("converted: $.times: string to integer") == 1
    (run,) = json.loads(inspect(capsys, str(path), "--json", "--run", "r"))["runs"]
    calls = run["attempts"][0]["reply"]["calls"]
    assert [(call["kept_bytes"], call["converted"]) for call in calls] == [
        (28_000, ["$.times: string to integer"]),
        (None, []),
    ]
    text = Page(inspect(capsys, str(path), "--html", "-")).text
    for words in ("full output kept", "27.3 KiB (28,000 bytes)", "$.times: string to integer"):
        assert text.count(words) == 1
    assert text.count("many") < 300


# -- calls that wait for a host


@pytest.fixture
def waiting(path: Path) -> Path:
    asyncio.run(fill_with_waiting(path))
    return path


def test_a_store_says_which_calls_wait_for_a_decision(capsys: pytest.CaptureFixture[str], waiting: Path) -> None:
    said = inspect(capsys, str(waiting))
    assert "1 run, 1 unfinished, 2 to decide" in said
    assert "unfinished, 2 to decide" in said
    table = said.partition("to decide in run paying\n")[2].splitlines()
    assert table[0].split() == ["KIND", "WHERE", "WHAT", "ARGUMENTS"]
    assert table[1].split() == ["approval", "0.2", "pay", '{"to":"Eve"}']
    assert table[2].split()[:3] == ["external", "0.3", "ask"]
    assert "\x1b" not in said


def test_a_run_says_what_its_calls_wait_for_and_who_decided(capsys: pytest.CaptureFixture[str], waiting: Path) -> None:
    said = inspect(capsys, str(waiting), "--run", "paying")
    assert "call 0.0  pay  done, approved by Ada, 1 execution" in said
    assert "call 0.1  pay  skipped, denied by Bea, " in said
    assert "call 0.2  pay  waiting (approval), " in said
    assert "call 0.3  ask  waiting (external), " in said
    assert "tools: exchange 0, 2 answers stored, at call 0.2, 2 calls wait" in said


def test_as_json_a_call_says_what_was_decided(capsys: pytest.CaptureFixture[str], waiting: Path) -> None:
    (run,) = json.loads(inspect(capsys, str(waiting), "--json"))["runs"]
    assert (run["state"], run["waiting"], run["unsettled"]) == ("unfinished", 2, 0)
    calls = run["attempts"][0]["reply"]["calls"]
    assert [(call["state"], call["code"], call["decided"], call["decided_by"], call["author"]) for call in calls] == [
        ("done", None, "approved", "Ada", None),
        ("skipped", "denied", "denied", "Bea", None),
        ("waiting", "approval", None, None, None),
        ("waiting", "external", None, None, None),
    ]


def test_the_page_says_what_to_decide(capsys: pytest.CaptureFixture[str], waiting: Path) -> None:
    said = inspect(capsys, str(waiting), "--html", "-")
    assert '<div class="alarm"><dt>to decide</dt><dd>2</dd></div>' in said
    assert "2 calls wait for a decision: decide, then resume this run." in said
    assert "approved by <bdi>Ada</bdi>" in said
    assert "denied by <bdi>Bea</bdi>" in said
    assert "<script" not in said


def test_a_run_that_waits_for_its_agent_says_so_and_has_nothing_to_decide(
    capsys: pytest.CaptureFixture[str], path: Path
) -> None:
    asyncio.run(fill_with_waiting_agent(path))
    said = inspect(capsys, str(path))
    assert "2 runs, 2 unfinished, 1 to decide" in said
    assert "to decide in run asking/0.0\n" in said
    assert "to decide in run asking\n" not in said
    alone = inspect(capsys, str(path), "--run", "asking")
    assert "call 0.0  research  waiting for its agent, run asking/0.0, 1 execution" in alone
    assert "to decide" not in alone
    runs = json.loads(inspect(capsys, str(path), "--json"))["runs"]
    told = {run["run_id"]: (run["waiting"], run["unsettled"], run["tool_calls"]) for run in runs}
    assert told == {"asking": (0, 0, 1), "asking/0.0": (1, 0, 0)}
    assert "waiting: for its agent" in Page(inspect(capsys, str(path), "--html", "-")).text
