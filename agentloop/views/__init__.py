"""What a person looks at: conversations, runs, attempts and calls, as values made of facts."""

from .of_run import run_view
from .values import (
    AttemptView,
    CallView,
    ConversationView,
    MessageView,
    ReplyView,
    RunView,
    SteerView,
    StoreView,
    View,
)

__all__ = [
    "AttemptView",
    "CallView",
    "ConversationView",
    "MessageView",
    "ReplyView",
    "RunView",
    "SteerView",
    "StoreView",
    "View",
    "run_view",
]
