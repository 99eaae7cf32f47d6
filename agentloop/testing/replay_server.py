"""A loopback HTTP server that answers with recordings, and with every way an answer can go wrong.

It serves ``POST /v1/chat/completions`` and ``GET /v1/models``, or both under another prefix, over plain
sockets, and remembers every request, so that a test can count exactly what was sent:

    async with ReplayServer("recordings/") as server:
        provider = ChatCompletions(server.url, model="notes-demo")
        ...
        assert len(server.requests) == 4

Which answer: first the answers queued with `ReplayServer.script`, each once; then the recordings
whose model (or file name) is the request's ``model``, in order and around again; then, for another
model, all recordings the same way.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from ..errors import InputError
from ..providers.recording import Recording, load_recordings

__all__ = ["Answer", "ReceivedRequest", "ReplayServer"]

_REASONS: Final = {200: "OK", 307: "Temporary Redirect", 404: "Not Found", 429: "Too Many Requests"}
_EVENT: Final = re.compile(rb".+?(?:\r\n\r\n|\n\n|\r\r)|.+", re.DOTALL)
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 seconds: closing sends RST
_PREFIX: Final = re.compile(r"(?:/[A-Za-z0-9._~%!$&'()*+,;=:@-]*)*")
_TLS: Final = b"\x16"  # the first byte of a TLS handshake, which has no line to wait for
_NO_TLS: Final = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"
_RESET_DELAY: Final = 0.02  # a reset discards what the kernel has not delivered yet


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """How one request is answered.

    Attributes:
        body: the bytes of the body, before transfer coding.
        status, headers: of the answer; ``content-type`` is an event stream unless said here.
        writes: ``events`` (one write an event), ``whole``, or the sizes of the writes.
        delay: seconds before the head is sent.
        pace: seconds between two writes.
        cut: send only that many bytes of the body, then go on with ``ending``; None sends all.
        ending: after the last byte ``end`` ends the body as HTTP wants it; ``close`` closes the
            connection without that; ``reset`` sends a TCP reset; ``stall`` keeps the connection
            open and silent until the client or the server goes.
        framing: ``chunked``, ``length`` (Content-Length) or ``close`` (until the connection ends).
        silent: never answer at all, not even the head; ``ending`` says what happens instead.
        comments: seconds between ``: ping`` comment lines while stalled; 0 sends none.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = {}
    writes: Literal["events", "whole"] | tuple[int, ...] = "events"
    delay: float = 0.0
    pace: float = 0.0
    cut: int | None = None
    ending: Literal["end", "close", "reset", "stall"] = "end"
    framing: Literal["chunked", "length", "close"] = "chunked"
    silent: bool = False
    comments: float = 0.0

    @classmethod
    def of(cls, recording: Recording, *, pace: float = 0.0) -> Answer:
        """Answer as recorded: status, headers and, where known, the sizes of the reads."""
        return cls(
            body=recording.body,
            status=recording.status,
            headers=recording.headers,
            writes=tuple(size for _, size in recording.reads) or "events",
            pace=pace,
            ending="close" if recording.ended == "cut" else "end",
        )

    @classmethod
    def error(cls, status: int, body: Any, **headers: str) -> Answer:
        """Answer with a JSON body (bytes are sent as they are); ``retry_after`` names Retry-After."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return cls(status=status, body=raw, headers={"content-type": "application/json", **named}, framing="length")

    def pieces(self) -> list[bytes]:
        """The body, cut, in the pieces that are written one by one."""
        body = self.body if self.cut is None else self.body[: self.cut]
        if self.writes == "events":
            return _EVENT.findall(body)
        if self.writes == "whole":
            return [body] if body else []
        pieces, at = [], 0
        for size in self.writes:
            pieces.append(body[at : at + size])
            at += size
        return [piece for piece in (*pieces, body[at:]) if piece]


class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it came.

    Attributes:
        method, path: from the request line; the path with its query.
        headers: names in lower case.
        body: the raw bytes.
        connection: number of the connection it came on, from 0.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    connection: int

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class _Connection(asyncio.StreamReaderProtocol):
    """Says when the client has gone, also while nothing is being read."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        connected: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
    ) -> None:
        super().__init__(reader, connected)
        self.gone = asyncio.Event()

    def eof_received(self) -> bool | None:
        self.gone.set()
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self.gone.set()
        super().connection_lost(error)


class ReplayServer:
    """Serves recordings on loopback while its ``async with`` block is open.

    Args:
        recordings: a folder, or files and `Recording` values in order; None when every answer is
            scripted.
        port: 0 picks a free one.
        pace: seconds between the writes of recorded answers.
        prefix: the path before ``/chat/completions``; any other path is a 404 that names the right URL.

    Raises:
        InputError: there is no recording in ``recordings``, or ``prefix`` is no path.

    Attributes:
        requests: every request so far, refused ones included.
        disconnects: how many connections the client closed while an answer was being sent.
    """

    def __init__(
        self,
        recordings: str | Path | Sequence[str | Path | Recording] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        pace: float = 0.0,
        prefix: str = "/v1",
    ) -> None:
        if type(prefix) is not str or not _PREFIX.fullmatch(prefix):
            raise InputError(f"ReplayServer.prefix: expected a path such as /v1, got {prefix!r}")
        self.requests: list[ReceivedRequest] = []
        self.disconnects = 0
        self._recordings = () if recordings is None else load_recordings(recordings)
        self._host, self._port, self._pace = host, port, pace
        self._prefix = prefix.rstrip("/")
        self._script: deque[Answer] = deque()
        self._served: dict[str, int] = {}
        self._connections = 0
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._change = asyncio.Event()

    @property
    def url(self) -> str:
        """The base URL, ending in the prefix."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}{self._prefix}"

    @property
    def models(self) -> tuple[str, ...]:
        """The models there are recordings of."""
        return tuple(dict.fromkeys(item.model or item.name for item in self._recordings))

    def script(self, *answers: Answer | Recording | bytes) -> Self:
        """Queue answers to be given first, each once; bytes are a whole event stream."""
        for answer in answers:
            if isinstance(answer, bytes):
                answer = Answer(body=answer)
            self._script.append(answer if isinstance(answer, Answer) else Answer.of(answer, pace=self._pace))
        return self

    async def wait_requests(self, count: int) -> None:
        """Wait until ``count`` requests have come."""
        await self._wait(lambda: len(self.requests) >= count)

    async def wait_disconnects(self, count: int) -> None:
        """Wait until the client has closed ``count`` connections during an answer."""
        await self._wait(lambda: self.disconnects >= count)

    async def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            self._change.clear()
            await self._change.wait()

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, self._host, self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await server.wait_closed()

    async def serve_forever(self) -> None:
        """Serve until cancelled; only inside the block."""
        if self._server is None:
            raise RuntimeError("ReplayServer: expected to be inside its async with block")
        await self._server.serve_forever()

    def _connection(self) -> _Connection:
        return _Connection(asyncio.StreamReader(), self._connected)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self._connections = self._connections, self._connections + 1
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer, number))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.transport.set_write_buffer_limits(high=0)  # drain waits until the kernel has all of it
        try:
            while (request := await _read_request(reader, writer, number)) is not None:
                self.requests.append(request)
                self._change.set()
                if not await self._respond(request, writer):
                    break
        finally:
            writer.close()

    async def _respond(self, request: ReceivedRequest, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection ends with it."""
        connection = writer.transport.get_protocol()
        assert isinstance(connection, _Connection)
        sending = asyncio.ensure_future(self._send(self._answer(request), writer))
        gone = asyncio.ensure_future(connection.gone.wait())
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and sending.exception() is None:
                return sending.result()
            self.disconnects += 1
            self._change.set()
            return False
        finally:
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)

    def _answer(self, request: ReceivedRequest) -> Answer:
        path = request.path.split("?", 1)[0]
        if request.method == "GET" and path == f"{self._prefix}/models":
            models = [{"id": name, "object": "model", "owned_by": "replay"} for name in self.models]
            return Answer.error(200, {"object": "list", "data": models})
        if request.method != "POST" or path != f"{self._prefix}/chat/completions":
            rule = f"expected POST {self.url}/chat/completions or GET {self.url}/models"
            return Answer.error(404, _error("not_found", f"{rule}, got {request.method} {path[:200]}"))
        if self._script:
            return self._script.popleft()
        try:
            wanted = request.json
        except ValueError:
            return Answer.error(400, _error("invalid_json", "expected a JSON body"))
        if not isinstance(wanted, dict) or wanted.get("stream") is not True:
            return Answer.error(400, _error("not_recorded", "expected stream: true, only streams are recorded"))
        model = str(wanted.get("model", ""))
        mine = [item for item in self._recordings if model in (item.model, item.name)] or list(self._recordings)
        if not mine:
            return Answer.error(503, _error("no_answer", "no recording and no scripted answer is left"))
        at = self._served.get(model, 0)
        self._served[model] = at + 1
        return Answer.of(mine[at % len(mine)], pace=self._pace)

    async def _send(self, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        if answer.delay:
            await asyncio.sleep(answer.delay)
        if not answer.silent:
            writer.write(_head(answer))
            chunked = answer.framing == "chunked"
            for at, piece in enumerate(answer.pieces()):
                if at and answer.pace:
                    await asyncio.sleep(answer.pace)
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                await writer.drain()
        return await self._finish(answer, writer)

    async def _finish(self, answer: Answer, writer: asyncio.StreamWriter) -> bool:
        if answer.ending == "reset":
            await asyncio.sleep(_RESET_DELAY)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
            return False
        if answer.ending == "stall":
            while True:
                await asyncio.sleep(answer.comments or 3600)
                writer.write(b"8\r\n: ping\n\n\r\n" if answer.framing == "chunked" else b": ping\n\n")
                await writer.drain()
        if answer.ending == "close" or answer.framing == "close" or answer.silent:
            return False
        if answer.framing == "chunked":
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int
) -> ReceivedRequest | None:
    """Read one request; None when the client closed the connection instead of sending one whole, or speaks TLS."""
    try:
        head = await reader.readexactly(1)
        if head == _TLS:
            writer.write(_NO_TLS)  # the client cannot read it, and knows from it that this is no TLS
            return None
        head += await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        pairs = (line.partition(":") for line in lines[1:-2])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    except (ConnectionError, asyncio.IncompleteReadError):
        return None
    return ReceivedRequest(method=method, path=path, headers=headers, body=body, connection=connection)


def _head(answer: Answer) -> bytes:
    headers = {"content-type": "text/event-stream", "cache-control": "no-cache"}
    headers.update({name.lower(): value for name, value in answer.headers.items()})
    for name in ("transfer-encoding", "content-length", "connection"):
        headers.pop(name, None)
    if answer.framing == "chunked":
        headers["transfer-encoding"] = "chunked"
    elif answer.framing == "length":
        headers["content-length"] = str(len(answer.body))
    else:
        headers["connection"] = "close"
    lines = [f"HTTP/1.1 {answer.status} {_REASONS.get(answer.status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _error(code: str, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "type": "replay_error", "message": message}}
