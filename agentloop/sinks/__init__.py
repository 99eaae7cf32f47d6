"""Who hears of a run: sinks in its path, readers of its feed, observers at its side."""

from .cancels import put_off, take_cancel
from .diagnostics import Diagnostics
from .emitter import Emitter
from .fan_out import FanOut, QueueSink
from .feed import Feed, Follower
from .json_lines import JsonLinesSink
from .observers import ObserverHub
from .sink import Observer, Sink, require_observer, require_sink

__all__ = [
    "Diagnostics",
    "Emitter",
    "FanOut",
    "Feed",
    "Follower",
    "JsonLinesSink",
    "Observer",
    "ObserverHub",
    "QueueSink",
    "Sink",
    "put_off",
    "require_observer",
    "require_sink",
    "take_cancel",
]
