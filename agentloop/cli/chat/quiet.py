"""A terminal that echoes nothing for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

try:
    import termios
except ImportError:  # not on Windows
    termios = None  # type: ignore[assignment]

__all__ = ["unechoed"]


@contextmanager
def unechoed(stream: TextIO | Any) -> Iterator[None]:
    """Keep what is typed off the screen, where something else writes; Ctrl-C stays what it is.

    Does nothing where ``stream`` is no terminal, or the platform has no such setting.
    """
    if termios is None or not stream.isatty():
        yield
        return
    number = stream.fileno()
    before = termios.tcgetattr(number)
    quiet = termios.tcgetattr(number)
    quiet[3] &= ~termios.ECHO
    termios.tcsetattr(number, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
