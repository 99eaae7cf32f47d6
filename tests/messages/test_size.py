"""How much a model has to read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InputError
from agentloop.messages import (
    ImagePart,
    Message,
    ModelExchange,
    SystemMessage,
    Text,
    TextContent,
    TextPart,
    ToolFeedback,
    UserMessage,
    messages_chars,
    text_chars,
)
from tests.messages.values import call, messages, reply

IMAGE = ImagePart(url="https://example.org/a.png")


@pytest.mark.parametrize(
    ("message", "chars"),
    [
        (SystemMessage(content="Be brief."), 9),
        (UserMessage(content=""), 0),
        (UserMessage(content="naïve 🙂"), 7),
        (UserMessage(content=(TextPart(text="what is"), IMAGE, TextPart(text="this?"))), 12),
        (UserMessage(content=(IMAGE,)), 0),
        (ModelExchange(reply=reply(Text(text="yes"), Text(text="no"))), 5),
    ],
)
def test_text_is_counted_in_code_points_and_images_count_nothing(message: Message, chars: int) -> None:
    assert text_chars(message) == chars


def test_an_exchange_counts_texts_names_raw_arguments_and_feedback() -> None:
    """Neither ids nor what is kept for the provider are text that a host can shorten."""
    asked = reply(
        Text(text="Let me see."), call("c1", "read", '{ "a": 1 }'), native={"reasoning_content": "long thought"}
    )
    answer = ToolFeedback(tool_call_id="c1", status="ok", content=(TextContent(text="ab"), TextContent(text="cde")))
    assert text_chars(ModelExchange(reply=asked, feedback=(answer,))) == 11 + 4 + 10 + 5


@given(st.lists(messages, max_size=6), st.integers(0, 6))
def test_the_parts_of_a_conversation_count_as_much_as_the_whole(said: list[Message], cut: int) -> None:
    assert messages_chars(said) == messages_chars(said[:cut]) + messages_chars(said[cut:]) == sum(map(text_chars, said))


def test_what_is_no_message_is_refused_by_its_type() -> None:
    with pytest.raises(InputError, match="expected SystemMessage, UserMessage or ModelExchange, got str"):
        text_chars("hi")  # type: ignore[arg-type]
