"""Two processes that open the same run at the same moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import agentloop as al
from agentloop.exchange import Fact
from agentloop.persistence import MemoryBackend
from agentloop.testing import ScriptedProvider, reply

AGENT = al.Agent(name="a")


class Late:
    """A medium on which another process opens, runs and ends a run just before the append that opens it here."""

    durable = True

    def __init__(self, medium: MemoryBackend, text: str) -> None:
        self._medium, self._text = medium, text
        self.late = True

    async def acquire(self, run_id: str, owner: str, *, seconds: float) -> Any:
        if self.late:
            self.late = False
            async with al.Runtime(ScriptedProvider([reply("theirs")]), store=self._medium) as other:
                await other.run(AGENT, self._text, run_id=run_id)
        return await self._medium.acquire(run_id, owner, seconds=seconds)

    async def append(self, facts: Sequence[Fact], **options: Any) -> None:
        await self._medium.append(facts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._medium, name)


class Shared(MemoryBackend):
    durable = True


async def test_who_comes_second_to_a_run_that_has_just_ended_elsewhere_joins_it() -> None:
    provider = ScriptedProvider([reply("ours")])
    async with al.Runtime(provider, store=Late(Shared(), "go")) as runtime:
        assert (await runtime.run(AGENT, "go", run_id="r")).text == "theirs"
    assert provider.requests == []


async def test_who_comes_second_with_another_input_is_told_so() -> None:
    async with al.Runtime(ScriptedProvider([]), store=Late(Shared(), "go")) as runtime:
        with pytest.raises(al.ConflictError, match="expected the input this run was started with"):
            await runtime.run(AGENT, "stop", run_id="r")
