"""Public testing tools: scripted replies, a replay server, a clock to turn, a sink that records.

The pytest fixtures are a plugin of their own: ``pytest_plugins = ["agentloop.testing.fixtures"]``.
"""

from .clock import FakeClock
from .replay_server import Answer, ReceivedRequest, ReplayServer
from .scripted import Broken, ScriptedCall, ScriptedProvider, ScriptError, broken, call, reply
from .sinks import RecordingSink

__all__ = [
    "Answer",
    "Broken",
    "FakeClock",
    "ReceivedRequest",
    "RecordingSink",
    "ReplayServer",
    "ScriptError",
    "ScriptedCall",
    "ScriptedProvider",
    "broken",
    "call",
    "reply",
]
