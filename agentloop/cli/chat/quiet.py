"""A terminal that echoes nothing for a while, and what was typed at it too early."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

__all__ = ["drop_typed", "unechoed"]


@contextmanager
def unechoed(stream: TextIO | Any) -> Iterator[None]:
    """Keep what is typed off the screen, where something else writes.

    Ctrl-C interrupts as before, but the terminal does not drop what is being shown, of which the cursor's place
    is reckoned, nor what was typed ahead. Does nothing where ``stream`` is no terminal, or the platform has no
    such setting.
    """
    if termios is None or not stream.isatty():
        yield
        return
    number = stream.fileno()
    before = termios.tcgetattr(number)
    quiet = termios.tcgetattr(number)
    quiet[3] = quiet[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(number, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def drop_typed(stream: TextIO | Any) -> None:
    """Forget what was typed and not read yet. Does nothing where `unechoed` does nothing."""
    if termios is not None and stream.isatty():
        termios.tcflush(stream.fileno(), termios.TCIFLUSH)
