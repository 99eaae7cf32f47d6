"""The low-level pipeline: one order, whatever fails; what is returned, recorded and refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import (
    AdmissionError,
    AgentLoopError,
    InputError,
    ToolDefinitionError,
    ToolFailed,
    ToolResultError,
)
from agentloop.events import Journal, ToolCallRecord
from agentloop.messages import FunctionSpec, ToolResult
from agentloop.tools import (
    ArgumentsRefused,
    SelectionContext,
    Tool,
    ToolContext,
    ToolInvocation,
    ToolPipeline,
    ToolPolicy,
    ToolSet,
    selection,
    tool,
)
from agentloop.tools.pipeline import CallStatus


class Log:
    """A journal that keeps what it is told, among what else happens; codes apart."""

    def __init__(self, *, refuses: CallStatus | None = None) -> None:
        self.lines: list[str] = []
        self.codes: list[str | None] = []
        self.refuses = refuses

    def begin_tool(
        self, tool_id: str, *, invocation_id: str | None = None, parent_invocation_id: str | None = None
    ) -> str:
        self.lines.append(f"begin {tool_id} {parent_invocation_id}")
        return invocation_id or "new"

    def finish_tool(self, invocation_id: str, status: CallStatus, *, code: str | None = None) -> None:
        self.lines.append(f"{status} {invocation_id}")
        self.codes.append(code)
        if status == self.refuses:
            raise OSError("disk")


@tool
def double(n: int) -> int:
    """Double a number."""
    return 2 * n


@tool
async def later(n: int) -> int:
    """Double a number."""
    return 2 * n


def finished(work: Coroutine[Any, Any, ToolInvocation]) -> ToolInvocation:
    """What a coroutine returns that never waits; no event loop is needed for one."""
    try:
        work.send(None)
    except StopIteration as end:
        value: ToolInvocation = end.value
        return value
    raise AssertionError("it waits")


def doors(member: Tool, pipeline: ToolPipeline) -> list[Callable[[object], ToolInvocation]]:
    """Both ways in, as functions of the input."""
    return [
        lambda input: pipeline.invoke(member, input),
        lambda input: finished(pipeline.invoke_async(member, input)),
    ]


# -- what a call came to


def test_success_is_the_value_and_the_record_of_its_call() -> None:
    """(R300, R302, R306)"""
    log = Log()
    pipeline = ToolPipeline(journal=log, now_ms=lambda: 7)
    done = ToolSet([double]).invoke("double", '{"n": 2}', pipeline=pipeline, parent_invocation_id="p")
    assert (done.value, done.result) == (4, ToolResult.ok("4"))
    assert done.invocation == ToolCallRecord(tool_id="double", started_at_ms=7, status="success", invocation_id="new")
    assert log.lines == ["begin double p", "success new"]


def test_the_value_stays_the_object_that_the_tool_returned() -> None:
    """(R302)"""
    made = {"kept": [1]}

    @tool
    def give() -> dict[str, list[int]]:
        return made

    assert ToolSet([give]).invoke("give", "").value is made
    with pytest.raises(TypeError):
        ToolInvocation[int]  # type: ignore[misc]


async def test_a_call_that_is_awaited_takes_async_tools_and_adapters() -> None:
    """(R301, R304)"""

    async def execute(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
        await asyncio.sleep(0)
        return proceed()  # not awaited here: the pipeline awaits until it has a value

    async def in_thread(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(proceed)

    tools = ToolSet([double, later])
    for name in ("double", "later"):
        for pipeline in (ToolPipeline(), ToolPipeline(execute=execute)):
            assert (await tools.invoke_async(name, '{"n": 2}', pipeline=pipeline)).value == 4
    assert (await tools.invoke_async("double", '{"n": 2}', pipeline=ToolPipeline(execute=in_thread))).value == 4


def test_a_sync_call_refuses_an_awaitable_and_closes_it() -> None:
    """Nothing of the coroutine ran, and no warning says that it was never awaited (R301)."""
    ran: list[str] = []

    @tool
    async def act() -> None:
        ran.append("act")

    @tool
    def hides() -> Any:
        return act()

    async def execute(*_: object) -> None:
        ran.append("execute")

    def drops(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> str:
        proceed()
        return "as if it had run"

    log = Log()
    for member, adapter in ((act, None), (hides, None), (double, execute), (act, drops)):
        text = '{"n": 1}' if member is double else ""
        with pytest.raises(ToolResultError, match="expected a value, got an awaitable; use invoke_async"):
            ToolPipeline(execute=adapter, journal=log).invoke(member, text)
    assert ran == []
    assert [line for line in log.lines if "new" in line] == ["error new"] * 4


def test_input_is_json_text_or_a_plain_dict_and_is_admitted_as_strictly() -> None:
    """(R304)"""
    tools = ToolSet([double])
    assert tools.invoke("double", {"n": 3}).value == tools.invoke("double", '{"n": 3}').value == 6
    for wrong in ({"n": "3"}, {"n": 3, "m": 1}, {}, [3], "3", "{", None):
        with pytest.raises(ArgumentsRefused):
            tools.invoke("double", wrong)
    for foreign in ({"n": object()}, b"{}", float("nan"), {1: 2}):
        with pytest.raises(AdmissionError):
            tools.invoke("double", foreign)


def test_a_tool_gets_its_dependencies_and_the_identity_of_its_call() -> None:
    seen: list[Any] = []

    @tool
    def look(ctx: ToolContext[str]) -> None:
        seen.append((ctx.deps, ctx.run_id, ctx.call_id, ctx.effect_id, ctx.agent))

    @selection
    def choose(where: SelectionContext) -> str:
        return where.stage_id

    tools = ToolSet([look, choose])
    tools.invoke("look", "", deps="d", invocation_id="i")
    tools.invoke("look", "", pipeline=ToolPipeline(new_id=lambda: "made", caller="desk"))
    tools.invoke("look", "", pipeline=ToolPipeline(journal=Log()))
    assert seen == [("d", "i", "i", "i", "host"), (None, "made", "made", "made", "desk"), (None, *["new"] * 3, "host")]
    assert tools.invoke("choose", "").value == "host"
    ids = {tools.invoke("choose", "").invocation.invocation_id for _ in range(3)}
    assert len(ids) == 3
    for wrong in ("", 3):
        with pytest.raises(InputError, match="invocation_id: expected a str that is not empty"):
            tools.invoke("look", "", invocation_id=wrong)  # type: ignore[arg-type]


def test_a_name_that_is_not_in_the_set_begins_nothing() -> None:
    """`get` gives None, `require` and a call raise (R303)."""
    tools, log = ToolSet([double, later]).select("later"), Log()
    assert tools.get("double") is None
    pipeline = ToolPipeline(journal=log)
    for ask in (
        lambda: tools.require("double"),
        lambda: tools.invoke("double", "{}", pipeline=pipeline),
        lambda: finished(tools.invoke_async("double", "{}", pipeline=pipeline)),
    ):
        with pytest.raises(ToolDefinitionError) as caught:
            ask()
        assert caught.value.code == "unknown_tool"
    assert log.lines == []


# -- the order


STEPS = ["input", "adapter", "tool", "after the tool", "output", "check"]
ERRORS = [ToolFailed("x"), KeyError("x"), InputError("x"), asyncio.CancelledError(), KeyboardInterrupt()]


@given(fails=st.sampled_from([None, *STEPS]), error=st.sampled_from(ERRORS), is_async=st.booleans())
def test_the_order_is_the_same_whatever_fails(fails: str | None, error: BaseException, is_async: bool) -> None:
    """(R304, R306)"""
    log = Log()

    def step(name: str) -> None:
        log.lines.append(name)
        if name == fails:
            raise error

    class Traced(Tool):
        __slots__ = ()

        def admit(self, arguments_text: str) -> dict[str, Any]:
            step("input")
            return super().admit(arguments_text)

        def encode(self, value: object) -> ToolResult:
            step("output")
            return super().encode(value)

    def body(arguments: dict[str, Any], context: ToolContext[Any]) -> int:
        step("tool")
        return 4

    async def body_async(arguments: dict[str, Any], context: ToolContext[Any]) -> int:
        return body(arguments, context)

    def execute(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
        step("adapter")
        value = proceed()
        step("after the tool")
        return value

    async def execute_async(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
        step("adapter")
        value = await proceed()
        step("after the tool")
        return value

    call = body_async if is_async else body
    member = Traced.from_schema("t", "", parameters={"type": "object"}, call=call)
    adapter = execute_async if is_async else execute
    pipeline = ToolPipeline(execute=adapter, check=lambda: step("check"), journal=log, new_id=lambda: "i")
    sync, awaited = doors(member, pipeline)
    door = awaited if is_async else sync
    if fails is None:
        assert door("{}").value == 4
        assert log.lines == ["begin t None", *STEPS, "success new"]
        return
    with pytest.raises(type(error)) as caught:
        door("{}")
    assert caught.value is error
    cancelled = fails == "check" or not isinstance(error, Exception)
    assert log.lines == [
        "begin t None",
        *STEPS[: STEPS.index(fails) + 1],
        "cancelled new" if cancelled else "error new",
    ]


async def test_a_cancelled_task_is_recorded_as_cancelled() -> None:
    """(R306)"""
    log, reached = Log(), asyncio.Event()

    @tool
    async def wait() -> None:
        reached.set()
        await asyncio.Event().wait()

    work = asyncio.create_task(ToolPipeline(journal=log).invoke_async(wait, ""))
    await reached.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert log.lines == ["begin wait None", "cancelled new"]


def test_what_a_tool_concludes_is_not_how_its_call_went() -> None:
    """An error result is the tool's word; a raised error is the call's end (R306)."""
    log = Log()

    @tool
    def refuse() -> ToolResult:
        return ToolResult.error("no such order")

    @tool
    def fail() -> None:
        raise ToolFailed("no such order")

    done = ToolPipeline(journal=log).invoke(refuse, "")
    assert (done.result.status, done.invocation.status) == ("error", "success")
    with pytest.raises(ToolFailed):
        ToolPipeline(journal=log).invoke(fail, "")
    assert log.lines == ["begin refuse None", "success new", "begin fail None", "error new"]


@pytest.mark.parametrize("value", [object(), b"bytes", float("nan")])
def test_a_value_that_cannot_be_a_result_is_a_failure(value: Any) -> None:
    """(R304)"""
    log = Log()
    give = Tool.from_schema("give", "", parameters={"type": "object"}, call=lambda a, c: value)
    for door in doors(give, ToolPipeline(journal=log, check=lambda: log.lines.append("checked"))):
        with pytest.raises(ToolResultError):
            door("")
    assert log.lines == ["begin give None", "error new"] * 2


# -- the adapter


def test_what_a_model_may_see_is_still_checked_where_it_is_executed() -> None:
    """The host chooses what is visible beforehand, and its adapter permits each call (R174, R183)."""
    ran: list[int] = []

    @tool
    def pay(amount: int) -> None:
        ran.append(amount)

    def permit(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
        if member.name == "pay" and arguments["amount"] > 100:
            raise PermissionError("pay")
        return proceed()

    log = Log()
    stage = ToolSet([pay, double]).select("pay")
    assert [spec.name for spec in stage.specs] == ["pay"]
    stage.invoke("pay", '{"amount": 100}', pipeline=ToolPipeline(execute=permit, journal=log))
    with pytest.raises(PermissionError):
        stage.invoke("pay", '{"amount": 101}', pipeline=ToolPipeline(execute=permit, journal=log))
    assert ran == [100]
    assert log.lines[1::2] == ["success new", "error new"]


def test_no_tool_has_a_field_for_a_permission() -> None:
    """What a business allows stands in its adapter; without one, any tool of the set is called (R305)."""
    fields = {
        *FunctionSpec.__struct_fields__,
        *ToolPolicy.__struct_fields__,
        *ToolCallRecord.__struct_fields__,
        *double.digest_basis,
        *(name for name in dir(double) if not name.startswith("_")),
    }
    assert not [name for name in fields if any(word in name for word in ("auth", "permi", "role", "scope", "allow"))]
    assert ToolPipeline().invoke(double, {"n": 1}).value == 2


def test_an_adapter_runs_a_tool_once_and_only_while_the_call_lasts() -> None:
    """(R304)"""
    ran: list[str] = []
    kept: list[Callable[[], Any]] = []

    @tool
    def act() -> None:
        ran.append("act")

    def twice(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
        proceed()
        return proceed()

    def never(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
        kept.append(proceed)
        return "from elsewhere"

    def breaks(member: Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
        kept.append(proceed)
        raise KeyError

    with pytest.raises(InputError, match="tool 'act': expected one call of proceed, while its invocation lasts"):
        ToolPipeline(execute=twice).invoke(act, "")
    assert ran == ["act"]
    assert ToolPipeline(execute=never).invoke(act, "").value == "from elsewhere"
    with pytest.raises(KeyError):
        ToolPipeline(execute=breaks).invoke(act, "")
    for late in kept:
        with pytest.raises(InputError, match="while its invocation lasts"):
            late()
    assert ran == ["act"]


def test_an_adapter_cannot_change_the_arguments() -> None:
    def change(member: Tool, arguments: Any, proceed: Callable[[], Any]) -> Any:
        arguments["n"] = 50
        return proceed()

    with pytest.raises(TypeError):
        ToolPipeline(execute=change).invoke(double, {"n": 1})


# -- the check and the journal


def test_a_check_that_is_async_is_refused() -> None:
    async def check() -> None:
        raise AssertionError

    with pytest.raises(InputError, match=r"ToolPipeline.check: expected a sync function, got an async one"):
        ToolPipeline(check=check)  # type: ignore[arg-type]
    log = Log()
    with pytest.raises(ToolResultError, match="expected a check that is sync, got an awaitable"):
        ToolPipeline(check=lambda *_: check(), journal=log).invoke(double, {"n": 1})  # type: ignore[arg-type, return-value]
    assert log.lines[-1] == "error new"
    for field in ("execute", "check"):
        with pytest.raises(InputError, match=f"ToolPipeline.{field}: expected a function, got int"):
            ToolPipeline(**{field: 3})  # type: ignore[arg-type]


def test_a_journal_that_fails_hides_no_other_error() -> None:
    """(R306)"""
    log = Log(refuses="error")
    with pytest.raises(ArgumentsRefused) as caught:
        ToolPipeline(journal=log).invoke(double, "{")
    assert caught.value.__notes__ == ["The end of this call of tool 'double' was not recorded: OSError"]
    for door in doors(double, ToolPipeline(journal=Log(refuses="success"))):
        with pytest.raises(OSError, match="disk"):
            door({"n": 1})


def test_a_journal_that_cannot_begin_keeps_the_tool_from_running() -> None:
    ran: list[str] = []

    @tool
    def act() -> None:
        ran.append("act")

    class Full(Log):
        def begin_tool(self, tool_id: str, **ids: str | None) -> str:
            raise OSError("disk")

        def finish_tool(self, invocation_id: str, status: CallStatus, *, code: str | None = None) -> None:
            raise AssertionError("nothing began")

    for door in doors(act, ToolPipeline(journal=Full())):
        with pytest.raises(OSError, match="disk"):
            door("")
    assert ran == []


class Unwanted(AgentLoopError):
    code = "unwanted"


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (None, "success", None),
        (KeyError("x"), "error", "error"),
        (ToolFailed("no"), "error", "tool_failed"),
        (TimeoutError(), "error", "timeout"),
        (KeyboardInterrupt(), "cancelled", "interrupted"),
        (asyncio.CancelledError(), "cancelled", "cancelled"),
    ],
    ids=repr,
)
def test_a_journal_is_told_the_code_of_the_error_and_the_journal_of_runs_is_one(
    raised: BaseException | None, status: CallStatus, code: str | None
) -> None:
    @tool
    def act() -> None:
        if raised is not None:
            raise raised

    for door in range(2):
        log, journal = Log(), Journal()
        for each in (log, journal):
            work = doors(act, ToolPipeline(journal=each))[door]
            if raised is None:
                work("")
            else:
                with pytest.raises(type(raised)):
                    work("")
        assert (log.lines[-1], log.codes) == (f"{status} new", [code])
        (trace,) = journal.tools
        assert (trace.status, trace.code) == (status, code)


def test_what_a_check_raised_is_the_code_of_a_call_that_was_not_wanted() -> None:
    def check() -> None:
        raise Unwanted

    for at in range(2):
        log = Log()
        with pytest.raises(Unwanted):
            doors(double, ToolPipeline(journal=log, check=check))[at]({"n": 1})
        assert (log.lines[-1], log.codes) == ("cancelled new", ["unwanted"])


def test_records_are_values_that_cannot_be_changed() -> None:
    record = ToolCallRecord(tool_id="t", started_at_ms=1, invocation_id="i")
    assert msgspec.json.decode(msgspec.json.encode(record), type=ToolCallRecord) == record
    with pytest.raises(AttributeError):
        record.status = "error"  # type: ignore[misc, assignment]
