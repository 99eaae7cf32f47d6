"""Recordings: what is written, and that it never replaces, leaks or half exists."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import AgentLoopError, InputError
from agentloop.limits import Timeouts
from agentloop.messages import ModelRequest, UserMessage
from agentloop.providers import (
    ChatCompletions,
    Recorder,
    Recording,
    ReplayProvider,
    RequestInspection,
    load_recording,
    load_recordings,
)
from agentloop.testing.replay_server import Answer, ReplayServer
from agentloop.wire.encode import encode_request
from agentloop.wire.presets import OPENAI

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
TEXT = (RECORDINGS / "text.sse").read_bytes()
KEY = "sk-proj-0123456789abcdefghij"
REQUEST = ModelRequest(messages=(UserMessage(content="a very private prompt"),))
SIZES = RequestInspection(body_bytes=5, message_bytes=1, tool_bytes=0, messages=1, exchanges=0)

Send = Callable[..., Any]


@pytest.fixture
async def server() -> AsyncIterator[ReplayServer]:
    async with ReplayServer() as running:
        yield running


@pytest.fixture
async def send(server: ReplayServer, tmp_path: Path) -> AsyncIterator[Send]:
    """Send once with a recorder; return the recording, or None when none was made."""
    provider = ChatCompletions(
        server.url,
        model="vendor/model-1",
        api_key=KEY,
        recorder=Recorder(tmp_path / "kept"),
        timeouts=Timeouts(idle=0.08),
    )

    async def once(*, leave: bool = False) -> Recording | None:
        before = set((tmp_path / "kept").glob("*.sse"))
        try:
            async with provider.stream(REQUEST, attempt_id="a") as stream:
                if leave:
                    await anext(stream)
                else:
                    await stream.reply()
        except AgentLoopError:
            pass
        new = set((tmp_path / "kept").glob("*.sse")) - before
        assert len(new) <= 1
        return load_recording(new.pop()) if new else None

    yield once
    await provider.aclose()


async def test_a_recording_holds_the_bytes_and_how_they_came(server: ReplayServer, send: Send) -> None:
    server.script(Answer(body=TEXT, pace=0.0005, headers={"x-request-id": "req_9", "set-cookie": "s=1"}))
    recording = await send()
    assert recording.body == TEXT
    assert (recording.name, recording.model, recording.status, recording.ended) == (
        "0001-vendor-model-1",
        "vendor/model-1",
        200,
        "complete",
    )
    assert recording.headers == {"content-type": "text/event-stream", "x-request-id": "req_9"}
    assert sum(size for _, size in recording.reads) == len(TEXT)
    moments = [ms for ms, _ in recording.reads]
    assert len(moments) > 10
    assert moments == sorted(moments)
    assert b"".join(recording.chunks()) == TEXT
    body = encode_request(REQUEST, model="vendor/model-1", dialect=OPENAI).body
    assert recording.request.sha256 == hashlib.sha256(body).hexdigest()
    assert recording.request.body_bytes == len(body)
    assert datetime.fromisoformat(recording.date).tzinfo is not None


@pytest.mark.parametrize(
    ("answer", "ended", "size"),
    [
        (Answer.error(429, {"error": {"message": "slow"}}, retry_after="1"), "complete", None),
        (Answer(body=b"<html>", headers={"content-type": "text/html"}), "complete", 6),
        (Answer(body=TEXT, cut=2_000, ending="close"), "cut", 2_000),
        (Answer(body=TEXT, cut=2_000), "cut", 2_000),
        (Answer(body=TEXT, cut=2_000, ending="stall"), "timeout", 2_000),
        (Answer(body=b"data: {broken\n\n"), "refused", None),
    ],
    ids=["429", "html", "broken", "short", "stalled", "bad"],
)
async def test_failed_answers_are_recorded_too(
    server: ReplayServer, send: Send, answer: Answer, ended: str, size: int | None
) -> None:
    server.script(answer)
    recording = await send()
    assert (recording.status, recording.ended) == (answer.status, ended)
    assert len(recording.body) == (len(answer.body) if size is None else size)


async def test_an_answer_that_was_left_is_recorded_as_far_as_it_was_read(server: ReplayServer, send: Send) -> None:
    server.script(Answer(body=TEXT, pace=0.01))
    recording = await send(leave=True)
    assert recording.ended == "abandoned"
    assert TEXT.startswith(recording.body)


async def test_without_an_answer_nothing_is_recorded(server: ReplayServer, send: Send) -> None:
    server.script(Answer(silent=True, ending="close"))
    assert await send() is None


async def test_neither_key_nor_prompt_is_written(server: ReplayServer, send: Send, tmp_path: Path) -> None:
    leak = json.dumps({"error": {"message": f"bad key {KEY}"}})
    server.script(Answer.error(401, leak.encode(), x_request_id=KEY), TEXT)
    await send()
    await send()
    written = b"".join(path.read_bytes() for path in (tmp_path / "kept").iterdir())
    assert KEY.encode() not in written
    assert b"private prompt" not in written
    assert b"*" * len(KEY) in written


async def test_a_recording_is_replayed_as_it_was_recorded(server: ReplayServer, send: Send, tmp_path: Path) -> None:
    server.script(TEXT)
    recording = await send()
    server.script(recording)
    again = await send()
    assert (again.body, again.headers, again.status) == (recording.body, recording.headers, recording.status)
    assert [item.name for item in load_recordings(tmp_path / "kept")] == ["0001-vendor-model-1", "0002-vendor-model-1"]


def test_a_file_is_never_replaced_and_numbers_go_on(tmp_path: Path) -> None:
    for number in range(1, 4):
        recorder = Recorder(tmp_path, now=lambda: datetime(2026, 11, 29, tzinfo=UTC))
        tape = recorder.begin(model="m", body=b"{}", inspection=SIZES)
        tape.answered(200, {"Content-Type": "text/event-stream"})
        tape.add(b"%d" % number)
        tape.stop("complete")
        tape.stop("cut")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"000{number}-m.{kind}" for number in (1, 2, 3) for kind in ("json", "sse")]
    assert [(tmp_path / f"000{number}-m.sse").read_bytes() for number in (1, 2, 3)] == [b"1", b"2", b"3"]


def test_a_folder_that_is_a_file_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"Recorder.folder: expected a folder, got the file 'notes.txt'"):
        Recorder(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"Recorder.folder: expected a path, got int"):
        Recorder(3)  # type: ignore[arg-type]


def test_a_name_taken_by_a_sidecar_alone_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "0001-m.json").write_text("mine")
    recorder = Recorder(tmp_path)
    assert recorder.save("m", b"x", b"{}") == tmp_path / "0002-m.sse"
    assert (tmp_path / "0001-m.json").read_text() == "mine"


@pytest.mark.parametrize("model", ["../../etc/passwd", "..", "", "a/b c", "é"])
def test_a_models_name_stays_inside_the_folder(tmp_path: Path, model: str) -> None:
    path = Recorder(tmp_path / "in").save(model, b"x", b"{}")
    assert path.parent == tmp_path / "in"
    assert path.resolve().parent == (tmp_path / "in").resolve()


def test_a_body_file_alone_is_a_recording(tmp_path: Path) -> None:
    (tmp_path / "plain.sse").write_bytes(TEXT)
    recording = load_recording(tmp_path / "plain.sse")
    assert (recording.name, recording.status, recording.model, recording.reads) == ("plain", 200, None, ())
    assert recording.headers == {"content-type": "text/event-stream"}
    assert recording.chunks() == [TEXT]
    assert Recording(name="empty", body=b"").chunks() == []


def test_reads_that_do_not_cover_the_body_lose_nothing() -> None:
    recording = Recording(name="r", body=b"abcdef", reads=((0.0, 2), (1.0, 0), (2.0, 3)))
    assert recording.chunks() == [b"ab", b"cde", b"f"]


@pytest.mark.parametrize(
    "sidecar",
    [
        "",
        "[]",
        '{"version":2}',
        '{"version":1,"color":"red"}',
        '{"reads":"many"}',
        '{"ended":"maybe"}',
        '{"status":"200"}',
    ],
)
def test_a_sidecar_of_another_kind_is_refused_by_name(tmp_path: Path, sidecar: str) -> None:
    (tmp_path / "x.sse").write_bytes(TEXT)
    (tmp_path / "x.json").write_text(sidecar)
    with pytest.raises(InputError, match=r"x\.json: expected the sidecar"):
        load_recording(tmp_path / "x.sse")


def test_a_folder_is_read_by_name_and_a_list_in_its_own_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.sse").write_bytes(b"x")
    (tmp_path / "notes.txt").write_text("no recording")
    assert [item.name for item in load_recordings(tmp_path)] == ["a", "b", "c"]
    assert [item.name for item in load_recordings([tmp_path / "c.sse", str(tmp_path / "a.sse")])] == ["c", "a"]
    assert [item.name for item in load_recordings(str(tmp_path / "b.sse"))] == ["b"]
    with pytest.raises(InputError, match="got none"):
        load_recordings([])


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nonexist", "expected a folder or a .sse file, got 'nonexist', which does not exist"),
        (__file__, "expected a .sse file, got 'test_recording.py'"),
        (3, "expected a folder, a .sse file or a sequence of recordings, got int"),
        (b"x.sse", "a sequence of recordings, got bytes"),
        ([3], r"recordings\[0\]: expected a .sse file or a Recording, got int"),
    ],
)
def test_what_is_no_recording_is_refused(source: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_recordings(source)
    with pytest.raises(InputError, match=says):
        ReplayProvider(source)


def test_the_made_recordings_are_what_their_script_makes(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_recordings", RECORDINGS / "make.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    made.HERE = tmp_path
    made.single_streams()
    made.notes_task()
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (RECORDINGS / path.name).read_bytes(), path.name
    assert len(list(tmp_path.iterdir())) == 22
