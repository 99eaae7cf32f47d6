"""What a model call gives back: a value, and the record of the call that brought it."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

import msgspec

from ..messages import Usage

__all__ = ["ModelCallRecord", "ModelResult"]

T_co = TypeVar("T_co", covariant=True)


class ModelCallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One model call that succeeded; made by the runner, never by a model (R221).

    Attributes:
        invocation_id: the attempt that brought the reply, as its events and the server's log have it.
        ref: the run that it is stored as, for `Runtime.read`.
        call_sequence: number of that attempt among those of its runner, from 1.
        started_at_ms: when `ModelRunner.invoke` was called, milliseconds since the Unix epoch.
        status: a call that failed raises instead.
        stage_id: the host's word for where it was made.
        model_id: the host's name of the model that answered; None where it gave none.
        model: the model as the provider asked for it.
        transport, route: id of the transport, and how it asked for the value.
        usage: tokens as reported; None where the provider reported none.
    """

    invocation_id: str
    ref: str
    call_sequence: int
    started_at_ms: int
    stage_id: str
    model: str
    transport: str
    route: str
    status: Literal["success"] = "success"
    model_id: str | None = None
    usage: Usage | None = None


class ModelResult(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """Exactly a value and its record (R219).

    Attributes:
        value: what the transport made of the checked reply.
        invocation: the call.
    """

    value: T_co
    invocation: ModelCallRecord
