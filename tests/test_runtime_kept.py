"""The full text of an output that was cut for the model: read by its place, wherever the store is read."""

from __future__ import annotations

import asyncio
import hashlib
import io
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
from agentloop.errors import InputError, LostError
from agentloop.exchange import OutputKept
from agentloop.persistence import MemoryBackend
from agentloop.persistence.snapshot import read_snapshot, write_snapshot
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import ScriptedProvider, call, reply
from tests.runs import check_end, facts_of, turn_of

SECRET = "the page says: secret-0815 \0é😀 "
PAGE = SECRET * 2_000


@al.tool
async def fetch(times: int) -> str:
    """Fetch a page."""
    return SECRET * times


AGENT = al.Agent(name="reader", tools=[fetch])


def scripted(*times: int) -> ScriptedProvider:
    return ScriptedProvider([reply(calls=[call("fetch", times=n) for n in times]), reply("read")])


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return None if request.param == "memory" else tmp_path / "store.db"


async def lost(runtime: al.Runtime, ref: str, exchange: int = 0, position: int = 0) -> str:
    with pytest.raises(LostError) as caught:
        await runtime.output(ref, exchange, position)
    return str(caught.value)


async def test_an_output_is_read_whole_by_its_place(store: Any) -> None:
    async with al.Runtime(scripted(2_000, 1, 3_000), store=store) as runtime:
        await runtime.run(AGENT, "go", run_id="r")
        assert await runtime.output("r", 0, 0) == PAGE
        assert await runtime.output("r", 0, 2) == SECRET * 3_000
        assert await lost(runtime, "r", 0, 1) == "lost: no output 'r/0.1' is kept"
        assert await lost(runtime, "r", 1, 0) == "lost: no output 'r/1.0' is kept"
        assert await lost(runtime, "nobody") == "lost: no run 'nobody' is kept"
        events = await check_end(runtime, "r", "completed")
        ends = [event for event in events if isinstance(event, al.ToolEnded)]
        assert [end.kept for end in ends] == [True, None, True]
        assert ends[0].output.endswith(f"\n[cut: the full output is {len(PAGE.encode())} bytes, kept]")
        assert ends[0].output_bytes == len(ends[0].output.encode()) < 4_096


@pytest.mark.parametrize(("exchange", "position"), [(-1, 0), (0, -1), (True, 0), (0, 1.0), ("0", 0)])
async def test_a_place_that_is_none_is_refused(exchange: Any, position: Any) -> None:
    async with al.Runtime(scripted()) as runtime:
        with pytest.raises(InputError, match="expected an integer from 0"):
            await runtime.output("r", exchange, position)
        with pytest.raises(InputError):
            await runtime.output(b"r", 0, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="closed"):
        await runtime.output("r", 0, 0)


async def test_it_is_there_while_the_run_goes_on() -> None:
    seen: list[str] = []

    @al.tool
    async def look(ctx: al.ToolContext[Any]) -> str:
        """Look at what is kept."""
        seen.append(await ctx.deps.output("r", 0, 0))
        return "ok"

    provider = ScriptedProvider([reply(calls=[call("fetch", times=2_000), call("look")]), reply("done")])
    async with al.Runtime(provider) as runtime:
        await runtime.run(al.Agent(name="a", tools=[fetch, look]), "go", run_id="r", deps=runtime)
    assert seen == [PAGE]


async def test_another_process_reads_it_and_so_does_the_next_life_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with al.Runtime(scripted(2_000), store=path) as runtime, al.Runtime(scripted(), store=path) as other:
        await runtime.run(AGENT, "go", run_id="r", conversation="c")
        assert await other.output("r", 0, 0) == PAGE
    async with al.Runtime(ScriptedProvider([reply("again")]), store=path) as runtime:
        assert await runtime.output("r", 0, 0) == PAGE
        await runtime.run(AGENT, "more", conversation="c")  # which reads the turn before
        assert turn_of(runtime, "r").entries[0].slots[0].kept == len(PAGE.encode())
        assert await runtime.output("r", 0, 0) == PAGE


READER = """
import asyncio, hashlib, sys
import agentloop as al
from agentloop.testing import ScriptedProvider

async def main():
    async with al.Runtime(ScriptedProvider([]), store=sys.argv[1]) as runtime:
        text = await runtime.output("r", 0, 0)
        print(hashlib.sha256(text.encode()).hexdigest())

asyncio.run(main())
"""


async def test_a_process_of_its_own_reads_it_while_the_run_goes_on(tmp_path: Path) -> None:
    read: list[str] = []

    @al.tool
    async def look() -> str:
        """Have another process look at what is kept."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", READER, str(tmp_path / "store.db"), stdout=asyncio.subprocess.PIPE
        )
        out, _ = await child.communicate()
        read.append(out.decode().strip())
        return "ok"

    provider = ScriptedProvider([reply(calls=[call("fetch", times=2_000), call("look")]), reply("done")])
    async with al.Runtime(provider, store=tmp_path / "store.db") as runtime:
        await runtime.run(al.Agent(name="a", tools=[fetch, look]), "go", run_id="r")
    assert read == [hashlib.sha256(PAGE.encode()).hexdigest()]


async def test_a_book_on_a_medium_holds_no_full_text_and_one_in_memory_counts_it(tmp_path: Path) -> None:
    """(R112)"""
    limits = al.BookLimits(total_bytes=100_000)  # less than the page
    told = []
    for store in (tmp_path / "store.db", None):
        async with al.Runtime(scripted(3_500), store=store, limits=limits) as runtime:
            result = await runtime.run(AGENT, "go", run_id="r")
            assert result.outcome == "completed"
            assert runtime._store.book.size < 10_000
            ends = [event for event in await check_end(runtime, "r", "completed") if isinstance(event, al.ToolEnded)]
            told += [end.kept for end in ends]
            if store is None:
                assert await lost(runtime, "r") == "lost: no output 'r/0.0' is kept"
                assert "bytes, not kept]" in ends[0].output
            else:
                assert await runtime.output("r", 0, 0) == SECRET * 3_500
    assert told == [True, False]
    async with al.Runtime(scripted(2_000)) as runtime:
        await runtime.run(AGENT, "go", run_id="r")
        assert runtime._store.book.size > len(PAGE.encode())
        await runtime.forget(ref="r")
        assert runtime._store.book.size == 0


async def test_full_texts_never_keep_a_run_from_going_on() -> None:
    """What is kept takes half of the room at most, so the rest is for what a run cannot do without (R112)."""
    provider = ScriptedProvider([reply(calls=[call("fetch", times=500)]), reply("read")] * 12)
    async with al.Runtime(provider, limits=al.BookLimits(total_bytes=200_000)) as runtime:
        kept = []
        for number in range(12):
            result = await runtime.run(AGENT, "go", run_id=f"r{number}")
            assert result.outcome == "completed"
            kept.append(
                any(isinstance(fact, OutputKept) for fact in await facts_of(runtime) if fact.run_id == result.ref)
            )
    assert kept[:5] == [True] * 5
    assert kept[-6:] == [False] * 6


async def test_a_redacted_run_keeps_no_full_text_anywhere(store: Any) -> None:
    async with al.Runtime(scripted(2_000), store=store) as runtime:
        await runtime.run(AGENT, "go", run_id="r", conversation="c")
        await runtime.redact("r", author="Ada")
        assert await lost(runtime, "r") == "lost: no output 'r/0.0' is kept"
        assert runtime._store.book.size == 0
        assert not [fact for fact in await facts_of(runtime) if isinstance(fact, OutputKept)]
    if store is not None:
        written = b"".join(path.read_bytes() for path in store.parent.iterdir())
        assert b"secret-0815" not in written


async def test_a_forgotten_run_keeps_none(store: Any) -> None:
    async with al.Runtime(scripted(2_000), store=store) as runtime:
        await runtime.run(AGENT, "go", run_id="r")
        await runtime.forget(ref="r")
        assert await lost(runtime, "r") == "lost: no run 'r' is kept"


@asynccontextmanager
async def opened(make: Callable[[], Any]) -> Any:
    backend = make()
    await backend.open()
    yield backend
    await backend.close()


async def test_a_snapshot_carries_it_from_any_store_to_any_other(store: Any, tmp_path: Path) -> None:
    """(R85, R86)"""
    backend = MemoryBackend() if store is None else SQLiteBackend(store)
    async with al.Runtime(scripted(2_000), store=backend) as runtime:
        await runtime.run(AGENT, "go", run_id="r", conversation="c")
        out = io.BytesIO()
        await write_snapshot(backend, out)
    for make in (MemoryBackend, lambda: SQLiteBackend(tmp_path / "other.db")):
        async with opened(make) as other:
            await read_snapshot(other, io.BytesIO(out.getvalue()))
            again = io.BytesIO()
            await write_snapshot(other, again)
            assert again.getvalue() == out.getvalue()
            (kept,) = [fact for fact in await other.load_run("r") if isinstance(fact, OutputKept)]
            assert kept.text == PAGE


async def test_a_run_of_a_file_that_was_changed_by_hand_is_not_believed(tmp_path: Path) -> None:
    """(R86)"""
    path = tmp_path / "store.db"
    async with al.Runtime(scripted(2_000), store=path) as runtime:
        await runtime.run(AGENT, "go", run_id="r")
    backend = SQLiteBackend(path)
    await backend.open()
    facts = await backend.load_run("r")
    await backend.forget(["r"])
    at = next(at for at, fact in enumerate(facts) if isinstance(fact, OutputKept))
    await backend.append([*facts[: at - 1], facts[at], facts[at - 1], *facts[at + 1 :]])
    await backend.close()
    async with al.Runtime(ScriptedProvider([]), store=path) as runtime:
        with pytest.raises(al.RestoreError, match="was executed and answered"):
            await runtime.result("r")


async def test_a_text_of_megabytes_is_cut_to_what_a_run_allows_and_read_whole(store: Any) -> None:
    @al.tool
    async def dump() -> str:
        """Return a lot."""
        return "0123456789" * 400_000

    agent = al.Agent(name="a", tools=[dump], limits=al.LoopLimits(feedback_bytes=50_000))
    provider = ScriptedProvider([reply(calls=[call("dump")]), reply("read")])
    async with al.Runtime(provider, store=store) as runtime:
        await runtime.run(agent, "go", run_id="r")
        (feedback,) = provider.requests[1].exchanges[0].feedback
        assert len(feedback.text) < 50_000
        assert feedback.text.endswith("\n[cut: the full output is 4000000 bytes, kept]")
        assert await runtime.output("r", 0, 0) == "0123456789" * 400_000


async def test_bytes_are_refused_however_many_they_are() -> None:
    @al.tool
    async def image() -> dict[str, bytes]:
        """Return an image."""
        return {"image": b"\x89PNG" * 1_000_000}

    async with al.Runtime(ScriptedProvider([reply(calls=[call("image")])])) as runtime:
        with pytest.raises(al.ToolCrashed):
            await runtime.run(al.Agent(name="a", tools=[image]), "go", run_id="r")
        assert await lost(runtime, "r") == "lost: no output 'r/0.0' is kept"
