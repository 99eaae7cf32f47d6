"""The chunks of the UI message stream protocol that a turn needs, as frozen values, and their JSON.

Source: the ``ai`` package, version 7, ``ui-message-stream/ui-message-chunks.ts``, and "Stream Protocols" of its
documentation. Chunks of other kinds (sources, files, tool input as it is written) are never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

__all__ = [
    "Abort",
    "ApprovalRequest",
    "ApprovalResponse",
    "Chunk",
    "Data",
    "Error",
    "Finish",
    "FinishReason",
    "FinishStep",
    "ReasoningDelta",
    "ReasoningEnd",
    "ReasoningStart",
    "ResetStep",
    "Start",
    "StartStep",
    "TextDelta",
    "TextEnd",
    "TextStart",
    "ToolInputAvailable",
    "ToolInputError",
    "ToolOutputAvailable",
    "ToolOutputDenied",
    "ToolOutputError",
    "encode_chunk",
]

FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "other"]
"""Why a message is finished, in the protocol's words."""


class Chunk(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", rename="camel", omit_defaults=True):
    """One chunk; what is None or False is left out."""


class Start(Chunk, frozen=True, tag="start"):
    """The message begins, or goes on under the same id."""

    message_id: str


class StartStep(Chunk, frozen=True, tag="start-step"):
    """A model call begins."""


class FinishStep(Chunk, frozen=True, tag="finish-step"):
    """A model call and what its reply asked for are over."""


class ResetStep(Chunk, frozen=True, tag="reset-step"):
    """All parts since the newest `StartStep` are taken back. Not known before version 7.0.70."""


class TextStart(Chunk, frozen=True, tag="text-start"):
    """A text begins. ``provider_metadata`` stays with the part, whose id does not."""

    id: str
    provider_metadata: Mapping[str, Mapping[str, str]] | None = None


class TextDelta(Chunk, frozen=True, tag="text-delta"):
    """More of a text."""

    id: str
    delta: str


class TextEnd(Chunk, frozen=True, tag="text-end"):
    """A text is over."""

    id: str


class ReasoningStart(Chunk, frozen=True, tag="reasoning-start"):
    """Reasoning begins. ``provider_metadata`` as of `TextStart`."""

    id: str
    provider_metadata: Mapping[str, Mapping[str, str]] | None = None


class ReasoningDelta(Chunk, frozen=True, tag="reasoning-delta"):
    """More reasoning."""

    id: str
    delta: str


class ReasoningEnd(Chunk, frozen=True, tag="reasoning-end"):
    """Reasoning is over."""

    id: str


class ToolInputAvailable(Chunk, frozen=True, tag="tool-input-available"):
    """A call with its arguments. ``provider_executed`` says that the client does not run it."""

    tool_call_id: str
    tool_name: str
    input: msgspec.Raw | str
    dynamic: bool
    provider_executed: bool = False


class ToolInputError(Chunk, frozen=True, tag="tool-input-error"):
    """A call whose arguments are no JSON object."""

    tool_call_id: str
    tool_name: str
    input: str
    error_text: str
    dynamic: bool
    provider_executed: bool = False


class ToolOutputAvailable(Chunk, frozen=True, tag="tool-output-available"):
    """What came of a call.

    ``provider_executed`` also of one whose result a client gave: else a client that sends results by itself would
    send it again for as long as another call waits.
    """

    tool_call_id: str
    output: str | Mapping[str, str]
    dynamic: bool
    provider_executed: bool


class ToolOutputError(Chunk, frozen=True, tag="tool-output-error"):
    """A call failed, or did not run."""

    tool_call_id: str
    error_text: str
    dynamic: bool
    provider_executed: bool


class ToolOutputDenied(Chunk, frozen=True, tag="tool-output-denied"):
    """A call was denied, and did not run."""

    tool_call_id: str


class ApprovalRequest(Chunk, frozen=True, tag="tool-approval-request"):
    """A call waits for a person."""

    approval_id: str
    tool_call_id: str


class ApprovalResponse(Chunk, frozen=True, tag="tool-approval-response"):
    """What a person decided. Not known before version 7."""

    approval_id: str
    approved: bool


class Data(Chunk, frozen=True, tag="data"):
    """What the protocol has no word for; sent as ``data-<name>``.

    ``transient`` chunks are told to the client's ``onData`` and become no part of the message.
    """

    name: str
    data: Any
    id: str | None = None
    transient: bool = False


class Error(Chunk, frozen=True, tag="error"):
    """The message failed. A client reads no further."""

    error_text: str


class Abort(Chunk, frozen=True, tag="abort"):
    """The message was cut off on purpose."""

    reason: str


class Finish(Chunk, frozen=True, tag="finish"):
    """The message is complete."""

    finish_reason: FinishReason
    message_metadata: Mapping[str, Any] | None = None


_ENCODER: Final = msgspec.json.Encoder()


def encode_chunk(chunk: Chunk) -> bytes:
    """A chunk as one line of JSON."""
    if isinstance(chunk, Data):
        body: dict[str, Any] = {"type": f"data-{chunk.name}", "data": chunk.data}
        if chunk.id is not None:
            body["id"] = chunk.id
        if chunk.transient:
            body["transient"] = True
        return _ENCODER.encode(body)
    return _ENCODER.encode(chunk)
