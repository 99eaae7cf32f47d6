"""The two effects of a run, send a request and run a tool, the ledger both debit, and who may be asked again."""

from .child import ChildWaits
from .claims import Refusal, beside, used_up
from .collecting import Collecting
from .crew import answer_calls
from .detached import Patience, PendingSend, Sends
from .eager import Eager
from .execution import answer_call, give_back, has_room, skip_calls
from .ledger import Ledger, Resource
from .lookup import recover_calls
from .pool import LeftOver, ToolPool
from .reasons import code_of, limit_of, type_name
from .resend import Place, Resend, ResendPolicy, next_attempt
from .rest import rest
from .scope import Claim, Label, Scope, deliver_cancel, settle
from .send import Overtaken, Rejected, join, measure, send
from .signal import Bound, Signal
from .tool_call import ToolOutcome, run_tool

__all__ = [
    "Bound",
    "ChildWaits",
    "Claim",
    "Collecting",
    "Eager",
    "Label",
    "Ledger",
    "LeftOver",
    "Overtaken",
    "Patience",
    "PendingSend",
    "Place",
    "Refusal",
    "Rejected",
    "Resend",
    "ResendPolicy",
    "Resource",
    "Scope",
    "Sends",
    "Signal",
    "ToolOutcome",
    "ToolPool",
    "answer_call",
    "answer_calls",
    "beside",
    "code_of",
    "deliver_cancel",
    "give_back",
    "has_room",
    "join",
    "limit_of",
    "measure",
    "next_attempt",
    "recover_calls",
    "rest",
    "run_tool",
    "send",
    "settle",
    "skip_calls",
    "type_name",
    "used_up",
]
