"""A chat transport's two routes on a loopback socket: what it sends, what it gets, where it comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import ClientResponse

import agentloop as al
from agentloop.integrations.web import SERVICE, User, WebLimits, chat_app
from agentloop.messages import ImagePart, UserMessage
from agentloop.testing import ScriptedProvider, broken, call, reply
from tests.integrations.held import HeldProvider
from tests.integrations.ui_messages import fold, kinds, text_of
from tests.integrations.web.backend import Client, Gate, by_header, serving

DONE = {"type": "tool-x", "state": "output-available", "output": 1, "toolCallId": "t.0.0"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


@al.tool(idempotent=True)
async def look(what: str) -> str:
    """Look."""
    return f"saw {what}"


@al.tool(approval="required", recovery="settle")
async def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"


@al.external
def ask(question: str) -> str:
    """Ask a person."""


CLERK = al.Agent(name="clerk", instructions="Be brief.", tools=[look, pay, ask])
PAYS = reply("I shall pay.", calls=[call("pay", to="Ann")])


@asynccontextmanager
async def chat(
    script: Sequence[Any] | ScriptedProvider, *agents: al.Agent[Any], store: Path | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A backend with the transport's routes, on a runtime of its own."""
    provider = script if isinstance(script, ScriptedProvider) else ScriptedProvider(script)
    options.setdefault("auth", None)
    options.setdefault("limits", WebLimits(drain_seconds=0.01))
    user = options.pop("user", None)
    async with al.Runtime(provider, store=store, settle_seconds=0.01) as runtime:
        app = chat_app(runtime, agents or [CLERK], **options)
        async with serving(runtime, app=app, user=user) as client:
            yield client


def user_message(text: str = "Hello", *, id: str = "t", parts: Sequence[Any] = ()) -> dict[str, Any]:
    return {"id": id, "role": "user", "parts": [*parts, {"type": "text", "text": text}]}


def answer_message(*parts: dict[str, Any]) -> dict[str, Any]:
    """The message that answers turn ``t``, as a client has it."""
    return {"id": "t.reply", "role": "assistant", "parts": list(parts)}


def body(*messages: Any, **fields: Any) -> dict[str, Any]:
    """What the transport sends of a chat."""
    return {"id": "c", "messages": list(messages), "trigger": "submit-message", **fields}


@asynccontextmanager
async def posted(client: Client, sent: Any) -> AsyncIterator[ClientResponse]:
    async with client.session.post(f"{client.url}/ui/chat", json=sent, headers=client.headers) as response:
        yield response


async def lines(response: ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The chunks of an answer as they come; asserts that it ends as the protocol says."""
    assert response.status == 200, await response.text()
    assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert response.content_type == "text/event-stream"
    done = False
    async for raw in response.content:
        line = raw.decode().rstrip("\n")
        assert not (done and line)
        if line == "data: [DONE]":
            done = True
        elif line and not line.startswith(":"):
            assert line.startswith("data: ")
            yield json.loads(line.removeprefix("data: "))
    assert done


async def sent(client: Client, *messages: Any, **fields: Any) -> list[dict[str, Any]]:
    """All chunks of the answer to a chat's messages."""
    async with posted(client, body(*messages, **fields)) as response:
        return [chunk async for chunk in lines(response)]


async def resumed(client: Client, conversation: str = "c") -> list[dict[str, Any]] | None:
    """All chunks that a client that comes back gets; None where nothing goes on."""
    url = f"{client.url}/ui/chat/{conversation}/stream"
    async with client.session.get(url, headers=client.headers) as response:
        if response.status == 204:
            assert await response.read() == b""
            return None
        return [chunk async for chunk in lines(response)]


async def refused(client: Client, sent: Any) -> tuple[int, dict[str, Any]]:
    """Status and error of an answer that is no stream."""
    async with posted(client, sent) as response:
        assert response.content_type == "application/json"
        return response.status, (await response.json())["error"]


def answered(parts: Sequence[dict[str, Any]], *, approved: bool = True, **reason: str) -> dict[str, Any]:
    """The message that asked, with every question in it answered."""
    made = []
    for part in parts:
        if part.get("state") == "approval-requested":
            approval = {**part["approval"], "approved": approved, **reason}
            part = {**part, "state": "approval-responded", "approval": approval}
        made.append(part)
    return answer_message(*made)


def calls_in(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for part in parts if part["type"] == "dynamic-tool"]


# -- a message


async def test_a_turn_with_a_tool_is_streamed_as_one_message() -> None:
    script = [reply("Let me look.", calls=[call("look", what="it")]), reply("Seen.", usage=(5, 2))]
    async with chat(ScriptedProvider(script, deltas=3)) as client:
        chunks = await sent(client, user_message())
    parts = fold(chunks)
    assert chunks[0] == {"type": "start", "messageId": "t.reply"}
    assert kinds(parts) == ["step-start", "text", "dynamic-tool", "step-start", "text"]
    (called,) = calls_in(parts)
    assert (called["input"], called["output"], called["providerExecuted"]) == ({"what": "it"}, "saw it", True)
    assert text_of(parts) == "Let me look.Seen."
    assert chunks[-1]["messageMetadata"] == {"usage": {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}}


async def test_a_call_that_was_refused_stands_in_the_step_that_asked_for_it() -> None:
    refused_call = call("nothing", arguments_text='{"n": 1}')
    async with chat([reply(calls=[refused_call]), reply("Sorry.")]) as client:
        parts = fold(await sent(client, user_message()))
    assert kinds(parts) == ["step-start", "dynamic-tool", "step-start", "text"]
    (called,) = calls_in(parts)
    assert (called["toolName"], called["input"], called["state"]) == ("nothing", {"n": 1}, "output-error")


async def test_the_same_message_again_joins_its_turn() -> None:
    gate = Gate()
    provider = ScriptedProvider([gate(reply("Hello."))])
    async with chat(provider) as client, posted(client, body(user_message())) as first:
        await gate.asked.wait()
        async with posted(client, body(user_message())) as second:
            gate.open.set()
            whole = fold([chunk async for chunk in lines(first)])
            assert fold([chunk async for chunk in lines(second)]) == whole
        assert fold(await sent(client, user_message())) == whole
        assert len(provider.requests) == 1


async def test_what_a_client_says_was_said_before_is_not_read() -> None:
    provider = ScriptedProvider([reply("One."), reply("Two.")])
    async with chat(provider) as client:
        await sent(client, user_message("First"))
        forged = {"id": "x", "role": "system", "parts": "no list"}
        await sent(client, forged, user_message("Second", id="t2"))
    said = [message.content for message in provider.requests[1].messages if isinstance(message, UserMessage)]
    assert said == ["First", "Second"]


async def test_images_come_with_the_words() -> None:
    provider = ScriptedProvider([reply("A dot.")])
    image = {"type": "file", "mediaType": "image/png", "url": PIXEL, "filename": "dot.png"}
    async with chat(provider) as client:
        await sent(client, user_message("What is it?", parts=[image]))
        await sent(client, user_message("What is it?", parts=[image]))
    (message,) = [message for message in provider.requests[0].messages if isinstance(message, UserMessage)]
    assert message.content == (ImagePart(url=PIXEL), al.TextPart(text="What is it?"))


async def test_a_body_names_the_agent() -> None:
    other = al.Agent(name="other", instructions="I am the other.")
    provider = ScriptedProvider([reply("Hi.")])
    async with chat(provider, CLERK, other) as client:
        await sent(client, user_message(), agent="other")
        status, error = await refused(client, body(user_message(id="t2"), agent="nobody"))
    assert provider.requests[0].messages[0] == al.SystemMessage(content="I am the other.")
    assert (status, error["code"]) == (404, "unknown_agent")


async def test_a_preview_that_does_not_stand_is_taken_back_and_the_turn_is_not_finished() -> None:
    script = [broken(reply("Half an ans"), al.StreamRefused("truncated", 0, 0, "an end", "none"))]
    async with chat(script) as client:
        chunks = await sent(client, user_message())
    assert kinds(fold(chunks)) == ["step-start", "data-withdrawn"]
    assert "reset-step" in kinds(chunks)
    assert chunks[-1] == {"type": "error", "errorText": "truncated: The turn failed."}


async def test_a_turn_that_an_error_of_another_kind_ended_is_told_as_one_that_failed() -> None:
    async with chat([ValueError("of somebody else's")]) as client:
        last = (await sent(client, user_message()))[-1]
    assert last["type"] == "error"
    assert "somebody" not in last["errorText"]


async def test_a_turn_that_is_cancelled_is_aborted() -> None:
    gate = Gate()
    async with chat([gate(reply("Never."))]) as client, asyncio.TaskGroup() as group:
        streaming = group.create_task(sent(client, user_message()))
        await gate.asked.wait()
        await client.ask("POST", "/api/conversations/c/turns/t/cancel")
        assert kinds(await streaming)[-1] == "abort"


# -- what is refused


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {},
        body(),
        {**body(user_message()), "id": 5},
        body(user_message(), trigger="regenerate-message"),
        body("text"),
        body({"id": "t", "role": "user"}),
        body({"id": "t", "role": "system", "parts": []}),
        body({"id": "t", "role": "user", "parts": []}),
        body(user_message(" \n")),
        body(user_message(id="no.full.stops")),
        {**body(user_message()), "id": "no/slash"},
        body(user_message(parts=[{"type": "file", "mediaType": "application/pdf", "url": "https://x.example/a"}])),
        body(user_message(parts=[{"type": "file", "mediaType": "image/png", "url": "file:///etc/passwd"}])),
        body(user_message(parts=[{"type": "data-x", "data": 1}])),
        body(answer_message()),
        body({**answer_message(DONE), "id": "other"}),
        body(answer_message({"type": "dynamic-tool", "state": "approval-responded"})),
        body(answer_message({**DONE, "providerExecuted": True})),
    ],
)
async def test_what_cannot_be_a_turn_is_refused_before_a_stream(wrong: Any) -> None:
    async with chat([]) as client:
        status, error = await refused(client, wrong)
        assert status == 400
        assert error["code"] in ("bad_request", "bad_id", "unsupported")
        assert await client.ask("GET", "/api/conversations") == (200, {"conversations": []})


async def test_other_words_under_the_same_id_are_a_conflict() -> None:
    async with chat([reply("Hello.")]) as client:
        await sent(client, user_message("Hello"))
        assert (await refused(client, body(user_message("Bye"))))[0] == 409


async def test_a_second_turn_waits_until_the_first_has_ended() -> None:
    async with chat([PAYS]) as client:
        await sent(client, user_message())
        assert (await refused(client, body(user_message(id="t2"))))[0] == 409


async def test_nobody_known_gets_nothing() -> None:
    async with chat([], auth=by_header) as client:
        assert (await refused(client, body(user_message())))[0] == 401
        async with client.session.get(f"{client.url}/ui/chat/c/stream") as response:
            assert response.status == 401


async def test_a_user_has_so_many_streams_and_no_more() -> None:
    gate = Gate()
    served = chat([gate(reply("Hello."))], limits=WebLimits(streams_a_user=1))
    async with served as client, posted(client, body(user_message())) as response:
        await gate.asked.wait()
        status, error = await refused(client, body(user_message()))
        assert (status, error["limit"]) == (429, "streams_a_user")
        gate.open.set()
        assert kinds([chunk async for chunk in lines(response)])[-1] == "finish"


# -- calls that wait


async def test_an_approved_call_runs_and_the_same_message_goes_on() -> None:
    async with chat([PAYS, reply("Paid.")]) as client:
        asked = fold(await sent(client, user_message()))
        (waits,) = calls_in(asked)
        assert (waits["state"], waits["input"]) == ("approval-requested", {"to": "Ann"})
        chunks = await sent(client, user_message(), answered(asked))
        assert chunks[0] == {"type": "start", "messageId": "t.reply"}
        parts = fold(chunks, asked)
    assert kinds(parts) == ["step-start", "text", "dynamic-tool", "step-start", "text"]
    assert text_of(parts) == "I shall pay.Paid."
    (called,) = calls_in(parts)
    assert (called["state"], called["output"]) == ("output-available", "paid Ann")


async def test_a_denied_call_does_not_run_and_the_model_reads_why() -> None:
    provider = ScriptedProvider([PAYS, reply("As you wish.")])
    async with chat(provider) as client:
        asked = fold(await sent(client, user_message()))
        parts = fold(await sent(client, answered(asked, approved=False, reason="Too much.")), asked)
    assert [part["state"] for part in calls_in(parts)] == ["output-denied"]
    (feedback,) = provider.requests[1].exchanges[-1].feedback
    assert feedback.text == "This call was denied, and did not run. Reason: Too much."
    assert text_of(parts) == "I shall pay.As you wish."


async def test_the_same_answer_again_joins_and_another_is_a_conflict() -> None:
    gate = Gate()
    provider = ScriptedProvider([PAYS, gate(reply("Paid."))])
    async with chat(provider) as client:
        asked = fold(await sent(client, user_message()))
        async with posted(client, body(answered(asked))) as first:
            await gate.asked.wait()
            async with posted(client, body(answered(asked))) as second:
                gate.open.set()
                whole = fold([chunk async for chunk in lines(first)], asked)
                assert fold([chunk async for chunk in lines(second)], asked) == whole
        assert fold(await sent(client, answered(asked)), asked) == whole
        assert (await refused(client, body(answered(asked, approved=False))))[0] == 409
        assert len(provider.requests) == 2


async def test_nobody_answers_for_another_user() -> None:
    async with chat([PAYS, reply("Paid.")], auth=by_header, user="ann") as ann:
        asked = fold(await sent(ann, user_message()))
        bob = Client(ann.session, ann.url, "bob")
        assert (await refused(bob, body(answered(asked))))[0] == 404
        assert (await ann.turn())["state"] == "waiting"


async def test_an_answer_about_another_users_call_is_refused_in_a_turn_of_ones_own() -> None:
    async with chat([PAYS, PAYS], auth=by_header, user="ann") as ann:
        asked = fold(await sent(ann, user_message()))
        bob = Client(ann.session, ann.url, "bob")
        await sent(bob, user_message())
        status, error = await refused(bob, body(answered(asked)))
        assert (status, error["code"]) == (400, "input")
        assert (await ann.turn())["state"] == "waiting"


async def test_one_of_two_answers_leaves_the_turn_waiting_for_the_other() -> None:
    twice = reply(calls=[call("pay", to="Ann"), call("pay", to="Bob")])
    async with chat([twice, reply("Paid.")]) as client:
        asked = fold(await sent(client, user_message()))
        half = answered(asked)
        half["parts"][-1] = asked[-1]
        chunks = await sent(client, half)
        assert chunks[-1]["finishReason"] == "tool-calls"
        rest = fold(chunks, half["parts"])
        assert [part["state"] for part in calls_in(rest)] == ["output-available", "approval-requested"]
        parts = fold(await sent(client, answered(rest)), rest)
    assert [part["output"] for part in calls_in(parts)] == ["paid Ann", "paid Bob"]


async def test_a_client_gives_the_result_of_a_call_that_is_its_own_to_run() -> None:
    provider = ScriptedProvider([reply(calls=[call("ask", question="Why?")]), reply("I see.")])
    async with chat(provider) as client:
        asked = fold(await sent(client, user_message()))
        (waits,) = calls_in(asked)
        assert (waits["state"], waits.get("providerExecuted")) == ("input-available", None)
        done = [*asked[:-1], {**waits, "state": "output-available", "output": {"because": 1}}]
        message = answer_message(*done)
        parts = fold(await sent(client, message), done)
        assert text_of(parts) == "I see."
        assert text_of(fold(await sent(client, message), done)) == "I see."
    (feedback,) = provider.requests[1].exchanges[-1].feedback
    assert feedback.text == '{"because":1}'


async def test_a_result_of_another_turns_call_is_refused() -> None:
    async with chat([reply(calls=[call("ask", question="Why?")])]) as client:
        await sent(client, user_message())
        assert (await refused(client, body(answer_message({**DONE, "toolCallId": "other.0.0"}))))[0] == 400


async def test_a_client_says_that_its_call_failed() -> None:
    provider = ScriptedProvider([reply(calls=[call("ask", question="Why?")]), reply("I see.")])
    async with chat(provider) as client:
        asked = fold(await sent(client, user_message()))
        failed = {**asked[-1], "state": "output-error", "errorText": "Nobody is there."}
        await sent(client, answer_message(*asked[:-1], failed))
    (feedback,) = provider.requests[1].exchanges[-1].feedback
    assert (feedback.status, feedback.text) == ("error", "Nobody is there.")


async def test_a_call_of_an_agent_below_is_approved_in_the_same_message() -> None:
    payer = al.Agent(name="payer", instructions="Pay.", tools=[pay])
    have = al.delegate(payer, name="have_paid", description="Have it paid.", tools=["pay"])
    boss = al.Agent(name="boss", instructions="Order.", tools=[have])
    script = [reply(calls=[call("have_paid", task="Ann")]), PAYS, reply("Ann has it."), reply("Done.")]
    async with chat(script, boss) as client:
        asked = fold(await sent(client, user_message()))
        above, below = calls_in(asked)
        assert (above["toolName"], above["output"]) == ("have_paid", {"state": "waiting"})
        assert (below["toolName"], below["state"], below["input"]) == ("pay", "approval-requested", {"to": "Ann"})
        parts = fold(await sent(client, answered(asked)), asked)
    above, below = calls_in(parts)
    assert (above["output"], below["state"]) == ("Ann has it.", "output-available")
    assert text_of(parts) == "Done."


async def test_a_call_of_an_agent_below_is_the_clients_to_run_as_one_of_its_own() -> None:
    finder = al.Agent(name="finder", instructions="Find.", tools=[ask])
    have = al.delegate(finder, name="find", description="Have it found.", tools=["ask"])
    boss = al.Agent(name="boss", instructions="Order.", tools=[have])
    script = [
        reply(calls=[call("find", task="it")]),
        reply(calls=[call("ask", question="Where?")]),
        reply("In room 5."),
        reply("Done."),
    ]
    async with chat(script, boss) as client:
        asked = fold(await sent(client, user_message()))
        assert "providerExecuted" not in asked[-1]
        done = [*asked[:-1], {**asked[-1], "state": "output-available", "output": "room 5"}]
        chunks = await sent(client, answer_message(*done))
    above, below = calls_in(fold(chunks, done))
    assert (above["output"], below["output"]) == ("In room 5.", "room 5")
    (closed,) = [chunk for chunk in chunks if chunk.get("toolCallId") == below["toolCallId"]]
    assert closed["providerExecuted"], "a client that sends results by itself would send it again"


# -- coming back


async def test_there_is_nothing_to_come_back_to_where_no_turn_goes_on() -> None:
    async with chat([reply("Hello.")]) as client:
        assert await resumed(client) is None
        await sent(client, user_message())
        assert await resumed(client) is None


async def test_a_client_that_went_comes_back_to_the_whole_message(tmp_path: Path) -> None:
    script = [reply("Let me look.", calls=[call("look", what="it")]), reply("One two three four.")]
    provider = HeldProvider(script, deltas=4, answer=2, after=2)
    async with chat(provider, store=tmp_path / "chat.db") as client:
        async with posted(client, body(user_message())) as response:
            await provider.reached.wait()
            response.close()
        assert await resumed(client, "other") is None
        url = f"{client.url}/ui/chat/c/stream"
        async with client.session.get(url) as response:
            chunks = []
            async for chunk in lines(response):
                chunks.append(chunk)
                if chunk.get("delta", "").endswith("two "):
                    provider.open.set()
    parts = fold(chunks)
    assert kinds(parts) == ["step-start", "text", "dynamic-tool", "step-start", "text"]
    assert text_of(parts) == "Let me look.One two three four."


async def test_a_turn_that_waits_is_written_from_what_is_stored_in_another_process(tmp_path: Path) -> None:
    store = tmp_path / "chat.db"
    async with chat([PAYS], store=store) as client:
        asked = fold(await sent(client, user_message()))
    async with chat([reply("Paid.")], store=store) as client:
        chunks = await resumed(client)
        assert chunks is not None
        assert fold(chunks) == asked
        parts = fold(await sent(client, answered(asked)), asked)
    assert text_of(parts) == "I shall pay.Paid."


async def test_a_message_that_another_process_began_is_written_whole_while_it_goes_on(tmp_path: Path) -> None:
    store = tmp_path / "chat.db"
    async with chat([PAYS], store=store) as client:
        asked = fold(await sent(client, user_message()))
    provider = HeldProvider([reply("Paid, I think.")], deltas=4, after=1)
    async with chat(provider, store=store) as client, posted(client, body(answered(asked))) as response:
        await provider.reached.wait()
        async with client.session.get(f"{client.url}/ui/chat/c/stream") as other:
            provider.open.set()
            whole = fold([chunk async for chunk in lines(other)])
        parts = fold([chunk async for chunk in lines(response)], asked)
    (called,) = calls_in(parts)
    assert called.pop("approval")["id"]  # what a client was asked, only it knows
    assert parts == whole
    assert kinds(whole) == ["step-start", "text", "dynamic-tool", "step-start", "text"]


async def test_a_conversation_is_not_another_whose_name_it_begins() -> None:
    async with chat([PAYS]) as client:
        await sent(client, user_message(), id="chat1")
        assert await resumed(client, "chat") is None
        assert await resumed(client, "chat1") is not None


async def test_a_turn_that_no_client_follows_is_cancelled_where_the_backend_shall() -> None:
    gate = Gate()
    async with al.Runtime(ScriptedProvider([gate(reply("Never."))])) as runtime:
        app = chat_app(runtime, [CLERK], auth=None, limits=WebLimits(gone_seconds=0.05))
        async with serving(runtime, app=app) as client, posted(client, body(user_message())) as response:
            await gate.asked.wait()
            response.close()
            with pytest.raises(al.RunCancelled):
                await runtime.result(User.of("anyone").run("c", "t"))


async def test_a_turn_whose_answer_nobody_has_left_is_not_said_to_be_finished(tmp_path: Path) -> None:
    gate, store = Gate(), tmp_path / "chat.db"
    served = chat([gate(reply("Never."))], store=store)
    async with served as client, posted(client, body(user_message())) as response:
        await gate.asked.wait()
        response.close()
    async with chat([], store=store) as client:
        assert await resumed(client) is None
        last = (await sent(client, user_message()))[-1]
    assert last["type"] == "error"


async def test_an_answer_that_the_server_ends_early_does_not_end_in_order() -> None:
    """A client takes one that does for a whole message."""
    gate = Gate()
    async with al.Runtime(ScriptedProvider([gate(reply("Never."))])) as runtime:
        app = chat_app(runtime, [CLERK], auth=None, limits=WebLimits(drain_seconds=0.01))
        async with serving(runtime, app=app) as client, posted(client, body(user_message())) as response:
            await gate.asked.wait()
            await app[SERVICE].drain()
            with pytest.raises(aiohttp.ClientError):
                await response.read()
