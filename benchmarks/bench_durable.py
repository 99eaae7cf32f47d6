"""What it costs to survive: a run on a SQLite file beside the same run in memory, and coming back.

- ``loop``: tool turns over HTTP on loopback, as in `bench_loop`; the floor is the same runtime in
  memory. CPU of all threads, those of the medium included.
- ``commits``: transactions a model call makes, where one run goes on alone and where 16 share them.
- ``open``, ``resume``: wall time, in a store whose other conversations hold so many exchanges, of
  opening it, and of resuming one run with 8 exchanges of its own, its last model call included.
  ``of its own``: the same in a conversation that is itself that long.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import agentloop as al
from agentloop.exchange import Fact, SendStarted
from agentloop.persistence import MemoryBackend
from agentloop.persistence.records import decode_record, encode_record
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import ScriptedProvider, call, reply

from .bench_loop import PROMPT, SYSTEM, get_note, serving
from .measure import Row, Settings, compare
from .streams import MODEL

__all__ = ["measure"]

TURNS = 8
AT_ONCE = 16
OWN = "own"
UNFINISHED = "unfinished"


def measure(settings: Settings) -> list[Row]:
    """All of it, in a folder of its own."""
    others, own = ((10, 20), (10,)) if settings.smoke else ((10, 1_000, 10_000), (10, 1_000))
    with tempfile.TemporaryDirectory(prefix="agentloop-bench-") as name, asyncio.Runner() as runner:
        folder = Path(name)
        rows = [_loop(settings, folder, runner)]
        rows += [runner.run(_commits(settings, folder, runs)) for runs in (1, AT_ONCE)]
        for count in others:
            base = folder / f"others{count}"
            runner.run(_write_others(base, count))
            rows += runner.run(_come_back(settings, base, f"{count:,} others", opening=True))
        for count in own:
            base = folder / f"own{count}"
            runner.run(_write_own(base, count))
            rows += runner.run(_come_back(settings, base, f"{count:,} of its own", opening=False))
    return rows


def _agent(turns: int) -> al.Agent[None]:
    return al.Agent(
        name="notes", instructions=SYSTEM, tools=[get_note], limits=al.LoopLimits(max_model_calls=turns + 1)
    )


def _loop(settings: Settings, folder: Path, runner: asyncio.Runner) -> Row:
    turns = 2 if settings.smoke else TURNS
    agent, loop = _agent(turns), runner.get_loop()
    with serving(turns) as url:

        async def opened(store: Path | None) -> al.Runtime:
            return await al.Runtime(al.ChatCompletions(url, model=MODEL), store=store).__aenter__()

        durable, memory = runner.run(opened(folder / "loop.db")), runner.run(opened(None))
        try:
            return compare(
                "durable",
                f"loop, {turns} tool turns",
                unit="ms",
                scale=1e3,
                ours=lambda: loop.run_until_complete(durable.run(agent, PROMPT)),
                floor=lambda: loop.run_until_complete(memory.run(agent, PROMPT)),
                settings=settings,
            )
        finally:
            runner.run(durable.aclose())
            runner.run(memory.aclose())


def _script(turns: int) -> list[al.ModelReply]:
    asked = [reply(calls=[call("get_note", note_id=turn, section="summary of the day")]) for turn in range(turns)]
    return [*asked, reply(text="The report is written.")]


def _answer(request: al.ModelRequest) -> al.ModelReply:
    return _script(TURNS)[len(request.exchanges)]


async def _commits(settings: Settings, folder: Path, runs: int) -> Row:
    found = []
    for number in range(settings.rounds):
        backend = SQLiteBackend(folder / f"commits{runs}-{number}.db")
        provider = ScriptedProvider([_answer] * (runs * (TURNS + 1)))
        async with al.Runtime(provider, store=backend) as runtime, asyncio.TaskGroup() as group:
            for _ in range(runs):
                group.create_task(runtime.run(_agent(TURNS), PROMPT))
        found.append(backend.commits / runs / (TURNS + 1))
    return _row(f"commits, {runs} at once", "a call", found)


async def _write_others(base: Path, count: int) -> None:
    """A store with so many exchanges in conversations of 9, and one run that misses its last model call."""
    memory = MemoryBackend()
    async with al.Runtime(ScriptedProvider([_answer] * (TURNS + 1)), store=memory) as runtime:
        await runtime.run(_agent(TURNS), PROMPT, run_id="other", conversation="c-other")
        facts = await memory.load()
    backend = SQLiteBackend(base)
    await backend.open()
    runs = [_copy(facts, str(number)) for number in range(max(1, count // (TURNS + 1)))]
    await asyncio.gather(*(backend.append(run, after="") for run in runs))
    await backend.close()
    await _leave_off(base)


def _copy(facts: Sequence[Fact], number: str) -> list[Fact]:
    """The same run under another id, on another conversation."""
    records = (encode_record(fact).decode() for fact in facts)
    other = (record.replace('"other"', f'"{number}"').replace('"c-other"', f'"c-{number}"') for record in records)
    return [decode_record(record, where=f"fact {at}") for at, record in enumerate(other)]


async def _write_own(base: Path, count: int) -> None:
    """A store with one conversation of so many exchanges, whose last run misses its last model call."""
    talker = al.Agent(name="notes", instructions=SYSTEM)
    async with al.Runtime(ScriptedProvider([reply(text="Yes.")] * count), store=base) as runtime:
        for number in range(count):
            await runtime.run(talker, f"And number {number}?", conversation=OWN)
    await _leave_off(base)


class _Cut(SQLiteBackend):
    """A medium that fails before the last model call of a run is claimed."""

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        if any(type(fact) is SendStarted and fact.call_sequence > TURNS for fact in facts):
            raise al.PersistenceError("cut off")
        await super().append(facts, token=token, after=after)


async def _leave_off(base: Path) -> None:
    async with al.Runtime(ScriptedProvider([_answer] * TURNS), store=_Cut(base)) as runtime:
        with contextlib.suppress(al.PersistenceError):
            await runtime.run(_agent(TURNS), PROMPT, run_id=UNFINISHED, conversation=OWN)


async def _come_back(settings: Settings, base: Path, what: str, *, opening: bool) -> list[Row]:
    """Open a copy of the store and resume the run, some times."""
    opened, resumed = [], []
    for number in range(settings.rounds):
        copy = base.with_name(f"{base.name}-{number}")
        shutil.copyfile(base, copy)
        runtime = al.Runtime(ScriptedProvider([_answer]), store=copy)
        began = time.perf_counter()
        async with runtime:
            opened.append((time.perf_counter() - began) * 1e3)
            began = time.perf_counter()
            result = await runtime.resume(UNFINISHED, _agent(TURNS))
            resumed.append((time.perf_counter() - began) * 1e3)
            assert result.model_calls == TURNS + 1
        copy.unlink()
    rows = [_row(f"resume, {what}", "ms wall", resumed)]
    return [_row(f"open, {what}", "ms wall", opened), *rows] if opening else rows


def _row(name: str, unit: str, found: list[float]) -> Row:
    return Row(topic="durable", name=name, unit=unit, ours=statistics.median(found), low=min(found), high=max(found))
