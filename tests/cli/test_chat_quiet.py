from __future__ import annotations

import io
import os
import select
from collections.abc import Iterator
from typing import TextIO

import pytest

from agentloop.cli.chat.quiet import drop_typed, unechoed

termios = pytest.importorskip("termios")


@pytest.fixture
def terminal() -> Iterator[tuple[int, TextIO]]:
    """What a person types at, and the terminal that a program reads."""
    keyboard, screen = os.openpty()
    with os.fdopen(screen) as stream:
        yield keyboard, stream
    os.close(keyboard)


def echoes(stream: TextIO) -> bool:
    return bool(termios.tcgetattr(stream.fileno())[3] & termios.ECHO)


def test_a_terminal_echoes_nothing_meanwhile_and_as_before_after_it(terminal: tuple[int, TextIO]) -> None:
    _, stream = terminal
    meanwhile = []

    def fails() -> None:
        with unechoed(stream):
            meanwhile.append(echoes(stream))
            raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        fails()
    assert (meanwhile, echoes(stream)) == ([False], True)


def test_what_was_typed_and_not_read_is_forgotten(terminal: tuple[int, TextIO]) -> None:
    keyboard, stream = terminal
    os.write(keyboard, b"y\n")
    assert select.select([stream], [], [], 5)[0]
    drop_typed(stream)
    assert not select.select([stream], [], [], 0)[0]


def test_what_is_no_terminal_is_left_alone() -> None:
    stream = io.StringIO("line")
    with unechoed(stream):
        drop_typed(stream)
    assert stream.read() == "line"
