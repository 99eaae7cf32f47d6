"""Ways to ask a model for a value: text, a native call, JSON in text, a session, a typed value."""

from .json_call import JsonCall
from .native import NativeCall
from .session import SESSION, Session, SessionCall, SessionReply
from .structured import Route, Structured
from .text import PLAIN_TEXT, PlainText

__all__ = [
    "JsonCall",
    "NativeCall",
    "PLAIN_TEXT",
    "PlainText",
    "Route",
    "SESSION",
    "Session",
    "SessionCall",
    "SessionReply",
    "Structured",
]
