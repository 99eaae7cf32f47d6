"""Ordinary tests reach no network."""

from __future__ import annotations

import asyncio
import socket

import pytest

import agentloop as al
from agentloop.testing.fixtures import NetworkUsed


def test_a_connection_outside_loopback_fails_the_test() -> None:
    """(R151)"""
    with socket.socket() as client, pytest.raises(NetworkUsed, match="expected a loopback address"):
        client.connect(("192.0.2.1", 80))
    with pytest.raises(NetworkUsed):
        socket.getaddrinfo("model.example", 443)


async def test_a_connection_through_the_event_loop_fails_too() -> None:
    """(R151)"""
    with pytest.raises(NetworkUsed):
        await asyncio.open_connection("192.0.2.1", 80)


async def test_a_real_provider_cannot_send_by_accident() -> None:
    """(R151)"""
    provider = al.ChatCompletions("https://model.example/v1", model="m")
    request = al.ModelRequest(messages=(al.UserMessage(content="hi"),))
    try:
        with pytest.raises((NetworkUsed, al.ConnectionFailed)):
            async with provider.stream(request, attempt_id="a1") as stream:
                await stream.reply()
    finally:
        await provider.aclose()


def test_loopback_is_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()
