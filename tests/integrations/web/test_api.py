"""Conversations and turns over HTTP, as a client uses them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import agentloop as al
import agentloop.integrations.serving.listing as listing_module
from agentloop.integrations.web import WebLimits
from agentloop.testing import ScriptedProvider, broken, call, reply
from tests.integrations.web.backend import Client, Gate, serving

PAID: list[str] = []


@al.tool(approval="required", recovery="settle")
async def pay(to: str, ctx: al.ToolContext[Any]) -> str:
    """Pay somebody."""
    PAID.append(f"{to} by {ctx.deps}")
    return f"paid {to}"


@al.external
def ask(question: str) -> str:
    """Ask a person."""


@al.tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


AGENT = al.Agent(
    name="clerk", instructions="A secret rule.", tools=[pay, ask, add], limits=al.LoopLimits(max_tokens=99)
)
OTHER = al.Agent(name="other")


@pytest.fixture(autouse=True)
def paid() -> None:
    PAID.clear()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "chat.db" if request.param == "sqlite" else None


def texts(events: list[Any]) -> str:
    return "".join(event["payload"]["text"] for event in events if event["type"] == "model.output")


async def test_a_turn_with_a_tool_is_followed_and_told_as_it_came_to_be(store: Path | None) -> None:
    script = [reply("Let me. ", calls=[call("add", a=1, b=2)], usage=(3, 2)), reply("It is 3.", usage=(5, 2))]
    async with al.Runtime(ScriptedProvider(script), store=store) as runtime, serving(runtime, AGENT) as client:
        begun = await client.begin("t", "What is 1 + 2?")
        assert (begun["id"], begun["conversation"], begun["agent"], begun["state"]) == ("t", "c", "clerk", "running")
        events = await client.events()
        assert texts(events) == "Let me. It is 3."
        assert [event["type"] for event in events if event["type"].startswith(("tool", "run", "end"))] == [
            "run.started",
            "tool.started",
            "tool.ended",
            "run.ended",
            "end",
        ]
        turn = events[-1]["turn"]
        assert turn == await client.turn()
        assert (turn["state"], turn["outcome"], turn["said"][0]["text"]) == ("ended", "completed", "What is 1 + 2?")
        assert [attempt["text"] for attempt in turn["attempts"]] == ["Let me. ", "It is 3."]
        (done,) = turn["attempts"][0]["calls"]
        assert (done["arguments"], done["state"], done["output"], done["status"]) == (
            '{"a":1,"b":2}',
            "done",
            "3",
            "ok",
        )
        assert turn["budget"] == {
            "model_calls": {"used": 2, "limit": 8},
            "tool_calls": {"used": 1, "limit": None},
            "tokens": {"used": 12, "limit": 99},
        }
        assert "secret" not in str(events)


async def test_conversations_are_listed_read_and_dropped(store: Path | None) -> None:
    script = [reply("1"), reply("2"), reply("3")]
    async with al.Runtime(ScriptedProvider(script), store=store) as runtime, serving(runtime, AGENT) as client:
        assert await client.ask("GET", "/api/conversations") == (200, {"conversations": []})
        for turn, text, conversation in (("t1", "First\nmore", "a"), ("t2", "x" * 200, "b"), ("t3", "Again", "a")):
            await client.begin(turn, text, conversation)
            await client.events(turn, conversation)
        _, listed = await client.ask("GET", "/api/conversations")
        found = {item["id"]: (item["title"], item["turns"], item["live"]) for item in listed["conversations"]}
        assert found == {"a": ("First", 2, None), "b": ("x" * 79 + "…", 1, None)}
        times = [item["updated_at_ms"] for item in listed["conversations"]]
        assert times == sorted(times, reverse=True)
        assert len((await client.ask("GET", "/api/conversations?limit=1"))[1]["conversations"]) == 1
        status, read = await client.ask("GET", "/api/conversations/a")
        assert (status, [turn["id"] for turn in read["turns"]]) == (200, ["t1", "t3"])
        assert await client.ask("DELETE", "/api/conversations/a") == (204, None)
        assert (await client.ask("GET", "/api/conversations/a"))[0] == 404
        assert (await client.ask("DELETE", "/api/conversations/a"))[0] == 404


async def test_a_title_is_gone_with_the_text_that_it_was_made_of(
    store: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing_module, "_KEPT_SECONDS", 0.0)
    async with al.Runtime(ScriptedProvider([reply("x")]), store=store) as runtime, serving(runtime, AGENT) as client:
        await client.begin(text="My secret.")
        run = (await client.events())[0]["run_id"]
        titles = []
        for _ in range(2):
            _, listed = await client.ask("GET", "/api/conversations")
            titles.append(listed["conversations"][0]["title"])
            await runtime.redact(run, author="host")
        assert titles == ["My secret.", ""]


async def test_the_session_says_who_one_is_and_what_is_served() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT, OTHER) as client:
        status, session = await client.ask("GET", "/api/session")
        agents = [{"name": "clerk", "tools": ["pay", "ask", "add"]}, {"name": "other", "tools": []}]
        told = {"user": "anyone", "agents": agents, "page": False, "keep_alive_seconds": 15.0}
        assert (status, session) == (200, told)


async def test_beginning_a_turn_again_joins_it_and_sends_nothing(store: Path | None) -> None:
    gate, provider = Gate(), None
    provider = ScriptedProvider([gate(reply("Once."))])
    async with al.Runtime(provider, store=store) as runtime, serving(runtime, AGENT, OTHER) as client:
        path, body = "/api/conversations/c/turns", {"id": "t", "text": "Hello"}
        answers = await asyncio.gather(*(client.ask("POST", path, body) for _ in range(5)))
        assert {status for status, _ in answers} <= {200, 201}
        assert (await client.ask("POST", path, body))[0] == 200
        for other in ({**body, "text": "Hallo"}, {**body, "agent": "other"}):
            status, refused = await client.ask("POST", path, other)
            assert (status, refused["error"]["code"]) == (409, "conflict")
        gate.open.set()
        assert texts(await client.events()) == "Once."
        assert (await client.ask("POST", path, body))[1]["state"] == "ended"
    assert len(provider.requests) == 1


async def test_a_conversation_takes_one_turn_at_a_time(store: Path | None) -> None:
    gate = Gate()
    async with (
        al.Runtime(ScriptedProvider([gate(reply("One.")), reply("Two.")]), store=store) as runtime,
        serving(runtime, AGENT) as client,
    ):
        await client.begin("t1")
        await gate.asked.wait()
        status, refused = await client.ask("POST", "/api/conversations/c/turns", {"id": "t2", "text": "More"})
        assert (status, refused["error"]["code"]) == (409, "stale_head")
        assert (await client.ask("DELETE", "/api/conversations/c"))[0] == 409
        gate.open.set()
        await client.events("t1")
        await client.begin("t2", "More")
        assert texts(await client.events("t2")) == "Two."


async def test_calls_wait_for_a_person_who_sees_the_exact_arguments(store: Path | None) -> None:
    asked = reply(
        calls=[call("pay", arguments_text='{"to" : "Ann"}', call_id="1"), call("ask", question="Why?", call_id="2")]
    )
    script = [asked, reply("Paid.")]
    async with (
        al.Runtime(ScriptedProvider(script), store=store) as runtime,
        serving(runtime, AGENT, deps=lambda user: f"<{user}>") as client,
    ):
        await client.begin()
        end = (await client.events())[-1]
        assert end["type"] == "end"
        turn = end["turn"]
        assert (turn["state"], turn["outcome"]) == ("waiting", None)
        pays, asks = turn["waiting"]
        assert (pays["kind"], pays["tool"], pays["arguments"], pays["below"]) == (
            "approval",
            "pay",
            '{"to" : "Ann"}',
            False,
        )
        assert asks["kind"] == "external"
        path = "/api/conversations/c/turns/t/decide"
        status, turn = await client.ask("POST", path, {"decisions": {pays["ref"]: {"decision": "approve"}}})
        assert status == 200
        end = (await client.events())[-1]["turn"]
        assert (end["state"], [item["tool"] for item in end["waiting"]]) == ("waiting", ["ask"])
        answer = {"decision": "answer", "text": "Because."}
        await client.ask("POST", path, {"decisions": {asks["ref"]: answer}})
        events = await client.events()
        assert events[-1]["turn"]["outcome"] == "completed"
        assert PAID == ["Ann by <anyone>"]
        status, refused = await client.ask("POST", path, {"decisions": {pays["ref"]: {"decision": "deny"}}})
        assert (status, refused["error"]["code"]) == (409, "conflict")


async def test_a_denial_gives_its_reason_to_the_model_and_runs_nothing() -> None:
    provider = ScriptedProvider([reply(calls=[call("pay", to="Ann")]), reply("Not paid.")])
    async with al.Runtime(provider) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        (waits,) = (await client.events())[-1]["turn"]["waiting"]
        decided = {"decisions": {waits["ref"]: {"decision": "deny", "reason": "too much"}}}
        await client.ask("POST", "/api/conversations/c/turns/t/decide", decided)
        await client.events()
    assert "too much" in provider.requests[1].exchanges[0].feedback[0].text
    assert PAID == []


async def test_a_turn_is_cancelled_and_the_conversation_goes_on(store: Path | None) -> None:
    gate = Gate()
    async with (
        al.Runtime(ScriptedProvider([gate(reply("never")), reply("Now.")]), store=store) as runtime,
        serving(runtime, AGENT) as client,
    ):
        await client.begin("t1")
        await gate.asked.wait()
        status, turn = await client.ask("POST", "/api/conversations/c/turns/t1/cancel")
        assert (status, turn["state"], turn["outcome"]) == (200, "ended", "cancelled")
        assert (await client.events("t1"))[-1]["turn"] == turn
        await client.begin("t2")
        assert texts(await client.events("t2")) == "Now."


async def test_a_withdrawn_preview_is_told_as_such_and_is_not_in_the_turn(store: Path | None) -> None:
    refused = al.StreamRefused("truncated", 3, 99, "a finish", "the end of the stream")
    script = [broken(reply("Half an ans"), refused)]
    async with al.Runtime(ScriptedProvider(script), store=store) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        events = await client.events()
        (end,) = (event for event in events if event["type"] == "model.end")
        assert (end["payload"]["status"], end["payload"]["retracted"], end["payload"]["code"]) == (
            "error",
            True,
            "truncated",
        )
        turn = events[-1]["turn"]
        assert (turn["state"], turn["outcome"], turn["reason"]) == ("ended", "failed", "truncated")
        assert [(attempt["state"], attempt["code"], attempt["text"]) for attempt in turn["attempts"]] == [
            ("failed", "truncated", "")
        ]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/api/conversations/c/turns", {"id": "t"}, 400, "bad_request"),
        ("POST", "/api/conversations/c/turns", {"id": "t", "text": " \n"}, 400, "bad_request"),
        ("POST", "/api/conversations/c/turns", {"id": "t", "text": 3}, 400, "bad_request"),
        ("POST", "/api/conversations/c/turns", {"id": "t", "text": "x", "role": "system"}, 400, "bad_request"),
        ("POST", "/api/conversations/c/turns", {"id": "t", "text": "x", "agent": "nobody"}, 404, "unknown_agent"),
        ("POST", "/api/conversations/c/turns", {"id": "a.b", "text": "x"}, 400, "bad_id"),
        ("POST", "/api/conversations/c/turns", {"id": "x" * 41, "text": "x"}, 400, "bad_id"),
        ("POST", "/api/conversations/c/turns", {"id": "", "text": "x"}, 400, "bad_id"),
        ("POST", "/api/conversations/c%2Fd/turns", {"id": "t", "text": "x"}, 400, "bad_id"),
        ("POST", "/api/conversations/c%0d%0aX:1/turns", {"id": "t", "text": "x"}, 400, "bad_id"),
        ("GET", "/api/conversations/%2e%2e", None, 404, "http"),
        ("GET", "/api/conversations?limit=0", None, 400, "bad_request"),
        ("GET", "/api/conversations?limit=x", None, 400, "bad_request"),
        ("GET", "/api/conversations/nope", None, 404, "not_found"),
        ("GET", "/api/conversations/c/turns/nope", None, 404, "not_found"),
        ("GET", "/api/conversations/c/turns/nope/events", None, 404, "not_found"),
        ("POST", "/api/conversations/c/turns/nope/cancel", None, 404, "not_found"),
        ("POST", "/api/conversations/c/turns/nope/resume", None, 404, "not_found"),
        ("POST", "/api/conversations/c/turns/t/decide", {"decisions": {}}, 400, "bad_request"),
        (
            "POST",
            "/api/conversations/c/turns/t/decide",
            {"decisions": {"x": {"decision": "maybe"}}},
            400,
            "bad_request",
        ),
        ("POST", "/api/conversations/c/turns/t/decide", {"decisions": {"x": {"decision": "approve"}}}, 400, "input"),
        ("POST", "/api/conversations/c/turns/t/settle", {"choice": "ask_again"}, 409, "not_unsettled"),
        ("PUT", "/api/conversations", None, 405, "http"),
        ("GET", "/nowhere", None, 404, "http"),
    ],
)
async def test_what_cannot_be_is_a_clear_4xx(method: str, path: str, body: Any, status: int, code: str) -> None:
    async with al.Runtime(ScriptedProvider([reply("x")])) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        await client.events()
        got, answer = await client.ask(method, path, body)
        assert (got, answer["error"]["code"]) == (status, code), answer
        assert answer["error"]["message"]


@pytest.mark.parametrize("after", ["x", "r:1", "other:0000000001", "0" * 5000])
async def test_an_event_id_of_something_else_is_refused(after: str) -> None:
    async with al.Runtime(ScriptedProvider([reply("x")])) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        await client.events()
        path = f"/api/conversations/c/turns/t/events?after={after}"
        status, answer = await client.ask("GET", path)
        assert (status, answer["error"]["code"]) == (400, "bad_event_id")


# -- bodies


async def _slow() -> AsyncIterator[bytes]:
    yield b'{"id":'
    await asyncio.Event().wait()


async def _large() -> AsyncIterator[bytes]:
    while True:
        yield b" " * 4096


async def raw(client: Client, data: Any, **headers: str) -> tuple[int, str]:
    path = client.url + "/api/conversations/c/turns"
    headers = {"Content-Type": "application/json", **headers}
    async with client.session.post(path, data=data, headers=headers) as response:
        return response.status, (await response.json())["error"]["code"]


async def test_bodies_are_bounded_in_size_time_type_and_form() -> None:
    limits = WebLimits(body_bytes=1000, body_seconds=0.2)
    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT, limits=limits) as client:
        assert await raw(client, b"x" * 1001) == (413, "body_too_large")
        assert await raw(client, _large()) == (413, "body_too_large")
        assert await raw(client, _slow()) == (408, "body_timeout")
        assert await raw(client, b"{", **{"Content-Type": "text/plain"}) == (415, "content_type")
        assert await raw(client, b"{", **{"Content-Encoding": "gzip"}) == (415, "content_encoding")
        for body in (b"", b"{", b"[]", b'{"id":"t","id":"u","text":"x"}', b'{"id":"t","text":"\\ud800"}', b"\xff"):
            assert await raw(client, body) == (400, "bad_request")
        deep = b'{"id":' + b"[" * 100 + b"]" * 100 + b"}"
        assert await raw(client, deep) == (400, "bad_request")


async def test_only_a_turn_that_is_paused_is_resumed() -> None:
    gate = Gate()
    script = [gate(reply(calls=[call("pay", to="Ann")]))]
    async with al.Runtime(ScriptedProvider(script)) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        path = "/api/conversations/c/turns/t"
        status, turn = await client.ask("POST", f"{path}/resume")
        assert (status, turn["state"]) == (200, "running")
        gate.open.set()
        await client.events()
        status, refused = await client.ask("POST", f"{path}/resume")
        assert (status, refused["error"]["code"]) == (409, "not_paused")
        assert (await client.turn())["state"] == "waiting"
        await client.ask("POST", f"{path}/cancel")
        assert (await client.ask("POST", f"{path}/resume"))[0] == 409


async def test_an_error_tells_a_client_its_own_ids_only() -> None:
    gate = Gate()
    async with al.Runtime(ScriptedProvider([gate(reply("x"))])) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        _, refused = await client.ask("POST", "/api/conversations/c/turns", {"id": "u", "text": "x"})
        assert "'c'" in refused["error"]["message"]
        assert re.search("[0-9a-f]{32}", refused["error"]["message"]) is None
        gate.open.set()
