"""Runtimes on a medium that outlives them: restart, resume, close, share."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentloop as al
import agentloop.runs as runs_module
from agentloop.exchange import Fact, ReplyTaken, RunClosed, SlotMoved
from agentloop.messages import ModelOptions
from agentloop.persistence import MemoryBackend, store
from agentloop.persistence.records import decode_record, encode_record
from agentloop.testing import RecordingSink, ScriptedProvider, call, reply
from tests.mortal import Ground, SharedMemory
from tests.runs import body_of, follow_all, pairs_in


@al.tool
async def note(text: str) -> str:
    """Note something down."""
    return f"noted {text}"


AGENT = al.Agent(name="a", instructions="Be brief.", tools=[note])


@pytest.fixture(params=["memory", "sqlite"])
def ground(request: pytest.FixtureRequest, tmp_path: Path) -> Ground:
    return Ground(tmp_path / "store.db" if request.param == "sqlite" else None)


class Blocked:
    """A provider that answers when it is told to."""

    def __init__(self, *script: Any) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.provider = ScriptedProvider([self._wait(answer) for answer in script])

    def _wait(self, answer: Any) -> Any:
        async def entry(request: al.ModelRequest) -> Any:
            self.asked.set()
            await self.go.wait()
            return answer

        return entry


# -- what survives


async def test_a_conversation_goes_on_after_a_restart(ground: Ground) -> None:
    """(R90, R136)"""
    first = ScriptedProvider([reply(calls=[call("note", text="-0 and 1e400")]), reply("one")])
    async with ground.runtime(first) as runtime:
        await runtime.run(AGENT, "first", conversation="c")
        digests = list(runtime._store.book.turn(runtime._store.book.conversation("c").runs[0]).digests)
    second = ScriptedProvider([reply("two")])
    async with ground.runtime(second) as runtime:
        result = await runtime.run(AGENT, "second", conversation="c")
        assert (result.text, result.conversation) == ("two", "c")
        book = runtime._store.book
        before, now = (book.turn(run) for run in book.conversation("c").runs)
        assert before.digests == digests
        assert now.opened.continues.digest == digests[-1]
    assert [text for _, text in pairs_in(second.requests[0])] == ["noted -0 and 1e400"]
    grown, known = body_of(second.requests[0]), body_of(first.requests[1])
    assert grown.startswith(known.removesuffix(b"]}"))


async def test_without_a_store_nothing_is_kept_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """(R15)"""
    monkeypatch.chdir(tmp_path)
    async with al.Runtime(ScriptedProvider([reply("one")])) as runtime:
        await runtime.run(AGENT, "go", run_id="r")
    assert os.listdir(tmp_path) == []
    async with al.Runtime(ScriptedProvider([])) as runtime:
        assert await runtime.unfinished() == []
        with pytest.raises(al.LostError):
            await runtime.resume("r", AGENT)


async def test_a_path_is_a_file_that_another_runtime_reads(tmp_path: Path) -> None:
    for path in (tmp_path / "one.db", str(tmp_path / "two.db")):
        async with al.Runtime(ScriptedProvider([reply("one")]), store=path) as runtime:
            await runtime.run(AGENT, "go", run_id="r")
        async with al.Runtime(ScriptedProvider([]), store=path) as runtime:
            assert (await runtime.result("r")).text == "one"


@pytest.mark.parametrize("wrong", ["", "mysql://host/db", 7, b"x", MemoryBackend, object()])
def test_what_is_no_store_is_refused(wrong: Any) -> None:
    with pytest.raises(al.InputError, match="store: expected None, a path"):
        al.Runtime(ScriptedProvider([]), store=wrong)


async def test_the_result_of_a_run_that_ended_before_is_read_and_nothing_runs(ground: Ground) -> None:
    """(R135, R87)"""
    async with ground.runtime(ScriptedProvider([reply("one"), al.ConnectionFailed("x")])) as runtime:
        result = await runtime.run(AGENT, "go", run_id="r")
        with pytest.raises(al.ConnectionFailed):
            await runtime.run(AGENT, "go", run_id="f")
    other = al.Agent(name="another")
    async with ground.runtime(ScriptedProvider([])) as runtime:
        assert await runtime.resume("r", other) == result
        assert await runtime.result("r") == await runtime.result("r") == result
        for again in (runtime.result("f"), runtime.resume("f", other)):
            with pytest.raises(al.OutcomeError, match=r"got failed \(connection_failed\)"):
                await again
        with pytest.raises(al.LostError):
            await runtime.result("nobody")


async def test_a_reply_that_was_stored_stays_when_its_delivery_fails(ground: Ground) -> None:
    """(R92)"""

    class Broken(RecordingSink):
        async def emit(self, event: al.Event) -> None:
            if event.type == "model.end":
                raise OSError("the screen is gone")

    provider = ScriptedProvider([reply(calls=[call("note", text="x")]), reply("done")])
    async with ground.runtime(provider) as runtime:
        assert (await runtime.run(AGENT, "go", run_id="r", sink=Broken())).text == "done"
    facts = await ground.facts()
    assert sum(isinstance(fact, ReplyTaken) for fact in facts) == 2
    assert [fact.state for fact in facts if isinstance(fact, SlotMoved)] == ["started", "done"]
    async with ground.runtime(ScriptedProvider([])) as runtime:
        assert (await runtime.resume("r", AGENT)).text == "done"


# -- whose run it is


async def unfinished(
    ground: Ground, agent: al.Agent = AGENT, *, usage: tuple[int, int] | None = None, **options: Any
) -> None:
    """Leave run ``r`` behind with its first call unanswered and known not to have begun.

    It is paused while it waits for the reply, so that no call is claimed with it.
    """
    slow = Blocked(reply(calls=[call("note", text="x")], usage=usage))
    async with ground.runtime(slow.provider) as runtime:
        await runtime.submit(agent, "go", run_id="r", **options)
        await slow.asked.wait()
        runtime._runs.live["r"].request_pause()
        slow.go.set()
        with pytest.raises(al.RunPaused):
            await runtime._runs.live["r"].wait()
    assert [type(fact).__name__ for fact in await ground.facts()][-1] == "ReplyTaken"


@pytest.mark.parametrize(
    ("agent", "code", "what"),
    [
        (al.Agent(name="b", instructions="Be brief.", tools=[note]), "agent_changed", "agent 'a', got agent 'b'"),
        (al.Agent(name="a", instructions="Be long.", tools=[note]), "input_changed", "instructions "),
        (al.Agent(name="a", tools=[note]), "input_changed", "instructions "),
        (
            al.Agent(name="a", instructions="Be brief.", tools=[note], options=ModelOptions(temperature=1.0)),
            "input_changed",
            "options ",
        ),
        (al.Agent(name="a", instructions="Be brief."), "catalogue_changed", "catalogue "),
        (
            al.Agent(name="a", instructions="Be brief.", tools=[note], policy_version="2"),
            "catalogue_changed",
            "catalogue ",
        ),
    ],
)
async def test_another_agent_does_not_resume_a_run(ground: Ground, agent: al.Agent, code: str, what: str) -> None:
    """(R138, R68)"""
    await unfinished(ground)
    facts = await ground.facts()
    async with ground.runtime(ScriptedProvider([reply("done")])) as runtime:
        with pytest.raises(al.RestoreError, match=f"run 'r': expected {what}") as caught:
            await runtime.resume("r", agent)
        assert caught.value.code == code
        assert "Be " not in str(caught.value)
        assert await ground.facts() == facts
        (row,) = await runtime.unfinished()
        assert row.lease is None  # it was given back at once
        assert (await runtime.resume("r", AGENT)).text == "done"


async def test_other_code_under_the_same_name_and_version_is_not_noticed(ground: Ground) -> None:
    """We do not claim to notice it: the digest is over what a tool says of itself (R69)."""
    await unfinished(ground)

    @al.tool(name="note")
    async def changed(text: str) -> str:
        """Note something down."""
        return f"thrown away {text}"

    provider = ScriptedProvider([reply("done")])
    async with ground.runtime(provider) as runtime:
        agent = al.Agent(name="a", instructions="Be brief.", tools=[changed])
        await runtime.resume("r", agent)
    assert [text for _, text in pairs_in(provider.requests[0])] == ["thrown away x"]


async def test_what_a_run_is_resumed_with_is_checked(ground: Ground) -> None:
    await unfinished(ground)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.InputError, match="expected an Agent, got str"):
            await runtime.resume("r", "a")  # type: ignore[arg-type]
        with pytest.raises(al.InputError, match="expected no conversation"):
            await runtime.resume("r", AGENT, conversation="c")
        with pytest.raises(al.InputError, match="author"):
            await runtime.settle_send("r", "x", author="")
        with pytest.raises(al.InputError):
            await runtime.settle_call("r", 0, 0, author="me", result="text")  # type: ignore[arg-type]
        with pytest.raises(al.LostError, match=r"call 'r/7\.0'"):
            await runtime.settle_call("r", 7, 0, author="me")
        with pytest.raises(al.ConflictError, match="expected an unknown slot"):
            await runtime.settle_call("r", 0, 0, author="me")
        with pytest.raises(al.ConflictError, match="expected an attempt without an end"):
            await runtime.settle_send("r", "x", author="me")
        (row,) = await runtime.unfinished()
        assert row.lease is None
    for refused in (runtime.unfinished(), runtime.unsettled(), runtime.resume("r", AGENT)):
        with pytest.raises(al.InputError, match="expected an open runtime"):
            await refused


async def test_what_was_spent_before_counts(ground: Ground) -> None:
    """(R102)"""
    agent = al.Agent(name="a", instructions="Be brief.", tools=[note], limits=al.LoopLimits(max_model_calls=2))
    await unfinished(ground, agent)
    async with ground.runtime(ScriptedProvider([reply(calls=[call("note", text="y")])])) as runtime:
        result = await runtime.resume("r", agent)
        assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_model_calls", 2)


async def test_tokens_that_were_spent_before_count(ground: Ground) -> None:
    """(R102)"""
    agent = al.Agent(name="a", instructions="Be brief.", tools=[note], limits=al.LoopLimits(max_tokens=7))
    await unfinished(ground, agent, usage=(3, 4))
    async with ground.runtime(ScriptedProvider([])) as runtime:
        result = await runtime.resume("r", agent)
        assert (result.outcome, result.reason, result.model_calls) == ("limit_reached", "max_tokens", 1)


async def test_the_size_of_what_an_earlier_owner_sent_counts(ground: Ground) -> None:
    """(R103)"""
    await unfinished(ground)
    async with ground.runtime(ScriptedProvider([])) as runtime:
        last = (await runtime._store.turn("r")).last
        limits = al.LoopLimits(max_wire_request_bytes=last.size + 4 * 1024 + 80)  # no room beside the answer
        result = await runtime.resume("r", al.Agent(name="a", instructions="Be brief.", tools=[note], limits=limits))
        assert (result.outcome, result.reason, result.tool_calls) == ("limit_reached", "max_wire_request_bytes", 0)


# -- two runtimes at once


async def test_of_two_runtimes_on_one_conversation_one_is_told_both_heads(ground: Ground) -> None:
    """(R83)"""
    slow = Blocked(reply("two"))
    async with (
        ground.runtime(ScriptedProvider([reply("one"), reply("three")])) as one,
        ground.runtime(slow.provider) as two,
    ):
        await one.run(AGENT, "a", conversation="c")
        await two.submit(AGENT, "b", conversation="c", run_id="b")
        await slow.asked.wait()
        with pytest.raises(al.StaleHeadError) as caught:
            await one.run(AGENT, "c", conversation="c")
        head = one._store.book.conversation("c").head.digest
        live = two._store.book.turn("b").digests[0]
        assert (caught.value.expected, caught.value.actual) == (head, live)
        slow.go.set()
        assert (await two.result("b")).text == "two"
        result = await one.run(AGENT, "c", conversation="c")
        assert result.text == "three"
        assert len(one._store.book.conversation("c").runs) == 3


async def test_of_many_runtimes_that_open_at_once_one_wins_each_time(ground: Ground) -> None:
    blocked = [Blocked(reply("x")) for _ in range(4)]
    async with (
        ground.runtime(blocked[0].provider) as a,
        ground.runtime(blocked[1].provider) as b,
        ground.runtime(blocked[2].provider) as c,
        ground.runtime(blocked[3].provider) as d,
    ):
        starts = [runtime.submit(AGENT, "go", conversation="c") for runtime in (a, b, c, d)]
        outcomes = await asyncio.gather(*starts, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["StaleHeadError"] * 3 + ["str"]
        for other in (a, b, c, d):  # nobody kept a lease of what was refused
            assert len(other._store._leases) == (other._runs.live != {})
        for one in blocked:
            one.go.set()


async def test_a_run_that_ended_elsewhere_after_it_left_off_here_has_its_result(ground: Ground) -> None:
    async with ground.mortal(ScriptedProvider([]), at=2, when="after") as (runtime, medium):
        await runtime.submit(AGENT, "go", run_id="r")
        await medium.dead.wait()
    ground.clock.advance(31)
    async with (
        ground.runtime(ScriptedProvider([])) as here,
        ground.runtime(ScriptedProvider([reply("there")])) as there,
    ):
        with pytest.raises(al.UnsettledError):
            await here.resume("r", AGENT)
        with pytest.raises(al.UnsettledError):
            await here.result("r")
        (item,) = await here.unsettled()  # although it is known here
        await there.settle_send("r", item.effect_id, author="me")
        await there.resume("r", AGENT)
        assert (await here.result("r")).text == "there"
        assert (await here.resume("r", AGENT)).text == "there"


async def test_a_run_that_was_settled_elsewhere_is_resumed_here(ground: Ground) -> None:
    async with ground.mortal(ScriptedProvider([]), at=2, when="after") as (runtime, medium):
        await runtime.submit(AGENT, "go", run_id="r")
        await medium.dead.wait()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([reply("here")])) as here, ground.runtime(ScriptedProvider([])) as there:
        with pytest.raises(al.UnsettledError):
            await here.resume("r", AGENT)
        (item,) = await there.unsettled()
        await there.settle_send("r", item.effect_id, author="me")
        assert await there.unsettled() == []
        assert (await here.run(AGENT, "go", run_id="r")).text == "here"


async def test_a_run_whose_lease_is_lost_is_stopped_and_says_so(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Blocked(reply("never"))
    async with ground.runtime(slow.provider) as here, ground.runtime(ScriptedProvider([])) as there:
        monkeypatch.setattr(here._store, "lease_seconds", 0.03)  # what the loop waits for, not what was granted
        here._runs._renewing.cancel()
        await here.submit(AGENT, "go", run_id="r")
        await slow.asked.wait()
        ground.clock.advance(31)
        with pytest.raises(al.UnsettledError):
            await there.resume("r", AGENT)
        facts = await ground.facts()
        here._runs._renewing = asyncio.create_task(here._runs._renew())
        with caplog.at_level(logging.ERROR), pytest.raises(al.NotOwnerError):
            await here._runs.live["r"].wait()
        assert "run r was taken over by another owner" in caplog.text
        assert await ground.facts() == facts
        assert here._store.fault is None


async def test_leases_are_renewed_while_a_run_goes_on(ground: Ground) -> None:
    slow = Blocked(reply("done"))
    async with ground.runtime(slow.provider, lease_seconds=0.3) as here, ground.runtime(ScriptedProvider([])) as there:
        await here.submit(AGENT, "go", run_id="r")
        await slow.asked.wait()
        for _ in range(3):
            ground.clock.advance(0.25)
            before = ground.clock()
            while True:  # until the next renewal
                (row,) = await there.unfinished()
                assert row.lease is not None
                if row.lease.seconds_left > 0.2:
                    break
                await asyncio.sleep(0.01)
            assert ground.clock() == before
        slow.go.set()
        assert (await here.result("r")).text == "done"


async def test_leases_that_could_not_be_renewed_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Flickering(SharedMemory):
        def __init__(self) -> None:
            super().__init__()
            self.away, self.renewed = True, asyncio.Event()

        async def renew(self, leases: Any, *, seconds: float) -> Any:
            if self.away:
                self.away = False
                raise OSError("no answer")
            self.renewed.set()
            return await super().renew(leases, seconds=seconds)

    slow, medium = Blocked(reply("done")), Flickering()
    async with al.Runtime(slow.provider, store=medium) as runtime:
        monkeypatch.setattr(runtime._store, "lease_seconds", 0.03)  # what the loop waits for, not what was granted
        runtime._runs._renewing.cancel()
        await runtime.submit(AGENT, "go", run_id="r")
        await slow.asked.wait()
        with caplog.at_level(logging.ERROR):
            runtime._runs._renewing = asyncio.create_task(runtime._runs._renew())
            await medium.renewed.wait()
        assert caplog.text.count("leases could not be renewed: ") == 1
        slow.go.set()
        assert (await runtime.result("r")).text == "done"


# -- closing


async def test_a_submitted_run_is_left_unfinished_at_the_end_of_its_effect(ground: Ground) -> None:
    slow = Blocked(reply(calls=[call("note", text="x")]))
    async with ground.runtime(slow.provider) as runtime:
        await runtime.submit(AGENT, "go", run_id="r")
        await slow.asked.wait()
        waiting = asyncio.create_task(runtime.result("r"))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(slow.go.set)
    with pytest.raises(al.RunPaused):
        await waiting
    assert not any(isinstance(fact, RunClosed) for fact in await ground.facts())
    provider = ScriptedProvider([reply("done")])
    async with ground.runtime(provider) as runtime:  # at once: the lease was given up
        assert await runtime.unsettled() == []
        assert (await runtime.resume("r", AGENT)).text == "done"
    assert [text for _, text in pairs_in(provider.requests[0])] == ["noted x"]


async def test_a_run_with_a_caller_is_cancelled_and_has_its_end(ground: Ground) -> None:
    slow = Blocked(reply("never"))
    async with ground.runtime(slow.provider) as runtime:
        task = asyncio.create_task(runtime.run(AGENT, "go", run_id="r"))
        await slow.asked.wait()
    with pytest.raises(al.RunCancelled):
        await task
    async with ground.runtime(ScriptedProvider([])) as runtime:
        assert await runtime.unfinished() == []


@pytest.mark.parametrize("kind", ["send", "call"])
async def test_an_effect_that_is_cut_off_by_closing_is_unsettled(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """(R87)"""
    monkeypatch.setattr(runs_module, "CLOSE_SECONDS", 0.02)
    begun = asyncio.Event()

    @al.tool
    async def hang() -> str:
        """Never end."""
        begun.set()
        await asyncio.Event().wait()
        return ""

    agent = al.Agent(name="a", tools=[hang])
    slow = Blocked(reply("never"))
    provider = slow.provider if kind == "send" else ScriptedProvider([reply(calls=[call("hang")])])
    async with ground.runtime(provider, settle_seconds=0.02) as runtime:
        await runtime.submit(agent, "go", run_id="r")
        await (slow.asked if kind == "send" else begun).wait()
        following = asyncio.create_task(follow_all(runtime, "r"))
        await asyncio.sleep(0)
    lost = "1 sends had no end in time" if kind == "send" else "1 runs did not end their effect in time"
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [lost]
    events = await following
    assert (events[-1].type, events[-1].outcome) == ("run.ended", "paused")
    async with ground.runtime(ScriptedProvider([reply("done")])) as runtime:
        (item,) = await runtime.unsettled()
        assert item.kind == kind
        with pytest.raises(al.UnsettledError):
            await runtime.resume("r", agent)
        if kind == "send":
            await runtime.settle_send("r", item.effect_id, author="me")
        else:
            await runtime.settle_call("r", 0, 0, author="me", result=al.ToolResult.error("it was cut off"))
        assert (await runtime.resume("r", agent)).text == "done"


async def test_a_run_that_is_opened_while_the_runtime_closes_is_left_for_later(ground: Ground) -> None:
    async with ground.runtime(ScriptedProvider([])) as runtime:
        start = asyncio.create_task(runtime.submit(AGENT, "go", run_id="r"))
        await asyncio.sleep(0)
    assert await start == "r"
    async with ground.runtime(ScriptedProvider([reply("later")])) as runtime:
        assert (await runtime.resume("r", AGENT)).text == "later"


async def test_a_store_that_cannot_give_up_leases_is_closed_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(SharedMemory):
        closed = False

        async def release(self, lease: Any) -> None:
            raise OSError("no answer")

        async def close(self) -> None:
            self.closed = True

    medium = Stuck()
    with caplog.at_level(logging.WARNING):
        async with al.Runtime(ScriptedProvider([reply("one")]), store=medium) as runtime:
            assert (await runtime.run(AGENT, "go")).text == "one"
    assert medium.closed
    assert "runs out by itself" in caplog.text


# -- what comes back is checked


def tamper(path: Path, kind: str, **fields: Any) -> None:
    """Change fields of the newest fact of a kind, checksum and all."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT seq, CAST(record AS BLOB) FROM facts ORDER BY seq DESC").fetchall()
        seq, fact = next(
            (seq, fact)
            for seq, data in rows
            if (fact := decode_record(data, where="x")) and type(fact).__name__ == kind
        )
        data = encode_record(msgspec.structs.replace(fact, **fields))
        connection.execute(
            "UPDATE facts SET record = CAST(? AS TEXT), crc = ? WHERE seq = ?", (data, zlib.crc32(data), seq)
        )
    connection.close()


@pytest.mark.parametrize(
    ("kind", "fields", "rule"),
    [
        ("OriginOpened", {"digest": "0" * 64}, "digest of its content"),
        ("OriginOpened", {"tools": ()}, "digest of its content"),
        ("OriginOpened", {"conversation": "d"}, "expected a fact of"),
        ("SendStarted", {"attempt_id": "other"}, "expected an attempt"),
        ("ReplyTaken", {"attempt_id": "other"}, "expected the attempt that ended"),
        ("ReplyTaken", {"index": 1}, "next place"),
        ("SendEnded", {"attempt_id": "other"}, "expected an attempt"),
    ],
)
@pytest.mark.parametrize("conversation", [None, "c"])
async def test_a_record_that_was_changed_is_refused_and_nothing_runs(
    tmp_path: Path, kind: str, fields: dict[str, Any], rule: str, conversation: str | None
) -> None:
    """(R86, R137)"""
    ground = Ground(tmp_path / "s.db")
    await unfinished(ground, conversation=conversation)
    tamper(tmp_path / "s.db", kind, **fields)
    provider = ScriptedProvider([reply("two"), reply("fine")])
    async with ground.runtime(provider) as runtime:
        for attempt in (
            runtime.resume("r", AGENT),
            runtime.result("r"),
            runtime.unsettled(),
            runtime.run(AGENT, "go", run_id="r", conversation=conversation),
        ):
            with pytest.raises(al.RestoreError, match=rule) as caught:
                await attempt
            assert caught.value.code == "bad_record"
        assert provider.requests == []
        assert runtime._store._leases == {}
        assert not runtime._store.book.has_run("r")
        assert (await runtime.run(AGENT, "another")).text == "two"  # and nobody else is harmed
        assert (await runtime.run(AGENT, "another", conversation="e")).text == "fine"


async def test_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    """(R86)"""
    ground = Ground(tmp_path / "s.db")
    await unfinished(ground)
    with sqlite3.connect(tmp_path / "s.db") as connection:
        connection.execute("UPDATE facts SET record = replace(record, 'Be brief.', 'Be grief.')")
    connection.close()
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.RestoreError, match="checksum"):
            await runtime.resume("r", AGENT)


async def test_a_run_without_its_origin_is_not_made_up(tmp_path: Path) -> None:
    """(R88)"""
    ground = Ground(tmp_path / "s.db")
    await unfinished(ground)
    with sqlite3.connect(tmp_path / "s.db") as connection:
        connection.execute("DELETE FROM facts WHERE seq = (SELECT min(seq) FROM facts)")
    connection.close()
    async with ground.runtime(ScriptedProvider([])) as runtime:
        with pytest.raises(al.RestoreError, match="no run 'r' is kept"):
            await runtime.resume("r", AGENT)


# -- memory


async def test_a_durable_runtime_remembers_no_more_than_is_needed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "_KEPT_RUNS", 4)
    monkeypatch.setattr(store, "_KEPT_FAMILIES", 3)
    provider = ScriptedProvider([reply(f"{at}") for at in range(21)])
    async with ground.runtime(provider) as runtime:
        for at in range(7):
            await runtime.run(AGENT, "go", run_id=f"r{at}")
            await runtime.run(AGENT, "go", conversation=f"c{at}")
            await runtime.run(AGENT, "go")
        book = runtime._store.book
        assert len(runtime._runs.live) == 4
        assert (len(book._turns), len(book._origins), len(book._rooms._of)) == (3, 3, 3)
        assert runtime._store._leases == {}
        assert runtime._store._gate._held == runtime._runs._gate._held == {}
        assert (await runtime.result("r0")).text == "0"
        assert (await runtime.run(AGENT, "go", run_id="r1")).text == "3"  # joined, not run again
        with pytest.raises(al.LostError):
            runtime.follow("r2")
        assert len(runtime._runs.live) <= 5
    assert len(provider.requests) == 21


async def test_on_a_medium_each_conversation_and_each_run_of_none_has_room_of_its_own(ground: Ground) -> None:
    """(R112)"""
    limits = al.BookLimits(origins=2)
    slow = Blocked(*(reply(f"{at}") for at in range(6)))
    async with ground.runtime(slow.provider, limits=limits) as runtime:
        refs = [await runtime.submit(AGENT, "go") for _ in range(3)]
        refs += [await runtime.submit(AGENT, "go", conversation=name) for name in "abc"]
        slow.go.set()
        for ref in refs:
            await runtime.result(ref)
    script = ScriptedProvider([reply("second")])
    async with ground.runtime(script, limits=limits) as runtime:
        assert (await runtime.run(AGENT, "go", conversation="a")).text == "second"
        with pytest.raises(al.LimitExceeded, match="origins: allowed 2, got at least 3"):
            await runtime.run(AGENT, "go", conversation="a")
        book = runtime._store.book
        assert [room.origins for room in book._rooms._of.values()] == [2]
        assert book.size == sum(room.size for room in book._rooms._of.values())


# -- between the claim of a call and the beginning of its tool


class Holding(RecordingSink):
    """A sink that holds the end of the first model call, whose calls are claimed by then, until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def emit(self, event: al.Event) -> None:
        await super().emit(event)
        if isinstance(event, al.ModelEnd) and not self.go.is_set():
            self.reached.set()
            await self.go.wait()


RISKY = reply(calls=[call("risky", call_id="1"), call("risky", call_id="2")])


def risky_agent(ran: list[tuple[str, int]], **limits: Any) -> al.Agent:
    @al.tool
    async def risky(ctx: al.ToolContext[None]) -> str:
        """Not safe to repeat."""
        ran.append((ctx.effect_id, ctx.attempt))
        return "ok"

    return al.Agent(name="a", tools=[risky], limits=al.LoopLimits(**limits))


def slot_moves(facts: Sequence[Fact]) -> list[tuple[int, str, int]]:
    return [(fact.position, fact.state, fact.attempt) for fact in facts if isinstance(fact, SlotMoved)]


@pytest.mark.parametrize("cut_off", [False, True])
async def test_a_call_that_was_claimed_as_the_runtime_closed_is_run_later_without_asking_anybody(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, cut_off: bool
) -> None:
    """(R87, R134, R139)"""
    monkeypatch.setattr(runs_module, "CLOSE_SECONDS", 0.02 if cut_off else 5.0)
    ran: list[tuple[str, int]] = []
    agent, sink = risky_agent(ran), Holding()
    async with ground.runtime(ScriptedProvider([RISKY])) as runtime:
        await runtime.submit(agent, "go", run_id="r", sink=sink)
        await sink.reached.wait()
        assert slot_moves(await ground.facts()) == [(0, "started", 1)]
        if not cut_off:
            runtime._runs.live["r"].request_pause()
            sink.go.set()
    assert slot_moves(await ground.facts()) == [(0, "started", 1), (0, "open", 1)]
    provider = ScriptedProvider([reply("done")])
    async with ground.runtime(provider) as runtime:
        assert await runtime.unsettled() == []
        result = await runtime.resume("r", agent)
        assert (result.text, result.tool_calls) == ("done", 2)
    assert ran == [("r/0.0", 1), ("r/0.1", 1)]


async def test_a_run_that_is_out_of_time_before_its_claimed_call_begins_runs_nothing(ground: Ground) -> None:
    """(R62, R102)"""
    ran: list[tuple[str, int]] = []
    agent = risky_agent(ran, max_seconds=0.2)
    async with ground.runtime(ScriptedProvider([RISKY])) as runtime:
        result = await runtime.run(agent, "go", run_id="r", sink=Holding())
        assert (result.outcome, result.reason, result.tool_calls, ran) == ("limit_reached", "max_seconds", 0, [])
        events = await follow_all(runtime, "r")
    told = [(event.slot, event.code) for event in events if isinstance(event, al.ToolSkipped)]
    assert told == [("skipped", "max_seconds")] * 2
    assert slot_moves(await ground.facts())[:2] == [(0, "started", 1), (0, "open", 1)]


async def test_a_call_that_was_claimed_when_a_process_died_is_unknown_although_nothing_ran(ground: Ground) -> None:
    """Nobody can tell it from one that ran (R84)."""
    ran: list[tuple[str, int]] = []
    agent = risky_agent(ran)
    async with ground.mortal(ScriptedProvider([RISKY]), at=3, when="after") as (dying, medium):
        await dying.submit(agent, "go", run_id="r")
        await medium.dead.wait()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([reply("done")])) as runtime:
        (item,) = await runtime.unsettled()
        assert (item.tool, item.exchange, item.position, item.attempt, ran) == ("risky", 0, 0, 1, [])
        with pytest.raises(al.UnsettledError):
            await runtime.resume("r", agent)
