"""What is said: frozen values with tuples inside, and the checks for what a host hands in."""

from .exchange import ModelExchange
from .feedback import ToolFeedback, ToolResult
from .parts import (
    ImagePart,
    JsonText,
    Native,
    Termination,
    Text,
    TextContent,
    TextPart,
    ToolCall,
    Usage,
)
from .reply import ModelReply, reply_text
from .request import (
    FunctionSpec,
    Message,
    ModelOptions,
    ModelRequest,
    ResponseFormat,
    SystemMessage,
    ToolChoice,
    UserMessage,
)
from .require import (
    decode_model_exchange,
    decode_model_reply,
    decode_model_request,
    decode_tool_feedback,
    decode_tool_result,
    require_model_exchange,
    require_model_reply,
    require_model_request,
    require_tool_feedback,
    require_tool_result,
)
from .size import message_texts, messages_chars, text_chars

__all__ = [
    "FunctionSpec",
    "ImagePart",
    "JsonText",
    "Message",
    "ModelExchange",
    "ModelOptions",
    "ModelReply",
    "ModelRequest",
    "Native",
    "ResponseFormat",
    "SystemMessage",
    "Termination",
    "Text",
    "TextContent",
    "TextPart",
    "ToolCall",
    "ToolChoice",
    "ToolFeedback",
    "ToolResult",
    "Usage",
    "UserMessage",
    "decode_model_exchange",
    "decode_model_reply",
    "decode_model_request",
    "decode_tool_feedback",
    "decode_tool_result",
    "message_texts",
    "messages_chars",
    "reply_text",
    "require_model_exchange",
    "require_model_reply",
    "require_model_request",
    "require_tool_feedback",
    "require_tool_result",
    "text_chars",
]
