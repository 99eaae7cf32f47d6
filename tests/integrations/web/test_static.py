"""The page's files over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

import agentloop as al
from agentloop.integrations.web import chat_app
from agentloop.integrations.web.static import CONTENT_SECURITY_POLICY
from agentloop.testing import ScriptedProvider
from tests.integrations.web.backend import Client, by_header, serving

AGENT = al.Agent(name="a")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with (
        al.Runtime(ScriptedProvider([])) as runtime,
        serving(runtime, AGENT, page=True, auth=by_header) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/page/main.js", "text/javascript"),
        ("/page/style.css", "text/css"),
        ("/page/icon.svg", "image/svg+xml"),
        ("/page/vendor/purify.min.js", "text/javascript"),
    ],
)
async def test_the_files_of_the_page_are_served_to_everybody_under_one_policy(
    client: Client, path: str, kind: str
) -> None:
    async with client.session.get(client.url + path) as response:
        assert (response.status, response.content_type) == (200, kind)
        assert response.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert response.headers["X-DNS-Prefetch-Control"] == "off"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        tag = response.headers["ETag"]
        assert await response.read()
    async with client.session.get(client.url + path, headers={"If-None-Match": tag}) as response:
        assert (response.status, await response.read()) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/page/",
        "/page/none.js",
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page/vendor/README.md",
        "/page//etc/passwd",
    ],
)
async def test_nothing_else_is_served(client: Client, path: str) -> None:
    status, answer = await client.ask("GET", path)
    assert (status, answer["error"]["code"] in ("not_found", "http")) == (404, True)


@pytest.mark.parametrize("rule", ["unsafe", "*", "http:", "https:", "blob:"])
def test_the_policy_has_no_hole(rule: str) -> None:
    assert rule not in CONTENT_SECURITY_POLICY


def test_the_policy_begins_with_nothing() -> None:
    assert CONTENT_SECURITY_POLICY.startswith("default-src 'none';")


async def test_below_a_prefix_the_page_is_found_where_its_relative_files_are() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime:
        outer = web.Application()
        outer.add_subapp("/chat", chat_app(runtime, [AGENT], auth=None, page=True))
        async with serving(runtime, app=outer) as client:
            async with client.session.get(client.url + "/chat", allow_redirects=False) as response:
                assert (response.status, response.headers["Location"]) == (301, "chat/")
            async with client.session.get(client.url + "/chat") as response:
                assert (response.status, str(response.url)) == (200, client.url + "/chat/")
            async with client.session.get(client.url + "/chat/page/main.js") as response:
                assert response.status == 200


async def test_without_the_page_there_is_none() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT) as client:
        assert (await client.ask("GET", "/"))[0] == 404
        assert (await client.ask("GET", "/page/main.js"))[0] == 404
