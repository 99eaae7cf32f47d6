"""Checks by JSON Schema draft-07, compiled by fastjsonschema; imported when the first one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NoReturn

import fastjsonschema

from ..admission import parse
from .schema_2020 import Fault

__all__ = ["draft7_check"]


class _NothingIsFetched(Mapping[str, Callable[[str], Any]]):
    """Stands for a handler of every URI scheme, so that the validator never opens one itself."""

    def __getitem__(self, scheme: str) -> Callable[[str], Any]:
        return _refuse_to_fetch

    def __contains__(self, scheme: object) -> bool:
        return True

    def __iter__(self) -> NoReturn:
        raise TypeError("expected a look-up by scheme")

    def __len__(self) -> int:
        return 0


def _refuse_to_fetch(_uri: str) -> NoReturn:
    raise fastjsonschema.JsonSchemaDefinitionException("expected no reference outside the schema")


@lru_cache(maxsize=512)
def draft7_check(rules: str) -> Callable[[Any], Fault | None]:
    """A function that says where and how a value does not fit, or None; it changes nothing.

    Kept for one text of rules, since generating its code takes about a millisecond.

    Raises:
        Exception: any, where no code can be made of the rules; the function too, where the code is at fault.
    """
    judge: Callable[[Any], Any] = fastjsonschema.compile(parse(rules), handlers=_NothingIsFetched(), use_default=False)

    def check(value: Any) -> Fault | None:
        try:
            judge(value)
        except fastjsonschema.JsonSchemaValueException as error:
            where = "$" + (error.name or "data")[4:]
            return where, error.rule or "", error.rule_definition, error.value, error.definition
        return None

    return check
