"""How a run is told to a client: one completion, or chunks of one.

The texts of a run's model calls are one text, with a blank line between two. The calls that come between are not
told: they are the agent's own, and a client that was told of them would try to make them.

A stream is, in this order,

    a chunk with the role  chunks with text*  [a chunk with a refusal]  a chunk with the finish  [tokens]  [DONE]

or it ends with one event that holds an error, and without finish and ``[DONE]``, so that nobody takes it for whole:
where the run failed, where text that was sent does not stand, or where the run waits for a person. ``finish_reason``
is ``stop`` for a run that completed or refused in words of its own, ``content_filter`` for one that was refused
without, ``length`` for one that a limit ended or whose reply was cut short.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from ...errors import InputError
from ...events import ModelEnd, RunEvent, TextPreview
from ...messages import Usage
from ...results import RunResult
from .refusal import Refusal

__all__ = ["Answer", "ChunkWriter"]

_Finish = Literal["stop", "length", "content_filter"]

_BETWEEN: Final = "\n\n"
_CHUNK_CHARS: Final = 8_192
"""Longest text of one chunk, so that no reader's limit of an event is met by a reply that comes at once."""


class Answer:
    """One answer as it is gathered. Takes events in their order, owns nothing.

    Args:
        id: of the completion. model: the agent's name. created: seconds since the epoch; None is the time of the
            first event.

    Attributes:
        text: all texts so far. retracted: whether a part of it does not stand any more; nothing may be taken then.
        finish: how it ended, None before that. refusal, usage: as of the result.
    """

    def __init__(self, id: str, model: str, *, created: int | None = None) -> None:
        self.id, self.model = id, model
        self._created = created
        self._texts: list[str] = []
        self._attempt_id: str | None = None
        self._chars = 0  # of the attempt's text
        self.retracted = False
        self.finish: _Finish | None = None
        self.refusal: str | None = None
        self.usage: Usage | None = None

    @property
    def created(self) -> int:
        """Seconds since the epoch; 0 before the first event."""
        return self._created or 0

    @property
    def text(self) -> str:
        """All texts so far."""
        return "".join(self._texts)

    def take(self, event: RunEvent) -> str:
        """The next event; returns the text that it adds."""
        if self._created is None:
            self._created = event.occurred_at_ms // 1000
        if type(event) is TextPreview:
            return self.say(event.attempt_id, event.text, offset=event.offset)
        if type(event) is ModelEnd and event.status != "success" and event.attempt_id == self._attempt_id:
            self.retracted = True
        return ""

    def say(self, attempt_id: str, text: str, *, offset: int = 0) -> str:
        """Text of a model call, from ``offset`` on; what of it was said before is not said again. Returns the rest."""
        if not text:
            return ""
        between = ""
        if attempt_id != self._attempt_id:
            self._attempt_id, self._chars = attempt_id, 0
            between = _BETWEEN if self._texts else ""
        new = text[max(0, self._chars - offset) :]
        self._chars += len(new)
        if new:
            self._texts.append(between + new)
        return between + new

    def end(self, result: RunResult[Any]) -> str:
        """The run's end; returns the text that it adds: the value of an agent whose model says it in a call.

        Raises:
            InputError: the run has not ended, or what was sent does not stand.
        """
        if result.outcome == "waiting_for_approval" or self.retracted:
            raise InputError("Answer.end: expected a run that ended, and all of whose text stands")
        self.usage = result.usage
        self.finish = "stop" if result.outcome == "completed" else "length"
        if result.outcome == "refused":
            self.refusal = result.refusal
            self.finish = "content_filter" if result.refusal is None else "stop"
        if result.has_value and not result.text:
            return self.say("value", msgspec.json.encode(result.value).decode())
        return ""

    def completion(self) -> bytes:
        """The ``chat.completion`` object of an answer that has ended."""
        message = {"role": "assistant", "content": self.text or self._nothing, "refusal": self.refusal}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish}
        return self.object("chat.completion", [choice], usage=self.usage_object)

    @property
    def usage_object(self) -> dict[str, Any] | None:
        """The tokens in OpenAI's form; None where no call reported any."""
        usage = self.usage
        if usage is None:
            return None
        told: dict[str, Any] = {
            "prompt_tokens": usage.input_tokens,
            "completion_tokens": usage.output_tokens,
            "total_tokens": usage.total_tokens,
        }
        if usage.cached_input_tokens is not None:
            told["prompt_tokens_details"] = {"cached_tokens": usage.cached_input_tokens}
        if usage.reasoning_tokens is not None:
            told["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
        return told

    def object(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> bytes:
        """JSON of a completion or a chunk."""
        head = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return msgspec.json.encode({**head, "choices": choices, **more})

    @property
    def _nothing(self) -> str | None:
        return "" if self.refusal is None else None


class ChunkWriter:
    """An answer as the bytes of a stream: each method returns what is to be sent next.

    Args:
        answer: a new one. include_usage: whether the last chunk tells the tokens, where any were reported.
    """

    def __init__(self, answer: Answer, *, include_usage: bool = False) -> None:
        self.answer = answer
        self._more: dict[str, Any] = {"usage": None} if include_usage else {}
        self._include_usage = include_usage
        self._begun = False

    def take(self, event: RunEvent) -> bytes:
        """The next event; nothing of it may be sent where the answer is ``retracted`` then."""
        return self._content(self.answer.take(event))

    def say(self, attempt_id: str, text: str) -> bytes:
        """The whole text of a model call whose events are not kept any more."""
        return self._content(self.answer.say(attempt_id, text))

    def end(self, result: RunResult[Any]) -> bytes:
        """The run's end: the last text or refusal, the finish, the tokens and ``[DONE]``. Raises as `Answer.end`."""
        frames = self._content(self.answer.end(result))
        if self.answer.refusal is not None:
            frames += self._chunk({"refusal": self.answer.refusal})
        frames += self._chunk({}, finish=self.answer.finish)
        if self._include_usage and self.answer.usage is not None:
            frames += _frame(self.answer.object("chat.completion.chunk", [], usage=self.answer.usage_object))
        return frames + _frame(b"[DONE]")

    @staticmethod
    def fail(refusal: Refusal) -> bytes:
        """The error that the stream ends with."""
        return _frame(refusal.body())

    def _content(self, text: str) -> bytes:
        frames = b"" if self._begun else self._chunk({"role": "assistant", "content": ""})
        self._begun = True
        for start in range(0, len(text), _CHUNK_CHARS):
            frames += self._chunk({"content": text[start : start + _CHUNK_CHARS]})
        return frames

    def _chunk(self, delta: dict[str, Any], *, finish: _Finish | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return _frame(self.answer.object("chat.completion.chunk", [choice], **self._more))


def _frame(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
