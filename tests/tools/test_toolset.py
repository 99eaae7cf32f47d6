"""One registry: catalogue and callable members are the same objects."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.errors import InputError, ToolDefinitionError
from agentloop.tools import ArgumentsRefused, SelectionContext, Tool, ToolPolicy, ToolSet, selection, tool


def member(name: str, **options: Any) -> Tool:
    def f(a: int) -> int:
        """Do it."""
        return a

    return tool(name=name, **options)(f)


def code_of(tools: Any) -> str:
    with pytest.raises(ToolDefinitionError) as caught:
        ToolSet(tools)
    return caught.value.code


def test_catalogue_and_members_are_the_same_objects_in_order() -> None:
    """(R48, R60, R153)"""
    b, a = member("b"), member("a")
    tools = ToolSet([b, a], policy_version="notes.v1")
    assert tools.names == ("b", "a")
    assert list(tools) == [b, a]
    assert all(spec is tool.spec for spec, tool in zip(tools.specs, tools, strict=True))
    assert tools.get("a") is a
    assert tools.policy_version == "notes.v1"
    assert len(tools) == 2


def test_only_members_are_reached_by_name() -> None:
    """Naming a tool gives no other access (R56, R154)."""
    a = member("a")
    tools = ToolSet([a])
    assert tools.get("b") is None
    assert tools.get("__class__") is None
    assert ("a" in tools, a in tools, "b" in tools, member("a") in tools, 3 in tools) == (
        True,
        True,
        False,
        False,
        False,
    )
    assert tools.require("a") is a
    with pytest.raises(ToolDefinitionError) as caught:
        tools.require("b")
    assert (caught.value.code, caught.value.rule) == ("unknown_tool", "expected one of a")


def test_feedback_on_an_unknown_name_lists_the_names() -> None:
    """(R56)"""
    assert ToolSet([member("a"), member("b")]).unknown_tool_feedback("c") == (
        "There is no tool named 'c', and nothing ran. Expected one of a, b."
    )
    long = ToolSet().unknown_tool_feedback("x" * 10_000)
    assert "there are no tools" in long
    assert len(long) < 200


def test_zero_to_thirty_two_members_fit() -> None:
    """(R94, with the decision that none is plain chat)"""
    assert len(ToolSet()) == 0
    assert ToolSet().specs == ()
    many = [member(f"t{n}") for n in range(33)]
    assert len(ToolSet(many[:32])) == 32
    assert code_of(many) == "bad_tool"


def test_a_duplicate_name_is_refused_and_names_both_owners() -> None:
    """(R329)"""
    github = Tool.from_schema("create", "", parameters={"type": "object"}, call=lambda a, c: None, owner="github")
    linear = Tool.from_schema("create", "", parameters={"type": "object"}, call=lambda a, c: None, owner="linear")
    with pytest.raises(ToolDefinitionError, match="both github and linear define it") as caught:
        ToolSet([github, linear])
    assert caught.value.code == "duplicate_tool_name"


def test_the_same_instance_twice_is_refused() -> None:
    """(R51)"""
    a = member("a")
    with pytest.raises(ToolDefinitionError, match="the same tool is given twice"):
        ToolSet([a, a])


def test_what_is_no_tool_is_refused() -> None:
    assert code_of([len]) == "bad_tool"
    assert code_of(["a"]) == "bad_tool"
    with pytest.raises(InputError):
        ToolSet([], policy_version=1)  # type: ignore[arg-type]
    for wrong in (member("a"), "ok", b"ok", {"a": member("a")}):
        with pytest.raises(
            InputError, match=f"ToolSet.tools: expected a sequence of tools, got {type(wrong).__name__}"
        ):
            ToolSet(wrong)  # type: ignore[arg-type]


def test_a_set_is_fixed_once_it_is_made() -> None:
    """(R50)"""
    given = [member("a")]
    tools = ToolSet(given)
    given.append(member("b"))
    assert len(tools) == 1
    with pytest.raises(AttributeError, match="fixed"):
        tools.digest = ""
    with pytest.raises(AttributeError, match="fixed"):
        del tools.specs


def test_a_selection_is_a_sealed_subset_in_the_order_of_the_set() -> None:
    """(R178, R179)"""
    tools = ToolSet([member("a"), member("b"), member("c")], policy_version="v")
    chosen = tools.select("c", "a")
    assert chosen.names == ("a", "c")
    assert chosen.get("c") is tools.get("c")
    assert chosen.get("b") is None
    assert chosen.digest == tools.select("a", "c").digest != tools.digest
    with pytest.raises(InputError, match="at least one"):
        tools.select()
    with pytest.raises(ToolDefinitionError) as caught:
        tools.select("a", "x")
    assert caught.value.code == "unknown_tool"
    with pytest.raises(ToolDefinitionError, match="each name once"):
        tools.select("a", "a")


@pytest.mark.parametrize(
    ("names", "error", "rule"),
    [
        ((), InputError, "expected at least one name"),
        (("a", "x"), ToolDefinitionError, "unknown_tool: tool 'x': expected one of a, b"),
        (("a", "b", "a"), ToolDefinitionError, "duplicate_tool_name: tool 'a': expected each name once"),
    ],
)
def test_a_selection_of_nothing_of_a_stranger_or_of_one_tool_twice_is_refused(
    names: tuple[str, ...], error: type[Exception], rule: str
) -> None:
    """(R179, R180, R181)"""
    with pytest.raises(error, match=rule):
        ToolSet([member("a"), member("b")]).select(*names)


def test_what_is_outside_a_stage_cannot_be_selected_from_it() -> None:
    """(R178, R182)"""
    stage = ToolSet([member("a"), member("b"), member("c")]).select("a", "b")
    with pytest.raises(ToolDefinitionError, match="unknown_tool: tool 'c': expected one of a, b"):
        stage.select("a", "c")
    assert stage.select("b").names == ("b",)
    assert stage.names == ("a", "b")


def test_a_set_resolves_what_a_model_chose() -> None:
    """A list, a subset of it, the names, and one way from a choice to a value (R177)."""

    @selection
    def pick(n: int, where: SelectionContext) -> tuple[int, str, str]:
        return n, where.stage_id, where.tool

    tools = ToolSet([pick, member("a")])
    assert tools.names == ("pick", "a")
    assert tools.select("pick").resolve("pick", '{"n": 1}', stage_id="s") == (1, "s", "pick")
    with pytest.raises(InputError, match="tool 'a': expected a selection"):
        tools.resolve("a", '{"a": 1}', stage_id="s")


def test_resolving_looks_at_the_names_of_the_stage_first_then_at_the_arguments_then_at_the_checks() -> None:
    """(R184)"""
    asked: list[str] = []

    def check(n: int) -> str | None:
        asked.append("check")
        return "n is odd" if n % 2 else None

    @selection(refine=(check,))
    def pick(n: int) -> int:
        asked.append("built")
        return n

    whole = ToolSet([pick, member("a")])
    with pytest.raises(ToolDefinitionError, match="unknown_tool: tool 'pick': expected one of a"):
        whole.select("a").resolve("pick", "{", stage_id="s")
    for text, code, seen in (
        ("{", "invalid_json", []),
        ("{}", "schema_mismatch", []),
        ('{"n": 1}', "refined", ["check"]),
    ):
        with pytest.raises(ArgumentsRefused) as caught:
            whole.resolve("pick", text, stage_id="s")
        assert (caught.value.code, asked) == (code, seen)
    assert whole.resolve("pick", '{"n": 2}', stage_id="s") == 2
    assert asked == ["check", "check", "built"]


def test_a_selection_runs_again_after_a_crash_and_says_so_in_the_set() -> None:
    """It has no effect, so nobody need be asked about it (R129)."""

    @selection
    def pick(n: int) -> int:
        return n

    tools = ToolSet([pick, member("a")])
    assert (tools.repeatable, tools.unstated()) == ({"pick"}, ("a",))


def test_the_digest_covers_that_a_tool_is_a_selection() -> None:
    """(R67)"""

    def f(a: int) -> int:
        """Do it."""
        return a

    chosen, run = selection(name="a")(f), tool(name="a", idempotent=True, timeout=None)(f)
    assert (chosen.spec, chosen.policy) == (run.spec, run.policy)
    assert ToolSet([chosen]).digest != ToolSet([run]).digest


def test_equal_definitions_have_one_digest() -> None:
    assert ToolSet([member("a"), member("b")]).digest == ToolSet([member("a"), member("b")]).digest


def other_schema() -> Tool:
    def f(a: str) -> str:
        """Do it."""
        return a

    return tool(name="a")(f)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
CHANGES: dict[str, tuple[list[Tool], str]] = {
    "order": ([member("b"), member("a")], "v"),
    "policy version": ([member("a"), member("b")], "w"),
    "schema": ([other_schema(), member("b")], "v"),
    "description": ([member("a", description="x"), member("b")], "v"),
    "idempotence": ([member("a", idempotent=True), member("b")], "v"),
    "recovery": ([member("a", recovery="settle"), member("b")], "v"),
    "timeout": ([member("a", timeout=3), member("b")], "v"),
    "output budget": ([member("a", max_output_bytes=500), member("b")], "v"),
    "kind": (
        [Tool.from_schema("a", "Do it.", parameters=SCHEMA, call=lambda a, c: None), member("b")],
        "v",
    ),
    "a member less": ([member("a")], "v"),
}


@pytest.mark.parametrize(("tools", "version"), CHANGES.values(), ids=CHANGES)
def test_the_digest_covers(tools: list[Tool], version: str) -> None:
    """(R66, R67, R155)"""
    same = ToolSet([member("a"), member("b")], policy_version="v").digest
    assert ToolSet(tools, policy_version=version).digest != same


def test_the_digest_covers_how_often_a_tool_is_called_and_repeated_where_it_says_so() -> None:
    """What is by default is not in it, so that runs which were begun without it can be resumed (R67)."""
    plain, repeated = ({}, {"idempotent": True})
    same = [
        (plain, {"retries": 0}),
        (plain, {"grace": 9.0}),
        (repeated, {"idempotent": True, "retries": 3}),
    ]
    for one, other in same:
        assert ToolSet([member("a", **one)]).digest == ToolSet([member("a", **other)]).digest
    policies: list[dict[str, Any]] = [
        plain,
        {"max_calls": 1},
        {"max_calls": 2},
        repeated,
        {"idempotent": True, "retries": 0},
        {"idempotent": True, "retries": 1},
    ]
    assert len({ToolSet([member("a", **policy)]).digest for policy in policies}) == len(policies)


def test_the_digest_covers_neither_the_function_nor_the_declared_errors() -> None:
    """A change of code under the same version is not promised to be detected."""
    plain = Tool.from_schema("a", "", parameters={"type": "object", "title": "t"}, call=lambda a, c: 1)
    other = Tool.from_schema(
        "a",
        "",
        parameters='{"title": "t", "type": "object"}',
        call=lambda a, c: 2,
        policy=ToolPolicy(errors=(KeyError,)),
    )
    assert ToolSet([plain]).digest == ToolSet([other]).digest


def test_the_digest_covers_the_kind_of_recovery_and_not_the_code_of_a_lookup() -> None:
    """(R67, R69)"""

    def find(a: int) -> int:
        return a

    def look(a: int) -> None:
        return None

    digests = [
        ToolSet([member("a", **options)]).digest
        for options in (
            {"idempotent": True, "recovery": "settle"},
            {"idempotent": True},
            {"idempotent": True, "recovery": find},
        )
    ]
    assert len(set(digests)) == 3
    assert ToolSet([member("a", idempotent=True, recovery="repeat")]).digest == digests[1]
    assert ToolSet([member("a", idempotent=True, recovery=look)]).digest == digests[2]


def test_a_set_names_the_tools_that_do_not_state_how_they_are_recovered() -> None:
    """(R129)"""

    def find(a: int) -> int:
        return a

    tools = ToolSet(
        [member("d"), member("a", idempotent=True), member("b", recovery="settle"), member("c", recovery=find)]
    )
    assert tools.unstated() == ("d",)
    assert ToolSet([*tools, member("e")]).unstated() == ("d", "e")
    assert ToolSet().unstated() == ()


def test_representations_name_the_tools() -> None:
    assert repr(ToolSet([member("a")])) == "<ToolSet a>"
    assert repr(ToolSet()) == "<ToolSet empty>"
