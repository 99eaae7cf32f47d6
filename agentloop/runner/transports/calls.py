"""The collector of answers that are calls: one proposal, or text and several calls (R199).

A fragment is a preview and becomes no receipt and no value (R204). Once fragments show what no end can
mend, the answer is refused with what was first wrong; the send is read to its end all the same, so that
the reply is stored and its usage known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from ...errors import OutputRefused
from ...messages import ModelReply
from ...wire.call_text import MALFORMED_CALL, malformed_feedback
from ...wire.deltas import CallDelta
from ..transport import Fragment
from .rules import require_completed

__all__ = ["CallsCollector"]

T_co = TypeVar("T_co", covariant=True)


class CallsCollector(Generic[T_co]):
    """Collects calls of registered tools. A `CallDelta` of a provider of somebody else's is checked in full (R193).

    Args:
        transport: id of the transport, for refusals.
        names: of the registered tools.
        single: whether the answer is exactly one call and no text, not even a space (R195, R197);
            otherwise any number of calls, and text.
        build: makes the value of the checked reply; may raise `OutputRefused`.

    Attributes:
        output_chars: characters of text and arguments so far; of the whole reply once it is finished.
        call: name of the first call, for diagnostics, once it is one of the registered names.
    """

    __slots__ = ("_build", "_ids", "_names", "_positions", "_single", "_transport", "call", "output_chars")

    def __init__(
        self, transport: str, names: Iterable[str], *, single: bool, build: Callable[[ModelReply], T_co]
    ) -> None:
        self._transport, self._single, self._build = transport, single, build
        self._names = tuple(names)
        self._positions: list[tuple[str, str]] = []  # id and name of each call so far, "" until told
        self._ids: dict[str, int] = {}
        self.output_chars = 0
        self.call: str | None = None

    def push(self, fragment: Fragment, /) -> None:
        """Take the next piece of text or of a call.

        Raises:
            OutputRefused: ``unexpected_text``, ``several_calls``, ``call_conflict``, ``unknown_tool``, or
                ``bad_fragment`` for what no provider may give.
        """
        if isinstance(fragment, str):
            if fragment and self._single:
                raise self._refused("unexpected_text", "expected one call alone, got text")
            self.output_chars += len(fragment)
        elif isinstance(fragment, CallDelta):
            id_, name, arguments = self._checked(fragment)
            self._take(fragment.position, id_, name)
            self.output_chars += len(arguments)
        else:
            rule = f"expected a fragment of type str or CallDelta, got {type(fragment).__name__}"
            raise self._refused("bad_fragment", rule)

    def _checked(self, fragment: CallDelta) -> tuple[str, str, str]:
        """Id, name and arguments of a piece; each is ``""`` where it is not told."""
        position: Any = fragment.position
        if type(position) is not int or position < 0:
            raise self._refused("bad_fragment", "CallDelta.position: expected an integer of 0 or more")
        if position and self._single:
            raise self._refused("several_calls", "expected one call, got another one")
        if position > len(self._positions):
            rule = f"CallDelta.position: expected at most {len(self._positions)}, got {position}"
            raise self._refused("bad_fragment", rule)
        told: list[str] = []
        for field in ("id", "name", "arguments"):
            value = getattr(fragment, field)
            if value is not None and type(value) is not str:
                raise self._refused("bad_fragment", f"CallDelta.{field}: expected str, got {type(value).__name__}")
            told.append(value or "")
        return told[0], told[1], told[2]

    def _take(self, position: int, id_: str, name: str) -> None:
        """Hold a piece against what its call told before."""
        if position == len(self._positions):
            self._positions.append(("", ""))
        known_id, known_name = self._positions[position]
        if id_ and (known_id not in ("", id_) or self._ids.setdefault(id_, position) != position):
            raise self._refused("call_conflict", f"expected one id for call {position} alone, got another")
        if not name.startswith(known_name) and name:  # a name may come in pieces, each with those before it
            raise self._refused("call_conflict", f"expected one name for call {position}, got another")
        if name != MALFORMED_CALL and not any(registered.startswith(name) for registered in self._names):
            raise self._unknown()
        self._positions[position] = (id_ or known_id, name or known_name)
        if position == 0 and name in self._names:
            self.call = name

    def finish(self, reply: ModelReply, /) -> T_co:
        """The value of the reply's calls.

        Raises:
            OutputRefused: ``incomplete``, ``refused``, ``unexpected_text``, ``no_call``, ``several_calls``,
                ``unknown_tool``, ``malformed_call`` with what was wrong as its feedback, or what ``build`` refuses.
        """
        require_completed(reply, self._transport)
        calls, text = reply.calls, reply.text
        if self._single:
            if text:
                raise self._refused("unexpected_text", "expected one call alone, got text")
            if not calls:
                raise self._refused("no_call", "expected one call, got none")
            if len(calls) > 1:
                raise self._refused("several_calls", f"expected one call, got {len(calls)}")
        for position, call in enumerate(calls):
            malformed = malformed_feedback(reply, position)
            if malformed is not None:
                rule = f"expected calls that can be read, got call {position} in a text that is none"
                raise OutputRefused("malformed_call", rule, transport=self._transport, feedback=malformed)
            if call.name not in self._names:
                raise self._unknown()
        self.call = calls[0].name if calls else None
        self.output_chars = len(text) + sum(len(call.arguments.text) for call in calls)
        return self._build(reply)

    def _unknown(self) -> OutputRefused:
        choices = "one of " + ", ".join(self._names) if self._names else "no call"
        return self._refused("unknown_tool", f"expected {choices}, got a call of another name")

    def _refused(self, code: str, rule: str) -> OutputRefused:
        return OutputRefused(code, rule, transport=self._transport)
