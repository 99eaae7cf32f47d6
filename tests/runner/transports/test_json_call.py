"""JSON in a text: which part is meant, and that it is never repaired."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import OutputRefused
from agentloop.messages import ModelOptions
from agentloop.runner import JsonCall, Stage
from agentloop.runner.transports.json_call import json_in
from agentloop.testing import reply
from agentloop.tools import selection
from agentloop.wire import OPENAI

PROSE = st.text(st.characters(codec="utf-8", exclude_characters="{}[]`~"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
CONTAINERS = st.lists(VALUES, max_size=3) | st.dictionaries(st.sampled_from(["a", "```", "}]"]), VALUES)


def no_json(text: str) -> str:
    with pytest.raises(OutputRefused) as caught:
        json_in(text)
    assert caught.value.code == "no_json"
    return caught.value.rule


def candidate(text: str) -> str | None:
    try:
        return json_in(text)
    except OutputRefused:
        return None


@given(before=PROSE, value=CONTAINERS, after=PROSE, indent=st.sampled_from([None, 1]))
def test_json_between_prose_is_found_as_it_is(before: str, value: object, after: str, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    assert json_in(before + text + after) == text


@given(
    before=st.text(st.characters(codec="utf-8", exclude_characters="`~"), max_size=20),
    value=CONTAINERS,
    marks=st.sampled_from(["```", "~~~", "````", "~~~~~", "  ```"]),
    word=st.sampled_from(["", "json", " JSON5 x", "{}"]),
    longer=st.sampled_from(["", "`", " ", "\t"]),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_one_fenced_block_is_the_candidate_whatever_stands_around_it(
    before: str, value: object, marks: str, word: str, longer: str, end: str
) -> None:
    text = json.dumps(value)
    closing = marks + (longer.replace("`", marks.strip()[0]))
    found = json_in(f"{before}\n{marks}{word}{end}{text}{end}{closing}{end}{{after}}")
    assert found.removesuffix("\r") == text


@given(st.text(st.sampled_from(list('{}[]`~\n\r a1",:')), max_size=60))
def test_a_candidate_is_a_piece_of_the_text_or_there_is_none(text: str) -> None:
    if (found := candidate(text)) is not None:
        assert found in text


@pytest.mark.parametrize("text", ["", "none", "42", '"text"', "}{", "][", "a ] b [", "[ }", "{ ]"])
def test_a_text_without_an_object_or_array_has_none(text: str) -> None:
    assert no_json(text) == "expected JSON in the text, got none"


def test_the_candidate_is_bounded_by_the_kind_that_begins_first() -> None:
    assert json_in("a {b} [c] } d ]") == "{b} [c] }"
    assert json_in("a [b] {c} ] d }") == "[b] {c} ]"


def test_of_several_fenced_blocks_none_is_guessed() -> None:
    assert no_json('```\n{"a": 1}\n```\n```\n{"a": 1}\n```') == "expected at most one fenced block, got 2"
    assert no_json('{"a": 1}\n~~~\n~~~\n```\n```\n').endswith("got 2")
    assert no_json('{"a": 1}\n```json\n{"a": 1}') == "expected a fenced block that is closed, got one that is not"
    assert no_json('```\n{"a": 1}\n```\n```json').endswith("got one that is not")


def test_what_only_looks_like_a_fence_is_none() -> None:
    assert json_in('```{"a": 1}```') == '{"a": 1}'
    assert json_in('    ```\n{"a": 1}\n    ```') == '{"a": 1}'
    assert json_in('``\n{"a": 1}\n``') == '{"a": 1}'
    assert json_in('~~~\n{"a": 1}\n```\n~~~') == '{"a": 1}\n```'
    assert json_in('````\n{"a": 1}\n```\n````') == '{"a": 1}\n```'
    assert json_in('{"a": "\\n```"}') == '{"a": "\\n```"}'


@selection
def pick(n: float, extra: dict[str, Any] = {}) -> tuple[float, dict[str, Any]]:  # noqa: B006
    """Pick "one"."""
    return n, extra


def test_the_instruction_declares_the_tools_and_counts_them_once() -> None:
    """(R185)"""
    interaction = JsonCall("choice", [pick]).prepare(Stage(stage_id="s", dialect=OPENAI))
    assert interaction.instruction is not None
    declared = interaction.instruction.splitlines()[1:]
    assert [json.loads(line)["tool"] for line in declared] == ["pick"]
    assert json.loads(declared[0])["description"] == 'Pick "one".'
    assert json.loads(declared[0])["input"] == json.loads(pick.spec.parameters)
    assert interaction.schema_chars == interaction.embedded_chars == len(declared[0])
    assert (interaction.options, interaction.tools, interaction.route) == (ModelOptions(), (), "json_text")


def test_the_input_reaches_the_selection_as_it_was_written() -> None:
    """No number is written anew on the way (R203)."""
    collector = JsonCall("choice", [pick]).prepare(Stage(stage_id="s", dialect=OPENAI)).create_response()
    text = '{"input": {"n": 1, "extra": {"a": 1.0, "b": -0.0, "c": 123456789012345678901234567890}}, "tool": "pick"}'
    got = collector.finish(reply(text=text))
    assert repr(got) == "(1.0, {'a': 1.0, 'b': -0.0, 'c': 123456789012345678901234567890})"


def test_the_instruction_says_a_description_in_its_own_letters() -> None:
    @selection(description='Wähle, was "süß" ist.')
    def sweet(name: str) -> str:
        return name

    asked = JsonCall("sweets", [sweet]).prepare(Stage(stage_id="s", dialect=OPENAI))
    assert asked.instruction is not None
    assert '"description":"Wähle, was \\"süß\\" ist."' in asked.instruction
