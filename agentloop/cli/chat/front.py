"""What a chat reads from and writes to, whatever that is."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol

__all__ = ["EDGE", "Front"]

EDGE: Final = "  | "
"""What each row of a text of others begins with, so that it does not pass for one of the chat."""


class Front(Protocol):
    """A person's side of a chat. All that it writes is made inert first.

    Between `begin` and `stands` or `withdrawn` is one attempt of the model. One task uses it.
    """

    async def read(self, prompt: str, *, remember: bool = False) -> str:
        """What the person says next, without the end of its line.

        Args:
            remember: whether it is something said, to be recalled later, or the answer to a question.

        Raises:
            EOFError: nothing more will come. InputError: what came is no text, or too long.
        """

    def line(self, text: str = "") -> None:
        """Lines of the chat itself."""

    def labelled(self, label: str, text: str, *, style: str = "dim") -> None:
        """One line with a label before it."""

    def quoted(self, text: str) -> None:
        """A text of others to be decided about: nothing of it is hidden, and each row of it is marked."""

    def document(self, text: str) -> None:
        """A text of the model, as Markdown where that can be shown."""

    def turn(self) -> AbstractContextManager[None]:
        """Around a turn: nothing is read meanwhile, and no attempt is left open after it."""

    def begin(self) -> None:
        """The model is asked."""

    def preview(self, text: str) -> None:
        """All that the attempt's text is by now."""

    def stands(self, text: str) -> None:
        """The attempt's text is a fact."""

    def withdrawn(self) -> None:
        """The attempt came to nothing: its text does not stand."""
