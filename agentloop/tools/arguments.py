"""From a model's argument text to the keyword arguments of a tool, or to words on why not.

Strict JSON, then the schema, then the typed decode. Nothing is filled in, converted, dropped or
repaired on the way (R19, R52-R54); a default fills a parameter that was not given, as it does in
any Python call. A tool may ask for one step between the first two, which converts some JSON types
(`coercion`); where the result is refused too, what the model wrote is judged. Three outcomes:

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
2**53, not ``-0``, whose sign no integer keeps, and not one that a float rounds to an integer. No other
type is ever taken for another.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from ..admission import parse
from ..errors import AdmissionError, InputError, ToolDefinitionError
from .exactness import difference, is_exactly, may_change
from .validator import SchemaMismatch, json_type

__all__ = ["Admitted", "Arguments", "ArgumentsRefused", "FEEDBACK_CHARS"]

FEEDBACK_CHARS: Final = 560
"""Ceiling of one feedback text on refused arguments."""

_ASK: Final = " Correct the arguments and call it again."
_NO_FIT: Final = "expected a value that fits, got another"
_RULES: Final = {
    "invalid_json": "expected one JSON text",
    "not_an_object": "expected one JSON object",
    "schema_mismatch": "expected a value that fits the schema, got another",
    "refined": "expected arguments that the checks of the tool take, got others",
}
_PLAIN: Final = functools.cache(
    lambda: re.compile(r"(?!Object contains|Invalid (?:enum )?value)[^'\"]*\Z")
)  # what msgspec says without quoting the value


class ArgumentsRefused(InputError):
    """Arguments that a tool does not take. It did not run.

    Attributes:
        code: ``invalid_json``, ``not_an_object`` or ``schema_mismatch``; ``refined`` where a check of a
            selection refused them.
        feedback: what the model shall read; never the arguments as a whole, up to 560 characters.
            It may name members that the model wrote.
        rule: what was expected and what came, for errors and logs: of the text it holds positions
            and the names that the schema declares, nothing else.
    """

    def __init__(self, code: str, feedback: str, rule: str = "") -> None:
        super().__init__(code, feedback, rule)
        self.code = code
        self.rule = rule or _RULES.get(code, _NO_FIT)
        room = FEEDBACK_CHARS - len(_ASK)
        self.feedback = (feedback if len(feedback) <= room else feedback[: room - 1] + "…") + _ASK

    def __str__(self) -> str:
        return self.feedback


class Admitted(NamedTuple):
    """Arguments that a tool takes.

    Attributes:
        arguments: what `Tool.invoke` takes.
        converted: what was converted on the way, as ``$.count: string to integer``; see `coercion`.
            Empty where the tool asks for no conversion.
    """

    arguments: dict[str, Any]
    converted: tuple[str, ...] = ()


class Arguments:
    """Admits JSON texts as values of one type: the argument texts of a tool, or a model's output.

    Args:
        tool: the tool's name, for errors.
        check: the schema check; made when first used, since making it takes about a millisecond.
        kind: the type to decode into, a struct where `admit` is used; None hands the parsed object
            on as it is.
        coerce: the schema whose types arguments are converted to before the check (see `coercion`), as
            admitted text; None converts nothing.
    """

    __slots__ = ("_check", "_compare", "_convert", "_decode", "_kind", "_make_check", "_own_code", "_tool")

    def __init__(
        self,
        tool: str,
        make_check: Callable[[], Callable[[Any], None]],
        kind: Any,
        coerce: str | None = None,
    ) -> None:
        self._tool, self._make_check, self._kind = tool, make_check, kind
        self._convert: Callable[[Any, str], Any] | None = None
        if coerce is not None:
            from .coercion import Coercion  # noqa: PLC0415  # few tools ask for it

            self._convert = Coercion(coerce).convert
        self._check: Callable[[Any], None] | None = None
        self._compare = self._own_code = False
        if kind is not None:
            self._compare, self._own_code = may_change(tool, kind)

    def admit(self, text: str) -> Admitted:
        """The keyword arguments, and what was converted; see the module's docstring.

        Args:
            text: as the model wrote it. "" and ``null`` mean no arguments, and are checked as ``{}``.

        Raises:
            ArgumentsRefused: the model may correct its arguments.
            ToolDefinitionError: the schema or a type of the tool is at fault.
        """
        value: Any = _parsed(text) if text else {}
        typed, converted = self._coerced({} if value is None else value, text)
        return Admitted(typed if self._kind is None else msgspec.structs.asdict(typed), converted)

    def take(self, text: str) -> Any:
        """The arguments as one value of the type, by the rules of `admit`, with nothing converted.

        Raises:
            ArgumentsRefused, ToolDefinitionError: as `admit`.
        """
        value = _parsed(text) if text else {}
        return self._checked({} if value is None else value, text)

    def decode(self, text: str) -> Any:
        """The value itself, of the type; ``""`` and ``null`` are no object here.

        Raises:
            ArgumentsRefused: the text is not one JSON object, or it does not fit.
            ToolDefinitionError: the schema or the type is at fault.
        """
        return self._checked(_parsed(text), text)

    def _coerced(self, value: Any, text: str) -> tuple[Any, tuple[str, ...]]:
        """The typed value, and what was converted: all that can be, or nothing."""
        if self._convert is not None:
            coerced = self._convert(value, text)
            if coerced.told:
                try:
                    return self._checked(coerced.value, text), coerced.told
                except ArgumentsRefused:
                    pass  # what the model wrote is what is spoken of
        return self._checked(value, text), ()

    def _checked(self, value: Any, text: str) -> Any:
        if type(value) is not dict:
            got = json_type(value)
            words = f"The arguments must be one JSON object, got {got}."
            raise ArgumentsRefused("not_an_object", words, f"expected one JSON object, got {got}")
        check = self._check
        if check is None:
            check = self._check = self._make_check()
        try:
            check(value)
        except SchemaMismatch as error:
            raise _mismatch(error.path, error.rule, error.outline) from None
        return value if self._kind is None else self._typed(value, self._kind, text)

    def _typed(self, value: dict[str, Any], kind: Any, text: str) -> Any:
        try:
            typed = msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            typed = self._integral(value, kind, error, text)
        except Exception as error:  # code of the tool's own classes
            raise self._fault(f"decoding its arguments raised {type(error).__name__}") from error
        if self._compare:
            path = difference(value, typed)
            if path is not None and self._own_code:
                raise self._fault(f"decoding its arguments changed {path}")
            if path is not None:
                rule = "expected a value that the tool's type holds exactly"
                raise _mismatch(path, rule, "expected values that the type holds exactly")
        return typed

    def _integral(self, value: dict[str, Any], kind: Any, error: msgspec.ValidationError, text: str) -> Any:
        """Take 3.0 for the integer 3 if that is all that stands in the way, and it changes no value."""
        said = str(error)
        if "got `float`" in said and not _is_rounded(text):
            try:
                typed = msgspec.convert(value, kind, strict=False, str_keys=True)
            except msgspec.ValidationError:
                pass  # the first error says it
            else:
                if difference(value, typed) is None:
                    return typed
        rule, _, path = said.partition(" - at ")
        raise _mismatch(path.strip("`") or "$", rule.replace("`", ""), _outline(error)) from None

    def _fault(self, rule: str) -> ToolDefinitionError:
        return ToolDefinitionError("bad_tool", self._tool, rule)


def _is_rounded(text: str) -> bool:
    """Whether a number of a JSON text is read as an integer that it is not, as 9007199254740993.0 or 1e-400."""
    rounded = False

    def look(literal: str) -> None:
        nonlocal rounded
        value = float(literal)
        rounded = rounded or (value.is_integer() and not is_exactly(literal, value))

    json.loads(text, parse_float=look, parse_int=str)
    return rounded


def _parsed(text: str) -> Any:
    try:
        return parse(text)
    except AdmissionError as error:
        at = "" if error.position is None else f" at character {error.position}"
        where = at + ("" if error.path == "$" else f" ({error.path[:120]})")
        words = f"The arguments are not one JSON text{where}: {error.rule}."
        raise ArgumentsRefused("invalid_json", words, f"expected one JSON text{at}: {error.rule}") from None


def _mismatch(path: str, rule: str, outline: str) -> ArgumentsRefused:
    where = "The arguments do not fit" if path == "$" else f"The argument {path} does not fit"
    return ArgumentsRefused("schema_mismatch", f"{where}: {rule}.", outline)


def _outline(error: msgspec.ValidationError) -> str:
    """What msgspec said, and not what a class of the host's own said, which may quote the value."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:  # raised in Python, so not by msgspec
        return f"$: {_NO_FIT}"
    own = "" if error.__cause__ is None else str(error.__cause__)
    said, mark, path = str(error).removeprefix(own).rpartition(" - at `")
    if not mark:
        said, path = path, "$"
    if error.__cause__ is not None or not _PLAIN().match(said):
        said = _NO_FIT
    place = path.rstrip("`") if path.startswith("$") and str(error).startswith(own) else "$"
    return f"{place}: {said[:1].lower()}{said[1:]}".replace("`", "")
