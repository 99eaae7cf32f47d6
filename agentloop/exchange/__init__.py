"""The conversation as facts: origins, exchanges, slots, and the requests that follow from them."""

from .book import Book
from .checkpoint import (
    Checkpoint,
    CompletedPoint,
    ModelPoint,
    PreparedPoint,
    ToolClaim,
    ToolsPoint,
    checkpoint_in,
    checkpoint_of,
)
from .cut import SUMMARY_STAGE, ContextCut, DroppedTurns, TurnSummary, summary_message
from .encoding import canonical_bytes, origin_digest
from .facts import (
    CallBasis,
    ConversationBranched,
    ExchangeRef,
    Fact,
    OriginOpened,
    OutputKept,
    ReplyTaken,
    RequestRef,
    RerunAllowed,
    RunClosed,
    RunOutcome,
    RunRedacted,
    SendEnded,
    SendStarted,
    SlotMoved,
    Steered,
    StopAsked,
)
from .history import History
from .receipts import Receipt, ReceiptMint
from .recovery import unrun_words
from .restore import restore
from .room import BookLimits
from .slots import CLOSING, NEXT, SlotState, move
from .state import State
from .steering import BY_REPLY
from .tombstone import branch, tombstone
from .turn import Conversation, Entry, Slot, Turn
from .waiting import CHILD, WaitKind, call_digest, is_suspended, waiting_calls

__all__ = [
    "BY_REPLY",
    "Book",
    "BookLimits",
    "CHILD",
    "CLOSING",
    "CallBasis",
    "Checkpoint",
    "CompletedPoint",
    "ContextCut",
    "Conversation",
    "ConversationBranched",
    "DroppedTurns",
    "Entry",
    "ExchangeRef",
    "Fact",
    "History",
    "ModelPoint",
    "NEXT",
    "OriginOpened",
    "OutputKept",
    "PreparedPoint",
    "Receipt",
    "ReceiptMint",
    "ReplyTaken",
    "RequestRef",
    "RerunAllowed",
    "RunClosed",
    "RunOutcome",
    "RunRedacted",
    "SUMMARY_STAGE",
    "SendEnded",
    "SendStarted",
    "Slot",
    "SlotMoved",
    "SlotState",
    "State",
    "Steered",
    "StopAsked",
    "ToolClaim",
    "ToolsPoint",
    "Turn",
    "TurnSummary",
    "WaitKind",
    "branch",
    "call_digest",
    "canonical_bytes",
    "checkpoint_in",
    "checkpoint_of",
    "is_suspended",
    "move",
    "origin_digest",
    "restore",
    "summary_message",
    "tombstone",
    "unrun_words",
    "waiting_calls",
]
