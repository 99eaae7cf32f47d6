"""A chat backend on aiohttp: agents for browsers, phones and other clients, on one runtime."""

from ...limits import WebLimits
from .app import SERVICE, chat_app
from .service import Service
from .sse import SSEStream, sse_response
from .turn import TurnView
from .user import Auth, User

__all__ = ["Auth", "SERVICE", "SSEStream", "Service", "TurnView", "User", "WebLimits", "chat_app", "sse_response"]
