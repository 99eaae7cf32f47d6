"""One run's origin, exchanges, slots and counts, as derived from its facts.

Only `Book.install` changes these objects; everyone else reads them.
"""

from __future__ import annotations

from collections import Counter

from ..messages import Message, ModelExchange, ModelReply, ToolCall, ToolFeedback, Usage
from .facts import OriginOpened, RunClosed, SendStarted
from .slots import SlotState

__all__ = ["Entry", "Slot", "Turn"]


class Slot:
    """One call's slot."""

    __slots__ = ("attempt", "call", "code", "effect_id", "feedback", "state")

    def __init__(self, call: ToolCall) -> None:
        self.call = call
        self.state: SlotState = "open"
        self.effect_id: str | None = None
        self.attempt = 0
        self.feedback: ToolFeedback | None = None
        self.code: str | None = None


class Entry:
    """One stored reply with its slots.

    Attributes:
        exchange: the complete exchange, once every slot holds feedback.
        size: bytes of the canonical reply and feedback.
    """

    __slots__ = ("attempt_id", "encoded", "exchange", "reply", "size", "slots")

    def __init__(self, reply: ModelReply, attempt_id: str, encoded: bytes) -> None:
        self.reply, self.attempt_id, self.encoded = reply, attempt_id, encoded
        self.slots = tuple(Slot(call) for call in reply.calls)
        self.exchange: ModelExchange | None = None
        self.size = len(encoded)

    @property
    def complete(self) -> bool:
        """Whether every slot holds feedback."""
        return self.exchange is not None


class Turn:
    """An origin and all that followed from it.

    Attributes:
        history: what a request's ``messages`` are: earlier turns' and this turn's messages.
        exchanges: the complete exchanges of this turn, in order; ``entries`` may have one more.
        digests: chain digests; ``digests[n]`` covers the origin and its first n exchanges.
        size: bytes of this turn: origin, replies and feedback.
        history_size: bytes of the history that other turns hold.
        sends: attempts that have started and not ended.
        unknown_sends: attempts that ended without a reply though a server may have worked on them.
    """

    __slots__ = (
        "closed",
        "digests",
        "entries",
        "equal_calls",
        "exchanges",
        "history",
        "history_size",
        "model_calls",
        "opened",
        "origin_size",
        "sends",
        "size",
        "tool_calls",
        "unknown_sends",
        "usage",
    )

    def __init__(self, opened: OriginOpened, history: tuple[Message, ...], origin_size: int, history_size: int) -> None:
        self.opened, self.history = opened, history
        self.origin_size, self.history_size, self.size = origin_size, history_size, origin_size
        self.entries: list[Entry] = []
        self.exchanges: list[ModelExchange] = []
        self.digests = [opened.digest]
        self.sends: dict[str, SendStarted] = {}
        self.unknown_sends: list[str] = []
        self.model_calls = 0
        self.tool_calls = 0
        self.usage: Usage | None = None
        self.equal_calls: Counter[tuple[str, str]] = Counter()
        self.closed: RunClosed | None = None

    @property
    def run_id(self) -> str:
        """The run that owns this turn."""
        return self.opened.run_id

    @property
    def last(self) -> Entry | None:
        """The newest entry."""
        return self.entries[-1] if self.entries else None

    @property
    def request_size(self) -> int:
        """Bytes of the expanded request over all complete exchanges."""
        return self.history_size + self.size
