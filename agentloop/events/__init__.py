"""What happened: frozen events in one envelope, their documented order, their JSON form, and what is kept of calls."""

from .codec import EVENT_TYPES, RunEvent, decode_event, encode_event
from .envelope import ENVELOPE_FIELDS, EVENT_VERSION, Event, event_id, event_sequence
from .journal import Journal, JournalSnapshot
from .output import ModelEnd, ModelParsed, ModelStart, OutputEvent, ReasoningPreview, TextPreview
from .process import (
    ProcessEvent,
    RequestRejected,
    ResendScheduled,
    RunEnded,
    RunStarted,
    RunSteered,
    RunStopping,
    ToolEnded,
    ToolProgress,
    ToolSkipped,
    ToolStarted,
)
from .traces import (
    ContextRecord,
    ModelCallRecord,
    ModelCallTrace,
    RejectedCall,
    ToolCallRecord,
    ToolCallTrace,
)

__all__ = [
    "ContextRecord",
    "ENVELOPE_FIELDS",
    "EVENT_TYPES",
    "EVENT_VERSION",
    "Event",
    "Journal",
    "JournalSnapshot",
    "ModelCallRecord",
    "ModelCallTrace",
    "ModelEnd",
    "ModelParsed",
    "ModelStart",
    "OutputEvent",
    "ProcessEvent",
    "ReasoningPreview",
    "RejectedCall",
    "RequestRejected",
    "ResendScheduled",
    "RunEnded",
    "RunEvent",
    "RunStarted",
    "RunSteered",
    "RunStopping",
    "TextPreview",
    "ToolCallRecord",
    "ToolCallTrace",
    "ToolEnded",
    "ToolProgress",
    "ToolSkipped",
    "ToolStarted",
    "decode_event",
    "encode_event",
    "event_id",
    "event_sequence",
]
