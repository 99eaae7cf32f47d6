from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import agentloop as al
from agentloop.cli import main
from agentloop.exchange import Fact, ReplyTaken, SendStarted, SlotMoved
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import Answer, ReplayServer, ScriptedProvider, call, reply
from tests.cli.chatting import AGENTS, asks, says
from tests.source import ROOT

STEERS = "a\x1b]0;t\x07\x9b2J\u202e\u2066b"
INERT = "a\ufffd]0;t\ufffd\ufffd2J\ufffd\ufffdb"


class Shown(NamedTuple):
    status: int
    out: str
    err: str


class CutOff(SQLiteBackend):
    """A medium that fails when a certain fact is to be written, so that the runtime leaves all as it is."""

    def __init__(self, path: Path, cut: Callable[[Fact], bool]) -> None:
        super().__init__(path)
        self._cut = cut

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        if any(map(self._cut, facts)):
            raise al.PersistenceError("cut off")
        await super().append(facts, token=token, after=after)


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


Talk = Callable[..., Any]


@pytest.fixture
def talk(replay_server: ReplayServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Talk:
    """Say lines to an agent over a pipe, as the command does it; the server is one of this test's loop."""

    async def talk(*lines: str | bytes, agent: str = "helper", options: Sequence[str] = ()) -> Shown:
        read, write = os.pipe()
        os.write(write, b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
        os.close(write)
        words = ["chat", f"agents:{agent}", "--base-url", replay_server.url, "--model", "m", *options]
        with os.fdopen(read) as pipe:
            monkeypatch.setattr(sys, "stdin", pipe)
            status = await asyncio.to_thread(main, words)
        return Shown(status, *capsys.readouterr())

    return talk


@pytest.fixture
def store(folder: Path) -> Iterator[list[str]]:
    """The options that name a store, and a conversation in it."""
    return ["--store", str(folder / "facts.db"), "--conversation", "tea"]


async def left_in(
    folder: Path, script: Sequence[al.ModelReply], cut: Callable[[Fact], bool], *, agent: str = "helper"
) -> None:
    """Leave a turn of the conversation tea unfinished, as a process that dies does."""
    scope: dict[str, Any] = {"__name__": "agents"}
    exec(compile(AGENTS, "agents.py", "exec"), scope)
    async with al.Runtime(ScriptedProvider(list(script)), store=CutOff(folder / "facts.db", cut)) as runtime:
        with pytest.raises(al.PersistenceError):
            await runtime.run(scope[agent], "Go on.", conversation="tea", run_id="r")


def texts(server: ReplayServer, at: int = -1) -> list[str]:
    """What one request says, message by message, its instructions aside."""
    return [message["content"] for message in server.requests[at].json["messages"] if message["role"] != "system"]


# -- turns


async def test_each_line_is_a_turn_of_one_conversation(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(says("Hello."), says("You said one."))
    shown = await talk("one", "", "two", agent="plain")
    assert (shown.status, shown.out) == (0, "Hello.\nYou said one.\n")
    assert texts(replay_server) == ["one", "Hello.", "two"]
    assert "chat     with plain (0 tools); /help lists the commands" in shown.err
    assert "(in memory only)" in shown.err


async def test_tool_calls_are_told_as_they_start_and_finish(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(asks(("add", {"a": 2, "b": 3}), text="I add."), asks(("fail", {"why": "no"})), says("5."))
    shown = await talk("add")
    assert (shown.status, shown.out) == (0, "I add.\n5.\n")
    assert 'call     add {"a":2,"b":3}\n  result   add: 1 byte, ' in shown.err
    assert 'call     fail {"why":"no"}\n  result   fail: failed (tool_failed)' in shown.err


async def test_a_text_that_is_withdrawn_is_not_written(replay_server: ReplayServer, talk: Talk) -> None:
    body = says("never true", pieces=5)
    replay_server.script(Answer(body=body, cut=len(body) - 100, pace=0.002), says("Again."))
    shown = await talk("one", "two", agent="plain")
    assert (shown.status, shown.out) == (1, "Again.\n")
    assert "failed   the text of this attempt is withdrawn\n  error    StreamRefused: " in shown.err
    assert texts(replay_server) == ["two"]


async def test_an_error_is_told_in_a_line_with_the_servers_words_and_the_chat_goes_on(
    replay_server: ReplayServer, talk: Talk
) -> None:
    error = {"error": {"message": f"bad {STEERS}\nkey", "code": "invalid_api_key"}}
    replay_server.script(Answer.error(401, error), says("Fine."))
    shown = await talk("one", "two", agent="plain")
    assert (shown.status, shown.out) == (1, "Fine.\n")
    lines = shown.err.splitlines()
    told = next(at for at, line in enumerate(lines) if line.startswith("  error "))
    assert "HTTPStatusError: HTTP 401: expected 200 with an event stream, got code invalid_api_key" in lines[told]
    assert lines[told + 1].strip().startswith("the server said: bad a ]0;t")
    assert not {"\x1b", "\x9b", "\u202e"} & set(shown.err)


async def test_an_outcome_other_than_completed_is_told(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(says("Cut", finish="length"), *[asks(("add", {"a": 1, "b": at})) for at in range(5)])
    shown = await talk("one", "two")
    assert (shown.status, shown.out) == (1, "Cut\n")
    assert "end      incomplete (length)" in shown.err
    assert "end      limit_reached (max_tool_calls)" in shown.err


async def test_the_value_of_an_agent_with_an_output_is_one_line_of_json(
    replay_server: ReplayServer, talk: Talk
) -> None:
    replay_server.script(asks(("numbers", {"value": [5, 7]}), text="thinking"))
    assert (await talk("one", agent="typed")).out == "[5,7]\n"


async def test_what_others_wrote_is_inert_also_in_a_pipe(replay_server: ReplayServer, talk: Talk, folder: Path) -> None:
    replay_server.script(
        asks(
            ("sign", json.dumps({"text": STEERS}, ensure_ascii=False).replace("\\u001b", "\x7f")), text=f"text {STEERS}"
        ),
        asks(("fail", {"why": STEERS})),
        asks((f"x{STEERS}", {})),
        says(f"end {STEERS}"),
    )
    shown = await talk("one", "y", "/save out.md")
    saved = (folder / "out.md").read_text()
    for text in (shown.out, shown.err, saved):
        assert not {"\x1b", "\x07", "\x7f", "\x9b", "\u202e", "\u2066"} & set(text)
    assert f"end {INERT}\n" in shown.out
    assert f"text {INERT}\n" in shown.out


# -- lines and arguments


async def test_a_line_that_is_no_text_is_told_and_the_next_one_said(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(says("Fine."))
    shown = await talk(b"caf\xe9", "two", agent="plain")
    assert shown.out == "Fine.\n"
    assert "InputError: the line is not UTF-8 text" in shown.err
    assert texts(replay_server) == ["two"]


async def test_two_slashes_say_one(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(says("A path."))
    await talk("//etc", agent="plain")
    assert texts(replay_server) == ["/etc"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("/nothing", "expected a command that /help lists, got /nothing"),
        ("/tools now", "/tools: expected nothing after it"),
        ("/undo!", "/undo: expected no ! after it"),
        ("/save", "/save: expected the name of a file"),
        ("/save out.md", "/save: nothing was said yet"),
        ("/undo", "/undo: no turn is part of the conversation"),
        ("/resume nowhere", "lost: no conversation 'nowhere' is kept"),
        (f"/resume {'x' * 129}", "/resume: expected a string of 1 to 128 characters, got 129 characters"),
        ("/a\x1b[2J", "got /a\ufffd[2J"),
    ],
)
async def test_a_command_that_cannot_be_done_says_why(talk: Talk, line: str, says: str) -> None:
    shown = await talk(line)
    assert says in shown.err
    assert (shown.status, shown.out) == (0, "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["agents:nobody"], "agents has no 'nobody'; agents in it: chief, helper, payer, plain, typed"),
        (["agents:plain", "--conversation", ""], "--conversation: expected a string of 1 to 128 characters, got 0"),
        (["agents:plain", "--model", ""], "expected --model NAME"),
    ],
)
def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str], options: list[str], says: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["chat", "--base-url", "http://127.0.0.1/v1", "--model", "m", *options])
    assert caught.value.code == 2
    assert says in capsys.readouterr().err


async def test_over_pipes_no_package_of_the_extra_is_needed(replay_server: ReplayServer) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['rich', 'prompt_toolkit'])); from agentloop.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    words = ["chat", "agents:plain", "--base-url", replay_server.url, "--model", "m"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    replay_server.script(says("Fine."))
    out, _ = await process.communicate(b"one\n")
    assert (process.returncode, out) == (0, b"Fine.\n")


async def test_a_store_that_cannot_be_opened_ends_the_chat(talk: Talk, folder: Path) -> None:
    (folder / "facts.db").write_text("no database " * 100)
    shown = await talk("one", options=["--store", str(folder / "facts.db")])
    assert (shown.status, shown.out) == (1, "")
    assert shown.err.startswith("agentloop chat: PersistenceError: ")
    assert "Traceback" not in shown.err


def test_help_names_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["chat", "--help"])
    assert caught.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    for part in ("MODULE:AGENT", "--base-url", "--model", "--dialect", "--call-text", "--api-key-env", "--store PATH"):
        assert part in told
    for part in ("--conversation NAME", "--no-history", "Ctrl-C stops a turn", "Exit 0"):
        assert part in told


# -- commands


async def test_help_lists_the_commands(talk: Talk) -> None:
    shown = await talk("/help")
    for name in ("/help", "/tools", "/budget", "/save FILE", "/resume [NAME]", "/undo", "/new", "/quit", "Alt-Enter"):
        assert f"  {name}" in shown.out


async def test_quit_leaves_what_follows_unsaid(replay_server: ReplayServer, talk: Talk) -> None:
    shown = await talk("/quit", "one")
    assert (shown.status, replay_server.requests) == (0, [])


async def test_tools_are_listed_with_how_they_are_run(talk: Talk) -> None:
    shown = await talk("/tools")
    assert "  add: Add two numbers.\n      idempotent, no approval, timeout 15 s\n" in shown.out
    assert "  sign: Sign a text.\n      not idempotent, each call needs approval, timeout 15 s\n" in shown.out
    assert "  measure: Measure something.\n      external: a person gives its result\n" in shown.out
    assert (await talk("/tools", agent="plain")).out == "  the agent has no tools\n"


async def test_the_budget_tells_the_last_turn_and_the_session(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(says("One."), asks(("add", {"a": 2, "b": 3})), says("5."))
    shown = await talk("/budget", "one", "two", "/budget")
    assert shown.out.startswith("  no turn was taken yet\n")
    for line in (
        "  model calls  2 of 8\n",
        "  tool calls   1 of 4\n",
        "  tokens       30 (no limit) (20 tokens in, 10 out)\n",
        "  session      2 turns, 30 tokens in, 15 out\n",
    ):
        assert line in shown.out
    assert "  last turn    completed, " in shown.out


async def test_a_conversation_is_saved_as_markdown_and_never_over_a_file(
    replay_server: ReplayServer, talk: Talk, folder: Path
) -> None:
    replay_server.script(asks(("add", {"a": 2, "b": 3}), text="I add."), says("It is ```5```."), says("Bye."))
    options = ["--conversation", "sums"]
    shown = await talk("What is 2 + 3?", "/save out.md", "bye", "/save out.md", "/save! out.md", options=options)
    assert "error    /save: out.md is there already; /save! replaces it" in shown.err
    assert shown.err.count("saved    out.md") == 2
    assert (folder / "out.md").read_text() == (
        "# sums\n\n## You\n\nWhat is 2 + 3?\n\n## helper\n\nI add.\n\nCall of `add`:\n\n"
        '```json\n{"a":2,"b":3}\n```\n\nIts result:\n\n```\n5\n```\n\n'
        "## helper\n\nIt is ```5```.\n\n## You\n\nbye\n\n## helper\n\nBye.\n"
    )
    if os.name != "nt":
        assert stat.S_IMODE((folder / "out.md").stat().st_mode) == 0o600


async def test_a_file_that_cannot_be_written_is_told(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(says("One."))
    shown = await talk("one", "/save no/such/folder.md", "/save a\x00b", agent="plain")
    assert "/save: no/such/folder.md: No such file or directory" in shown.err
    assert "/save: a\ufffdb: embedded null byte" in shown.err


async def test_undo_goes_on_before_the_last_turn_and_keeps_the_old_conversation(
    replay_server: ReplayServer, talk: Talk, store: list[str]
) -> None:
    replay_server.script(says("One."), asks(("add", {"a": 1, "b": 1})), says("Two."), says("Other."))
    shown = await talk("first", "second", "/undo", "another", "/resume", options=store)
    assert "undone   second\n  talk     tea~2 goes on before that; tea stays as it is" in shown.err
    assert texts(replay_server) == ["first", "One.", "another"]
    assert "  tea: at rest\n* tea~2: at rest\n" in shown.out
    replay_server.script(says("Three."))
    await talk("third", options=store)
    assert texts(replay_server)[-3:] == ["2", "Two.", "third"]


async def test_undo_of_the_first_turn_begins_anew_and_names_are_never_reused(
    replay_server: ReplayServer, talk: Talk, store: list[str]
) -> None:
    replay_server.script(says("One."), says("Two."), says("Three."))
    shown = await talk("first", "/undo", "second", "/undo", "third", "/undo", "/undo", options=store, agent="plain")
    for number in (2, 3, 4):
        assert f"tea~{number} goes on before that" in shown.err
    assert "/undo: no turn is part of the conversation" in shown.err
    assert [texts(replay_server, at) for at in range(3)] == [["first"], ["second"], ["third"]]


async def test_undo_says_which_turn_it_takes_where_the_last_one_came_to_nothing(
    replay_server: ReplayServer, talk: Talk
) -> None:
    replay_server.script(says("One."), Answer.error(500, {}), says("Again."))
    shown = await talk("first", "second", "/undo", "third", agent="plain")
    assert "undone   first" in shown.err
    assert texts(replay_server) == ["third"]


async def test_a_new_conversation_knows_nothing_of_the_old_one(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(says("One."), says("Two."))
    shown = await talk("first", "/new", "second", "/resume", agent="plain")
    assert texts(replay_server) == ["second"]
    assert shown.out.count("at rest") == 2


async def test_a_conversation_of_a_store_goes_on(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    replay_server.script(says("One."), says("Two."), says("Three."))
    await talk("first", options=store, agent="plain")
    shown = await talk("second", options=store, agent="plain")
    assert shown.out == "> first\nOne.\nTwo.\n"
    assert texts(replay_server) == ["first", "One.", "second"]
    shown = await talk("/resume", "/resume tea", "third", options=store[:2], agent="plain")
    assert shown.out == "  tea: at rest\n> second\nTwo.\nThree.\n"
    assert texts(replay_server)[-2:] == ["Two.", "third"]


# -- calls that wait


async def test_a_call_that_is_approved_runs(replay_server: ReplayServer, talk: Talk) -> None:
    replay_server.script(asks(("sign", {"text": "a\nb"})), says("Signed."))
    shown = await talk("sign", "", "what?", "yes indeed", "y")
    assert (shown.status, shown.out) == (0, '  | {"text":"a\\nb"}\nSigned.\n')
    assert "turn     waiting: 1 call to decide about\n  approve? sign\n" in shown.err
    assert texts(replay_server)[-1] == "signed a\nb"


async def test_the_arguments_are_shown_as_the_model_wrote_them_and_cannot_pass_for_more(
    replay_server: ReplayServer, talk: Talk
) -> None:
    replay_server.script(asks(("sign", '{"text":\n"1.0e3"\n  }')), says("Signed."))
    shown = await talk("sign", "y")
    assert shown.out.startswith('  | {"text":\n  | "1.0e3"\n  |   }\n')


async def test_a_call_that_is_denied_does_not_run_and_the_model_reads_why(
    replay_server: ReplayServer, talk: Talk
) -> None:
    replay_server.script(asks(("sign", {"text": "x"}), ("sign", {"text": "y"})), says("Not signed."))
    shown = await talk("sign", "n too dear", "n")
    assert shown.out.endswith("Not signed.\n")
    assert [text.partition("Reason")[2] for text in texts(replay_server)[-2:]] == [": too dear", ""]
    assert "denied" in texts(replay_server)[-1]


async def test_the_result_of_an_external_call_is_asked_for(replay_server: ReplayServer, talk: Talk) -> None:
    calls = [("measure", {"what": what}) for what in "abcd"]
    replay_server.script(asks(*calls), says("Measured."))
    shown = await talk("go", "", "/what", "7 m", "/error it broke", "/deny", "//etc")
    assert "turn     waiting: 4 calls to decide about\n  answer?  measure\n" in shown.err
    assert shown.out.endswith("Measured.\n")
    first, second, third, fourth = texts(replay_server)[-4:]
    assert (first, second, fourth) == ("7 m", "it broke", "/etc")
    assert "denied" in third


async def test_a_call_of_an_agent_that_another_one_asked_is_decided_about(
    replay_server: ReplayServer, talk: Talk
) -> None:
    replay_server.script(
        asks(("ask_helper", {"task": "t"})), asks(("sign", {"text": "x"})), says("Signed."), says("Ok.")
    )
    shown = await talk("go", "y", agent="chief")
    assert (shown.status, shown.out) == (0, '  | {"text":"x"}\nOk.\n')
    assert "waits    ask_helper: for its agent, of which calls wait" in shown.err
    assert texts(replay_server, 2)[-1] == "signed x"


async def test_a_call_may_wait_for_later_and_what_was_decided_before_is_kept(
    replay_server: ReplayServer, talk: Talk, store: list[str]
) -> None:
    replay_server.script(asks(("sign", {"text": "x"}), ("sign", {"text": "y"})), says("Signed."), says("Next."))
    shown = await talk("sign", "y", "later", "/resume", options=store)
    assert "* tea: waiting: 1 call to decide about\n" in shown.out
    assert len(replay_server.requests) == 1
    shown = await talk("y", "next", options=store)
    assert shown.out == '> sign\n  | {"text":"y"}\nSigned.\nNext.\n'
    told = [line.split(":")[0] for line in shown.err.splitlines()[2:6]]
    assert told == ['  call     sign {"text"', "  result   sign", '  call     sign {"text"', "  turn     waiting"]
    assert texts(replay_server, 1)[-2:] == ["signed x", "signed y"]


async def test_nothing_is_said_before_an_unfinished_turn_is_dealt_with(
    replay_server: ReplayServer, talk: Talk, store: list[str]
) -> None:
    replay_server.script(asks(("sign", {"text": "x"})), says("Next."))
    shown = await talk("sign", "later", "next", "later", "/undo", "discard", "/undo", "next", options=store)
    assert "not said a turn is unfinished; say what becomes of it, or begin a /new conversation" in shown.err
    assert "/undo: the last turn is unfinished; say what becomes of it first" in shown.err
    assert "undone   sign" in shown.err
    assert shown.out.endswith("Next.\n")
    assert texts(replay_server) == ["next"]


async def test_calls_that_wait_at_the_end_of_the_input_stay_so(
    replay_server: ReplayServer, talk: Talk, store: list[str]
) -> None:
    replay_server.script(asks(("sign", {"text": "x"})), says("Signed."))
    assert (await talk("sign", options=store)).status == 1
    shown = await talk("y", options=store)
    assert shown.out.endswith("Signed.\n")
    assert shown.status == 0


# -- what a process left that died


async def test_a_paused_turn_is_shown_and_goes_on(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    await left_in(folder, [], lambda fact: type(fact) is SendStarted)
    replay_server.script(says("Done."))
    shown = await talk("continue", options=store)
    assert "turn     paused: it can go on" in shown.err
    assert shown.out.endswith("Done.\n")
    assert texts(replay_server) == ["Go on."]


async def test_what_is_stored_of_an_unfinished_turn_is_shown(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    calls = [call("add", a=1, b=2), call("fail", why="no")]
    lost = [reply("I *add*.", calls=calls), reply("More.", calls=[call("fail", why="cut")])]
    await left_in(folder, lost, lambda fact: type(fact) is SlotMoved and (fact.exchange, fact.state) == (1, "failed"))
    shown = await talk("later", options=store)
    assert shown.out == '> Go on.\nI *add*.\nMore.\n  | {"why":"cut"}\n'
    told = shown.err.splitlines()
    told = told[told.index('  call     add {"a":1,"b":2}') :]
    assert told[1].startswith("  result   add: 1 byte, ")
    assert told[2:5] == [
        '  call     fail {"why":"no"}',
        "  result   fail: failed (tool_failed)",
        '  call     fail {"why":"cut"}',
    ]
    assert told[5].startswith("  turn     unsettled: 1 effect")


async def test_a_turn_of_another_conversation_that_cannot_be_read_stops_nobody(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    await left_in(folder, [], lambda fact: type(fact) is SendStarted)
    with contextlib.closing(sqlite3.connect(folder / "facts.db")) as medium, medium:
        assert medium.execute("UPDATE facts SET record = '{}' WHERE run_id = 'r'").rowcount > 0
    replay_server.script(says("Fine."))
    shown = await talk("one", "/resume tea", options=[*store[:2], "--conversation", "coffee"])
    assert shown.out == "Fine.\n"
    assert "error    RestoreError: bad_record" in shown.err


async def test_an_unsettled_send_is_asked_again_or_discarded(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    await left_in(folder, [reply("lost")], lambda fact: type(fact) is ReplyTaken)
    shown = await talk("later", "/resume", options=store)
    assert "turn     unsettled: 1 effect of which nobody knows what became of it" in shown.err
    assert (
        "unknown  a request that may have been answered, and charged for; asking again sends another one" in shown.err
    )
    assert "* tea: unsettled: 1 effect" in shown.out
    assert replay_server.requests == []
    replay_server.script(says("Done."))
    assert (await talk("again", options=store)).out.endswith("Done.\n")
    assert texts(replay_server) == ["Go on."]


async def test_a_discarded_turn_leaves_a_conversation_that_goes_on(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    await left_in(folder, [reply("lost")], lambda fact: type(fact) is ReplyTaken)
    replay_server.script(says("Next."))
    shown = await talk("discard", "next", options=store)
    assert (shown.status, shown.out) == (1, "> Go on.\nNext.\n")
    assert texts(replay_server) == ["next"]


@pytest.mark.parametrize(
    ("answer", "reads"),
    [("done it said no", "it said no"), ("failed cable cut", "cable cut"), ("repeat", "why")],
)
async def test_a_person_says_what_became_of_an_unsettled_call(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path, answer: str, reads: str
) -> None:
    lost = [reply(calls=[call("fail", why="why")])]
    await left_in(folder, lost, lambda fact: type(fact) is SlotMoved and fact.state == "failed")
    replay_server.script(says("Done."))
    shown = await talk("again", answer, options=store)
    assert "  unknown  fail\n" in shown.err
    assert "  settle   fail\n" in shown.err
    assert '  | {"why":"why"}\n' in shown.out
    assert shown.out.endswith("Done.\n")
    assert texts(replay_server)[-1] == reads


async def test_a_call_that_its_tool_recovers_is_not_asked_about(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    lost = [reply(calls=[call("add", a=1, b=2)])]
    await left_in(folder, lost, lambda fact: type(fact) is SlotMoved and fact.state == "done")
    replay_server.script(says("Done."))
    shown = await talk("continue", options=store)
    assert "turn     paused: it can go on" in shown.err
    assert "settle" not in shown.err
    assert shown.out.endswith("Done.\n")
    assert texts(replay_server)[-1] == "3"


async def test_an_unsettled_call_of_an_agent_that_another_one_asked_is_settled(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    lost = [reply(calls=[call("ask_helper", task="t")]), reply(calls=[call("fail", why="why")])]
    await left_in(folder, lost, lambda fact: type(fact) is SlotMoved and fact.state == "failed", agent="chief")
    replay_server.script(says("Noted."), says("Done."))
    shown = await talk("again", "done all went well", options=store, agent="chief")
    assert "settle   fail\n" in shown.err
    assert "settle   ask_helper" not in shown.err
    assert shown.out.endswith("Done.\n")
    assert [texts(replay_server, at)[-1] for at in (0, 1)] == ["all went well", "Noted."]


async def test_a_call_below_that_its_tool_recovers_is_not_asked_about(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    lost = [reply(calls=[call("ask_helper", task="t")]), reply(calls=[call("add", a=1, b=2)])]
    await left_in(folder, lost, lambda fact: type(fact) is SlotMoved and fact.state == "done", agent="chief")
    replay_server.script(says("Three."), says("Done."))
    shown = await talk("continue", options=store, agent="chief")
    assert "settle" not in shown.err
    assert shown.out.endswith("Done.\n")
    assert [texts(replay_server, at)[-1] for at in (0, 1)] == ["3", "Three."]


async def test_an_unsettled_send_of_an_agent_that_another_one_asked_is_asked_again(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    lost = [reply(calls=[call("ask_helper", task="t")]), reply("lost")]

    def cut(fact: Fact) -> bool:
        return type(fact) is ReplyTaken and fact.run_id != "r"

    await left_in(folder, lost, cut, agent="chief")
    replay_server.script(says("Noted."), says("Done."))
    shown = await talk("again", options=store, agent="chief")
    assert "turn     unsettled: 1 effect" in shown.err
    assert shown.out.endswith("Done.\n")
    assert [texts(replay_server, at)[-1] for at in (0, 1)] == ["t", "Noted."]


async def test_a_call_whose_lookup_fails_is_settled_by_a_person(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    lost = [reply(calls=[call("pay", to="Ann")])]
    await left_in(folder, lost, lambda fact: type(fact) is SlotMoved and fact.state == "done", agent="payer")
    replay_server.script(says("Done."))
    lines = ("continue", "/resume tea", "again", "done paid, says Ann")
    shown = await talk(*lines, options=store, agent="payer")
    assert "turn     paused: it can go on" in shown.err
    assert shown.err.count("  settle   pay\n") == 1
    assert shown.out.count("> Go on.\n") == 2  # told each time that it is resumed by name, and not when it goes on
    assert "UnsettledError: run 'r' waits to be settled: call 0.0" in shown.err
    assert "RuntimeError: the bank is closed" in shown.err
    assert shown.out.endswith("Done.\n")
    assert texts(replay_server)[-1] == "paid, says Ann"


async def test_a_turn_that_goes_on_elsewhere_is_said_to(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def slow(request: al.ModelRequest) -> al.ModelReply:
        began.set()
        await go.wait()
        return reply("Elsewhere.")

    agent = al.Agent(name="helper")
    async with al.Runtime(ScriptedProvider([slow]), store=folder / "facts.db") as runtime:
        ref = await runtime.submit(agent, "Go.", conversation="tea")
        await began.wait()
        shown = await talk("next", options=store)
        assert "turn     goes on elsewhere (its lease ends in " in shown.err
        assert "not said" in shown.err
        assert replay_server.requests == []
        go.set()
        assert (await runtime.result(ref)).text == "Elsewhere."


async def test_a_turn_of_another_agent_is_not_taken_up(
    replay_server: ReplayServer, talk: Talk, store: list[str], folder: Path
) -> None:
    await left_in(folder, [], lambda fact: type(fact) is SendStarted)
    shown = await talk("continue", "/resume", options=store, agent="plain")
    assert "error    RestoreError: agent_changed" in shown.err
    assert "* tea: paused: it can go on\n" in shown.out


# -- Ctrl-C

posix = pytest.mark.skipif(os.name == "nt", reason="SIGINT is sent to a process by its id")


async def begun(server: ReplayServer) -> asyncio.subprocess.Process:
    """A chat in a process of its own, over pipes."""
    words = ["chat", "agents:plain", "--base-url", server.url, "--model", "m"]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentloop", *words),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@posix
async def test_ctrl_c_stops_the_turn_and_the_next_line_is_said(replay_server: ReplayServer, folder: Path) -> None:
    replay_server.script(Answer(body=says("some text"), cut=20, ending="stall"), says("Next."))
    process = await begun(replay_server)
    assert process.stdin is not None
    process.stdin.write(b"first\nsecond\n")
    await replay_server.wait_requests(1)
    process.send_signal(signal.SIGINT)
    process.stdin.close()
    out, err = await process.communicate()
    assert (process.returncode, out) == (1, b"Next.\n")
    assert b"stopping this turn" in err
    assert b"stopped  this turn was cancelled" in err
    assert b"Traceback" not in err
    assert texts(replay_server) == ["second"]


@posix
async def test_ctrl_c_between_the_lines_of_a_pipe_ends_the_chat(replay_server: ReplayServer, folder: Path) -> None:
    process = await begun(replay_server)
    assert process.stderr is not None
    while b"  talk " not in await process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130
    out, err = await process.communicate()
    assert (out, err) == (b"", b"")
