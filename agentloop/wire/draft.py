"""A reply while its stream runs: the rules about events, in the order in which they are judged.

JSON, error, identity, shape, choice, delta, calls, finish, usage. `Draft.judge` takes any event through
all of them. `Draft.take_plain` takes a delta that `plain.plain_decoder` has already proven to be free of
everything but text, reasoning and pieces of calls. Nothing here knows about bytes and places: a broken rule is
a `Fault`, which the assembler turns into a refusal.
"""

from __future__ import annotations

import sys
from typing import Final

import msgspec

from ..messages.parts import Termination, Text, ToolCall
from ..messages.reply import ModelReply
from .calls import OpenCall, OpenCalls
from .chunks import (
    CallPiece,
    ChoicePiece,
    error_event,
    find_error,
    read_choices,
    read_identity,
    read_json,
)
from .deltas import CallDelta, Delta, ReasoningDelta, TextDelta
from .dialect import Dialect
from .fault import Fault
from .identity import Identity
from .native import NativeParts, details_text, parts_thinking
from .plain import PlainCall, PlainDelta
from .stencil import StencilMaker
from .surrogates import Halves
from .tagged import TaggedText
from .usage import UsageReport

__all__ = ["DONE", "Draft"]

DONE: Final = b"[DONE]"

_UNTOLD: Final = object()
"""Equal to no id and no model that a chunk can have, also not to a missing one."""


class Draft:
    """What is known of a reply so far.

    Attributes:
        quick: the next event may be a plain delta: none after the finish, none while half a character waits
            for the other half, and none once content came in parts.
        finished: a finish came.
        late: something of the reply came after it, so only ``[DONE]`` tells where the reply ends.
        silent: events without data.
        last_id, last_model: as they came in the last chunk judged; an equal pair needs no judging, and before
            the first chunk there is none.
        stencils: what chunks with that pair look like; dropped when it changes.
        text, text_chars: body text that was shown, one string a read, and its characters.
        new_text, new_reasoning, touched: what the present read brought: texts, and calls by position.
        plain_calls: calls with an index below it need no rule for a piece that only brings arguments.
        calls: the open calls.
        direct: the field whose text is shown as it comes; ``""`` where calls are in the text.
        reply: the checked reply, once it is complete.
    """

    __slots__ = (
        "_dialect",
        "_finish",
        "_halves",
        "_identity",
        "_max_reply_bytes",
        "_native",
        "_reasoning_chars",
        "_tagged",
        "_tagged_shown",
        "_text_at",
        "_usage",
        "calls",
        "direct",
        "finished",
        "last_id",
        "last_model",
        "late",
        "new_reasoning",
        "new_text",
        "plain_calls",
        "quick",
        "reply",
        "silent",
        "stencils",
        "text",
        "text_chars",
        "touched",
    )

    def __init__(self, dialect: Dialect, *, max_reply_bytes: int | None) -> None:
        self.quick = True
        self.finished = False
        self.late = False
        self.silent = 0
        self.last_id: object = _UNTOLD
        self.last_model: object = _UNTOLD
        self.stencils = StencilMaker()
        self.text: list[str] = []
        self.text_chars = 0
        self.new_text: list[str] = []
        self.new_reasoning: list[str] = []
        self.touched: dict[int, OpenCall] = {}
        self.plain_calls = 0
        self.reply: ModelReply | None = None
        self._halves = Halves()
        self.calls = OpenCalls(dialect, self._halves)
        self._dialect = dialect
        self._max_reply_bytes = max_reply_bytes
        self._identity = Identity(dialect)
        self._usage = UsageReport(dialect)
        self._tagged = None if dialect.call_text is None else TaggedText(dialect.call_text)
        self._tagged_shown = 0  # calls of it that a preview showed
        self.direct = "content" if self._tagged is None else ""
        self._native: NativeParts | None = None
        self._finish: str | None = None
        self._text_at: int | None = None  # number of calls that began before the text
        self._reasoning_chars = 0

    # one event

    def judge(self, data: bytes, name: str) -> None:
        """Take one event through all rules.

        Raises:
            Fault: the first rule it breaks.
        """
        if name == "error":
            raise error_event(data)
        if data == DONE or data.strip() == DONE:
            self.complete()
            return
        if not data or data.isspace():
            self.silent += 1
            return
        chunk = read_json(data, split_surrogates=self._dialect.surrogates_split)
        find_error(chunk)
        self.check_identity(*read_identity(chunk))
        usage = chunk.get("usage")
        if usage is None and self._dialect.usage_in_x_groq:
            x_groq = chunk.get("x_groq")
            usage = x_groq.get("usage") if type(x_groq) is dict else None
        for choice in read_choices(chunk, data, self._dialect):
            self._take_choice(choice)
            if usage is None and self._dialect.usage_in_choice:
                usage = choice.usage
        if usage is not None:
            self._usage.add(usage, finished=self.finished)
        self.quick = not (self.finished or self._halves.held or (self._native and self._native.has_parts))

    def check_identity(self, id_: str | None, model: str | None) -> None:
        """Hold a chunk's id and model, as they came, against the reply's.

        Raises:
            Fault: ``identity_changed``.
        """
        self._identity.check(id_ or "", model or "")
        if id_ != self.last_id or model != self.last_model:
            self.last_id, self.last_model = id_, model
            self.stencils.drop()

    def take_plain(self, delta: PlainDelta) -> None:
        """Take a plain delta of any kind.

        Raises:
            Fault: one of the codes about calls.
        """
        if delta.content:
            self.new_text.append(delta.content)
        for piece in delta.tool_calls or ():
            self.add_plain_call(piece)
        if delta.reasoning_content:
            self._kept().reasoning_content.append(delta.reasoning_content)
            self.new_reasoning.append(delta.reasoning_content)
        if delta.reasoning:
            self._kept().reasoning.append(delta.reasoning)
            if not delta.reasoning_content:
                self.new_reasoning.append(delta.reasoning)

    def take_texts(self, field: str, texts: list[str]) -> None:
        """Take the texts of plain deltas that have nothing but ``field``."""
        told = [text for text in texts if text]
        if field == "content":
            self.new_text += told
            return
        native = self._kept()
        kept = native.reasoning if field == "reasoning" else native.reasoning_content
        kept += told
        self.new_reasoning += told

    def add_plain_call(self, piece: PlainCall) -> None:
        """Take a piece of a call in which nothing is unknown.

        Raises:
            Fault: one of the codes about calls.
        """
        function = piece.function
        self._add_call(CallPiece(piece.index, piece.id or "", function.name or "", function.arguments, {}))

    def _kept(self) -> NativeParts:
        """Continuation material; made for the first of it, since most replies have none."""
        if self._native is None:
            self._native = NativeParts()
        return self._native

    def _add_call(self, piece: CallPiece) -> None:
        if self._tagged is not None:
            raise Fault("bad_shape", "no tool_calls: calls are in the text (call_text)", "a piece of a call")
        before = len(self.calls.calls)
        call = self.calls.add(piece)
        self.touched[call.position] = call
        if len(self.calls.calls) > before:
            if self.calls.is_plain:
                self.plain_calls += 1
            if self._text_at is None and (self.new_text or self.text):
                self._text_at = before

    def _take_choice(self, choice: ChoicePiece) -> None:
        if self.finished and not choice.is_empty:
            self._check_late(choice)
            self.late = True
        take = self._halves.take
        if choice.parts:
            self._kept().add_parts(choice.parts, before=self._written())
        content = take("content", choice.content)
        if content:
            self.new_text.append(content)
            if not choice.parts and self._native is not None:
                self._native.add_text(content)
        for call in choice.calls:
            self._add_call(call)
        thought = take("reasoning_content", choice.reasoning_content)
        other = take("reasoning", choice.reasoning)
        refusal = take("refusal", choice.refusal)
        if thought:
            self._kept().reasoning_content.append(thought)
        if other:
            self._kept().reasoning.append(other)
        if refusal:
            self._kept().refusal.append(refusal)
        if choice.details or choice.extras:
            self._kept().add(choice.details, choice.extras)
        if not choice.reasoning_content and not choice.reasoning:
            thought = take("thinking", parts_thinking(choice.parts) or details_text(choice.details))
        if thought or other:
            self.new_reasoning.append(thought or other)
        if choice.finish is not None:
            self._take_finish(choice.finish)

    def _written(self) -> list[str]:
        """All body text so far, as it came."""
        return [*(self.text if self._tagged is None else self._tagged.written), *self.new_text]

    def _check_late(self, choice: ChoicePiece) -> None:
        if choice.has_calls and not self._dialect.calls_after_finish:
            raise Fault("after_terminal", "no delta after the finish", "a piece of a call")
        if choice.has_text and not self._dialect.delta_after_finish:
            raise Fault("after_terminal", "no delta after the finish", "a delta that is not empty")

    def _take_finish(self, word: str) -> None:
        if self.finished:
            if self._dialect.finish_first or (self._dialect.finish_repeated and word == self._finish):
                return
            short = word if len(word) <= 24 else word[:24] + "…"
            raise Fault("duplicate_terminal", "one finish", f"a second one, {short!r}")
        self.finished, self._finish = True, word
        self._usage.finish()
        self._check_halves()
        if self._tagged is not None:
            if not self._dialect.delta_after_finish:
                self._end_tagged(self._tagged)
        elif not self._dialect.calls_after_finish:
            self._settle_calls()

    def _check_halves(self) -> None:
        if self._halves.held:
            raise Fault("invalid_json", "surrogates in pairs", "half a surrogate pair before the end")

    # the end

    def complete(self) -> None:
        """The end is there; whatever a reply needs must be too.

        Raises:
            Fault: ``missing_terminal``, ``missing_usage``, or what else is missing.
        """
        if not self.finished and not (self._dialect.finish_inferred and self.calls.are_json()):
            raise Fault("missing_terminal", "a finish before [DONE]", "none")
        self._check_halves()
        usage = self._usage.settle()
        tagged = self._tagged
        if tagged is not None:
            self._end_tagged(tagged)
        calls = self._settle_calls()
        opened = [self.calls.calls[position] for position, _ in calls]
        extras = {str(at): call.extras for at, call in enumerate(opened) if call.extras}
        reply = ModelReply(
            id=self._identity.id,
            model=self._identity.model,
            output=self._output(calls) if tagged is None else self._tagged_output(tagged),
            termination=Termination.of(self._finish),
            usage=usage,
            native=self._kept().build(extras, None if tagged is None else tagged.native()),
        )
        if self._max_reply_bytes is not None:
            self._check_size(len(msgspec.json.encode(reply)))
        self.reply = reply
        self.quick = False

    def _settle_calls(self) -> list[tuple[int, ToolCall]]:
        calls = self.calls.settle()
        if self._finish == "tool_calls" and not calls and not (self._tagged is not None and self._tagged.calls):
            raise Fault("terminal_conflict", "a call before the finish tool_calls", "none")
        return calls

    def _output(self, calls: list[tuple[int, ToolCall]]) -> tuple[Text | ToolCall, ...]:
        """Text and calls in the order in which they began; all text is one item."""
        output: list[Text | ToolCall] = [call for _, call in calls]
        text = "".join([*self.text, *self.new_text])
        if text:
            at = self._text_at
            before = len(output) if at is None else sum(position < at for position, _ in calls)
            output.insert(before, Text(text=text))
        return tuple(output)

    # calls in the text

    def _split(self, tagged: TaggedText) -> None:
        """Take the text of the present read for what it is: visible, or of a call."""
        if self.new_text:
            text = "".join(self.new_text)
            self.new_text.clear()
            tagged.feed(text)

    def _end_tagged(self, tagged: TaggedText) -> None:
        """No text comes any more."""
        self._split(tagged)
        tagged.end()
        self._settle_calls()

    def _tagged_output(self, tagged: TaggedText) -> tuple[Text | ToolCall, ...]:
        output: list[Text | ToolCall] = [*tagged.calls]
        text = "".join([*self.text, *tagged.fresh])
        if text:
            output.insert(tagged.text_at or 0, Text(text=text))
        return tuple(output)

    def _show_tagged(self, tagged: TaggedText) -> list[Delta]:
        """The visible text of the present read, and the calls that became complete in it."""
        self._split(tagged)
        text = tagged.take()
        deltas: list[Delta] = []
        if text:
            self.text.append(text)
            deltas.append(TextDelta(text, self.text_chars))
            self.text_chars += len(text)
        for position in range(self._tagged_shown, len(tagged.calls)):
            call = tagged.calls[position]
            deltas.append(CallDelta(position, call.id, call.name, call.arguments.text))
        self._tagged_shown = len(tagged.calls)
        return deltas

    # sizes and previews

    def room(self) -> int:
        """Characters of text, reasoning and arguments that still fit the reply's limit."""
        if self._max_reply_bytes is None:
            return sys.maxsize
        new = sum(map(len, self.new_text)) + sum(map(len, self.new_reasoning))
        text_chars = self.text_chars if self._tagged is None else self._tagged.written_chars
        return self._max_reply_bytes - text_chars - self._reasoning_chars - self.calls.chars - new

    def check_room(self) -> None:
        """Hold the reply's characters against its limit.

        Raises:
            Fault: ``oversized``.
        """
        if self._max_reply_bytes is not None:
            self._check_size(self._max_reply_bytes - self.room())

    def _check_size(self, size: int) -> None:
        allowed = self._max_reply_bytes
        if allowed is not None and size > allowed:
            expected = f"at most {allowed} bytes (max_reply_bytes)"
            raise Fault("oversized", expected, f"at least {size}", limit="max_reply_bytes", allowed=allowed)

    def show(self) -> list[Delta]:
        """What the present read brought, joined; the next read begins."""
        deltas: list[Delta] = []
        if self.new_reasoning:
            text = "".join(self.new_reasoning)
            self.new_reasoning.clear()
            deltas.append(ReasoningDelta(text, self._reasoning_chars))
            self._reasoning_chars += len(text)
        if self._tagged is not None:
            deltas += self._show_tagged(self._tagged)
        elif self.new_text:
            text = "".join(self.new_text)
            self.new_text.clear()
            self.text.append(text)
            deltas.append(TextDelta(text, self.text_chars))
            self.text_chars += len(text)
        if self.touched:
            for position, call in self.touched.items():
                deltas.append(CallDelta(position, call.id, call.name, call.take_new()))
            self.touched.clear()
        return deltas
