"""Conversations on a runtime: listed, read, branched, redacted and forgotten, in memory and on a file."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
from agentloop.exchange import ConversationBranched, OriginOpened, RunRedacted
from agentloop.messages import ModelExchange, SystemMessage, UserMessage
from agentloop.persistence import Backend, MemoryBackend
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.testing import FakeClock, ScriptedProvider, call, reply
from tests.runs import facts_of

AGENT = al.Agent(name="a", instructions="Be brief.")
SECRET = "the pass phrase is heliotrope"  # looked for in the file


@al.tool
async def note(text: str) -> str:
    """Note something down."""
    return f"noted {text}"


NOTING = al.Agent(name="a", instructions="Be brief.", tools=[note])


@pytest.fixture(params=["memory", "sqlite"])
def medium(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Backend]:
    """Another handle on the same medium."""
    if request.param == "memory":
        held = MemoryBackend()
        return lambda: held
    return lambda: SQLiteBackend(tmp_path / "store.db")


def runtime(medium: Callable[[], Backend], *script: Any) -> al.Runtime:
    return al.Runtime(ScriptedProvider(list(script)), store=medium())


def said(messages: tuple[al.Message, ...]) -> list[str]:
    words = []
    for message in messages:
        match message:
            case SystemMessage():
                words.append("system")
            case UserMessage():
                words.append(f"user: {message.content}")
            case ModelExchange():
                words.append(f"model: {message.reply.text or message.reply.calls[0].name}")
    return words


async def talk(host: al.Runtime, *texts: str, conversation: str = "c") -> list[str]:
    return [(await host.run(AGENT, text, conversation=conversation)).ref for text in texts]


# -- reading


async def test_conversations_are_listed_with_their_runs(medium: Any) -> None:
    async with runtime(medium, reply("1"), reply("2"), reply("3")) as host:
        runs = await talk(host, "a", "b")
        await talk(host, "c", conversation="b first by name")
        rows = await host.conversations()
        assert [row.name for row in rows] == ["b first by name", "c"]
        at = (await host.view(runs[-1])).opened_at_ms
        assert rows[1] == al.ConversationRow(name="c", runs=tuple(runs), live=None, newest_at_ms=at)
        assert await host.conversations(prefix="c") == rows[1:]
        assert await host.conversations(prefix="d") == []


async def test_a_prefix_that_is_no_text_is_refused(medium: Any) -> None:
    async with runtime(medium) as host:
        with pytest.raises(al.InputError, match="prefix: expected Unicode text, got int"):
            await host.conversations(prefix=1)  # type: ignore[arg-type]


async def test_a_conversation_is_read_at_any_exchange(medium: Any) -> None:
    script = [reply(calls=[call("note", text="x")]), reply("one"), reply("two")]
    async with runtime(medium, *script) as host:
        await host.run(NOTING, "first", conversation="c")
        await host.run(NOTING, "second", conversation="c")
        refs = await host.exchanges("c")
        read = [said(await host.history("c", ref)) for ref in refs]
        assert read[2] == ["system", "user: first", "model: note", "model: one", "user: second", "model: two"]
        assert read[:2] == [read[2][:3], read[2][:4]]
        assert said(await host.history("c")) == read[2]
        assert len({ref.digest for ref in refs}) == 3


async def test_another_process_reads_what_was_said_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with (
        al.Runtime(ScriptedProvider([reply("1"), reply("3")]), store=SQLiteBackend(path)) as one,
        al.Runtime(ScriptedProvider([reply("2")]), store=SQLiteBackend(path)) as two,
    ):
        await talk(one, "a")
        await talk(two, "b")
        assert said(await one.history("c")) == ["system", "user: a", "model: 1", "user: b", "model: 2"]
        await talk(one, "c")
        assert said(await two.history("c"))[-2:] == ["user: c", "model: 3"]


async def test_a_turn_without_an_exchange_is_no_part_of_what_is_read(medium: Any) -> None:
    async with runtime(medium, al.ConnectionFailed("no"), reply("ok")) as host:
        with pytest.raises(al.ConnectionFailed):
            await talk(host, "lost")
        assert (await host.history("c"), await host.exchanges("c")) == ((), ())
        await talk(host, "again")
        assert said(await host.history("c")) == ["system", "user: again", "model: ok"]


async def test_what_is_not_there_is_lost_and_another_digest_is_a_conflict(medium: Any) -> None:
    async with runtime(medium, reply("1"), reply("2")) as host:
        await talk(host, "a")
        await talk(host, "b", conversation="d")
        (ref,), (other,) = await host.exchanges("c"), await host.exchanges("d")
        with pytest.raises(al.LostError, match="conversation 'nobody'"):
            await host.history("nobody")
        with pytest.raises(al.LostError, match="exchange"):
            await host.history("c", other)
        with pytest.raises(al.LostError, match="exchange"):
            await host.history("c", msgspec.structs.replace(ref, index=1))
        with pytest.raises(al.ConflictError, match="digest"):
            await host.history("c", msgspec.structs.replace(ref, digest="0" * 64))
        with pytest.raises(al.InputError, match="ExchangeRef"):
            await host.history("c", "x")  # type: ignore[arg-type]


# -- branches


async def test_a_branch_goes_on_from_an_exchange_and_leaves_the_other_alone(medium: Any) -> None:
    """(R75, R77)"""
    provider = ScriptedProvider([reply("1"), reply("2"), reply("x"), reply("y"), reply("3")])
    async with al.Runtime(provider, store=medium()) as host:
        await talk(host, "a", "b")
        first, _ = await host.exchanges("c")
        await host.branch("c", first, "d")
        assert said(await host.history("d")) == ["system", "user: a", "model: 1"]
        await talk(host, "left", "right", conversation="d")
        await talk(host, "c")
        asked = said((*provider.requests[3].messages, *provider.requests[3].exchanges))
        assert asked == ["system", "user: a", "model: 1", "user: left", "model: x", "user: right"]
        assert said(await host.history("c"))[-1] == "model: 3"
        refs = await host.exchanges("d")
        assert (len(refs), refs[0]) == (3, first)


async def test_a_branch_of_a_branch_survives_the_process(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with al.Runtime(ScriptedProvider([reply("1"), reply("2")]), store=SQLiteBackend(path)) as host:
        await talk(host, "a", "b")
        first, second = await host.exchanges("c")
        await host.branch("c", second, "d")
        await host.branch("d", first, "e")  # an exchange that d goes through
    async with al.Runtime(ScriptedProvider([reply("x"), reply("y")]), store=SQLiteBackend(path)) as host:
        await talk(host, "more", conversation="e")
        await talk(host, "more", conversation="d")
        assert said(await host.history("e")) == ["system", "user: a", "model: 1", "user: more", "model: x"]
        assert said(await host.history("d"))[3:] == ["user: b", "model: 2", "user: more", "model: y"]


async def test_a_branch_is_refused_where_it_cannot_be(medium: Any) -> None:
    async with runtime(medium, reply("1"), reply("2")) as host:
        await talk(host, "a")
        await talk(host, "b", conversation="d")
        (ref,), (other,) = await host.exchanges("c"), await host.exchanges("d")
        before = await facts_of(host)
        for name in ("c", "d"):
            with pytest.raises(al.ConflictError, match="not used yet"):
                await host.branch("c", ref, name)
        with pytest.raises(al.LostError, match="exchange"):
            await host.branch("c", other, "e")
        with pytest.raises(al.InputError, match="name"):
            await host.branch("c", ref, "")
        assert await facts_of(host) == before


async def test_two_processes_that_branch_to_one_name_make_one_branch(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with (
        al.Runtime(ScriptedProvider([reply("1")]), store=SQLiteBackend(path)) as one,
        al.Runtime(ScriptedProvider([]), store=SQLiteBackend(path)) as two,
    ):
        await talk(one, "a")
        (ref,) = await one.exchanges("c")
        ends = await asyncio.gather(one.branch("c", ref, "d"), two.branch("c", ref, "d"), return_exceptions=True)
        assert sorted(type(end).__name__ for end in ends) in (
            ["ConflictError", "NoneType"],
            ["NoneType", "NotOwnerError"],
        )
        branches = [fact for fact in await facts_of(one) if type(fact) is ConversationBranched]
        assert len(branches) == 1


# -- forgetting


async def test_a_conversation_that_others_go_on_from_is_kept(medium: Any) -> None:
    async with runtime(medium, reply("1"), reply("2")) as host:
        await talk(host, "a")
        (ref,) = await host.exchanges("c")
        await host.branch("c", ref, "d")
        await talk(host, "b", conversation="d")
        with pytest.raises(al.ConflictError, match="expected no branch of it, got conversation 'd'"):
            await host.forget(conversation="c")
        await host.forget(conversation="d")
        await host.forget(conversation="c")
        assert (await host.conversations(), await facts_of(host)) == ([], [])


async def test_what_another_process_wrote_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with al.Runtime(ScriptedProvider([reply(SECRET)]), store=SQLiteBackend(path)) as host:
        await talk(host, "a")
    async with al.Runtime(ScriptedProvider([]), store=SQLiteBackend(path)) as host:
        await host.forget(conversation="c")
        assert await host.conversations() == []
        assert [name for name in path.parent.iterdir() if SECRET.encode() in name.read_bytes()] == []


class Interleaved(SQLiteBackend):
    """One process's handle: what another process does in between is done before its write.

    Attributes:
        between: awaited once, before the next forgetting, branching or opening is written.
        reading: awaited once, before a conversation is read the next time.
    """

    between: Callable[[], Awaitable[object]] | None = None
    reading: Callable[[], Awaitable[object]] | None = None

    async def append(self, facts: Any, **given: Any) -> None:
        between, self.between = self.between, None
        if between is not None and isinstance(facts[0], OriginOpened | ConversationBranched):
            await between()
        await super().append(facts, **given)

    async def forget(self, run_ids: Any, **given: Any) -> None:
        between, self.between = self.between, None
        if between is not None:
            await between()
        await super().forget(run_ids, **given)

    async def load_conversation(self, name: str) -> Any:
        reading, self.reading = self.reading, None
        if reading is not None:
            await reading()
        return await super().load_conversation(name)


class Two:
    """Two runtimes on one file, as two processes, and a conversation ``c`` of one turn."""

    def __init__(self, path: Path, *, one: list[Any], two: list[Any]) -> None:
        self.clock = FakeClock(now=1000.0)
        self.medium = Interleaved(path, clock=self.clock)
        self.models = ScriptedProvider(one), ScriptedProvider(two)
        self.one = al.Runtime(self.models[0], store=self.medium)
        self.two = al.Runtime(self.models[1], store=SQLiteBackend(path, clock=self.clock))

    async def __aenter__(self) -> Two:
        await self.one.__aenter__()
        await self.two.__aenter__()
        await talk(self.one, "a")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.two.aclose()
        await self.one.aclose()

    async def later(self) -> None:
        """What one has locked in other processes, it has not any more: it was away for long."""
        self.clock.advance(31)


async def test_a_conversation_that_another_process_went_on_with_is_not_forgotten(tmp_path: Path) -> None:
    async with Two(tmp_path / "s.db", one=[reply("1"), reply("3")], two=[reply("2")]) as here:
        here.medium.between = lambda: talk(here.two, "b")
        with pytest.raises(
            al.ConflictError, match=r"'c': expected all its runs to be forgotten, got run '\w+' besides"
        ):
            await here.one.forget(conversation="c")
        assert here.one._store.fault is None
        await talk(here.one, "c")  # and goes on, on what is there
        told = ["system", "user: a", "model: 1", "user: b", "model: 2", "user: c", "model: 3"]
        assert said(await here.one.history("c")) == said(await here.two.history("c")) == told
        await here.one.forget(conversation="c")
        assert await facts_of(here.two) == []


async def test_a_conversation_that_another_process_branched_off_from_is_not_forgotten(tmp_path: Path) -> None:
    async with Two(tmp_path / "s.db", one=[reply("1")], two=[reply("2")]) as here:
        (ref,) = await here.one.exchanges("c")

        async def branch() -> None:
            with pytest.raises(al.NotOwnerError):
                await here.two.branch("c", ref, "d")
            await here.later()
            await here.two.branch("c", ref, "d")
            await talk(here.two, "b", conversation="d")

        here.medium.between = branch
        with pytest.raises(al.ConflictError, match="expected no branch of it, got conversation 'd'"):
            await here.one.forget(conversation="c")
        assert said(await here.one.history("d")) == ["system", "user: a", "model: 1", "user: b", "model: 2"]


async def test_a_conversation_is_not_branched_that_another_process_has_just_forgotten(tmp_path: Path) -> None:
    async with Two(tmp_path / "s.db", one=[reply("1"), reply("new")], two=[]) as here:
        (ref,) = await here.one.exchanges("c")

        async def forget() -> None:
            with pytest.raises(al.NotOwnerError):
                await here.two.forget(conversation="c")
            await here.later()
            await here.two.forget(conversation="c")

        here.medium.between = forget
        with pytest.raises(al.ConflictError, match="that its branch goes on from, got none"):
            await here.one.branch("c", ref, "d")
        assert (here.one._store.fault, await facts_of(here.one)) == (None, [])
        with pytest.raises(al.LostError, match="conversation 'c'"):
            await here.one.branch("c", ref, "d")
        await talk(here.one, "a", conversation="d")
        assert said(await here.one.history("d")) == ["system", "user: a", "model: new"]


async def test_a_run_on_a_conversation_that_another_process_has_just_forgotten_begins_it_anew(tmp_path: Path) -> None:
    async with Two(tmp_path / "s.db", one=[reply("1"), reply("new")], two=[]) as here:
        here.medium.between = lambda: here.two.forget(conversation="c")
        await talk(here.one, "b")
        assert said((*here.models[0].requests[1].messages, *here.models[0].requests[1].exchanges)) == [
            "system",
            "user: b",
        ]
        assert said(await here.two.history("c")) == ["system", "user: b", "model: new"]


async def test_what_is_forgotten_between_two_readings_is_lost_and_no_damage(tmp_path: Path) -> None:
    async with Two(tmp_path / "s.db", one=[reply("1"), reply("new")], two=[reply("2"), reply("3")]) as here:
        await talk(here.two, "x", conversation="e")  # which one does not know
        (ref,) = await here.one.exchanges("e")
        (run,) = (await here.two._store.conversation("e")).runs
        here.medium.reading = lambda: here.two.forget(conversation="e")
        with pytest.raises(al.LostError, match="conversation 'e'"):
            await here.one.result(run)
        with pytest.raises(al.LostError, match="conversation 'e'"):
            await here.one.branch("e", ref, "d")
        await talk(here.two, "b")  # so that one has to read it again
        here.medium.reading = lambda: here.two.forget(conversation="c")
        await talk(here.one, "c")
        assert said(await here.one.history("c")) == ["system", "user: c", "model: new"]


async def test_a_branch_that_cannot_be_read_keeps_what_it_may_go_on_from_and_the_store_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    async with al.Runtime(ScriptedProvider([reply("1"), reply("2")]), store=SQLiteBackend(path)) as host:
        await talk(host, "a")
        (ref,) = await host.exchanges("c")
        await host.branch("c", ref, "d")
        connection = sqlite3.connect(path)
        connection.execute("UPDATE facts SET record = 'rubbish' WHERE record LIKE '%conversation_branched%'")
        connection.commit()
        connection.close()
        with pytest.raises(al.RestoreError, match="fact 6: expected the checksum"):
            await host.forget(conversation="c")
        await talk(host, "b")
        assert said(await host.history("c")) == ["system", "user: a", "model: 1", "user: b", "model: 2"]


# -- redacting


async def test_a_redacted_turn_leaves_its_digests_and_no_text(medium: Any) -> None:
    provider = ScriptedProvider([reply("1"), reply("2 " + SECRET), reply("3"), reply("4")])
    async with al.Runtime(provider, store=medium()) as host:
        _, second, _ = await talk(host, "a", SECRET, "c")
        refs = await host.exchanges("c")
        await host.redact(second, author="Ada")
        assert await host.exchanges("c") == refs
        assert said(await host.history("c")) == ["system", "user: a", "model: 1", "user: c", "model: 3"]
        assert said(await host.history("c", refs[1])) == ["system", "user: a", "model: 1"]
        facts = await facts_of(host)
        (left,) = [fact for fact in facts if type(fact) is RunRedacted]
        assert (left.run_id, left.author, left.outcome, left.model_calls) == (second, "Ada", "completed", 1)
        assert left.digests[-1] == refs[1].digest
        assert SECRET not in str(facts)
        with pytest.raises(al.LostError, match="text of run"):
            await host.result(second)
        await host.redact(second, author="Bob")  # changes nothing
        assert [fact.author for fact in await facts_of(host) if type(fact) is RunRedacted] == ["Ada"]

        await talk(host, "d")
        asked = said((*provider.requests[3].messages, *provider.requests[3].exchanges))
        assert asked == ["system", "user: a", "model: 1", "user: c", "model: 3", "user: d"]


async def test_what_is_redacted_is_nowhere_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "s.db"

    def holding() -> list[str]:
        return [name.name for name in tmp_path.iterdir() if SECRET.encode() in name.read_bytes()]

    async with al.Runtime(ScriptedProvider([reply(SECRET * 100), reply("2")]), store=SQLiteBackend(path)) as host:
        first, _ = await talk(host, SECRET * 200, "b")
        assert holding()
        await host.redact(first, author="Ada")
        assert holding() == []
    async with al.Runtime(ScriptedProvider([reply("3")]), store=SQLiteBackend(path)) as host:
        await talk(host, "c")
        assert said(await host.history("c")) == ["system", "user: b", "model: 2", "user: c", "model: 3"]
    assert holding() == []


async def test_a_branch_loses_what_is_redacted_before_it(medium: Any) -> None:
    async with runtime(medium, reply("1"), reply(SECRET), reply("x"), reply("y")) as host:
        _, second = await talk(host, "a", "b")
        refs = await host.exchanges("c")
        await host.branch("c", refs[1], "d")
        await talk(host, "c", conversation="d")
        await host.redact(second, author="Ada")
        await talk(host, "d", conversation="d")
        assert said(await host.history("d")) == [
            "system", "user: a", "model: 1", "user: c", "model: x", "user: d", "model: y",
        ]  # fmt: skip


async def test_a_run_of_its_own_is_redacted(medium: Any) -> None:
    async with runtime(medium, reply(SECRET)) as host:
        ref = (await host.run(AGENT, SECRET, run_id="r")).ref
        await host.redact(ref, author="Ada")
        assert SECRET not in str(await facts_of(host))
        with pytest.raises(al.LostError, match="text of run"):
            await host.run(AGENT, SECRET, run_id="r")  # known, and not run again


async def test_what_goes_on_is_not_redacted(medium: Any) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(_: al.ModelRequest) -> al.ModelReply:
        begun.set()
        await go_on.wait()
        return reply("2")

    async with runtime(medium, reply("1"), slowly) as host:
        (first,) = await talk(host, "a")
        ref = await host.submit(AGENT, "b", conversation="c")
        await begun.wait()
        for run in (first, ref):
            with pytest.raises(al.ConflictError, match="expected no run on it"):
                await host.redact(run, author="Ada")
        with pytest.raises(al.ConflictError, match="expected a run that ended"):
            await host.forget(conversation="c")
        go_on.set()
        assert (await host.result(ref)).text == "2"
        with pytest.raises(al.LostError, match="no run 'nobody'"):
            await host.redact("nobody", author="Ada")


async def test_what_is_no_name_of_a_conversation_is_refused_before_the_store_is_asked(tmp_path: Path) -> None:
    wrong: Any = ["c1"]
    async with al.Runtime(ScriptedProvider([reply("done")]), store=tmp_path / "store.db") as runtime:
        await runtime.run(al.Agent(name="a"), "go", conversation="c1")
        (ref,) = await runtime.exchanges("c1")
        for attempt in (
            lambda: runtime.exchanges(wrong),
            lambda: runtime.history(wrong),
            lambda: runtime.branch(wrong, ref, "c2"),
            lambda: runtime.forget(conversation=wrong),
        ):
            with pytest.raises(al.InputError, match=r"^conversation: expected a string .*, got list$"):
                await attempt()
