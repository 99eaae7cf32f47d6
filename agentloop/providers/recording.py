"""Recorded answers: a ``.sse`` file with the body, and a ``.json`` file beside it with the rest.

The body file holds the bytes as they arrived, after transfer and content decoding, so any tool can
read it and a body file alone is a recording too. The sidecar is one JSON object, version 1:

    version   1
    model     the model asked for
    date      when the request was sent, ISO 8601 in UTC
    status    the HTTP status
    headers   the answer's headers that are neither secrets nor about framing, lower case
    reads     [[milliseconds since the request, bytes], ...]: how the body arrived
    ended     "complete" (to [DONE], or to the end of an error's body), "cut" (the connection
              broke), "timeout", "refused" (a rule was broken) or "abandoned" (the caller left)
    request   {"sha256", "body_bytes", "message_bytes", "tool_bytes", "messages", "exchanges"}

The request's text is not recorded, only its digest and sizes. Keys never reach a recording: headers
are taken from a fixed list, and a key that the body repeats is blanked.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from ..errors import InputError
from .provider import RequestInspection
from .secrets import redact

__all__ = ["Ended", "RecordedRequest", "Recorder", "Recording", "Tape", "load_recording", "load_recordings"]

Ended = Literal["complete", "cut", "timeout", "refused", "abandoned"]

_KEPT_HEADERS: Final = frozenset(
    {"content-type", "date", "openai-processing-ms", "retry-after", "retry-after-ms", "server", "via", "x-request-id"}
)
_EVENT_STREAM: Final = {"content-type": "text/event-stream"}


class RecordedRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digest and sizes of the request that was answered."""

    sha256: str
    body_bytes: int
    message_bytes: int
    tool_bytes: int
    messages: int
    exchanges: int


class _Sidecar(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    model: str | None = None
    date: str | None = None
    status: int = 200
    headers: dict[str, str] = {}
    reads: list[tuple[float, int]] = []
    ended: Ended = "complete"
    request: RecordedRequest | None = None


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded answer.

    Attributes:
        name: the file's name without its ending.
        body: the bytes of the body.
        status, headers: of the answer; header names in lower case.
        reads: milliseconds since the request and size of each read; empty when not known.
        model, date, ended, request: as in the module's text; None where not known.
    """

    name: str
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = msgspec.field(default_factory=lambda: dict(_EVENT_STREAM))
    reads: tuple[tuple[float, int], ...] = ()
    model: str | None = None
    date: str | None = None
    ended: Ended = "complete"
    request: RecordedRequest | None = None

    def chunks(self) -> list[bytes]:
        """The body as it was read: by the recorded sizes, else whole."""
        if not self.reads:
            return [self.body] if self.body else []
        chunks, at = [], 0
        for _, size in self.reads:
            chunks.append(self.body[at : at + size])
            at += size
        if at < len(self.body):
            chunks.append(self.body[at:])
        return [chunk for chunk in chunks if chunk]


def load_recording(path: str | Path) -> Recording:
    """Read one recording: the ``.sse`` file, and its sidecar where there is one.

    Raises:
        InputError: there is no such file, its name does not end in ``.sse``, or the sidecar is not a
            version 1 sidecar.
        OSError: a file cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"recordings: expected a folder or a .sse file, got {str(path)!r}, which does not exist")
    if path.suffix != ".sse":
        raise InputError(f"recordings: expected a .sse file, got {path.name!r}")
    body = path.read_bytes()
    sidecar = path.with_suffix(".json")
    if not sidecar.exists():
        return Recording(name=path.stem, body=body)
    try:
        about = msgspec.json.decode(sidecar.read_bytes(), type=_Sidecar)
    except msgspec.MsgspecError as error:
        raise InputError(f"{sidecar.name}: expected the sidecar of a recording, version 1; {error}") from error
    return Recording(
        name=path.stem,
        body=body,
        status=about.status,
        headers=about.headers or dict(_EVENT_STREAM),
        reads=tuple(about.reads),
        model=about.model,
        date=about.date,
        ended=about.ended,
        request=about.request,
    )


def load_recordings(source: str | Path | Sequence[str | Path | Recording]) -> tuple[Recording, ...]:
    """Read a folder's recordings in the order of their names, or a list of files in its own order.

    Raises:
        InputError: there is none, or a file is no recording.
        OSError: a file or the folder cannot be read.
    """
    if isinstance(source, bytes) or not isinstance(source, (str, Path, Iterable)):
        got = type(source).__name__
        raise InputError(f"recordings: expected a folder, a .sse file or a sequence of recordings, got {got}")
    if isinstance(source, (str, Path)):
        root = Path(source)
        files: Iterable[str | Path | Recording] = sorted(root.glob("*.sse")) if root.is_dir() else [root]
    else:
        files = source
    found = tuple(_recording(at, item) for at, item in enumerate(files))
    if not found:
        raise InputError("recordings: expected at least one .sse file, got none")
    return found


def _recording(at: int, item: str | Path | Recording) -> Recording:
    if isinstance(item, (str, Path)):
        return load_recording(item)
    if not isinstance(item, Recording):
        raise InputError(f"recordings[{at}]: expected a .sse file or a Recording, got {type(item).__name__}")
    return item


class Recorder:
    """Writes what a live endpoint answered into a folder, one pair of files an answer.

    A file appears whole or not at all, and never replaces another: names are numbered. Writing
    happens once, when an answer has ended, in the task that read it; recording is for making test
    data, not for production traffic.

    Args:
        folder: made when it does not exist.
        clock: monotonic seconds, for arrival times.
        now: the current time, for ``date``.

    Raises:
        InputError: ``folder`` is no path, or a file.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if not isinstance(folder, (str, Path)):
            raise InputError(f"Recorder.folder: expected a path, got {type(folder).__name__}")
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():  # before a request is paid for
            raise InputError(f"Recorder.folder: expected a folder, got the file {self.folder.name!r}")
        self.saved: list[Path] = []
        self._clock, self._now = clock, now

    def begin(self, *, model: str, body: bytes, inspection: RequestInspection, secrets: tuple[str, ...] = ()) -> Tape:
        """Start the tape of one request; nothing is written before an answer comes and ends."""
        request = RecordedRequest(
            sha256=hashlib.sha256(body).hexdigest(), **{name: getattr(inspection, name) for name in _SIZES}
        )
        return Tape(self, model=model, request=request, secrets=secrets, clock=self._clock, date=self._now())

    def save(self, model: str, body: bytes, sidecar: bytes) -> Path:
        """Write a pair under the next free number; returns the body's path."""
        self.folder.mkdir(parents=True, exist_ok=True)
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", model).strip(".-") or "model"
        number = len(self.saved) + 1
        while True:
            path = self.folder / f"{number:04d}-{slug}.sse"
            if not path.with_suffix(".json").exists() and _write_new(path, body):
                _write_new(path.with_suffix(".json"), sidecar)
                self.saved.append(path)
                return path
            number += 1


_SIZES: Final = RequestInspection.__struct_fields__


class Tape:
    """Gathers one answer. Calls after `stop` change nothing."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        model: str,
        request: RecordedRequest,
        secrets: tuple[str, ...],
        clock: Callable[[], float],
        date: datetime,
    ) -> None:
        self._recorder, self._model, self._request, self._secrets = recorder, model, request, secrets
        self._clock, self._date, self._start = clock, date, clock()
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._reads: list[tuple[float, int]] = []

    def answered(self, status: int, headers: Mapping[str, str]) -> None:
        """Note the answer's head."""
        self._status = status
        self._headers = {name.lower(): value for name, value in headers.items() if name.lower() in _KEPT_HEADERS}

    def add(self, chunk: bytes) -> None:
        """Note one read."""
        self._chunks.append(chunk)
        self._reads.append((round((self._clock() - self._start) * 1000, 3), len(chunk)))

    def stop(self, ended: Ended) -> None:
        """Write the pair of files, once; does nothing when no answer came.

        Raises:
            OSError: the files cannot be written.
        """
        if self._status is None:
            return
        about = _Sidecar(
            model=self._model,
            date=self._date.isoformat(timespec="milliseconds"),
            status=self._status,
            headers=self._headers,
            reads=self._reads,
            ended=ended,
            request=self._request,
        )
        self._status = None
        sidecar = redact(msgspec.json.format(msgspec.json.encode(about)), self._secrets)
        self._recorder.save(self._model, redact(b"".join(self._chunks), self._secrets), sidecar)


def _write_new(path: Path, content: bytes) -> bool:
    """Write a file that appears whole; False when the name is taken."""
    temporary = path.with_name(f".{os.urandom(8).hex()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, it never replaces
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True
