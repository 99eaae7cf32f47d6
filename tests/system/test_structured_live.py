"""A typed value from a live server, where ``AGENTLOOP_LIVE_BASE_URL`` names one. Never without being asked for.

``AGENTLOOP_MODEL``, ``OPENAI_API_KEY`` and ``AGENTLOOP_DIALECT`` say the rest, as for `agentloop run`.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec
import pytest

import agentloop as al
from agentloop.runner import Route

BASE_URL = os.environ.get("AGENTLOOP_LIVE_BASE_URL")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(BASE_URL is None or "CI" in os.environ, reason="no AGENTLOOP_LIVE_BASE_URL, or in CI"),
]


class Ticket(msgspec.Struct, frozen=True):
    title: Annotated[str, msgspec.Meta(min_length=1)]
    urgency: Literal["low", "high"]


@pytest.fixture(autouse=True)
def offline() -> None:
    """In place of the guard of every other test: these are the ones that may leave this machine."""


@pytest.fixture
def provider() -> al.ChatCompletions:
    assert BASE_URL is not None, "else it is skipped"
    return al.ChatCompletions(
        BASE_URL,
        model=os.environ.get("AGENTLOOP_MODEL", "gpt-4o-mini"),
        api_key=os.environ.get("OPENAI_API_KEY"),
        dialect=os.environ.get("AGENTLOOP_DIALECT"),
    )


@pytest.mark.parametrize("route", [None, "call", "json_text"])
async def test_a_live_server_gives_a_typed_value(provider: al.ChatCompletions, route: Route | None) -> None:
    """By its own route. By another one a weak model may write something else, which is refused and kept."""
    ticket = al.Structured(Ticket, instruction="Make a ticket of what the user says.", route=route)
    async with al.Runtime(provider) as runtime:
        runner = runtime.runner(transports=(ticket,), max_calls=1)
        try:
            result = await runner.invoke("The printer on the third floor is on fire!", transport=ticket)
        except al.OutputRefused as refused:
            if route is None:
                raise
            kept = await runtime.read(refused.ref or "")
        else:
            kept = await runtime.read(result.invocation.ref)
            assert isinstance(result.value, Ticket)
            assert route in (None, result.invocation.route)
        assert kept.reply is not None
