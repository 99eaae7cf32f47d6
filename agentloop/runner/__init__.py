"""Model calls for applications that want typed values and shared budgets."""

from .built import BuiltContext, NeedsSummary, Summary, SummaryOf
from .context import ContextPlan, TokenCount
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
    "BuiltContext",
    "Collector",
    "ContextPlan",
    "Fragment",
    "Interaction",
    "JsonText",
    "NativeCall",
    "NeedsSummary",
    "PLAIN_TEXT",
    "PlainText",
    "Route",
    "Session",
    "SessionCall",
    "SessionReply",
    "Stage",
    "Structured",
    "Summary",
    "SummaryOf",
    "TokenCount",
    "Transport",
]
