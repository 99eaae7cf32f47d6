"""Serves a tool loop's replies in a process of its own, so that only the client is measured.

`python -m benchmarks.serve TURNS` prints its base URL and serves until its standard input closes. The
answer to a request follows from the number of tool results in it, so every client gets the same. A
request that says ``as JSON`` is answered with notes in JSON.
"""

from __future__ import annotations

import asyncio
import sys

from .streams import notes_events, text_events, tool_events

__all__ = ["AS_JSON", "FINAL_DELTAS", "replies"]

FINAL_DELTAS = 200
AS_JSON = "as JSON"

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def replies(turns: int) -> list[list[bytes]]:
    """The events of each answer: ``turns`` with one call, then text."""
    asked = [
        tool_events("get_note", [{"note_id": turn, "section": "summary of the day"}], seed=turn)
        for turn in range(turns)
    ]
    return [*asked, text_events(FINAL_DELTAS, seed=turns)]


_NOTES = notes_events(FINAL_DELTAS)


class _Replay(asyncio.Protocol):
    """One connection: a request with Content-Length in, a chunked answer out, one event a chunk."""

    def __init__(self, answers: list[list[bytes]]) -> None:
        self._answers = answers
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, sep, rest = self._buffer.partition(b"\r\n\r\n")
        if not sep:
            return
        size = int(head.lower().split(b"\r\ncontent-length:")[1].split(b"\r\n")[0])
        if len(rest) < size:
            return
        self._buffer = rest[size:]
        body = rest[:size]
        events = _NOTES if AS_JSON.encode() in body else self._answers[body.count(b'"role":"tool"')]
        chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        self._transport.write(_HEAD + chunks[0])
        for chunk in chunks[1:]:
            self._transport.write(chunk)
        self._transport.write(b"0\r\n\r\n")


async def _main(turns: int) -> None:
    loop = asyncio.get_running_loop()
    answers = replies(turns)
    server = await loop.create_server(lambda: _Replay(answers), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
