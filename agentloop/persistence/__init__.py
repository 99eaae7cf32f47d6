"""Where facts are kept: the contract, the media behind it, and the store in front of them."""

from .backend import Backend, ConversationRow, Lease, RunRow
from .choose import backend_for
from .conversing import ConversationStore
from .gate import Gate
from .memory import MemoryBackend
from .store import Step, Store

__all__ = [
    "Backend",
    "ConversationRow",
    "ConversationStore",
    "Gate",
    "Lease",
    "MemoryBackend",
    "RunRow",
    "Step",
    "Store",
    "backend_for",
]
