"""What all protocols of the chat backend stand on: who asks, turns of users, limits, and streams to clients."""

from ...limits import WebLimits
from .service import Service
from .sse import SSEStream, sse_response
from .turn import TurnView
from .user import Auth, User

__all__ = ["Auth", "SSEStream", "Service", "TurnView", "User", "WebLimits", "sse_response"]
