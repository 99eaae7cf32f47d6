"""The body text of one reply, split into what a person sees and the calls that are written in it.

Fed with the text as it streams. What it gives does not depend on where the text was cut; the cost is linear,
and held back is only what may be the beginning of a tag, or white space that may stand next to one.

The rules, none of which guesses:

- A tag is a tag wherever it stands in the body: in a sentence and in a code fence too. Reasoning is not looked at.
- A call goes from its opening tag to the next closing tag. Where calls are JSON a closing tag inside a string
  of it is text. Once the JSON breaks it counts, whatever quotation marks there are: at a control character in a
  string (a line break, mostly), or at a quotation mark where no string can begin (after a word, or another string).
- A closing tag alone, and whatever the parser refuses, is a malformed call. One without its closing tag goes
  to the end of the reply, and the parser decides whether it is complete.
- White space next to a tag is not text; between two pieces of text the first run of it stays, or a line break stands
  where there is none: so what is visible holds no tag, not even one put together of two pieces.
"""

from __future__ import annotations

import re
from typing import Any, Final

from ..admission import pattern
from ..messages.parts import JsonText, ToolCall
from .call_text import MALFORMED_CALL, CallText, CallTextRefused, read_calls
from .written import WrittenText

__all__ = ["TaggedText"]

_SPACE: Final = " \t\r\n"
_IN_STRING: Final = pattern(r'(?:[^"\\\x00-\x1f]++|\\[^\x00-\x1f])*+')
_OUTSIDE: Final = pattern(r'"?+(?:[][{},: \t\r\n]++|-?+[0-9][-+.eE0-9]*+|true|false|null)*+')
"""What can stand between two strings of a JSON text, with the closing quotation mark of the first."""


class TaggedText:
    """Splits the text of one reply.

    Attributes:
        calls: those that are complete, in order; ids are made of their positions.
        written: the whole text, in pieces. written_chars: its characters.
        fresh: visible text that was not taken, in pieces.
        text_at: how many calls began before the visible text.
        ended: nothing comes any more.
    """

    __slots__ = (
        "_body",
        "_broken",
        "_call_text",
        "_closing",
        "_end",
        "_faults",
        "_gap",
        "_held",
        "_inside",
        "_past_call",
        "_sealed",
        "_space",
        "_string",
        "_tag",
        "_writing",
        "calls",
        "ended",
        "fresh",
        "text_at",
        "written",
        "written_chars",
    )

    def __init__(self, call_text: CallText) -> None:
        opening, closing = re.escape(call_text.opening), re.escape(call_text.closing)
        self._call_text = call_text
        self._tag = re.compile(f"{opening}|{closing}")
        self._closing = re.compile(closing)
        self._end = re.compile(f'"|{closing}')
        self._held = ""  # what may be the beginning of a tag, or of an escape; shorter than a tag
        self._inside = False  # after an opening tag
        self._string = False  # in a string of its JSON
        self._broken = False  # it is no JSON, or broken, so that quotation marks say nothing
        self._gap: list[str] = []  # its JSON since the last string, with the end of that one
        self._body: list[str] = []  # of the call, so far
        self.fresh: list[str] = []
        self._space: list[str] = []  # white space that may turn out to stand next to a tag
        self._sealed = False  # a tag came after it: what white space follows is dropped
        self._past_call = False  # a tag came after the last visible text
        self._writing = WrittenText()
        self._faults: dict[str, str] = {}
        self.calls: list[ToolCall] = []
        self.written: list[str] = []
        self.written_chars = 0
        self.text_at: int | None = None
        self.ended = False

    def feed(self, text: str) -> None:
        """Take the next piece of the text.

        Raises:
            InputError: ``call_text`` answered with what are no calls; the text cannot be read on.
        """
        self.written.append(text)
        self.written_chars += len(text)
        data, at = self._held + text, 0
        self._held = ""
        while at < len(data):
            at = self._read_call(data, at) if self._inside else self._read_text(data, at)

    def end(self) -> None:
        """The text has ended: what was held back is what it is.

        Raises:
            InputError: as `feed`.
        """
        if self.ended:
            return
        self.ended = True
        held, self._held = self._held, ""
        if self._inside:
            self._body.append(held)
            self._settle(closed=False)
        else:
            self._see(held)
        if not self._past_call:
            self._show(self._space)
        self._space.clear()

    def take(self) -> str:
        """The visible text since it was taken last."""
        text = "".join(self.fresh)
        self.fresh.clear()
        return text

    def native(self) -> dict[str, Any] | None:
        """What of the reply its text and calls do not hold; None where nothing was written between tags."""
        if not self.calls:
            return None
        kept: dict[str, Any] = {"written": self._writing.build()}
        return {**kept, "faults": self._faults} if self._faults else kept

    def _read_text(self, data: str, at: int) -> int:
        """Read visible text up to a tag and past it, or to the end; where it came to."""
        found = self._tag.search(data, at)
        if found is None:
            opening, closing = self._call_text.opening, self._call_text.closing
            return self._hold(data, at, _begun(data, at, opening, closing))
        self._see(data[at : found.start()])
        if not self._past_call:
            self._writing.add("".join(self._space))
        self._writing.add(found[0])
        self._past_call = True
        self._sealed = bool(self._space)
        if found[0] == self._call_text.opening:
            self._inside = True
            self._broken = not self._call_text.json_strings
        else:
            opening = self._call_text.opening
            self._malformed("", f"{found[0]} stands where no {opening} is open, so there is no call before it.")
        return found.end()

    def _read_call(self, data: str, at: int) -> int:
        """Read on to the call's end and past it, or to the end of the data; where it came to."""
        begin = gap = at
        closing = self._call_text.closing
        while True:
            if self._string:
                matched = _IN_STRING().match(data, at)
                assert matched is not None, "it matches the empty string too"
                at = matched.end()
                if at == len(data) or (data[at] == "\\" and at + 1 == len(data)):
                    return self._hold(data, begin, at)
                self._string = False
                self._broken = data[at] != '"'
                gap = at
                at += 1
                continue
            found = (self._closing if self._broken else self._end).search(data, at)
            if found is None:
                end = _begun(data, at, closing)
                if not self._broken:
                    self._gap.append(data[gap:end])
                return self._hold(data, begin, end)
            at = found.end()
            if found[0] == closing:
                self._gap.clear()
                self._body.append(data[begin : found.start()])
                self._settle(closed=True)
                self._writing.add(closing)
                return at
            self._gap.append(data[gap : found.start()])
            self._string = _may_begin_string("".join(self._gap))
            self._broken = not self._string
            self._gap.clear()

    def _hold(self, data: str, begin: int, end: int) -> int:
        """Take the data up to ``end`` for what it is, and keep the rest until more has come."""
        if self._inside:
            self._body.append(data[begin:end])
        else:
            self._see(data[begin:end])
        self._held = data[end:]
        return len(data)

    def _see(self, text: str) -> None:
        """Take text that stands outside of tags."""
        core = text.strip(_SPACE)
        begin = len(text) - len(text.lstrip(_SPACE)) if core else len(text)
        lead = text[:begin]
        if self._past_call:
            self._writing.add(lead)
        if lead and not self._sealed:
            self._space.append(lead)
        if not core:
            return
        gap = self._space
        if self._past_call:
            gap = (gap or ["\n"]) if self.text_at is not None else []
            self.fresh += gap
            self._writing.skip(sum(map(len, gap)))
            gap = []
        if self.text_at is None:
            self.text_at = len(self.calls)
        self._show([*gap, core])
        rest = text[begin + len(core) :]
        self._space = [rest] if rest else []
        self._sealed = self._past_call = False

    def _show(self, texts: list[str]) -> None:
        """Take texts that are visible where they were written."""
        self.fresh += texts
        self._writing.show(sum(map(len, texts)))

    def _settle(self, *, closed: bool) -> None:
        """The text between the tags is complete: it is calls, or a malformed one."""
        text = "".join(self._body)
        self._body.clear()
        self._inside = False
        try:
            calls = read_calls(self._call_text, text, closed=closed)
        except CallTextRefused as refused:
            self._malformed(text, refused.feedback)
            return
        if any(call.name == MALFORMED_CALL for call in calls):
            self._malformed(text, f"What follows {self._call_text.opening} names no function.")
            return
        self._writing.add_call(text, [call.arguments for call in calls], first=len(self.calls))
        for call in calls:
            self._add(call.name, call.arguments)

    def _malformed(self, text: str, feedback: str) -> None:
        self._faults[str(len(self.calls))] = feedback
        self._writing.add_call(text, [text], first=len(self.calls))
        self._add(MALFORMED_CALL, text)

    def _add(self, name: str, arguments: str) -> None:
        self.calls.append(ToolCall(id=f"call_{len(self.calls)}", name=name, arguments=JsonText(text=arguments)))


def _may_begin_string(gap: str) -> bool:
    """Whether a string of a JSON text can begin after what stood since the last one; True where the JSON begins."""
    return gap.rstrip(_SPACE)[-1:] in "{[,:" and _OUTSIDE().fullmatch(gap) is not None


def _begun(data: str, at: int, *tags: str) -> int:
    """Where the longest end of ``data[at:]`` begins that a tag may begin with; its length where there is none."""
    for begin in range(max(at, len(data) - max(map(len, tags)) + 1), len(data)):
        rest = data[begin:]
        if any(tag.startswith(rest) for tag in tags):
            return begin
    return len(data)
