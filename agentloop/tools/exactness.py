"""Whether decoded arguments still say what was given (R59).

msgspec's decode of plain JSON types changes nothing, so a tool made of them is not checked when it
is called. Some types may: a float takes large integers, dates end at the microsecond, a set drops
what comes twice, keys that are no strings may fall together, and a class with ``__post_init__`` or
converters may do anything. Tools with such types are marked when they are defined, and each decode
is then compared with the plain values it was made from.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import inspect

from ..admission import pattern
from ..admission.paths import path_step
from ..errors import ToolDefinitionError
from ..limits import SAFE_INTEGER

__all__ = ["difference", "is_exactly", "may_change"]

_COMPARED: Final = (
    inspect.FloatType,
    inspect.DateTimeType,
    inspect.TimeType,
    inspect.TimeDeltaType,
    inspect.DecimalType,
    inspect.BytesType,
    inspect.ByteArrayType,
    inspect.MemoryViewType,
    inspect.SetType,
    inspect.FrozenSetType,
)
_UNDECODABLE: Final = (inspect.CustomType, inspect.RawType, inspect.ExtType)
_CLASSES: Final = (inspect.StructType, inspect.DataclassType)


def may_change(tool: str, kind: type[msgspec.Struct]) -> tuple[bool, bool]:
    """Whether decodes must be compared, and whether code of the tool's own classes takes part.

    Raises:
        ToolDefinitionError: ``bad_tool``: a parameter has a type that no JSON decodes to.
    """
    compare = own_code = False
    seen: set[int] = set()
    pending: list[Any] = [inspect.type_info(kind)]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, _UNDECODABLE):
            name = getattr(getattr(node, "cls", None), "__name__", type(node).__name__)
            raise ToolDefinitionError("bad_tool", tool, f"a parameter has the type {name}, which no JSON decodes to")
        if isinstance(node, _COMPARED) or _odd_keys(node):
            compare = True
        if isinstance(node, _CLASSES) and _has_own_code(node.cls):
            compare = own_code = True
        pending.extend(_inside(node))
    return compare, own_code


def _odd_keys(node: Any) -> bool:
    return isinstance(node, inspect.DictType) and not isinstance(node.key_type, (inspect.AnyType, inspect.StrType))


def _has_own_code(kind: type) -> bool:
    converters = any(getattr(item, "converter", None) for item in getattr(kind, "__attrs_attrs__", ()))
    return converters or any(hasattr(kind, name) for name in ("__post_init__", "__attrs_post_init__"))


def _inside(node: Any) -> Iterable[Any]:
    for name in ("type", "item_type", "key_type", "value_type"):
        inner = getattr(node, name, None)
        if isinstance(inner, inspect.Type):
            yield inner
    yield from getattr(node, "types", ())
    yield from getattr(node, "item_types", ())
    for field in getattr(node, "fields", ()):
        yield field.type


def difference(given: Any, held: Any, path: str = "$") -> str | None:
    """Path of the first given value that the decoded one does not hold; None when all are there.

    Members that were not given (defaults) are no difference, nor is another spelling of the same
    UUID, date, duration or number.
    """
    if type(given) is dict:
        members = _members(held)
        return path if members is None else _member_difference(given, members, path)
    if type(given) is not list:
        return None if _same_scalar(given, held) else path
    if isinstance(held, (set, frozenset)):
        return None if len(held) == len(given) and _as_set(given) == _as_set(held) else path
    items = _items(held)
    if items is None or len(items) < len(given):
        return path
    for at, item in enumerate(given):
        found = difference(item, items[at], f"{path}[{at}]")
        if found is not None:
            return found
    return None


def _member_difference(given: dict[str, Any], members: Mapping[Any, Any], path: str) -> str | None:
    if not all(key in members for key in given):  # keys of another type than str, or spelled in another way
        names = msgspec.to_builtins(dict.fromkeys(members), str_keys=True)
        members = {_spelling(name): item for name, item in zip(names, members.values(), strict=True)}
        if len(members) != len(given):
            return path
        given = {_spelling(key): item for key, item in given.items()}
    for key, item in given.items():
        here = path + path_step(key)
        if key not in members:
            return here
        found = difference(item, members[key], here)
        if found is not None:
            return found
    return None


def _members(held: Any) -> Mapping[Any, Any] | None:
    """The members of what a JSON object was decoded into, by their names in JSON."""
    if type(held) is dict:
        return held
    if isinstance(held, msgspec.Struct):
        members = {
            name: getattr(held, field) for name, field in zip(_encoded(held), held.__struct_fields__, strict=True)
        }
        config = held.__struct_config__
        return members if config.tag is None else {**members, str(config.tag_field): config.tag}
    if hasattr(type(held), "__dataclass_fields__"):
        from dataclasses import fields  # noqa: PLC0415  # whoever made the class has imported it

        return {field.name: getattr(held, field.name) for field in fields(held)}
    attributes = getattr(type(held), "__attrs_attrs__", None)
    return None if attributes is None else {item.name: getattr(held, item.name) for item in attributes}


def _encoded(held: msgspec.Struct) -> tuple[str, ...]:
    return held.__struct_encode_fields__


def _items(held: Any) -> list[Any] | None:
    """The items of what a JSON array was decoded into."""
    if isinstance(held, (list, tuple)):
        return list(held)
    if isinstance(held, msgspec.Struct) and held.__struct_config__.array_like:
        config = held.__struct_config__
        values = [getattr(held, field) for field in held.__struct_fields__]
        return values if config.tag is None else [config.tag, *values]
    return None


def _as_set(items: Iterable[Any]) -> set[bytes]:
    plain = (msgspec.to_builtins(item, str_keys=True) for item in items)
    return {msgspec.json.encode(_spelling(item), order="sorted") for item in plain}


def _same_scalar(given: Any, held: Any) -> bool:
    held = msgspec.to_builtins(held)
    if type(given) is str and type(held) is str:
        return given == held or _spelling(given) == _spelling(held)
    if type(given) is float and type(held) is int:
        return given == held and abs(held) <= SAFE_INTEGER + 1 and (held != 0 or math.copysign(1.0, given) > 0)
    if type(given) is int and type(held) is float:
        return given == held
    return type(given) is type(held) and bool(given == held)


# Spellings: JSON texts that stand for one value of these types.

_BELOW_MICROSECOND: Final = pattern(r"[.,][0-9]{6}[0-9]*[1-9]")
_SPELLED: Final = (uuid.UUID, dt.datetime, dt.time, dt.timedelta, decimal.Decimal, bytes)


def _spelling(value: Any) -> Any:
    """One text for all spellings of what a text may stand for; other texts and values as they are."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is not str or _BELOW_MICROSECOND().search(value):
        return value
    for kind in _SPELLED:
        try:
            held = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
        if isinstance(held, decimal.Decimal):  # 1.0 and 1e0 are keys of one float
            held = held.normalize(decimal.Context(prec=len(value), traps=[]))
        return msgspec.json.encode(held).decode()
    return value


def is_exactly(literal: str, value: float) -> bool:
    """Whether a JSON number, as it is written, is the number that a float read of it holds."""
    try:
        return decimal.Decimal(literal) == decimal.Decimal(value)
    except decimal.InvalidOperation:  # an exponent that is out of all bounds
        return False
