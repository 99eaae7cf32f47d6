"""Model providers: the contract, Chat Completions over HTTP, replay of recorded answers."""

from .chat_completions import ApiKey, ChatCompletions
from .provider import ModelStream, Provider, RequestInspection
from .recording import Recorder, Recording, load_recording, load_recordings
from .replay import ReplayProvider

__all__ = [
    "ApiKey",
    "ChatCompletions",
    "ModelStream",
    "Provider",
    "Recorder",
    "Recording",
    "ReplayProvider",
    "RequestInspection",
    "load_recording",
    "load_recordings",
]
