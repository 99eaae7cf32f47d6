"""Text as the answer, and the collector of texts."""

from __future__ import annotations

import pytest

from agentloop.errors import OutputRefused
from agentloop.messages import ModelOptions
from agentloop.runner import PLAIN_TEXT, Interaction, PlainText, Stage
from agentloop.runner.transports.text import TextCollector
from agentloop.testing import reply
from agentloop.tools import ArgumentsRefused
from agentloop.wire import OPENAI, CallDelta


def test_plain_text_adds_nothing_to_a_request() -> None:
    """(R185, R205)"""
    transport = PlainText()
    assert transport.id == PLAIN_TEXT == "core:plain-text"
    interaction: Interaction[str] = transport.prepare(Stage(stage_id="model", dialect=OPENAI))
    assert (interaction.route, interaction.options, interaction.tools) == ("text", ModelOptions(), ())
    assert (interaction.instruction, interaction.schema_chars) == (None, 0)


def test_a_text_collector_counts_what_it_takes_and_refuses_a_call_at_its_first_piece() -> None:
    """(R203)"""
    collector = TextCollector("t", str)
    collector.push("Hel")
    collector.push("")
    collector.push("lo 🙂")
    assert collector.output_chars == 7
    with pytest.raises(OutputRefused) as caught:
        collector.push(CallDelta(0, "call_1", "pick", ""))
    assert (caught.value.code, caught.value.transport) == ("unexpected_call", "t")


def test_what_was_taken_is_told_of_the_reply_once_it_is_finished() -> None:
    collector = TextCollector("t", str)
    collector.push("a preview that was longer")
    assert collector.finish(reply(text="short")) == "short"
    assert collector.output_chars == 5


def test_a_builder_that_refuses_says_so_in_the_name_of_the_transport() -> None:
    def build(text: str) -> str:
        raise ArgumentsRefused("schema_mismatch", f"it says {text}", "$.a: expected a number")

    with pytest.raises(OutputRefused) as caught:
        TextCollector("t", build).finish(reply(text="secret"))
    assert str(caught.value) == "schema_mismatch: $.a: expected a number (transport 't')"
