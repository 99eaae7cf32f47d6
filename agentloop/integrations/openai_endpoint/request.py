"""What a client asks: the body of a Chat Completions request as an agent's name, a history and an input.

Looked at are ``model``, ``messages``, ``stream`` and ``stream_options``. Of the other parameters

- those that would change what an answer is are refused unless they say what holds anyway: `REFUSED`. The
  agent has tools, a format and an end of its own;
- all others are ignored. How a model samples, how long it may write and how hard it thinks are options of the
  agent (``temperature``, ``top_p``, ``max_tokens``, ``max_completion_tokens``, ``seed``, ``presence_penalty``,
  ``frequency_penalty``, ``reasoning_effort``, ``verbosity``, ``parallel_tool_calls``); what is said about the user, for
  caches, tiers and records of the vendor (``user``, ``safety_identifier``, ``metadata``, ``store``, ``service_tier``,
  ``prompt_cache_key``) has no meaning here; and clients send parameters that nobody knows yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from ...admission import parse
from ...errors import AdmissionError, HistoryError, InputError
from ...limits import check_name
from ...messages import Message, ModelRequest, UserMessage, require_model_request
from ...wire.history import read_messages
from .refusal import Refusal, RequestRefused

__all__ = ["ChatRequest", "REFUSED", "decode_chat_request"]


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One checked request.

    Attributes:
        model: name of an agent, which there may not be.
        history: what was said before. input: the last message.
        stream: whether the answer is streamed. include_usage: whether the stream ends with the tokens.
    """

    model: str
    history: tuple[Message, ...]
    input: UserMessage
    stream: bool = False
    include_usage: bool = False


def _empty(value: Any) -> bool:
    return value in (None, [], {}, "")


def _off(value: Any) -> bool:
    return value is None or value is False


def _is_one(value: Any) -> bool:
    return value is None or (type(value) is int and value == 1)


def _left_to_the_agent(value: Any) -> bool:
    return value in (None, "auto", "none")


REFUSED: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "audio": (_empty, "no audio, as an agent answers in text"),
    "function_call": (_left_to_the_agent, "'auto' or 'none', as the agent calls functions of its own"),
    "functions": (_empty, "no functions, as the agent has its own"),
    "logit_bias": (_empty, "none, as the agent's own options hold"),
    "logprobs": (_off, "false, as an agent's answer has no probabilities"),
    "modalities": (lambda value: value in (None, ["text"]), "['text'], as an agent answers in text"),
    "moderation": (_empty, "none, as nothing is moderated here"),
    "n": (_is_one, "1, as a request is one run"),
    "prediction": (_empty, "none, as the agent's own options hold"),
    "response_format": (
        lambda value: value is None or (type(value) is dict and value.get("type") == "text"),
        "type 'text', as the agent has its own format",
    ),
    "stop": (_empty, "none, as the agent's own options hold"),
    "tool_choice": (_left_to_the_agent, "'auto' or 'none', as the agent has its own tools"),
    "tools": (_empty, "no tools, as the agent has its own"),
    "top_logprobs": (lambda value: value in (None, 0), "0, as an agent's answer has no probabilities"),
    "web_search_options": (lambda value: value is None, "none, as the agent has its own tools"),
}
"""Parameters that may say one thing only: whether a value does, and what that is."""


def decode_chat_request(body: bytes) -> ChatRequest:
    """Read and check the body of a request.

    Raises:
        RequestRefused: status 400, with the parameter at fault.
    """
    try:
        value = parse(body)
    except AdmissionError as error:
        raise _refused(f"The body: {error}", None) from error
    if type(value) is not dict:
        raise _refused(f"The body: expected a JSON object, got {type(value).__name__}", None)
    for name, (fits, expected) in REFUSED.items():
        if not fits(value.get(name)):
            raise _refused(f"{name}: expected {expected}", name, "unsupported_parameter")
    options = value.get("stream_options")
    if options is not None and type(options) is not dict:
        raise _refused(f"stream_options: expected an object or null, got {type(options).__name__}", "stream_options")
    *history, last = _messages(value)
    if type(last) is not UserMessage:
        raise _refused("messages: expected a user message as the last one", "messages")
    return ChatRequest(
        model=_model(value),
        history=tuple(history),
        input=last,
        stream=_flag(value, "stream"),
        include_usage=_flag(options or {}, "include_usage", "stream_options."),
    )


def _model(value: dict[str, Any]) -> str:
    try:
        check_name("model", value.get("model"))
    except InputError as error:
        raise _refused(str(error), "model") from error
    model: str = value["model"]
    return model


def _flag(owner: dict[str, Any], name: str, path: str = "") -> bool:
    flag = owner.get(name)
    if flag is not None and type(flag) is not bool:
        raise _refused(f"{path}{name}: expected true, false or null, got {type(flag).__name__}", path + name)
    return bool(flag)


def _messages(value: dict[str, Any]) -> tuple[Message, ...]:
    """The messages, checked whole as everything that is handed in (R37)."""
    try:
        messages = read_messages(value.get("messages"), "messages")
        require_model_request(ModelRequest(messages=messages))
    except (AdmissionError, HistoryError) as error:
        param = error.path.removeprefix("$.")
        raise _refused(f"{param}: {error.rule}", param) from error
    return messages


def _refused(message: str, param: str | None, code: str | None = None) -> RequestRefused:
    return RequestRefused(Refusal(status=400, message=message, param=param, code=code))
