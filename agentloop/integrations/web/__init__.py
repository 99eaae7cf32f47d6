"""A chat backend on aiohttp: agents for browsers, phones and other clients, on one runtime."""

from ...limits import WebLimits
from ..serving import Auth, Service, SSEStream, TurnView, User, sse_response
from .app import SERVICE, chat_app

__all__ = ["Auth", "SERVICE", "SSEStream", "Service", "TurnView", "User", "WebLimits", "chat_app", "sse_response"]
