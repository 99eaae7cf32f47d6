"""The two effects of a run, send a request and run a tool, and the ledger both debit."""

from .detached import PendingSend, Sends
from .execution import answer_call, has_room, skip_calls
from .ledger import Ledger, Resource
from .scope import Scope, deliver_cancel, settle
from .send import Rejected, join, measure, send
from .tool_call import ToolOutcome, ToolThreads, execute

__all__ = [
    "Ledger",
    "PendingSend",
    "Rejected",
    "Resource",
    "Scope",
    "Sends",
    "ToolOutcome",
    "ToolThreads",
    "answer_call",
    "deliver_cancel",
    "execute",
    "has_room",
    "join",
    "measure",
    "send",
    "settle",
    "skip_calls",
]
