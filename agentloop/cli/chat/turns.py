"""One turn of a chat: begun or taken up, told while it goes on, stopped by Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from itertools import takewhile
from typing import Any, Final

import msgspec

from ...agent import Agent
from ...decisions import Decision
from ...errors import AgentLoopError, LostError, RunCancelled, UnsettledError
from ...events import Event, ModelEnd, ModelStart, RunEnded, TextPreview
from ...events.envelope import random_id
from ...messages import Usage
from ...results import RunResult
from ...runtime import Runtime
from ...sinks import Follower
from ...views import RunView
from ...windows import retrieve
from ..notices import error_lines, notice
from .front import Front
from .interrupts import Interrupts
from .recap import Told, recap, tell

__all__ = ["AUTHOR", "Spent", "Turns"]

AUTHOR: Final = "chat"
"""Who decides, in the records: whoever sits at it."""


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a turn has used, also one that did not complete."""

    outcome: str
    model_calls: int
    tool_calls: int
    usage: Usage | None
    duration_ms: int


class Turns:
    """Runs the turns of a chat, one after the other.

    Attributes:
        spent: what each turn of this session has used, by its run; the newest one last.
    """

    def __init__(self, runtime: Runtime, agent: Agent[Any], front: Front, interrupts: Interrupts) -> None:
        self._runtime, self._agent, self._front, self._interrupts = runtime, agent, front, interrupts
        self._typed = agent.output is not None  # its text is not for people: its value is told
        self._text = ""
        self._seen: dict[str, str] = {}  # by run, the id of its newest event that was told
        self._recaps: dict[str, list[Told]] = {}  # by unfinished run, what of it the person was shown
        self._failed = False
        self._waits: set[str] = set()  # the turns that were left for a person
        self.spent: dict[str, Spent] = {}

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

    def recap(self, view: RunView) -> None:
        """Show an unfinished turn as far as it is stored."""
        self._recaps.pop(view.run_id, None)
        self._tell_stored(view)

    # -- private

    async def _whole(self, ref: str, work: Coroutine[Any, Any, RunResult[Any]]) -> RunResult[Any] | None:
        """Have a turn go on to its end, or until it is stopped, and tell what it came to."""
        try:
            result = await self._stoppable(ref, work)
        except RunCancelled:
            self._front.labelled("stopped", "this turn was cancelled", style="red")
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
        return await self._told(ref, self._runtime.follow(ref))

    async def _go_on(self, ref: str, decisions: Mapping[str, Decision] | None) -> RunResult[Any]:
        view = await self._runtime.view(ref)
        await self._runtime.take_up(ref, self._agent, decisions=decisions)
        events = self._runtime.follow(ref, after=self._seen.get(ref))
        if events.missed:
            self._tell_stored(view)
        return await self._told(ref, events)

    async def _told(self, ref: str, events: Follower) -> RunResult[Any]:
        """What a run has come to, or waits for, once its events are told."""
        with suppress(AgentLoopError):  # the result raises it too, once nobody is at the run any more
            async for event in events:
                self._seen[ref] = event.event_id
                self._tell_event(ref, event)
        try:
            return await self._runtime.result(ref, self._agent)
        except UnsettledError:  # once it is settled, its events are not kept any more
            self._recaps[ref] = recap(await self._runtime.view(ref), texts=not self._typed)
            raise

    def _tell_stored(self, view: RunView) -> None:
        """Show what of a turn is stored and was not shown yet."""
        told, before = recap(view, texts=not self._typed), self._recaps.get(view.run_id, [])
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(told, before, strict=False)))
        for one in told[same:]:
            tell(self._front, one)
        self._recaps[view.run_id] = told

    def _tell_event(self, ref: str, event: Event) -> None:
        match event:
            case ModelStart():
                self._text = ""
                self._front.begin()
            case TextPreview():
                self._text = self._text[: event.offset] + event.text
                if not self._typed:
                    self._front.preview(self._text)
            case ModelEnd(status="success"):
                self._front.stands("" if self._typed else self._text)
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
