"""pytest fixtures: ``pytest_plugins = ["agentloop.testing.fixtures"]`` in a ``conftest.py``.

- ``no_network``: a connection to anything but loopback fails the test.
- ``scripted``: makes `ScriptedProvider` objects, and checks at the end that each script was used up.
- ``replay_server``: makes `ReplayServer` objects that are closed at the end.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from .replay_server import ReplayServer
from .scripted import ScriptedProvider

__all__ = ["NetworkUsed", "no_network", "replay_server", "scripted"]


class NetworkUsed(AssertionError):
    """A test reached for the network."""


def _require_local(address: Any) -> None:
    if not isinstance(address, tuple):  # a Unix socket's path
        return
    host = str(address[0]).partition("%")[0]
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host in {"localhost", ""}
    if not local:
        raise NetworkUsed(f"no_network: expected a loopback address, got {host!r}")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no socket connect, and no name be looked up, outside loopback."""
    connect, connect_ex, sendto, lookup = (
        socket.socket.connect,
        socket.socket.connect_ex,
        socket.socket.sendto,
        socket.getaddrinfo,
    )

    def guarded_connect(self: socket.socket, address: Any) -> None:
        _require_local(address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        _require_local(address)
        return connect_ex(self, address)

    def guarded_sendto(self: socket.socket, data: Any, *args: Any) -> int:
        _require_local(args[-1])
        return sendto(self, data, *args)

    def guarded_lookup(host: Any, *args: Any, **kwargs: Any) -> Any:
        _require_local((host.decode() if isinstance(host, bytes) else host or "",))
        return lookup(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
    monkeypatch.setattr(socket.socket, "sendto", guarded_sendto)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_lookup)


@pytest.fixture
def scripted() -> Iterator[Callable[..., ScriptedProvider]]:
    """Make scripted providers: ``scripted([reply(…), …])``; each must have been used up at the end."""
    made: list[ScriptedProvider] = []

    def make(*args: Any, **kwargs: Any) -> ScriptedProvider:
        provider = ScriptedProvider(*args, **kwargs)
        made.append(provider)
        return provider

    yield make
    for provider in made:
        provider.assert_complete()


@pytest_asyncio.fixture
async def replay_server() -> AsyncIterator[ReplayServer]:
    """A running loopback server without recordings: queue answers with ``replay_server.script(…)``."""
    async with ReplayServer() as server:
        yield server
