"""Records of version 1, which are read for ever and never written.

They told no time at which an effect ended, no answer in place of a stream, not whether a stream was
refused or previewed, no wish for recovery points, nothing that a run was not asked with or that was said before
it, no parent and nothing that was converted for a tool; nor was a run steered or asked to stop then. Their form is
that of today's facts without those fields and kinds, so what comes later is named here as well.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, Literal, Union, cast

import msgspec

from ..exchange import (
    Fact,
    OriginOpened,
    OutputKept,
    RerunAllowed,
    RunRedacted,
    SendEnded,
    SlotMoved,
    Steered,
    StopAsked,
)
from .batch import KINDS

__all__ = ["V1_END", "v1_decoder", "v1_fact", "v1_form"]

V1_END: Final = b',"version":1}'
"""How such a record ends, in the form that was written."""

_UNTOLD: Final[Mapping[type, Mapping[str, Any]]] = {
    OriginOpened: {"checkpoint": False, "call": None, "context": None, "parent": None, "brought": 0},
    RunRedacted: {"parent": None},
    SendEnded: {"at_ms": None, "status": None, "retry_after": None, "stream_refused": False, "previewed": None},
    SlotMoved: {"at_ms": None, "converted": ()},
    RerunAllowed: {"at_ms": None},
}
"""What each kind holds today and did not then, with the value that stands for it."""


_LATER: Final[frozenset[type]] = frozenset({OutputKept, Steered, StopAsked})
"""Kinds that were not there then."""


@functools.cache
def _forms() -> dict[type, type]:
    """The form of each kind then, with the kind."""
    return {_form_of(kind): kind for kind in KINDS - _LATER}


def _form_of(kind: type) -> type:
    fields: list[Any] = []
    for field in msgspec.structs.fields(kind):
        if field.name == "version":
            fields.append((field.name, Literal[1]))
        elif field.name not in _UNTOLD.get(kind, {}):
            fields.append((field.name, field.type, field.default))  # which says so where there is none
    return msgspec.defstruct(
        f"{kind.__name__}V1",
        fields,
        tag_field="fact",
        tag=cast("Any", kind).__struct_config__.tag,
        frozen=True,
        kw_only=True,
        forbid_unknown_fields=True,
    )


@functools.cache
def v1_form() -> Any:
    """The type of such a record."""
    return Union[tuple(_forms())]  # noqa: UP007  # made when it runs


@functools.cache
def v1_decoder() -> msgspec.json.Decoder[Any]:
    """Made when it is first used, by who reads an older store."""
    return msgspec.json.Decoder(v1_form())


def v1_fact(record: Any) -> Fact:
    """The fact that such a record is today."""
    kind = _forms()[type(record)]
    told = {name: getattr(record, name) for name in record.__struct_fields__ if name != "version"}
    return cast("Fact", kind(**told, **_UNTOLD.get(kind, {})))
