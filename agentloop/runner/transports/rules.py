"""The rules that all transports share: what they are made of, and which replies they take at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar, cast

from ...admission import pattern
from ...errors import InputError, OutputRefused
from ...limits import check_name
from ...messages import FunctionSpec, ModelReply
from ...tools import ArgumentsRefused, Tool, ToolSet

__all__ = ["declared_chars", "fitting", "require_completed", "require_id", "require_selections", "require_tools"]

T = TypeVar("T")

_WORD: Final = pattern(r"[a-z_]{1,32}\Z")


def require_id(kind: str, value: object) -> str:
    """The id of a transport: 1 to 128 characters.

    Raises:
        InputError: it is no such text.
    """
    check_name(f"{kind}.id", value)
    return cast(str, value)


def require_tools(kind: str, tools: ToolSet | Sequence[Tool]) -> ToolSet:
    """The tools of a transport as a set.

    Raises:
        InputError: there is none, or they make no set.
    """
    known = tools if isinstance(tools, ToolSet) else ToolSet(tools)
    if not len(known):
        raise InputError(f"{kind}.tools: expected at least one tool, got none")
    return known


def require_selections(kind: str, tools: ToolSet | Sequence[Tool]) -> ToolSet:
    """The tools of a transport that runs none: each resolves to a value (R184).

    Raises:
        InputError: as `require_tools`, or one of them has an effect.
    """
    known = require_tools(kind, tools)
    for member in known:
        if member.kind != "selection":
            raise InputError(f"{kind}.tools: expected selections (see @selection), got {member.name!r} with an effect")
    return known


def require_completed(reply: ModelReply, transport: str) -> None:
    """Refuse a reply that was cut off or refused; every transport does so before it looks at the rest.

    Raises:
        OutputRefused: ``incomplete`` or ``refused``.
    """
    ending = reply.termination
    if ending.kind == "refused" or reply.refusal is not None:
        by = "the model's refusal" if ending.kind != "refused" else "a filter's refusal"
        raise OutputRefused("refused", f"expected an answer, got {by}", transport=transport)
    if ending.kind != "completed":
        word = ending.reason if ending.reason is not None and _WORD().match(ending.reason) else "another word"
        rule = f"expected a reply that its model completed, got one that ended with {word}"
        raise OutputRefused("incomplete", rule, transport=transport)


def fitting(build: Callable[[], T], *, transport: str, where: str = "") -> T:
    """What ``build`` makes of a text, with every refusal in the words of a transport.

    Args:
        where: which text it is, when there are several.

    Raises:
        OutputRefused: the text does not fit; the rule holds nothing of it, the feedback may.
    """
    refused: OutputRefused
    try:
        return build()
    except (ArgumentsRefused, OutputRefused) as error:
        feedback = None if error.feedback is None else where + error.feedback
        refused = OutputRefused(error.code, where + error.rule, transport=transport, feedback=feedback)
    raise refused  # outside of the handler: the text of refused arguments may quote them


def declared_chars(specs: Iterable[FunctionSpec]) -> int:
    """Characters of tools as they are declared: name, description, parameters."""
    return sum(len(spec.name) + len(spec.description) + len(spec.parameters) for spec in specs)
