"""Selections: what they build from a model's choice, what they refuse, and that they do nothing else."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InputError, ToolDefinitionError, ToolFailed, ToolResultError
from agentloop.tools import ArgumentsRefused, SelectionContext, Tool, ToolContext, ToolPolicy, ToolSet, selection, tool

ANY = {"type": "object"}


class Refund(msgspec.Struct, frozen=True):
    order: str
    amount: int
    stage: str = ""


def within(order: str, amount: int) -> str | None:
    """Refuses what is over a hundred."""
    return "at most 100 can be given back" if amount > 100 else None


@selection(refine=(within,))
def refund(order: str, amount: Annotated[int, msgspec.Meta(ge=1)] = 1, *, where: SelectionContext) -> Refund:
    """Give money back.

    Not for the model.
    """
    return Refund(order, amount, f"{where.stage_id}/{where.tool}")


def schema_of(member: Tool) -> Any:
    return json.loads(member.spec.parameters)


def refused(member: Tool | ToolSet, *args: Any, **kwargs: Any) -> ArgumentsRefused:
    with pytest.raises(ArgumentsRefused) as caught:
        member.resolve(*args, **kwargs)
    return caught.value


def refusal(function: Any, **options: Any) -> ToolDefinitionError:
    with pytest.raises(ToolDefinitionError) as caught:
        selection(**options)(function)
    assert caught.value.code == "bad_tool"
    return caught.value


# -- a selection is a schema and a function that builds a value


def test_types_local_to_the_function_that_defines_a_selection_are_found() -> None:
    class Local(msgspec.Struct):
        n: int

    @selection
    def bare(local: Local) -> int:
        return local.n

    @selection(name="other")
    def called(local: list[Local]) -> int:
        return local[0].n

    assert bare.resolve('{"local": {"n": 1}}', stage_id="s") == 1
    assert called.resolve('{"local": [{"n": 2}]}', stage_id="s") == 2


def test_a_selection_is_a_schema_and_a_function_that_builds_the_value() -> None:
    """(R173, R175)"""
    assert (refund.name, refund.kind, refund.spec.description) == ("refund", "selection", "Give money back.")
    assert schema_of(refund) == {
        "type": "object",
        "properties": {"order": {"type": "string"}, "amount": {"type": "integer", "minimum": 1, "default": 1}},
        "required": ["order"],
        "additionalProperties": False,
    }
    assert refund.resolve('{"order": "A1", "amount": 7}', stage_id="desk") == Refund("A1", 7, "desk/refund")
    assert refund.resolve('{"order": "A1"}', stage_id="x") == Refund("A1", 1, "x/refund")
    assert not refund.is_async


def test_the_value_is_any_object_of_the_host_and_comes_back_as_it_is() -> None:
    """A caller cannot say its type, so it is ``object`` (R175)."""
    made = object()

    @selection
    def choose() -> object:
        return made

    assert choose.resolve("", stage_id="s") is made
    assert choose() is made


def test_names_and_policies_can_be_given_and_the_rest_is_that_of_what_has_no_effect() -> None:
    @selection(name="pick", description="Pick.", errors=(KeyError,), max_output_bytes=900)
    def choose(kind: Literal["a", "b"]) -> str:
        return kind

    assert (choose.name, choose.spec.description) == ("pick", "Pick.")
    assert choose.policy == ToolPolicy(idempotent=True, timeout=None, errors=(KeyError,), max_output_bytes=900)
    assert choose.policy.recovery_kind == "repeat"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid_json"),
        ('{"order": "a", "order": "b"}', "invalid_json"),
        ("[1]", "not_an_object"),
        ("{}", "schema_mismatch"),
        ('{"order": 1}', "schema_mismatch"),
        ('{"order": "a", "amount": 0}', "schema_mismatch"),
        ('{"order": "a", "where": null}', "schema_mismatch"),
        ('{"order": "a", "amount": 101}', "refined"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_words_for_the_model(text: str, code: str) -> None:
    """(R175, R184)"""
    assert refused(refund, text, stage_id="s").code == code


def test_a_refused_refinement_says_the_reason_of_the_first_check_that_has_one() -> None:
    """(R184)"""
    asked: list[str] = []

    def check(name: str, reason: str | None) -> Callable[..., str | None]:
        def ask(n: int) -> str | None:
            asked.append(f"{name} {n}")
            return reason

        return ask

    @selection(refine=(check("one", None), check("two", "n is\ud800 odd. "), check("three", "never told")))
    def choose(n: int) -> int:
        asked.append("built")
        return n

    error = refused(choose, '{"n": 3}', stage_id="s")
    assert asked == ["one 3", "two 3"]
    assert error.feedback == (
        "The arguments are not accepted: n is\ufffd odd. Correct the arguments and call it again."
    )
    silent = selection(refine=(lambda n: " ",))(plain)
    assert "no reason was given" in refused(silent, '{"n": 1}', stage_id="s").feedback
    long = selection(refine=(lambda n: "x" * 5_000,))(plain)
    assert len(refused(long, '{"n": 1}', stage_id="s").feedback) <= 560


def plain(n: int) -> int:
    return n


BUILT: list[Any] = []


@selection(refine=(lambda order, amount: BUILT.append("refined"),))
def counted(order: str, amount: Annotated[int, msgspec.Meta(ge=1)]) -> None:
    BUILT.append((order, amount))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["order", "amount", "x"]), inner),
    max_leaves=6,
)


@given(JSON)
def test_neither_a_check_nor_the_function_sees_arguments_that_the_schema_refuses(value: Any) -> None:
    """(R175, R184)"""
    BUILT.clear()
    fits = (
        type(value) is dict
        and set(value) == {"order", "amount"}
        and type(value["order"]) is str
        and type(value["amount"]) is int
        and value["amount"] >= 1
    )
    try:
        counted.resolve(json.dumps(value), stage_id="s")
    except ArgumentsRefused:
        assert not fits
        assert BUILT == []
    else:
        assert fits
        assert ["refined", (value["order"], value["amount"])] == BUILT


def test_what_the_function_or_a_check_raises_passes_through_as_it_is() -> None:
    for error in (ToolFailed("no"), KeyError("k"), asyncio.CancelledError()):

        def fail(n: int, error: BaseException = error) -> None:
            raise error

        def fail_too(n: int, error: BaseException = error) -> None:
            raise error

        for member in (
            Tool.selection("t", "", parameters=ANY, resolve=lambda a, c, fail=fail: fail(1)),  # type: ignore[misc]
            selection(refine=(fail_too,))(plain),
        ):
            with pytest.raises(type(error)) as caught:
                member.resolve('{"n": 1}', stage_id="s")
            assert caught.value is error


# -- both are synchronous, and neither runs nor authorises anything


async def never(n: int) -> None:
    raise AssertionError


class AsyncCallable:
    async def __call__(self, n: int) -> None:
        raise AssertionError


@pytest.mark.parametrize("function", [never, functools.partial(never), AsyncCallable()])
def test_what_is_async_is_refused_when_the_selection_is_defined(function: Any) -> None:
    """(R176)"""
    rule = "expected a sync function, got an async one"
    assert rule in refusal(function, name="t").rule
    assert refusal(plain, refine=(function,)).rule == f"refine[0]: {rule}"
    with pytest.raises(ToolDefinitionError, match=rule):
        Tool.selection("t", "", parameters=ANY, resolve=function)


def test_an_awaitable_that_comes_back_is_refused_and_closed() -> None:
    """Nothing of the coroutine ran, and no warning says that it was never awaited (R176)."""
    made: list[Any] = []

    def later(n: int) -> Any:
        made.append(never(n))
        return made[-1]

    with pytest.raises(ToolResultError, match="tool 'later': expected a value, got an awaitable"):
        selection(later).resolve('{"n": 1}', stage_id="s")
    with pytest.raises(ToolResultError, match=r"refine\[1\]: expected None or a reason of type str, got an awaitable"):
        selection(refine=(lambda n: None, later))(plain).resolve('{"n": 1}', stage_id="s")
    assert [coroutine.cr_frame for coroutine in made] == [None, None]


@pytest.mark.parametrize("said", [False, True, 0, b"no", ["no"]])
def test_a_check_that_says_neither_none_nor_a_text_is_at_fault_itself(said: Any) -> None:
    """False would mean "refused" to one reader and "nothing against it" to another."""
    with pytest.raises(ToolResultError, match=f"expected None or a reason of type str, got {type(said).__name__}"):
        selection(refine=(lambda n: said,))(plain).resolve('{"n": 1}', stage_id="s")


def test_resolving_runs_no_tool_and_authorises_none() -> None:
    """A tool with an effect is not resolved, whatever the model chose (R174, R176)."""
    ran = []

    @tool
    def pay(amount: int) -> None:
        ran.append(amount)

    with pytest.raises(InputError, match="tool 'pay': expected a selection, got one of kind function"):
        pay.resolve('{"amount": 1}', stage_id="s")
    schema = Tool.from_schema("s", "", parameters=ANY, call=lambda a, c: ran.append(a))
    with pytest.raises(InputError, match="of kind schema"):
        schema.resolve("{}", stage_id="s")
    assert ran == []


@pytest.mark.parametrize(
    ("stage_id", "rule"),
    [(None, "expected str, got NoneType"), ("", "got 0"), ("s" * 129, "expected 1 to 128 characters, got 129")],
)
def test_a_stage_has_a_name(stage_id: Any, rule: str) -> None:
    with pytest.raises(InputError, match=f"stage_id: .*{rule}"):
        refund.resolve('{"order": "a"}', stage_id=stage_id)
    assert refund.resolve('{"order": "a"}', stage_id="s" * 128)


# -- what is refused when it is defined


def test_a_context_of_another_kind_is_refused() -> None:
    """A model must not be asked for it."""

    def wrong(n: int, ctx: ToolContext[None]) -> int:
        return n

    def right(n: int, ctx: SelectionContext | None) -> int:
        return n

    assert refusal(wrong).rule == "parameter 'ctx': expected a SelectionContext, got a ToolContext"
    with pytest.raises(ToolDefinitionError, match="parameter 'ctx': expected a ToolContext, got a SelectionContext"):
        tool(right)
    assert list(schema_of(selection(right))["properties"]) == ["n"]


def test_what_is_no_sync_function_or_does_not_take_the_arguments_is_refused() -> None:
    def generator(n: int) -> Any:
        yield n

    assert "got a generator" in refusal(generator).rule
    assert "got a class" in refusal(Refund).rule
    assert "got int" in refusal(3).rule
    assert "got Tool" in refusal(refund).rule
    assert refusal(plain, refine=within).rule == "refine: expected a tuple of checks, got function"
    assert refusal(plain, refine=[within]).rule == "refine: expected a tuple of checks, got list"
    assert refusal(plain, refine=(within,)).rule.startswith("refine[0]: expected a function that takes the arguments")
    assert refusal(plain, refine=(plain, "x")).rule == "refine[1]: expected a function, got str"
    assert refusal(plain, refine=(Refund,)).rule == "refine[0]: expected a function, got a class"
    assert "got a generator" in refusal(plain, refine=(generator,)).rule
    with pytest.raises(ToolDefinitionError, match="its function: expected a function that takes the arguments"):
        Tool.selection("t", "", parameters=ANY, resolve=lambda a: a)  # type: ignore[arg-type, misc]
    with pytest.raises(InputError, match=r"ToolPolicy.errors"):
        selection(errors=KeyError)  # type: ignore[call-overload]


# -- made from a schema


def test_a_selection_can_be_made_from_a_schema() -> None:
    """(R173)"""
    seen: list[Any] = []

    def check(arguments: dict[str, Any]) -> str | None:
        seen.append(("check", arguments))
        return None if arguments["n"] % 2 else "n must be odd"

    def build(arguments: dict[str, Any], context: SelectionContext) -> Any:
        seen.append(("build", arguments))
        return arguments["n"], context

    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    pick = Tool.selection("pick", "Pick.", parameters=schema, resolve=build, refine=(check,), owner="desk")
    assert (pick.kind, pick.owner, pick.policy) == ("selection", "desk", refund.policy)
    assert pick.resolve('{"n": 3}', stage_id="s") == (3, SelectionContext(stage_id="s", tool="pick"))
    assert seen == [("check", {"n": 3}), ("build", {"n": 3})]
    assert refused(pick, '{"n": 4}', stage_id="s").code == "refined"
    assert refused(pick, "{}", stage_id="s").code == "schema_mismatch"
    assert len(seen) == 3
