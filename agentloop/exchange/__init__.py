"""The conversation as facts: origins, exchanges, slots, and the requests that follow from them."""

from .book import Book
from .encoding import canonical_bytes, origin_digest
from .facts import (
    ExchangeRef,
    Fact,
    OriginOpened,
    ReplyTaken,
    RequestRef,
    RerunAllowed,
    RunClosed,
    RunOutcome,
    SendEnded,
    SendStarted,
    SlotMoved,
)
from .receipts import Receipt, ReceiptMint
from .restore import restore
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
    "RerunAllowed",
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
    "origin_digest",
    "restore",
]
