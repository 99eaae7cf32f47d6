"""The endpoint on a loopback socket: answers, streams, errors, runs that are joined, clients that go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from aiohttp import ClientResponse

import agentloop as al
from agentloop.admission import digest_bytes
from agentloop.integrations.web import SERVICE, Service, User, WebLimits, chat_app
from agentloop.messages import ModelExchange, SystemMessage, UserMessage
from agentloop.testing import ScriptedProvider, broken, call, reply
from agentloop.wire.check import check_stream
from agentloop.wire.deltas import Delta, TextDelta
from agentloop.wire.presets import dialect
from tests.integrations.web.backend import Client, Gate, by_header, serving
from tests.mortal import Ground
from tests.runs import facts_of

RAN: list[str] = []


@al.tool
async def note(text: str) -> str:
    """Note something down."""
    RAN.append(text)
    return f"noted {text}"


@al.tool(approval="required")
async def pay(amount: int) -> str:
    """Pay."""
    RAN.append(f"paid {amount}")
    return "paid"


CLERK = al.Agent(name="clerk", instructions="Be brief.", tools=[note, pay])
ASKED = reply("Noting.", calls=[call("note", text="x")], usage=(3, 1))
DONE = reply("Done.", usage=(5, 2))
BROKEN = broken(reply("It is"), al.ConnectionLost("the line"))
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    RAN.clear()


class Ended(asyncio.Event):
    """Set when a run has ended."""

    async def observe(self, event: al.Event) -> None:
        if isinstance(event, al.RunEnded):
            self.set()


class Endpoint:
    """What a client does, and the service that answers it."""

    def __init__(self, client: Client, service: Service) -> None:
        self.client, self.service = client, service

    @asynccontextmanager
    async def post(self, messages: Any = None, **more: Any) -> AsyncIterator[ClientResponse]:
        headers = {**self.client.headers, **more.pop("headers", {})}
        body = {"model": "clerk", "messages": HI if messages is None else messages, **more}
        url = f"{self.client.url}/v1/chat/completions"
        async with self.client.session.post(url, json=body, headers=headers) as response:
            yield response

    async def ask(self, messages: Any = None, **more: Any) -> tuple[int, Any, Any]:
        """Status, JSON and headers of an answer."""
        async with self.post(messages, **more) as response:
            assert response.content_type == "application/json"
            return response.status, json.loads(await response.read()), response.headers

    async def stream(self, messages: Any = None, **more: Any) -> bytes:
        """All bytes of a stream."""
        async with self.post(messages, stream=True, **more) as response:
            assert (response.status, response.content_type) == (200, "text/event-stream")
            return await response.read()

    async def refused(self, status: int, messages: Any = None, **more: Any) -> tuple[Any, Any]:
        """The error object and the headers of an answer of that status."""
        got, body, headers = await self.ask(messages, **more)
        assert got == status, body
        assert body["error"].keys() == {"message", "type", "param", "code"}
        return body["error"], headers


@asynccontextmanager
async def endpoint(runtime: al.Runtime, *agents: al.Agent[Any], **options: Any) -> AsyncIterator[Endpoint]:
    user = options.pop("user", None)
    app = chat_app(runtime, agents or (CLERK,), **{"auth": None, **options})
    async with serving(runtime, app=app, user=user) as client:
        yield Endpoint(client, app[SERVICE])


@asynccontextmanager
async def scripted(
    *script: Any, store: Any = None, observers: Any = (), **options: Any
) -> AsyncIterator[tuple[Endpoint, al.Runtime]]:
    async with (
        al.Runtime(ScriptedProvider(script), store=store, observers=observers) as runtime,
        endpoint(runtime, **options) as served,
    ):
        yield served, runtime


async def outcomes(runtime: al.Runtime) -> list[str]:
    """How the runs ended whose end is stored."""
    return [fact.outcome for fact in await facts_of(runtime) if type(fact).__name__ == "RunClosed"]


def last_error(stream: bytes) -> Any:
    """The error that a stream ends with, which must not look whole."""
    assert b"[DONE]" not in stream
    assert b'"finish_reason":"' not in stream
    return json.loads(stream.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]


class Shown(ScriptedProvider):
    """Shows previews of its own making, whatever its replies are."""

    def __init__(self, script: list[Any], *shown: str) -> None:
        super().__init__(script)
        self._shown = shown

    @asynccontextmanager
    async def stream(
        self, request: al.ModelRequest, *, attempt_id: str, max_reply_bytes: int | None = None
    ) -> AsyncIterator[al.ModelStream]:
        async with super().stream(request, attempt_id=attempt_id, max_reply_bytes=max_reply_bytes) as stream:
            yield _ShownStream(stream, self._shown)


class _ShownStream:
    def __init__(self, stream: al.ModelStream, shown: tuple[str, ...]) -> None:
        self._stream, self._left, self._chars = stream, iter(shown), 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        for text in self._left:
            self._chars += len(text)
            return TextDelta(text=text, offset=self._chars - len(text))
        raise StopAsyncIteration

    async def reply(self) -> al.ModelReply:
        async for _ in self._stream:
            pass
        return await self._stream.reply()


# -- answers


async def test_a_turn_with_a_tool_is_one_completion() -> None:
    async with scripted(ASKED, DONE) as (served, _):
        status, body, headers = await served.ask()
    assert status == 200
    assert body.pop("created") > 1_600_000_000
    identity = body.pop("id")
    assert identity.startswith("chatcmpl-")
    assert headers["x-request-id"] == identity
    assert body == {
        "object": "chat.completion",
        "model": "clerk",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Noting.\n\nDone.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11},
    }
    assert RAN == ["x"]


async def test_a_stream_is_admitted_by_the_strict_rules_and_says_the_same() -> None:
    async with scripted(ASKED, DONE) as (served, _):
        stream = await served.stream(stream_options={"include_usage": True})
    verdict = check_stream([stream])
    assert verdict.reply is not None, verdict.refusal
    assert (verdict.reply.text, verdict.reply.usage) == (
        "Noting.\n\nDone.",
        al.Usage(input_tokens=8, output_tokens=3, total_tokens=11),
    )


async def test_a_model_behind_the_endpoint_serves_a_runtime_in_front_of_it() -> None:
    async with scripted(ASKED, DONE) as (served, _):
        provider = al.ChatCompletions(f"{served.client.url}/v1", model="clerk")
        async with al.Runtime(provider) as front:
            result = await front.run(al.Agent(name="front"), "hi")
    assert result.require_text() == "Noting.\n\nDone."


async def test_the_clients_conversation_is_the_runs_history() -> None:
    provider = ScriptedProvider([DONE])
    async with al.Runtime(provider) as runtime, endpoint(runtime) as served:
        tool_call = {"id": "c1", "type": "function", "function": {"name": "note", "arguments": "{}"}}
        status, _, _ = await served.ask(
            [
                {"role": "developer", "content": "Rhyme."},
                {"role": "user", "content": "first"},
                {"role": "assistant", "content": None, "tool_calls": [tool_call]},
                {"role": "tool", "tool_call_id": "c1", "content": "noted"},
                {"role": "assistant", "content": "one"},
                {"role": "user", "content": "second"},
            ]
        )
    assert status == 200
    brief, rhyme, first, noting, one, second = provider.requests[0].messages
    assert (brief, rhyme) == (SystemMessage(content="Be brief."), SystemMessage(content="Rhyme."))
    assert (first, second) == (UserMessage(content="first"), UserMessage(content="second"))
    assert isinstance(noting, ModelExchange)
    assert isinstance(one, ModelExchange)
    assert (noting.feedback[0].text, one.reply.text) == ("noted", "one")


async def test_tools_are_given_what_belongs_to_the_user() -> None:
    @al.tool
    async def whose(ctx: al.ToolContext[Any]) -> str:
        """Say whose turn it is."""
        RAN.append(ctx.deps)
        return "told"

    agent = al.Agent(name="clerk", tools=[whose])
    options = {"auth": by_header, "user": "Ann", "deps": lambda name: f"of {name}"}
    script = [reply(calls=[call("whose")]), DONE]
    async with al.Runtime(ScriptedProvider(script)) as runtime, endpoint(runtime, agent, **options) as served:
        assert (await served.ask())[0] == 200
    assert RAN == ["of Ann"]


async def test_a_limit_ends_an_answer_with_length() -> None:
    agent = al.Agent(name="clerk", tools=[note], limits=al.LoopLimits(max_model_calls=1))
    async with al.Runtime(ScriptedProvider([ASKED, ASKED])) as runtime, endpoint(runtime, agent) as served:
        _, body, _ = await served.ask()
        stream = await served.stream()
    choice = body["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "Noting.")
    assert b'"finish_reason":"length"' in stream
    assert stream.endswith(b"data: [DONE]\n\n")


class Ticket(msgspec.Struct):
    title: str


@pytest.mark.parametrize(("server", "said"), [("groq", None), ("openai", '{"title": "so"}')])
async def test_an_output_is_the_text_however_the_model_says_it(server: str, said: str | None) -> None:
    agent = al.Agent(name="clerk", output=Ticket)
    answer = reply(calls=[call("Ticket", title="so")]) if said is None else reply(said)
    provider = ScriptedProvider([answer, answer], dialect=server)
    async with al.Runtime(provider) as runtime, endpoint(runtime, agent) as served:
        _, body, _ = await served.ask()
        stream = await served.stream()
    verdict = check_stream([stream], msgspec.structs.replace(dialect("openai"), usage_absent=True))
    assert verdict.reply is not None, verdict.refusal
    assert verdict.reply.text == body["choices"][0]["message"]["content"] == (said or '{"title":"so"}')


@pytest.mark.parametrize("shown", [(), ("No",), ("Noting.",), ("Something", " else")])
async def test_an_answer_is_what_is_stored_whatever_was_previewed_of_it(shown: tuple[str, ...]) -> None:
    async with (
        al.Runtime(Shown([ASKED, DONE, ASKED, DONE], *shown)) as runtime,
        endpoint(runtime) as served,
    ):
        _, whole, _ = await served.ask()
        assert whole["choices"][0]["message"]["content"] == "Noting.\n\nDone."
        stream = await served.stream(stream_options={"include_usage": True})
        if shown:  # what was sent of it is not its beginning
            assert last_error(stream)["code"] == "retracted"
        else:
            verdict = check_stream([stream])
            assert verdict.reply is not None
            assert verdict.reply.text == "Noting.\n\nDone."


async def test_agents_are_listed_as_models() -> None:
    async with scripted() as (served, _):
        model = {"id": "clerk", "object": "model", "created": 0, "owned_by": "agentloop"}
        assert await served.client.ask("GET", "/v1/models") == (200, {"object": "list", "data": [model]})
        assert await served.client.ask("GET", "/v1/models/clerk") == (200, model)
        status, body = await served.client.ask("GET", "/v1/models/other")
        assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


# -- errors before a run


async def test_who_is_not_known_gets_nothing() -> None:
    async with scripted(auth=by_header) as (served, runtime):
        error, headers = await served.refused(401)
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")
        assert headers["WWW-Authenticate"] == "Bearer"
        for path in ("/v1/models", "/v1/models/clerk"):
            assert (await served.client.ask("GET", path))[0] == 401
        assert await facts_of(runtime) == []


async def test_a_request_that_cannot_be_served_begins_no_run() -> None:
    async with scripted(limits=WebLimits(body_bytes=1_000)) as (served, runtime):
        error, headers = await served.refused(404, model="other")
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "x-should-retry" not in headers
        error, _ = await served.refused(400, tools=[{"type": "function", "function": {"name": "f"}}])
        assert (error["type"], error["param"]) == ("invalid_request_error", "tools")
        assert (await served.refused(413, [{"role": "user", "content": "x" * 1_000}]))[0]["code"] == "body_too_large"
        url = f"{served.client.url}/v1/chat/completions"
        async with served.client.session.post(url, data=b"{}") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (415, "content_type")
        for key in ("", "x" * 65, "a\tb"):
            error, _ = await served.refused(400, headers={"Idempotency-Key": key})
            assert error["code"] == "bad_idempotency_key"
        assert await facts_of(runtime) == []


async def test_one_run_too_many_is_refused_until_a_place_is_free() -> None:
    gate = Gate()
    async with scripted(gate(DONE), DONE, limits=WebLimits(runs_a_user=1)) as (served, _):
        first = asyncio.create_task(served.ask())
        await gate.asked.wait()
        error, headers = await served.refused(429)
        assert (error["type"], headers["Retry-After"]) == ("rate_limit_error", "1")
        assert "x-should-retry" not in headers
        gate.open.set()
        assert (await first)[0] == 200
        assert (await served.ask())[0] == 200


async def test_a_server_that_is_about_to_stop_begins_no_run() -> None:
    async with scripted() as (served, runtime):
        await served.service.drain()
        error, headers = await served.refused(503)
        assert (error["code"], headers["Retry-After"]) == ("draining", "5")
        assert await facts_of(runtime) == []


async def test_a_history_that_the_store_cannot_take_is_the_clients_fault() -> None:
    limits = al.BookLimits(item_bytes=2_000)
    async with al.Runtime(ScriptedProvider([]), limits=limits) as runtime, endpoint(runtime) as served:
        error, _ = await served.refused(413, [{"role": "user", "content": "x" * 2_000}])
    assert (error["param"], error["type"]) == ("messages", "invalid_request_error")


# -- errors of a run


async def test_a_provider_that_fails_is_told_without_its_words() -> None:
    failure = al.HTTPStatusError("secret", status=429, retry_after=7)
    async with scripted(failure, failure) as (served, runtime):
        error, headers = await served.refused(502)
        assert (error["type"], error["code"], headers["x-should-retry"]) == ("server_error", "http_status", "false")
        stream = await served.stream()
        assert last_error(stream)["code"] == "http_status"
        assert b"secret" not in stream
        assert await outcomes(runtime) == ["failed", "failed"]


async def test_text_that_breaks_off_after_a_tool_ran_ends_the_stream_with_an_error() -> None:
    async with scripted(ASKED, BROKEN, ASKED, BROKEN) as (served, runtime):
        stream = await served.stream(stream_options={"include_usage": True})
        assert b"It is" in stream
        assert last_error(stream)["code"] == "retracted"
        assert check_stream([stream]).reply is None
        _, headers = await served.refused(502)
        assert headers["x-should-retry"] == "false"
        assert await outcomes(runtime) == ["failed", "failed"]
    assert RAN == ["x", "x"]


async def test_a_tool_that_crashes_is_told_by_its_code(caplog: pytest.LogCaptureFixture) -> None:
    @al.tool
    async def crash() -> str:
        """Crash."""
        raise ZeroDivisionError("secret")

    asks = reply(calls=[call("crash")])
    agent = al.Agent(name="clerk", tools=[crash])
    async with al.Runtime(ScriptedProvider([asks, asks])) as runtime, endpoint(runtime, agent) as served:
        error, headers = await served.refused(500)
        assert (error["code"], headers["x-should-retry"]) == ("tool_crashed", "false")
        assert "secret" not in error["message"]
        assert last_error(await served.stream())["code"] == "tool_crashed"


async def test_a_tool_that_raises_what_is_no_exception_breaks_no_connection() -> None:
    """A client takes a connection that broke for one that may be repeated, and so would run the tool again."""

    class Panic(BaseException):
        """As extension modules raise it."""

    @al.tool
    async def panics() -> str:
        """Panic."""
        raise Panic("secret")

    asks = reply(calls=[call("panics")])
    agent = al.Agent(name="clerk", tools=[panics])
    async with al.Runtime(ScriptedProvider([asks, asks])) as runtime, endpoint(runtime, agent) as served:
        error, headers = await served.refused(500)
        assert (error["code"], headers["x-should-retry"]) == ("internal_error", "false")
        assert "secret" not in error["message"]
        assert last_error(await served.stream())["code"] == "internal_error"


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_run_that_waits_for_a_person_is_cancelled_and_said_so(key: str | None, tmp_path: Path) -> None:
    headers = {} if key is None else {"Idempotency-Key": key}
    store = None if key is None else tmp_path / "store.db"
    asks = reply("Paying.", calls=[call("pay", amount=5)])
    async with scripted(asks, asks, store=store) as (served, runtime):
        error, told = await served.refused(422, headers=headers)
        assert (error["code"], told["x-should-retry"]) == ("approval_required", "false")
        assert await outcomes(runtime) == ["cancelled"]
        if key is None:
            assert last_error(await served.stream())["code"] == "approval_required"
            assert await outcomes(runtime) == ["cancelled", "cancelled"]
    assert RAN == []


async def test_an_answer_leaves_nothing_behind_that_watches_for_its_client() -> None:
    async with scripted(ASKED, DONE) as (served, _):
        await served.ask()
        await asyncio.sleep(0)
        assert [task for task in asyncio.all_tasks() if task.get_name() == "agentloop presence"] == []


# -- clients that go


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_goes_takes_its_run_with_it(stream: bool) -> None:
    gate, ended = Gate(), Ended()
    async with scripted(gate(DONE), observers=[ended]) as (served, runtime):
        request = asyncio.create_task(served.stream() if stream else served.ask())
        await gate.asked.wait()
        request.cancel()
        await asyncio.wait({request})
        await ended.wait()
        assert await outcomes(runtime) == ["cancelled"]


@pytest.mark.parametrize("stream", [True, False])
async def test_with_a_key_on_a_durable_store_a_run_goes_on_without_its_client(stream: bool, tmp_path: Path) -> None:
    gate, key = Gate(), {"Idempotency-Key": "k"}
    async with scripted(ASKED, gate(DONE), store=tmp_path / "store.db") as (served, runtime):
        request = asyncio.create_task(served.stream(headers=key) if stream else served.ask(headers=key))
        await gate.asked.wait()
        request.cancel()
        await asyncio.wait({request})
        gate.open.set()
        _, body, _ = await served.ask(headers=key)
        assert body["choices"][0]["message"]["content"] == "Noting.\n\nDone."
        assert await outcomes(runtime) == ["completed"]
    assert RAN == ["x"]


# -- keys


@pytest.mark.parametrize("durable", [True, False])
async def test_the_same_key_is_the_same_run(durable: bool, tmp_path: Path) -> None:
    key = {"Idempotency-Key": "my key"}
    async with scripted(ASKED, DONE, DONE, store=tmp_path / "store.db" if durable else None) as (served, _):
        _, first, _ = await served.ask(headers=key)
        _, again, _ = await served.ask(headers=key)
        stream = await served.stream(headers=key, stream_options={"include_usage": True})
        assert first == again
        verdict = check_stream([stream])
        assert verdict.reply is not None
        assert (verdict.reply.text, verdict.reply.id) == ("Noting.\n\nDone.", first["id"])
        error, headers = await served.refused(409, [{"role": "user", "content": "other"}], headers=key)
        assert (error["code"], headers["x-should-retry"]) == ("idempotency_conflict", "false")
        _, other, _ = await served.ask(headers={"Idempotency-Key": "another key"})
        assert other["id"] != first["id"]
    assert RAN == ["x"]


async def test_two_requests_with_one_key_at_once_are_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, key = Gate(), {"Idempotency-Key": "k"}
    async with scripted(ASKED, gate(DONE)) as (served, _):
        first = asyncio.create_task(served.stream(headers=key))
        await gate.asked.wait()
        joined, take = asyncio.Event(), served.service.runs.take
        monkeypatch.setattr(served.service.runs, "take", lambda user: (take(user), joined.set()))
        second = asyncio.create_task(served.ask(headers=key))
        await joined.wait()
        gate.open.set()
        assert b"Done." in await first
        assert (await second)[1]["choices"][0]["message"]["content"] == "Noting.\n\nDone."
    assert RAN == ["x"]


async def test_who_reads_nothing_holds_up_nobody_who_waits_for_the_same_run() -> None:
    gate, key, text = Gate(), {"Idempotency-Key": "k"}, "x" * 60_000  # as chunks more than sockets take
    provider = ScriptedProvider([gate(reply(text))], deltas=1)
    async with al.Runtime(provider) as runtime, endpoint(runtime) as served:
        waiting = asyncio.create_task(served.ask(headers=key))
        await gate.asked.wait()
        async with served.post(headers=key, stream=True) as unread:
            gate.open.set()
            async with asyncio.timeout(15):  # and not the 30 seconds after which it is cut off
                assert (await waiting)[1]["choices"][0]["message"]["content"] == text
            unread.close()


async def test_the_same_key_of_another_user_is_another_run() -> None:
    key = {"Idempotency-Key": "k"}
    async with scripted(DONE, reply("Other."), auth=by_header, user="Ann") as (served, _):
        _, first, _ = await served.ask(headers=key)
        served.client.headers["X-User"] = "Ben"
        _, other, _ = await served.ask(headers=key)
    assert first["choices"][0]["message"]["content"] == "Done."
    assert other["choices"][0]["message"]["content"] == "Other."


async def test_those_who_wait_for_one_run_take_places_for_streams(tmp_path: Path) -> None:
    gate, key, limits = Gate(), {"Idempotency-Key": "k"}, WebLimits(streams_a_user=1)
    async with scripted(gate(DONE), store=tmp_path / "store.db", limits=limits) as (served, _):
        first = asyncio.create_task(served.ask(headers=key))
        await gate.asked.wait()
        for stream in (True, False):
            error, headers = await served.refused(429, headers=key, stream=stream)
            assert (error["code"], headers["Retry-After"]) == ("too_many", "1")
        gate.open.set()
        assert (await first)[0] == 200
        assert (await served.ask(headers=key))[1] == (await first)[1]
        assert served.service.streams.taken == 0


async def test_a_key_is_answered_the_same_after_a_restart(tmp_path: Path) -> None:
    key, store = {"Idempotency-Key": "k"}, tmp_path / "store.db"
    async with scripted(ASKED, DONE, store=store) as (served, _):
        _, first, _ = await served.ask(headers=key)
    async with scripted(store=store) as (served, _):
        _, again, _ = await served.ask(headers=key)
        stream = await served.stream(headers=key, stream_options={"include_usage": True})
    assert again == first
    verdict = check_stream([stream])
    assert verdict.reply is not None
    assert (verdict.reply.text, verdict.reply.id) == ("Noting.\n\nDone.", first["id"])


async def test_a_run_that_another_process_has_may_be_asked_for_again(tmp_path: Path) -> None:
    gate, key, store = Gate(), {"Idempotency-Key": "k"}, tmp_path / "store.db"
    async with scripted(gate(DONE), store=store) as (here, _), scripted(store=store) as (there, _):
        first = asyncio.create_task(here.ask(headers=key))
        await gate.asked.wait()
        error, headers = await there.refused(409, headers=key)
        assert (error["code"], headers["x-should-retry"]) == ("not_owner", "true")
        assert 1 <= int(headers["Retry-After"]) <= 30
        gate.open.set()
        assert (await first)[0] == 200
        assert (await there.ask(headers=key))[1] == (await first)[1]


# -- the server stops


async def test_a_server_that_stops_tells_who_still_waits_and_invites_nobody_to_repeat() -> None:
    gate = Gate()
    limits = WebLimits(drain_seconds=0.01)
    async with scripted(reply("Noting.", calls=[call("note", text="x")]), gate(DONE), gate(DONE), limits=limits) as (
        served,
        runtime,
    ):
        stream = asyncio.create_task(served.stream())
        await gate.asked.wait()
        gate.asked.clear()
        whole = asyncio.create_task(served.refused(503))
        await gate.asked.wait()
        await served.service.drain()
        assert last_error(await stream)["code"] == "draining"
        error, headers = await whole
        assert (error["code"], headers["x-should-retry"]) == ("draining", "false")
        assert await outcomes(runtime) == ["cancelled", "cancelled"]


async def test_a_server_that_stops_waits_for_runs_that_end_in_time() -> None:
    gate = Gate()
    async with scripted(gate(DONE)) as (served, _):
        answer = asyncio.create_task(served.ask())
        await gate.asked.wait()
        drain = asyncio.create_task(served.service.drain())
        await asyncio.sleep(0)
        assert not drain.done()
        gate.open.set()
        await drain
        assert (await answer)[0] == 200


# -- the server died


async def died(ground: Ground, *, at: int) -> None:
    """Leave the run of the key ``k`` behind, at that write."""
    ref = User.of("anyone").run("oai", digest_bytes("agentloop/idempotency-key/v1", b"k")[:32])
    async with ground.mortal(ScriptedProvider([ASKED, DONE]), at=at) as (dying, medium):
        await dying.submit(CLERK, UserMessage(content="hi"), run_id=ref)
        await medium.dead.wait()
    ground.clock.advance(31)


async def test_a_key_goes_on_with_a_run_whose_process_died_between_two_model_calls(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "store.db")
    await died(ground, at=5)
    async with ground.runtime(ScriptedProvider([DONE])) as runtime, endpoint(runtime) as served:
        stream = await served.stream(headers={"Idempotency-Key": "k"}, stream_options={"include_usage": True})
    verdict = check_stream([stream])
    assert verdict.reply is not None, verdict.refusal
    assert verdict.reply.text == "Noting.\n\nDone."
    assert RAN == ["x"]


@pytest.mark.parametrize("at", [4, 6], ids=["a tool", "a model call"])
async def test_of_what_nobody_knows_nothing_is_repeated(at: int, tmp_path: Path) -> None:
    ground, key = Ground(tmp_path / "store.db"), {"Idempotency-Key": "k"}
    await died(ground, at=at)
    async with ground.runtime(ScriptedProvider([])) as runtime, endpoint(runtime) as served:
        error, headers = await served.refused(500, headers=key)
        assert (error["code"], headers["x-should-retry"]) == ("unsettled", "false")
        assert last_error(await served.stream(headers=key))["code"] == "unsettled"
    assert RAN == ["x"]
