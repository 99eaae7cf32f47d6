"""One turn of a chat: begun or taken up, told while it goes on, stopped by Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from ...agent import Agent
from ...decisions import Decision
from ...errors import AgentLoopError, LostError, RunCancelled, UnsettledError
from ...events import Event, ModelEnd, ModelStart, RunEnded, RunStarted, TextPreview
from ...events.envelope import random_id
from ...messages import Usage
from ...results import RunResult
from ...runtime import Runtime
from ...windows import retrieve
from ..notices import error_lines, notice
from .front import Front
from .interrupts import Interrupts

__all__ = ["AUTHOR", "Spent", "Started", "Turns"]

AUTHOR: Final = "chat"
"""Who decides, in the records: whoever sits at it."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn has used, also one that did not complete."""

    outcome: str
    model_calls: int
    tool_calls: int
    usage: Usage | None
    duration_ms: int


class Started:
    """An `Observer` that says when a run begins to be driven: from then on it can be followed."""

    def __init__(self) -> None:
        self._awaited: dict[str, asyncio.Event] = {}

    @contextmanager
    def expecting(self, ref: str) -> Iterator[asyncio.Event]:
        """Set when that run begins."""
        begun = self._awaited[ref] = asyncio.Event()
        try:
            yield begun
        finally:
            del self._awaited[ref]

    async def observe(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RunStarted) and event.run_id in self._awaited:
            self._awaited[event.run_id].set()


class Turns:
    """Runs the turns of a chat, one after the other.

    Args:
        started: an observer of ``runtime``.

    Attributes:
        spent: what each turn of this session has used, by its run; the newest one last.
        unsettled: what the newest turn waits for to be settled, where it does.
    """

    def __init__(
        self, runtime: Runtime, agent: Agent[Any], front: Front, interrupts: Interrupts, started: Started
    ) -> None:
        self._runtime, self._agent, self._front = runtime, agent, front
        self._interrupts, self._started = interrupts, started
        self._text = ""
        self._seen: tuple[str, str] | None = None  # a run, and the id of its newest event that was told
        self.spent: dict[str, Spent] = {}
        self._failed = False
        self._waits: set[str] = set()  # the turns that were left for a person
        self.unsettled: UnsettledError | None = None

    @property
    def failed(self) -> bool:
        """Whether a turn came to no result, or another outcome than ``completed``, or was left waiting."""
        return self._failed or bool(self._waits)

    async def say(self, text: str, conversation: str) -> RunResult[Any] | None:
        """A new turn; None where it came to no result, which was told."""
        ref = random_id()  # known before the run is stored, so that it can be stopped at any moment
        return await self._whole(ref, self._say(ref, text, conversation))

    async def go_on(self, ref: str, decisions: Mapping[str, Decision] | None = None) -> RunResult[Any] | None:
        """An unfinished turn is taken up; as `say`."""
        return await self._whole(ref, self._go_on(ref, decisions))

    async def discard(self, ref: str) -> bool:
        """An unfinished turn is ended, whatever became of its effects; False where it cannot be, which was told."""
        try:
            await self._runtime.cancel(ref, author=AUTHOR)
        except AgentLoopError as error:
            self.tell_error(error)
            return False
        finally:
            self._failed = True
        return True

    def tell_error(self, error: AgentLoopError) -> None:
        """An error in a line, and one for what the server said."""
        for at, line in enumerate(error_lines(error)):
            self._front.labelled("" if at else "error", line, style="red")

    # -- private

    async def _whole(self, ref: str, work: Coroutine[Any, Any, RunResult[Any]]) -> RunResult[Any] | None:
        """Have a turn go on to its end, or until it is stopped, and tell what it came to."""
        self.unsettled = None
        try:
            result = await self._stoppable(ref, work)
        except RunCancelled:
            self._front.labelled("stopped", "this turn was cancelled", style="red")
        except UnsettledError as error:
            self.unsettled = error
            self.tell_error(error)
        except AgentLoopError as error:
            self.tell_error(error)
        else:
            self._tell_result(result)
            if result.outcome == "waiting_for_approval":
                self._waits.add(ref)
            else:
                self._waits.discard(ref)
                self._failed = self._failed or result.outcome != "completed"
            return result
        self._failed = True
        return None

    async def _stoppable(self, ref: str, work: Coroutine[Any, Any, RunResult[Any]]) -> RunResult[Any]:
        task = asyncio.create_task(work, name="agentloop chat turn")
        task.add_done_callback(retrieve)
        stopping: list[asyncio.Task[None]] = []

        def stop() -> None:
            if all(one.done() for one in stopping):
                self._front.labelled("stopping", "this turn", style="red")
                stopping.append(asyncio.create_task(self._stop(ref, task)))

        with self._front.turn(), self._interrupts.to(stop):
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError:
                task.cancel()
                raise
            while pending := {one for one in stopping if not one.done()}:
                await asyncio.wait(pending)
        for one in stopping:
            one.result()
        if task.cancelled():
            raise RunCancelled(ref)
        return task.result()

    async def _stop(self, ref: str, task: asyncio.Task[RunResult[Any]]) -> None:
        try:
            await self._runtime.cancel(ref, author=AUTHOR)
        except LostError:  # it was not stored yet
            task.cancel()
            await asyncio.wait({task})
            try:
                await self._runtime.cancel(ref, author=AUTHOR)
            except LostError:
                return

    async def _say(self, ref: str, text: str, conversation: str) -> RunResult[Any]:
        await self._runtime.submit(self._agent, text, conversation=conversation, run_id=ref)
        await self._tell(ref)
        return await self._runtime.result(ref, self._agent)

    async def _go_on(self, ref: str, decisions: Mapping[str, Decision] | None) -> RunResult[Any]:
        with self._started.expecting(ref) as begun:
            resuming = asyncio.create_task(self._runtime.resume(ref, self._agent, decisions=decisions))
            resuming.add_done_callback(retrieve)
            begins = asyncio.create_task(begun.wait())
            try:
                await asyncio.wait({resuming, begins}, return_when=asyncio.FIRST_COMPLETED)
                if begun.is_set():
                    await self._tell(ref)
                return await resuming
            except asyncio.CancelledError:
                resuming.cancel()
                raise
            finally:
                begins.cancel()
                await asyncio.wait({resuming, begins})

    async def _tell(self, ref: str) -> None:
        """Tell a run's events until it has left off.

        Raises:
            AgentLoopError: what ended the run.
        """
        after = self._seen[1] if self._seen is not None and self._seen[0] == ref else None
        async for event in self._runtime.follow(ref, after=after):
            self._seen = (ref, event.event_id)
            self._tell_event(ref, event)

    def _tell_event(self, ref: str, event: Event) -> None:
        typed = self._agent.output is not None  # its text is not for people: its value is told
        match event:
            case ModelStart():
                self._text = ""
                self._front.begin()
            case TextPreview():
                self._text = self._text[: event.offset] + event.text
                if not typed:
                    self._front.preview(self._text)
            case ModelEnd(status="success"):
                self._front.stands("" if typed else self._text)
            case ModelEnd():
                self._front.withdrawn()
                notice(self._front, event)
            case RunEnded():
                self.spent.pop(ref, None)
                self.spent[ref] = Spent(
                    outcome=event.outcome,
                    model_calls=event.model_calls,
                    tool_calls=event.tool_calls,
                    usage=event.usage,
                    duration_ms=event.duration_ms,
                )
            case _:
                notice(self._front, event)

    def _tell_result(self, result: RunResult[Any]) -> None:
        if result.has_value:
            self._front.line(msgspec.json.encode(result.value).decode())
        if result.refusal:
            self._front.labelled("refusal", result.refusal, style="red")
        if result.outcome not in ("completed", "waiting_for_approval"):
            self._front.labelled("end", f"{result.outcome} ({result.reason})", style="red")
