"""What stands under the calls of runners: what is kept of them, and what is not weighed twice."""

from __future__ import annotations

import pytest

import agentloop as al
from agentloop.messages import ModelRequest
from agentloop.providers import RequestInspection
from agentloop.testing import ScriptedProvider, reply


class Weighing(ScriptedProvider):
    """Counts how often a request was measured."""

    weighed = 0

    def inspect_request(self, request: ModelRequest) -> RequestInspection:
        self.weighed += 1
        return super().inspect_request(request)


async def test_without_a_runtime_the_newest_calls_are_kept_and_the_oldest_are_dropped() -> None:
    runner = al.ModelRunner(ScriptedProvider([reply("Yes.")] * 200), max_calls=200)
    refs = [(await runner.invoke("Well?")).invocation.ref for _ in range(200)]
    kept = [row.run_id for row in await runner._host.store.runs()]
    assert 128 <= len(kept) < 160
    assert kept == refs[-len(kept) :]


async def test_a_request_that_no_other_one_follows_is_measured_only_near_the_ceiling_of_its_provider() -> None:
    small, tight = Weighing([reply("Yes.")]), Weighing([], max_request_bytes=4_000)
    await al.ModelRunner(small).invoke("Well?")
    assert small.weighed == 1  # by the provider, when it is sent
    with pytest.raises(al.LimitExceeded) as caught:
        await al.ModelRunner(tight).invoke("Well? " * 1_000)
    assert caught.value.limit == "max_request_bytes"
    assert (tight.weighed, tight.requests) == (1, [])


async def test_options_that_are_not_admitted_are_refused_when_the_runner_is_made() -> None:
    options = al.ModelOptions(stop=("\ud800",))
    with pytest.raises(al.AdmissionError):
        al.ModelRunner(ScriptedProvider([]), options=options)
