"""The `openai` package, as it comes and with its own retries, against agents that are served to it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import agentloop as al
from agentloop.integrations.web import WebLimits, chat_app
from agentloop.testing import ScriptedProvider, broken, call, reply
from tests.integrations.web.backend import Gate, serving

pytestmark = pytest.mark.system

KEY = "sk-test"
HI: list[Any] = [{"role": "user", "content": "hi"}]
RAN: list[str] = []


@al.tool
async def pay(amount: int) -> str:
    """Pay, which cannot be undone."""
    RAN.append(f"paid {amount}")
    return "paid"


CLERK = al.Agent(name="clerk", instructions="Be brief.", tools=[pay])
PAYS = reply("Paying.", calls=[call("pay", amount=5)], usage=(3, 1))
DONE = reply("Done.", usage=(5, 2))
BROKEN = broken(reply("It is"), al.ConnectionLost("the line"))


@pytest.fixture
def openai() -> Any:
    RAN.clear()
    return importlib.import_module("openai")


class Served:
    """What clients ask, in order, and where."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []
        self.again = asyncio.Event()

    async def auth(self, request: web.Request) -> str | None:
        if self.paths:
            self.again.set()
        self.paths.append(request.path)
        return "Ann" if request.headers.get("Authorization") == f"Bearer {KEY}" else None


@asynccontextmanager
async def served(*script: Any, store: Any = None, **options: Any) -> AsyncIterator[Served]:
    log = Served()
    async with al.Runtime(ScriptedProvider(script, deltas=3), store=store) as runtime:
        app = chat_app(runtime, [CLERK], auth=log.auth, **options)
        async with serving(runtime, app=app) as client:
            log.url = f"{client.url}/v1"
            yield log


@asynccontextmanager
async def asking(openai: Any, place: Served, key: str = KEY) -> AsyncIterator[Any]:
    async with openai.AsyncOpenAI(base_url=place.url, api_key=key) as client:
        yield client


async def test_a_turn_with_a_tool_is_completed(openai: Any) -> None:
    async with served(PAYS, DONE) as place, asking(openai, place) as client:
        completion = await client.chat.completions.create(model="clerk", messages=HI)
    choice = completion.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == (
        "assistant",
        "Paying.\n\nDone.",
        "stop",
    )
    assert choice.message.tool_calls is None
    assert (completion.object, completion.model, completion._request_id) == ("chat.completion", "clerk", completion.id)
    assert (completion.usage.prompt_tokens, completion.usage.total_tokens) == (8, 11)
    assert RAN == ["paid 5"]


async def test_a_turn_with_a_tool_is_streamed(openai: Any) -> None:
    async with served(PAYS, DONE) as place, asking(openai, place) as client:
        stream = await client.chat.completions.create(
            model="clerk", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    *told, usage = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == "Paying.\n\nDone."
    assert [chunk.choices[0].finish_reason for chunk in told if chunk.choices[0].finish_reason] == ["stop"]
    assert (usage.choices, usage.usage.total_tokens) == ([], 11)
    assert len({chunk.id for chunk in chunks}) == 1
    assert RAN == ["paid 5"]


async def test_the_helper_that_gathers_a_stream_gathers_the_same(openai: Any) -> None:
    async with (
        served(PAYS, DONE) as place,
        asking(openai, place) as client,
        client.chat.completions.stream(model="clerk", messages=HI) as stream,
    ):
        completion = await stream.get_final_completion()
    assert completion.choices[0].message.content == "Paying.\n\nDone."


async def test_agents_are_models(openai: Any) -> None:
    async with served() as place, asking(openai, place) as client:
        assert [model.id async for model in client.models.list()] == ["clerk"]
        assert (await client.models.retrieve("clerk")).owned_by == "agentloop"
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("other")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_errors_before_a_run_have_their_types(openai: Any) -> None:
    async with served() as place, asking(openai, place) as client:
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=HI)
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="clerk", messages=HI, n=2)
        assert (caught.value.param, caught.value.code) == ("n", "unsupported_parameter")
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(model="clerk", messages=[{"role": "assistant", "content": "x"}])
        async with asking(openai, place, key="sk-other") as other:
            with pytest.raises(openai.AuthenticationError) as unknown:
                await other.chat.completions.create(model="clerk", messages=HI)
        assert unknown.value.code == "invalid_api_key"
        assert len(place.paths) == 4


async def test_a_user_with_too_many_runs_is_limited_and_retried_as_the_server_says(openai: Any) -> None:
    gate = Gate()
    async with served(gate(DONE), limits=WebLimits(runs_a_user=1)) as place, asking(openai, place) as client:
        first = asyncio.create_task(client.chat.completions.create(model="clerk", messages=HI))
        await gate.asked.wait()
        with pytest.raises(openai.RateLimitError) as caught:
            await client.with_options(max_retries=1).chat.completions.create(model="clerk", messages=HI)
        assert caught.value.response.headers["retry-after"] == "1"
        assert len(place.paths) == 3
        gate.open.set()
        assert (await first).choices[0].message.content == "Done."


@pytest.mark.parametrize("stream", [True, False])
async def test_a_model_that_breaks_off_after_a_payment_does_not_make_the_client_pay_again(
    openai: Any, stream: bool
) -> None:
    kind = openai.APIError if stream else openai.InternalServerError
    shown: list[Any] = []

    async def read(answer: Any) -> None:
        async for chunk in answer:
            shown.append(chunk.choices[0])  # noqa: PERF401  # what came before an error is kept

    async with served(PAYS, BROKEN, PAYS, DONE) as place, asking(openai, place) as client:
        assert client.max_retries > 0
        with pytest.raises(kind) as caught:
            await read(await client.chat.completions.create(model="clerk", messages=HI, stream=stream))
        assert place.paths == ["/v1/chat/completions"]
    assert caught.value.code == ("retracted" if stream else "connection_lost")
    assert all(choice.finish_reason is None for choice in shown)
    assert "".join(choice.delta.content or "" for choice in shown) == ("Paying.\n\nIt is" if stream else "")
    assert RAN == ["paid 5"]


async def test_the_same_request_with_a_key_pays_once(openai: Any, tmp_path: Path) -> None:
    headers = {"Idempotency-Key": "order 7"}
    async with served(PAYS, DONE, store=tmp_path / "store.db") as place, asking(openai, place) as client:
        answers = [
            await client.chat.completions.create(model="clerk", messages=HI, extra_headers=headers) for _ in range(2)
        ]
        with pytest.raises(openai.ConflictError) as caught:
            await client.chat.completions.create(
                model="clerk", messages=[{"role": "user", "content": "other"}], extra_headers=headers
            )
        assert caught.value.code == "idempotency_conflict"
        assert len(place.paths) == 3
    assert answers[0].to_dict() == answers[1].to_dict()
    assert RAN == ["paid 5"]


async def test_a_client_that_ran_out_of_time_and_asks_again_with_a_key_pays_once(openai: Any, tmp_path: Path) -> None:
    gate, headers = Gate(), {"Idempotency-Key": "order 7"}
    async with served(PAYS, gate(DONE), store=tmp_path / "store.db") as place, asking(openai, place) as client:
        patient = client.with_options(timeout=0.5, max_retries=5)
        asked = asyncio.create_task(patient.chat.completions.create(model="clerk", messages=HI, extra_headers=headers))
        await gate.asked.wait()
        await place.again.wait()
        gate.open.set()
        completion = await asked
    assert completion.choices[0].message.content == "Paying.\n\nDone."
    assert RAN == ["paid 5"]
