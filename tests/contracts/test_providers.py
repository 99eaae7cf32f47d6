"""The provider contract, held over a real socket and over recordings."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from agentloop.providers import ChatCompletions, ReplayProvider
from agentloop.testing.replay_server import ReplayServer
from tests.contracts.provider_contract import RECORDINGS, ProviderContract


def files(*names: str) -> list[Any]:
    return [RECORDINGS / f"{name}.sse" for name in names]


class TestChatCompletions(ProviderContract):
    @asynccontextmanager
    async def serve(self, *names: str) -> AsyncIterator[Any]:
        async with ReplayServer(files(*names)) as server:
            provider = ChatCompletions(server.url, model="any", api_key="sk-contract-0001")
            yield SimpleNamespace(provider=provider, sent=lambda: len(server.requests))
            await provider.aclose()


class TestReplayProvider(ProviderContract):
    @asynccontextmanager
    async def serve(self, *names: str) -> AsyncIterator[Any]:
        provider = ReplayProvider(files(*names))
        yield SimpleNamespace(provider=provider, sent=lambda: len(provider.requests))
