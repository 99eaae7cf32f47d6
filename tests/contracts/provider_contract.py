"""What every provider must do, whatever it sends through.

A subclass gives `serve`, which makes a provider that answers with the named recordings of
``tests/recordings`` in order, and a function that counts the requests that reached the other side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import pytest

from agentloop.errors import InputError, StreamRefused
from agentloop.messages import ModelReply, ModelRequest, UserMessage
from agentloop.providers import Provider
from agentloop.wire.deltas import CallDelta, Delta, ReasoningDelta, TextDelta

__all__ = ["RECORDINGS", "REQUEST", "ProviderContract", "Served", "complete"]

RECORDINGS = Path(__file__).resolve().parents[1] / "recordings"
REQUEST = ModelRequest(messages=(UserMessage(content="Please."),))


class Served(Protocol):
    """A provider under test and its other side."""

    provider: Provider
    sent: Callable[[], int]


async def complete(provider: Provider, attempt_id: str = "attempt-1") -> tuple[list[Delta], ModelReply]:
    """Send once; return the previews and the reply."""
    async with provider.stream(REQUEST, attempt_id=attempt_id) as stream:
        previews = [delta async for delta in stream]
        return previews, await stream.reply()


class ProviderContract:
    """Inherit, and implement `serve`."""

    def serve(self, *names: str) -> AbstractAsyncContextManager[Served]:
        raise NotImplementedError

    async def test_text_comes_as_previews_and_whole_in_the_reply(self) -> None:
        """A provider gives text and a complete reply (R3)."""
        async with self.serve("text") as served:
            previews, reply = await complete(served.provider)
        assert all(isinstance(delta, TextDelta) for delta in previews)
        assert "".join(delta.text for delta in previews) == reply.text  # type: ignore[union-attr]
        assert reply.text.endswith("Größe, 数, 🙂.")
        assert (reply.termination.kind, reply.termination.reason) == ("completed", "stop")

    async def test_previews_say_where_in_the_text_they_stand(self) -> None:
        async with self.serve("text") as served:
            previews, reply = await complete(served.provider)
        for delta in previews:
            assert isinstance(delta, TextDelta)
            assert reply.text[delta.offset :].startswith(delta.text)

    async def test_a_call_arrives_whole_with_its_raw_arguments(self) -> None:
        """Function calls are part of the complete reply (R3)."""
        async with self.serve("one-call") as served:
            previews, reply = await complete(served.provider)
        (call,) = reply.calls
        assert (call.id, call.name, call.arguments.text) == ("call_w1", "get_weather", '{"city": "Zürich", "days": 2}')
        pieces = [delta.arguments for delta in previews if isinstance(delta, CallDelta)]
        assert "".join(pieces) == call.arguments.text

    async def test_two_calls_keep_their_order_and_the_text_before_them(self) -> None:
        async with self.serve("two-calls") as served:
            _, reply = await complete(served.provider)
        assert [call.id for call in reply.calls] == ["call_p1", "call_p2"]
        assert reply.text == "Looking at both."

    async def test_usage_is_what_the_server_said(self) -> None:
        async with self.serve("text") as served:
            _, reply = await complete(served.provider)
        assert reply.usage is not None
        assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (21, 64, 85)

    async def test_reasoning_is_never_previewed_as_text(self) -> None:
        async with self.serve("reasoning") as served:
            previews, reply = await complete(served.provider)
        assert "".join(delta.text for delta in previews if isinstance(delta, TextDelta)) == "Seven." == reply.text
        assert any(isinstance(delta, ReasoningDelta) for delta in previews)
        assert "Half of twelve" in reply.native.data

    @pytest.mark.parametrize(("name", "kind"), [("length", "incomplete"), ("refusal", "completed")])
    async def test_how_a_reply_ended_is_kept(self, name: str, kind: str) -> None:
        async with self.serve(name) as served:
            _, reply = await complete(served.provider)
        assert reply.termination.kind == kind

    async def test_the_reply_reads_what_was_not_read(self) -> None:
        """A caller may let the provider consume the stream and take only the final reply (R124)."""
        async with self.serve("text", "text") as served:
            _, whole = await complete(served.provider)
            async with served.provider.stream(REQUEST, attempt_id="attempt-2") as stream:
                await anext(stream)
                assert await stream.reply() == whole
                assert await stream.reply() is await stream.reply()

    async def test_a_stream_that_ended_has_no_more_previews(self) -> None:
        async with self.serve("text") as served, served.provider.stream(REQUEST, attempt_id="a") as stream:
            await stream.reply()
            assert [delta async for delta in stream] == []

    async def test_a_refused_stream_gives_no_reply_and_is_not_asked_for_again(self) -> None:
        """No resend and no other form of the request after a refusal (R121)."""
        async with self.serve("truncated", "text") as served:
            async with served.provider.stream(REQUEST, attempt_id="a") as stream:
                with pytest.raises(StreamRefused) as first:
                    await stream.reply()
                with pytest.raises(StreamRefused):
                    await anext(stream)
                with pytest.raises(StreamRefused):
                    await stream.reply()
            assert first.value.code == "truncated"
            assert served.sent() == 1

    async def test_previews_of_a_refused_stream_come_before_the_refusal(self) -> None:
        async with self.serve("truncated") as served, served.provider.stream(REQUEST, attempt_id="a") as stream:
            shown: list[Delta] = []
            with pytest.raises(StreamRefused):  # noqa: PT012  # what comes before the refusal is what is tested
                async for delta in stream:
                    shown.append(delta)  # noqa: PERF401  # a comprehension would lose them with the refusal
        text = "".join(delta.text for delta in shown if isinstance(delta, TextDelta))
        assert text
        assert "This stream ends in the mid".startswith(text)

    async def test_each_send_is_one_request(self) -> None:
        """One entered stream, one request; nothing is sent before it is entered (R4, R114)."""
        async with self.serve("text", "one-call", "length") as served:
            prepared = served.provider.stream(REQUEST, attempt_id="a")
            assert served.sent() == 0
            async with prepared as stream:
                await stream.reply()
            assert served.sent() == 1
            await complete(served.provider, "b")
            await complete(served.provider, "c")
            assert served.sent() == 3

    async def test_one_send_cannot_be_entered_twice(self) -> None:
        async with self.serve("text", "text") as served:
            sending = served.provider.stream(REQUEST, attempt_id="a")
            async with sending as stream:
                await stream.reply()
            with pytest.raises(InputError):
                await sending.__aenter__()
            assert served.sent() == 1

    async def test_calls_of_a_reply_are_returned_and_not_run(self) -> None:
        """A provider runs no tool and judges no argument: it sends once and returns (R4)."""
        async with self.serve("two-calls", "text") as served:
            _, reply = await complete(served.provider)
            assert len(reply.calls) == 2
            assert served.sent() == 1

    async def test_leaving_early_ends_the_stream(self) -> None:
        async with self.serve("text", "one-call") as served:
            async with served.provider.stream(REQUEST, attempt_id="a") as stream:
                await anext(stream)
            with pytest.raises(InputError):
                await anext(stream)
            with pytest.raises(InputError):
                await stream.reply()
            _, reply = await complete(served.provider, "b")
            assert reply.calls

    async def test_cancelling_the_reader_ends_the_send_and_passes_on(self) -> None:
        async with self.serve("text", "one-call") as served:
            begun = asyncio.Event()

            async def read() -> None:
                async with served.provider.stream(REQUEST, attempt_id="a") as stream:
                    await anext(stream)
                    begun.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(read())
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            _, reply = await complete(served.provider, "b")
            assert reply.calls
            assert served.sent() == 2

    async def test_a_failing_reader_keeps_its_own_error(self) -> None:
        async with self.serve("text") as served:
            sending = served.provider.stream(REQUEST, attempt_id="a")
            with pytest.raises(ZeroDivisionError):  # noqa: PT012  # the block is what is tested
                async with sending as stream:
                    await anext(stream)
                    raise ZeroDivisionError

    async def test_inspection_sends_nothing(self) -> None:
        """Synchronous, sizes only (R103, R104)."""
        async with self.serve("text") as served:
            sizes = served.provider.inspect_request(REQUEST)
            assert (sizes.messages, sizes.exchanges, sizes.tool_bytes) == (1, 0, 0)
            assert 0 < sizes.message_bytes < sizes.body_bytes
            assert "Please" not in repr(sizes)
            assert served.sent() == 0

    async def test_a_request_that_cannot_be_encoded_is_not_sent(self) -> None:
        broken = ModelRequest(messages=(UserMessage(content="\ud83d"),))
        async with self.serve("text") as served:
            with pytest.raises(InputError):
                served.provider.inspect_request(broken)
            with pytest.raises(InputError):
                async with served.provider.stream(broken, attempt_id="a"):
                    raise AssertionError("it was sent")
            assert served.sent() == 0

    async def test_a_reply_over_its_limit_is_refused(self) -> None:
        """The caller's reply limit holds inside the provider (R106)."""
        async with self.serve("text") as served:
            with pytest.raises(StreamRefused) as caught:
                async with served.provider.stream(REQUEST, attempt_id="a", max_reply_bytes=300) as stream:
                    await stream.reply()
        assert (caught.value.code, caught.value.limit, caught.value.allowed) == ("oversized", "max_reply_bytes", 300)

    async def test_closing_twice_is_harmless(self) -> None:
        async with self.serve("text") as served:
            await complete(served.provider)
            await served.provider.aclose()
            await served.provider.aclose()

    async def test_it_is_a_provider_with_a_name_a_model_and_a_dialect(self) -> None:
        async with self.serve("text") as served:
            assert isinstance(served.provider, Provider)
            assert served.provider.name
            assert served.provider.model
            assert served.provider.dialect.name == "openai"
