"""Model calls for applications that want typed values and shared budgets."""

from .transport import Collector, Fragment, Interaction, Stage, Transport
from .transports import (
    PLAIN_TEXT,
    JsonText,
    NativeCall,
    PlainText,
    Route,
    Session,
    SessionCall,
    SessionReply,
    Structured,
)

__all__ = [
    "Collector",
    "Fragment",
    "Interaction",
    "JsonText",
    "NativeCall",
    "PLAIN_TEXT",
    "PlainText",
    "Route",
    "Session",
    "SessionCall",
    "SessionReply",
    "Stage",
    "Structured",
    "Transport",
]
