"""Characters that a server cut in two: JSON escapes half of a UTF-16 pair in one delta, half in the next."""

from __future__ import annotations

from typing import Any

from .fault import Fault

__all__ = ["Halves", "join_halves"]


def join_halves(text: str) -> str:
    """The same text with each pair of halves as one character.

    Raises:
        Fault: ``invalid_json``, when a half is alone.
    """
    if text.isascii():
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        raise Fault("invalid_json", "surrogates in pairs", "half a surrogate pair alone") from None


class Halves:
    """Holds back the half at the end of a text until the other half comes.

    Attributes:
        held: the halves that wait, by the text they belong to.
    """

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held: dict[Any, str] = {}

    def take(self, channel: Any, text: str) -> str:
        """The part of ``channel``'s text that consists of whole characters.

        Raises:
            Fault: ``invalid_json``, when a half is alone.
        """
        if not text:
            return text
        text = self.held.pop(channel, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self.held[channel] = text[-1]
            text = text[:-1]
        return join_halves(text)
