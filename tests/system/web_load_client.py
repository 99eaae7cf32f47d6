"""Clients of a chat backend that check each thing they are told: ``python -m tests.system.web_load_client CROWD``.

Run as a process it is a crowd (`Crowd`): each of its clients has turn after turn, and beside them some ask the model
endpoint directly. It prints a `Summary`.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import msgspec

from tests.system.web_load_endpoint import Asked

__all__ = ["Answer", "Client", "Crowd", "Frame", "Summary", "Told", "main", "quantile", "take_turn"]

_TURNS = 2
"""Of each conversation of a crowd's client."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing sends RST


class Payload(msgspec.Struct):
    """What is read of an event."""

    text: str = ""
    offset: int = 0
    retracted: bool = False


class Frame(msgspec.Struct):
    """What is read of a server-sent event."""

    type: str
    event_id: str | None = None
    payload: Payload | None = None
    turn: dict[str, Any] | None = None


_DECODER = msgspec.json.Decoder(Frame)


class Answer:
    """Bytes of one chunked answer in, the data of its server-sent events out; the cuts between reads do not matter."""

    def __init__(self) -> None:
        self._raw = b""
        self._body = b""
        self.status: int | None = None
        self.ended = False

    def feed(self, data: bytes) -> list[bytes]:
        """Take what came; the data of each event that is complete with it."""
        self._raw += data
        if self.status is None:
            head, sep, rest = self._raw.partition(b"\r\n\r\n")
            if not sep:
                return []
            self.status, self._raw = int(head.split(b" ", 2)[1]), rest
            assert b"chunked" in head.lower(), head
        while not self.ended:
            line, sep, rest = self._raw.partition(b"\r\n")
            size = int(line, 16) if sep else 0
            if not sep or len(rest) < size + 2:
                break
            self._body += rest[:size]
            self._raw, self.ended = rest[size + 2 :], size == 0
        *events, self._body = self._body.split(b"\n\n")
        return [event[event.index(b"data: ") + 6 :] for event in events if not event.startswith(b":")]


class Told:
    """What a client was told of one turn; each event is checked as it comes.

    Nothing may be missing and nothing come twice: event ids go up by one, but where text that was told in several
    events came as one, and each text begins where the one before ended.

    Attributes:
        turn: the turn as it was stored, where that was told in place of events that are not kept.
        end: the turn at its end.
    """

    def __init__(self, asked: Asked) -> None:
        self.asked, self.text, self.events = asked, "", 0
        self.types: list[str] = []  # but for those of text
        self.last_id: str | None = None
        self.shown_at: float | None = None
        self.turn: dict[str, Any] | None = None
        self.end: dict[str, Any] | None = None

    def take(self, data: bytes, at: float) -> None:
        """The next event, and when it came."""
        frame = _DECODER.decode(data)
        self.events += 1
        assert self.end is None, "expected nothing after the end"
        if frame.type == "end":
            self.end = frame.turn
            return
        if frame.type == "turn":
            self.turn, self.text = frame.turn, ""
            return
        assert frame.event_id is not None, f"expected an event of the run, got {data[:200]!r}"
        most = 1
        if frame.type == "model.output":
            assert frame.payload is not None
            assert frame.payload.offset == len(self.text), (frame, len(self.text))
            most, rest = divmod(len(frame.payload.text), self.asked.size)
            assert rest == 0, frame
            self.text += frame.payload.text
            self.shown_at = self.shown_at or at
        else:
            self.types.append(frame.type)
        sequence = int(frame.event_id.rpartition(":")[2])
        before = 0 if self.last_id is None else int(self.last_id.rpartition(":")[2])
        assert before < sequence, (frame, self.last_id)
        assert sequence <= before + most or self.turn is not None, (frame, self.last_id)
        self.last_id = frame.event_id

    def check(self) -> None:
        """That all of the turn was told."""
        assert self.end is not None, "expected an end"
        assert (self.end["state"], self.end["outcome"]) == ("ended", "completed"), self.end
        assert self.types == ["run.started", "model.start", "model.parsed", "model.end", "run.ended"], self.types
        assert self.text == self.end["attempts"][-1]["text"] == self.asked.text, (len(self.text), self.asked)


class Client:
    """One user with one connection, made anew where it was lost.

    Args:
        receive_buffer: bytes that the system takes for it, where it shall be few.

    Attributes:
        cut: whether the newest stream broke off in the middle of its bytes.
    """

    def __init__(self, port: int, user: str, *, receive_buffer: int | None = None) -> None:
        self.port, self.user, self._receive_buffer = port, user, receive_buffer
        self.cut = False
        self.reader: asyncio.StreamReader | None = None
        self.writer: asyncio.StreamWriter | None = None

    async def send(self, method: str, path: str, body: bytes = b"", *, after: str | None = None) -> None:
        """Send a request."""
        if self.writer is None or self.writer.is_closing():
            self.reader, self.writer = await self._connect()
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nX-User: {self.user}\r\n"
        if after is not None:
            head += f"Last-Event-ID: {after}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.writer.write(head.encode() + b"\r\n" + body)

    async def ask(self, method: str, path: str, value: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        await self.send(method, path, b"" if value is None else msgspec.json.encode(value))
        assert self.reader is not None
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        body = await self.reader.readexactly(size)
        return int(head.split(" ", 2)[1]), msgspec.json.decode(body) if body else None

    async def begin(self, turn: str, asked: Asked, *, conversation: str = "c") -> None:
        """Begin a turn."""
        path = f"/api/conversations/{conversation}/turns"
        status, answer = await self.ask("POST", path, {"id": turn, "text": asked.line})
        assert status == 201, answer

    async def stream(self, turn: str, *, conversation: str = "c", after: str | None = None) -> None:
        """Ask for the events of a turn; `frames` reads them."""
        await self.send("GET", f"/api/conversations/{conversation}/turns/{turn}/events", after=after)

    async def frames(self, *, size: int = 65536, pause: float = 0.0) -> AsyncIterator[bytes]:
        """The data of events as they come, until the answer ends, in order or not.

        Args:
            size: bytes that are read at once, at most. pause: seconds before each time.
        """
        assert self.reader is not None
        answer, self.cut = Answer(), True
        while not answer.ended:
            if pause:
                await asyncio.sleep(pause)
            data = b"" if pause and self._is_broken() else await self._read(size)
            if not data:
                await self.close()
                return
            for frame in answer.feed(data):
                yield frame
        self.cut = False

    async def follow(self, turn: str, told: Told, *, conversation: str = "c", **pace: Any) -> None:
        """Read a turn on, from where it was read before, until its stream ends; ``pace`` as of `frames`."""
        await self.stream(turn, conversation=conversation, after=told.last_id)
        clock = asyncio.get_running_loop().time
        async for data in self.frames(**pace):
            told.take(data, clock())

    async def until_shown(self, turn: str, told: Told) -> AsyncIterator[bytes]:
        """Read a turn until something of its text is shown; the rest of it."""
        await self.stream(turn)
        rest = self.frames()
        while told.shown_at is None:
            told.take(await anext(rest), asyncio.get_running_loop().time())
        return rest

    async def close(self) -> None:
        """Go, as a client does."""
        if self.writer is not None:
            self.writer.close()
            self.reader = self.writer = None

    def reset(self) -> None:
        """Go without a word: the other side gets RST."""
        assert self.writer is not None
        self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _read(self, size: int) -> bytes:
        assert self.reader is not None
        try:
            return await self.reader.read(size)
        except ConnectionError:
            return b""

    def _is_broken(self) -> bool:
        """Whether the other side has broken the connection: who reads slowly would come to that very late."""
        assert self.writer is not None
        return bool(self.writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        plug = socket.socket()
        plug.setblocking(False)
        limit = 65536
        if self._receive_buffer is not None:
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
            limit = 4096
        await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", self.port))
        return await asyncio.open_connection(sock=plug, limit=limit)


async def take_turn(client: Client, turn: str, asked: Asked, *, conversation: str = "c") -> tuple[Told, float]:
    """Have a whole turn; what was told of it, and the seconds until something was shown."""
    begun = asyncio.get_running_loop().time()
    told = Told(asked)
    await client.begin(turn, asked, conversation=conversation)
    await client.follow(turn, told, conversation=conversation)
    told.check()
    assert told.shown_at is not None
    return told, told.shown_at - begun


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """A crowd.

    Attributes:
        port, endpoint: of the backend and of the model endpoint.
        clients: of the backend. direct: of the endpoint.
        seconds: after which no turn is begun. asked: of each turn, but for the tag.
    """

    port: int
    endpoint: int
    clients: int
    direct: int
    seconds: float
    asked: Asked


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a crowd.

    Attributes:
        turns, events: of all clients. wrong: what went wrong, one text for each client.
        first, first_direct: seconds until something was shown, for each turn.
        late, late_direct: by how many seconds more than its pace an answer took, for each turn.
        cpu: seconds the process has computed for.
    """

    turns: int
    events: int
    wrong: list[str]
    first: list[float]
    first_direct: list[float]
    late: list[float]
    late_direct: list[float]
    cpu: float


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of all is below."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class _Running:
    def __init__(self, crowd: Crowd) -> None:
        self.crowd = crowd
        self.events = 0
        self.wrong: list[str] = []
        self.first: list[float] = []
        self.first_direct: list[float] = []
        self.late: list[float] = []
        self.late_direct: list[float] = []
        self._clock = asyncio.get_running_loop().time
        self._ends = self._clock() + crowd.seconds

    async def client(self, number: int, of: int, *, direct: bool) -> None:
        """Turn after turn; the clients of a crowd come one after the other, not all in one moment."""
        crowd = self.crowd
        await asyncio.sleep(crowd.asked.seconds * number / of)
        turn = 0
        try:
            async with Client(crowd.endpoint if direct else crowd.port, f"user-{number}") as client:
                while self._clock() < self._ends:
                    asked = crowd.asked._replace(tag=f"{'d' if direct else 'u'}{number}t{turn}")
                    begun = self._clock()
                    if direct:
                        self.first_direct.append(await _ask_endpoint(client, asked))
                        self.late_direct.append(self._clock() - begun - asked.seconds)
                    else:
                        told, first = await take_turn(client, f"t{turn}", asked, conversation=f"c{turn // _TURNS}")
                        self.first.append(first)
                        self.events += told.events
                        self.late.append(self._clock() - begun - asked.seconds)
                    turn += 1
        except Exception as error:  # noqa: BLE001  # whatever it is, the test is to see it
            self.wrong.append(f"client {number}, turn {turn}: {type(error).__name__}: {error}"[:500])


async def _ask_endpoint(client: Client, asked: Asked) -> float:
    """Ask the model without the backend; seconds until the first delta."""
    clock = asyncio.get_running_loop().time
    begun, shown, told = clock(), None, b""
    messages = [{"role": "user", "content": asked.line}]
    await client.send("POST", "/v1/chat/completions", msgspec.json.encode({"messages": messages}))
    async for data in client.frames():
        shown, told = shown or clock(), data
    assert told == b"[DONE]", told
    assert shown is not None
    return shown - begun


async def main(crowd: Crowd) -> Summary:
    """Be that crowd."""
    running = _Running(crowd)
    async with asyncio.TaskGroup() as group:
        for number in range(crowd.clients):
            group.create_task(running.client(number, crowd.clients, direct=False))
        for number in range(crowd.direct):
            group.create_task(running.client(number, crowd.direct, direct=True))
    used = resource.getrusage(resource.RUSAGE_SELF)
    return Summary(
        turns=len(running.first),
        events=running.events,
        wrong=running.wrong,
        first=running.first,
        first_direct=running.first_direct,
        late=running.late,
        late_direct=running.late_direct,
        cpu=used.ru_utime + used.ru_stime,
    )


if __name__ == "__main__":
    print(msgspec.json.encode(asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Crowd)))).decode())
