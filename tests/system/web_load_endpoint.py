"""A model endpoint that answers at a pace: ``python -m tests.system.web_load_endpoint``.

The last message of a request says how it is answered (`Asked`). It prints its port, answers ``GET /seen`` with what
it was asked so far, and serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Literal, NamedTuple

import msgspec

__all__ = ["Asked", "Seen", "main"]

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_DELTA = b'data: {"id":"r","model":"m","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
_LAST = (
    b'data: {"id":"r","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    b'data: {"id":"r","model":"m","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":9,"total_tokens":18}}\n\n'
    b"data: [DONE]\n\n"
)


class Asked(NamedTuple):
    """How an answer shall come; as one line it is what a person says.

    Attributes:
        tag: begins each delta, so that no two answers have an equal one.
        deltas: how many. size: characters of each. first, pace: seconds before the first one and between two.
    """

    tag: str
    deltas: int
    size: int
    first: float
    pace: float

    @classmethod
    def read(cls, line: str) -> Asked:
        tag, deltas, size, first, pace = line.split()
        return cls(tag, int(deltas), int(size), float(first), float(pace))

    @property
    def line(self) -> str:
        return " ".join(map(str, self))

    @property
    def seconds(self) -> float:
        """From the request to the last delta."""
        return self.first + self.pace * (self.deltas - 1)

    def delta(self, number: int) -> str:
        return f"{self.tag}.{number} ".ljust(self.size, ".")

    @property
    def text(self) -> str:
        """All of the answer."""
        return "".join(map(self.delta, range(self.deltas)))


class Seen(msgspec.Struct):
    """One request, and how its answer went: ``cut`` is one whose client has gone before its end."""

    attempt_id: str
    tag: str
    state: Literal["going", "done", "cut"] = "going"


class _Replay(asyncio.Protocol):
    """One connection: requests with Content-Length in, chunked answers out, one delta a chunk."""

    def __init__(self, seen: list[Seen]) -> None:
        self._seen, self._buffer = seen, b""
        self._loop = asyncio.get_running_loop()
        self._now: Seen | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._now is not None:
            self._now.state = "cut"

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, sep, rest = self._buffer.partition(b"\r\n\r\n")
        if not sep:
            return
        lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        size = int(headers.get("content-length", "0"))
        if len(rest) < size:
            return
        self._buffer = rest[size:]
        if lines[0].startswith("GET "):
            body = msgspec.json.encode(self._seen)
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        asked = Asked.read(msgspec.json.decode(rest[:size])["messages"][-1]["content"])
        self._now = Seen(headers.get("x-client-request-id", ""), asked.tag)
        self._seen.append(self._now)
        self._transport.write(_HEAD)
        begin = self._loop.time() + asked.first
        self._timer = self._loop.call_at(begin, self._send, asked, 0, begin)

    def _send(self, asked: Asked, number: int, begin: float) -> None:
        if number == asked.deltas:
            self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(_LAST), _LAST))
            assert self._now is not None
            self._now.state = "done"
            self._now = self._timer = None
            return
        event = (
            b'data: {"id":"r","model":"m","choices":[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n'
        )
        event %= asked.delta(number).encode()
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))
        at = begin + asked.pace * (number + 1) if number + 1 < asked.deltas else self._loop.time()
        self._timer = self._loop.call_at(at, self._send, asked, number + 1, begin)


async def main() -> Any:
    """Serve until the standard input closes."""
    loop = asyncio.get_running_loop()
    seen: list[Seen] = []
    server = await loop.create_server(lambda: _Replay(seen), "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
