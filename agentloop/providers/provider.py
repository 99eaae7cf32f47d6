"""The contract of a model provider: one admitted attempt is one request.

A provider sends; it runs no tool, judges no argument, repeats nothing and keeps nothing (R3, R4,
R114). `Provider.stream` returns a context manager: entering it sends the request and waits for the
answer to begin; iterating yields previews; `ModelStream.reply` is the only source of a
`ModelReply`, and only a stream that was checked to its end has one. Leaving the block early closes
the connection at once.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol, Self, runtime_checkable

import msgspec

from ..messages import ModelReply, ModelRequest
from ..wire.deltas import Delta
from ..wire.dialect import Dialect
from ..wire.encode import EncodedRequest

__all__ = ["ModelStream", "Provider", "RequestInspection"]


class RequestInspection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a request would weigh, without its text (R103, R104).

    Attributes:
        body_bytes: size of the encoded request.
        message_bytes: the part of it that is messages and exchanges, separators included.
        tool_bytes: the part of it that is the tool catalogue; 0 without tools.
        messages: number of elements of ``ModelRequest.messages``.
        exchanges: number of elements of ``ModelRequest.exchanges``.
    """

    body_bytes: int
    message_bytes: int
    tool_bytes: int
    messages: int
    exchanges: int

    @classmethod
    def of(cls, encoded: EncodedRequest) -> RequestInspection:
        """The sizes of an encoded request."""
        return cls(
            body_bytes=encoded.body_bytes,
            message_bytes=encoded.message_bytes,
            tool_bytes=encoded.tool_bytes,
            messages=encoded.messages,
            exchanges=encoded.exchanges,
        )


class ModelStream(Protocol):
    """The answer to one request while it arrives. One task at a time may read it."""

    def __aiter__(self) -> Self: ...

    async def __anext__(self) -> Delta:
        """Return the next preview.

        Raises:
            StreamRefused: the stream broke a rule; raised again by every later call.
            StopAsyncIteration: the stream was checked to its end.
        """
        ...

    async def reply(self) -> ModelReply:
        """Read what was not read, and return the checked reply.

        Raises:
            StreamRefused: the stream is not one complete reply.
        """
        ...


@runtime_checkable
class Provider(Protocol):
    """Sends requests to one model. Any task of one event loop may call it.

    Attributes:
        name: the kind of provider, as ``chat-completions``, ``replay`` or ``scripted``.
        model: the model asked for.
        dialect: what its streams are held against.
        max_request_bytes: its own ceiling of the encoded request, None where it has none. Entering
            a stream holds it; it is told so that a request over it need not be admitted at all.
    """

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def dialect(self) -> Dialect: ...

    @property
    def max_request_bytes(self) -> int | None: ...

    def inspect_request(self, request: ModelRequest) -> RequestInspection:
        """Say what the request would weigh; sends nothing and reserves nothing (R104).

        Raises:
            InputError: the request cannot be encoded.
        """
        ...

    def stream(
        self, request: ModelRequest, *, attempt_id: str, max_reply_bytes: int | None = None
    ) -> AbstractAsyncContextManager[ModelStream]:
        """Send the request once, when the returned context manager is entered.

        Args:
            request: encoded and measured again here, whatever an inspection said before (R105).
            attempt_id: names this attempt; visible ASCII, up to 128 characters.
            max_reply_bytes: ceiling of the reply; None leaves the response limit alone.

        Raises (when entered):
            InputError: the request cannot be encoded.
            LimitExceeded: the encoded request is too large; nothing was sent.
            ProviderError: the send failed, and was not repeated.
            StreamRefused: the answer is not an event stream.
        """
        ...

    async def aclose(self) -> None:
        """Free what the provider holds; calling it twice is harmless."""
        ...
