"""From a model's argument text to the keyword arguments of a tool, or to words on why not.

Strict JSON, then the schema, then the typed decode. Nothing is filled in, converted, dropped or
repaired on the way (R19, R52-R54); a default fills a parameter that was not given, as it does in
any Python call. Three outcomes:

- the arguments;
- `ArgumentsRefused`, whose ``feedback`` says which argument, what was expected and what came, so
  that the model can try again (R55, R57);
- `ToolDefinitionError`, which ends the run: the schema itself is at fault (R58), or a type of the
  tool changes what it decodes (R59).

A decode that changes nothing is what `agentloop.tools.exactness` sees to (R59). A difference is the
model's to mend where no code of the tool ran (an integer that no float holds, a time below the
microsecond, an item of a set given twice), and a fault of the tool where its own classes did it.

JSON has one number type, so ``3.0`` and ``3e0`` are the integer 3, and some providers write all
integers so. Where an ``int`` is wanted such a number is taken if it has exactly that value: up to
2**53, and not ``-0``, whose sign no integer keeps. No other type is ever taken for another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ..admission import parse
from ..errors import AdmissionError, InputError, ToolDefinitionError
from .exactness import difference, may_change
from .validator import SchemaMismatch, json_type

__all__ = ["Arguments", "ArgumentsRefused", "FEEDBACK_CHARS"]

FEEDBACK_CHARS: Final = 560
"""Ceiling of one feedback text on refused arguments."""

_ASK: Final = " Correct the arguments and call it again."


class ArgumentsRefused(InputError):
    """Arguments that a tool does not take. It did not run.

    Attributes:
        code: ``invalid_json``, ``not_an_object`` or ``schema_mismatch``; ``refined`` where a check of a
            selection refused them.
        feedback: what the model shall read; never the arguments as a whole, up to 560 characters.
    """

    def __init__(self, code: str, feedback: str) -> None:
        super().__init__(code, feedback)
        self.code = code
        room = FEEDBACK_CHARS - len(_ASK)
        self.feedback = (feedback if len(feedback) <= room else feedback[: room - 1] + "…") + _ASK

    def __str__(self) -> str:
        return self.feedback


class Arguments:
    """Admits the argument texts of one tool.

    Args:
        tool: the tool's name, for errors.
        check: the schema check; made when first used, since making it takes about a millisecond.
        kind: the struct to decode into; None hands the parsed object on as it is.
    """

    __slots__ = ("_check", "_compare", "_decode", "_kind", "_make_check", "_own_code", "_tool")

    def __init__(
        self, tool: str, make_check: Callable[[], Callable[[Any], None]], kind: type[msgspec.Struct] | None
    ) -> None:
        self._tool, self._make_check, self._kind = tool, make_check, kind
        self._check: Callable[[Any], None] | None = None
        self._compare = self._own_code = False
        if kind is not None:
            self._compare, self._own_code = may_change(tool, kind)

    def admit(self, text: str) -> dict[str, Any]:
        """The keyword arguments; see the module's docstring.

        Args:
            text: as the model wrote it. "" and ``null`` mean no arguments, and are checked as ``{}``.

        Raises:
            ArgumentsRefused: the model may correct its arguments.
            ToolDefinitionError: the schema or a type of the tool is at fault.
        """
        try:
            value = parse(text) if text else {}
        except AdmissionError as error:
            at = "" if error.position is None else f" at character {error.position}"
            at += "" if error.path == "$" else f" ({error.path[:120]})"
            raise ArgumentsRefused("invalid_json", f"The arguments are not one JSON text{at}: {error.rule}.") from None
        if type(value) is not dict:
            if value is not None:
                rule = f"The arguments must be one JSON object, got {json_type(value)}."
                raise ArgumentsRefused("not_an_object", rule)
            value = {}
        check = self._check
        if check is None:
            check = self._check = self._make_check()
        try:
            check(value)
        except SchemaMismatch as error:
            raise _mismatch(error.path, error.rule) from None
        return value if self._kind is None else self._typed(value, self._kind)

    def _typed(self, value: dict[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
        try:
            typed = msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            typed = self._integral(value, kind, error)
        except Exception as error:  # code of the tool's own classes
            raise self._fault(f"decoding its arguments raised {type(error).__name__}") from error
        if self._compare:
            path = difference(value, typed)
            if path is not None and self._own_code:
                raise self._fault(f"decoding its arguments changed {path}")
            if path is not None:
                raise _mismatch(path, "expected a value that the tool's type holds exactly")
        return msgspec.structs.asdict(typed)

    def _integral(self, value: dict[str, Any], kind: type[msgspec.Struct], error: msgspec.ValidationError) -> Any:
        """Take 3.0 for the integer 3 if that is all that stands in the way, and it changes no value."""
        text = str(error)
        if "got `float`" in text:
            try:
                typed = msgspec.convert(value, kind, strict=False, str_keys=True)
            except msgspec.ValidationError:
                pass  # the first error says it
            else:
                if difference(value, typed) is None:
                    return typed
        rule, _, path = text.partition(" - at ")
        raise _mismatch(path.strip("`") or "$", rule.replace("`", "")) from None

    def _fault(self, rule: str) -> ToolDefinitionError:
        return ToolDefinitionError("bad_tool", self._tool, rule)


def _mismatch(path: str, rule: str) -> ArgumentsRefused:
    where = "The arguments do not fit" if path == "$" else f"The argument {path} does not fit"
    return ArgumentsRefused("schema_mismatch", f"{where}: {rule}.")
