"""The contract of a transport, met by plain objects."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agentloop.runner import Fragment, Interaction, Stage, Transport
from agentloop.testing import reply
from agentloop.wire import OPENAI
from tests.contracts.transport_contract import answer
from tests.source import imports, modules


class Counting:
    """Counts fragments; knows nothing of the package."""

    output_chars = 0

    def push(self, fragment: Fragment, /) -> None:
        self.output_chars += 1

    def finish(self, of: Any, /) -> int:
        return len(of.text)


def test_any_object_with_the_members_is_a_transport_and_any_a_collector() -> None:
    """(R202, R205)"""
    transport = SimpleNamespace(id="own", prepare=lambda stage: Interaction(create_response=Counting, route="own"))
    assert isinstance(transport, Transport)
    value, counted = answer(transport.prepare(Stage(stage_id="s", dialect=OPENAI)), reply(text="Hello"), [2])
    assert value == 5
    assert counted == [0, 1, 2, 2]


def test_the_contract_needs_none_of_the_transports() -> None:
    """(R202)"""
    assert not [
        item.target
        for name in modules()
        if name == "agentloop.runner.transport"
        for item in imports(name)
        if item.target.startswith("agentloop.runner")
    ]
