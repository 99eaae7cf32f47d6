from __future__ import annotations

import pytest

from agentloop.cli.inert import clean, one_line


@pytest.mark.parametrize(
    "steers",
    ["\x00", "\x07", "\x1b", "\r", "\x7f", "\x84", "\x9b", "\u202a", "\u202e", "\u2066", "\u2069", "\udce9"],
)
def test_what_steers_a_terminal_is_replaced(steers: str) -> None:
    assert clean(f"a{steers}[2Jb") == one_line(f"a{steers}[2Jb") == "a\ufffd[2Jb"


def test_lines_and_tabs_stay_and_other_letters_too() -> None:
    assert clean("a\tb\ncé\u05d0\u200f👍") == "a\tb\ncé\u05d0\u200f👍"


def test_one_line_begins_no_other() -> None:
    assert one_line("a\nend\tb") == "a end b"
