"""How many turns and streams there may be, and how a backend ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import agentloop as al
from agentloop.errors import InputError
from agentloop.integrations.web import SERVICE, WebLimits, chat_app
from agentloop.testing import ScriptedProvider, reply
from tests.integrations.web.backend import Client, Gate, by_header, serving, until

AGENT = al.Agent(name="a")


def of(client: Client, user: str) -> Client:
    return Client(client.session, client.url, user)


async def post(client: Client, turn: str, conversation: str) -> tuple[int, str, str | None]:
    """Status, error code and ``Retry-After`` of an attempt to begin a turn."""
    path = f"{client.url}/api/conversations/{conversation}/turns"
    async with client.session.post(path, json={"id": turn, "text": "x"}, headers=client.headers) as response:
        body = await response.json()
        return response.status, body.get("error", {}).get("limit", ""), response.headers.get("Retry-After")


async def test_turns_are_limited_for_each_user_and_in_all_and_places_are_given_back() -> None:
    gates = [Gate() for _ in range(4)]
    limits = WebLimits(runs=3, runs_a_user=2)
    provider = ScriptedProvider([gate(reply("x")) for gate in gates])
    async with (
        al.Runtime(provider) as runtime,
        serving(runtime, AGENT, auth=by_header, limits=limits, client_gone="detach", user="Ann") as ann,
    ):
        bob, eve = of(ann, "Bob"), of(ann, "Eve")
        assert (await post(ann, "t", "1"))[0] == (await post(ann, "t", "2"))[0] == 201
        assert await post(ann, "t", "3") == (429, "runs_a_user", "1")
        assert (await post(ann, "t", "1"))[0] == 200  # to join one takes no place
        assert (await post(bob, "t", "1"))[0] == 201
        assert await post(eve, "t", "1") == (429, "runs", "5")
        gates[0].open.set()
        assert (await ann.events("t", "1"))[-1]["type"] == "end"
        assert (await post(eve, "t", "1"))[0] == 201
        for gate in gates:
            gate.open.set()


async def test_a_turn_that_is_sent_many_times_at_once_takes_one_place(tmp_path: Path) -> None:
    gate, limits = Gate(), WebLimits(runs_a_user=1)
    async with al.Runtime(ScriptedProvider([gate(reply("x"))]), store=tmp_path / "s.db") as runtime:
        app = chat_app(runtime, [AGENT], auth=None, limits=limits)
        async with serving(runtime, app=app) as client:
            answers = await asyncio.gather(*(post(client, "t", "c") for _ in range(8)))
            assert {status for status, _, _ in answers} <= {200, 201}
            assert app[SERVICE].runs.taken == 1
            gate.open.set()
            await client.events()
            assert app[SERVICE].runs.taken == 0


async def test_whoever_is_told_of_the_end_may_begin_the_next_turn_at_once(tmp_path: Path) -> None:
    async with al.Runtime(ScriptedProvider([reply("x"), reply("y")]), store=tmp_path / "s.db") as runtime:
        given_up, let_go = asyncio.Event(), runtime._store.let_go

        async def held(ref: str) -> None:
            await given_up.wait()
            await let_go(ref)

        runtime._store.let_go = held
        app = chat_app(runtime, [AGENT], auth=None, limits=WebLimits(runs_a_user=1))
        async with serving(runtime, app=app) as client:
            await client.begin()
            async with client.stream() as events:
                async for event in events:
                    if event["type"] == "run.ended":
                        break
                for _ in range(3):  # by then its end could have been read and told
                    assert (await client.turn())["state"] == "ended"
                assert app[SERVICE].streams.taken == 1
                given_up.set()
                assert (await anext(events))["type"] == "end"
            assert (await post(client, "u", "other"))[0] == 201


async def test_streams_are_limited_for_each_user_and_in_all_and_places_are_given_back() -> None:
    gate = Gate()
    limits = WebLimits(streams=2, streams_a_user=1)
    app_of: list[web.Application] = []
    async with al.Runtime(ScriptedProvider([gate(reply("x"))] * 3)) as runtime:
        app_of.append(chat_app(runtime, [AGENT], auth=by_header, limits=limits))
        async with serving(runtime, app=app_of[0], user="Ann") as ann:
            users = [ann, of(ann, "Bob"), of(ann, "Eve")]
            for user in users:
                await user.begin()
            path = "/api/conversations/c/turns/t/events"
            async with users[0].stream() as first, users[1].stream() as second:
                await first.__anext__()
                await second.__anext__()
                status, refused = await users[0].ask("GET", path)
                assert (status, refused["error"]["limit"], refused["error"]["allowed"]) == (429, "streams_a_user", 1)
                status, refused = await users[2].ask("GET", path)
                assert (status, refused["error"]["limit"]) == (429, "streams")
            gate.open.set()
            service = app_of[0][SERVICE]
            await until(lambda: not service.streams.taken)  # the server notices by itself that they have gone
            assert (await users[2].events())[-1]["type"] == "end"


async def test_a_backend_that_shuts_down_takes_nothing_new_and_waits_for_what_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    async with al.Runtime(ScriptedProvider([gate(reply("To its end."))]), store=tmp_path / "s.db") as runtime:
        app = chat_app(runtime, [AGENT], auth=None)
        async with serving(runtime, app=app) as client:
            await client.begin()
            await gate.asked.wait()
            async with client.stream() as events:
                await events.__anext__()
                ending = asyncio.ensure_future(app.shutdown())
                await until(lambda: app[SERVICE].draining)
                assert await client.ask("GET", "/readyz") == (503, {"status": "draining"})
                assert await client.ask("GET", "/healthz") == (200, {"status": "ok"})
                status, _, retry_after = await post(client, "u", "other")
                assert (status, retry_after) == (503, "5")
                gate.open.set()
                rest = [event async for event in events]
                assert rest[-1]["turn"]["outcome"] == "completed"
            await ending


async def test_a_backend_that_may_wait_no_longer_ends_streams_without_an_end(tmp_path: Path) -> None:
    gate, limits = Gate(), WebLimits(drain_seconds=0.05)
    async with al.Runtime(ScriptedProvider([gate(reply("Late."))]), store=tmp_path / "s.db") as runtime:
        app = chat_app(runtime, [AGENT], auth=None, limits=limits)
        async with serving(runtime, app=app) as client:
            await client.begin()
            await gate.asked.wait()
            async with client.stream() as events:
                ending = asyncio.ensure_future(app.shutdown())
                got = [event async for event in events]
            assert [event["type"] for event in got] == ["run.started", "model.start"]
            await ending
            gate.open.set()


async def test_who_drains_twice_waits_once(tmp_path: Path) -> None:
    gate, limits = Gate(), WebLimits(drain_seconds=0.5)
    clock = asyncio.get_running_loop().time
    async with al.Runtime(ScriptedProvider([gate(reply("Late."))]), store=tmp_path / "s.db") as runtime:
        app = chat_app(runtime, [AGENT], auth=None, limits=limits)
        async with serving(runtime, app=app) as client:
            await client.begin()
            await gate.asked.wait()
            begun = clock()
            await app[SERVICE].drain()
            between = clock()
            await app.shutdown()
            assert between - begun >= 0.4
            assert clock() - between < 0.4
            gate.open.set()


async def test_a_store_that_stopped_is_not_ready(tmp_path: Path) -> None:
    async with al.Runtime(ScriptedProvider([]), store=tmp_path / "s.db") as runtime, serving(runtime, AGENT) as client:
        assert await client.ask("GET", "/readyz") == (200, {"status": "ok"})
        runtime._store.fault = "appending 1 facts ended with OSError"
        assert await client.ask("GET", "/readyz") == (503, {"status": "store"})
        status, refused = await client.ask("GET", "/api/conversations")
        assert (status, refused["error"]["code"]) == (503, "persistence")
        runtime._store.fault = None


async def test_it_is_mounted_below_a_prefix_of_another_application() -> None:
    async with al.Runtime(ScriptedProvider([reply("Below.")])) as runtime:
        outer = web.Application()
        outer.add_subapp("/chat", chat_app(runtime, [AGENT], auth=None))
        async with serving(runtime, app=outer) as client:
            below = Client(client.session, client.url + "/chat")
            await below.begin()
            assert (await below.events())[-1]["turn"]["outcome"] == "completed"


@pytest.mark.parametrize(
    "wrong",
    [
        {"agents": []},
        {"agents": "a"},
        {"agents": [AGENT, AGENT]},
        {"agents": [1]},
        {"auth": "me"},
        {"client_gone": "stay"},
        {"deps": 3},
        {"limits": 3},
        {"origins": "https://a.example"},
        {"origins": ["a.example"]},
        {"origins": ["https://a.example/"]},
        {"hosts": "localhost"},
        {"runtime": None},
    ],
)
async def test_what_cannot_be_served_is_refused(wrong: dict[str, Any]) -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:
        options = {"runtime": runtime, "agents": [AGENT], "auth": None, **wrong}
        with pytest.raises(InputError):
            chat_app(options.pop("runtime"), options.pop("agents"), **options)


async def test_who_may_ask_must_be_said() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(TypeError, match="auth"):
            chat_app(runtime, [AGENT])  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["body_bytes", "runs", "runs_a_user", "streams", "streams_a_user"])
def test_a_limit_of_none_is_refused(name: str) -> None:
    for value in (0, -1, 1.5, True):
        with pytest.raises(InputError, match=name):
            WebLimits(**{name: value})  # type: ignore[arg-type]
