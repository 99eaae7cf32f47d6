from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import agentloop as al
from agentloop.cli.chat.interrupts import Interrupts
from agentloop.cli.chat.turns import Turns
from agentloop.testing import ScriptedProvider, call, reply

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the loop of Windows wakes late for a signal")


class Sheet:
    """A front that writes down what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def read(self, prompt: str, *, remember: bool = False) -> str:
        raise EOFError

    def line(self, text: str = "") -> None:
        self.lines.append(text)

    def labelled(self, label: str, text: str, *, style: str = "dim") -> None:
        self.lines.append(f"{label} {text}")

    def quoted(self, text: str) -> None:
        self.lines.append(text)

    def document(self, text: str) -> None:
        self.lines.append(text)

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        yield

    def begin(self) -> None:
        self.lines.append("(")

    def preview(self, text: str) -> None:
        """Not written down."""

    def stands(self, text: str) -> None:
        self.lines.append(f"{text})")

    def withdrawn(self) -> None:
        self.lines.append(")")


class Held:
    """A step of a script that waits until it is cut off."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def __call__(self, request: al.ModelRequest) -> al.ModelReply:
        self.begun.set()
        await asyncio.Event().wait()
        raise AssertionError("it was cut off")


@contextlib.asynccontextmanager
async def talking(
    provider: ScriptedProvider, agent: al.Agent[None], *, store: Path | None = None
) -> AsyncIterator[tuple[Turns, Sheet, al.Runtime]]:
    sheet = Sheet()
    async with al.Runtime(provider, store=store) as runtime:
        with Interrupts(None, lambda: None) as interrupts:
            yield Turns(runtime, agent, sheet, interrupts), sheet, runtime


async def test_ctrl_c_stops_a_turn_that_is_not_stored_yet() -> None:
    """A summary of what was said before is made first."""
    plan = al.ContextPlan(max_chars=500, strategy="summarise", summary=al.Summary(max_chars=20))
    agent = al.Agent(name="a", context=plan)
    held = Held()
    provider = ScriptedProvider([reply("b" * 400), held, reply("fine")])
    async with talking(provider, agent) as (turns, sheet, runtime):
        await turns.say("a" * 90, "c")
        turn = asyncio.create_task(turns.say("c" * 40, "c"))
        await held.begun.wait()
        signal.raise_signal(signal.SIGINT)
        assert await turn is None
        assert sheet.lines[-2:] == ["stopping this turn", "stopped this turn was cancelled"]
        assert await runtime.unfinished() == []
        result = await turns.say("d", "c")
        assert result is not None
        assert result.text == "fine"


async def test_ctrl_c_stops_a_turn_that_was_taken_up() -> None:
    @al.tool(approval="required")
    async def sign() -> str:
        """Sign."""
        return "signed"

    agent, held = al.Agent(name="a", tools=[sign]), Held()
    provider = ScriptedProvider([reply(calls=[call("sign")]), held, reply("fine")])
    async with talking(provider, agent) as (turns, sheet, _):
        left = await turns.say("go", "c")
        assert left is not None
        turn = asyncio.create_task(turns.go_on(left.ref, {left.waiting[0].ref: al.Approve()}))
        await held.begun.wait()
        for _ in range(3):  # the others are harmless
            signal.raise_signal(signal.SIGINT)
        assert await turn is None
        assert sheet.lines.count("stopping this turn") == 1
        assert [line for line in sheet.lines if line.startswith("call ")] == ["call sign {}"]
        result = await turns.say("more", "c")
        assert result is not None
        assert result.text == "fine"
    assert turns.failed


async def test_what_was_told_of_a_turn_is_not_told_again_when_it_goes_on(tmp_path: Path) -> None:
    @al.tool(approval="required")
    async def sign() -> str:
        """Sign."""
        return "signed"

    agent = al.Agent(name="a", tools=[sign])
    provider = ScriptedProvider([reply("I sign.", calls=[call("sign")]), reply("Done.")])
    async with talking(provider, agent, store=tmp_path / "facts.db") as (turns, sheet, _):
        left = await turns.say("go", "c")
        assert left is not None
        assert turns.failed
        assert await turns.go_on(left.ref, {left.waiting[0].ref: al.Approve()}) is not None
        assert [line.partition(":")[0] for line in sheet.lines] == [
            "(",
            "I sign.)",
            "call sign {}",
            "result sign",
            "(",
            "Done.)",
        ]
        assert not turns.failed
        assert turns.spent[left.ref].model_calls == 2


async def test_what_another_process_told_of_a_turn_is_shown_from_what_is_stored_when_it_goes_on(
    tmp_path: Path,
) -> None:
    @al.tool(approval="required")
    async def sign() -> str:
        """Sign."""
        return "signed"

    agent, store = al.Agent(name="a", tools=[sign]), tmp_path / "facts.db"
    async with al.Runtime(ScriptedProvider([reply("I sign.", calls=[call("sign")])]), store=store) as runtime:
        left = await runtime.run(agent, "Go.", conversation="c")
        await runtime.steer(left.ref, "Quick!")
    async with talking(ScriptedProvider([reply("Done.")]), agent, store=store) as (turns, sheet, runtime):
        turns.recap(await runtime.view(left.ref))
        assert sheet.lines == ["> Go.", "I sign.", "call sign {}", "> Quick!"]
        await runtime.steer(left.ref, "Quicker!")
        sheet.lines.clear()
        assert await turns.go_on(left.ref, {left.waiting[0].ref: al.Approve()}) is not None
        assert sheet.lines[:2] == ["> Quicker!", "call sign {}"]  # what was not shown yet, and what happens now
        assert sheet.lines[-2:] == ["(", "Done.)"]


async def test_each_unfinished_turn_goes_on_where_its_events_were_told_up_to() -> None:
    @al.tool(approval="required")
    async def sign() -> str:
        """Sign."""
        return "signed"

    agent = al.Agent(name="a", tools=[sign])
    provider = ScriptedProvider([reply("I sign.", calls=[call("sign")]), reply("Another."), reply("Done.")])
    async with talking(provider, agent) as (turns, sheet, _):
        left = await turns.say("go", "c")
        assert left is not None
        await turns.say("something else", "d")
        await turns.go_on(left.ref, {left.waiting[0].ref: al.Approve()})
        assert [line for line in sheet.lines if line.endswith(")")][:3] == ["I sign.)", "Another.)", "Done.)"]


async def test_a_turn_that_cannot_be_taken_up_is_told(tmp_path: Path) -> None:
    async with talking(ScriptedProvider([]), al.Agent(name="a")) as (turns, sheet, _):
        assert await turns.go_on("nothing") is None
        assert sheet.lines == ["error LostError: lost: no run 'nothing' is kept"]
        assert not await turns.discard("nothing")


async def test_interrupts_are_taken_only_while_they_are_entered() -> None:
    acted, before = asyncio.Event(), signal.getsignal(signal.SIGINT)
    with Interrupts(None, lambda: None) as interrupts:
        signal.raise_signal(signal.SIGINT)  # nothing was named
        with interrupts.to(acted.set):
            signal.raise_signal(signal.SIGINT)
            await acted.wait()
    assert signal.getsignal(signal.SIGINT) is before


async def test_an_interrupt_where_nothing_goes_on_does_what_is_said() -> None:
    acted = asyncio.Event()
    with Interrupts(acted.set, lambda: None) as interrupts:
        with interrupts.to(lambda: None):
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
            assert not acted.is_set()
        signal.raise_signal(signal.SIGINT)
        await acted.wait()
