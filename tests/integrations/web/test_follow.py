"""Reading a turn's events again: nothing is lost, nothing comes twice, and nothing is generated twice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
import agentloop.runs as runs_module
from agentloop.integrations.web import WebLimits
from agentloop.testing import ScriptedProvider, call, reply
from tests.integrations.web.backend import Gate, frames, serving, until
from tests.mortal import Ground

AGENT = al.Agent(name="a")
QUICK = WebLimits(drain_seconds=0.01)
DEAD: Any = {"settle_seconds": 0.01}
"""Nobody waits for a process that died."""


def texts(events: list[Any]) -> str:
    return "".join(event["payload"]["text"] for event in events if event["type"] == "model.output")


async def test_a_reader_who_comes_back_in_mid_answer_gets_the_rest_and_one_request_is_sent(tmp_path: Path) -> None:
    gate = Gate()
    provider = ScriptedProvider([reply("One two three four."), gate(reply("Five."))], deltas=3)
    async with al.Runtime(provider, store=tmp_path / "chat.db") as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        whole = await client.events()
        for at, event in enumerate(whole[:-1]):
            rest = await client.events(after=event["_id"])
            seen = whole[: at + 1]
            assert texts(seen) + texts(rest) == "One two three four."
            assert rest[-1] == whole[-1]
            ids = [item["_id"] for item in seen + rest if item["_id"]]
            assert ids == sorted(set(ids))
    assert len(provider.requests) == 1


@given(cuts=st.lists(st.integers(1, 4), max_size=8))
@settings(max_examples=20)
def test_any_number_of_lost_connections_loses_nothing(cuts: list[int]) -> None:
    async def main() -> None:
        gate = Gate()
        script = [reply("Some words. ", calls=[call("nothing")]), gate(reply("And some more of them."))]
        async with al.Runtime(ScriptedProvider(script, deltas=2)) as runtime, serving(runtime, AGENT) as client:
            await client.begin()
            await gate.asked.wait()
            got: list[Any] = []
            for count in cuts:
                last = got[-1]["_id"] if got else None
                async with client.stream(after=last) as events:
                    got += [await events.__anext__() for _ in range(min(count, 6 - len(got)))]
            gate.open.set()
            got += await client.events(after=got[-1]["_id"] if got else None)
            assert texts(got) == "Some words. And some more of them."
            ids = [event["_id"] for event in got[:-1]]
            assert ids == sorted(set(ids))
            assert got[-1]["turn"]["outcome"] == "completed"

    asyncio.run(main())


async def test_two_readers_get_the_same(tmp_path: Path) -> None:
    gate = Gate()
    provider = ScriptedProvider([gate(reply("The same for all."))], deltas=3)
    async with al.Runtime(provider, store=tmp_path / "chat.db") as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        reading = [asyncio.ensure_future(client.events()) for _ in range(3)]
        await gate.asked.wait()
        gate.open.set()
        first, *others = await asyncio.gather(*reading)
        assert texts(first) == "The same for all."
        assert [(texts(other), other[-1]) for other in others] == [(texts(first), first[-1])] * 2
    assert len(provider.requests) == 1


async def test_a_turn_that_ended_in_another_process_is_told_from_what_is_stored() -> None:
    ground = Ground(None)
    async with ground.runtime(ScriptedProvider([reply("Kept.")])) as runtime, serving(runtime, AGENT) as client:
        await client.begin()
        before = await client.events()
    async with ground.runtime(ScriptedProvider([])) as runtime, serving(runtime, AGENT) as client:
        for after in (None, before[0]["_id"], before[-2]["_id"]):
            shown, end = await client.events(after=after)
            assert (shown["type"], end["type"]) == ("turn", "end")
            assert shown["turn"] == end["turn"] == before[-1]["turn"]
            assert shown["_id"] is None


async def test_a_turn_whose_process_died_in_mid_answer_is_unsettled_until_a_person_chooses() -> None:
    ground, gate = Ground(None), Gate()
    first = ScriptedProvider([gate(reply("Lost on the way."))])
    async with ground.mortal(first, **DEAD) as (runtime, medium), serving(runtime, AGENT, limits=QUICK) as client:
        await client.begin()
        await gate.asked.wait()
        async with client.stream() as events:
            started = [await events.__anext__() for _ in range(2)]
            medium.dead.set()
    again = ScriptedProvider([reply("Asked again.")])
    async with ground.runtime(again) as runtime, serving(runtime, AGENT) as client:
        turn = await client.turn()
        assert turn["state"] == "elsewhere"
        assert 0 < turn["seconds_left"] <= 30
        ground.clock.advance(31)
        shown, end = await client.events(after=started[-1]["_id"])
        assert shown["turn"]["state"] == end["turn"]["state"] == "unsettled"
        (attempt,) = end["turn"]["attempts"]
        assert (attempt["state"], attempt["text"]) == ("open", "")
        (item,) = end["turn"]["unsettled"]
        assert (item["kind"], item["attempt_id"]) == ("send", first.attempts[0])
        path = "/api/conversations/c/turns/t"
        status, refused = await client.ask("POST", f"{path}/cancel")
        assert (status, refused["error"]["code"]) == (409, "unsettled")
        assert (await client.begin())["state"] == "unsettled"  # the same turn again sends nothing
        status, refused = await client.ask("POST", "/api/conversations/c/turns", {"id": "u", "text": "More"})
        assert status == 409
        assert again.requests == []
        status, turn = await client.ask("POST", f"{path}/settle", {"choice": "ask_again"})
        assert (status, turn["state"]) == (200, "running")
        told = await client.events(after=started[-1]["_id"])
        assert [event["type"] for event in told][:2] == ["turn", "run.started"]
        assert (texts(told), told[-1]["turn"]["outcome"]) == ("Asked again.", "completed")
        status, refused = await client.ask("POST", f"{path}/settle", {"choice": "ask_again"})
        assert (status, refused["error"]["code"]) == (409, "not_unsettled")
    assert len(again.requests) == 1


async def test_an_unsettled_turn_can_be_discarded_and_sends_nothing() -> None:
    ground, gate = Ground(None), Gate()
    async with (
        ground.mortal(ScriptedProvider([gate(reply("Lost."))]), **DEAD) as (runtime, medium),
        serving(runtime, AGENT, limits=QUICK) as client,
    ):
        await client.begin()
        await gate.asked.wait()
        medium.dead.set()
    ground.clock.advance(31)
    again = ScriptedProvider([reply("The next one.")])
    async with ground.runtime(again) as runtime, serving(runtime, AGENT) as client:
        status, turn = await client.ask("POST", "/api/conversations/c/turns/t/settle", {"choice": "discard"})
        assert (status, turn["state"], turn["outcome"]) == (200, "ended", "cancelled")
        assert again.requests == []
        await client.begin("u", "More")
        assert texts(await client.events("u")) == "The next one."


async def test_a_person_says_what_became_of_a_call_whose_process_died(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "CLOSE_SECONDS", 0.01)  # of the dead process, whose tool never ends
    begun = asyncio.Event()

    @al.tool
    async def send_mail(to: str) -> str:
        """Send mail."""
        begun.set()
        await asyncio.Event().wait()
        return "sent"

    ground, agent = Ground(None), al.Agent(name="a", tools=[send_mail])
    asks = ScriptedProvider([reply(calls=[call("send_mail", arguments_text='{"to":  "Ann"}')])])
    async with ground.mortal(asks, **DEAD) as (runtime, medium), serving(runtime, agent, limits=QUICK) as client:
        await client.begin()
        await begun.wait()
        medium.dead.set()
    ground.clock.advance(31)
    again = ScriptedProvider([reply("Then it is sent.")])
    async with ground.runtime(again) as runtime, serving(runtime, agent) as client:
        turn = await client.turn()
        assert turn["state"] == "unsettled"
        (item,) = turn["unsettled"]
        assert (item["id"], item["kind"], item["tool"], item["arguments"]) == (
            "0.0",
            "call",
            "send_mail",
            '{"to":  "Ann"}',
        )
        path = "/api/conversations/c/turns/t/settle"
        for calls in ({}, {"0.1": {"outcome": "done"}}, {"0.0": {"outcome": "done"}, "1.0": {"outcome": "done"}}):
            status, refused = await client.ask("POST", path, {"choice": "ask_again", "calls": calls})
            assert (status, refused["error"]["code"]) == (400, "bad_request")
        said = {"0.0": {"outcome": "done", "text": "it was sent"}}
        status, _ = await client.ask("POST", path, {"choice": "ask_again", "calls": said})
        assert status == 200
        assert (await client.events())[-1]["turn"]["outcome"] == "completed"
    assert again.requests[0].exchanges[0].feedback[0].text == "it was sent"


async def test_what_is_said_of_one_execution_of_a_call_runs_no_later_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_module, "CLOSE_SECONDS", 0.01)
    runs: list[str] = []

    @al.tool
    async def send_mail(to: str) -> str:
        """Send mail."""
        runs.append(to)
        await asyncio.Event().wait()
        return "sent"

    ground, agent = Ground(None), al.Agent(name="a", tools=[send_mail])
    asks = ScriptedProvider([reply(calls=[call("send_mail", to="Ann")])])
    path, said = "/api/conversations/c/turns/t/settle", {"0.0": {"outcome": "not_done"}}
    async with ground.mortal(asks, **DEAD) as (runtime, medium), serving(runtime, agent, limits=QUICK) as client:
        await client.begin()
        await until(lambda: len(runs) == 1)
        medium.dead.set()
    ground.clock.advance(31)
    idle = ScriptedProvider([])
    async with ground.mortal(idle, **DEAD) as (runtime, medium), serving(runtime, agent, limits=QUICK) as client:
        assert (await client.ask("POST", path, {"choice": "ask_again", "calls": said}))[0] == 200
        await until(lambda: len(runs) == 2)
        medium.dead.set()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([]), **DEAD) as runtime, serving(runtime, agent, limits=QUICK) as client:
        status, refused = await client.ask("POST", path, {"choice": "ask_again", "calls": said})  # sent once more
        assert (status, refused["error"]["code"]) == (400, "bad_request")
        (item,) = (await client.turn())["unsettled"]
        assert item["id"] == "0.0#2"
    assert len(runs) == 2


async def test_who_names_the_requests_that_were_shown_repeats_no_later_one() -> None:
    ground, path = Ground(None), "/api/conversations/c/turns/t/settle"
    shown: list[str] = []
    for at in range(2):
        gate = Gate()
        provider = ScriptedProvider([gate(reply("Lost."))])
        async with (
            ground.mortal(provider, **DEAD) as (runtime, medium),
            serving(runtime, AGENT, limits=QUICK) as client,
        ):
            if at == 0:
                await client.begin()
            else:
                shown = [item["id"] for item in (await client.turn())["unsettled"]]
                assert (await client.ask("POST", path, {"choice": "ask_again", "sends": shown}))[0] == 200
            await gate.asked.wait()
            medium.dead.set()
        ground.clock.advance(31)
    last = ScriptedProvider([])
    async with ground.runtime(last) as runtime, serving(runtime, AGENT) as client:
        status, refused = await client.ask("POST", path, {"choice": "ask_again", "sends": shown})
        assert (status, refused["error"]["code"]) == (400, "bad_request")
        assert (await client.turn())["state"] == "unsettled"
    assert last.requests == []


async def test_an_idempotent_call_whose_process_died_needs_no_person_but_one_who_says_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs_module, "CLOSE_SECONDS", 0.01)
    begun, runs = asyncio.Event(), 0

    @al.tool(idempotent=True)
    async def look(at: str) -> str:
        """Look."""
        nonlocal runs
        runs += 1
        begun.set()
        if runs == 1:
            await asyncio.Event().wait()
        return "seen"

    ground, agent = Ground(None), al.Agent(name="a", tools=[look])
    asks = ScriptedProvider([reply(calls=[call("look", at="it")])])
    async with ground.mortal(asks, **DEAD) as (runtime, medium), serving(runtime, agent, limits=QUICK) as client:
        await client.begin()
        await begun.wait()
        medium.dead.set()
    ground.clock.advance(31)
    async with ground.runtime(ScriptedProvider([reply("Seen.")])) as runtime, serving(runtime, agent) as client:
        turn = await client.turn()
        assert (turn["state"], turn["unsettled"]) == ("paused", [])
        status, turn = await client.ask("POST", "/api/conversations/c/turns/t/resume")
        assert (status, turn["state"]) == (200, "running")
        assert texts(await client.events()) == "Seen."
    assert runs == 2


async def test_what_is_unknown_of_an_agent_that_another_one_asked_is_settled_with_the_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runs_module, "CLOSE_SECONDS", 0.01)
    begun = asyncio.Event()

    @al.tool
    async def send_mail(to: str) -> str:
        """Send mail."""
        begun.set()
        await asyncio.Event().wait()
        return "sent"

    @al.tool(idempotent=True)
    async def look() -> str:
        """Look."""
        return "seen"

    helper = al.Agent(name="helper", tools=[send_mail, look], limits=al.LoopLimits(max_parallel_tools=1))
    ask = al.delegate(helper, name="ask", description="Ask.", tools=["send_mail", "look"])
    ground, agent = Ground(None), al.Agent(name="a", tools=[ask])
    script = [reply(calls=[call("ask", task="t")]), reply(calls=[call("send_mail", to="Ann"), call("look")])]
    first = ScriptedProvider(script)
    async with ground.mortal(first, **DEAD) as (runtime, medium), serving(runtime, agent, limits=QUICK) as client:
        await client.begin()
        await begun.wait()
        medium.dead.set()
    ground.clock.advance(31)
    gate = Gate()
    again = ScriptedProvider([gate(reply("lost"))])
    async with ground.mortal(again, **DEAD) as (runtime, medium), serving(runtime, agent, limits=QUICK) as client:
        turn = await client.turn()
        assert turn["state"] == "unsettled"
        assert [(item["id"], item["tool"]) for item in turn["unsettled"]] == [("0.0/0.0", "send_mail")]
        said = {"0.0/0.0": {"outcome": "done", "text": "it was sent"}}
        path = "/api/conversations/c/turns/t/settle"
        status, _ = await client.ask("POST", path, {"choice": "ask_again", "calls": said})
        assert status == 200
        await gate.asked.wait()
        medium.dead.set()
    ground.clock.advance(31)
    last = ScriptedProvider([reply("Sent and seen."), reply("Done.")])
    async with ground.runtime(last) as runtime, serving(runtime, agent) as client:
        turn = await client.turn()
        assert turn["state"] == "unsettled"
        assert [(item["kind"], item["attempt_id"]) for item in turn["unsettled"]] == [("send", again.attempts[0])]
        status, _ = await client.ask("POST", path, {"choice": "ask_again"})
        assert status == 200
        assert (await client.events())[-1]["turn"]["outcome"] == "completed"
    feedback = [item.text for item in last.requests[0].exchanges[0].feedback]
    assert feedback == ["it was sent", "seen"]


async def test_a_turn_of_another_process_is_shown_as_it_grows_and_followed_when_it_comes_here() -> None:
    ground, gate = Ground(None), Gate()
    script = [reply("First. ", calls=[call("nothing")]), gate(reply("Last."))]
    async with (
        ground.runtime(ScriptedProvider(script)) as owner,
        ground.runtime(ScriptedProvider([])) as other,
        serving(owner, AGENT) as here,
        serving(other, AGENT) as there,
    ):
        await here.begin()
        await gate.asked.wait()
        async with there.stream() as events:
            shown = await events.__anext__()
            assert (shown["type"], shown["turn"]["state"]) == ("turn", "elsewhere")
            assert [attempt["text"] for attempt in shown["turn"]["attempts"]] == ["First. ", ""]
            gate.open.set()
            rest = [event async for event in events if event["type"] != "comment"]
        assert rest[-1]["type"] == "end"
        assert rest[-1]["turn"]["outcome"] == "completed"
        assert [attempt["text"] for attempt in rest[-1]["turn"]["attempts"]] == ["First. ", "Last."]


async def test_a_turn_that_two_processes_are_sent_at_once_is_one_turn(tmp_path: Path) -> None:
    providers = [ScriptedProvider([lambda _: reply("Once.")] * 10) for _ in range(2)]
    store = tmp_path / "chat.db"
    async with (
        al.Runtime(providers[0], store=store) as first,
        al.Runtime(providers[1], store=store) as second,
        serving(first, AGENT) as here,
        serving(second, AGENT) as there,
    ):
        for at in range(10):
            await asyncio.gather(here.begin(conversation=f"c{at}"), there.begin(conversation=f"c{at}"))
            assert (await here.events(conversation=f"c{at}"))[-1]["turn"]["outcome"] == "completed"
    assert sum(len(provider.requests) for provider in providers) == 10


async def test_a_turn_is_joined_also_where_its_agent_is_no_longer_the_first_or_served(tmp_path: Path) -> None:
    store = tmp_path / "chat.db"
    async with (
        al.Runtime(ScriptedProvider([reply("Once.")]), store=store) as runtime,
        serving(runtime, AGENT) as client,
    ):
        await client.begin()
        await client.events()
    async with (
        al.Runtime(ScriptedProvider([]), store=store) as runtime,
        serving(runtime, al.Agent(name="new")) as client,
    ):
        path, body = "/api/conversations/c/turns", {"id": "t", "text": "Hello"}
        for again in (body, {**body, "agent": "a"}):
            status, turn = await client.ask("POST", path, again)
            assert (status, turn["outcome"]) == (200, "completed")
        status, refused = await client.ask("POST", path, {**body, "agent": "new"})
        assert (status, refused["error"]["code"]) == (409, "conflict")


async def test_what_has_no_place_to_go_on_is_not_settled() -> None:
    ground, gates = Ground(None), [Gate(), Gate()]
    async with (
        ground.mortal(ScriptedProvider([gates[0](reply("Lost."))]), **DEAD) as (runtime, medium),
        serving(runtime, AGENT, limits=QUICK) as client,
    ):
        await client.begin()
        await gates[0].asked.wait()
        medium.dead.set()
    ground.clock.advance(31)
    provider = ScriptedProvider([gates[1](reply("Busy.")), reply("Asked again.")])
    async with ground.runtime(provider) as runtime, serving(runtime, AGENT, limits=WebLimits(runs_a_user=1)) as client:
        await client.begin(conversation="other")
        settle = "/api/conversations/c/turns/t/settle"
        status, refused = await client.ask("POST", settle, {"choice": "ask_again"})
        assert (status, refused["error"]["code"]) == (429, "too_many")
        assert (await client.turn())["state"] == "unsettled"
        gates[1].open.set()
        await client.events(conversation="other")
        assert (await client.ask("POST", settle, {"choice": "ask_again"}))[0] == 200
        assert texts(await client.events()) == "Asked again."


async def test_a_reader_who_comes_back_to_where_a_turn_once_was_is_told_what_another_process_did() -> None:
    ground, gate = Ground(None), Gate()

    @al.tool(approval="required")
    async def go() -> str:
        """Go."""
        return "went"

    agent = al.Agent(name="a", tools=[go])
    first = ScriptedProvider([reply("Asks.", calls=[call("go")])])
    then = ScriptedProvider([reply("Went.", calls=[call("nothing")]), gate(reply("Last."))])
    async with (
        ground.runtime(first) as one,
        ground.runtime(then) as two,
        serving(one, agent) as here,
        serving(two, agent) as there,
    ):
        await here.begin()
        told = await here.events()
        (waits,) = told[-1]["turn"]["waiting"]
        decide = {"decisions": {waits["ref"]: {"decision": "approve"}}}
        assert (await there.ask("POST", "/api/conversations/c/turns/t/decide", decide))[0] == 200
        await gate.asked.wait()
        async with here.stream(after=told[-2]["_id"]) as events:
            shown = await events.__anext__()
            assert (shown["type"], shown["turn"]["state"]) == ("turn", "elsewhere")
            assert [attempt["text"] for attempt in shown["turn"]["attempts"]] == ["Asks.", "Went.", ""]
            gate.open.set()
            rest = [event async for event in events if event["type"] != "comment"]
        assert rest[-1]["turn"]["outcome"] == "completed"


async def test_a_turn_that_takes_long_to_leave_its_process_is_not_asked_after_all_the_time(tmp_path: Path) -> None:
    @al.tool(approval="required")
    async def go() -> str:
        """Go."""
        return "went"

    script = [reply("Asks.", calls=[call("go")])]
    async with al.Runtime(ScriptedProvider(script), store=tmp_path / "chat.db") as runtime:
        let_go, view, views = runtime._store.let_go, runtime.view, []

        async def slow(ref: str) -> None:
            await asyncio.sleep(0.5)
            await let_go(ref)

        async def counted(ref: str) -> Any:
            views.append(ref)
            return await view(ref)

        runtime._store.let_go, runtime.view = slow, counted
        async with serving(runtime, al.Agent(name="a", tools=[go])) as client:
            await client.begin()
            assert (await client.events())[-1]["turn"]["state"] == "waiting"
    assert len(views) < 30


async def test_a_turn_that_a_foreign_error_ended_has_an_end_like_any_other(tmp_path: Path) -> None:
    async with (
        al.Runtime(ScriptedProvider([RuntimeError("ours to mend")]), store=tmp_path / "chat.db") as runtime,
        serving(runtime, AGENT) as client,
    ):
        await client.begin()
        for _ in range(2):
            events = await client.events()
            assert (events[-1]["type"], events[-1]["turn"]["outcome"]) == ("end", "failed")
            assert "ours" not in str(events)


async def test_a_turn_whose_tool_raised_what_is_no_exception_has_an_end_too() -> None:
    class Panic(BaseException):
        """As extension modules raise it."""

    @al.tool
    async def panics() -> str:
        """Panic."""
        raise Panic

    script = [reply("Before.", calls=[call("panics")])]
    async with (
        al.Runtime(ScriptedProvider(script)) as runtime,
        serving(runtime, al.Agent(name="a", tools=[panics])) as client,
    ):
        await client.begin()
        for _ in range(2):
            end = (await client.events())[-1]
            assert (end["type"], end["turn"]["outcome"]) == ("end", "cancelled")


# -- clients that go


async def test_in_memory_a_turn_that_nobody_follows_is_cancelled_after_a_while() -> None:
    gate = Gate()
    limits = WebLimits(gone_seconds=0.05)
    async with (
        al.Runtime(ScriptedProvider([gate(reply("never"))])) as runtime,
        serving(runtime, AGENT, limits=limits) as client,
    ):
        await client.begin()
        async with client.stream() as events:
            run = (await events.__anext__())["run_id"]
        with pytest.raises(al.RunCancelled):
            await runtime.result(run)
        assert (await client.turn())["outcome"] == "cancelled"


async def test_a_reader_who_comes_back_in_time_keeps_the_turn_alive() -> None:
    gate = Gate()
    limits = WebLimits(gone_seconds=30)
    async with (
        al.Runtime(ScriptedProvider([gate(reply("Still here."))])) as runtime,
        serving(runtime, AGENT, limits=limits) as client,
    ):
        await client.begin()
        for _ in range(3):
            async with client.stream() as events:
                await events.__anext__()
        gate.open.set()
        assert texts(await client.events()) == "Still here."


async def test_on_a_durable_store_a_turn_goes_on_when_nobody_follows_it(tmp_path: Path) -> None:
    gate, limits = Gate(), WebLimits(gone_seconds=0.001)
    provider = ScriptedProvider([gate(reply("Done alone."))])
    async with (
        al.Runtime(provider, store=tmp_path / "chat.db") as runtime,
        serving(runtime, AGENT, limits=limits) as client,
    ):
        await client.begin()
        async with client.stream() as events:
            run = (await events.__anext__())["run_id"]
        gate.open.set()
        assert (await runtime.result(run)).text == "Done alone."
        assert texts(await client.events()) == "Done alone."


@pytest.mark.parametrize("path", ["/api/conversations/c/turns/t/events", "/ui/chat/c/stream"])
async def test_a_reader_of_a_turn_that_another_process_drops_is_told_so(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    ground, gate = Ground(None), Gate()
    async with (
        ground.runtime(ScriptedProvider([gate(reply("x"))])) as owner,
        ground.runtime(ScriptedProvider([])) as other,
        serving(owner, AGENT) as here,
        serving(other, AGENT) as there,
    ):
        await here.begin()
        await gate.asked.wait()
        async with there.session.get(there.url + path) as response:
            reader = frames(response)
            assert "elsewhere" in str(await reader.__anext__()) or "ui" in path
            await here.ask("POST", "/api/conversations/c/turns/t/cancel")
            assert (await here.ask("DELETE", "/api/conversations/c"))[0] == 204
            last = [event async for event in reader][-1]
    assert "not_found" in str(last)
    assert last["_event"] == "problem" or last["type"] == "error"
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
