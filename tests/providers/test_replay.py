"""Replay without a network: selection, order, errors and reads of recordings."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from agentloop.errors import HTTPStatusError, InputError, LimitExceeded, ProviderError, StreamRefused
from agentloop.messages import ModelReply, ModelRequest, UserMessage
from agentloop.providers import Recording, ReplayProvider
from agentloop.wire.dialect import Dialect

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "captures"
TEXT = (RECORDINGS / "text.sse").read_bytes()
REQUEST = ModelRequest(messages=(UserMessage(content="hi"),))


async def send(provider: ReplayProvider, request: ModelRequest = REQUEST) -> ModelReply:
    async with provider.stream(request, attempt_id="a") as stream:
        return await stream.reply()


async def test_a_models_recordings_are_given_in_the_order_of_their_names() -> None:
    provider = ReplayProvider(RECORDINGS, model="notes-demo")
    names = []
    for _ in range(4):
        names.append([call.name for call in (await send(provider)).calls])
        assert provider.left == 4 - len(names)
    assert names == [["read_note"], ["read_note"], ["write_note"], []]
    assert provider.requests == [REQUEST] * 4


async def test_a_recording_can_be_asked_for_by_its_own_name() -> None:
    assert (await send(ReplayProvider(RECORDINGS, model="length"))).termination.reason == "length"


def test_a_model_without_recordings_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="'nobody' among 11"):
        ReplayProvider(RECORDINGS, model="nobody")
    with pytest.raises(InputError, match="dialect"):
        ReplayProvider(RECORDINGS, dialect="nobody")


async def test_one_send_too_many_fails_and_says_how_many_there_are() -> None:
    provider = ReplayProvider([RECORDINGS / "text.sse"])
    await send(provider)
    with pytest.raises(ProviderError, match=r"than recordings \(1\)") as caught:
        await send(provider)
    assert caught.value.may_have_been_processed is False
    assert len(provider.requests) == 1
    again = ReplayProvider([RECORDINGS / "text.sse"], repeat=True)
    assert await send(again) == await send(again)


async def test_reads_have_their_recorded_sizes() -> None:
    whole = ReplayProvider([Recording(name="r", body=TEXT)])
    small = ReplayProvider([Recording(name="r", body=TEXT, reads=tuple((0.0, 100) for _ in range(len(TEXT) // 100)))])
    async with whole.stream(REQUEST, attempt_id="a") as stream:
        assert len([delta async for delta in stream]) == 1
    async with small.stream(REQUEST, attempt_id="a") as stream:
        assert len([delta async for delta in stream]) > 30


async def test_each_read_gives_other_tasks_a_turn() -> None:
    provider = ReplayProvider(RECORDINGS, model="text")
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(count())
    await send(provider)
    task.cancel()
    assert turns > 10


async def test_a_recorded_error_is_raised_as_the_live_one_was() -> None:
    recording = Recording(
        name="r",
        body=b'{"error":{"code":"slow"}}',
        status=429,
        headers={"retry-after": "Sun, 29 Nov 2026 23:59:59 GMT"},
    )
    provider = ReplayProvider([recording], wall_clock=lambda: 1_795_996_789.0)
    with pytest.raises(HTTPStatusError) as caught:
        await send(provider)
    assert (caught.value.status, caught.value.vendor_code, caught.value.retry_after) == (429, "slow", 10.0)


async def test_a_recorded_page_is_no_event_stream() -> None:
    provider = ReplayProvider([Recording(name="r", body=b"<html>", headers={"content-type": "text/html"})])
    with pytest.raises(StreamRefused, match="not_event_stream"):
        await send(provider)


async def test_a_recording_that_broke_off_breaks_off_again() -> None:
    end = len(TEXT) - len(b"data: [DONE]\n\n")
    no_done = Dialect(name="no-done", done_absent=True)
    broken = Recording(name="r", body=TEXT[:end], ended="cut")
    with pytest.raises(StreamRefused, match="missing_done"):
        await send(ReplayProvider([broken], dialect=no_done))
    assert await send(ReplayProvider([Recording(name="r", body=TEXT[:end])], dialect=no_done))


async def test_limits_hold_as_for_a_live_provider() -> None:
    with pytest.raises(LimitExceeded):
        await send(ReplayProvider(RECORDINGS, max_request_bytes=10))
    with pytest.raises(StreamRefused, match="oversized"):
        await send(ReplayProvider(RECORDINGS, model="text", max_response_bytes=500))


async def test_no_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert await send(ReplayProvider(RECORDINGS, model="text"))


def test_its_representation_says_how_many_and_for_whom() -> None:
    assert repr(ReplayProvider(RECORDINGS, model="notes-demo")) == "ReplayProvider(4 recordings, model='notes-demo')"


@pytest.mark.skipif(not SHARED.exists(), reason="the captures are not there")
@pytest.mark.parametrize("name", ["haproxy__ok", "llmock__text_usage", "llmock__tools"])
async def test_captured_streams_are_admitted(name: str) -> None:
    dialect = Dialect(name="no-usage", usage_absent=True)
    reply = await send(ReplayProvider([SHARED / f"{name}.sse"], dialect=dialect))
    assert reply.text or reply.calls
