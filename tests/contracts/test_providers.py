"""The provider contract, held over a real socket, over recordings and over a script."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from agentloop.providers import ChatCompletions, ReplayProvider
from agentloop.testing import ReplayServer, ScriptedProvider, broken, reply
from agentloop.wire.assembler import ReplyAssembler
from agentloop.wire.deltas import TextDelta
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


class TestScriptedProvider(ProviderContract):
    @asynccontextmanager
    async def serve(self, *names: str) -> AsyncIterator[Any]:
        provider = ScriptedProvider([entry_of(name) for name in names], deltas=5)
        yield SimpleNamespace(provider=provider, sent=lambda: len(provider.requests))


def entry_of(name: str) -> Any:
    """A script's entry that answers as the recording does."""
    assembler = ReplyAssembler()
    shown = assembler.feed((RECORDINGS / f"{name}.sse").read_bytes())
    if assembler.done:
        return assembler.finish()
    text = "".join(delta.text for delta in shown if isinstance(delta, TextDelta))
    return broken(reply(text=text), assembler.refusal("truncated", "the rest of the stream", "a broken connection"))
