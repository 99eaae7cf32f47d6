"""Agents behind OpenAI's Chat Completions API: any client of that API talks to an agent as to a model.

`routes` gives ``POST /v1/chat/completions``, ``GET /v1/models`` and ``GET /v1/models/{model}``, for a mount point of
an aiohttp application. An agent is a model by its name. Its tools run here, so a client sees none of the calls: the
texts of the model calls of a turn, a blank line between two, are one answer.

The client brings the whole conversation each time. Its system messages follow the agent's instructions, its
assistant and tool messages are exchanges of the past, and its last message, a user's, is the input of one run.
What a request may say, what holds of the agent whatever it says, and what is refused, is in `request`; how a run is
told, in `answer`; which error a client gets, in `refusal`.

A run is the client's: it is cancelled when the client goes. With the header ``Idempotency-Key`` the same request
joins the same run, and on a durable store such a run goes on without its client. No answer to a request whose run
had begun invites a client to repeat it by itself, but where repeating joins that run. A client that runs out of
time, or whose connection breaks, has no answer to go by: one that then repeats by itself needs the key.

Source: OpenAI API reference, "Create chat completion", "The chat completion chunk object" and "List models", as of
the ``openai`` package 3.57.
"""

from .answer import Answer, ChunkWriter
from .refusal import Refusal, RequestRefused, refusal_of
from .request import ChatRequest, decode_chat_request
from .routes import routes

__all__ = [
    "Answer",
    "ChatRequest",
    "ChunkWriter",
    "Refusal",
    "RequestRefused",
    "decode_chat_request",
    "refusal_of",
    "routes",
]
