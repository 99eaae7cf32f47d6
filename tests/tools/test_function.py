"""A typed function becomes a tool: its schema, its parameters, its refusals."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections.abc import AsyncIterator, Iterator
from datetime import date
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest

from agentloop.errors import InputError, ToolDefinitionError
from agentloop.messages import ToolResult
from agentloop.tools import ArgumentsRefused, Tool, ToolContext, ToolPolicy, tool

from .unannotated import plain, with_context


class Note(msgspec.Struct):
    title: Annotated[str, msgspec.Meta(min_length=1)]
    text: str


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Notes:
    kept: dict[str, Note]


def context(deps: Any = None) -> ToolContext[Any]:
    return ToolContext(deps=deps, run_id="r", agent="a", tool="t", call_id="c", effect_id="e")


def schema_of(member: Tool) -> Any:
    return json.loads(member.spec.parameters)


def refusal(function: Any, **options: Any) -> ToolDefinitionError:
    with pytest.raises(ToolDefinitionError) as caught:
        tool(**options)(function)
    return caught.value


def test_a_function_gives_name_description_and_schema() -> None:
    """(R153)"""

    @tool
    async def read_note(
        id: UUID, ctx: ToolContext[Notes], lines: Annotated[int, msgspec.Meta(ge=1, description="how many")] = 10
    ) -> Note:
        """Read one note
        by its id.

        Not for the model.
        """
        return ctx.deps.kept[str(id)]

    assert (read_note.name, read_note.spec.description) == ("read_note", "Read one note by its id.")
    assert schema_of(read_note) == {
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "lines": {"type": "integer", "minimum": 1, "default": 10, "description": "how many"},
        },
        "required": ["id"],
        "additionalProperties": False,
    }
    assert read_note.policy == ToolPolicy()
    assert read_note.is_async
    assert read_note.kind == "function"


def test_names_descriptions_and_policies_can_be_given() -> None:
    """(R49, R101)"""

    @tool(name="find", description="Find it.", idempotent=True, timeout=2, errors=(KeyError,), max_output_bytes=900)
    def search(text: str) -> str:
        """Another text."""
        return text

    assert (search.name, search.spec.description, search.is_async) == ("find", "Find it.", False)
    assert search.policy == ToolPolicy(idempotent=True, timeout=2, errors=(KeyError,), max_output_bytes=900)
    assert tool(policy=search.policy)(plain).policy is search.policy
    with pytest.raises(InputError, match="either policy= or"):
        tool(policy=search.policy, timeout=3)
    with pytest.raises(InputError, match="expected policy= to be a ToolPolicy, got int"):
        tool(policy=3)  # type: ignore[call-overload]


def test_a_tool_without_parameters_takes_an_empty_object() -> None:
    @tool
    def now() -> str:
        return "now"

    assert schema_of(now) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.admit("") == {}
    assert now.spec.description == ""


@pytest.mark.parametrize(
    "annotation",
    ["ToolContext", "ToolContext[Notes]", "ToolContext | None", 'Annotated[ToolContext[Notes], "the context"]'],
)
def test_the_context_is_injected_and_hidden_from_the_model(annotation: str) -> None:
    def f(text: str, where: Any) -> tuple[str, str]:
        return text, where.run_id

    f.__annotations__["where"] = annotation
    member = tool(f)
    assert list(schema_of(member)["properties"]) == ["text"]
    assert member.invoke(member.admit('{"text": "x"}'), context()) == ("x", "r")
    with pytest.raises(ArgumentsRefused):
        member.admit('{"text": "x", "where": null}')


def test_annotations_that_are_objects_work_too() -> None:
    assert tool(plain).invoke({"count": 1, "names": ["a"]}, context()) == 2
    member = tool(with_context)
    assert list(schema_of(member)["properties"]) == ["count"]
    assert member.invoke({"count": 1}, context()) == "1 r"


def test_types_local_to_the_defining_function_are_found() -> None:
    class Local(msgspec.Struct):
        n: int

    @tool
    def bare(local: list[Local]) -> int:
        return local[0].n

    @tool(name="other")
    def called(local: Local, names: dict[str, Local]) -> int:
        return local.n

    assert bare.admit('{"local": [{"n": 1}]}')["local"] == [Local(1)]
    assert called.admit('{"local": {"n": 1}, "names": {}}')["local"] == Local(1)


def test_types_that_a_function_closes_over_are_found() -> None:
    class Local(msgspec.Struct):
        n: int

    def make() -> Tool:
        def f(local: Local) -> Local:
            return Local(local.n)

        return tool(f)

    assert make().admit('{"local": {"n": 2}}')["local"] == Local(2)


def test_nested_types_are_closed_and_referred_to_locally() -> None:
    """An unknown member is refused, not dropped (R54, R161)."""

    @tool
    def write(note: Note, data: Notes) -> None: ...

    schema = schema_of(write)
    assert schema["properties"]["note"] == {"$ref": "#/$defs/Note"}
    assert schema["$defs"]["Note"]["additionalProperties"] is False
    assert schema["$defs"]["Notes"]["additionalProperties"] is False
    with pytest.raises(ArgumentsRefused, match='unknown "x"'):
        write.admit('{"note": {"title": "t", "text": "", "x": 1}, "data": {"kept": {}}}')
    with pytest.raises(ArgumentsRefused, match="at least 1 character"):
        write.admit('{"note": {"title": "", "text": ""}, "data": {"kept": {}}}')


def test_recursive_types_and_tuples_are_decoded() -> None:
    @tool
    def walk(tree: Tree, pair: tuple[int, str], kind: Literal["a", "b"] = "a") -> None: ...

    admitted = walk.admit('{"tree": {"children": [{"children": []}]}, "pair": [1, "x"]}')
    assert admitted == {"tree": Tree([Tree([])]), "pair": (1, "x"), "kind": "a"}
    assert schema_of(walk)["properties"]["pair"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}]
    with pytest.raises(ArgumentsRefused, match=r"\$\.pair"):
        walk.admit('{"tree": {"children": []}, "pair": [1, "x", 2]}')


class Tree(msgspec.Struct):
    children: list[Tree]


def test_a_default_is_the_object_itself_as_in_any_python_call() -> None:
    shared = [1]

    @tool
    def f(items: list[int] = shared) -> list[int]:
        return items

    assert f.admit("{}")["items"] is shared


BAD: dict[str, tuple[Any, str, str]] = {}


def bad(parameter: str, words: str) -> Any:
    def keep(function: Any) -> Any:
        BAD[function.__name__] = function, parameter, words
        return function

    return keep


@bad("args", "* and **")
def star(*args: int) -> None: ...


@bad("kwargs", "* and **")
def double_star(**kwargs: int) -> None: ...


@bad("a", "positional-only")
def positional(a: int, /) -> None: ...


@bad("b", "type annotation")
def missing(a: int, b) -> None: ...  # type: ignore[no-untyped-def]


@bad("a", "cannot be resolved")
def unresolved(a: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@bad("a", "'Missing' is not defined")
def nested(a: list[Missing]) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@bad("d", "one ToolContext")
def two(c: ToolContext, d: ToolContext[int]) -> None: ...


@bad("b", "expected a type with a JSON Schema: type <class 'complex'> is not supported")
def no_schema(a: int, b: complex) -> None: ...


@bad("b", "more than one array-like")
def two_arrays(a: int, b: list[int] | list[str]) -> None: ...


@bad("self", "bind it first: tool(obj.method)")
def unbound(self, a: int) -> None: ...  # type: ignore[no-untyped-def]


@bad("a", "its default does not fit its type: expected `int`, got `str`")
def wrong_default(a: int = "x") -> None: ...  # type: ignore[assignment]


@bad("b", "expected `str`, got `null`; annotate it as `T | None`")
def none_default(a: int = 1, b: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013


@bad("a", "expected `int` >= 1")
def default_out_of_range(a: Annotated[int, msgspec.Meta(ge=1)] = 0) -> None: ...


@bad("a", "expected `date`, got `str`")
def default_as_the_model_writes_it(a: date = "2026-01-01") -> None: ...  # type: ignore[assignment]


@bad("a", "expected `Colour`, got `int`")
def default_of_an_enumeration(a: Colour = 1) -> None: ...  # type: ignore[assignment]


@bad("a", "expected `array`, got `range`")
def default_that_json_cannot_hold(a: list[int] = range(3)) -> None: ...  # type: ignore[assignment]


def test_defaults_of_every_kind_are_taken() -> None:
    def f(
        a: float = 1,
        b: Colour = Colour.RED,
        c: dict[str, Colour] = {"x": Colour.RED},  # noqa: B006
        d: Notes = Notes({}),  # noqa: B008
        e: Notes | None = None,
        g: date = date(2026, 1, 1),
        h: UUID = UUID(int=1),  # noqa: B008
        i: tuple[int, ...] = (),
        j: Literal["a", "b"] = "a",
        k: bytes = b"x",
        l: Any = (),  # noqa: E741
        m: int | msgspec.UnsetType = msgspec.UNSET,
    ) -> None: ...

    schema = schema_of(tool(f))
    assert "required" not in schema
    assert schema["properties"]["i"]["default"] == []


@pytest.mark.parametrize(("function", "parameter", "words"), BAD.values(), ids=BAD)
def test_a_parameter_that_cannot_be_told_to_a_model_is_refused_by_name(
    function: Any, parameter: str, words: str
) -> None:
    error = refusal(function)
    assert error.code == "bad_tool"
    assert f"parameter '{parameter}'" in error.rule
    assert words in error.rule
    assert "\n" not in error.rule


def test_an_unresolvable_return_annotation_does_not_matter() -> None:
    def f(a: int) -> Missing: ...  # type: ignore[name-defined, empty-body]  # noqa: F821

    assert tool(f).admit('{"a": 1}') == {"a": 1}


def generator(a: int) -> Iterator[int]:
    yield a


async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


def undescribed(a: complex) -> None: ...


def raw(a: msgspec.Raw) -> None: ...


def test_a_class_is_no_tool() -> None:
    assert str(refusal(Note)) == "bad_tool: tool 'Note': expected a function, got a class"


@pytest.mark.parametrize("thing", [generator, async_generator, undescribed, raw, 3, tool(plain), int])
def test_what_is_no_plain_function_is_refused(thing: Any) -> None:
    assert refusal(thing, name="t").code == "bad_tool"


@pytest.mark.parametrize("name", ["", "a b", "é", "a" * 65, "a.b", "a\n", 3, functools.partial])
def test_a_name_that_the_wire_does_not_take_is_refused(name: Any) -> None:
    error = refusal(plain, name=name)
    assert error.code == "bad_tool_name"


@pytest.mark.parametrize(
    ("name", "got"), [("a b", "another character"), ("a" * 65, "65 characters"), ("", "0 characters")]
)
def test_a_refused_name_says_whether_it_is_its_length(name: str, got: str) -> None:
    assert str(refusal(plain, name=name)).endswith(f": expected 1 to 64 of A-Z a-z 0-9 _ -, got {got}")


def test_a_function_without_a_name_needs_one() -> None:
    partial = functools.partial(plain, names=["a"])
    assert refusal(partial).code == "bad_tool_name"
    assert refusal(lambda: None).code == "bad_tool_name"
    member = tool(name="counted")(partial)
    assert member.invoke(member.admit('{"count": 2}'), context()) == 3


def test_methods_and_callable_objects_can_be_tools() -> None:
    class Store:
        async def read(self, id: str) -> str:
            """Read."""
            return id

        async def __call__(self, id: str) -> str:
            return id

    member = tool(Store().read)
    assert (member.name, member.is_async, list(schema_of(member)["properties"])) == ("read", True, ["id"])
    assert tool(name="store")(Store()).is_async


def test_a_wrapped_function_keeps_its_parameters() -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    member = tool(logged(plain))
    assert member.invoke(member.admit('{"count": 1, "names": []}'), context()) == 1


def test_a_keyword_the_validator_ignores_is_refused_at_registration() -> None:
    def f(a: Annotated[int, msgspec.Meta(extra_json_schema={"foo": 1})]) -> None: ...

    error = refusal(f)
    assert error.code == "unsupported_schema"
    assert "$.properties.a.foo" in error.rule


def test_calling_a_tool_calls_its_function() -> None:
    assert tool(plain)(1, names=["a"]) == 2


def test_a_tool_is_fixed_and_equal_to_itself_only() -> None:
    """(R50, R51)"""
    member = tool(plain)
    with pytest.raises(AttributeError, match="fixed"):
        member.policy = ToolPolicy()
    with pytest.raises(AttributeError, match="fixed"):
        del member.spec
    assert member != tool(plain)
    assert "plain" in repr(member)


class TestFromSchema:
    def test_arguments_reach_the_call_as_they_were_written(self) -> None:
        seen: list[Any] = []
        member = Tool.from_schema(
            "search",
            "Search.",
            parameters={"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
            call=lambda arguments, ctx: seen.append((arguments, ctx.deps)),
            policy=ToolPolicy(idempotent=True),
            owner="server",
            strict=True,
        )
        member.invoke(member.admit('{"q": "x", "n": -0}'), context("deps"))
        assert repr(seen) == "[({'q': 'x', 'n': -0.0}, 'deps')]"
        assert (member.kind, member.owner, member.spec.strict, member.is_async) == ("schema", "server", True, False)

    def test_an_async_call_is_awaited(self) -> None:
        async def call(arguments: dict[str, Any], ctx: ToolContext[Any]) -> None: ...

        member = Tool.from_schema("t", "", parameters='{"type": "object"}', call=call)
        assert member.is_async
        assert member.owner.endswith("call")

    def test_a_faulty_schema_is_refused_when_it_is_made(self) -> None:
        """(R58)"""
        for parameters in (
            {"type": "object", "foo": 1},
            {"type": "object", "required": ["a"], "additionalProperties": False},
        ):
            with pytest.raises(ToolDefinitionError, match="unsupported_schema"):
                Tool.from_schema("t", "", parameters=parameters, call=lambda a, c: None)

    def test_a_bad_name_or_call_is_refused(self) -> None:
        with pytest.raises(ToolDefinitionError, match="bad_tool_name"):
            Tool.from_schema("a b", "", parameters={"type": "object"}, call=lambda a, c: None)
        with pytest.raises(ToolDefinitionError, match="bad_tool"):
            Tool.from_schema("t", "", parameters={"type": "object"}, call=3)  # type: ignore[arg-type]


def test_a_returned_value_becomes_a_result() -> None:
    """(R160)"""
    assert tool(plain).encode(Note("t", "x")) == ToolResult.ok('{"title":"t","text":"x"}')
