"""Testing an agent: a scripted provider, real tools, no network. Runs under pytest as it is."""

import asyncio
import json
from uuid import UUID, uuid4

import pytest

import agentloop as al
from agentloop.testing import ScriptedProvider, call, reply


class Notebook(dict[UUID, str]):
    """The application under the tools."""


@al.tool(idempotent=True)
async def read_note(id: UUID, ctx: al.ToolContext[Notebook]) -> str:
    """Read a note by its id."""
    return ctx.deps[id]


@al.tool
async def write_note(text: str, ctx: al.ToolContext[Notebook]) -> UUID:
    """Write a new note; returns its id."""
    id = uuid4()
    ctx.deps[id] = text.strip()
    return id


assistant = al.Agent(name="notes", tools=[read_note, write_note], policy_version="notes.v1")


async def summarise(first: str, second: str) -> tuple[ScriptedProvider, Notebook, al.RunResult[None]]:
    """Run the agent on two notes. The script stands for a model: what it says depends on what it reads."""
    notes = Notebook({uuid4(): first, uuid4(): second})
    one, two = notes

    def write(request: al.ModelRequest) -> al.ModelReply:
        seen = [exchange.feedback[0].text for exchange in request.exchanges]
        return reply(calls=[call("write_note", text=" And: ".join(seen) + "\n")])

    def answer(request: al.ModelRequest) -> al.ModelReply:
        written = UUID(json.loads(request.exchanges[2].feedback[0].text))
        return reply(text=f"I wrote: {notes[written]}")

    provider = ScriptedProvider(
        [
            reply(calls=[call("read_note", id=str(one))]),
            reply(calls=[call("read_note", id=str(two))]),
            write,
            answer,
        ]
    )
    async with al.Runtime(provider) as runtime:
        result = await runtime.run(assistant, "Summarise both notes.", deps=notes)
    provider.assert_complete()
    return provider, notes, result


async def test_the_answer_comes_from_the_note_that_was_really_written() -> None:
    provider, notes, result = await summarise("Doors at nine.", "No projector.")
    assert len(provider.requests) == 4
    assert provider.requests[3].exchanges[2].feedback[0].status == "ok"
    written = list(notes.values())[-1]
    assert written == "Doors at nine. And: No projector."  # as the tool kept it, not as it was asked
    assert result.require_text() == f"I wrote: {written}"


async def test_other_notes_give_another_answer() -> None:
    _, _, result = await summarise("Doors at ten.", "Two projectors.")
    assert result.require_text() == "I wrote: Doors at ten. And: Two projectors."


async def test_an_error_that_a_tool_does_not_declare_ends_the_run() -> None:
    provider = ScriptedProvider([reply(calls=[call("read_note", id=str(uuid4()))])])
    async with al.Runtime(provider) as runtime:
        with pytest.raises(al.ToolCrashed, match="KeyError"):  # al.ToolFailed would be read by the model
            await runtime.run(assistant, "Read it.", deps=Notebook())


if __name__ == "__main__":
    for test in [value for name, value in list(globals().items()) if name.startswith("test_")]:
        asyncio.run(test())
        print(f"passed: {test.__name__.removeprefix('test_').replace('_', ' ')}")
