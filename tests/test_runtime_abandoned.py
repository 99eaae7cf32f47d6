"""A reader may go at any moment, in any way: the connection closes, the run ends, no task is left."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import anyio
import pytest

import agentloop as al
from agentloop.testing import Answer, ReplayServer
from tests.runs import check_end, other_tasks
from tests.test_unsafe_streams import ANSWER, HEAD, delta

AGENT = al.Agent(name="a")
TEXTS = HEAD + b"".join(delta(content=f"{number} ") for number in range(50))


@asynccontextmanager
async def stalled() -> AsyncIterator[tuple[al.Runtime, ReplayServer]]:
    """A runtime whose first answer shows some text and then goes on forever; the second is whole."""
    async with ReplayServer() as server:
        server.script(Answer(body=TEXTS, ending="stall"), ANSWER)
        async with al.Runtime(al.ChatCompletions(server.url, model="m")) as runtime:
            before = other_tasks()
            yield runtime, server
            await server.wait_disconnects(1)
            assert len(server.requests) == 1
            await asyncio.sleep(0)
            left = {task for task in other_tasks() - before if "ReplayServer" not in repr(task)}
            assert not left
            assert (await runtime.run(AGENT, "again", conversation="c")).text == "Paid."


async def check_cancelled(runtime: al.Runtime) -> None:
    (ref,) = runtime._runs.live
    await asyncio.wait({runtime._runs.live[ref].task})  # type: ignore[arg-type]
    events = await check_end(runtime, ref, "cancelled", "cancelled")
    ends = [event for event in events if isinstance(event, al.ModelEnd)]
    assert [(end.status, end.retracted) for end in ends] == [("cancelled", True)]


async def test_breaking_out_of_text_after_the_first_piece(caplog: pytest.LogCaptureFixture) -> None:
    """(R265)"""
    with caplog.at_level(logging.DEBUG):
        async with stalled() as (runtime, _):
            async for text in runtime.text(AGENT, "go"):
                assert text
                break
            gc.collect()  # the generator is dropped, so the loop closes it
            await check_cancelled(runtime)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_closing_the_generator_of_text() -> None:
    async with stalled() as (runtime, _):
        async with aclosing(runtime.text(AGENT, "go")) as texts:  # type: ignore[type-var]
            await anext(texts)
        await check_cancelled(runtime)


async def test_an_exception_inside_the_loop_over_text() -> None:
    async with stalled() as (runtime, _):
        texts = runtime.text(AGENT, "go")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the loop is what is tested
            async for _text in texts:
                raise ZeroDivisionError
        await texts.aclose()  # type: ignore[attr-defined]
        await check_cancelled(runtime)


async def test_another_task_closes_the_generator_of_text() -> None:
    async with stalled() as (runtime, _):
        texts: Any = runtime.text(AGENT, "go")
        await anext(texts)
        await asyncio.create_task(texts.aclose())
        await check_cancelled(runtime)


async def test_the_task_that_reads_text_is_cancelled() -> None:
    async with stalled() as (runtime, _):
        seen = asyncio.Event()

        async def read() -> None:
            async for _text in runtime.text(AGENT, "go"):
                seen.set()

        task = asyncio.create_task(read())
        await seen.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await check_cancelled(runtime)


async def test_a_scope_of_anyio_around_the_reader_is_cancelled() -> None:
    """Web frameworks end a response this way when its client goes."""
    async with stalled() as (runtime, _):
        with anyio.CancelScope() as scope:
            async for _text in runtime.text(AGENT, "go"):
                scope.cancel()
        assert scope.cancelled_caught
        await check_cancelled(runtime)


async def test_a_clock_around_the_reader_runs_out() -> None:
    """(R324)"""
    async with stalled() as (runtime, _):
        with pytest.raises(TimeoutError):  # noqa: PT012  # the loop is what is tested
            async with asyncio.timeout(0.02):
                async for _text in runtime.text(AGENT, "go"):
                    pass
        await check_cancelled(runtime)


async def test_leaving_the_block_early() -> None:
    async with stalled() as (runtime, _):
        async with runtime.start(AGENT, "go") as run:
            async for event in run:
                if isinstance(event, al.TextPreview):
                    break
        await check_cancelled(runtime)


async def test_an_exception_inside_the_block() -> None:
    async with stalled() as (runtime, _):
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
            async with runtime.start(AGENT, "go") as run:
                async for event in run:
                    if isinstance(event, al.TextPreview):
                        raise ZeroDivisionError
        await check_cancelled(runtime)


async def test_a_block_that_is_left_without_reading_at_all() -> None:
    async with ReplayServer() as server:
        server.script(Answer(body=TEXTS, ending="stall"))
        async with al.Runtime(al.ChatCompletions(server.url, model="m")) as runtime:
            async with runtime.start(AGENT, "go") as run:
                ref = run.ref
                await server.wait_requests(1)
            await check_end(runtime, ref, "cancelled")


async def test_another_task_cancels_the_run_that_is_being_read() -> None:
    """(R324)"""
    async with stalled() as (runtime, _):
        async with runtime.start(AGENT, "go") as run:
            with pytest.raises(al.RunCancelled) as caught:  # noqa: PT012  # the loop is what is tested
                async for event in run:
                    if isinstance(event, al.TextPreview):
                        asyncio.create_task(runtime.cancel(run.ref))  # noqa: RUF006  # the run ends with it
            assert caught.value.ref == run.ref
            with pytest.raises(al.RunCancelled):
                await run.result()
        await check_cancelled(runtime)


async def test_a_reader_that_stops_reading_holds_the_run_until_it_asks_for_the_result() -> None:
    """Nobody waits for somebody who does not come: a result lets go of the events, a follower never holds."""
    many = HEAD + b"".join(delta(content="x") for _ in range(1_000)) + ANSWER
    async with ReplayServer() as server:
        server.script(Answer(body=many, writes="events"), Answer(body=many, writes="events"))
        async with al.Runtime(al.ChatCompletions(server.url, model="m")) as runtime:
            async with runtime.start(AGENT, "go") as run:
                async for _event in run:
                    break
                assert (await run.result()).text.endswith("Paid.")
            async with runtime.start(AGENT, "go") as run:
                assert (await runtime.result(run.ref)).text.endswith("Paid.")  # not one event was read
