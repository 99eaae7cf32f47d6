"""The conversation as facts: origins, exchanges, slots, and the requests that follow from them."""

from .book import Book
from .encoding import canonical_bytes
from .facts import (
    ExchangeRef,
    Fact,
    OriginOpened,
    ReplyTaken,
    RequestRef,
    RunClosed,
    RunOutcome,
    SendEnded,
    SendStarted,
    SlotMoved,
)
from .receipts import Receipt, ReceiptMint
from .room import BookLimits
from .slots import CLOSING, NEXT, SlotState, move
from .turn import Conversation, Entry, Slot, Turn

__all__ = [
    "Book",
    "BookLimits",
    "CLOSING",
    "Conversation",
    "Entry",
    "ExchangeRef",
    "Fact",
    "NEXT",
    "OriginOpened",
    "Receipt",
    "ReceiptMint",
    "ReplyTaken",
    "RequestRef",
    "RunClosed",
    "RunOutcome",
    "SendEnded",
    "SendStarted",
    "Slot",
    "SlotMoved",
    "SlotState",
    "Turn",
    "canonical_bytes",
    "move",
]
