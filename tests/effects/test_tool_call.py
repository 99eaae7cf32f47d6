"""One execution of one tool: every way it can go, as a value."""

from __future__ import annotations

import asyncio
import contextvars
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import msgspec
import pytest

from agentloop.effects import ToolOutcome, ToolPool, run_tool
from agentloop.effects.pool import Execution
from agentloop.effects.tool_call import execute
from agentloop.errors import BudgetError, InputError, PersistenceError, ToolFailed, ToolResultError
from agentloop.limits import FEEDBACK_BYTES
from agentloop.messages import ToolResult
from agentloop.tools import SelectionContext, Tool, ToolContext, selection, tool

SOON = 0.02

BEGUN = 0.25
"""Seconds in which a thread that is free has begun its work, also on a busy machine."""
"""A timeout that runs out: tools that outlast it wait for an event, never for a time."""

KINDS = ["sync", "async"]


@pytest.fixture
def pool() -> ToolPool:
    return ToolPool(4)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends the threads of tools that hang; set at the latest when the test is over."""
    event = threading.Event()
    yield event
    event.set()


def context(run_id: str = "r", **fields: Any) -> ToolContext[Any]:
    return ToolContext(deps=None, run_id=run_id, agent="a", tool="t", call_id="c", effect_id="e", **fields)


def make(kind: str, body: Callable[[], Any], **policy: Any) -> Tool:
    """A tool without parameters that does ``body``, in a thread or in the task."""
    if kind == "sync":

        def t() -> Any:
            return body()
    else:

        async def t() -> Any:  # type: ignore[misc]
            return body()

    return tool(**policy)(t)


def raising(error: BaseException) -> Callable[[], Any]:
    def body() -> Any:
        raise error

    return body


async def run(member: Tool, pool: ToolPool, **options: Any) -> ToolOutcome:
    return await execute(member, member.admit(""), context(), pool=pool, **options)


class Declared(ValueError):
    pass


@pytest.mark.parametrize("kind", KINDS)
class TestMatrix:
    @pytest.mark.parametrize(("value", "text"), [("plain", "plain"), ({"a": [1]}, '{"a":[1]}'), (None, "null")])
    async def test_a_value_is_done(self, kind: str, pool: ToolPool, value: Any, text: str) -> None:
        outcome = await run(make(kind, lambda: value), pool)
        assert (outcome.kind, outcome.code, outcome.error) == ("done", None, None)
        assert outcome.result == ToolResult.ok(text)

    @pytest.mark.parametrize("idempotent", [True, False])
    async def test_tool_failed_is_feedback(self, kind: str, pool: ToolPool, idempotent: bool) -> None:
        """(R61)"""
        outcome = await run(make(kind, raising(ToolFailed("no such note")), idempotent=idempotent), pool)
        assert (outcome.kind, outcome.code) == ("failed", "tool_failed")
        assert outcome.result == ToolResult.error("no such note")

    @pytest.mark.parametrize("idempotent", [True, False])
    async def test_a_declared_error_is_feedback_with_its_type(
        self, kind: str, pool: ToolPool, idempotent: bool
    ) -> None:
        """(R61)"""
        member = make(kind, raising(Declared("bad date")), errors=(ValueError,), idempotent=idempotent)
        outcome = await run(member, pool)
        assert (outcome.kind, outcome.code) == ("failed", "tool_error")
        assert outcome.result == ToolResult.error("Declared: bad date")
        assert isinstance(outcome.error, Declared)

    async def test_a_returned_error_result_is_a_failure_the_model_reads(self, kind: str, pool: ToolPool) -> None:
        """(R61, R63)"""
        outcome = await run(make(kind, lambda: ToolResult.error("no")), pool)
        assert (outcome.kind, outcome.code, outcome.result) == ("failed", "error_result", ToolResult.error("no"))

    @pytest.mark.parametrize("idempotent", [True, False])
    @pytest.mark.parametrize(
        "error", [ValueError("secret"), KeyError("k"), StopIteration(), StopAsyncIteration()], ids=repr
    )
    async def test_any_other_exception_crashes(
        self, kind: str, pool: ToolPool, idempotent: bool, error: Exception
    ) -> None:
        """(R61)"""
        outcome = await run(make(kind, raising(error), idempotent=idempotent), pool)
        assert (outcome.kind, outcome.code, outcome.result) == ("crashed", "tool_crashed", None)
        assert outcome.error is error or outcome.error.__cause__ is error  # a coroutine wraps StopIteration

    @pytest.mark.parametrize(("idempotent", "came"), [(True, "failed"), (False, "unknown")])
    async def test_hanging_ends_with_the_clock(
        self, kind: str, pool: ToolPool, release: threading.Event, idempotent: bool, came: str
    ) -> None:
        """(R330, R331)"""

        @tool(name="t", timeout=BEGUN, grace=SOON, idempotent=idempotent)
        def in_thread() -> None:
            release.wait()

        member = in_thread if kind == "sync" else tool(name="t", timeout=SOON, idempotent=idempotent)(hang)
        outcome = await run(member, pool)
        assert (outcome.kind, outcome.code, outcome.error) == (came, "timeout", None)
        assert outcome.result is not None
        assert outcome.result.status == "error"
        assert pool.busy("r") == ("t" if kind == "sync" else None)

    async def test_its_own_timeout_error_is_not_the_clock(self, kind: str, pool: ToolPool) -> None:
        own = TimeoutError("their clock")
        undeclared = await run(make(kind, raising(own)), pool)
        assert (undeclared.kind, undeclared.code, undeclared.error) == ("crashed", "tool_crashed", own)
        declared = await run(make(kind, raising(own), errors=(TimeoutError,)), pool)
        assert (declared.kind, declared.code) == ("failed", "tool_error")
        assert declared.result == ToolResult.error("TimeoutError: their clock")

    async def test_huge_output_is_cut_with_a_visible_mark(self, kind: str, pool: ToolPool) -> None:
        """(R98, R101)"""
        outcome = await run(make(kind, lambda: "é" * 100_000), pool)
        assert outcome.result is not None
        assert len(msgspec.json.encode(outcome.result)) <= FEEDBACK_BYTES
        assert outcome.result.text.endswith("[cut: the full output is 200000 bytes]")
        larger = await run(make(kind, lambda: "é" * 100_000), pool, max_output_bytes=50_000)
        assert larger.result is not None
        assert len(larger.result.text) > 20_000

    async def test_a_long_error_message_is_cut(self, kind: str, pool: ToolPool) -> None:
        outcome = await run(make(kind, raising(ToolFailed("x" * 100_000))), pool)
        assert outcome.result is not None
        assert len(outcome.result.text) == 2_000

    @pytest.mark.parametrize("value", [object(), b"bytes", math.nan, {"a": math.inf}, {1, object}], ids=repr)
    async def test_what_cannot_be_a_result_crashes(self, kind: str, pool: ToolPool, value: Any) -> None:
        outcome = await run(make(kind, lambda: value), pool)
        assert (outcome.kind, outcome.code, outcome.result) == ("crashed", "invalid_tool_result", None)
        assert isinstance(outcome.error, ToolResultError)

    async def test_lone_surrogates_are_replaced_in_results_and_in_messages(self, kind: str, pool: ToolPool) -> None:
        assert (await run(make(kind, lambda: "bad \udc97 byte"), pool)).result == ToolResult.ok("bad \ufffd byte")
        failed = await run(make(kind, raising(ToolFailed("bad \udc97 byte"))), pool)
        assert failed.result == ToolResult.error("bad \ufffd byte")

    async def test_a_cancelled_error_of_its_own_crashes_and_cancels_nothing(self, kind: str, pool: ToolPool) -> None:
        error = asyncio.CancelledError()
        outcome = await run(make(kind, raising(error)), pool)
        assert (outcome.kind, outcome.error) == ("crashed", error)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    async def test_an_empty_message_still_says_something(self, kind: str, pool: ToolPool) -> None:
        assert (await run(make(kind, raising(ToolFailed())), pool)).result == ToolResult.error("The tool failed.")
        declared = make(kind, raising(KeyError()), errors=(KeyError,))
        assert (await run(declared, pool)).result == ToolResult.error("KeyError")

    async def test_a_message_that_cannot_be_read_crashes(self, kind: str, pool: ToolPool) -> None:
        class Mute(ToolFailed):
            def __str__(self) -> str:
                raise RuntimeError("mute")

        outcome = await run(make(kind, raising(Mute())), pool)
        assert (outcome.kind, repr(outcome.error)) == ("crashed", "RuntimeError('mute')")

    async def test_context_variables_of_the_caller_are_seen(self, kind: str, pool: ToolPool) -> None:
        variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
        variable.set("from the run")
        assert (await run(make(kind, variable.get), pool)).result == ToolResult.ok("from the run")

    async def test_the_duration_is_measured_by_the_given_clock(self, kind: str, pool: ToolPool) -> None:
        times = iter([10.0, 12.5])
        outcome = await run(make(kind, lambda: 1), pool, clock=lambda: next(times))
        assert outcome.duration == 2.5


async def hang() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


class TestTimeout:
    async def test_a_tool_that_is_not_idempotent_has_an_unknown_outcome(self, pool: ToolPool) -> None:
        outcome = await run(tool(timeout=SOON)(hang), pool)
        assert (outcome.kind, outcome.code) == ("unknown", "timeout")
        assert outcome.result is not None
        assert outcome.result.status == "error"
        for words in ("did not finish within 0.02 s", "outcome is unknown", "neither success nor failure"):
            assert words in outcome.result.text

    async def test_an_idempotent_tool_failed(self, pool: ToolPool) -> None:
        outcome = await run(tool(timeout=SOON, idempotent=True)(hang), pool)
        assert (outcome.kind, outcome.code) == ("failed", "timeout")
        assert outcome.result is not None
        assert "safe to call it again" in outcome.result.text

    async def test_an_async_tool_was_cancelled_and_has_ended(self, pool: ToolPool) -> None:
        ended = []

        @tool(timeout=SOON)
        async def t() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(1)

        assert (await run(t, pool)).kind == "unknown"
        assert ended == [1]
        assert pool.busy("r") is None

    async def test_an_error_raised_on_the_way_out_does_not_hide_the_timeout(self, pool: ToolPool) -> None:
        @tool(timeout=SOON)
        async def t() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ToolFailed("interrupted") from None

        assert (await run(t, pool)).kind == "unknown"

    async def test_a_value_that_came_late_is_still_the_truth(self, pool: ToolPool) -> None:
        @tool(timeout=SOON)
        async def t() -> str:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "written"
            return "never"

        outcome = await run(t, pool)
        assert (outcome.kind, outcome.result) == ("done", ToolResult.ok("written"))

    async def test_a_clock_inside_the_tool_is_its_own(self, pool: ToolPool) -> None:
        @tool(timeout=5)
        async def t() -> None:
            with anyio.fail_after(SOON):
                await asyncio.Event().wait()

        outcome = await run(t, pool)
        assert (outcome.kind, type(outcome.error)) == ("crashed", TimeoutError)

    async def test_no_timeout_lets_a_tool_take_its_time(self, pool: ToolPool) -> None:
        gate = asyncio.Event()

        @tool(timeout=None)
        async def t() -> str:
            await gate.wait()
            return "done"

        task = asyncio.create_task(run(t, pool))
        await asyncio.sleep(0)
        gate.set()
        assert (await task).kind == "done"


class TestRepeated:
    """`run_tool` by itself: no store, no ledger (R331, R332, R333, R334)."""

    @staticmethod
    def late(starts: list[int], *, in_time: int = 99, **policy: Any) -> Tool:
        @tool(**{"timeout": SOON, "idempotent": True, **policy})
        async def t(ctx: ToolContext[Any]) -> str:
            starts.append(ctx.attempt)
            if ctx.attempt < in_time:
                await asyncio.Event().wait()
            return "in time"

        return t

    @staticmethod
    def context_of(attempt: int) -> ToolContext[Any]:
        return context(attempt=attempt)

    async def test_it_is_repeated_until_it_is_in_time(self, pool: ToolPool) -> None:
        """(R331, R332)"""
        starts: list[int] = []
        outcome = await run_tool(self.late(starts, in_time=3), {}, self.context_of, pool=pool)
        assert (outcome.kind, outcome.result, starts) == ("done", ToolResult.ok("in time"), [1, 2, 3])

    @pytest.mark.parametrize(
        ("policy", "attempt", "expected"),
        [
            ({}, 1, [1, 2, 3, 4]),
            ({}, 3, [3, 4]),
            ({"retries": 1}, 1, [1, 2]),
            ({"retries": 0}, 1, [1]),
            ({"idempotent": False}, 1, [1]),
        ],
    )
    async def test_its_policy_says_how_often(
        self, pool: ToolPool, policy: dict[str, Any], attempt: int, expected: list[int]
    ) -> None:
        """(R332, R334)"""
        starts: list[int] = []
        outcome = await run_tool(self.late(starts, **policy), {}, self.context_of, pool=pool, attempt=attempt)
        assert (outcome.code, outcome.left, starts) == ("timeout", False, expected)

    async def test_whoever_charges_it_is_asked_before_each_and_may_end_it(self, pool: ToolPool) -> None:
        """(R331)"""
        starts: list[int] = []
        charged: list[tuple[int, int]] = []

        async def charge(attempt: int) -> bool:
            charged.append((attempt, len(starts)))
            return attempt < 3

        outcome = await run_tool(self.late(starts), {}, self.context_of, pool=pool, before_retry=charge)
        assert (outcome.kind, outcome.code, starts) == ("failed", "timeout", [1, 2])
        assert charged == [(2, 1), (3, 2)]

    async def test_what_is_left_over_is_not_repeated(self, pool: ToolPool) -> None:
        """Not even where nobody is asked (R331)."""
        release, starts = asyncio.Event(), []

        @tool(timeout=SOON, grace=SOON, idempotent=True)
        async def t() -> None:
            starts.append(1)
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    pass

        outcome = await run_tool(t, {}, self.context_of, pool=pool)
        assert (outcome.kind, outcome.code, outcome.left, starts) == ("failed", "timeout", True, [1])
        release.set()
        assert await pool.wait_idle(10) == 0

    @pytest.mark.parametrize("error", [ToolFailed("no"), TimeoutError("own"), ValueError("bug")], ids=repr)
    async def test_an_error_of_its_own_is_not_repeated(self, pool: ToolPool, error: Exception) -> None:
        """(R333)"""
        starts: list[int] = []

        def body() -> None:
            starts.append(1)
            raise error

        await run_tool(make("async", body, idempotent=True, errors=(TimeoutError,)), {}, self.context_of, pool=pool)
        assert starts == [1]


class TestCancel:
    async def test_a_cancel_of_the_run_reaches_the_tool_and_is_passed_on_when_it_has_ended(
        self, pool: ToolPool
    ) -> None:
        started, ended = asyncio.Event(), []

        @tool
        async def t() -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                ended.append(1)

        task = asyncio.create_task(run(t, pool))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == [1]

    @pytest.mark.parametrize("reaction", ["returns", "raises", "fails"])
    async def test_a_tool_cannot_keep_a_cancel_to_itself(self, pool: ToolPool, reaction: str) -> None:
        started = asyncio.Event()

        @tool
        async def t() -> str:
            started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if reaction == "raises":
                    raise ValueError("swallowed") from None
                if reaction == "fails":
                    raise ToolFailed("swallowed") from None
            return "swallowed"

        task = asyncio.create_task(run(t, pool))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    async def test_a_cancel_by_an_enclosing_clock_is_that_clocks(self, pool: ToolPool) -> None:
        """A limit on the whole run is not the tool's timeout."""
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SOON):
                await run(tool(timeout=5)(hang), pool)

    async def test_a_sync_tool_is_left_alone_and_remembered(self, pool: ToolPool, release: threading.Event) -> None:
        started = threading.Event()

        @tool
        def slow() -> None:
            started.set()
            release.wait()

        task = asyncio.create_task(run(slow, pool))
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert pool.busy("r") == "slow"
        release.set()
        assert await pool.wait_idle() == 0
        assert pool.busy("r") is None


class TestThreads:
    async def test_a_thread_that_outlives_its_call_is_remembered_until_it_ends(
        self, pool: ToolPool, release: threading.Event
    ) -> None:
        @tool(timeout=BEGUN, grace=SOON)
        def slow() -> str:
            release.wait()
            return "too late"

        outcome = await run(slow, pool)
        assert outcome.kind == "unknown"
        assert (pool.busy("r"), pool.busy("other")) == ("slow", None)
        assert await pool.wait_idle(SOON) == 1
        assert await pool.wait_idle(SOON, run_id="other") == 0
        release.set()
        assert await pool.wait_idle(run_id="r") == 0

    async def test_a_running_sibling_is_not_left_over(self, pool: ToolPool) -> None:
        both = threading.Barrier(2, timeout=10)
        member = make("sync", both.wait)
        outcomes = await asyncio.gather(run(member, pool), run(member, pool))
        assert [outcome.kind for outcome in outcomes] == ["done", "done"]

    async def test_no_more_threads_than_places_and_a_call_that_gets_none_did_not_run(
        self, release: threading.Event
    ) -> None:
        pool, began = ToolPool(1), []

        @tool(timeout=BEGUN, grace=SOON)
        def slow() -> None:
            began.append(1)
            release.wait()

        assert (await execute(slow, {}, context("r1"), pool=pool)).kind == "unknown"
        outcome = await execute(slow, {}, context("r2"), pool=pool)
        assert (outcome.kind, outcome.code) == ("failed", "no_thread")
        assert outcome.result is not None
        assert "did not run" in outcome.result.text
        assert began == [1]
        release.set()
        await pool.wait_idle()
        assert (await execute(make("sync", lambda: 1), {}, context("r2"), pool=pool)).kind == "done"

    async def test_a_call_that_leaves_before_its_thread_began_gives_its_place_back(self) -> None:
        pool, began = ToolPool(1), []
        task = asyncio.create_task(pool.run_thread(Execution("r", "t"), lambda: began.append(1), seconds=None, grace=1))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await pool.wait_idle(5) == 0
        assert await pool.run_thread(Execution("r", "t"), lambda: 3, seconds=5, grace=1) == (3, None)

    async def test_a_thread_may_report_progress(self, pool: ToolPool) -> None:
        told = []

        async def on_progress(message: str, fraction: float | None) -> None:
            told.append((message, fraction))

        @tool
        def t(ctx: ToolContext[None]) -> str:
            anyio.from_thread.run(ctx.progress, "half", 0.5)
            return "done"

        outcome = await execute(t, t.admit(""), context(on_progress=on_progress), pool=pool)
        assert outcome.kind == "done"
        assert told == [("half", 0.5)]

    def test_a_size_outside_its_range_is_refused(self) -> None:
        with pytest.raises(InputError):
            ToolPool(0)


class TestProtected:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("error", [PersistenceError("x"), BudgetError("tokens", 1, 2)], ids=repr)
    async def test_an_error_of_the_runtime_is_not_declared_by_a_base_class(
        self, kind: str, pool: ToolPool, error: Exception
    ) -> None:
        """The model never decides whether a run goes on after one (R62)."""
        crashed = await run(make(kind, raising(error), errors=(Exception,)), pool)
        assert (crashed.kind, crashed.error) == ("crashed", error)
        declared = await run(make(kind, raising(error), errors=(type(error),)), pool)
        assert declared.kind == "failed"

    async def test_a_group_of_declared_errors_is_feedback_and_a_mixed_one_crashes(self, pool: ToolPool) -> None:
        group = ExceptionGroup("g", [ToolFailed("one"), ExceptionGroup("h", [Declared("two")])])
        outcome = await run(make("async", raising(group), errors=(Declared,)), pool)
        assert (outcome.kind, outcome.result) == ("failed", ToolResult.error("one; Declared: two"))
        mixed = ExceptionGroup("g", [ToolFailed("one"), KeyError("two")])
        assert (await run(make("async", raising(mixed), errors=(Declared,)), pool)).kind == "crashed"

    async def test_a_sync_tool_that_returns_a_coroutine_crashes_and_nothing_is_left_unawaited(
        self, pool: ToolPool
    ) -> None:
        outcome = await run(make("sync", hang), pool)
        assert (outcome.kind, outcome.code) == ("crashed", "invalid_tool_result")
        assert "async def" in str(outcome.error)

    async def test_an_interrupt_passes_through(self, pool: ToolPool) -> None:
        @tool
        async def t() -> None:
            raise GeneratorExit

        with pytest.raises(GeneratorExit):
            await run(t, pool)


async def test_arguments_and_context_reach_the_function(pool: ToolPool) -> None:
    """(R154)"""

    @tool
    async def add(a: int, ctx: ToolContext[Any], b: int = 2) -> str:
        return f"{a + b} in {ctx.run_id}"

    outcome = await execute(add, add.admit('{"a": 1}'), context(), pool=pool)
    assert outcome.result == ToolResult.ok("3 in r")


class TestSelection:
    """A selection is called in place: no thread, no clock, nothing to wait for."""

    async def test_its_value_is_encoded_like_any_other(self) -> None:
        where: list[Any] = []

        @selection
        def choose(n: int, context: SelectionContext) -> dict[str, int]:
            where.append((threading.current_thread(), context))
            return {"n": n}

        pool = ToolPool(1)
        await pool._places.acquire()  # no thread is free, and none is needed
        outcome = await execute(choose, choose.admit('{"n": 1}'), context(), pool=pool)
        assert (outcome.kind, outcome.result) == ("done", ToolResult.ok('{"n":1}'))
        assert where == [(threading.current_thread(), SelectionContext(stage_id="a", tool="choose"))]

    async def test_a_refused_refinement_is_feedback(self, pool: ToolPool) -> None:
        """(R184)"""
        built = []
        choose = selection(name="t", refine=(lambda: "not today",))(lambda: built.append(1))
        outcome = await run(choose, pool)
        assert (outcome.kind, outcome.code) == ("failed", "refined")
        assert outcome.result == ToolResult.error(
            "Nothing ran. The arguments are not accepted: not today. Correct the arguments and call it again."
        )
        assert built == []

    @pytest.mark.parametrize(
        ("error", "came"),
        [
            (ToolFailed("no"), ("failed", "tool_failed")),
            (Declared("no"), ("failed", "tool_error")),
            (ValueError("no"), ("crashed", "tool_crashed")),
            (TimeoutError(), ("crashed", "tool_crashed")),
            (asyncio.CancelledError(), ("crashed", "tool_crashed")),
        ],
        ids=repr,
    )
    async def test_what_it_raises_is_judged_as_of_any_tool(
        self, pool: ToolPool, error: BaseException, came: tuple[str, str]
    ) -> None:
        body = raising(error)
        for choose in (
            selection(name="t", errors=(Declared,))(body),
            selection(name="t", errors=(Declared,), refine=(body,))(lambda: None),
        ):
            outcome = await run(choose, pool)
            assert (outcome.kind, outcome.code, outcome.error) == (*came, error)

    async def test_an_awaitable_or_a_wrong_word_of_a_check_is_an_invalid_result(self, pool: ToolPool) -> None:
        """(R176)"""

        def awaitable() -> Any:
            return hang()

        for choose in (
            selection(awaitable),
            selection(name="t", refine=(awaitable,))(lambda: None),
            selection(name="t", refine=(lambda: False,))(lambda: None),
            Tool.selection("t", "", parameters={"type": "object"}, resolve=lambda a, c: b""),
        ):
            outcome = await run(choose, pool)
            assert (outcome.kind, outcome.code, outcome.result) == ("crashed", "invalid_tool_result", None)

    async def test_an_interrupt_passes_through(self, pool: ToolPool) -> None:
        with pytest.raises(KeyboardInterrupt):
            await run(selection(name="t")(raising(KeyboardInterrupt())), pool)


async def test_errors_in_a_group_of_groups_are_read_however_deep() -> None:
    error: Exception = ToolFailed("deep")
    for _ in range(5_000):
        error = ExceptionGroup("g", [error])

    @tool
    async def nested() -> str:
        """Fail."""
        raise error

    outcome = await run_tool(nested, {}, lambda _: context(), pool=ToolPool(1))
    assert (outcome.kind, outcome.result and outcome.result.text) == ("failed", "deep")
