"""The example by which the whole is judged: read a note, read another, write one, answer.

Once with a scripted provider, once over HTTP with recordings; the same agent and tools.
"""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest

import agentloop as al
from agentloop.exchange import OriginOpened, ReplyTaken, RequestRef, SendStarted, SlotMoved
from agentloop.testing import ReplayServer, ScriptedProvider, ScriptError, call, reply
from tests.runs import check_end, facts_of, turn_of

RECORDINGS = Path(__file__).parent / "recordings"
A = UUID("6f1f6c1e-3d5b-4f57-9a4e-2a5b8f4b7a01")
B = UUID("b0d8a5c2-7e2f-4a5c-8d3e-94c1d7e6f502")
TASK = "Compare the two notes, and write a summary."


class Note(msgspec.Struct, frozen=True):
    id: str
    title: str
    body: str


class Notes:
    """A notebook that numbers what it keeps and cuts white space, so that what is asked and what is kept differ."""

    def __init__(self, **bodies: str) -> None:
        self.kept = {
            A: Note(str(A), "Alpha", bodies.get("a", "ship on Friday")),
            B: Note(str(B), "Beta", bodies.get("b", "Friday is fine")),
        }
        self.written: list[Note] = []


@al.tool(idempotent=True)
async def read_note(id: UUID, ctx: al.ToolContext[Notes]) -> Note:
    """Read an existing note by its id."""
    return ctx.deps.kept[id]


@al.tool
async def write_note(title: str, body: str, ctx: al.ToolContext[Notes]) -> Note:
    """Write a note."""
    note = Note(f"note-{len(ctx.deps.written) + 1}", title.strip(), " ".join(body.split()))
    ctx.deps.written.append(note)
    return note


ASSISTANT = al.Agent(
    name="notes",
    instructions="You keep notes.",
    tools=[read_note, write_note],
    policy_version="notes-assistant.v1",
)


def note_in(request: al.ModelRequest, exchange: int) -> Note:
    """The note that a feedback carries, checked as strictly as a reader can (R164)."""
    item = request.exchanges[exchange]
    (asked,) = item.reply.output
    (told,) = item.feedback
    assert isinstance(asked, al.ToolCall)
    assert told.tool_call_id == asked.id
    assert told.status == "ok"
    (content,) = told.content
    return msgspec.json.decode(content.text, type=Note)


def read_first(request: al.ModelRequest) -> al.ModelReply:
    assert request.exchanges == ()
    assert [tool.name for tool in request.tools] == ["read_note", "write_note"]
    return reply(calls=[call("read_note", call_id="c1", arguments_text=f'{{"id":"{A}"}}')])


def read_second(request: al.ModelRequest) -> al.ModelReply:
    assert note_in(request, 0).id == str(A)
    return reply(calls=[call("read_note", call_id="c2", arguments_text=f'{{"id":"{B}"}}')])


def write(request: al.ModelRequest) -> al.ModelReply:
    first, second = note_in(request, 0), note_in(request, 1)
    return reply(calls=[call("write_note", call_id="c3", title=" Summary ", body=f"{first.body};\n {second.body}")])


def tell(request: al.ModelRequest) -> al.ModelReply:
    assert len(request.exchanges) == 3
    written = note_in(request, 2)
    return reply(f"I wrote {written.id}, {written.title}: {written.body}")


SCRIPT = [read_first, read_second, write, tell]


async def run_it(notes: Notes) -> tuple[al.RunResult, ScriptedProvider]:
    provider = ScriptedProvider(SCRIPT)
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(ASSISTANT, TASK, deps=notes, run_id="r")
        await check_end(runtime, "r", "completed", "stop")
    provider.assert_complete()
    return result, provider


async def test_four_requests_the_last_with_the_write_feedback_and_a_text_from_the_note_that_was_written() -> None:
    """(R12, R153, R158, R162, R163, R170, R341)"""
    notes = Notes()
    result, provider = await run_it(notes)
    assert len(provider.requests) == 4
    assert [len(request.exchanges) for request in provider.requests] == [0, 1, 2, 3]
    (written,) = notes.written
    assert note_in(provider.requests[3], 2) == written
    assert result.require_text() == "I wrote note-1, Summary: ship on Friday; Friday is fine"
    assert (result.model_calls, result.tool_calls, result.usage) == (4, 3, None)
    for request in provider.requests:
        assert request.tools == ASSISTANT.toolset.specs
        assert request.messages == (*ASSISTANT.system, al.UserMessage(content=TASK))


async def test_what_the_model_wanted_to_write_and_what_was_written_are_two_facts() -> None:
    """(R171)"""
    notes = Notes()
    _, provider = await run_it(notes)
    exchange = provider.requests[3].exchanges[2]
    wanted = msgspec.json.decode(exchange.reply.calls[0].arguments.text)
    assert wanted == {"title": " Summary ", "body": "ship on Friday;\n Friday is fine"}
    assert notes.written == [Note("note-1", "Summary", "ship on Friday; Friday is fine")]


async def test_another_material_gives_another_result() -> None:
    """(R172)"""
    one, _ = await run_it(Notes())
    other, _ = await run_it(Notes(a="ship on Monday"))
    assert one.text != other.text
    assert other.text == "I wrote note-1, Summary: ship on Monday; Friday is fine"


async def test_the_scripted_provider_fails_loudly_on_what_its_script_does_not_expect() -> None:
    """(R164)"""
    async with al.Runtime(ScriptedProvider(SCRIPT[:3])) as runtime:
        with pytest.raises(ScriptError, match="expected at most 3 requests, got number 4"):
            await runtime.run(ASSISTANT, TASK, deps=Notes(), run_id="r")
        await check_end(runtime, "r", "failed", "ScriptError")


async def test_the_final_text_is_an_answer_and_changes_nothing() -> None:
    """(R159)"""
    notes = Notes()
    provider = ScriptedProvider([reply("I have written the summary and deleted both notes.")])
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(ASSISTANT, TASK, deps=notes)
    assert (result.tool_calls, notes.written, len(notes.kept)) == (0, [], 2)


async def test_each_round_is_stored_before_it_is_used_and_a_send_is_given_references_only() -> None:
    """(R12, R71, R75, R76, R80, R126)"""
    provider = ScriptedProvider(SCRIPT)
    async with al.Runtime(provider) as runtime:
        await runtime.run(ASSISTANT, TASK, deps=Notes(), run_id="r")
        facts = await facts_of(runtime)
        turn = turn_of(runtime, "r")
    opened = facts[0]
    assert isinstance(opened, OriginOpened)
    kinds = [type(fact).__name__ for fact in facts]
    tool_round = ["SendStarted", "SendEnded", "ReplyTaken", "SlotMoved", "SlotMoved"]
    assert kinds == ["OriginOpened", *tool_round * 3, *tool_round[:3], "RunClosed"]
    sends = [fact for fact in facts if isinstance(fact, SendStarted)]
    assert [send.request for send in sends] == [
        RequestRef(origin_id=opened.origin_id, exchanges=count, digest=turn.digests[count]) for count in range(4)
    ]
    replies = [fact for fact in facts if isinstance(fact, ReplyTaken)]
    assert [taken.attempt_id for taken in replies] == [send.attempt_id for send in sends] == provider.attempts
    slots = [fact for fact in facts if isinstance(fact, SlotMoved)]
    assert [slot.effect_id for slot in slots] == [f"r/{at}.0" for at in (0, 0, 1, 1, 2, 2)]


async def test_the_same_over_http_is_four_requests_too() -> None:
    """(R12, R162, R163, R169, R170)"""
    notes = Notes()
    async with ReplayServer(RECORDINGS) as server:
        provider = al.ChatCompletions(server.url, model="notes-demo")
        async with al.Runtime(provider) as runtime, runtime.start(ASSISTANT, TASK, deps=notes, run_id="r") as run:
            shown = [event.text async for event in run if isinstance(event, al.TextPreview)]
            result = await run.result()
            await check_end(runtime, "r", "completed", "stop")
    assert len(server.requests) == 4
    assert notes.written == [Note("note-1", "Summary", "Alpha and beta agree: ship on Friday.")]
    assert result.text == "Both notes agree, so I wrote a summary: ship on Friday."
    assert "".join(shown) == f"Reading the first note.{result.text}"
    assert result.usage == al.Usage(input_tokens=1040, output_tokens=89, total_tokens=1129)

    bodies = [request.json for request in server.requests]
    assert [len(body["messages"]) for body in bodies] == [2, 4, 6, 8]
    *_, asked, told = bodies[3]["messages"]
    assert asked["tool_calls"][0]["function"]["name"] == "write_note"
    assert (told["role"], told["tool_call_id"]) == ("tool", asked["tool_calls"][0]["id"])
    assert msgspec.json.decode(told["content"], type=Note) == notes.written[0]
    assert [tool["function"]["name"] for tool in bodies[0]["tools"]] == ["read_note", "write_note"]
    for before, after in zip(server.requests, server.requests[1:], strict=False):
        assert after.body.startswith(before.body.removesuffix(b"]}"))
