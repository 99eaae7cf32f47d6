"""The typed state of a workflow: a frozen struct that is replaced, never changed.

What a node returns is checked against the fields' types and put into a new state. What is an object of the
field's own class already, a struct for instance, is taken as it is. Who reads a state, a guard among others, reads
the struct itself; where a field's type is a list, a dict or a set, a copy of the struct with a copy of that container,
so that nothing done to it reaches the state or another reader. Tuples are read as they are, and cost nothing. What
has no such type, as in a field of ``Any``, is read as it is. The checks of the struct's own (``__post_init__``) are
asked of each new state, and not of a copy.
"""

from __future__ import annotations

import copy
import datetime as dt
import decimal
import uuid
from collections.abc import Collection, Mapping
from typing import Any, Final, Generic, TypeVar, Union, cast

import msgspec
from msgspec import UNSET, inspect

from ..admission import to_type
from ..errors import AdmissionError, HistoryError, InputError, WorkflowError

__all__ = ["StateType"]

S = TypeVar("S", bound=msgspec.Struct)

_AS_THEY_ARE: Final = (
    bytes,
    bytearray,
    dt.datetime,
    dt.date,
    dt.time,
    dt.timedelta,
    uuid.UUID,
    decimal.Decimal,
)
"""No text becomes one of these."""

_CONTAINERS: Final = (inspect.ListType, inspect.DictType, inspect.SetType, inspect.TypedDictType)


class StateType(Generic[S]):
    """What a workflow knows of its state's type.

    Args:
        kind: a frozen `msgspec.Struct`.

    Attributes:
        fields: the names of its fields.
        shared: of those whose values are copied for each reader.

    Raises:
        WorkflowError: ``bad_node``: it is no such type, or a field's type is none that msgspec takes.
    """

    __slots__ = ("_patch", "fields", "kind", "shared")

    def __init__(self, kind: type[S]) -> None:
        if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
            got = kind.__name__ if isinstance(kind, type) else type(kind).__name__
            raise WorkflowError("bad_node", "", f"state: expected a frozen msgspec.Struct, got {got}")
        if not kind.__struct_config__.frozen:
            raise WorkflowError("bad_node", "", f"state: expected a frozen struct, got {kind.__name__}, which is not")
        self.kind = kind
        try:
            given = msgspec.structs.fields(kind)
            self._patch = msgspec.defstruct(
                "Patch",
                [(one.name, cast("type", Union[one.type, msgspec.UnsetType]), UNSET) for one in given],  # noqa: UP007
                frozen=True,
                forbid_unknown_fields=True,
            )
            shapes = cast("inspect.StructType", inspect.type_info(self._patch)).fields
        except (TypeError, NameError) as error:
            rule = f"state: expected types that msgspec takes in {kind.__name__}: {error}"
            raise WorkflowError("bad_node", "", rule) from error
        self.fields = tuple(one.name for one in given)
        self.shared = tuple(one.name for one in shapes if _has_container(one.type))

    def admit(self, state: S) -> S:
        """Check the state that a run begins with, each field against its type.

        Raises:
            InputError: it is of another type, or a field is; or its own checks refuse it.
        """
        if type(state) is not self.kind:
            raise InputError(f"state: expected {self.kind.__name__}, got {type(state).__name__}")
        given = {name: value for name in self.fields if (value := getattr(state, name)) is not UNSET}
        try:
            return msgspec.structs.replace(state, **self._converted(given))
        except (AdmissionError, HistoryError) as error:
            raise InputError(f"state: {error}") from None
        except Exception as error:  # a check of the state's own
            rule = f"expected a state that the checks of {self.kind.__name__} take, got one that raised"
            raise InputError(f"state: {rule} {type(error).__name__}") from error

    def missing(self, state: S, names: Collection[str]) -> list[str]:
        """Those of ``names`` that are not there: None, or `msgspec.UNSET`."""
        return [name for name in names if (value := getattr(state, name)) is None or value is UNSET]

    def read(self, state: S) -> S:
        """The state for one reader: itself, where it holds no container."""
        given = {name: value for name in self.shared if (value := getattr(state, name)) is not None}
        given = {name: value for name, value in given.items() if value is not UNSET}
        if not given:
            return state
        copied = copy.copy(state)
        for name, value in self._converted(given).items():
            msgspec.structs.force_setattr(copied, name, value)
        return copied

    def patched(self, state: S, patch: object, provides: Collection[str], node: str) -> S:
        """A new state with what a handler returned; the same one where that is nothing.

        Args:
            patch: None, or a mapping of names in ``provides``.

        Raises:
            WorkflowError: ``bad_patch``: it is no such mapping, or a value does not fit its field. ``missing_field``:
                it leaves out what the node provides, and that is not there already.
        """
        if patch is not None and not isinstance(patch, Mapping):
            raise WorkflowError("bad_patch", node, f"expected a mapping of fields or None, got {type(patch).__name__}")
        given = {} if patch is None else dict(patch)
        for name in given:
            if name not in provides:
                allowed = ", ".join(provides) or "none"
                shown = repr(name[:80]) if type(name) is str else f"a key of type {type(name).__name__}"
                raise WorkflowError(
                    "bad_patch", node, f"expected only fields that it provides ({allowed}), got {shown}"
                )
        left_out = self.missing(state, [name for name in provides if name not in given])
        if left_out:
            rule = f"expected it to provide {', '.join(provides)}, got a patch without {left_out[0]}"
            raise WorkflowError("missing_field", node, rule)
        if not given:
            return state
        try:
            return msgspec.structs.replace(state, **self._converted(given))
        except (AdmissionError, HistoryError) as error:
            raise WorkflowError("bad_patch", node, str(error)) from None
        except Exception as error:  # a check of the state's own
            rule = f"expected a patch that the checks of {self.kind.__name__} take, got one that raised"
            raise WorkflowError("bad_patch", node, f"{rule} {type(error).__name__}") from error

    def _converted(self, given: dict[str, Any]) -> dict[str, Any]:
        """The values as their fields' types take them, in containers of their own."""
        for name, value in given.items():
            if value is UNSET:
                raise AdmissionError(f"$.{name}", "expected a value, got UNSET")
        patch = to_type(given, self._patch, builtin_types=_AS_THEY_ARE)
        return {name: getattr(patch, name) for name in given}


def _has_container(shape: inspect.Type) -> bool:
    """Whether a value of this type has a list, dict or set outside of structs and other objects."""
    if isinstance(shape, _CONTAINERS):
        return True
    if isinstance(shape, inspect.UnionType):
        return any(_has_container(one) for one in shape.types)
    if isinstance(shape, inspect.VarTupleType):
        return _has_container(shape.item_type)
    if isinstance(shape, inspect.TupleType):
        return any(_has_container(one) for one in shape.item_types)
    return isinstance(shape, inspect.Metadata) and _has_container(shape.type)
