"""What a reply needs to be continued and its common fields do not hold (R21).

Streams bring it in pieces; here the pieces become what the vendor would have sent in one message,
as canonical JSON text. Its keys are documented at `agentloop.messages.Native`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ..admission.canonical import canonical_text
from ..errors import AdmissionError
from ..messages.parts import Native
from .chunks import join_fields, thinking_text
from .fault import Fault, kind_of
from .surrogates import join_halves

__all__ = ["NativeParts", "details_text", "parts_thinking", "reasoning_text", "refusal_text"]

_TEXT_KEYS: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}


class _Run:
    """A piece of continuation material and the pieces of text that lengthen it."""

    __slots__ = ("fields", "key", "texts")

    def __init__(self, fields: dict[str, Any], key: str | None) -> None:
        self.fields = {name: value for name, value in fields.items() if name != key}
        self.key = key
        self.texts: list[str] = []

    def lengthen(self, fields: dict[str, Any], text: str) -> None:
        """Take the next piece: its text goes behind, other fields that are told replace."""
        self.fields.update({name: v for name, v in fields.items() if name != self.key and v not in (None, "")})
        self.texts.append(text)

    def build(self) -> dict[str, Any]:
        """The whole, with its text joined."""
        if self.key is None:
            return self.fields
        text = join_halves("".join(self.texts))
        is_thinking_part = self.fields.get("type") == "thinking" and self.key == "thinking" and self.fields.get(_PARTS)
        value = [{"type": "text", "text": text}] if is_thinking_part else text
        return {**{name: v for name, v in self.fields.items() if name != _PARTS}, self.key: value}


_PARTS: Final = "\0parts"  # marks a thinking part whose text is sent as parts; no vendor's field name


class NativeParts:
    """Collects continuation material in the order in which it came.

    Attributes:
        reasoning_content, reasoning, refusal: pieces of text.
        has_parts: whether content came as parts; then plain text belongs between them.
    """

    __slots__ = ("_blocks", "_content", "_details", "_extras", "has_parts", "reasoning", "reasoning_content", "refusal")

    def __init__(self) -> None:
        self.reasoning_content: list[str] = []
        self.reasoning: list[str] = []
        self.refusal: list[str] = []
        self._details: list[_Run] = []
        self._content: list[_Run] = []
        self._blocks: list[_Run] = []
        self.has_parts = False
        self._extras: dict[str, Any] = {}

    def add_parts(self, parts: list[dict[str, Any]], *, before: list[str]) -> None:
        """Content that came as parts; ``before`` is all text of the reply before the first of them."""
        if not self.has_parts:
            self.has_parts = True
            self.add_text("".join(before))
        for part in parts:
            kind = part.get("type")
            if kind == "thinking":
                as_parts = type(part.get("thinking")) is list
                _extend(self._content, {**part, _PARTS: as_parts}, "thinking", thinking_text(part), ("type",))
            elif kind == "text":
                _extend(self._content, part, "text", part.get("text") or "", ("type",))
            else:
                self._content.append(_Run(part, None))

    def add_text(self, text: str) -> None:
        """Plain body text, which only counts here where the reply also has parts."""
        if self.has_parts and text:
            _extend(self._content, {"type": "text"}, "text", text, ("type",))

    def add(self, details: list[dict[str, Any]], extras: dict[str, Any]) -> None:
        """Reasoning details, and other continuation material by its key."""
        for detail in details:
            key = _TEXT_KEYS.get(str(detail.get("type")))
            text = detail.get(key) if key else None
            if key and isinstance(text, str | None):
                _extend(self._details, detail, key, text or "", ("type", "index"))
            else:
                self._details.append(_Run(detail, None))
        blocks = extras.get("thinking_blocks")
        if type(blocks) is list:
            for block in blocks:
                self._add_block(block)
            extras = {name: value for name, value in extras.items() if name != "thinking_blocks"}
        join_fields(self._extras, extras)

    def _add_block(self, block: Any) -> None:
        """A thinking block grows until its signature has come."""
        if type(block) is not dict:
            raise Fault("bad_shape", "thinking_blocks: objects", kind_of(block))
        text = block.get("thinking")
        if not isinstance(text, str):
            self._blocks.append(_Run(block, None))
        elif self._blocks and self._blocks[-1].fields.get("signature"):
            self._blocks.append(_Run(block, "thinking"))
            self._blocks[-1].texts.append(text)
        else:
            _extend(self._blocks, block, "thinking", text, ("type",))

    def build(self, calls: dict[str, dict[str, Any]], call_text: dict[str, Any] | None = None) -> Native:
        """The finished supplement.

        Args:
            calls: the unknown fields of calls by their place in the reply.
            call_text: what the model wrote, where calls are text.

        Raises:
            Fault: ``bad_shape``, when something in it cannot be kept as JSON.
        """
        data: dict[str, Any] = {
            "reasoning_content": "".join(self.reasoning_content),
            "reasoning": "".join(self.reasoning),
            "refusal": "".join(self.refusal),
            "reasoning_details": [run.build() for run in self._details],
            "content": [run.build() for run in self._content] if self.has_parts else [],
            "thinking_blocks": [run.build() for run in self._blocks],
            "calls": calls,
            "call_text": call_text,
            **self._extras,
        }
        kept = {key: value for key, value in data.items() if value}
        if not kept:
            return _NOTHING
        try:
            return Native(data=canonical_text(kept))
        except AdmissionError as error:
            raise Fault("bad_shape", "continuation material that can be kept", f"{error.path}: {error.rule}") from None


_NOTHING: Final = Native()


def _extend(runs: list[_Run], fields: dict[str, Any], key: str, text: str, same: tuple[str, ...]) -> None:
    """Lengthen the last run when it is of the same kind, else begin one."""
    last = runs[-1] if runs else None
    if last is None or last.key != key or any(last.fields.get(name) != fields.get(name) for name in same):
        runs.append(_Run(fields, key))
        runs[-1].texts.append(text)
    else:
        last.lengthen(fields, text)


def parts_thinking(parts: list[dict[str, Any]]) -> str:
    """The reasoning in content parts."""
    return "".join(thinking_text(part) for part in parts if part.get("type") == "thinking")


def details_text(details: list[dict[str, Any]]) -> str:
    """The reasoning in reasoning details."""
    texts = [item.get(_TEXT_KEYS.get(str(item.get("type")), "")) for item in details]
    return "".join(text for text in texts if type(text) is str)


def reasoning_text(native: Native) -> str:
    """The reasoning in a reply's supplement, once, whichever fields carry it."""
    data = msgspec.json.decode(native.data)
    told = max((str(data.get(key) or "") for key in ("reasoning_content", "reasoning")), key=len)
    return told or parts_thinking(data.get("content", [])) or details_text(data.get("reasoning_details", []))


def refusal_text(native: Native) -> str:
    """The refusal in a reply's supplement, ``""`` when there is none."""
    return str(msgspec.json.decode(native.data).get("refusal", ""))
