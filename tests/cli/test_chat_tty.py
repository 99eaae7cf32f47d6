"""The chat on a pseudo terminal; what is asserted on are the bytes that it gets."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import stat
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentloop.testing import Answer, ReplayServer
from tests.cli.chatting import AGENTS, asks, says
from tests.source import ROOT

pexpect = pytest.importorskip("pexpect")
pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="pseudo terminals are those of POSIX"),
    pytest.mark.filterwarnings("ignore:.*forkpty:DeprecationWarning"),  # the child execs at once
]

PROMPT = rb">\x1b\[0m"
"""What begins each prompt; what is typed after it is drawn with it again."""
STYLES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Typist:
    """A person at a terminal: types, and waits for what is shown."""

    def __init__(self, child: Any) -> None:
        self.child = child
        self.shown = b""

    async def sees(self, *patterns: bytes) -> None:
        """Wait for each pattern, in their order."""
        for pattern in patterns:
            await asyncio.to_thread(self.child.expect, pattern)
            self.shown += self.child.before + self.child.after

    async def says(self, line: str) -> None:
        """Type a line at the next prompt."""
        await self.sees(PROMPT)
        self.child.send(f"{line}\r")

    async def leaves(self) -> int:
        """Ctrl-D at the next prompt; the exit status."""
        await self.sees(PROMPT)
        return await self.gone("\x04")

    async def gone(self, keys: str) -> int:
        self.child.send(keys)
        await asyncio.to_thread(self.child.expect, pexpect.EOF)
        self.shown += self.child.before
        self.echoes: bool = self.child.getecho()
        self.child.close()
        status: int = self.child.exitstatus
        return status


Sit = Callable[..., Typist]


@pytest.fixture
async def sit(replay_server: ReplayServer, tmp_path: Path) -> AsyncIterator[Sit]:
    """Start chats on terminals of 80 columns and 24 rows, in a folder with an agents.py."""
    (tmp_path / "agents.py").write_text(AGENTS)
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "SYSTEMROOT")
    environ = {name: os.environ[name] for name in kept if name in os.environ} | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "1",
        "TERM": "xterm-256color",
        "PROMPT_TOOLKIT_NO_CPR": "1",  # nobody here answers where the cursor is
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    started: list[Any] = []

    def sit(*options: str, agent: str = "helper", python: tuple[str, ...] = ("-m", "agentloop"), **more: str) -> Typist:
        words = ["chat", f"agents:{agent}", "--base-url", replay_server.url, "--model", "m", *options]
        child = pexpect.spawn(
            sys.executable,
            [*python, *words],
            cwd=str(tmp_path),
            env={**environ, **more},
            dimensions=(24, 80),
            timeout=20,
        )
        child.delaybeforesend = None
        started.append(child)
        return Typist(child)

    yield sit
    for child in started:
        child.close(force=True)


def held(text: str) -> Answer:
    """An answer that stops in the middle and keeps the connection open."""
    body = says(text, pieces=8)
    return Answer(body=body, cut=len(body) * 2 // 3, ending="stall")


async def test_an_answer_is_shown_as_markdown_and_the_chat_ends_with_ctrl_d(
    replay_server: ReplayServer, sit: Sit
) -> None:
    replay_server.script(says("**bold** [here](http://example.org)"), asks(("add", {"a": 1, "b": 2})), says("3"))
    typist = sit()
    await typist.sees(rb"with helper \(4 tools\); /help lists the commands", rb"\(in memory only\)")
    await typist.says("hi")
    await typist.sees(rb"\x1b\[1mbold\x1b\[0m", rb"http://example.org")
    await typist.says("add")
    await typist.sees(rb'call     \x1b\[0madd \{"a":1,"b":2\}', rb"result   \x1b\[0madd: 1 byte", rb"3 +\r\n")
    assert await typist.leaves() == 0
    assert b"**" not in typist.shown
    assert b"\x1b]8" not in typist.shown
    assert [message["content"] for message in replay_server.requests[1].json["messages"]][-1] == "add"


async def test_ctrl_c_in_the_middle_of_a_stream_stops_the_turn_and_the_chat_goes_on(
    replay_server: ReplayServer, sit: Sit
) -> None:
    replay_server.script(held("one two three four five six"), says("Next."))
    typist = sit(agent="plain")
    await typist.says("go")
    await typist.sees(rb"one two")
    typist.child.send("\x03")
    typist.child.send("\x03")  # harmless
    await replay_server.wait_disconnects(1)
    await typist.sees(rb"stopping ", rb"the text of this attempt is withdrawn", rb"this turn was cancelled")
    await typist.says("next")
    await typist.sees(rb"Next\.")
    assert await typist.leaves() == 0
    assert typist.echoes
    assert typist.shown.count(b"stopping") == 1
    assert replay_server.requests[1].json["messages"][1:] == [{"role": "user", "content": "next"}]


async def test_a_text_that_is_withdrawn_is_said_to_be_and_does_not_stay(replay_server: ReplayServer, sit: Sit) -> None:
    body = says("never true at all", pieces=5)
    replay_server.script(Answer(body=body, cut=len(body) - 100, pace=0.02))
    typist = sit(agent="plain")
    await typist.says("go")
    await typist.sees(rb"the text of this attempt is withdrawn")
    assert b"never" not in typist.shown.rpartition(b"\x1b[2K")[2]
    await typist.sees(rb"StreamRefused: ")
    assert await typist.leaves() == 0


async def test_ctrl_c_at_the_prompt_clears_the_line(replay_server: ReplayServer, sit: Sit) -> None:
    replay_server.script(says("Fine."))
    typist = sit(agent="plain")
    await typist.sees(PROMPT)
    typist.child.send("wrong\x03right\r")
    await typist.sees(rb"Fine\.")
    assert await typist.leaves() == 0
    assert replay_server.requests[0].json["messages"][-1]["content"] == "right"


@pytest.mark.parametrize("turn", [True, False])
async def test_sigterm_leaves_the_terminal_as_it_was_and_the_turn_in_the_store(
    replay_server: ReplayServer, sit: Sit, turn: bool
) -> None:
    replay_server.script(held("one two three four"))
    typist = sit("--store", "chat.db", "--conversation", "tea", agent="plain")
    await typist.sees(PROMPT)
    if turn:
        typist.child.send("go\r")
        await typist.sees(rb"one two")
        assert not typist.child.getecho()
    typist.child.kill(signal.SIGTERM)
    assert await typist.gone("") == 128 + signal.SIGTERM
    assert b"Traceback" not in typist.shown
    assert typist.shown.rindex(b"\x1b[?25h") > typist.shown.rindex(b"\x1b[?25l")  # the cursor is shown
    if turn:
        assert typist.echoes
        again = sit("--store", "chat.db", "--conversation", "tea", agent="plain")
        await again.sees(rb"turn     ", rb"discard or later\?")
        again.child.send("later\r")
        assert await again.leaves() == 0
        assert len(replay_server.requests) == 1


async def test_what_is_typed_during_a_turn_is_not_echoed_and_waits_for_the_prompt(
    replay_server: ReplayServer, sit: Sit
) -> None:
    replay_server.script(held("one two three four"), says("Fine."))
    typist = sit(agent="plain")
    await typist.says("go")
    await typist.sees(rb"one two")
    typist.child.send("typed ahead\r\x03")
    await typist.sees(rb"this turn was cancelled")
    assert b"typed ahead" not in typist.shown
    assert b"^C" not in typist.shown
    await typist.sees(rb"Fine\.")
    assert await typist.leaves() == 0
    assert replay_server.requests[1].json["messages"][-1]["content"] == "typed ahead"


async def test_an_approval_is_asked_for_with_the_exact_arguments(replay_server: ReplayServer, sit: Sit) -> None:
    replay_server.script(asks(("sign", '{"text":  "a\\u0007b"}')), says("Signed."))
    typist = sit()
    await typist.says("sign")
    await typist.sees(rb"approve\? \x1b\[0msign", rb'  \| \{"text":  "a\\u0007b"\}', rb"later or discard\?")
    typist.child.send("y\r")
    await typist.sees(rb"result   \x1b\[0msign", rb"Signed\.")
    assert await typist.leaves() == 0
    assert replay_server.requests[1].json["messages"][-1]["content"] == "signed a\x07b"


async def test_what_was_typed_before_an_approval_was_asked_for_does_not_give_it(
    replay_server: ReplayServer, sit: Sit
) -> None:
    replay_server.script(asks(("sign", {"text": "x"})), says("Not signed."))
    typist = sit()
    await typist.sees(PROMPT)
    typist.child.send("sign\ry\r")
    await typist.sees(rb"discard\?")
    typist.child.send("n\r")
    await typist.sees(rb"Not signed\.")
    assert await typist.leaves() == 0
    assert "denied" in replay_server.requests[1].json["messages"][-1]["content"]


@pytest.mark.parametrize("term", ["xterm-256color", "dumb"])
async def test_arguments_hide_nothing_and_each_row_of_them_is_marked(
    replay_server: ReplayServer, sit: Sit, term: str
) -> None:
    spoof = '{"text":"\u202e\u200b'.ljust(78) + "approve? add"
    replay_server.script(asks(("sign", spoof + '"}')), says("Not signed."))
    typist = sit(TERM=term)
    await typist.sees(rb">")
    typist.child.send("sign\r")
    await typist.sees(rb"later or discard\?")
    rows = [row for row in STYLES.sub(b"", typist.shown).decode().split("\r\n") if row.startswith("  | ")]
    assert rows[0].startswith('  | {"text":"\\u202e\\u200b ')
    assert len(rows) == 2
    assert max(map(len, rows)) <= 80
    assert rows[1].endswith('approve? add"}')


async def test_what_was_typed_before_gives_no_approval_on_a_dumb_terminal_either(
    replay_server: ReplayServer, sit: Sit
) -> None:
    replay_server.script(asks(("sign", {"text": "x"})), says("Not signed."))
    typist = sit(TERM="dumb")
    await typist.sees(rb"> ")
    typist.child.send("sign\ry\r")
    await typist.sees(rb"discard\?")
    typist.child.send("n\r")
    await typist.sees(rb"Not signed\.", rb"> ")
    assert await typist.gone("\x04") == 0
    assert "denied" in replay_server.requests[1].json["messages"][-1]["content"]


async def test_undo_takes_the_last_turn_back(replay_server: ReplayServer, sit: Sit) -> None:
    replay_server.script(says("One."), says("Two."), says("Other."))
    typist = sit("--conversation", "tea", agent="plain")
    for line, answer in (("first", rb"One\."), ("second", rb"Two\.")):
        await typist.says(line)
        await typist.sees(answer)
    await typist.says("/undo")
    await typist.sees(rb"undone   \x1b\[0msecond", rb"tea~2 goes on before that; tea stays as it is")
    await typist.says("other")
    await typist.sees(rb"Other\.")
    assert await typist.leaves() == 0
    said = [message["content"] for message in replay_server.requests[2].json["messages"]]
    assert said == ["Help.", "first", "One.", "other"]


async def test_no_escape_of_a_model_a_tool_or_a_server_reaches_the_terminal(
    replay_server: ReplayServer, sit: Sit
) -> None:
    evil = "\x1b]0;EVIL\x07\x1b[666m\x9b2J\u202e\u2066&#8238;\x1b]8;;http://evil\x1b\\"
    error = {"error": {"message": evil, "code": evil, "type": evil}}
    replay_server.script(
        asks((f"no{evil}", {}), ("fail", {"why": evil}), text=f"# t{evil}\n\n`{evil}` [a{evil}](http://x/{evil})"),
        says(f"```{evil}\n{evil}\n```\n\n|{evil}|\n|-|\n|{evil}|\n", pieces=9),
        Answer.error(400, error),
    )
    typist = sit()
    await typist.says("one")
    await typist.sees(rb"fail: failed")
    await typist.says("two")
    await typist.sees(rb"HTTPStatusError")
    assert await typist.leaves() == 0
    text = typist.shown.decode()
    assert "EVIL" in text
    for sequence in ("\x1b]", "\x1b[666m", "\x9b", "\x07", "\u202e", "\u2066", "\x1b[2J"):
        assert sequence not in text


async def test_what_was_said_is_recalled_in_the_next_chat_from_a_private_file(
    replay_server: ReplayServer, sit: Sit, tmp_path: Path
) -> None:
    replay_server.script(says("One."), says("Two."))
    typist = sit(agent="plain")
    await typist.says("recall me")
    await typist.sees(rb"One\.")
    assert await typist.leaves() == 0
    path = tmp_path / "state/agentloop/chat_history"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "+recall me\n" in path.read_text()
    typist = sit(agent="plain")
    await typist.sees(PROMPT)
    typist.child.send("\x1b[A")
    await typist.sees(rb"recall me")
    typist.child.send("\r")
    await typist.sees(rb"Two\.")
    assert await typist.leaves() == 0
    assert replay_server.requests[1].json["messages"][-1]["content"] == "recall me"


async def test_no_history_keeps_no_file(replay_server: ReplayServer, sit: Sit, tmp_path: Path) -> None:
    replay_server.script(says("One."))
    typist = sit("--no-history", agent="plain")
    await typist.says("forget me")
    await typist.sees(rb"One\.")
    assert await typist.leaves() == 0
    assert not (tmp_path / "state").exists()


async def test_a_history_that_cannot_be_kept_is_said_and_the_chat_goes_on(
    replay_server: ReplayServer, sit: Sit, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text("a file")
    replay_server.script(says("One."))
    typist = sit(agent="plain")
    await typist.sees(rb"agentloop chat: what you type is not kept: ")
    await typist.says("one")
    await typist.sees(rb"One\.")
    assert await typist.leaves() == 0


async def test_commands_are_completed_while_they_are_typed(sit: Sit) -> None:
    typist = sit()
    await typist.sees(PROMPT)
    typist.child.send("/bud")
    await typist.sees(rb"what the last turn used")
    typist.child.send("\t")
    await typist.sees(rb"/budget|get")
    typist.child.send("\r")  # takes the completion
    typist.child.send("\r")
    await typist.sees(rb"no turn was taken yet")
    assert await typist.leaves() == 0


@pytest.mark.parametrize("package", ["rich", "prompt_toolkit"])
async def test_a_missing_package_is_one_line_and_status_2(sit: Sit, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; from agentloop.cli import main; sys.exit(main(sys.argv[1:]))"
    typist = sit(python=("-c", code))
    status = await typist.gone("")
    lines = STYLES.sub(b"", typist.shown).decode().split("\r\n")
    assert (status, lines[1:]) == (2, [""])
    assert lines[0] == (
        f"agentloop chat: expected the package {package}; install the extra 'cli': pip install 'agentloop-runtime[cli]'"
    )


async def test_a_dumb_terminal_gets_plain_text(replay_server: ReplayServer, sit: Sit) -> None:
    replay_server.script(held("**one** two three four"), says("Next \x1b[2J"))
    typist = sit(agent="plain", TERM="dumb")
    await typist.sees(rb"> ")
    typist.child.send("go\r")
    await typist.sees(rb"\*\*one\*\* two")
    typist.child.send("\x03")
    await typist.sees(rb"this turn was cancelled", rb"> ")
    typist.child.send("\x03")  # the terminal itself drops the line
    typist.child.send("next\r")
    await typist.sees("Next \ufffd\\[2J".encode(), rb"> ")
    assert await typist.gone("\x04") == 0
    assert b"\x1b" not in typist.shown
