"""A choice as JSON in the text, for servers without tools; and how JSON is found in a text.

One rule says which part of a text is meant. It looks for no second candidate, and repairs nothing:

- If a line of the text opens a fenced block, there must be exactly one such block, closed, and its
  content is the candidate. A fence is a line of three or more backticks or tildes after at most
  three spaces, as CommonMark has it; any word may follow an opening one.
- Otherwise the candidate runs from the first ``{`` or ``[`` to the last ``}`` or ``]``, whichever
  closes that kind.

The candidate must be exactly one strict JSON text (`agentloop.admission.parse`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ...admission import parse
from ...errors import AdmissionError, OutputRefused
from ...messages import FunctionSpec
from ...tools import Tool, ToolSet
from ..transport import Interaction, Stage
from .rules import fitting, require_id, require_selections
from .text import TextCollector

__all__ = ["JsonCall", "json_in"]

_FENCE: Final = r" {0,3}(?P<marks>`{3,}(?=[^`]*\Z)|~{3,})(?P<word>(?s:.*))\Z"  # compiled when a text is read
_CLOSERS: Final = {"{": "}", "[": "]"}
_OPENER: Final = r"[{\[]"
_INSTRUCTION: Final = (
    "Answer with exactly one JSON object and nothing else:"
    ' {"tool": NAME, "input": OBJECT}. NAME is one of the tools below,'
    " and OBJECT fits its input schema. The tools, one a line:\n"
)


class _Choice(msgspec.Struct, forbid_unknown_fields=True):
    tool: str
    input: msgspec.Raw


def json_in(text: str) -> str:
    """The candidate in a text; see the module's docstring. Whether it is JSON is for its reader to say.

    Raises:
        OutputRefused: ``no_json``: there is no candidate, or more than one.
    """
    blocks, is_open = _blocks(text)
    if is_open:
        raise OutputRefused("no_json", "expected a fenced block that is closed, got one that is not")
    if len(blocks) > 1:
        raise OutputRefused("no_json", f"expected at most one fenced block, got {len(blocks)}")
    if blocks:
        return blocks[0]
    opener = re.search(_OPENER, text)
    end = -1 if opener is None else text.rfind(_CLOSERS[opener[0]])
    if opener is None or end < opener.start():
        raise OutputRefused("no_json", "expected JSON in the text, got none")
    return text[opener.start() : end + 1]


def _blocks(text: str) -> tuple[list[str], bool]:
    """The contents of the fenced blocks, and whether the last one is still open."""
    blocks: list[str] = []
    lines: list[str] = []
    marks = ""
    for line in text.split("\n"):
        fence = re.match(_FENCE, line.removesuffix("\r"))
        if fence is None:
            lines.append(line)
        elif not marks:
            marks, lines = fence["marks"], []
        elif fence["marks"].startswith(marks) and not fence["word"].strip(" \t"):
            blocks.append("\n".join(lines))
            marks = ""
        else:
            lines.append(line)
    return blocks, bool(marks)


class JsonCall:
    """One choice among several selections, written as ``{"tool": …, "input": {…}}`` in the text.

    The value is what the selection resolves to, from the very text of ``input``.

    Args:
        id: names it among the transports of a runner, 1 to 128 characters.
        tools: 1 to 32 selections; the instruction declares all of them.

    Raises:
        InputError: the id is no such text, there is no tool, or one has an effect.
    """

    def __init__(self, id: str, tools: ToolSet | Sequence[Tool]) -> None:
        self._id = require_id("JsonCall", id)
        self._tools = require_selections("JsonCall", tools)
        self._declarations = "\n".join(map(_declaration, self._tools.specs))

    @property
    def id(self) -> str:
        return self._id

    def prepare(self, stage: Stage, /) -> Interaction[object]:
        """An interaction whose instruction declares the tools."""
        stage_id = stage.stage_id
        return Interaction(
            create_response=lambda: TextCollector(self._id, lambda text: self._value(text, stage_id)),
            route="json_text",
            instruction=_INSTRUCTION + self._declarations,
            schema_chars=len(self._declarations),
            embedded_chars=len(self._declarations),
        )

    def _value(self, text: str, stage_id: str) -> object:
        candidate = json_in(text)
        choice = _choice(candidate)
        tool = self._tools.get(choice.tool)
        if tool is None:
            names = ", ".join(self._tools.names)
            raise OutputRefused("unknown_tool", f"$.tool: expected one of {names}, got another name")
        arguments = bytes(choice.input).decode()
        return fitting(lambda: tool.resolve(arguments, stage_id=stage_id), transport=self._id, where="in $.input: ")

    def __repr__(self) -> str:
        return f"<JsonCall {self._id!r}: {', '.join(self._tools.names)}>"


def _declaration(spec: FunctionSpec) -> str:
    name, description = (json.dumps(text, ensure_ascii=False) for text in (spec.name, spec.description))
    return f'{{"tool":{name},"description":{description},"input":{spec.parameters}}}'


def _choice(candidate: str) -> _Choice:
    """The two members of a choice; ``input`` as it was written, so that no number is written anew."""
    refused: OutputRefused
    try:
        value: Any = parse(candidate)
    except AdmissionError as error:
        at = "" if error.position is None else f" at character {error.position}"
        refused = OutputRefused("invalid_json", f"expected one JSON text{at}: {error.rule}")
    else:
        if type(value) is not dict:
            raise OutputRefused("not_an_object", "expected one JSON object, got another value")
        if value.keys() != {"tool", "input"} or type(value["tool"]) is not str:
            raise OutputRefused("schema_mismatch", "expected exactly the members tool, a string, and input")
        return msgspec.json.decode(candidate, type=_Choice)
    raise refused  # outside of the handler: a path in the first error may name a member of the text
