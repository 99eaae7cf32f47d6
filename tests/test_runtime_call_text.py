"""Agents of models that write their calls in text: whole runs over a loopback server."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.testing import Answer, ReplayServer, ScriptedProvider, call, reply
from agentloop.wire.call_text import MALFORMED_CALL
from tests.wire.streams import COUNTED, DONE, FIRST, STOP, choice, chunk, text

DIALECT = al.dialect("openai", call_text=al.ToolCallParser())
REPORT, SEVEN = '{"city": "Oslo", "cold": true}', '{"number": 7}'
OSLO, ROME = '{"city": "Oslo"}', '{"city": "Rome"}'


class Weather(msgspec.Struct):
    """What was asked for, in order."""

    asked: list[str] = []


@al.tool(idempotent=True)
async def weather(city: str, ctx: al.ToolContext[Weather]) -> str:
    """Tell the weather of a city."""
    ctx.deps.asked.append(city)
    return f"It is cold in {city}."


ASSISTANT = al.Agent(name="weather", instructions="Be brief.", tools=[weather], policy_version="weather.v1")


def said(words: str, *, size: int = 4, finish: bytes = STOP) -> Answer:
    """An answer that streams the words in small deltas, an event a write."""
    pieces = [text(words[at : at + size]) for at in range(0, len(words), size)]
    return Answer(body=b"".join([FIRST, *pieces, finish, COUNTED, DONE]))


def tagged(*arguments: str, name: str = "weather") -> str:
    return "\n".join(f'<tool_call>\n{{"name": "{name}", "arguments": {one}}}\n</tool_call>' for one in arguments)


def provider(server: ReplayServer, dialect: al.Dialect = DIALECT) -> al.ChatCompletions:
    return al.ChatCompletions(server.url, model="local", dialect=dialect)


def messages(server: ReplayServer) -> list[list[dict[str, Any]]]:
    return [request.json["messages"] for request in server.requests]


def assert_prefixes(server: ReplayServer) -> None:
    """Each request without its closing brackets begins the next one, byte by byte."""
    bodies = [request.body for request in server.requests]
    assert all(after.startswith(before.removesuffix(b"]}")) for before, after in pairwise(bodies))
    assert len(bodies) > 1


async def test_calls_in_text_run_and_their_results_come_back_in_text(replay_server: ReplayServer) -> None:
    """Call, result, answer; no preview shows a tag or a call. (R342, R348, R358)"""
    calling = "I look at both.\n" + tagged('{ "city" : "Oslo" }', ROME)
    replay_server.script(said(calling), said("It is cold in both."))
    deps = Weather()
    previews: list[str] = []
    started: list[str] = []
    source = provider(replay_server)
    async with al.Runtime(source) as runtime, runtime.start(ASSISTANT, "Oslo or Rome?", deps=deps) as run:
        async for event in run:
            if isinstance(event, al.TextPreview):
                previews.append(event.text)
            if isinstance(event, al.ToolStarted):
                started.append(event.arguments)
        result = await run.result()
    assert (result.outcome, result.text, result.tool_calls) == ("completed", "It is cold in both.", 2)
    assert started == ['{ "city" : "Oslo" }', ROME]
    assert deps.asked == ["Oslo", "Rome"]
    assert "".join(previews) == "I look at both.It is cold in both."
    first, second = (request.json for request in replay_server.requests)
    for body in (first, second):
        assert not body.keys() & {"tools", "tool_choice", "parallel_tool_calls"}
        assert '"name":"weather"' in body["messages"][0]["content"]
    assert second["messages"][2:] == [
        {"role": "assistant", "content": calling},
        {
            "role": "user",
            "content": "<tool_response>\nIt is cold in Oslo.\n</tool_response>\n"
            "<tool_response>\nIt is cold in Rome.\n</tool_response>",
        },
    ]
    assert_prefixes(replay_server)


@pytest.mark.parametrize(
    ("words", "feedback"),
    [
        ('<tool_call>\n{"name": "weather", "arguments": {"city": Oslo}}\n</tool_call>', "at character 43"),
        ('<tool_call>{"arguments": {"city": "Oslo"}}</tool_call>', "$.name: expected the name of a function, got none"),
        ('<tool_call>{"name": "weather", "arguments": "Oslo"}</tool_call>', "expected an object, got a string"),
        ('<tool_call>\n{"name": "weather", "arguments": {"city": "Os', "the closing tag </tool_call> is missing"),
    ],
)
async def test_what_is_no_call_runs_nothing_and_the_model_mends_it(
    replay_server: ReplayServer, words: str, feedback: str
) -> None:
    """(R19, R55, R342, R347)"""
    replay_server.script(said(words), said(tagged(OSLO)), said("It is cold."))
    deps = Weather()
    async with al.Runtime(provider(replay_server)) as runtime, runtime.start(ASSISTANT, "Oslo?", deps=deps) as run:
        events = [event async for event in run]
        result = await run.result()
    (skipped,) = [event for event in events if isinstance(event, al.ToolSkipped)]
    assert (skipped.tool, skipped.slot, skipped.code) == (MALFORMED_CALL, "failed", "malformed_call")
    assert (result.outcome, result.text, deps.asked) == ("completed", "It is cold.", ["Oslo"])
    *_, asked_again, answer = messages(replay_server)[1]
    assert asked_again == {"role": "assistant", "content": words}
    assert answer["role"] == "user"
    assert answer["content"].startswith("<tool_response>\nNothing ran. ")
    assert feedback in answer["content"]
    assert not any("<tool" in event.text for event in events if isinstance(event, al.TextPreview))
    assert_prefixes(replay_server)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (tagged('{"city": "Oslo"}', name="wether"), "unknown_tool"),
        (tagged('{"town": "Oslo"}'), "schema_mismatch"),
        ('<tool_call>{"name": "weather"}</tool_call>', "schema_mismatch"),
    ],
)
async def test_a_call_in_text_is_admitted_as_any_other(replay_server: ReplayServer, words: str, code: str) -> None:
    """(R55, R56, R342)"""
    native = ScriptedProvider(
        [
            reply(calls=[call(*args, arguments_text=arguments)])
            for args, arguments in [
                (("wether",), '{"city": "Oslo"}') if code == "unknown_tool" else (("weather",), '{"town": "Oslo"}')
            ]
        ]
        + [reply(text="No.")]
    )
    replay_server.script(said(words), said("No."))
    codes = []
    for source in (provider(replay_server), native):
        async with al.Runtime(source) as runtime, runtime.start(ASSISTANT, "Oslo?", deps=Weather()) as run:
            codes += [event.code async for event in run if isinstance(event, al.ToolSkipped)]
    assert codes == [code, code]


async def test_a_conversation_outlives_its_process_and_stays_one_prefix(
    replay_server: ReplayServer, tmp_path: Path
) -> None:
    """Malformed calls are stored and restored as any. (R20, R342, R347)"""
    store = tmp_path / "store.db"
    turns = [
        [said("<tool_call>oh</tool_call>"), said(tagged(OSLO)), said("Cold.")],
        [said(f"Again:\n\n{tagged(ROME)}\n"), said("Cold too.")],
    ]
    for words, answers in zip(("Oslo?", "And Rome?"), turns, strict=True):
        replay_server.script(*answers)
        async with al.Runtime(provider(replay_server), store=store) as runtime:
            result = await runtime.run(ASSISTANT, words, deps=Weather(), conversation="c")
            assert result.outcome == "completed"
    assert len(replay_server.requests) == 5
    assert_prefixes(replay_server)
    plain = al.Dialect(name="plain")
    replay_server.script(said("Yes."))
    async with al.Runtime(provider(replay_server, plain), store=store) as runtime:
        await runtime.run(ASSISTANT, "Sure?", deps=Weather(), conversation="c")
    body = replay_server.requests[-1].json
    assert [tool["function"]["name"] for tool in body["tools"]] == ["weather"]
    names = [one["function"]["name"] for message in body["messages"] for one in message.get("tool_calls", ())]
    assert names == ["weather", "weather"]
    assert {"role": "assistant", "content": "<tool_call>oh</tool_call>"} in body["messages"]


async def test_a_reply_cut_by_length_runs_none_of_its_calls(replay_server: ReplayServer) -> None:
    """Not the complete ones either. (R93, R342)"""
    cut = tagged(OSLO) + '\n<tool_call>\n{"name": "wea'
    replay_server.script(said(cut, finish=chunk(choice({}, finish="length"))))
    deps = Weather()
    async with al.Runtime(provider(replay_server)) as runtime:
        result = await runtime.run(ASSISTANT, "Oslo?", deps=deps)
    assert (result.outcome, deps.asked) == ("incomplete", [])
    assert len(replay_server.requests) == 1


class Report(msgspec.Struct, frozen=True):
    city: str
    cold: bool


REPORTER = al.Agent(
    name="reporter", instructions="Be brief.", tools=[weather], output=Report, policy_version="reporter.v1"
)


async def test_a_typed_answer_beside_calls_in_text_is_json_in_text(replay_server: ReplayServer) -> None:
    """A schema would hold the calls too, and words force nothing: neither is asked for. (R253, R342)"""
    replay_server.script(said(tagged(OSLO)), said('{"city": "Oslo", "cold": true}'))
    async with al.Runtime(provider(replay_server)) as runtime:
        result = await runtime.run(REPORTER, "Oslo?", deps=Weather())
    assert result.value == Report(city="Oslo", cold=True)
    first, second = (request.json for request in replay_server.requests)
    for body in (first, second):
        assert not body.keys() & {"tools", "tool_choice", "response_format"}
        system = body["messages"][0]["content"]
        assert "Answer with exactly one JSON object" in system
        assert system.index("JSON Schema") < system.index("<tools>")
    assert_prefixes(replay_server)


async def test_a_typed_answer_alone_is_held_to_its_schema(replay_server: ReplayServer) -> None:
    replay_server.script(said('{"city": "Oslo", "cold": true}'))
    alone = al.Agent(name="alone", output=Report, policy_version="alone.v1")
    async with al.Runtime(provider(replay_server)) as runtime:
        result = await runtime.run(alone, "Oslo?")
    assert result.value == Report(city="Oslo", cold=True)
    assert replay_server.requests[0].json["response_format"]["type"] == "json_schema"


async def test_a_replayed_recording_is_read_as_the_stream_was(replay_server: ReplayServer, tmp_path: Path) -> None:
    """(R342)"""
    replay_server.script(said(tagged(OSLO)), said("Cold."))
    live = al.ChatCompletions(
        replay_server.url, model="local", dialect=DIALECT, recorder=al.Recorder(tmp_path / "tape")
    )
    async with al.Runtime(live) as runtime:
        first = await runtime.run(ASSISTANT, "Oslo?", deps=Weather())
    deps = Weather()
    async with al.Runtime(al.ReplayProvider(tmp_path / "tape", dialect=DIALECT)) as runtime:
        second = await runtime.run(ASSISTANT, "Oslo?", deps=deps)
    assert (second.text, second.tool_calls, deps.asked) == (first.text, 1, ["Oslo"])


async def test_a_scripted_call_is_a_call_and_a_scripted_tag_is_text() -> None:
    scripted = ScriptedProvider(
        [reply(calls=[call("weather", city="Oslo")]), reply(text="<tool_call>")], dialect=DIALECT
    )
    async with al.Runtime(scripted) as runtime:
        result = await runtime.run(ASSISTANT, "Oslo?", deps=Weather())
    assert (result.text, result.tool_calls) == ("<tool_call>", 1)


async def test_inspected_sizes_are_those_of_what_is_sent(replay_server: ReplayServer) -> None:
    """(R103, R104)"""
    source = provider(replay_server)
    request = al.ModelRequest(messages=(al.UserMessage(content="Oslo?"),), tools=ASSISTANT.toolset.specs)
    sizes = source.inspect_request(request)
    replay_server.script(said("Cold."))
    async with source.stream(request, attempt_id="a1") as stream:
        await stream.reply()
    await source.aclose()
    (sent,) = replay_server.requests
    assert sizes.body_bytes == len(sent.body)
    system = sent.json["messages"][0]["content"]
    assert sizes.tool_bytes == len(json.dumps(system, ensure_ascii=False).encode()) - 2
    assert sizes.message_bytes > sizes.tool_bytes


@al.selection
def pick(number: int) -> int:
    """Pick a number."""
    return number


async def test_one_call_alone_may_be_asked_for_in_text(replay_server: ReplayServer) -> None:
    """White space around it is no text; a malformed one is refused with what was wrong. (R195, R342, R347)"""
    output, choice_of = al.Structured(Report, route="call"), al.NativeCall("pick", [pick])
    replay_server.script(
        said(f"\n\n{tagged(REPORT, name='Report')}\n"),
        said(f" {tagged(SEVEN, name='pick')}"),
        said("<tool_call>{pick}</tool_call>"),
        said(f"So: {tagged(SEVEN, name='pick')}"),
    )
    async with al.Runtime(provider(replay_server)) as runtime:
        runner = runtime.runner(transports=(output, choice_of))
        assert (await runner.invoke("Oslo?", transport=output)).value == Report(city="Oslo", cold=True)
        assert (await runner.invoke("Pick.", transport=choice_of)).value == 7
        with pytest.raises(al.OutputRefused) as malformed:
            await runner.invoke("Pick.", transport=choice_of)
        with pytest.raises(al.OutputRefused) as beside:
            await runner.invoke("Pick.", transport=choice_of)
    assert (malformed.value.code, beside.value.code) == ("malformed_call", "unexpected_text")
    assert "at character 1" in str(malformed.value.feedback)
    assert all("must call" not in request.body.decode() for request in replay_server.requests)


class Odd(al.ToolCallParser, frozen=True, kw_only=True):
    """Answers with something else where ``member`` says so; ``late`` only to a call that ran."""

    member: str
    late: bool = False

    def parse(self, text: str, /, *, closed: bool) -> Any:
        return None if self.member == "parse" else al.ToolCallParser.parse(self, text, closed=closed)

    def write_result(self, call: al.ToolCall, feedback: al.ToolFeedback, /) -> Any:
        odd = self.member == "write_result" and not (self.late and feedback.status == "error")
        return None if odd else al.ToolCallParser.write_result(self, call, feedback)


@pytest.mark.parametrize(
    ("way", "requests", "asked"),
    [
        (Odd(member="parse"), 1, []),
        (Odd(member="write_result"), 0, []),
        (Odd(member="write_result", late=True), 1, ["Oslo"]),
    ],
)
async def test_a_way_to_write_calls_that_answers_wrongly_is_named_and_the_conversation_goes_on(
    replay_server: ReplayServer, tmp_path: Path, way: Odd, requests: int, asked: list[str]
) -> None:
    """Before a tool runs where that can be known; what ran is in the history. (R342)"""
    replay_server.script(*[said(tagged(OSLO))] * requests)
    deps = Weather()
    odd = provider(replay_server, al.dialect("openai", call_text=way))
    store = tmp_path / "store.db"
    async with al.Runtime(odd, store=store) as runtime:
        with pytest.raises(al.InputError, match=rf"^Dialect\.call_text: Odd\.{way.member}: expected .*, got NoneType$"):
            await runtime.run(ASSISTANT, "Oslo?", deps=deps, conversation="c")
        assert not await runtime.unfinished()
    assert (len(replay_server.requests), deps.asked) == (requests, asked)
    replay_server.script(said("Cold."))
    async with al.Runtime(provider(replay_server), store=store) as runtime:
        result = await runtime.run(ASSISTANT, "And now?", deps=deps, conversation="c")
    assert (result.outcome, deps.asked) == ("completed", asked)
    results = "<tool_response>\nIt is cold in Oslo.\n</tool_response>"
    assert ({"role": "user", "content": results} in messages(replay_server)[-1]) == bool(asked)
