"""Counters for Prometheus, read as its server reads them."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

import agentloop as al
from agentloop.errors import InputError
from agentloop.integrations.metrics import PrometheusMetrics
from agentloop.testing import ScriptedProvider, broken, call, reply
from tests.integrations.web.backend import Client, by_header, serving


@al.tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


AGENT = al.Agent(name="a", tools=[add])


async def scraped(client: Client) -> dict[tuple[str, ...], float]:
    """Each sample by its name and the values of its labels, in the order of their names."""
    async with client.session.get(client.url + "/metrics") as response:
        assert response.content_type == "text/plain"
        text = await response.text()
    families = text_string_to_metric_families(text)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith(("_bucket", "_created"))
    }


async def test_runs_calls_tools_and_answers_are_counted() -> None:
    script = [
        reply("Let me.", calls=[call("add", a=1, b=2), call("made_up_by_a_model")], usage=(3, 4)),
        reply("3", usage=(5, 6)),
        broken(reply("half"), al.StreamRefused("truncated", 1, 1, "a finish", "the end")),
    ]
    metrics = PrometheusMetrics()
    async with (
        al.Runtime(ScriptedProvider(script), observers=[metrics]) as runtime,
        serving(runtime, AGENT, metrics=metrics) as client,
    ):
        await client.begin("t")
        await client.events("t")
        await client.begin("u")
        await client.events("u")
        await client.ask("GET", "/api/conversations/nope")
        await client.ask("GET", "/any/path")
        await client.ask("PROPFIND", "/api/session")
        found = await scraped(client)
    assert found["agentloop_runs_total", "completed"] == 1
    assert found["agentloop_runs_total", "failed"] == 1
    assert found["agentloop_model_calls_total", "", "success"] == 2
    assert found["agentloop_model_calls_total", "truncated", "error"] == 1
    assert found["agentloop_withdrawn_previews_total",] == 1
    assert found["agentloop_first_preview_seconds_count",] == 3
    assert (found["agentloop_tokens_total", "input"], found["agentloop_tokens_total", "output"]) == (8, 10)
    assert found["agentloop_tool_calls_total", "done", "add"] == 1
    assert found["agentloop_tool_calls_total", "failed", ""] == 1
    assert found["agentloop_http_requests_total", "POST", "/api/conversations/{conversation}/turns", "201"] == 2
    assert found["agentloop_http_requests_total", "GET", "/api/conversations/{conversation}", "404"] == 1
    assert found["agentloop_http_requests_total", "GET", "", "404"] == 1
    assert found["agentloop_http_requests_total", "other", "", "405"] == 1
    assert (found["agentloop_http_streams",], found["agentloop_turns",]) == (0, 0)
    assert "made_up" not in str(found)


async def test_no_user_and_no_id_becomes_a_label() -> None:
    metrics = PrometheusMetrics(CollectorRegistry())
    async with (
        al.Runtime(ScriptedProvider([reply("x")]), observers=[metrics]) as runtime,
        serving(runtime, AGENT, metrics=metrics, auth=by_header, user="Ann") as client,
    ):
        await client.begin("turn-4711", conversation="talk-4711")
        await client.events("turn-4711", "talk-4711")
        text = metrics.text().decode()
    assert "Ann" not in text
    assert "4711" not in text


async def test_there_is_no_route_for_what_was_not_asked_for() -> None:
    async with al.Runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT) as client:
        assert (await client.ask("GET", "/metrics"))[0] == 404


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "prometheus_client":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InputError, match="extra 'metrics'"):
        PrometheusMetrics()
