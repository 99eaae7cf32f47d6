"""Values of this package as canonical JSON."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..admission import canonical, digest_bytes
from ..messages import FunctionSpec, Message, ModelOptions
from .cut import ContextCut

__all__ = ["EncodedFrame", "EncodedOrigin", "canonical_bytes", "origin_digest", "sorted_bytes"]

_ORIGIN_DOMAIN: Final = "agentloop/origin/v1"

_SORTED: Final = msgspec.json.Encoder(order="sorted")


def canonical_bytes(value: Any) -> bytes:
    """RFC 8785 bytes (integers exact, -0 kept) of messages, options, specs, and dicts of them."""
    return canonical(msgspec.json.decode(msgspec.json.encode(value)))


def sorted_bytes(value: Any) -> bytes:
    """The same bytes at C speed, for what holds no float and no dict: messages, specs, feedback.

    All member names of this package are ASCII, so their order is that of RFC 8785, and text is
    escaped as it says; only floats would be written in another form.
    """
    return _SORTED.encode(value)


class EncodedFrame:
    """Options and tools, encoded once: runs of one agent have the same.

    Attributes:
        options, tools: what was encoded. canonical_options, canonical_tools: its bytes.
        size: bytes of both, as they count against the room of a book.
    """

    __slots__ = ("canonical_options", "canonical_tools", "options", "size", "tools")

    def __init__(self, options: ModelOptions, tools: tuple[FunctionSpec, ...]) -> None:
        self.options, self.tools = options, tools
        plain = sorted_bytes(options)
        self.canonical_options = canonical_bytes(options) if _has_float(options) else plain
        self.canonical_tools = sorted_bytes(tools)
        self.size = len(plain) + len(self.canonical_tools)


class EncodedOrigin:
    """What an origin says, encoded once: to be weighed, to be digested, to be installed.

    Attributes:
        messages, frame, context: what was encoded. sizes: bytes of each message.
    """

    __slots__ = ("_canonical_context", "_canonical_messages", "context", "frame", "messages", "sizes")

    def __init__(
        self,
        messages: tuple[Message, ...],
        frame: EncodedFrame,
        context: ContextCut | None = None,
    ) -> None:
        self.messages, self.frame, self.context = messages, frame, context
        self._canonical_context = b"" if context is None else sorted_bytes(context)
        encoded = [sorted_bytes(message) for message in messages]
        self.sizes = [len(message) for message in encoded]
        self._canonical_messages = b"[%b]" % b",".join(encoded)

    @property
    def size(self) -> int:
        """Bytes of the messages as one array, of options, tools and context."""
        return len(self._canonical_messages) + self.frame.size + self.context_size

    @property
    def context_size(self) -> int:
        """Bytes of the context, 0 where there is none."""
        return len(self._canonical_context)

    def digest(self, continues: str | None) -> str:
        """The content digest; ``continues`` is the digest of the exchange that the origin follows."""
        basis = b'{%b"continues":%b,"messages":%b,"options":%b,"tools":%b}' % (
            b'"context":%b,' % self._canonical_context if self.context is not None else b"",
            sorted_bytes(continues),
            self._canonical_messages,
            self.frame.canonical_options,
            self.frame.canonical_tools,
        )
        return digest_bytes(_ORIGIN_DOMAIN, basis)


def origin_digest(
    messages: tuple[Message, ...],
    options: ModelOptions,
    tools: tuple[FunctionSpec, ...],
    continues: str | None,
    context: ContextCut | None = None,
) -> str:
    """The content digest of an origin; ``continues`` is the digest of the exchange it follows."""
    return EncodedOrigin(messages, EncodedFrame(options, tools), context).digest(continues)


def _has_float(options: ModelOptions) -> bool:
    return type(options.temperature) is float or type(options.top_p) is float
