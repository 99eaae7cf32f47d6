"""Runs that give a typed value: by every route, over real streams, and again from what is stored."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.testing import ReplayServer, ScriptedProvider, call, reply
from agentloop.testing.replay_server import Answer
from tests.mortal import Ground
from tests.runs import SlowBackend, check_end, on_backend, pairs_in, turn_of

ROUTES = {"json_schema": "openai", "call": "groq", "json_text": "zai"}


class Ticket(msgspec.Struct, frozen=True):
    title: str
    urgent: bool


TICKET = Ticket(title="Brände löschen 🔥", urgent=True)
TEXT = json.dumps({"title": TICKET.title, "urgent": True}, ensure_ascii=False)
BAD = '{"title": "x", "urgent": "very"}'


@al.tool(idempotent=True)
async def note(text: str) -> str:
    """Note something down."""
    return f"noted {text}"


@al.tool
async def fail(text: str) -> str:
    """Fail."""
    raise al.ToolFailed("no room")


def agent(*tools: al.Tool, **changes: Any) -> al.Agent[Ticket]:
    return al.Agent(**{"name": "clerk", "instructions": "Be brief.", "tools": tools, "output": Ticket, **changes})


def scripted(route: str, *script: Any) -> ScriptedProvider:
    return ScriptedProvider(script, dialect=ROUTES[route])


def answer(route: str, text: str = TEXT, *others: Any) -> al.ModelReply:
    """A reply that says a value by this route."""
    if route == "call":
        return reply(calls=[*others, call("Ticket", call_id="out", arguments_text=text)])
    return reply(text)


def stream(text: str = "", *calls: tuple[str, str], finish: str | None = None, writes: int = 7) -> Answer:
    """An event stream of one reply: text and arguments in pieces of three characters, bytes in writes of seven."""
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    deltas += [{"content": text[at : at + 3]} for at in range(0, len(text), 3)]
    for index, (name, arguments) in enumerate(calls):
        head = {"index": index, "id": f"c{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        for at in range(0, len(arguments), 3):
            piece = {"index": index, "function": {"arguments": arguments[at : at + 3]}}
            deltas.append({"tool_calls": [piece]})
    frame = {"id": "r", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    chunks = [{**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    word = finish or ("tool_calls" if calls else "stop")
    chunks.append({**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": word}]})
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    chunks.append({**frame, "choices": [], "usage": usage})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    raw = body.encode()
    return Answer(body=raw, writes=(writes,) * (len(raw) // writes))


def streamed(route: str, text: str = TEXT) -> Answer:
    return stream("", ("Ticket", text)) if route == "call" else stream(text)


@asynccontextmanager
async def over_http(server: ReplayServer, route: str, **options: Any) -> AsyncIterator[al.Runtime]:
    async with al.Runtime(al.ChatCompletions(server.url, model="m", dialect=ROUTES[route]), **options) as runtime:
        yield runtime


# -- each route, over a socket


@pytest.mark.parametrize("route", ROUTES)
async def test_a_run_gives_the_value_by_the_route_that_the_server_has(replay_server: ReplayServer, route: str) -> None:
    """(R205)"""
    replay_server.script(streamed(route))
    async with over_http(replay_server, route) as runtime:
        result = await runtime.run(agent(), "go")
        events = await check_end(runtime, result.ref, "completed")
    assert (result.value, result.require_value(), result.has_value) == (TICKET, TICKET, True)
    assert (result.text, result.model_calls) == ("" if route == "call" else TEXT, 1)
    starts = [event for event in events if isinstance(event, al.ModelStart)]
    assert [(start.transport, start.route) for start in starts] == [("structured:Ticket", route)]

    body = replay_server.requests[0].json
    system = body["messages"][0]["content"]
    assert system.startswith("Be brief.")
    assert ("response_format" in body) is (route == "json_schema")
    assert ("tools" in body) is (route == "call")
    assert ("JSON Schema" in system) is (route == "json_text")
    if route == "json_schema":
        assert body["response_format"]["json_schema"]["strict"] is True
    if route == "call":
        assert [tool["function"]["name"] for tool in body["tools"]] == ["Ticket"]
        assert body["tool_choice"] == {"type": "function", "function": {"name": "Ticket"}}
        assert body["parallel_tool_calls"] is False


@pytest.mark.parametrize("route", ROUTES)
async def test_tools_come_first_and_the_value_at_the_end(replay_server: ReplayServer, route: str) -> None:
    """(R205)"""
    replay_server.script(stream("Wait.", ("note", '{"text": "a"}')), streamed(route))
    async with over_http(replay_server, route) as runtime:
        result = await runtime.run(agent(note), "go")
        await check_end(runtime, result.ref, "completed")
    assert (result.value, result.model_calls) == (TICKET, 2)
    first, second = (request.json for request in replay_server.requests)
    assert first.get("tool_choice") == ("required" if route == "call" else None)
    assert "tool_choice" not in second
    assert second.get("response_format") == first.get("response_format")
    names = ["note", "Ticket"] if route == "call" else ["note"]
    assert [tool["function"]["name"] for tool in second["tools"]] == names
    assert second["messages"][0] == first["messages"][0]


@pytest.mark.parametrize("route", ["json_schema", "json_text"])
@pytest.mark.parametrize(
    ("text", "code"),
    [
        (BAD, "schema_mismatch"),
        (TEXT[:-1], {"json_schema": "invalid_json", "json_text": "no_json"}),
        ("", "no_json"),
        ("[1]", "not_an_object"),
        ("I cannot say.", {"json_schema": "invalid_json", "json_text": "no_json"}),
        ('{"title": "x", "title": "y", "urgent": true}', "invalid_json"),
    ],
)
async def test_a_text_that_is_not_the_value_ends_the_run_as_incomplete(
    replay_server: ReplayServer, route: str, text: str, code: Any
) -> None:
    """Nothing is repaired, or asked again (R19)."""
    code = code if isinstance(code, str) else code[route]
    replay_server.script(stream(text))
    async with over_http(replay_server, route) as runtime:
        result = await runtime.run(agent(note), "go")
        await check_end(runtime, result.ref, "incomplete", code)
    assert (result.outcome, result.reason) == ("incomplete", code)
    assert (result.text, result.value, result.has_value) == (text, None, False)
    assert len(replay_server.requests) == 1
    with pytest.raises(al.OutcomeError, match=rf"expected outcome completed, got incomplete \({code}\)"):
        result.require_value()


async def test_arguments_that_do_not_fit_are_feedback_and_cost_a_model_call(replay_server: ReplayServer) -> None:
    """(R55)"""
    replay_server.script(streamed("call", BAD), streamed("call"))
    async with over_http(replay_server, "call") as runtime:
        result = await runtime.run(agent(), "go")
        events = await check_end(runtime, result.ref, "completed", "tool_calls")
    assert (result.value, result.model_calls, result.tool_calls) == (TICKET, 2, 1)
    assert [event.code for event in events if isinstance(event, al.ToolSkipped)] == ["schema_mismatch"]
    said = replay_server.requests[1].json["messages"][-1]["content"]
    assert "$.urgent does not fit" in said
    assert "tool_choice" not in replay_server.requests[1].json


# -- when a run ends that is asked for a call


async def test_a_plain_text_instead_of_the_call_is_an_answer_without_a_value() -> None:
    provider = scripted("call", reply(calls=[call("note", text="a")]), reply(TEXT))
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(agent(note), "go")
        await check_end(runtime, result.ref, "incomplete", "no_output")
    assert (result.text, result.value) == (TEXT, None)


async def test_other_calls_of_the_reply_run_before_the_run_ends_wherever_they_stand() -> None:
    """(R93)"""
    calls = [call("note", call_id="a", text="a"), call("Ticket", arguments_text=TEXT), call("fail", text="b")]
    provider = scripted("call", reply(calls=calls))
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(agent(note, fail), "go", conversation="c")
        events = await check_end(runtime, result.ref, "completed")
        ended = [(event.tool, event.status) for event in events if isinstance(event, al.ToolEnded)]
        exchange = (await runtime.history("c"))[-1]
    assert ended == [("note", "success"), ("Ticket", "success"), ("fail", "error")]
    assert (result.value, result.model_calls, result.tool_calls) == (TICKET, 1, 3)
    assert isinstance(exchange, al.ModelExchange)
    assert [item.text for item in exchange.feedback] == ["noted a", "The answer is taken.", "no room"]


async def test_of_two_values_in_one_reply_none_is_taken() -> None:
    other = call("Ticket", arguments_text='{"title": "x", "urgent": false}')
    provider = scripted("call", answer("call", TEXT, other))
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(agent(), "go")
        await check_end(runtime, result.ref, "incomplete", "several_calls")
    assert result.value is None


async def test_beside_a_call_that_does_not_fit_the_one_that_does_is_taken() -> None:
    provider = scripted("call", answer("call", TEXT, call("Ticket", arguments_text=BAD)))
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(agent(), "go")
    assert (result.outcome, result.value, result.tool_calls) == ("completed", TICKET, 1)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("finish", "outcome"), [("length", "incomplete"), ("content_filter", "refused")])
async def test_a_reply_that_was_cut_or_refused_gives_no_value(route: str, finish: str, outcome: str) -> None:
    """(R25)"""
    cut = answer(route)
    cut = msgspec.structs.replace(cut, termination=reply("x", finish=finish).termination)
    async with al.Runtime(scripted(route, cut)) as runtime:
        result = await runtime.run(agent(), "go")
        await check_end(runtime, result.ref, outcome, finish)
    assert (result.value, result.has_value) == (None, False)


# -- limits


@pytest.mark.parametrize("route", ROUTES)
async def test_the_last_model_call_may_give_the_value(route: str) -> None:
    """(R102)"""
    for limits in (al.LoopLimits(max_model_calls=1), al.LoopLimits(max_tokens=3), al.LoopLimits(request_bytes=8000)):
        said = msgspec.structs.replace(answer(route), usage=al.Usage(input_tokens=1, output_tokens=2, total_tokens=3))
        async with al.Runtime(scripted(route, said)) as runtime:
            result = await runtime.run(agent(limits=limits), "go")
            await check_end(runtime, result.ref, "completed")
        assert result.value == TICKET


async def test_the_call_that_ends_a_run_is_claimed_with_its_reply() -> None:
    medium = SlowBackend()
    async with on_backend(medium, scripted("call", answer("call"))) as runtime:
        await runtime.run(agent(limits=al.LoopLimits(max_model_calls=1)), "go")
        assert medium.log == ["whole"] * 5  # origin, send, reply and claim, answer, end


async def test_a_call_that_the_agent_itself_forces_comes_first() -> None:
    options = al.ModelOptions(tool_choice=al.ToolChoice(name="note"), parallel_tool_calls=True)
    provider = scripted("call", reply(calls=[call("note", text="a")]), answer("call"))
    async with al.Runtime(provider) as runtime:
        assert (await runtime.run(agent(note, options=options), "go")).value == TICKET
    assert provider.requests[0].options == options
    for choice in (None, "auto", "none"):
        asking = agent(note, options=al.ModelOptions(tool_choice=choice)).prepare(provider.dialect)
        assert asking.options == al.ModelOptions(tool_choice="required")


async def test_a_limit_that_is_reached_before_the_value_ends_the_run_without_it() -> None:
    """(R102)"""
    limits = al.LoopLimits(max_model_calls=1)
    for asked in (call("note", text="a"), call("Ticket", arguments_text=BAD)):
        async with al.Runtime(scripted("call", reply(calls=[asked]))) as runtime:
            result = await runtime.run(agent(note, limits=limits), "go")
            await check_end(runtime, result.ref, "limit_reached", "max_model_calls")
        assert (result.value, result.tool_calls) == (None, 0)


async def test_giving_the_value_is_a_tool_call_for_the_limit_on_these() -> None:
    limits = al.LoopLimits(max_tool_calls=1)
    provider = scripted("call", answer("call", TEXT, call("note", text="a")))
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(agent(note, limits=limits), "go")
        await check_end(runtime, result.ref, "limit_reached", "max_tool_calls")
    assert (result.value, result.tool_calls) == (None, 0)


# -- conversations


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("first", [TEXT, BAD])
async def test_a_conversation_goes_on_after_a_value_and_after_none(route: str, first: str) -> None:
    said = [answer(route, first)]
    if route == "call" and first is BAD:
        said.append(reply("No."))
    provider = scripted(route, *said, answer(route), reply("Bye."))
    async with al.Runtime(provider) as runtime:
        one = await runtime.run(agent(), "one", conversation="c")
        two = await runtime.run(agent(), "two", conversation="c")
        chat = al.Agent(name="chat", instructions="Chat.")
        three = await runtime.run(chat, "three", conversation="c")
    assert one.value == (TICKET if first is TEXT else None)
    assert (two.value, three.value, three.text) == (TICKET, None, "Bye.")
    last = provider.requests[-1]
    assert (last.options, last.tools) == (al.ModelOptions(), ())
    assert [message.content for message in last.messages if isinstance(message, al.SystemMessage)] == ["Chat."]
    feedback = ["The answer is taken."] * 2 if first is TEXT else ["The answer is taken."]
    assert [text for _, text in pairs_in(last)][-len(feedback) :] == (feedback if route == "call" else [])


async def test_the_instruction_of_the_json_is_said_once_a_conversation_and_not_repeated() -> None:
    provider = scripted("json_text", answer("json_text"), answer("json_text"))
    async with al.Runtime(provider) as runtime:
        await runtime.run(agent(), "one", conversation="c")
        await runtime.run(agent(), "two", conversation="c")
    systems = [message for message in provider.requests[1].messages if isinstance(message, al.SystemMessage)]
    assert len(systems) == 1
    assert systems[0].content.count("JSON Schema") == 1


# -- what is stored, and made again


@pytest.mark.parametrize("route", ROUTES)
async def test_a_stored_run_gives_the_value_again_to_whoever_has_the_agent(tmp_path: Path, route: str) -> None:
    """(R135)"""
    path = tmp_path / "store.db"
    async with al.Runtime(scripted(route, answer(route)), store=path) as runtime:
        await runtime.run(agent(note), "go", run_id="r")
        assert (await runtime.result("r")).value == TICKET
    for other in ROUTES:  # whichever server it is read beside
        async with al.Runtime(scripted(other), store=path) as runtime:
            without = await runtime.result("r")
            assert (without.outcome, without.value, without.has_value) == ("completed", None, False)
            with pytest.raises(
                al.OutcomeError, match="no output was asked for, or the result was read without its agent"
            ):
                without.require_value()
            assert (await runtime.result("r", agent(note))).value == TICKET
            assert (await runtime.resume("r", agent(note))).value == TICKET
            assert (await runtime.result("r", al.Agent(name="clerk"))).value is None
            with pytest.raises(al.RestoreError, match=r"agent_changed: run 'r': expected agent 'clerk', got .*'cook'"):
                await runtime.result("r", agent(note, name="cook"))
            with pytest.raises(al.RestoreError, match=r"input_changed: run 'r': expected .*, got output 'output'$"):
                await runtime.result("r", agent(note, output=int))


async def test_no_fact_holds_the_value_but_the_reply(tmp_path: Path) -> None:
    ground = Ground(tmp_path / "store.db")
    async with ground.runtime(scripted("json_schema", answer("json_schema"))) as runtime:
        await runtime.run(agent(), "go", run_id="r")
    holding = [type(fact).__name__ for fact in await ground.facts() if TICKET.title in str(fact)]
    assert holding == ["ReplyTaken"]


async def test_a_start_that_is_repeated_gives_the_value_of_the_run_that_was_started(tmp_path: Path) -> None:
    """(R82)"""
    for restart in (False, True):
        path = tmp_path / f"{restart}.db"
        async with al.Runtime(scripted("call", answer("call")), store=path) as runtime:
            await runtime.run(agent(), "go", run_id="r")
            if not restart:
                assert (await runtime.run(agent(), "go", run_id="r")).value == TICKET
        if restart:
            async with al.Runtime(scripted("call"), store=path) as runtime:
                assert (await runtime.run(agent(), "go", run_id="r")).value == TICKET
            async with al.Runtime(scripted("json_schema"), store=path) as runtime:
                with pytest.raises(al.ConflictError, match="expected the input this run was started with"):
                    await runtime.run(agent(), "go", run_id="r")


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("route", ROUTES)
async def test_a_run_whose_process_died_decides_the_same_when_it_is_resumed(
    tmp_path: Path, route: str, good: bool
) -> None:
    """At every append, before and after it is on the medium (R136)."""
    text = TEXT if good else BAD
    last = answer(route, text)
    deaths = 0
    for at in range(1, 12):
        for when in ("before", "after"):
            ground = Ground(tmp_path / f"{at}{when}.db")
            provider = scripted(route, reply(calls=[call("note", text="a")]), last, reply("No."))
            begun = agent(note, limits=al.LoopLimits(max_model_calls=3))
            async with ground.mortal(provider, at=at, when=when) as (runtime, medium):  # type: ignore[arg-type]
                work = asyncio.ensure_future(runtime.run(begun, "go", run_id="r"))
                died = asyncio.ensure_future(medium.dead.wait())
                await asyncio.wait({work, died}, return_when=asyncio.FIRST_COMPLETED)
                if not medium.dead.is_set():
                    died.cancel()
                    await work
                    continue
                medium.bury()
                await asyncio.wait({work})
            deaths += 1
            ground.clock.advance(1000)
            left = list(provider._script)
            async with ground.runtime(scripted(route, *left)) as runtime:
                await check_resumed(runtime, begun, good=good, route=route)
    assert deaths > 8


async def check_resumed(runtime: al.Runtime, begun: al.Agent[Ticket], *, good: bool, route: str) -> None:
    """What a run comes to that another process began; a send that nobody knows of is settled as never made."""
    if not await runtime.unfinished():
        try:
            result = await runtime.result("r", begun)
        except al.LostError:
            return  # it died before there was a run
    else:
        lost = [item for item in await runtime.unsettled() if item.kind == "send"]
        if lost:
            return  # whether the script has that reply nobody can say
        result = await runtime.resume("r", begun)
    reason = "schema_mismatch" if route != "call" else "no_output"
    expected = ("completed", TICKET) if good else ("incomplete", None)
    assert (result.outcome, result.value) == expected
    assert good or result.reason == reason


class Other(msgspec.Struct):
    name: str


@pytest.mark.parametrize("route", ROUTES)
async def test_a_run_that_ended_here_is_not_resumed_with_another_output(tmp_path: Path, route: str) -> None:
    """(R138)"""
    async with al.Runtime(scripted(route, answer(route)), store=tmp_path / "store.db") as runtime:
        first = await runtime.run(agent(), "hi", run_id="r")
        with pytest.raises(al.RestoreError) as caught:
            await runtime.resume("r", agent(output=Other))
        assert caught.value.code == "input_changed"
        with pytest.raises(al.RestoreError, match="agent_changed"):
            await runtime.resume("r", agent(name="other"))
        assert first.value == TICKET


@pytest.mark.parametrize("route", ROUTES)
async def test_a_run_is_not_resumed_by_another_route_than_it_was_begun_with(tmp_path: Path, route: str) -> None:
    """(R138)"""
    ground = Ground(tmp_path / "store.db")
    async with ground.mortal(scripted(route, answer(route)), at=2, when="after") as (runtime, medium):
        work = asyncio.ensure_future(runtime.run(agent(note), "go", run_id="r"))
        await medium.dead.wait()  # its send is claimed, and nobody knows more of it
        medium.bury()
        await asyncio.wait({work})
    ground.clock.advance(1000)
    for other in ROUTES:
        async with ground.runtime(scripted(other)) as runtime:
            if other == route:
                with pytest.raises(al.UnsettledError):
                    await runtime.resume("r", agent(note))
                continue
            with pytest.raises(al.RestoreError) as caught:
                await runtime.resume("r", agent(note))
            assert caught.value.code == "input_changed"
            assert caught.value.rule == f"expected output by route {route}, got output by route {other}"


# -- other ways in


async def test_a_block_gives_events_and_the_value(scripted: Any) -> None:
    provider = scripted([reply(TEXT)])
    async with al.Runtime(provider) as runtime, runtime.start(agent(), "go") as run:
        pieces = [event.text async for event in run if isinstance(event, al.TextPreview)]
        result = await run.result()
    assert ("".join(pieces), result.value) == (TEXT, TICKET)


async def test_a_fallback_gets_the_same_request() -> None:
    """(R114)"""
    other = ScriptedProvider([reply(TEXT)], dialect="groq")
    provider = scripted("json_schema", al.HTTPStatusError("busy", status=429, may_have_been_processed=False))
    async with al.Runtime(provider, resend=al.ResendPolicy(max_resends=0, fallbacks=(other,))) as runtime:
        result = await runtime.run(agent(), "go")
    assert result.value == TICKET
    assert other.requests == provider.requests


async def test_an_agent_without_an_output_asks_as_a_session_and_has_no_value() -> None:
    provider = ScriptedProvider([reply(calls=[call("note", text="a")]), reply("done"), reply("hi")])
    async with al.Runtime(provider) as runtime:
        told = []
        for tools in ([note], []):
            plain = al.Agent(name="a", tools=tools)
            async with runtime.start(plain, "go") as run:
                told += [(e.transport, e.route) async for e in run if isinstance(e, al.ModelStart)]
                result = await run.result()
            assert (result.value, result.has_value) == (None, False)
            with pytest.raises(
                al.OutcomeError, match="no output was asked for, or the result was read without its agent"
            ):
                result.require_value()
    assert told == [("core:session", "session")] * 2 + [("core:plain-text", "text")]


async def test_a_value_may_be_none_or_no_object_at_all() -> None:
    script = [reply('{"value": null}'), reply('{"value": [1, 2]}')]
    async with al.Runtime(ScriptedProvider(script)) as runtime:
        maybe: al.Agent[Any] = al.Agent(name="a", output=int | None)
        result = await runtime.run(maybe, "go")
        assert (result.value, result.has_value, result.require_value()) == (None, True, None)
        assert (await runtime.run(al.Agent(name="a", output=list[int]), "go")).value == [1, 2]


async def test_a_thread_that_outlived_its_tool_does_not_keep_the_value_back() -> None:
    go = threading.Event()

    @al.tool(timeout=0.01)
    def hang() -> str:
        """Hang."""
        go.wait(30)
        return "late"

    provider = scripted("call", reply(calls=[call("hang")]), answer("call", TEXT))
    async with al.Runtime(provider) as runtime:
        try:
            result = await runtime.run(agent(hang), "go")
        finally:
            go.set()
    assert (result.value, result.model_calls) == (TICKET, 2)


async def test_a_type_that_is_at_fault_ends_the_run_with_its_error() -> None:
    """(R58)"""

    class Faulty(msgspec.Struct):
        a: int

        def __post_init__(self) -> None:
            raise RuntimeError("mine")

    faulty = al.Agent(name="a", output=Faulty)
    for route in ROUTES:
        said = reply(calls=[call("Faulty", a=1)]) if route == "call" else reply('{"a": 1}')
        async with al.Runtime(scripted(route, said)) as runtime:
            ref = await runtime.submit(faulty, "go")
            with pytest.raises(al.ToolDefinitionError, match="decoding its arguments raised RuntimeError"):
                await runtime.result(ref)
            await check_end(runtime, ref, "failed", "bad_tool")
            assert len(turn_of(runtime, ref).entries) == 1  # the reply is paid for, and stored
