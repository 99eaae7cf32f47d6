from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentloop.cli.chat.markdown import inert_markdown

STYLES = re.compile(r"\x1b\[[0-9;]*m")
STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
PIECES = st.sampled_from(
    [
        *(
            "# ",
            "> ",
            "- ",
            "1. ",
            "**",
            "_",
            "`",
            "```\n",
            "```python\n",
            "|",
            "|-|-|\n",
            "\n",
            "\n\n",
            "[",
            "](",
            ")",
        ),
        *("![", "<b>", "</kbd>", "<div>\n", "<!--", "&#8238;", "&#13;", "&#12;", "&#27;", "&rlm;", "\\", "    ", "~~"),
        *(
            "<http://a.b>",
            "word ",
            "\u65e5\u672c",
            "\x1b]0;t\x07",
            "\x1b[31m",
            "\u202e",
            "\x9b2J",
            "\t",
            "[a]: u 't'\n",
        ),
    ]
)


def shown(text: str, *, width: int = 60) -> str:
    """What a terminal of that width gets."""
    out = io.StringIO()
    Console(file=out, force_terminal=True, color_system="truecolor", width=width).print(inert_markdown(text))
    return out.getvalue()


def words(text: str, *, width: int = 60) -> str:
    """The same without colours."""
    return STYLES.sub("", shown(text, width=width))


@given(st.lists(PIECES, max_size=30).map("".join), st.sampled_from([1, 4, 12, 80]))
def test_whatever_a_model_writes_only_colours_reach_the_terminal(text: str, width: int) -> None:
    assert not STEERS.search(words(text, width=width))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("&#8238;evil", "\ufffdevil"),
        ("[a&#8238;b](http://x/&#8238;)", "a\ufffdb (http://x/"),
        ("![a&#12;b](u)", "(u)"),
        ("`a\x1b[2Jb`", "a\ufffd[2Jb"),
        ("```py\x1b[2J\na\x9b2J\n```", "a\ufffd2J"),
        ("# a\x1b]0;title\x07", "a\ufffd]0;title\ufffd"),
        ("| a\x1b[1A | b |\n|-|-|\n| c&#12; | d |", "a\ufffd[1A"),
        ('[a](http://x "ti\x1b[2Jtle")', "a (http://x)"),
        ("<b\x1b[2J>", "<b\ufffd[2J>"),
    ],
)
def test_what_steers_is_inert_wherever_it_stands(text: str, part: str) -> None:
    got = words(text)
    assert not STEERS.search(got)
    assert part in got


@pytest.mark.parametrize(
    "scheme", ["http://example.org/a", "javascript:alert(1)", "data:text/html,x", "file:///etc/passwd"]
)
def test_an_address_is_printed_and_never_a_link_of_the_terminal(scheme: str) -> None:
    for text in (f"[see]({scheme})", f"![see]({scheme})", f"<{scheme}>", f"[see][1]\n\n[1]: {scheme}"):
        assert "\x1b]8" not in shown(text)
        assert scheme in words(text)


def test_html_and_pictures_are_shown_as_they_were_written() -> None:
    got = words("a <b>bold</b> </kbd> ![alt](pic.png)\n\n<div>\nblock\n</div>\n")
    for part in ("<b>bold</b>", "</kbd>", "alt (pic.png)", "<div>", "block", "</div>"):
        assert part in got


def test_the_markup_of_the_library_is_not_read() -> None:
    assert "[red]a[/red] [link=http://x]b[/link] :smile:" in words("[red]a[/red] [link=http://x]b[/link] :smile:")


def test_nothing_is_left_out_that_is_nested_too_deeply() -> None:
    assert "the end" in words("> " * 50 + "the end")
    assert "x59" in words("".join("  " * level + f"- x{level}\n" for level in range(60)))


def test_a_table_leaves_nothing_out_where_it_is_too_wide() -> None:
    address = "http://example.org/" + "a" * 50
    narrow = words(f"| one | two |\n|-|-|\n| {address} | b |\n", width=30)
    assert "".join(narrow.split()).count("a") == address.count("a")
    wide = "|".join(f"c{at}" for at in range(40))
    assert "c39" in words(f"|{wide}|\n|{'-|' * 40}\n|{wide}|", width=40)


def test_markdown_is_markdown() -> None:
    assert "\x1b[1m" in shown("**bold**")
    assert "**" not in shown("**bold**")
