"""A workflow as a Mermaid flowchart: valid whatever it is called, and with the way that was taken."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.errors import InputError
from agentloop.testing import ScriptedProvider
from tests.workflow.flows import END, Draft, flow, node

TEXT = r'"(?:[^"#;<>`\[\]{}|\\*_~&$%@^\x00-\x1f]|#\d+;)+"'
LINES = [
    r"flowchart TD",
    rf"  (?:begin|done)\(\[{TEXT}\]\)",
    rf"  n\d+(?:\[{TEXT}\]|\{{\{{{TEXT}\}}\}})",
    rf"  (?:begin|n\d+) (?:-->|-\.->)(?:\|{TEXT}\|)? (?:done|n\d+)",
    r"  linkStyle \d+(?:,\d+)* stroke:#d33,stroke-width:3px",
    r"  classDef taken stroke:#d33,stroke-width:3px",
    r"  class n\d+(?:,n\d+)* taken",
]
"""What a line of a chart may be, written from the language's documentation."""


def check(chart: str) -> list[str]:
    """The chart's lines, each of a known form; an edge that is styled is there."""
    assert chart.endswith("\n")
    lines = chart.removesuffix("\n").split("\n")
    assert lines[0] == "flowchart TD"
    for line in lines:
        assert any(re.fullmatch(form, line) for form in LINES), line
    edges = [line for line in lines if "->" in line.split('"')[0]]
    for line in lines:
        if "linkStyle" in line:
            assert max(int(one) for one in line.split()[1].split(",")) < len(edges)
    return lines


def good(state: Draft) -> bool:
    return state.tries > 1


async def count(state: Draft, context: al.NodeContext) -> dict[str, Any]:
    if state.topic == "fail":
        raise ValueError
    return {"tries": state.tries + 1}


WORKFLOW = flow(
    node("draft", count, al.Route(to="end"), provides=("tries",), on_error="sorry"),
    node(
        "end",
        None,
        al.Route(complete=True, when=good),
        al.Route(to="draft", label='again, "please"'),
        starts_round=True,
    ),
    node("sorry", None, al.Route(complete=False)),
)

PLAIN = """\
flowchart TD
  begin(["start"])
  done(["complete"])
  n0["draft: The draft"]
  n1{{"end: The end"}}
  n2["sorry: The sorry"]
  begin --> n0
  n0 --> n1
  n0 -.->|"on error"| n2
  n1 -->|"good"| done
  n1 -->|"again, #34;please#34;"| n0
  n2 --> done
"""


def test_the_chart_has_nodes_routes_guards_and_errors() -> None:
    assert WORKFLOW.to_mermaid() == PLAIN
    check(PLAIN)


async def test_the_way_that_was_taken_is_marked() -> None:
    engine = al.Engine(WORKFLOW)
    assert await engine.run(Draft()) is True
    lines = check(WORKFLOW.to_mermaid(engine.journal))
    assert [line for line in lines if line not in PLAIN] == [
        '  n0 -->|"2 times"| n1',
        "  linkStyle 0,1,3,4 stroke:#d33,stroke-width:3px",
        "  classDef taken stroke:#d33,stroke-width:3px",
        "  class n0,n1 taken",
    ]


async def test_the_way_of_an_error_is_marked() -> None:
    engine = al.Engine(WORKFLOW)
    assert await engine.run(Draft(topic="fail")) is False
    lines = check(WORKFLOW.to_mermaid(engine.journal))
    assert lines[-3:] == [
        "  linkStyle 0,2,5 stroke:#d33,stroke-width:3px",
        "  classDef taken stroke:#d33,stroke-width:3px",
        "  class n0,n2 taken",
    ]


async def test_of_several_runs_the_newest_of_this_workflow_is_marked() -> None:
    journal = al.Journal()
    other = al.define_workflow("other", state=Draft, nodes=[node("draft")])
    runner = al.ModelRunner(ScriptedProvider([]), observers=[journal])
    async with runner:
        engine, beside = al.Engine(WORKFLOW, model_runtime=runner), al.Engine(other, model_runtime=runner)
        await engine.run(Draft())
        await engine.run(Draft(topic="fail"))
        await beside.run(Draft())
    assert len(journal.routes) == 7
    assert "  linkStyle 0,2,5 " in WORKFLOW.to_mermaid(journal)
    assert "  linkStyle 0,1 " in other.to_mermaid(journal)


def test_a_journal_without_a_run_marks_nothing() -> None:
    assert WORKFLOW.to_mermaid(al.Journal()) == PLAIN
    with pytest.raises(InputError, match="to_mermaid: expected a Journal or None, got int"):
        WORKFLOW.to_mermaid(3)  # type: ignore[arg-type]


async def test_the_way_through_another_workflow_of_the_same_name_is_not_drawn() -> None:
    engine = al.Engine(flow(node("other")))
    await engine.run(Draft())
    assert WORKFLOW.to_mermaid(engine.journal) == PLAIN


def test_a_guard_without_a_name_and_one_that_is_an_object_are_labelled() -> None:
    class Choice:
        def __call__(self, state: Draft) -> bool:
            return True

    for guard in (lambda state: True, Choice()):
        chart = flow(node("a", None, al.Route(complete=1, when=guard), *END)).to_mermaid()
        assert '  n0 -->|"when"| done' in check(chart)


def test_long_and_empty_texts_stay_one_label() -> None:
    chart = flow(al.Node("a" * 128, "b" * 500, routes=END)).to_mermaid()
    label = check(chart)[3]
    assert len(label) < 220
    assert label.endswith('b#8230;"]')
    assert '  n0["x"]' in check(flow(al.Node("x", "", routes=END)).to_mermaid())
    assert '  n0["#32;"]' in check(flow(al.Node(" \n", "", routes=END)).to_mermaid())


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
hard = st.sampled_from(
    ["end", "1. one", "- a", "**b**", "`c`", "a\nb", '"]', "|x|", "#quot;", "<br/>", "%%", "graph TD; a-->b"]
)


@given(texts | hard, texts | hard, texts | hard)
def test_any_words_make_a_valid_chart(id: str, description: str, label: str) -> None:
    workflow = flow(al.Node(id, description, routes=(al.Route(complete=1, when=good, label=label), *END)))
    lines = check(workflow.to_mermaid())
    assert len(lines) == 7
    shown = re.findall(TEXT, lines[3])[0].strip('"')
    plain = re.sub(r"#(\d+);", lambda match: chr(int(match[1])), shown)
    assert not re.match(r"\d+\.", shown)  # a list, to Markdown
    assert not re.match(r"[-+*] ", shown)
    words = " ".join(
        "".join(char if char.isprintable() or char.isspace() else " " for char in f"{id}: {description}").split()
    )
    assert plain.replace("\N{ONE DOT LEADER}", ".").split() == words.split()
