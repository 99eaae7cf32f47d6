"""Tool calls put together from their pieces: one index, one id, one name a call (R116, R120)."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..admission.canonical import canonical_text
from ..admission.strict_json import parse
from ..errors import AdmissionError
from ..messages.parts import JsonText, ToolCall
from .chunks import CallPiece, join_fields
from .dialect import Dialect
from .fault import Fault
from .surrogates import Halves

__all__ = ["OpenCall", "OpenCalls"]

_SPACE: Final = " \t\n\r"  # what JSON takes for white space


class OpenCall:
    """One call while its stream runs.

    Attributes:
        position: place among the reply's calls, from 0.
        id, name: ``""`` until told.
        pieces: the argument text so far.
        extras: fields of the call that we do not know, to be sent back.
    """

    __slots__ = ("extras", "id", "name", "pieces", "position", "shown", "whole")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []
        self.shown = 0  # pieces that a preview showed
        self.whole = False  # the arguments came as one object: nothing may follow
        self.extras: dict[str, Any] = {}

    @property
    def arguments(self) -> str:
        """The argument text so far."""
        if len(self.pieces) > 1:  # joined once, so that asking after every piece stays cheap
            shown = "".join(self.pieces[: self.shown])
            new = "".join(self.pieces[self.shown :])
            self.pieces[:] = [text for text in (shown, new) if text]
            self.shown = 1 if shown else 0
        return "".join(self.pieces)

    def take_new(self) -> str:
        """The argument text that no preview has shown yet."""
        new = "".join(self.pieces[self.shown :])
        self.shown = len(self.pieces)
        return new


class OpenCalls:
    """The calls of one reply, in the order in which they began.

    Attributes:
        calls: as they stand; `settle` gives the finished ones.
        chars: characters of all arguments.
        is_plain: whether an index is a position in ``calls``, and a piece without id and name only text to append.
    """

    __slots__ = ("_by_id", "_by_index", "_dialect", "_halves", "_next", "_settled", "calls", "chars", "is_plain")

    def __init__(self, dialect: Dialect, halves: Halves) -> None:
        self._dialect = dialect
        self._halves = halves
        self.calls: list[OpenCall] = []
        self.chars = 0
        self.is_plain = not (dialect.index_base or dialect.index_shared or dialect.index_absent)
        self.is_plain = self.is_plain and not (dialect.arguments_placeholder or dialect.arguments_object)
        self._by_index: dict[int, OpenCall] = {}
        self._by_id: dict[str, OpenCall] = {}  # the first call with that id
        self._next = 0
        self._settled: list[tuple[int, ToolCall]] | None = None

    def add(self, piece: CallPiece) -> OpenCall:
        """Take one piece; return the call it belongs to.

        Raises:
            Fault: one of the codes about calls in the table.
        """
        self._settled = None
        call = self._find(piece)
        if call is None:
            call = self._open(piece)
        elif piece.id and piece.id != call.id:
            if call.id:
                raise Fault("index_conflict", "one id for one index", "another id at the same index")
            self._name_id(call, piece.id)
        if piece.name:
            self._take_name(call, piece.name)
        if piece.arguments:
            self._take_arguments(call, piece.arguments)
        join_fields(call.extras, piece.extras)
        return call

    def _find(self, piece: CallPiece) -> OpenCall | None:
        """The open call that the piece continues; None when it opens one."""
        if piece.index is None:
            if not self._dialect.index_absent:
                raise Fault("missing_index", "an index on every piece of a call", "a piece without one")
            if piece.id:
                return self._by_id.get(piece.id)
            call = self.calls[-1] if self.calls else None
        else:
            call = self._by_index.get(piece.index)
            if call is None:
                return None
            if piece.id and call.id and piece.id != call.id and self._dialect.index_shared:
                return self._by_id.get(piece.id)
            if not self._dialect.index_shared or piece.id:
                return call
        if call is not None and self._begins_anew(call, piece):
            return None
        return call

    def _begins_anew(self, call: OpenCall, piece: CallPiece) -> bool:
        """Whether a piece without an id, where calls may share an index or have none, is another call.

        It is when it brings a name and an object of arguments and the newest call has both, complete.

        Raises:
            Fault: ``missing_call_id``: a name again and no arguments, which may be this call or the next.
        """
        if not (piece.name and call.name and self._dialect.call_id_absent) or call.id:
            return False
        if not piece.arguments and piece.name == call.name:
            raise Fault("missing_call_id", "an id, or arguments, where a name comes again", "neither")
        if isinstance(piece.arguments, str) and not piece.arguments.lstrip(_SPACE).startswith("{"):
            return False
        last = next((text for told in reversed(call.pieces) if (text := told.rstrip(_SPACE))), "")
        return call.whole or (last.endswith("}") and _is_object(call.arguments))

    def _open(self, piece: CallPiece) -> OpenCall:
        index = self._next if piece.index is None else piece.index
        if index not in self._by_index:
            if not self.calls and self._dialect.index_base and index in (1, -1):
                self._next = index
            if index != self._next:
                raise Fault("index_gap", f"index {self._next} for the next call", f"index {index}")
            self._next += 1
        call = OpenCall(len(self.calls))
        if piece.id:
            self._name_id(call, piece.id)
        self.calls.append(call)
        self._by_index[index] = call
        return call

    def _name_id(self, call: OpenCall, id_: str) -> None:
        first = self._by_id.setdefault(id_, call)
        if first is not call and not (self._dialect.call_id_duplicated or self._dialect.call_repeated):
            raise Fault("duplicate_call_id", "an id that no other call of the reply has", "one that another call has")
        call.id = id_

    def _take_name(self, call: OpenCall, name: str) -> None:
        if not call.name:
            call.name = name
        elif name != call.name:
            if not self._dialect.name_pieces or call.pieces:
                raise Fault("name_conflict", "one name for one call", "another name")
            call.name += name

    def _take_arguments(self, call: OpenCall, arguments: str | bytes) -> None:
        if isinstance(arguments, bytes):
            if call.pieces:
                raise Fault("bad_shape", "arguments as text, or as one whole object", "an object after other arguments")
            call.pieces.append(_object_text(arguments))
            self.chars += len(call.pieces[0])
            call.whole = True
            return
        if call.whole:
            raise Fault("bad_shape", "nothing after arguments sent as one object", "more arguments")
        if self._dialect.arguments_placeholder and call.pieces == ["{}"] and arguments.startswith("{"):
            call.pieces.clear()
            call.shown = 0
        arguments = self._halves.take(call.position, arguments)
        if arguments:
            call.pieces.append(arguments)
            self.chars += len(arguments)

    def are_json(self) -> bool:
        """Whether there are calls, and every one's arguments are one JSON object."""
        return bool(self.calls) and all(_is_object(call.arguments) for call in self.calls)

    def settle(self) -> list[tuple[int, ToolCall]]:
        """The finished calls, each with the position of its first piece, in order.

        Raises:
            Fault: ``missing_call_id``, ``missing_call_name`` or ``duplicate_call_id``.
        """
        if self._settled is not None:
            return self._settled
        settled: list[tuple[int, ToolCall]] = []
        taken = {call.id for call in self.calls}
        seen: dict[str, ToolCall] = {}
        for call in self.calls:
            if not call.name:
                raise Fault("missing_call_name", f"a name for call {call.position}", "none")
            arguments = call.arguments
            id_ = call.id
            if not id_:
                if not self._dialect.call_id_absent:
                    raise Fault("missing_call_id", f"an id for call {call.position}", "none")
                id_ = _mint(f"call_{call.position}", taken)
            elif (first := seen.get(id_)) is not None:
                if self._dialect.call_repeated and (first.name, first.arguments.text) == (call.name, arguments):
                    continue
                if not self._dialect.call_id_duplicated:
                    raise Fault("duplicate_call_id", "an id that no other call has", "one that another call has")
                id_ = _mint(f"{id_}#{call.position}", taken)
            taken.add(id_)
            made = ToolCall(id=id_, name=call.name, arguments=JsonText(text=arguments))
            settled.append((call.position, made))
            seen.setdefault(call.id, made)
        self._settled = settled
        return settled


def _mint(wanted: str, taken: set[str]) -> str:
    """A local id made from a call's position; the same stream always gives the same one."""
    while wanted in taken:
        wanted += "#"
    return wanted


def _is_object(text: str) -> bool:
    try:
        return type(msgspec.json.decode(text)) is dict
    except (msgspec.MsgspecError, RecursionError):
        return False


def _object_text(raw: bytes) -> str:
    try:
        return canonical_text(parse(raw))
    except AdmissionError as error:
        raise Fault("bad_shape", "arguments that are one JSON object", f"{error.path}: {error.rule}") from None
