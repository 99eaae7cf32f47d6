"""The UI message stream protocol of the Vercel AI SDK: a turn as a message that its chat components read."""

from .routes import routes
from .writer import MessageWriter

__all__ = ["MessageWriter", "routes"]
