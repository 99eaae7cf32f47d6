"""Events about one model call, in the order in which a sink gets them.

    ModelStart  (TextPreview | ReasoningPreview)*  [ModelParsed]  ModelEnd

Exactly one `ModelStart` and one `ModelEnd` for each admitted attempt. `ModelParsed` comes only
when the complete value was parsed; delivery and cancellation are still checked after it. A
`ModelEnd` whose status is not ``success`` retracts every preview of that attempt.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from ..messages.parts import Termination, Usage
from .envelope import Event

__all__ = ["ModelEnd", "ModelParsed", "ModelStart", "OutputEvent", "ReasoningPreview", "TextPreview"]


class ModelStart(Event, frozen=True):
    """A model call was admitted: its budget is debited and its request is about to be sent.

    Attributes:
        call_sequence: its number among the calls of its run, or of its runner, from 1.
        stage_id: where in an application it is made. model_id: the host's word for a registered model.
        model, dialect: what is asked for on the wire, and what the answer is held against.
        transport, route: how its answer is asked for; empty where no transport asked.
        ref: the run that it is stored as, where that is not the run of this event; as for `Runtime.read`.
    """

    type: ClassVar[str] = "model.start"

    attempt_id: str
    call_sequence: int
    stage_id: str = "model"
    model: str = ""
    dialect: str = ""
    model_id: str | None = None
    transport: str = ""
    route: str = ""
    ref: str | None = None


class TextPreview(Event, frozen=True):
    """Body text as it arrived: all text of one network read. A preview, never the truth.

    Attributes:
        text: never empty; never tool arguments, reasoning or refusal text.
        offset: characters of this attempt's body before ``text``.
    """

    type: ClassVar[str] = "model.output"

    attempt_id: str
    offset: int
    text: str


class ReasoningPreview(Event, frozen=True):
    """Reasoning as it arrived; only when asked for, and never as body text."""

    type: ClassVar[str] = "model.reasoning"

    attempt_id: str
    offset: int
    text: str


class ModelParsed(Event, frozen=True):
    """The complete reply was checked and parsed. Not yet a fact, and not the final answer.

    Attributes:
        text_chars: characters of body text. calls: number of tool calls.
    """

    type: ClassVar[str] = "model.parsed"

    attempt_id: str
    text_chars: int
    calls: int
    termination: Termination


class ModelEnd(Event, frozen=True):
    """The attempt is over.

    Attributes:
        status: ``success`` only when the reply is a stored fact. ``pending``: the run left the
            call, which goes on; its reply is a later fact.
        retracted: True when previews of this attempt were shown and do not stand.
        code: the error's code when the status is not ``success``.
        usage: tokens as reported, None when unknown.
        duration_ms: from the start of the call to here, preparation and delivery included.
        output_chars: the most characters that its collector held, 0 where it has none.
        call: what the collector says of the call, such as the tool that was proposed; a word at best.
    """

    type: ClassVar[str] = "model.end"

    attempt_id: str
    call_sequence: int
    status: Literal["success", "error", "cancelled", "pending"]
    retracted: bool
    code: str | None = None
    usage: Usage | None = None
    duration_ms: int = 0
    output_chars: int = 0
    call: str | None = None


OutputEvent = ModelStart | TextPreview | ReasoningPreview | ModelParsed | ModelEnd
"""What a sink receives."""
