from __future__ import annotations

import pytest

from agentloop.cli.chat.slash import COMMANDS, Slash, choice_of, read_slash, said


@pytest.mark.parametrize(
    ("line", "slash"),
    [
        ("/help", Slash("help", "", False)),
        ("/save  a file.md ", Slash("save", "a file.md", False)),
        ("/save! a.md", Slash("save", "a.md", True)),
        ("/", Slash("", "", False)),
        ("//etc", None),
        (" /help", None),
        ("say /help", None),
        ("", None),
    ],
)
def test_a_line_that_begins_with_a_slash_names_a_command(line: str, slash: Slash | None) -> None:
    assert read_slash(line) == slash


def test_two_slashes_begin_a_text_with_one() -> None:
    assert said("//etc/passwd") == "/etc/passwd"
    assert said("a // b") == "a // b"


@pytest.mark.parametrize(
    ("line", "choice"),
    [
        ("y", ("yes", "")),
        ("YES", ("yes", "")),
        (" n too dear ", ("no", "too dear")),
        ("do it again", ("done", "it again")),
        ("discard", ("discard", "")),
        ("d", None),  # done or discard
        ("", None),
        ("yess", None),
        ("maybe", None),
    ],
)
def test_a_choice_is_a_word_or_its_first_letters(line: str, choice: tuple[str, str] | None) -> None:
    words = ("yes", "no", "done", "discard")
    assert choice_of(line, words) == choice


def test_a_word_wins_over_a_longer_one() -> None:
    assert choice_of("no", ("none", "no")) == ("no", "")


def test_the_commands_are_those_of_a_chat() -> None:
    assert list(COMMANDS) == ["help", "tools", "budget", "save", "resume", "undo", "new", "quit"]
