"""One fact as one JSON text: what a medium keeps, and a person can read.

A record is the fact's fields in the order of their definition, with the kind under ``fact`` and
the form under ``version``. What was written is read for ever: each version has golden files under
``tests/persistence/golden``. A fact that was read is one of today, and written again in today's
form. A reader refuses what it does not know by name, and never guesses.
"""

from __future__ import annotations

import functools
from typing import Any, Final, cast

import msgspec

from ..admission import parse, pattern, to_type
from ..errors import AdmissionError, InputError, RestoreError
from ..exchange import Fact
from .batch import KINDS
from .record_v1 import V1_END, v1_decoder, v1_fact, v1_form

__all__ = ["RECORD_VERSION", "decode_record", "encode_record"]

RECORD_VERSION: Final = 2
"""The form that is written. Every one from 1 on is read."""

_ENCODER: Final = msgspec.json.Encoder()


@functools.cache
def _decoder() -> msgspec.json.Decoder[Fact]:
    """Made when it is first used: it takes some milliseconds, and a store in memory needs none."""
    return msgspec.json.Decoder(Fact)


_NAMES: Final = frozenset(cast("Any", kind).__struct_config__.tag for kind in KINDS)
_WORD: Final = pattern(r"[a-z0-9_-]{1,40}\Z")
_DEPTH: Final = 64


def encode_record(fact: Fact) -> bytes:
    """The fact's record, UTF-8. Text and numbers come back from it exactly.

    Raises:
        AdmissionError: it is no fact, or a text of it is no Unicode text.
    """
    if type(fact) not in KINDS:
        raise AdmissionError("$", f"expected a fact, got {type(fact).__name__}")
    try:
        return _ENCODER.encode(fact)
    except UnicodeEncodeError:
        pass
    raise AdmissionError("$", "expected Unicode text, got half a surrogate pair")  # unchained: it quotes the text


def decode_record(data: bytes | str, *, where: str) -> Fact:
    """The fact that a record holds.

    White space between its tokens and another order of its members are read as the same fact.

    Args:
        where: what the record is, for the error: "fact 12 of store.db".

    Raises:
        RestoreError: ``restore_version``, ``bad_record`` for an unknown kind, an unknown or
            missing field, a wrong value, a member given twice or text that is not JSON. Names the
            kind, version or field, never the content.
    """
    text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
    try:
        if text.endswith(V1_END):
            record = v1_decoder().decode(text)
            if _ENCODER.encode(record) == text:
                return v1_fact(record)
        else:
            fact = _decoder().decode(text)
            if _ENCODER.encode(fact) == text:  # so nothing was said twice, in another form or beside the fields
                return fact
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    return _decode_checked(text, where)


def _decode_checked(text: bytes, where: str) -> Fact:
    """Decode what is not in the written form, or name its first fault."""
    fault: RestoreError | None = None
    value: Any = None
    try:
        value = parse(text, max_bytes=len(text), max_depth=_DEPTH, max_values=len(text))
        if _version(value, where) == 1:
            return v1_fact(to_type(value, v1_form()))
        return to_type(value, Fact)  # type: ignore[arg-type]  # a union is a type to msgspec
    except AdmissionError as error:
        at = "" if error.position is None else f" (at character {error.position})"
        fault = RestoreError("bad_record", f"{where}, {error.path}", error.rule + at)
    except InputError as error:
        fault = RestoreError("bad_record", where, str(error))
    raise fault  # unchained: what it comes from may hold more than is told


def _version(value: Any, where: str) -> int:
    """The version of a record whose kind and version are known."""
    if type(value) is not dict:
        raise AdmissionError("$", f"expected an object, got {type(value).__name__}")
    for name in ("fact", "version"):
        if name not in value:
            raise AdmissionError(f"$.{name}", "expected this field, got none")
    kind, version = value["fact"], value["version"]
    if type(version) is not int:
        raise AdmissionError("$.version", f"expected a number, got {type(version).__name__}")
    if not 1 <= version <= RECORD_VERSION:
        rule = f"expected record version 1 to {RECORD_VERSION}, got {version}"
        raise RestoreError("restore_version", where, rule)
    if kind not in _NAMES if type(kind) is str else True:
        got = repr(kind) if type(kind) is str and _WORD().match(kind) else type(kind).__name__
        raise AdmissionError("$.fact", f"expected a known kind of fact, got {got}")
    return version
