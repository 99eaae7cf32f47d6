"""A tool with a side effect behind streams that are not one complete, checked reply.

Every stream here asks for `pay`, over real HTTP. Only the one that is complete up to ``[DONE]``
pays, once. Of the others nothing reaches a fact, a tool or a result; what was shown is retracted;
one request was sent and none repeated; and the connection is closed.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.exchange import ReplyTaken, SlotMoved
from agentloop.testing import Answer, RecordingSink, ReplayServer
from tests.runs import check_end, facts_of, turn_of

DONE = b"data: [DONE]\n\n"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


def event(choices: list[dict[str, Any]], **members: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1780000000, "model": "m"}
    return b"data: " + json.dumps({**head, "choices": choices, **members}).encode() + b"\n\n"


def delta(finish: str | None = None, choice: int = 0, **members: Any) -> bytes:
    return event([{"index": choice, "delta": members, "finish_reason": finish}])


def opening(call_id: str | None = "call_1", index: int = 0, arguments: str = "") -> bytes:
    one: dict[str, Any] = {
        "index": index,
        "id": call_id,
        "type": "function",
        "function": {"name": "pay", "arguments": arguments},
    }
    if call_id is None:
        del one["id"]
    return delta(tool_calls=[one])


def more(arguments: str, **members: Any) -> bytes:
    return delta(tool_calls=[{"index": 0, **members, "function": {"arguments": arguments}}])


HEAD = delta(role="assistant", content="") + delta(content="I pay now.")
CALL = opening() + more('{"amount"') + more(": 700}")
END = delta("tool_calls")
TAIL = event([], usage=USAGE) + DONE
GOOD = HEAD + CALL + END + TAIL
ANSWER = delta(role="assistant", content="Paid.") + delta("stop") + TAIL


class Till:
    """What was really paid."""

    def __init__(self) -> None:
        self.paid: list[int] = []


@al.tool
async def pay(amount: int, ctx: al.ToolContext[Till]) -> str:
    """Pay an amount, in cents. Not to be repeated."""
    ctx.deps.paid.append(amount)
    return f"paid {amount}"


AGENT = al.Agent(name="till", tools=[pay])


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run against one answer of the server."""

    error: Exception | None
    result: al.RunResult | None
    till: Till
    sink: RecordingSink
    events: list[al.Event]
    facts: list[Any]
    feedback: list[str]
    requests: list[bytes]


async def run(*answers: Answer | bytes, outcome: str) -> Outcome:
    till, sink = Till(), RecordingSink()
    error: Exception | None = None
    result = None
    async with ReplayServer() as server:
        server.script(*answers)
        provider = al.ChatCompletions(server.url, model="m", api_key="k-1")
        async with al.Runtime(provider) as runtime:
            try:
                result = await runtime.run(AGENT, "Pay 7 euros.", deps=till, sink=sink, run_id="r")
            except (al.StreamRefused, al.ProviderError) as caught:
                error = caught
            events = await check_end(runtime, "r", outcome)
            slots = [slot for entry in turn_of(runtime, "r").entries for slot in entry.slots]
            facts = await facts_of(runtime)
            connections = provider._session.connector._acquired  # type: ignore[union-attr]
            assert not connections  # none is still held by a stream
        bodies = [request.body for request in server.requests]
        assert len({request.headers["x-client-request-id"] for request in server.requests}) == len(bodies)
    return Outcome(
        error=error,
        result=result,
        till=till,
        sink=sink,
        events=events,
        facts=facts,
        feedback=[slot.feedback.text for slot in slots],
        requests=bodies,
    )


UNSAFE = {
    "a whole call, then the end of the body": (HEAD + CALL, "truncated"),
    "a whole call and its finish, no mark": (HEAD + CALL + END, "missing_done"),
    "the mark without a finish": (HEAD + CALL + DONE, "missing_terminal"),
    "the id of a call changes on the way": (HEAD + CALL + more("", id="call_2") + END + TAIL, "index_conflict"),
    "two calls with one id": (
        HEAD + opening(arguments='{"amount": 1}') + opening(index=1, arguments='{"amount": 2}') + END + TAIL,
        "duplicate_call_id",
    ),
    "a call without an id": (HEAD + opening(None, arguments='{"amount": 1}') + END + TAIL, "missing_call_id"),
    "text of another choice": (HEAD + delta(choice=1, content="no") + CALL + END + TAIL, "unexpected_choice"),
    "text after the finish": (HEAD + CALL + END + delta(content="no") + TAIL, "after_terminal"),
    "two finishes that differ": (HEAD + CALL + END + delta("stop") + TAIL, "duplicate_terminal"),
    "a finish that names calls, and none": (HEAD + END + TAIL, "terminal_conflict"),
    "another reply in the middle": (HEAD + CALL.replace(b"chatcmpl-1", b"chatcmpl-2") + END + TAIL, "identity_changed"),
    "no usage": (HEAD + CALL + END + DONE, "missing_usage"),
    "an error in the middle": (HEAD + CALL + b'data: {"error": {"message": "overloaded"}}\n\n', "vendor_error"),
}


@pytest.mark.parametrize("name", UNSAFE)
async def test_a_stream_that_is_no_complete_reply_pays_nothing_and_is_sent_once(name: str) -> None:
    """(R114, R120, R121, R123)"""
    body, code = UNSAFE[name]
    got = await run(Answer(body=body), outcome="failed")
    assert isinstance(got.error, al.StreamRefused)
    assert got.error.code == code
    assert_nothing_came_of_it(got, code)


def assert_nothing_came_of_it(got: Outcome, code: str) -> None:
    assert got.till.paid == []
    assert got.result is None
    assert len(got.requests) == 1
    assert not [fact for fact in got.facts if isinstance(fact, (ReplyTaken, SlotMoved))]
    (end,) = got.sink.of(al.ModelEnd)
    assert (end.status, end.retracted, end.code) == ("error", bool(got.sink.text), code)
    assert not [event for event in got.events if isinstance(event, (al.TextPreview, al.ToolStarted, al.ToolSkipped))]
    assert "700" not in str(got.error)


@pytest.mark.parametrize("name", UNSAFE)
async def test_text_that_was_shown_before_the_fault_is_retracted(name: str) -> None:
    """(R123, R126, R267)"""
    body, _ = UNSAFE[name]
    got = await run(Answer(body=body, writes="events"), outcome="failed")
    if got.sink.text:
        assert got.sink.text.startswith("I pay now.")
        assert got.sink.of(al.ModelEnd)[0].retracted
    else:  # the fault came with the text, in one read
        assert not got.sink.of(al.ModelEnd)[0].retracted
    assert got.sink.types[0] == "model.start"
    assert got.sink.types[-1] == "model.end"


async def test_a_connection_that_is_reset_in_the_middle_pays_nothing() -> None:
    """(R114, R120)"""
    got = await run(Answer(body=HEAD + CALL, ending="reset"), outcome="failed")
    assert isinstance(got.error, al.StreamRefused)
    assert got.error.may_have_been_processed
    assert_nothing_came_of_it(got, "truncated")


async def test_a_connection_that_is_cut_after_the_finish_pays_nothing() -> None:
    got = await run(Answer(body=HEAD + CALL + END, ending="close"), outcome="failed")
    assert isinstance(got.error, al.StreamRefused)
    assert_nothing_came_of_it(got, "missing_done")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(status: int) -> None:
    """(R114)"""
    async with ReplayServer() as other:
        other.script(GOOD)
        answer = Answer(status=status, headers={"location": f"{other.url}/chat/completions"}, framing="length")
        got = await run(answer, outcome="failed")
        assert other.requests == []
    assert isinstance(got.error, al.HTTPStatusError)
    assert got.error.status == status
    assert_nothing_came_of_it(got, "http_status")


@pytest.mark.parametrize(
    ("word", "outcome", "slot"),
    [("length", "incomplete", "reply_incomplete"), ("content_filter", "refused", "reply_refused")],
)
async def test_a_reply_that_was_cut_off_or_filtered_is_kept_and_runs_none_of_its_calls(
    word: str, outcome: str, slot: str
) -> None:
    """(R25, R26, R27)"""
    got = await run(HEAD + CALL + delta(word) + TAIL, outcome=outcome)
    assert got.result is not None
    assert (got.result.outcome, got.result.reason, got.result.tool_calls) == (outcome, word, 0)
    with pytest.raises(al.OutcomeError):
        got.result.require_text()
    assert got.till.paid == []
    assert len(got.requests) == 1
    (skipped,) = (event for event in got.events if isinstance(event, al.ToolSkipped))
    assert (skipped.slot, skipped.code) == ("skipped", slot)
    assert got.feedback == [f"This call was not run: the reply that asked for it was {outcome}."]


async def test_cut_arguments_under_a_good_finish_are_told_to_the_model_and_nothing_is_paid() -> None:
    """(R19, R55)"""
    cut = HEAD + opening() + more('{"amount": 70') + END + TAIL
    got = await run(cut, ANSWER, outcome="completed")
    assert got.till.paid == []
    assert len(got.requests) == 2
    (told,) = got.feedback
    assert told.startswith("Nothing ran. ")
    assert "JSON" in told
    assert json.loads(got.requests[1])["messages"][-1]["content"] == told


@pytest.mark.parametrize("after", [b"", GOOD, b"data: {broken", b"\x00\xff garbage", delta(content="more") + DONE])
@pytest.mark.parametrize("writes", ["events", "whole"])
async def test_the_stream_that_is_complete_up_to_its_mark_pays_exactly_once(after: bytes, writes: Any) -> None:
    """What follows ``[DONE]`` is not read. (R114, R122, R123, R341)"""
    got = await run(Answer(body=GOOD + after, writes=writes), ANSWER, outcome="completed")
    assert got.till.paid == [700]
    assert got.result is not None
    assert (got.result.text, got.result.tool_calls, got.result.model_calls) == ("Paid.", 1, 2)
    assert got.result.usage == al.Usage(input_tokens=20, output_tokens=10, total_tokens=30)
    assert got.sink.text == "I pay now.Paid."
    assert len(got.requests) == 2
    message = json.loads(got.requests[1])["messages"][-1]
    assert message == {"role": "tool", "tool_call_id": "call_1", "content": "paid 700"}


async def test_a_refused_stream_leaves_a_conversation_that_goes_on() -> None:
    till = Till()
    async with ReplayServer() as server:
        server.script(Answer(body=HEAD + CALL), GOOD, ANSWER)
        async with al.Runtime(al.ChatCompletions(server.url, model="m")) as runtime:
            with pytest.raises(al.StreamRefused):
                await runtime.run(AGENT, "Pay.", deps=till, conversation="c")
            result = await runtime.run(AGENT, "Please.", deps=till, conversation="c")
        assert (result.text, till.paid, len(server.requests)) == ("Paid.", [700], 3)
        roles = [message["role"] for message in server.requests[1].json["messages"]]
    assert roles == ["user"]  # a turn without one complete exchange leaves nothing to continue


STOPPED_EARLY = [name for name, (_, code) in UNSAFE.items() if code not in ("truncated", "missing_done")]


@pytest.mark.parametrize("name", STOPPED_EARLY)
async def test_the_connection_is_closed_at_once_though_the_server_would_go_on(name: str) -> None:
    """(R121)"""
    body, code = UNSAFE[name]
    till = Till()
    async with ReplayServer() as server:
        server.script(Answer(body=body, ending="stall"))
        async with al.Runtime(al.ChatCompletions(server.url, model="m")) as runtime:
            with pytest.raises(al.StreamRefused) as caught:
                await runtime.run(AGENT, "Pay.", deps=till)
            await server.wait_disconnects(1)
        assert (caught.value.code, till.paid, len(server.requests)) == (code, [], 1)
