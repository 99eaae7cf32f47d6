"""The state of a workflow: read by all, changed by none, replaced by what fits its types."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from agentloop.errors import InputError, WorkflowError
from agentloop.workflow.state import StateType
from tests.workflow.flows import Draft


class Part(msgspec.Struct, frozen=True):
    n: int


class Shape(TypedDict):
    n: int


class Handle:
    """Something of an application that has no JSON."""


class Wide(msgspec.Struct, frozen=True, kw_only=True):
    text: str = "x"
    size: Annotated[int, msgspec.Meta(ge=0)] = 0
    key: uuid.UUID | None = None
    part: Part | None = None
    handle: Handle | None = None
    pair: tuple[int, ...] = ()
    items: list[str] = []
    by_name: dict[str, int] | None = None
    nested: tuple[tuple[int, set[int]], ...] = ()
    late: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.text == "forbidden":
            raise ValueError("SECRET")


KIND = StateType(Wide)


def patched(state: Wide = Wide(), **patch: Any) -> Wide:  # noqa: B008  # frozen
    return KIND.patched(state, patch, tuple(patch), "n")


def test_a_patch_makes_a_new_state() -> None:
    """(R297)"""
    before = Wide()
    after = patched(before, text="y", size=3)
    assert (after.text, after.size, before.text, before.size) == ("y", 3, "x", 0)
    assert KIND.patched(before, None, (), "n") is before
    assert KIND.patched(before, {}, (), "n") is before


def test_values_are_taken_as_the_fields_types_take_them() -> None:
    handle, key, part = Handle(), uuid.uuid4(), Part(1)
    after = patched(handle=handle, key=key, part=part, pair=[1, 2], late="now", items=("a",))
    assert (after.handle, after.key, after.part, after.pair, after.items) == (handle, key, part, (1, 2), ["a"])
    assert after.handle is handle
    assert patched(part={"n": 3}).part == Part(3)


@pytest.mark.parametrize(
    ("patch", "rule"),
    [
        ({"size": "3"}, "$.size: expected int, got str"),
        ({"size": True}, "$.size: expected int, got bool"),
        ({"size": -1}, "$.size: expected int >= 0"),
        ({"text": None}, "$.text: expected str, got null"),
        ({"key": str(uuid.uuid4())}, "$.key: expected uuid | null, got str"),
        ({"part": {"n": "SECRET"}}, "$.part.n: expected int, got str"),
        ({"pair": [1, "SECRET"]}, "$.pair[1]: expected int, got str"),
        ({"handle": 3}, "$.handle: "),
        ({"text": msgspec.UNSET}, "$.text: expected a value, got UNSET"),
        ({"text": "forbidden"}, "expected a patch that the checks of Wide take, got one that raised ValueError"),
    ],
)
def test_what_does_not_fit_is_refused_without_showing_it(patch: dict[str, Any], rule: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        patched(**patch)
    assert (caught.value.code, caught.value.node) == ("bad_patch", "n")
    assert caught.value.rule.startswith(rule)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("patch", "rule"),
    [
        ([("text", "y")], "expected a mapping of fields or None, got list"),
        ("text", "expected a mapping of fields or None, got str"),
        ({"size": 1}, "expected only fields that it provides (text), got 'size'"),
        ({"mood": 1}, "expected only fields that it provides (text), got 'mood'"),
        ({3: 1}, "expected only fields that it provides (text), got a key of type int"),
    ],
)
def test_a_patch_is_a_mapping_of_what_is_provided(patch: Any, rule: str) -> None:
    with pytest.raises(WorkflowError) as caught:
        KIND.patched(Wide(), patch, ("text",), "n")
    assert (caught.value.code, caught.value.rule) == ("bad_patch", rule)


def test_what_is_provided_is_in_the_patch_or_there_already() -> None:
    with pytest.raises(WorkflowError) as caught:
        KIND.patched(Wide(), {"text": "y"}, ("text", "key"), "n")
    assert (caught.value.code, caught.value.rule) == (
        "missing_field",
        "expected it to provide text, key, got a patch without key",
    )
    with pytest.raises(WorkflowError, match="missing_field"):
        KIND.patched(Wide(), None, ("late",), "n")
    assert KIND.patched(Wide(), {"key": None}, ("key",), "n").key is None  # said, so provided
    assert KIND.patched(Wide(late="l"), None, ("late", "text"), "n").late == "l"


def test_none_and_unset_are_not_there() -> None:
    assert KIND.missing(Wide(), ["text", "key", "late", "pair", "size"]) == ["key", "late"]


def test_nothing_done_to_what_is_read_reaches_the_state() -> None:
    """Containers are copied for each reader; what has none is read as it is."""
    assert set(KIND.shared) == {"items", "by_name", "nested"}
    given = ["a"]
    state = KIND.admit(Wide(items=given, by_name={"a": 1}, nested=((1, {2}),)))
    given.append("b")
    view = KIND.read(state)
    assert view == state
    view.items.append("c")
    assert view.by_name is not None
    view.by_name["b"] = 2
    view.nested[0][1].add(3)
    assert state == Wide(items=["a"], by_name={"a": 1}, nested=((1, {2}),))
    mine = ["x"]
    after = patched(state, items=mine)
    mine.append("y")
    assert after.items == ["x"]

    class Plain(msgspec.Struct, frozen=True):
        pair: tuple[int, ...] = ()

    plain: StateType[Plain] = StateType(Plain)
    one = Plain(pair=(1,))
    assert plain.read(one) is one


def test_the_first_state_is_checked_field_by_field() -> None:
    wrong: Any = Wide(size="SECRET")  # type: ignore[arg-type]
    with pytest.raises(InputError) as caught:
        KIND.admit(wrong)
    assert str(caught.value) == "state: $.size: expected int, got str"
    other: Any = Draft()
    with pytest.raises(InputError, match="state: expected Wide, got Draft"):
        KIND.admit(other)
    assert KIND.admit(Wide()).late is msgspec.UNSET


class Counted(msgspec.Struct, frozen=True):
    items: list[int] = []
    size: int = 0

    def __post_init__(self) -> None:
        if self.size > 3 or not ALLOWED:
            raise ValueError("SECRET")


ALLOWED = [True]


def test_the_checks_of_a_state_are_asked_of_what_is_new_and_not_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = StateType(Counted)
    state = kind.admit(Counted(items=[1]))
    with pytest.raises(WorkflowError, match="bad_patch") as broken:
        kind.patched(state, {"size": 4}, ("size",), "n")
    assert "SECRET" not in str(broken.value)
    monkeypatch.setattr("tests.workflow.test_state.ALLOWED", [])
    copied = kind.read(state)
    assert copied == state
    assert copied.items is not state.items
    with pytest.raises(InputError) as caught:
        kind.admit(state)
    assert (
        str(caught.value) == "state: expected a state that the checks of Counted take, got one that raised ValueError"
    )


def test_what_holds_no_container_now_is_read_as_it_is() -> None:
    class Maybe(msgspec.Struct, frozen=True):
        items: list[int] | None = None
        late: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
        typed: Shape | None = None

    kind = StateType(Maybe)
    none = Maybe()
    assert kind.read(none) is none
    some = kind.admit(Maybe(typed={"n": 1}))
    view = kind.read(some)
    assert view.typed is not None
    view.typed["n"] = 2
    assert some.typed == {"n": 1}
