"""Random hosts decide about, resume and cancel a run that waits, beside a model of what must come of it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agentloop as al
from agentloop.decisions import CallRef
from agentloop.exchange import SlotMoved, call_digest
from agentloop.testing import ScriptedProvider, call, reply
from tests.mortal import Ground

Kind = Literal["plain", "approval", "external"]
ANN, BOB = "Ann", "Bob"


@al.tool
async def plain(at: int, ctx: al.ToolContext[list[int]]) -> str:
    """Do it at once."""
    ctx.deps.append(at)
    return f"did {at}"


@al.tool(approval=lambda arguments, ctx: arguments["at"] >= 0, recovery="settle")
async def approval(at: int, ctx: al.ToolContext[list[int]]) -> str:
    """Do it when somebody has approved it."""
    ctx.deps.append(at)
    return f"did {at}"


@al.external
def external(at: int) -> str:
    """Have it done."""


AGENT = al.Agent(name="clerk", tools=[plain, approval, external])
DECISIONS: list[al.Decision] = [
    al.Approve(author=ANN),
    al.Approve(author=BOB),
    al.Deny("no", author=ANN),
    al.Answer("by hand", author=ANN),
    al.Answer(al.ToolResult.error("away"), author=ANN),
]
KINDS = st.lists(st.sampled_from(["plain", "approval", "external"]), min_size=1, max_size=4)
SAID = st.dictionaries(st.integers(0, 3), st.sampled_from(DECISIONS), max_size=3)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("decide"), SAID),
        st.tuples(st.just("resume"), SAID),
        st.tuples(st.just("resume"), st.just({})),
        st.tuples(st.just("cancel"), st.just({})),
        st.tuples(st.just("forge"), SAID),
        st.tuples(st.just("move"), st.just({})),
    ),
    max_size=8,
)


class Model:
    """What a run with these calls must come to.

    Attributes:
        ran: which calls' tools ran, in order. made: what was decided, by position.
    """

    def __init__(self, kinds: list[Kind]) -> None:
        self.kinds = kinds
        self.made: dict[int, al.Decision] = {}
        self.ran = [at for at, kind in enumerate(kinds) if kind == "plain"]
        self.end: str | None = None if self.waiting else "completed"

    @property
    def waiting(self) -> list[int]:
        return [at for at, kind in enumerate(self.kinds) if kind != "plain" and at not in self.made]

    def decide(self, said: dict[int, al.Decision]) -> type[al.AgentLoopError] | None:
        """What is raised; None where all of it is stored, or was."""
        for at, decision in said.items():
            possible = self.kinds[at] == "approval" or (
                self.kinds[at] == "external" and type(decision) is not al.Approve
            )
            if not (self.made[at] == decision if at in self.made else self.end is None and possible):
                return al.ConflictError
        self.made.update(said)
        return None

    def resume(self, said: dict[int, al.Decision]) -> type[al.AgentLoopError] | None:
        error = self.decide(said)
        if error is not None:
            return error
        if self.end == "cancelled":
            return al.OutcomeError
        approved = [at for at in sorted(self.made) if type(self.made[at]) is al.Approve]
        self.ran += [at for at in approved if at not in self.ran and self.end is None]
        if not self.waiting:
            self.end = "completed"
        return None

    def answers(self) -> list[str]:
        """What the model reads, once the run is completed."""
        texts = []
        for at in range(len(self.kinds)):
            decision = self.made.get(at)
            if type(decision) is al.Deny:
                texts.append("This call was denied, and did not run. Reason: no")
            elif type(decision) is al.Answer:
                texts.append(decision.as_result.text)
            else:
                texts.append(f"did {at}")
        return texts


async def walk(kinds: list[Kind], steps: list[tuple[str, dict[int, al.Decision]]], *, memory: bool) -> None:
    ran: list[int] = []
    provider = ScriptedProvider([reply(calls=[call(kind, at=at) for at, kind in enumerate(kinds)]), reply("Done.")])
    ground, model = Ground(None), Model(kinds)
    async with AsyncExitStack() as stack:

        async def open_one() -> al.Runtime:
            return await stack.enter_async_context(
                al.Runtime(provider) if memory else ground.runtime(provider)  # type: ignore[arg-type]
            )

        runtime = await open_one()
        result = await runtime.run(AGENT, "go", deps=ran, run_id="r")
        turn = runtime._store.book.turn("r")
        refs = {at: str(CallRef("r", 0, at, call_digest(turn, 0, at))) for at in range(len(kinds))}
        for name, wanted in steps:
            said = {at: decision for at, decision in wanted.items() if at < len(kinds)}
            given_ = {refs[at]: decision for at, decision in said.items()}
            if name == "move" and not memory:
                runtime = await open_one()
            elif name == "cancel":
                await runtime.cancel("r")
                model.end = model.end or "cancelled"
            elif name == "forge" and said:
                other = {ref[:-64] + "0" * 64: decision for ref, decision in given_.items()}
                with pytest.raises(al.ConflictError, match="expected the digest of the stored call"):
                    await runtime.decide(other)
                with pytest.raises(al.ConflictError, match="expected the digest of the stored call"):
                    await runtime.resume("r", AGENT, deps=ran, decisions=other)
            elif name == "decide" and said:
                await expect(runtime.decide(given_), model.decide(said))
            elif name == "resume":
                result = await expect(runtime.resume("r", AGENT, deps=ran, decisions=given_), model.resume(said))
                if result is not None:
                    assert result.outcome == (model.end or "waiting_for_approval")
            assert ran == model.ran
            found = await runtime.waiting()
            assert [item.position for item in found] == (model.waiting if model.end is None else [])
            assert [item.ref for item in found] == [refs[item.position] for item in found]
            assert [row.run_id for row in await runtime.unfinished()] == ([] if model.end else ["r"])
        turn = await runtime._store.turn("r")
        assert (turn.closed.outcome if turn.closed else None) == model.end
        assert turn.tool_calls == len(model.ran)
        facts = await runtime._store._backend.load_run("r")
        authors = [fact.author for fact in facts if isinstance(fact, SlotMoved) and fact.author is not None]
        assert sorted(authors) == sorted(decision.author for decision in model.made.values())
        if model.end == "completed":
            (exchange,) = provider.requests[1].exchanges
            assert [feedback.text for feedback in exchange.feedback] == model.answers()
            assert len(provider.requests) == 2


async def expect(work: Any, error: type[al.AgentLoopError] | None) -> Any:
    """What comes of it; None where this is raised."""
    if error is None:
        return await work
    with pytest.raises(error) as caught:
        await work
    assert type(caught.value) is error
    return None


@pytest.mark.parametrize("memory", [True, False], ids=["memory", "durable"])
@given(kinds=KINDS, steps=STEPS)
@settings(max_examples=150)
def test_whatever_hosts_do_a_call_runs_once_and_only_when_it_was_approved(
    memory: bool, kinds: list[Kind], steps: list[tuple[str, dict[int, al.Decision]]]
) -> None:
    """(R82, R83, R337)"""
    asyncio.run(walk(kinds, steps, memory=memory))
