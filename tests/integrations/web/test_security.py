"""What one user, or a page of another site, cannot do to another user."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import example, given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.integrations.serving.problem import Problem
from agentloop.integrations.web import User
from agentloop.testing import ScriptedProvider, call, reply
from tests.integrations.web.backend import Client, Gate, by_header, serving


@al.tool(approval="required", recovery="settle")
async def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


AGENT = al.Agent(name="a", tools=[pay])


def forms(user: User, conversation: str, turn: str) -> list[tuple[str, str]]:
    """Ids under which a second user might look for the first one's turn: short, stored, escaped, in parts."""
    run = user.run(conversation, turn)
    return [
        (conversation, turn),
        (user.conversation(conversation), turn),
        (user.conversation(conversation), run),
        (conversation, run),
        (user.key, f"{conversation}.{turn}"),
        (f"..%2F{user.key}.{conversation}", turn),
        ("..", f"{user.key}.{conversation}.{turn}"),
    ]


async def test_a_second_user_reaches_nothing_of_the_first_by_any_id(tmp_path: Path) -> None:
    """Not to read, follow, resume, approve, settle, cancel or drop it."""
    script = [reply("A secret.", calls=[call("pay", to="Ann")]), reply("Paid.")]
    async with (
        al.Runtime(ScriptedProvider(script), store=tmp_path / "chat.db") as runtime,
        serving(runtime, AGENT, auth=by_header, user="Ann") as ann,
    ):
        await ann.begin("t", "My secret.")
        before = (await ann.events())[-1]["turn"]
        (waits,) = before["waiting"]
        eve = Client(ann.session, ann.url, "Eve")
        approve = {"decisions": {waits["ref"]: {"decision": "approve"}}}
        assert await eve.ask("GET", "/api/conversations") == (200, {"conversations": []})
        for conversation, turn in forms(User.of("Ann"), "c", "t"):
            path = f"/api/conversations/{conversation}"
            for method, rest, body in (
                ("GET", "", None),
                ("DELETE", "", None),
                ("GET", f"/turns/{turn}", None),
                ("GET", f"/turns/{turn}/events", None),
                ("POST", f"/turns/{turn}/cancel", None),
                ("POST", f"/turns/{turn}/resume", None),
                ("POST", f"/turns/{turn}/decide", approve),
                ("POST", f"/turns/{turn}/settle", {"choice": "discard"}),
                ("POST", f"/turns/{turn}/settle", {"choice": "ask_again"}),
            ):
                status, answer = await eve.ask(method, path + rest, body)
                assert status in (400, 404), (method, path + rest, status)
                assert "secret" not in str(answer).lower()
        await eve.begin("t", "Mine.")  # the same ids are another turn
        await eve.events()
        decided, answer = await eve.ask("POST", "/api/conversations/c/turns/t/decide", approve)
        assert decided in (400, 409), answer
        assert await ann.turn() == before


async def test_an_event_id_of_another_user_reads_nothing() -> None:
    async with (
        al.Runtime(ScriptedProvider([reply("one"), reply("two")])) as runtime,
        serving(runtime, AGENT, auth=by_header, user="Ann") as ann,
    ):
        eve = Client(ann.session, ann.url, "Eve")
        await ann.begin()
        seen = await ann.events()
        await eve.begin()
        await eve.events()
        path = "/api/conversations/c/turns/t/events"
        status, answer = await eve.ask("GET", path, headers={"Last-Event-ID": seen[0]["_id"]})
        assert (status, answer["error"]["code"]) == (400, "bad_event_id")


@given(a=st.text(min_size=1, max_size=128), b=st.text(min_size=1, max_size=128))
@settings(max_examples=200)
def test_users_of_other_names_share_no_name_of_anything(a: str, b: str) -> None:
    try:
        first, second = User.of(a), User.of(b)
    except al.InputError:
        return
    assert (first.prefix == second.prefix) == (a == b)
    assert len(first.run("x" * 40, "y" * 40)) <= 128


_FORM = st.text("ABCXYZabcxyz0189_-", min_size=1, max_size=40)


@given(text=_FORM)
def test_an_id_of_the_form_is_taken_as_it_is(text: str) -> None:
    assert User.of("Ann").conversation(text) == f"{User.of('Ann').key}.{text}"


@given(text=st.text().filter(lambda text: re.fullmatch(r"[A-Za-z0-9_-]{1,40}", text) is None))
@example("a\n")
@example("a.b")
@example("\u0661")
def test_an_id_of_any_other_form_is_refused(text: str) -> None:
    with pytest.raises(Problem) as caught:
        User.of("Ann").conversation(text)
    assert (caught.value.status, caught.value.code) == (400, "bad_id")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/session"),
        ("GET", "/api/conversations"),
        ("GET", "/api/conversations/c"),
        ("DELETE", "/api/conversations/c"),
        ("POST", "/api/conversations/c/turns"),
        ("GET", "/api/conversations/c/turns/t"),
        ("GET", "/api/conversations/c/turns/t/events"),
        ("POST", "/api/conversations/c/turns/t/decide"),
        ("POST", "/api/conversations/c/turns/t/settle"),
        ("POST", "/api/conversations/c/turns/t/resume"),
        ("POST", "/api/conversations/c/turns/t/cancel"),
    ],
)
async def test_who_is_nobody_known_gets_nothing(method: str, path: str) -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT, auth=by_header) as nobody:
        status, answer = await nobody.ask(method, path)
        assert (status, answer["error"]["code"]) == (401, "unauthorized")


async def test_an_auth_that_fails_lets_nobody_in_and_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def broken_auth(_: web.Request) -> str | None:
        raise RuntimeError("the key is 4711")

    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT, auth=broken_auth) as client:
        status, answer = await client.ask("GET", "/api/session")
        assert (status, answer["error"]["code"]) == (500, "error")
        assert "4711" not in str(answer)
    assert "4711" in caplog.text


# -- pages of other sites


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1", "http://["]
)
async def test_a_page_of_another_site_can_do_nothing_and_reads_nothing(origin: str) -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT) as client:
        headers = {"Origin": origin}
        path = "/api/conversations/c/turns"
        status, answer = await client.ask("POST", path, {"id": "t", "text": "x"}, headers=headers)
        assert (status, answer["error"]["code"]) == (403, "foreign_origin")
        ask = {**headers, "Access-Control-Request-Method": "POST"}
        async with client.session.options(client.url + path, headers=ask) as response:
            assert response.status == 403
            assert not [name for name in response.headers if name.lower().startswith("access-control")]
        async with client.session.get(client.url + "/api/session", headers=headers) as response:
            assert not [name for name in response.headers if name.lower().startswith("access-control")]


async def test_a_page_of_the_same_site_and_a_named_one_may() -> None:
    named = "https://app.example"
    gate = Gate()
    async with (
        al.Runtime(ScriptedProvider([gate(reply("x")), reply("y")])) as runtime,
        serving(runtime, AGENT, origins=[named]) as client,
    ):
        own = client.url
        path = "/api/conversations/c/turns"
        assert (await client.ask("POST", path, {"id": "t", "text": "x"}, headers={"Origin": own}))[0] == 201
        gate.open.set()
        ask = {"Origin": named, "Access-Control-Request-Method": "POST"}
        async with client.session.options(client.url + path, headers=ask) as response:
            assert (response.status, response.headers["Access-Control-Allow-Origin"]) == (204, named)
            assert "POST" in response.headers["Access-Control-Allow-Methods"]
        stream = client.url + "/api/conversations/c/turns/t/events"
        async with client.session.get(stream, headers={"Origin": named}) as response:
            assert response.headers["Access-Control-Allow-Origin"] == named
            assert response.headers["Vary"] == "Origin"


async def test_a_foreign_name_that_points_at_this_machine_is_refused() -> None:
    async with (
        al.Runtime(ScriptedProvider([])) as runtime,
        serving(runtime, AGENT, hosts=["localhost", "127.0.0.1"]) as client,
    ):
        assert (await client.ask("GET", "/api/session"))[0] == 200
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", "", "[", "[::1"):
            status, answer = await client.ask("GET", "/api/session", headers={"Host": host})
            assert (status, answer["error"]["code"]) == (421, "wrong_host")


async def test_answers_say_that_they_are_what_they_are_and_are_kept_by_nobody() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT) as client:
        for path in ("/api/session", "/nowhere"):
            async with client.session.get(client.url + path) as response:
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Referrer-Policy"] == "no-referrer"
                assert response.headers["Cache-Control"] == "no-store"


async def raw(client: Client, *lines: str) -> bytes:
    """The first line that answers a request written by hand."""
    port = int(client.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join((*lines, "", "")).encode("latin-1"))
    try:
        return await reader.readline()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    "lines",
    [
        ("GET /api/session HTTP/1.1", "Host: x", "Last-Event-ID: a\0b"),
        ("GET /api/session HTTP/1.1", "Host: x", "X-A: b\rX-C: d"),
        ("GET /api/session HTTP/1.1", "Host: x", "Content-Length: 1", "Content-Length: 2"),
        ("GET /api/session HTTP/1.1", "Host: x", "Transfer-Encoding: chunked", "Content-Length: 5"),
        ("GET /api/session HTTP/1.1", "Host: x", " folded: y"),
        ("GET /api/session\r HTTP/1.1", "Host: x"),
        ("GET /api/session HTTP/1.1", "Host: x", "X-Long: " + "y" * 20_000),
    ],
)
async def test_headers_that_are_none_are_a_4xx(lines: tuple[str, ...]) -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT) as client:
        answer = await raw(client, *lines)
        assert answer.startswith((b"HTTP/1.1 4", b"HTTP/1.0 4")), answer


@pytest.mark.parametrize("path", ["/api/conversations/c/turns/t/events", "/ui/chat/c/stream"])
async def test_a_stream_is_no_answer_to_a_request_for_headers(path: str) -> None:
    """What follows the headers of such an answer is read as the next one."""
    gate = Gate()
    async with al.Runtime(ScriptedProvider([gate(reply("x"))])) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        assert (await raw(client, f"HEAD {path} HTTP/1.1", "Host: x")).startswith(b"HTTP/1.1 405")
        gate.open.set()


@pytest.mark.parametrize("value", ["x\u00e9:1", "a" * 4000, "%0d%0aX: y", "../../etc"])
async def test_an_event_id_that_is_text_of_another_kind_is_a_400(value: str) -> None:
    async with al.Runtime(ScriptedProvider([reply("x")])) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        await client.events()
        answer: Any = await client.ask("GET", "/api/conversations/c/turns/t/events", headers={"Last-Event-ID": value})
        assert answer[0] == 400


async def test_an_auth_that_sends_elsewhere_or_refuses_does_so_in_its_own_words() -> None:
    async def auth(request: web.Request) -> str | None:
        if request.method == "GET":
            raise web.HTTPFound("/login")
        raise web.HTTPForbidden(headers={"X-Why": "closed"})

    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT, auth=auth) as client:
        async with client.session.get(client.url + "/api/session", allow_redirects=False) as response:
            assert (response.status, response.headers["Location"]) == (302, "/login")
        async with client.session.delete(client.url + "/api/conversations/c") as response:
            assert (response.status, response.headers["X-Why"]) == (403, "closed")
            assert (await response.json())["error"]["code"] == "http"


@pytest.mark.parametrize("name", ["", 5, "x" * 129])
async def test_a_user_that_cannot_be_is_a_fault_of_the_server(name: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def auth(_: web.Request) -> str | None:
        return name  # type: ignore[no-any-return]

    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT, auth=auth) as client:
        status, answer = await client.ask("GET", "/api/session")
        assert (status, answer["error"]["code"]) == (500, "error")
    assert "auth: user" in caplog.text
