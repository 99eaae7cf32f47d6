"""A chat backend under load: many clients, slow ones, ones that vanish, and its own end in the middle of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import pytest

from agentloop.integrations.web import WebLimits
from tests.system.web_load_backend import Settings
from tests.system.web_load_client import Client, Crowd, Told, quantile, take_turn
from tests.system.web_load_endpoint import Asked
from tests.system.web_load_processes import Backend, Endpoint, crowd, until

pytestmark = pytest.mark.system

MIB = 1024

CLIENTS = 500
DIRECT = 50
ANSWER = Asked("", deltas=40, size=16, first=0.6, pace=0.23)
SMALL = 16 * 1024
"""Bytes of the buffers of sockets where clients are slow, so that what these keep is no matter."""


@pytest.mark.timeout(120)
async def test_500_clients_are_told_everything_once_and_soon_and_memory_stays_bounded(tmp_path: Path) -> None:
    memory: list[int] = []
    async with await Endpoint.start() as endpoint:
        settings = Settings(endpoint=endpoint.url, store=str(tmp_path / "chat.db"))
        async with await Backend.start(settings) as backend:
            async with backend.watched(memory):
                asked = Crowd(
                    port=backend.port,
                    endpoint=endpoint.port,
                    clients=CLIENTS,
                    direct=DIRECT,
                    seconds=50.0,
                    asked=ANSWER,
                )
                summary = await crowd(asked)
            holds = await backend.holds()
        seen = await endpoint.seen()

    third = len(memory) // 3
    early, late = max(memory[:third]), max(memory[-third:])
    ratio = quantile(summary.first, 0.99) / quantile(summary.first_direct, 0.99)
    print(f"\n{CLIENTS} clients, {summary.turns} turns, {summary.events} events, {len(seen)} requests to the endpoint")
    print(f"{'milliseconds':34}{'50 %':>8}{'90 %':>8}{'99 %':>8}{'most':>8}")
    for name, values in (
        ("to the first preview", summary.first),
        ("to the first delta, direct", summary.first_direct),
        ("beyond the pace, to the end", summary.late),
        ("beyond the pace, direct", summary.late_direct),
    ):
        shares = (1000 * quantile(values, share) for share in (0.5, 0.9, 0.99, 1.0))
        print(f"{name:34}" + "".join(f"{share:8.0f}" for share in shares))
    print(f"to the first preview, 99 %: {ratio:.2f} times direct")
    print(f"CPU: backend {holds.cpu:.1f} s, clients {summary.cpu:.1f} s of about {len(memory) / 2:.0f} s")
    print(
        f"memory of the backend: {memory[0] // MIB} MiB idle, {early // MIB} MiB at most in the first third,", end=" "
    )
    print(f"{late // MIB} MiB in the last one, {holds.peak_kib // MIB} MiB ever")

    assert summary.wrong == []
    assert summary.turns >= CLIENTS * 4
    assert len(seen) == summary.turns + len(summary.first_direct)
    assert {item.state for item in seen} == {"done"}
    assert max(Counter(item.tag for item in seen).values()) == 1
    assert (holds.runs, holds.streams) == (0, 0)
    assert late < early + 16 * MIB
    assert ratio < 4


@pytest.mark.timeout(60)
async def test_slow_readers_hold_nobody_up_and_get_the_rest_when_they_come_back() -> None:
    fast, slow, steady = 50, 50, 5
    asked = Asked("", deltas=250, size=600, first=0.2, pace=0.03)
    limits = WebLimits(write_seconds=1.5)
    clock = asyncio.get_running_loop().time
    port = 0

    async def whole(number: int, turn: str) -> float:
        """A turn of a reader who reads at once; how long it took. They begin one after the other."""
        await asyncio.sleep(number * 0.04)
        async with Client(port, f"user-{number}") as client:
            begun = clock()
            await take_turn(client, turn, asked._replace(tag=f"{turn}u{number}"), conversation=turn)
            return clock() - begun

    async def of(number: int, turn: str) -> Told:
        """What a further reader of such a turn will be told; the turn has begun."""
        async with Client(port, f"user-{number}") as client:
            await until(lambda: _is_there(client, turn))
        return Told(asked._replace(tag=f"{turn}u{number}"))

    async def slowly(number: int) -> Told:
        """Another reader of that user's turn, who reads a byte now and then until it is cut off, and comes back."""
        told = await of(number, "b")
        async with Client(port, f"user-{number}", receive_buffer=SMALL // 4) as client:
            await client.follow("b", told, conversation="b", size=1, pause=0.2)
            assert client.cut, "expected to be cut off"
            assert told.end is None
        async with Client(port, f"user-{number}") as client:
            await client.follow("b", told, conversation="b")
        told.check()
        return told

    async def steadily(number: int) -> Told:
        """A reader who takes 24 KiB a second, which is less than comes: it waits, and so does what is written."""
        told = await of(number, "b")
        async with Client(port, f"user-{number}", receive_buffer=SMALL // 4) as client:
            await client.follow("b", told, conversation="b", size=2400, pause=0.1)
        told.check()
        return told

    memory: tuple[list[int], list[int]] = ([], [])
    async with await Endpoint.start() as endpoint:
        settings = Settings(endpoint=endpoint.url, limits=limits, send_buffer=SMALL)
        async with await Backend.start(settings) as backend:
            port = backend.port
            async with backend.watched(memory[0]):
                alone = await asyncio.gather(*(whole(number, "a") for number in range(fast)))
            async with backend.watched(memory[1]), asyncio.TaskGroup() as group:
                tasks = [group.create_task(whole(number, "b")) for number in range(fast)]
                for number in range(slow):  # two of each of half of the turns
                    group.create_task(slowly(number // 2))
                for number in range(steady):
                    group.create_task(steadily(fast - 1 - number))
            beside = [task.result() for task in tasks]
            holds = await backend.holds()
        seen = await endpoint.seen()

    held = [max(samples) for samples in memory]
    grown = (held[1] - held[0]) / slow
    print(f"\nseconds of {fast} turns of {len(asked.text) // 1024} KiB:", end=" ")
    for name, times in (
        ("without slow readers", alone),
        (f"with {slow} slow ones on the same turns", beside[: slow // 2]),
        ("on other turns", beside[slow // 2 :]),
    ):
        print(f"{quantile(times, 0.5):.2f} (most {max(times):.2f}) {name}", end=", ")
    print(
        f"\nmemory: {held[0] // MIB} MiB, then {held[1] // MIB} MiB: {grown:.0f} KiB a slow reader and a kept turn more"
    )
    assert max(beside) < max(alone) * 1.5
    assert grown < 1024
    assert (holds.runs, holds.streams) == (0, 0)
    assert len(seen) == fast * 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("gone", ["cancel", "detach"])
async def test_clients_that_vanish_leave_nothing_behind(gone: Literal["cancel", "detach"], tmp_path: Path) -> None:
    clients = 100
    asked = Asked("", deltas=100, size=2500, first=0.1, pace=0.06)
    store = str(tmp_path / "chat.db") if gone == "detach" else None
    limits = WebLimits(write_seconds=1.0, gone_seconds=0.5)
    stopped = AsyncExitStack()

    async def vanish(number: int) -> None:
        """Read until something is shown; then one half goes without a word, and the other half just stops."""
        client = Client(backend.port, f"user-{number}", receive_buffer=SMALL // 4)
        told = Told(asked._replace(tag=f"u{number}"))
        await client.begin("t", told.asked)
        await client.until_shown("t", told)
        if number % 2:
            client.reset()
        else:
            await stopped.enter_async_context(client)

    async with await Endpoint.start() as endpoint, stopped:
        settings = Settings(endpoint=endpoint.url, store=store, limits=limits, client_gone=gone, send_buffer=SMALL)
        async with await Backend.start(settings) as backend:
            before = await backend.holds()
            await asyncio.gather(*map(vanish, range(clients)))

            async def left() -> bool:
                now = await backend.holds()
                return (now.runs, now.streams, now.tasks, now.files) == (0, 0, before.tasks, before.files)

            await until(left)
            ends = []
            for number in range(clients):
                async with Client(backend.port, f"user-{number}") as client:
                    status, turn = await client.ask("GET", "/api/conversations/c/turns/t")
                    assert status == 200
                    ends.append(turn["outcome"])
        seen = await endpoint.seen()

    assert len(seen) == clients
    told = ("cancelled", "cut") if gone == "cancel" else ("completed", "done")
    assert (Counter(ends), Counter(item.state for item in seen)) == (
        Counter({told[0]: clients}),
        Counter({told[1]: clients}),
    )


@pytest.mark.timeout(60)
async def test_a_backend_that_is_told_to_end_finishes_what_it_can_and_says_what_is_left_when_it_is_back(
    tmp_path: Path,
) -> None:
    soon = Asked("", deltas=20, size=16, first=0.2, pace=0.15)
    later = soon._replace(deltas=50)  # beyond the time that streams are given, not beyond that of requests
    never = soon._replace(deltas=1000)
    kinds = [soon] * 20 + [later] * 20 + [never] * 10
    tolds = [Told(asked._replace(tag=f"u{number}")) for number, asked in enumerate(kinds)]

    async with await Endpoint.start() as endpoint, AsyncExitStack() as stack:
        settings = Settings(
            endpoint=endpoint.url,
            store=str(tmp_path / "chat.db"),
            limits=WebLimits(drain_seconds=4.0),
            settle_seconds=7.0,
        )
        async with await Backend.start(settings) as backend:
            clients = [
                await stack.enter_async_context(Client(backend.port, f"user-{number}")) for number in range(len(kinds))
            ]

            async def begin(client: Client, told: Told) -> asyncio.Task[None]:
                await client.begin("t", told.asked)
                rest = await client.until_shown("t", told)

                async def read() -> None:
                    async for data in rest:
                        told.take(data, 0.0)

                return asyncio.create_task(read())

            reading = await asyncio.gather(*map(begin, clients, tolds))
            backend.terminate()
            async with Client(backend.port, "user-0") as other:
                await until(lambda: _is_draining(other))
                status, refused = await other.ask("POST", "/api/conversations/d/turns", {"id": "t", "text": soon.line})
                assert (status, refused["error"]["code"]) == (503, "draining")
            await asyncio.gather(*reading)
            assert not any(client.cut for client in clients)
            assert [told.end is not None for told in tolds] == [asked is soon for asked in kinds]
            assert await backend.process.wait() == 0
        states = {item.tag: item.state for item in await endpoint.seen()}
        assert [states[told.asked.tag] for told in tolds] == ["cut" if asked is never else "done" for asked in kinds]

        async with await Backend.start(settings) as backend:
            ends = {id(soon): "ended", id(later): "paused", id(never): "unsettled"}
            for told, asked, client in zip(tolds, kinds, clients, strict=True):
                client.port, told.end = backend.port, None
                await client.close()
                await client.follow("t", told)
                assert told.end is not None
                assert told.end["state"] == ends[id(asked)]
                assert told.turn is not None, "expected what is stored, as events are not kept by a new process"
                turn = "/api/conversations/c/turns/t"
                if asked is later:
                    status, _ = await client.ask("POST", f"{turn}/resume", {})
                    assert status == 200
                    told.end = None
                    await client.follow("t", told)
                    assert told.end is not None
                    assert told.end["outcome"] == "completed"
                    assert told.end["attempts"][0]["text"] == told.asked.text
                elif asked is never:
                    status, left = await client.ask("POST", f"{turn}/settle", {"choice": "discard"})
                    assert (status, left["outcome"]) == (200, "cancelled")
        seen = await endpoint.seen()

    assert Counter(item.tag for item in seen) == Counter({told.asked.tag: 1 for told in tolds})
    assert len({item.attempt_id for item in seen}) == len(tolds)


async def _is_there(client: Client, turn: str) -> bool:
    status, _ = await client.ask("GET", f"/api/conversations/{turn}/turns/{turn}")
    return status == 200


async def _is_draining(client: Client) -> bool:
    return await client.ask("GET", "/readyz") == (503, {"status": "draining"})
