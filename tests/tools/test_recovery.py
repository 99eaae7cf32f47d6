"""Lookups: which are taken, and what reaches them."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.errors import InputError, ToolDefinitionError, ToolResultError
from agentloop.messages import ToolResult
from agentloop.tools import NOT_DONE, NotDone, Tool, ToolContext, ToolPolicy, tool


def context(effect_id: str = "e") -> ToolContext[Any]:
    return ToolContext(deps=None, run_id="r", agent="a", tool="t", call_id="c", effect_id=effect_id)


def refusal(recovery: Any) -> ToolDefinitionError:
    with pytest.raises(ToolDefinitionError) as caught:

        @tool(recovery=recovery)
        async def pay(to: str, amount: int = 1) -> str:
            """Pay."""
            return to

    assert (caught.value.code, caught.value.tool) == ("bad_tool", "pay")
    return caught.value


async def test_a_lookup_gets_the_arguments_of_its_tool_and_the_context_where_it_asks() -> None:
    """(R139)"""

    def find(amount: int, ctx: ToolContext[Any], to: str) -> str | NotDone:
        return f"{to} {amount} {ctx.effect_id}"

    @tool(recovery=find)
    async def pay(to: str, amount: int = 1) -> str:
        """Pay."""
        return to

    assert (pay.is_async, pay.lookup_is_async) == (True, False)
    assert pay.look_up(pay.admit('{"to": "Ann"}'), context("e7")) == "Ann 1 e7"

    async def look(to: str, amount: int) -> str:
        return f"{to} {amount}"

    other = tool(recovery=look)(lambda_of("pay"))
    assert (other.is_async, other.lookup_is_async) == (False, True)
    assert await other.look_up(other.admit('{"to": "Bob", "amount": 2}'), context()) == "Bob 2"
    assert "recovery" not in pay.spec.parameters


def lambda_of(name: str) -> Any:
    def pay(to: str, amount: int) -> str:
        """Pay."""
        return to

    pay.__name__ = name
    return pay


def test_a_lookup_with_other_parameters_is_refused_and_both_are_named() -> None:
    """(R129)"""

    def less(to: str) -> str:
        return to

    def more(to: str, amount: int, currency: str) -> str:
        return to

    def other(to: str, total: int) -> str:
        return to

    assert refusal(less).rule == "recovery: expected the parameters (to, amount), got (to)"
    assert refusal(more).rule == "recovery: expected the parameters (to, amount), got (to, amount, currency)"
    assert refusal(other).rule == "recovery: expected the parameters (to, amount), got (to, total)"


def test_a_lookup_that_cannot_be_read_is_refused() -> None:
    def bare(to, amount):  # type: ignore[no-untyped-def]
        return to

    def anything(**fields: Any) -> None:
        return None

    class Found:
        pass

    assert refusal(bare).rule.startswith("recovery: parameter 'to': expected a type annotation")
    assert refusal(anything).rule.startswith("recovery: parameter 'fields'")
    assert refusal(Found).rule == "recovery: expected a function, got a class"


def test_a_tool_made_from_a_schema_has_a_lookup_of_its_own_form() -> None:
    def find(arguments: dict[str, Any], ctx: ToolContext[Any]) -> Any:
        return [arguments, ctx.effect_id]

    def made(recovery: Any) -> Tool:
        return Tool.from_schema(
            "t", "", parameters={"type": "object"}, call=lambda a, c: None, policy=ToolPolicy(recovery=recovery)
        )

    member = made(find)
    assert member.look_up(member.admit('{"n": 1}'), context("e")) == [{"n": 1}, "e"]
    for wrong in (lambda: None, lambda arguments: None, lambda a, b, c: None):
        with pytest.raises(ToolDefinitionError, match="recovery: expected a lookup that takes the arguments"):
            made(wrong)


def test_a_tool_without_a_lookup_has_none_to_call() -> None:
    @tool(recovery="settle")
    def mail() -> str:
        """Mail."""
        return ""

    assert mail.lookup_is_async is False
    with pytest.raises(InputError, match="tool 'mail': expected one with a lookup, got settle"):
        mail.look_up({}, context())


def test_how_it_is_recovered_is_given_once() -> None:
    with pytest.raises(InputError, match="got both"):
        tool(recovery="settle", policy=ToolPolicy())


def test_only_a_lookup_says_that_nothing_was_done() -> None:
    """(R160)"""

    @tool
    def pay() -> str:
        """Pay."""
        return ""

    assert NOT_DONE is NotDone.NOT_DONE
    with pytest.raises(ToolResultError, match="got NOT_DONE, which only a lookup returns"):
        pay.encode(NOT_DONE)
    assert pay.encode("not_done") == ToolResult.ok("not_done")
