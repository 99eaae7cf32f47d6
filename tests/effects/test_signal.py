"""A signal is cancelled once and for ever, and a block under it ends with what came foremost."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from agentloop.effects import Bound, Signal
from agentloop.errors import CallTimeout, InputError, RunCancelled
from agentloop.testing import FakeClock
from tests.stepper import HeldTimers, cancel_current


class Reason(Exception):
    """Why a host wants no more of it."""


def me() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


@pytest.fixture
async def timers(monkeypatch: pytest.MonkeyPatch) -> HeldTimers:
    return HeldTimers(monkeypatch, Bound)


async def check_undisturbed() -> None:
    """Nothing of a block that is over is left in this task."""
    await asyncio.sleep(0)
    assert me().cancelling() == 0


# -- the signal


def test_the_first_reason_stands_and_is_raised_as_the_same_object_each_time() -> None:
    """(R324)"""
    signal, reason = Signal("r1"), Reason("enough")
    assert (signal.cancelled, signal.reason) == (False, None)
    signal.check()
    signal.cancel(reason)
    signal.cancel(Reason("more"))
    for _ in range(2):
        with pytest.raises(Reason) as caught:
            signal.check()
        assert caught.value is reason
    assert signal.cancelled


def test_a_cancel_without_a_reason_names_what_was_cancelled() -> None:
    signal = Signal("order-18")
    signal.cancel()
    with pytest.raises(RunCancelled, match=r"^signal 'order-18' was cancelled$") as caught:
        signal.check()
    assert caught.value is signal.reason
    assert (caught.value.what, caught.value.ref) == ("signal", "order-18")
    unnamed = Signal()
    unnamed.cancel()
    assert str(unnamed.reason) == "a signal without a name was cancelled"


@pytest.mark.parametrize("name", [3, None, b"r1", Signal()])
def test_a_name_is_a_text(name: Any) -> None:
    with pytest.raises(InputError, match=rf"^Signal\.name: expected str, got {type(name).__name__}$"):
        Signal(name)


def test_a_cancel_reaches_everything_below_and_nothing_above() -> None:
    """(R282)"""
    above, beside = Signal(), Signal()
    below = Signal(parents=(above, beside))
    leaf = Signal(parents=(below,))
    reason = Reason()
    below.cancel(reason)
    assert leaf.reason is below.reason is reason
    assert not above.cancelled
    assert not beside.cancelled
    other = Signal(parents=(above, beside))
    beside.cancel(reason)
    assert other.reason is reason
    assert not above.cancelled


def test_a_signal_has_the_earliest_deadline_of_its_own_and_those_above() -> None:
    """(R212, R276)"""
    clock = FakeClock()
    above = Signal(seconds=5, clock=clock)
    early = Signal(parents=(above,), seconds=2, clock=clock)
    late = Signal(parents=(above,), seconds=9, clock=clock)
    assert (early.seconds_left(), late.seconds_left(), Signal().seconds_left()) == (2, 5, None)
    clock.advance(2)
    reason = early.reason
    assert isinstance(reason, CallTimeout)
    assert (reason.limit, reason.seconds) == ("deadline", 2)
    assert early.reason is reason
    assert not late.cancelled
    clock.advance(3)
    assert late.reason is above.reason
    assert late.seconds_left() == 0.0
    assert early.reason is reason


def test_deadlines_of_several_clocks_are_not_compared() -> None:
    slow, fast = FakeClock(now=1), FakeClock(now=1_000_000)
    above = Signal(seconds=60, clock=slow)
    below = Signal(parents=(above,), seconds=90, clock=fast)
    assert below.seconds_left() == 60
    fast.advance(40)
    assert below.seconds_left() == 50
    slow.advance(60)
    assert below.seconds_left() == 0
    assert below.reason is above.reason


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Signal(parents=[Signal()]), "Signal.parents: expected a tuple of Signal, got list"),  # type: ignore[arg-type]
        (lambda: Signal(parents=(None,)), "Signal.parents: expected a tuple of Signal, got tuple"),  # type: ignore[arg-type]
        (lambda: Signal(seconds=0), "Signal.seconds: expected seconds above 0, got 0"),
        (lambda: Signal().cancel("stop"), "Signal.cancel: expected an exception or None, got str"),  # type: ignore[arg-type]
    ],
)
def test_a_signal_refuses_what_it_cannot_use_by_name(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert str(caught.value) == message


# -- the block


async def test_a_block_that_is_not_cancelled_leaves_nothing_behind(timers: HeldTimers) -> None:
    above = Signal()
    signal = Signal(parents=(above,), seconds=9)
    async with Bound(signal, 5) as bound:
        bound.check()
        assert bound.reason is None
        assert timers.waiting == 2
        await asyncio.sleep(0)
    assert timers.waiting == 0
    assert (signal._listeners, above._listeners) == ({}, {})
    with pytest.raises(Reason):
        async with Bound(signal, 5):
            raise Reason
    assert (signal._listeners, above._listeners, timers.waiting) == ({}, {}, 0)
    await check_undisturbed()


async def test_a_block_is_not_entered_where_its_signal_is_cancelled() -> None:
    """(R324)"""
    signal, reason = Signal(), Reason()
    signal.cancel(reason)
    with pytest.raises(Reason) as caught:
        async with Bound(signal):
            pytest.fail("it was entered")
    assert caught.value is reason
    assert signal._listeners == {}
    await check_undisturbed()


async def test_whoever_waits_in_a_block_is_cut_off_with_the_signal_s_reason_itself() -> None:
    """(R276, R282, R324)"""
    above, reason = Signal(), Reason()
    signal = Signal(parents=(Signal(parents=(above,)),))
    asyncio.get_running_loop().call_soon(above.cancel, reason)
    with pytest.raises(Reason) as caught:
        async with Bound(signal):
            await asyncio.Event().wait()
    assert caught.value is reason
    await check_undisturbed()


async def test_a_block_has_its_own_time_and_never_more_than_the_deadline(timers: HeldTimers) -> None:
    """(R212, R276)"""
    clock = FakeClock()
    signal = Signal(seconds=9, clock=clock)
    with pytest.raises(CallTimeout) as caught:  # noqa: PT012  # the block is what is tested
        async with Bound(signal, 5):
            asyncio.get_running_loop().call_soon(timers.fire, "_run_out")
            await asyncio.Event().wait()
    assert (caught.value.limit, caught.value.seconds) == ("call_timeout", 5)
    assert timers.seconds == [9, 5]
    signal.check()
    clock.advance(8)
    with pytest.raises(CallTimeout) as caught:  # noqa: PT012  # the block is what is tested
        async with Bound(signal, 5):
            clock.advance(1)
            asyncio.get_running_loop().call_soon(timers.fire, "_at_deadline")
            await asyncio.Event().wait()
    assert (caught.value.limit, caught.value.seconds) == ("deadline", 9)
    assert timers.seconds[2:] == [1, 5]
    assert caught.value is signal.reason
    await check_undisturbed()


async def test_a_deadline_is_the_signal_s_clock_s_to_say(timers: HeldTimers) -> None:
    """A loop's timer may be early by a rounding."""
    clock = FakeClock()
    with pytest.raises(CallTimeout, match="deadline"):  # noqa: PT012  # the block is what is tested
        async with Bound(Signal(seconds=9, clock=clock)):
            clock.advance(8.5)
            timers.fire("_at_deadline")
            assert timers.seconds == [9, 0.5]
            await asyncio.sleep(0)
            clock.advance(0.5)
            timers.fire("_at_deadline")
            await asyncio.Event().wait()


async def test_a_deadline_that_has_passed_unseen_comes_before_an_error() -> None:
    clock = FakeClock()
    with pytest.raises(CallTimeout, match="deadline"):  # noqa: PT012  # the block is what is tested
        async with Bound(Signal(seconds=9, clock=clock)):
            clock.advance(9)
            raise OSError


@pytest.mark.parametrize("late", ["signal", "time"])
async def test_a_block_that_ended_well_has_its_result_though_it_was_cancelled_by_itself_late(
    late: str, timers: HeldTimers
) -> None:
    """(R265, R324)"""
    signal = Signal()
    async with Bound(signal, 5):
        await asyncio.sleep(0)
        signal.cancel(Reason()) if late == "signal" else timers.fire("_run_out")
    await check_undisturbed()
    assert (signal._listeners, timers.waiting) == ({}, 0)


async def test_a_caller_s_cancel_that_came_too_late_is_raised_by_the_next_await_with_its_words() -> None:
    signal, done = Signal(), False
    async with Bound(signal, 5):
        await asyncio.sleep(0)
        me().cancel("the host's words")
        done = True
    assert done
    with pytest.raises(asyncio.CancelledError, match="the host's words"):
        await asyncio.sleep(0)
    assert me().uncancel() == 0
    await check_undisturbed()


async def test_a_caller_s_cancel_that_the_block_kept_to_itself_is_raised_by_the_next_await() -> None:
    async with Bound(Signal()):
        me().cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert me().uncancel() == 0
    await check_undisturbed()


async def test_a_block_can_ask_whether_something_kept_a_cancel_to_itself(timers: HeldTimers) -> None:
    """(R267)"""
    clock, reason = FakeClock(), Reason()
    signals = [Signal(), Signal(seconds=1, clock=clock), Signal(), Signal()]
    acts: list[Callable[[], object]] = [
        lambda: signals[0].cancel(reason),
        lambda: clock.advance(1),
        lambda: timers.fire("_run_out"),
        cancel_current,
    ]
    seen = []
    for signal, act in zip(signals, acts, strict=True):
        try:
            async with Bound(signal, 5) as bound:
                act()
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    pass
                bound.check()
        except BaseException as error:  # noqa: BLE001  # whichever it is
            seen.append(error)
    assert [type(error) for error in seen] == [Reason, CallTimeout, CallTimeout, asyncio.CancelledError]
    assert me().uncancel() == 0
    await check_undisturbed()


CAUSES = ("cancel", "signal", "time", "error")


@pytest.mark.parametrize("kept", [False, True], ids=["met", "kept"])
@pytest.mark.parametrize(
    "order", [order for size in range(1, 4) for order in itertools.permutations(CAUSES[:3], size)], ids="-".join
)
@pytest.mark.parametrize("fails", [False, True], ids=["waits", "fails"])
async def test_of_several_causes_the_foremost_is_raised_whatever_the_order_they_came_in(
    order: tuple[str, ...], fails: bool, kept: bool, timers: HeldTimers
) -> None:
    """The caller's own cancel, the signal's reason, the time, the error that was met (R324, R325)."""
    signal, reason = Signal(), Reason()
    acts: dict[str, Callable[[], object]] = {
        "cancel": lambda: me().cancel("the host's words"),
        "signal": lambda: signal.cancel(reason),
        "time": lambda: timers.fire("_run_out"),
    }
    caught: BaseException | None = None
    try:
        async with Bound(signal, 5):
            for name in order:
                acts[name]()
            if kept:
                with pytest.raises(asyncio.CancelledError):
                    await asyncio.sleep(0)
            if fails:
                raise OSError
            if kept:
                raise asyncio.CancelledError
            await asyncio.Event().wait()
    except BaseException as error:  # noqa: BLE001  # whichever it is
        caught = error
    match next(name for name in CAUSES if name in order):
        case "cancel":
            assert type(caught) is asyncio.CancelledError
            assert me().cancelling() == 1
            assert me().uncancel() == 0
        case "signal":
            assert caught is reason
        case "time":
            assert isinstance(caught, CallTimeout)
            assert caught.limit == "call_timeout"
    await check_undisturbed()


async def test_an_error_alone_is_raised_as_it_is() -> None:
    error = Reason()
    with pytest.raises(Reason) as caught:
        async with Bound(Signal(), 5):
            raise error
    assert caught.value is error
    assert (error.__cause__, error.__context__) == (None, None)


async def test_a_cancel_is_known_again_where_clean_up_raised_something_else() -> None:
    with pytest.raises(asyncio.CancelledError, match="the host's words"):  # noqa: PT012  # the block is what is tested
        async with Bound(Signal()):
            me().cancel("the host's words")
            try:
                await asyncio.sleep(0)
            finally:
                raise OSError
    assert me().uncancel() == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
async def test_an_end_of_the_interpreter_comes_before_all(error: BaseException) -> None:
    signal = Signal()
    with pytest.raises(type(error)) as caught:  # noqa: PT012  # the block is what is tested
        async with Bound(signal):
            signal.cancel(Reason())
            raise error
    assert caught.value is error
    if sys.version_info < (3, 13):  # from there on a cancel that is pending is taken back with its count
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)


async def test_a_reason_that_the_block_raised_itself_is_not_raised_twice() -> None:
    signal, reason = Signal(), Reason()
    with pytest.raises(Reason) as caught:  # noqa: PT012  # the block is what is tested
        async with Bound(signal):
            signal.cancel(reason)
            signal.check()
    assert caught.value is reason
    assert reason.__context__ is None
    await check_undisturbed()


@pytest.mark.parametrize("outer_too", [False, True])
async def test_blocks_can_be_nested(outer_too: bool, timers: HeldTimers) -> None:
    inner, reason = Signal(), Reason()
    outer = inner if outer_too else Signal()
    reached = []
    with pytest.raises(Reason) as caught:  # noqa: PT012  # the block is what is tested
        async with Bound(outer):
            try:
                async with Bound(inner, 5):
                    timers.fire("_run_out")
                    inner.cancel(reason)
                    await asyncio.sleep(0)
            finally:
                reached.append(me().cancelling())
    assert caught.value is reason
    await check_undisturbed()
    signal = Signal()
    async with Bound(signal), Bound(signal), Bound(signal, 5):
        signal.cancel(Reason())
    await check_undisturbed()


# -- the caller's own means


async def test_a_clock_of_the_caller_s_around_a_block_works_as_around_anything() -> None:
    """(R324)"""
    signal = Signal()
    with pytest.raises(TimeoutError):  # noqa: PT012  # the block is what is tested
        async with asyncio.timeout(0):
            async with Bound(signal, 60):
                await asyncio.Event().wait()
    await check_undisturbed()
    async with asyncio.timeout(60) as clock:
        signal.cancel(Reason())
        with pytest.raises(Reason):
            async with Bound(signal, 60):
                pass
    assert not clock.expired()
    await check_undisturbed()


async def test_a_clock_of_the_caller_s_that_ran_out_with_the_signal_is_the_caller_s() -> None:
    signal = Signal()
    with pytest.raises(TimeoutError):  # noqa: PT012  # the block is what is tested
        async with asyncio.timeout(0) as clock:
            async with Bound(signal):
                try:
                    await asyncio.Event().wait()
                finally:
                    signal.cancel(Reason())
                    await asyncio.sleep(0)
    assert clock.expired()
    await check_undisturbed()


async def test_a_task_group_of_the_caller_s_ends_a_block_in_its_body() -> None:
    async def fail() -> None:
        raise OSError

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  # the block is what is tested
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            async with Bound(Signal(), 60):
                await asyncio.Event().wait()
    assert [type(error) for error in caught.value.exceptions] == [OSError]
    await check_undisturbed()


async def test_a_task_group_s_task_that_its_signal_ended_fails_with_the_reason() -> None:
    signal, reason = Signal(), Reason()

    async def work() -> None:
        async with Bound(signal):
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  # the block is what is tested
        async with asyncio.TaskGroup() as group:
            group.create_task(work())
            await asyncio.sleep(0)
            signal.cancel(reason)
    assert caught.value.exceptions == (reason,)


@pytest.mark.parametrize("error", [None, OSError()])
async def test_a_scope_of_another_library_that_cancels_more_than_once_works(error: Exception | None) -> None:
    signal = Signal()
    with anyio.CancelScope() as scope:
        async with Bound(signal, 60):
            scope.cancel()
            try:
                await asyncio.Event().wait()
            finally:
                signal.cancel(Reason())
                if error is not None:
                    raise error
    assert scope.cancelled_caught
    await check_undisturbed()
