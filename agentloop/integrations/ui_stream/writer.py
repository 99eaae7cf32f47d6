"""A turn as chunks of one UI message: from the events of its run, from what is stored of it, or from both.

    Start  (StartStep  <attempt>*  <tool call>*  FinishStep)*  data-turn  Finish | Abort | Error
    <attempt>:  (Reasoning… | Text…)*  [ResetStep  data-withdrawn | data-refusal]
    <tool call>:  ToolInputAvailable | ToolInputError, then what came of it

What the protocol has no word for are data parts. Two stay in the message: ``data-withdrawn`` (attemptId, textId,
code: its previews were taken back) and ``data-refusal`` (attemptId, text: what was written instead of an answer). Three
are told aside: ``data-turn`` (turn, state, outcome, reason, usage, budget), ``data-progress`` (toolCallId, message,
fraction) and ``data-resend`` (attemptId, code, delayMs, model).

A step is one model call with the tools it asked for; an attempt that failed and is sent once more shares it.
Events and stored turns may come in any order and more than once: each brings what the message does not have yet.
So a message written from a stored turn alone, one written from events, and one that changed from one to the other
in the middle say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, assert_never

from ...events import (
    ModelEnd,
    ModelParsed,
    ModelStart,
    NodeEnded,
    NodeStarted,
    ReasoningPreview,
    RequestRejected,
    ResendScheduled,
    RouteTaken,
    RunEnded,
    RunEvent,
    RunStarted,
    RunSteered,
    RunStopping,
    TextPreview,
    ToolEnded,
    ToolProgress,
    ToolSkipped,
    ToolStarted,
)
from ...exchange import CHILD
from ...messages import ToolResult
from ..serving.turn import AttemptOf, CallOf, TurnView, WaitingOf
from .call_input import input_of
from .chunks import (
    ApprovalRequest,
    ApprovalResponse,
    Chunk,
    Data,
    FinishStep,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    ResetStep,
    Start,
    StartStep,
    TextDelta,
    TextEnd,
    TextStart,
    ToolOutputAvailable,
    ToolOutputDenied,
    ToolOutputError,
)
from .ending import ending_of, summary_of
from .ids import below_id_of, call_id_of, message_id_of

__all__ = ["MessageWriter"]


class _Place(NamedTuple):
    exchange: int
    position: int


class _Shown:
    """What a client was shown of an attempt that has not ended."""

    __slots__ = ("chars", "expected", "pieces", "reasoned", "reasoning", "reasonings", "text")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.chars = 0  # of text
        self.expected: int | None = None  # characters of the whole reply, once it is known
        self.text: str | None = None  # id of the text, once it has begun
        self.reasoned = 0  # characters of reasoning
        self.reasoning: str | None = None  # id of the reasoning that is open
        self.reasonings = 0

    @property
    def whole(self) -> bool:
        return self.expected == self.chars


class MessageWriter:
    """Events and stored turns in, chunks out; owns no socket, task or clock.

    First `start` or `resume`, last `end`; between them `event` and `turn`, in any number. Before an event of which
    `needs_turn` is true, a caller reads the stored turn and gives it to `turn`.

    Args:
        turn: the turn's id, as the client has it.
        reset_step: whether the client knows how previews are taken back, and how an approval was answered: the
            ``ai`` package does from 7.0.70 on. An older one refuses a whole stream with a word that it does not
            know, so it is not told the latter, and of the former by ``data-withdrawn`` only.
    """

    def __init__(self, turn: str, *, reset_step: bool = True) -> None:
        self._id, self._reset_step = turn, reset_step
        self._open: dict[str, _Shown] = {}
        self._done: set[str] = set()  # attempts that were written whole, or taken back
        self._refusals: set[str] = set()  # attempts whose refusal was written
        self._inputs: dict[_Place, str] = {}  # calls that were written, and their ids
        self._closed: set[_Place] = set()  # calls of which was written what came of them
        self._newest: dict[str, _Place] = {}  # the model's own call ids, which repeat
        self._known = -1  # the newest exchange that the client had before this stream
        self._in_step = False
        self._retry = False  # the step's newest attempt failed, and another may follow in it

    def start(self) -> list[Chunk]:
        """Begin the message."""
        return [Start(message_id=message_id_of(self._id))]

    def resume(self, turn: TurnView, through: int) -> list[Chunk]:
        """Begin where a message went on that a client has up to an exchange, whose calls it was asked about.

        Args:
            turn: what is stored of it now. through: the exchange's number.
        """
        self._known = through
        for attempt in turn.attempts:
            self._done.add(attempt.attempt_id)
            self._refusals.add(attempt.attempt_id)
            for call in attempt.calls:
                place = _Place(call.exchange, call.position)
                self._inputs[place] = call_id_of(self._id, *place)
                if call.exchange < through:
                    self._closed.add(place)
            if attempt.exchange == through:
                break
        return [*self.start(), *self.turn(turn)]

    def decided(self, ref: str, *, approved: bool) -> list[Chunk]:
        """Close a call of a run below the turn's that was decided about: what comes of it is told there only."""
        call = below_id_of(self._id, ref)
        if not approved:
            return [ToolOutputDenied(tool_call_id=call)]
        return [
            ToolOutputAvailable(
                tool_call_id=call, output={"decision": "approved"}, dynamic=True, provider_executed=True
            )
        ]

    def given(self, call: str, result: ToolResult) -> list[Chunk]:
        """Close a call of a run below the turn's whose result the client gave.

        Args:
            call: its id, as the client has it.
        """
        if result.status == "error":
            return [
                ToolOutputError(
                    tool_call_id=call, error_text=result.text or "error", dynamic=True, provider_executed=True
                )
            ]
        return [ToolOutputAvailable(tool_call_id=call, output=result.text, dynamic=True, provider_executed=True)]

    def needs_turn(self, event: RunEvent) -> bool:
        """Whether an event tells of something that only the stored turn has whole."""
        if isinstance(event, ToolSkipped):
            return _Place(event.exchange, event.position) not in self._closed
        if isinstance(event, ToolEnded):
            return _Place(event.exchange, event.position) not in self._inputs
        if isinstance(event, ModelEnd) and event.status == "success":
            shown = self._open.get(event.attempt_id)
            return shown is not None and not shown.whole
        return False

    def event(self, event: RunEvent) -> list[Chunk]:
        """What an event of the turn's run adds."""
        match event:
            case ModelStart():
                return self._begin(event)
            case TextPreview():
                return self._text(event)
            case ReasoningPreview():
                return self._reasoning(event)
            case ModelParsed():
                if (shown := self._open.get(event.attempt_id)) is not None:
                    shown.expected = event.text_chars
                return []
            case ModelEnd():
                return self._end_attempt(event)
            case ToolStarted():
                place = _Place(event.exchange, event.position)
                self._newest[event.call_id] = place
                return self._input(place, event.tool, event.arguments)
            case ToolProgress():
                return self._progress(event)
            case ToolEnded():
                return self._ended(event)
            case ToolSkipped():
                place = _Place(event.exchange, event.position)
                return self._output(place, "error", event.code, "") if place in self._inputs else []
            case ResendScheduled():
                data = {
                    "attemptId": event.attempt_id,
                    "code": event.code,
                    "delayMs": event.delay_ms,
                    "model": event.model,
                }
                return [Data(name="resend", data=data, transient=True)]
            case RunStarted() | RunSteered() | RunStopping() | RunEnded() | RequestRejected():
                return []  # the turn that `end` is given tells it
            case NodeStarted() | NodeEnded() | RouteTaken():
                return []
            case _:
                assert_never(event)

    def turn(self, turn: TurnView) -> list[Chunk]:
        """What a stored turn adds: whole replies, and what came of calls."""
        return self._stored(turn, last=False)

    def end(self, turn: TurnView) -> list[Chunk]:
        """What a turn that goes on no more adds, and the end of the message."""
        chunks = self._stored(turn, last=True)
        for attempt_id in list(self._open):
            chunks += self._withdraw(attempt_id, turn.reason or turn.state)
        for waiting in turn.waiting:
            chunks += self._wait(waiting)
        chunks += self._leave_step()
        chunks.append(Data(name="turn", data=summary_of(turn), transient=True))
        chunks.append(ending_of(turn))
        return chunks

    # -- steps

    def _next_step(self) -> list[Chunk]:
        """A step for an attempt: the one at hand where that was for an attempt that failed."""
        if self._in_step and self._retry:
            self._retry = False
            return []
        chunks = self._leave_step()
        self._in_step, self._retry = True, False
        return [*chunks, StartStep()]

    def _leave_step(self) -> list[Chunk]:
        left, self._in_step = self._in_step, False
        return [FinishStep()] if left else []

    # -- attempts

    def _begin(self, event: ModelStart) -> list[Chunk]:
        attempt_id = event.attempt_id
        if event.ref is not None or attempt_id in self._done or attempt_id in self._open:
            return []
        self._open[attempt_id] = _Shown()
        return self._next_step()

    def _text(self, event: TextPreview) -> list[Chunk]:
        shown = self._open.get(event.attempt_id)
        if shown is None:
            return []
        if event.offset > shown.chars:
            return []  # some was missed; the stored reply has all
        return self._more_text(event.attempt_id, shown, event.text[shown.chars - event.offset :])

    def _more_text(self, attempt_id: str, shown: _Shown, text: str) -> list[Chunk]:
        if not text:
            return []
        chunks = _end_reasoning(shown)
        if shown.text is None:
            shown.text = attempt_id
            chunks.append(TextStart(id=shown.text, provider_metadata=_metadata(attempt_id)))
        shown.pieces.append(text)
        shown.chars += len(text)
        chunks.append(TextDelta(id=shown.text, delta=text))
        return chunks

    def _reasoning(self, event: ReasoningPreview) -> list[Chunk]:
        shown = self._open.get(event.attempt_id)
        if shown is None:
            return []
        text = event.text[max(0, shown.reasoned - event.offset) :]
        shown.reasoned = max(shown.reasoned, event.offset + len(event.text))
        if not text:
            return []
        chunks: list[Chunk] = []
        if shown.reasoning is None:
            shown.reasonings += 1
            shown.reasoning = f"{event.attempt_id}.reasoning-{shown.reasonings}"
            chunks.append(ReasoningStart(id=shown.reasoning, provider_metadata=_metadata(event.attempt_id)))
        chunks.append(ReasoningDelta(id=shown.reasoning, delta=text))
        return chunks

    def _end_attempt(self, event: ModelEnd) -> list[Chunk]:
        shown = self._open.get(event.attempt_id)
        if shown is None:
            return []
        if event.status != "success":
            return self._withdraw(event.attempt_id, event.code or event.status)
        if not shown.whole:
            return []  # it stays open until a stored turn brings the rest
        self._done.add(event.attempt_id)
        return self._close_parts(self._open.pop(event.attempt_id))

    def _close_parts(self, shown: _Shown) -> list[Chunk]:
        chunks = _end_reasoning(shown)
        if shown.text is not None:
            chunks.append(TextEnd(id=shown.text))
        return chunks

    def _withdraw(self, attempt_id: str, code: str) -> list[Chunk]:
        """Take back what was shown of an attempt. Another one may follow in its step."""
        shown = self._open.pop(attempt_id)
        self._done.add(attempt_id)
        self._retry = True
        if shown.text is None and not shown.reasonings:
            return []
        chunks = self._close_parts(shown)
        if self._reset_step:
            chunks.append(ResetStep())
        data = {"attemptId": attempt_id, "textId": shown.text, "code": code}
        chunks.append(Data(name="withdrawn", data=data, id=attempt_id))
        return chunks

    def _reply(self, attempt: AttemptOf) -> list[Chunk]:
        """What is missing of a reply that is stored."""
        chunks: list[Chunk] = []
        shown = self._open.get(attempt.attempt_id)
        if shown is not None and not attempt.text.startswith("".join(shown.pieces)):
            chunks += self._withdraw(attempt.attempt_id, "replaced")
            shown = None
        if shown is None:
            chunks += self._next_step()
            shown = _Shown()
            if attempt.attempt_id in self._done:  # an id stands for one text
                shown.text = f"{attempt.attempt_id}.stored"
                if attempt.text:
                    chunks.append(TextStart(id=shown.text, provider_metadata=_metadata(attempt.attempt_id)))
                else:
                    shown.text = None
        chunks += self._more_text(attempt.attempt_id, shown, attempt.text[shown.chars :])
        chunks += self._close_parts(shown)
        self._open.pop(attempt.attempt_id, None)
        self._done.add(attempt.attempt_id)
        return chunks

    def _stored(self, turn: TurnView, *, last: bool) -> list[Chunk]:
        chunks: list[Chunk] = []
        external = {_Place(item.exchange, item.position) for item in turn.waiting if _is_external(item)}
        for attempt in turn.attempts:
            if attempt.attempt_id not in self._done:
                chunks += self._stored_attempt(attempt)
            if attempt.refusal and attempt.attempt_id not in self._refusals:
                self._refusals.add(attempt.attempt_id)
                chunks.append(Data(name="refusal", data={"attemptId": attempt.attempt_id, "text": attempt.refusal}))
            for call in attempt.calls:
                if last or call.state != "open":
                    chunks += self._call(call, external)
        return chunks

    def _stored_attempt(self, attempt: AttemptOf) -> list[Chunk]:
        if attempt.exchange is not None:
            return self._reply(attempt)
        if attempt.state in ("open", "replied"):  # its reply is not taken in yet
            if attempt.attempt_id in self._open:
                return []
            self._open[attempt.attempt_id] = _Shown()
            return self._next_step()
        if attempt.attempt_id in self._open:
            return self._withdraw(attempt.attempt_id, attempt.code or attempt.state)
        self._done.add(attempt.attempt_id)
        return []

    # -- calls

    def _call(self, call: CallOf, external: set[_Place]) -> list[Chunk]:
        place = _Place(call.exchange, call.position)
        chunks = self._input(place, call.tool, call.arguments, here=place not in external)
        if call.status is not None:
            return [*chunks, *self._output(place, call.status, call.code, call.output or "")]
        if call.state == "waiting" and call.code == CHILD:
            return [*chunks, *self._waits_below(place)]
        return chunks

    def _input(self, place: _Place, tool: str, arguments: str, *, here: bool = True) -> list[Chunk]:
        if place in self._inputs:
            return []
        self._inputs[place] = call_id = call_id_of(self._id, *place)
        return [input_of(call_id, tool, arguments, here=here)]

    def _output(self, place: _Place, status: str, code: str | None, output: str) -> list[Chunk]:
        if place in self._closed:
            return []
        self._closed.add(place)
        call_id = self._inputs[place]
        if status == "ok":
            return [ToolOutputAvailable(tool_call_id=call_id, output=output, dynamic=True, provider_executed=True)]
        if code == "denied":
            return [*self._asked(place, call_id), ToolOutputDenied(tool_call_id=call_id)]
        text = output or code or "error"
        return [ToolOutputError(tool_call_id=call_id, error_text=text, dynamic=True, provider_executed=True)]

    def _asked(self, place: _Place, call_id: str) -> list[Chunk]:
        """The question that was answered with no, for a client that was not the one asked."""
        if place.exchange <= self._known:
            return []
        asked: list[Chunk] = [ApprovalRequest(approval_id=call_id, tool_call_id=call_id)]
        return [*asked, ApprovalResponse(approval_id=call_id, approved=False)] if self._reset_step else asked

    def _waits_below(self, place: _Place) -> list[Chunk]:
        """A call whose own run waits. As it goes on, what came of it takes the place of this.

        A client that answers by itself asks whether all calls of a step have come to something; this one has.
        """
        waits = {"state": "waiting"}
        call_id = self._inputs[place]
        return [ToolOutputAvailable(tool_call_id=call_id, output=waits, dynamic=True, provider_executed=True)]

    def _progress(self, event: ToolProgress) -> list[Chunk]:
        place = self._newest.get(event.call_id)
        if place is None:
            return []
        data = {"toolCallId": self._inputs[place], "message": event.message, "fraction": event.fraction}
        return [Data(name="progress", data=data, transient=True)]

    def _ended(self, event: ToolEnded) -> list[Chunk]:
        place = _Place(event.exchange, event.position)
        if place in self._closed or place not in self._inputs:
            return []
        if event.status == "success":
            return self._output(place, "ok", event.code, event.output)
        if event.status == "waiting":
            return self._waits_below(place)
        if event.slot == "unknown" and not event.output:
            return []  # it is repeated, or nobody knows
        return self._output(place, "error", event.code, event.output)

    def _wait(self, waiting: WaitingOf) -> list[Chunk]:
        """Ask about a call that waits. Of an external one the client gives the result, unasked."""
        if waiting.below:
            call_id = below_id_of(self._id, waiting.ref)
            shown = [input_of(call_id, waiting.tool, waiting.arguments, here=waiting.kind == "approval")]
        else:
            call_id, shown = call_id_of(self._id, waiting.exchange, waiting.position), []
        if waiting.kind == "external":
            return shown
        return [*shown, ApprovalRequest(approval_id=waiting.ref, tool_call_id=call_id)]


def _is_external(waiting: WaitingOf) -> bool:
    return waiting.kind == "external" and not waiting.below


def _end_reasoning(shown: _Shown) -> list[Chunk]:
    ended, shown.reasoning = shown.reasoning, None
    return [] if ended is None else [ReasoningEnd(id=ended)]


def _metadata(attempt_id: str) -> Mapping[str, Mapping[str, str]]:
    return {"agentloop": {"attemptId": attempt_id}}
