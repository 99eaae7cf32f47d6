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
from ...events import ModelEnd, ModelParsed, ModelStart, RunEvent, TextPreview
from ...messages import Usage
from ...results import RunResult
from ...views import AttemptView, RunView
from .refusal import RETRACTED, Refusal, RequestRefused

__all__ = ["Answer", "ChunkWriter"]

_Finish = Literal["stop", "length", "content_filter"]

_BETWEEN: Final = "\n\n"
_CHUNK_CHARS: Final = 8_192
"""Longest text of one chunk, so that no reader's limit of an event is met by a reply that comes at once."""


class Answer:
    """One answer as it is gathered. Takes what is stored of a run, then its events in their order; owns nothing.

    Args:
        id: of the completion. model: the agent's name. created: seconds since the epoch; None is the time of the
            first event.

    Attributes:
        retracted: whether text was taken back that had been returned.
        unsure: whether previews brought another text than a reply has, as a provider may preview none of it: see
            `check`.
        finish: how it ended, None before that. refusal, usage: as of the result.
    """

    def __init__(self, id: str, model: str, *, created: int | None = None) -> None:
        self.id, self.model = id, model
        self._created = created
        self._texts: list[str] = []  # of the model calls that stand, but the empty ones
        self._known: set[str] = set()  # attempts whose text was read from the store
        self._attempt_id: str | None = None  # the one under way
        self._pieces: list[str] = []
        self._chars = 0
        self.retracted = self.unsure = False
        self.finish: _Finish | None = None
        self.refusal: str | None = None
        self.usage: Usage | None = None

    @property
    def created(self) -> int:
        """Seconds since the epoch; 0 before the first event."""
        return self._created or 0

    @property
    def text(self) -> str:
        """All texts so far that were not taken back."""
        return _BETWEEN.join((*self._texts, *filter(None, ["".join(self._pieces)])))

    def recall(self, view: RunView) -> str:
        """What is stored of the run, where the first events of it are not kept any more; returns its text."""
        told = [self._say(attempt) for attempt in view.attempts if attempt.reply is not None]
        return "".join(told)

    def take(self, event: RunEvent) -> str:
        """The next event; returns the text that it adds."""
        if self._created is None:
            self._created = event.occurred_at_ms // 1000
        if type(event) is ModelStart:
            self._drop()  # what the attempt before showed, where nobody told its end
        elif type(event) is TextPreview and event.attempt_id not in self._known:
            return self._add(event.attempt_id, event.text, event.offset)
        elif type(event) is ModelParsed and event.attempt_id not in self._known:
            shown = self._chars if event.attempt_id == self._attempt_id else 0
            self.unsure = self.unsure or shown != event.text_chars
        elif type(event) is ModelEnd and event.attempt_id == self._attempt_id:
            if event.status == "success":
                self._keep()
            else:
                self._drop()
        return ""

    def check(self, view: RunView) -> str:
        """Hold the answer of a run that ended to what is stored of it; returns the text that was missing."""
        texts = [attempt.reply.text for attempt in view.attempts if attempt.reply is not None and attempt.reply.text]
        told, whole = self.text, _BETWEEN.join(texts)
        self._texts, self._pieces, self._attempt_id = texts, [], None
        self.retracted, self.unsure = self.retracted or not whole.startswith(told), False
        return whole[len(told) :]

    def end(self, result: RunResult[Any]) -> str:
        """The run's end; returns the text that it adds: the value of an agent whose model says it in a call.

        Raises:
            InputError: the run has not ended.
        """
        if result.outcome == "waiting_for_approval":
            raise InputError("Answer.end: expected a run that ended, got one that waits")
        self._keep()
        self.usage = result.usage
        self.finish = "stop" if result.outcome == "completed" else "length"
        if result.outcome == "refused":
            self.refusal = result.refusal
            self.finish = "content_filter" if result.refusal is None else "stop"
        if result.has_value and not result.text:
            return self._add("value", msgspec.json.encode(result.value).decode(), 0)
        return ""

    def _say(self, attempt: AttemptView) -> str:
        assert attempt.reply is not None, "asked for those with one"
        self._known.add(attempt.attempt_id)
        text = self._add(attempt.attempt_id, attempt.reply.text, 0)
        self._keep()
        return text

    def _add(self, attempt_id: str, text: str, offset: int) -> str:
        """Text of a model call, from ``offset`` on; what of it was said before is not said again."""
        if attempt_id != self._attempt_id:
            self._attempt_id, self._chars = attempt_id, 0
        new = text[max(0, self._chars - offset) :]
        if not new:
            return ""
        between = _BETWEEN if self._texts and not self._pieces else ""
        self._chars += len(new)
        self._pieces.append(new)
        return between + new

    def _keep(self) -> None:
        """The text of the attempt stands."""
        if self._pieces:
            self._texts.append("".join(self._pieces))
        self._pieces, self._attempt_id = [], None

    def _drop(self) -> None:
        """The text of the attempt does not stand."""
        if self._pieces:
            self.retracted = True
        self._pieces, self._attempt_id = [], None

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

    def recall(self, view: RunView) -> bytes:
        """What is stored of the run; as `Answer.recall`."""
        return self._content(self.answer.recall(view))

    def take(self, event: RunEvent) -> bytes:
        """The next event.

        Raises:
            RequestRefused: text that was sent does not stand; the stream ends with that.
        """
        return self._standing(self.answer.take(event))

    def check(self, view: RunView) -> bytes:
        """As `Answer.check`; raises as `take`."""
        return self._standing(self.answer.check(view))

    def end(self, result: RunResult[Any]) -> bytes:
        """The run's end: the last text or refusal, the finish, the tokens and ``[DONE]``. Raises as `Answer.end`."""
        frames = self._content(self.answer.end(result))
        if self.answer.refusal is not None:
            frames += self._chunk({"refusal": self.answer.refusal})
        frames += self._chunk({}, finish=self.answer.finish)
        if self._include_usage and self.answer.usage is not None:
            frames += _frame(self.answer.object("chat.completion.chunk", [], usage=self.answer.usage_object))
        return frames + _frame(b"[DONE]")

    def _standing(self, text: str) -> bytes:
        if self.answer.retracted:
            raise RequestRefused(RETRACTED)
        return self._content(text)

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
