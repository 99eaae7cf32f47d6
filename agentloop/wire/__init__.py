"""Sans-IO Chat Completions: bytes of a stream become one checked reply, values become a request."""

from .assembler import ReplyAssembler
from .call_text import CallText, CallTextRefused, TextCall, ToolCallParser
from .check import Verdict, check_stream, narrowest_verdict
from .deltas import CallDelta, Delta, ReasoningDelta, TextDelta
from .dialect import ALLOWANCES, Dialect
from .encode import EncodedRequest, encode_message, encode_request
from .history import decode_messages
from .native import reasoning_text, refusal_text
from .presets import LENIENT, OPENAI, PRESETS, dialect, dialect_for_host, narrowest_first
from .sse import ServerSentEvent, SSEDecoder

__all__ = [
    "ALLOWANCES",
    "CallDelta",
    "CallText",
    "CallTextRefused",
    "Delta",
    "Dialect",
    "EncodedRequest",
    "LENIENT",
    "OPENAI",
    "PRESETS",
    "ReasoningDelta",
    "ReplyAssembler",
    "SSEDecoder",
    "ServerSentEvent",
    "TextCall",
    "TextDelta",
    "ToolCallParser",
    "Verdict",
    "check_stream",
    "decode_messages",
    "dialect",
    "dialect_for_host",
    "encode_message",
    "encode_request",
    "narrowest_first",
    "narrowest_verdict",
    "reasoning_text",
    "refusal_text",
]
