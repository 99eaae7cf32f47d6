"""What happened: frozen events in one envelope, their documented order, and their JSON form."""

from .codec import EVENT_TYPES, RunEvent, decode_event, encode_event
from .envelope import ENVELOPE_FIELDS, EVENT_VERSION, Event, event_id, event_sequence
from .output import ModelEnd, ModelParsed, ModelStart, OutputEvent, ReasoningPreview, TextPreview
from .process import (
    ProcessEvent,
    RequestRejected,
    ResendScheduled,
    RunEnded,
    RunStarted,
    ToolEnded,
    ToolProgress,
    ToolSkipped,
    ToolStarted,
)

__all__ = [
    "ENVELOPE_FIELDS",
    "EVENT_TYPES",
    "EVENT_VERSION",
    "Event",
    "ModelEnd",
    "ModelParsed",
    "ModelStart",
    "OutputEvent",
    "ProcessEvent",
    "ReasoningPreview",
    "RequestRejected",
    "ResendScheduled",
    "RunEnded",
    "RunEvent",
    "RunStarted",
    "TextPreview",
    "ToolEnded",
    "ToolProgress",
    "ToolSkipped",
    "ToolStarted",
    "decode_event",
    "encode_event",
    "event_id",
    "event_sequence",
]
