"""The replay server, seen by a plain HTTP client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentloop.errors import InputError
from agentloop.providers import Recording
from agentloop.testing import Answer, ReplayServer

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
TEXT = (RECORDINGS / "text.sse").read_bytes()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(client: aiohttp.ClientSession, server: ReplayServer, **body: Any) -> tuple[int, bytes]:
    async with client.post(f"{server.url}/chat/completions", json={"stream": True, **body}) as response:
        return response.status, await response.read()


def body_of(name: str) -> bytes:
    return (RECORDINGS / f"{name}.sse").read_bytes()


async def test_the_model_chooses_the_recordings_in_order_and_around_again(client: aiohttp.ClientSession) -> None:
    async with ReplayServer(RECORDINGS) as server:
        got = [await ask(client, server, model="notes-demo") for _ in range(5)]
        assert await ask(client, server, model="length") == (200, body_of("length"))
    names = ["notes-demo-1", "notes-demo-2", "notes-demo-3", "notes-demo-4", "notes-demo-1"]
    assert got == [(200, body_of(name)) for name in names]


async def test_an_unknown_model_gets_all_recordings_in_order(client: aiohttp.ClientSession) -> None:
    async with ReplayServer([RECORDINGS / "text.sse", RECORDINGS / "length.sse"]) as server:
        assert [body for _, body in [await ask(client, server, model="x") for _ in range(3)]] == [
            TEXT,
            body_of("length"),
            TEXT,
        ]


async def test_models_are_listed(client: aiohttp.ClientSession) -> None:
    async with ReplayServer(RECORDINGS) as server, client.get(f"{server.url}/models") as response:
        listed = await response.json()
    assert [item["id"] for item in listed["data"]] == ["made-1", "notes-demo"]


async def test_every_request_is_kept(client: aiohttp.ClientSession) -> None:
    async with ReplayServer(RECORDINGS) as server:
        await ask(client, server, model="text", n=1)
        (got,) = server.requests
    assert (got.method, got.path, got.json["n"]) == ("POST", "/v1/chat/completions", 1)
    assert got.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/chat/completions", b'{"model":"text"}', 400),
        ("/chat/completions", b"{broken", 400),
        ("/completions", b"{}", 404),
        ("/v1/chat/completions", b'{"model":"text","stream":true}', 404),
    ],
)
async def test_what_it_does_not_serve_is_a_json_error(
    client: aiohttp.ClientSession, path: str, content: bytes, status: int
) -> None:
    async with ReplayServer(RECORDINGS) as server, client.post(f"{server.url}{path}", data=content) as response:
        assert response.status == status
        body = await response.read()
        assert len(server.requests) == 1
    said = json.loads(body)["error"]["message"]
    if status == 404:
        assert said.startswith(f"expected POST {server.url}/chat/completions or GET {server.url}/models, got POST /v1/")
    assert said


@pytest.mark.parametrize(("prefix", "base"), [("/api/v2", "/api/v2"), ("/v1/", "/v1"), ("/", ""), ("", "")])
async def test_the_prefix_may_be_another(client: aiohttp.ClientSession, prefix: str, base: str) -> None:
    async with ReplayServer(RECORDINGS, prefix=prefix) as server:
        assert await ask(client, server, model="text") == (200, TEXT)
        assert server.requests[0].path == f"{base}/chat/completions"


@pytest.mark.parametrize("prefix", ["v1", "/v1?x=1", "/a b", None])
def test_a_prefix_that_is_no_path_is_refused(prefix: Any) -> None:
    with pytest.raises(InputError, match=r"ReplayServer\.prefix: expected a path such as /v1, got "):
        ReplayServer(RECORDINGS, prefix=prefix)


async def test_scripted_answers_come_first_and_once(client: aiohttp.ClientSession) -> None:
    async with ReplayServer(RECORDINGS) as server:
        server.script(b"data: 1\n\n", Recording(name="r", body=b"data: 2\n\n"), Answer.error(429, {}, retry_after="5"))
        got = [await ask(client, server, model="length") for _ in range(4)]
    assert got == [(200, b"data: 1\n\n"), (200, b"data: 2\n\n"), (429, b"{}"), (200, body_of("length"))]


async def test_without_recordings_and_answers_it_says_so(client: aiohttp.ClientSession) -> None:
    async with ReplayServer() as server:
        status, body = await ask(client, server, model="m")
    assert (status, json.loads(body)["error"]["code"]) == (503, "no_answer")


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
async def test_a_body_arrives_whole_in_every_framing(client: aiohttp.ClientSession, framing: Any) -> None:
    async with ReplayServer() as server:
        server.script(Answer(body=TEXT, framing=framing), Answer(body=TEXT, framing=framing))
        assert await ask(client, server) == (200, TEXT)
        assert await ask(client, server) == (200, TEXT)
        assert [got.connection for got in server.requests] == ([0, 1] if framing == "close" else [0, 0])


def test_pieces_are_events_or_sizes_or_the_whole() -> None:
    body = b"data: 1\n\ndata: 2\r\n\r\n: x\n\ndata: 3"
    assert Answer(body=body).pieces() == [b"data: 1\n\n", b"data: 2\r\n\r\n", b": x\n\n", b"data: 3"]
    assert Answer(body=body, writes="whole").pieces() == [body]
    assert Answer(body=body, writes=(3, 0, 4)).pieces() == [body[:3], body[3:7], body[7:]]
    assert Answer(body=body, cut=9).pieces() == [b"data: 1\n\n"]
    assert Answer(body=b"").pieces() == []


@pytest.mark.parametrize("ending", ["close", "reset"])
async def test_an_answer_can_break_off(client: aiohttp.ClientSession, ending: Any) -> None:
    async with ReplayServer() as server:
        server.script(Answer(body=TEXT, cut=1_000, ending=ending))
        with pytest.raises(aiohttp.ClientError):
            await ask(client, server)
        assert server.disconnects == 0


async def test_a_client_that_goes_is_noticed_while_the_answer_stalls(client: aiohttp.ClientSession) -> None:
    async with ReplayServer() as server:
        server.script(Answer(body=TEXT, cut=1_000, ending="stall"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await ask(client, server)
        await server.wait_disconnects(1)


async def test_pace_and_delay_are_kept(client: aiohttp.ClientSession) -> None:
    async with ReplayServer() as server:
        server.script(Answer(body=b"data: 1\n\n" * 4, delay=0.02, pace=0.01))
        start = asyncio.get_running_loop().time()
        await ask(client, server)
        assert asyncio.get_running_loop().time() - start >= 0.05


async def test_leaving_the_block_ends_what_is_still_being_served(client: aiohttp.ClientSession) -> None:
    async with ReplayServer() as server:
        server.script(Answer(body=TEXT, ending="stall"))
        asking = asyncio.create_task(ask(client, server))
        await server.wait_requests(1)
    with pytest.raises(aiohttp.ClientError):
        await asking


async def test_it_serves_only_inside_its_block(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one"):
        ReplayServer(tmp_path)
    with pytest.raises(RuntimeError):
        await ReplayServer().serve_forever()
