"""A typed value over real HTTP: what goes over the wire by each route, and what is refused of what comes back."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec
import pytest

import agentloop as al
from agentloop.runner import Route
from agentloop.testing import ReplayServer
from tests.recordings.make import Stream

VALUE = {"title": "Printer on fire", "urgency": "high"}
TEXT = json.dumps(VALUE)
ROUTES: tuple[tuple[str, Route], ...] = (("openai", "json_schema"), ("deepseek", "call"), ("zai", "json_text"))


class Ticket(msgspec.Struct, frozen=True):
    """A ticket."""

    title: str
    urgency: Literal["low", "high"]


def text(said: str, finish: str = "stop") -> bytes:
    stream = Stream("ticket", random.Random(7))
    stream.text(said)
    return stream.end(finish, prompt=40, completion=12)


def calling(arguments: dict[str, Any], *, name: str = "Ticket", calls: int = 1) -> bytes:
    stream = Stream("ticket", random.Random(7))
    for index in range(calls):
        stream.call(index, f"call_{index}", name, arguments)
    return stream.end("tool_calls", prompt=40, completion=12)


def saying(route: Route, value: dict[str, Any]) -> bytes:
    """The stream that says a value by a route."""
    if route == "call":
        return calling(value)
    said = json.dumps(value)
    return text(f"Here it is:\n```json\n{said}\n```\n" if route == "json_text" else said)


async def asked(
    server: ReplayServer, *streams: bytes, dialect: str = "openai", route: Route | None = None
) -> al.ModelResult[Ticket]:
    """One typed call, answered with these streams."""
    server.script(*streams)
    ticket = al.Structured(Ticket, route=route)
    provider = al.ChatCompletions(server.url, model="made-1", dialect=dialect)
    async with al.Runtime(provider) as runtime:
        runner = runtime.runner(transports=(ticket,))
        return await runner.invoke("The printer is on fire", stage_id="triage", transport=ticket)


@pytest.mark.parametrize(("dialect", "route"), ROUTES)
async def test_a_value_comes_over_http_by_the_route_that_the_server_has(
    replay_server: ReplayServer, dialect: str, route: Route
) -> None:
    """(R187, R253)"""
    result = await asked(replay_server, saying(route, VALUE), dialect=dialect)
    assert result.value == Ticket(**VALUE)
    made = result.invocation
    assert (made.route, made.transport, made.stage_id, made.call_sequence) == (route, "structured:Ticket", "triage", 1)
    assert made.usage is not None
    assert made.usage.total_tokens == 52
    (request,) = replay_server.requests
    body = request.json
    schema = {
        "json_schema": lambda: body["response_format"]["json_schema"]["schema"],
        "call": lambda: body["tools"][0]["function"]["parameters"],
        "json_text": lambda: json.loads(body["messages"][0]["content"].rpartition("\n")[2]),
    }
    assert [name for name in ("response_format", "tools") if name in body] == {
        "json_schema": ["response_format"],
        "call": ["tools"],
        "json_text": [],
    }[route]
    assert schema[route]()["required"] == ["title", "urgency"]
    assert request.headers["x-client-request-id"] == made.invocation_id


@pytest.mark.parametrize("route", [route for _, route in ROUTES])
async def test_a_route_that_is_asked_for_is_taken_whatever_the_server_is_known_for(
    replay_server: ReplayServer, route: Route
) -> None:
    result = await asked(replay_server, saying(route, VALUE), route=route)
    assert (result.value, result.invocation.route) == (Ticket(**VALUE), route)


@pytest.mark.parametrize(
    ("route", "answer", "code"),
    [
        ("json_schema", lambda: text(f"```json\n{TEXT}\n```"), "invalid_json"),
        ("json_schema", lambda: text(TEXT, "length"), "incomplete"),
        ("json_schema", lambda: calling(VALUE), "unexpected_call"),
        ("call", lambda: text(TEXT), "unexpected_text"),
        ("call", lambda: calling(VALUE, calls=2), "several_calls"),
        ("call", lambda: calling(VALUE, name="other"), "unknown_tool"),
        ("json_text", lambda: text("I would rather not."), "no_json"),
        ("json_text", lambda: text(f"```\n{TEXT}\n```\n```\n{TEXT}\n```"), "no_json"),
        *((route, partial(saying, route, {**VALUE, "urgency": "x"}), "schema_mismatch") for _, route in ROUTES),
    ],
)
async def test_what_is_not_the_value_is_refused_and_nobody_asks_again(
    replay_server: ReplayServer, route: Route, answer: Callable[[], bytes], code: str
) -> None:
    """(R195, R196, R197)"""
    with pytest.raises(al.OutputRefused) as caught:
        await asked(replay_server, answer(), route=route)
    assert (caught.value.code, caught.value.transport) == (code, "structured:Ticket")
    assert "Printer" not in str(caught.value)
    assert len(replay_server.requests) == 1


@pytest.mark.parametrize(
    ("route", "answer", "code"),
    [
        ("json_schema", lambda: calling(VALUE), "unexpected_call"),
        ("call", lambda: text(TEXT), "unexpected_text"),
        ("call", lambda: calling(VALUE, calls=2), "several_calls"),
        ("call", lambda: calling(VALUE, name="other"), "unknown_tool"),
        ("json_text", lambda: calling(VALUE), "unexpected_call"),
    ],
)
async def test_a_reply_that_is_refused_at_its_first_piece_is_read_to_its_end_stored_and_paid_for(
    replay_server: ReplayServer, route: Route, answer: Callable[[], bytes], code: str
) -> None:
    """(R220)"""
    replay_server.script(answer())
    ticket = al.Structured(Ticket, route=route)
    async with al.Runtime(al.ChatCompletions(replay_server.url, model="made-1", dialect="openai")) as runtime:
        spent = al.Ledger()
        runner = runtime.runner(transports=(ticket,), ledger=spent)
        with pytest.raises(al.OutputRefused) as caught:
            await runner.invoke("The printer is on fire", transport=ticket)
        assert caught.value.code == code
        assert caught.value.ref is not None
        status = await runtime.read(caught.value.ref)
        assert status.reply is not None
        assert status.reply.usage is not None
        assert status.reply.usage.total_tokens == 52
        assert spent.spent("tokens") == 52


@pytest.mark.parametrize(("dialect", "route"), ROUTES)
async def test_a_stream_that_is_cut_gives_no_value_by_any_route(
    replay_server: ReplayServer, dialect: str, route: Route
) -> None:
    whole = saying(route, VALUE)
    with pytest.raises(al.StreamRefused) as caught:
        await asked(replay_server, whole[: whole.index(b'"finish_reason":"')], dialect=dialect)
    assert caught.value.code == "truncated"
