"""Several calls of one reply at the same time.

judge every call and reserve every execution in one step -> at most ``max_parallel_tools`` workers, each of
which takes the next call in order, stores its claim, runs it and stores its answer -> wait for all.

Each call goes as one alone does (`execution`); what differs is that a claim is stored when its tool is about
to begin, and with nothing else. Only the first call's may be there already, with the reply. A failure
of a tool stays in its slot. What ends the run, an error of one worker or a cancel, ends the other workers
too and is raised when they have ended: no tool goes on after its run, but what is left over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from ..errors import RunPaused, UnsettledError
from ..sinks import put_off
from .approval import Hold, hold_call
from .claims import Refusal, admitted, beside, busy_tool, release, reserved
from .execution import give_back, refuse, run_claimed, store_claim
from .scope import Claim, Scope, deliver_cancel, settle

__all__ = ["answer_calls"]


async def answer_calls(scope: Scope, exchange: int, positions: Sequence[int]) -> None:
    """Answer open calls of a reply, ``max_parallel_tools`` of them at once; the claimed one may be among them.

    One that waits for a host only gets there (see `approval`), and so does one whose child run does; the others
    are answered.

    Where the run is paused, or its time is over, no other call begins, and those stay open.

    Raises:
        BudgetError: the ledger has not enough tool calls for all of them; none has begun, and none is reserved.
        ApprovalFailed: whether one of them waits could not be asked; likewise.
        ToolCrashed, PersistenceError, NotOwnerError: the first error that ends the run; notes tell of others.
        RunPaused, UnsettledError: a call leaves the run without its end; the others have ended what they were at.
        asyncio.CancelledError: the run was cancelled. Slots are as `answer_call` leaves them.
    """
    crew = _Crew(scope, exchange, _reserved(scope, exchange, positions))
    try:
        await crew.work()
    finally:
        crew.put_back()


def _reserved(scope: Scope, exchange: int, positions: Sequence[int]) -> deque[tuple[int, Claim | Refusal | Hold]]:
    """What each call comes to, with every execution debited; nothing is awaited in between."""
    entry = scope.turn.entries[exchange]
    found: deque[tuple[int, Claim | Refusal | Hold]] = deque()
    try:
        for position in positions:
            if scope.claim is not None and scope.claim.position == position:
                found.append((position, scope.claim))
                continue
            claim = admitted(scope, exchange, position, entry)
            if isinstance(claim, Claim):
                claim = reserved(scope, claim) or claim
            found.append((position, claim))
    except BaseException:
        _put_back(scope, found)
        raise
    return found


def _put_back(scope: Scope, calls: deque[tuple[int, Claim | Refusal | Hold]]) -> None:
    for _, claim in calls:
        if isinstance(claim, Claim) and claim is not scope.claim:  # that one is given back as a fact
            release(scope, claim)
    calls.clear()


class _Crew:
    """The workers of one reply."""

    def __init__(self, scope: Scope, exchange: int, calls: deque[tuple[int, Claim | Refusal | Hold]]) -> None:
        self._scope, self._exchange, self._calls = scope, exchange, calls
        self._errors: list[Exception] = []
        self._left: RunPaused | UnsettledError | None = None  # the run is left without its end

    def put_back(self) -> None:
        """Put back what was reserved for calls that nobody took."""
        _put_back(self._scope, self._calls)

    async def work(self) -> None:
        loop, name = asyncio.get_running_loop(), f"agentloop tools of run {self._scope.run_id}"
        count = min(self._scope.limits.max_parallel_tools, len(self._calls))
        workers = {loop.create_task(self._take(), name=f"{name} ({number})") for number in range(count)}
        met: asyncio.CancelledError | None = None
        going, ending = workers, False
        while going:
            try:
                _, going = await asyncio.wait(going, return_when=asyncio.FIRST_EXCEPTION)
            except asyncio.CancelledError as cancel:
                met, ending = cancel, False
                going = {worker for worker in going if not worker.done()}
            if not ending:  # what ends one ends all
                for worker in going:
                    worker.cancel()
            ending = True
        self._raise(workers, met)

    def _raise(self, workers: set[asyncio.Task[None]], met: asyncio.CancelledError | None) -> None:
        ends = [worker.exception() for worker in workers if not worker.cancelled()]  # all retrieved
        odd = next((error for error in ends if error is not None and error not in self._errors), None)
        if odd is not None:
            raise odd  # the interpreter is to end
        if self._errors:
            first, *others = self._errors
            for other in others:
                first.add_note(f"Another call of the same reply met {type(other).__name__}.")
            if met is not None:
                put_off(met)
            raise first
        if met is not None:
            raise met
        if any(worker.cancelled() for worker in workers):
            raise asyncio.CancelledError
        if self._left is not None:
            raise self._left

    async def _take(self) -> None:
        """One worker: answer calls until there is none left, or none shall begin."""
        while self._calls and self._goes_on:
            position, call = self._calls.popleft()
            try:
                await self._answer(position, call)
            except (RunPaused, UnsettledError) as left:  # the others end what they are at
                self._left = self._left or left
            except Exception as error:
                self._errors.append(error)
                raise

    @property
    def _goes_on(self) -> bool:
        scope = self._scope
        return not (self._errors or self._left or scope.paused() or scope.out_of_time)

    async def _answer(self, position: int, call: Claim | Refusal | Hold) -> None:
        scope = self._scope
        if isinstance(call, Refusal):
            await refuse(scope, self._exchange, position, call)
        elif isinstance(call, Hold):
            await hold_call(scope, self._exchange, position, call)
        elif call is scope.claim or await self._claim(call):
            await run_claimed(scope, call)

    async def _claim(self, claim: Claim) -> bool:
        """Store the claim of an execution that is reserved; whether it may begin."""
        scope = self._scope
        busy = None if claim.goes_on else beside(busy_tool(scope, claim.tool))
        if busy is not None:
            release(scope, claim)
            await refuse(scope, self._exchange, claim.position, busy)
            return False
        if await store_claim(scope, claim):  # a cancel was held back: nothing begins
            try:
                await deliver_cancel()
            except asyncio.CancelledError:
                await settle(give_back(scope, claim))
                raise
        return True
