"""What a person says about a turn that is not finished: decides, settles, has it go on, or discards it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...agent import Agent
from ...decisions import Answer, Approve, Decision, Deny, WaitingCall
from ...errors import AgentLoopError, InputError
from ...messages import ToolResult
from ...runtime import Runtime
from ...unsettled import Unsettled
from .front import Front
from .left import LeftTurn, conversation_row, left_turn
from .slash import choice_of, read_slash, said
from .turns import AUTHOR, Turns

__all__ = ["Unfinished"]

_EXPLAINED: Final = ("no", "done", "failed")
"""What more may be said after: whoever types more after another word does not mean that."""


class Unfinished:
    """Asks about the unfinished turn of a conversation until it has an end, or is left for later."""

    def __init__(self, runtime: Runtime, agent: Agent[Any], front: Front, turns: Turns) -> None:
        self._runtime, self._agent, self._front, self._turns = runtime, agent, front, turns

    async def attend(self, conversation: str) -> bool:
        """Whether no turn is left unfinished.

        Raises:
            EOFError: the person leaves. PersistenceError, RestoreError: the store failed.
        """
        while (left := await self._left(conversation)) is not None:
            self._front.labelled("turn", left.words, style="cyan")
            if not await self._step(left):
                return await self._left(conversation) is None
        return True

    async def _left(self, conversation: str) -> LeftTurn | None:
        return await left_turn(self._runtime, self._agent, await conversation_row(self._runtime, conversation))

    async def _step(self, left: LeftTurn) -> bool:
        """One choice of the person; False where the turn is left as it is."""
        match left.state:
            case "elsewhere":
                return False
            case "waiting":
                return await self._decide(left)
            case "unsettled":
                return await self._settle(left)
            case "paused":
                word, _ = await self._choice("continue, discard or later? ", ("continue", "discard", "later"))
                return await self._do(left, word)

    async def _do(self, left: LeftTurn, word: str, decisions: Mapping[str, Decision] | None = None) -> bool:
        if word == "later":
            return False
        if word == "discard":
            return await self._turns.discard(left.ref)
        return await self._turns.go_on(left.ref, decisions) is not None

    # -- calls that wait

    async def _decide(self, left: LeftTurn) -> bool:
        decisions: dict[str, Decision] = {}
        for call in left.waiting:
            self._show_call("approve?" if call.kind == "approval" else "answer?", call.tool, call.arguments)
            decided = await self._decide_call(call)
            if isinstance(decided, str):
                if decided == "later" and decisions:  # what was said of the calls before is kept
                    await self._turns.go_on(left.ref, decisions)
                return await self._do(left, decided)
            decisions[call.ref] = decided
        return await self._do(left, "continue", decisions)

    async def _decide_call(self, call: WaitingCall) -> Decision | str:
        """What is decided about a call; ``later`` or ``discard`` where nothing is."""
        while True:
            try:
                return await (self._approval() if call.kind == "approval" else self._answer())
            except InputError as error:
                self._turns.tell_error(error)

    async def _approval(self) -> Decision | str:
        words = ("yes", "no", "later", "discard")
        word, rest = await self._choice("y, n, n and a reason, later or discard? ", words)
        if word == "yes":
            return Approve(author=AUTHOR)
        return Deny(reason=rest, author=AUTHOR) if word == "no" else word

    async def _answer(self) -> Decision | str:
        """The result of an external call: any text, or one of four words after a slash."""
        while True:
            line = await self._front.read("its result, or /error TEXT, /deny REASON, /later, /discard: ")
            if read_slash(line) is None:
                if line.strip():
                    return Answer(result=said(line), author=AUTHOR)
                continue
            choice = choice_of(line[1:], ("error", "deny", "later", "discard"))
            if choice is None:
                continue
            word, rest = choice
            if word == "error":
                return Answer(result=ToolResult.error(rest), author=AUTHOR)
            return Deny(reason=rest, author=AUTHOR) if word == "deny" else word

    # -- effects of which nobody knows

    async def _settle(self, left: LeftTurn) -> bool:
        for item in left.unsettled:
            if item.kind == "send":
                words = "a request that may have been answered, and charged for; asking again sends another one"
                self._front.labelled("unknown", words, style="red")
            else:
                self._show_call("unknown", item.tool or "", item.arguments or "")
        word, _ = await self._choice("again (ask once more), discard or later? ", ("again", "discard", "later"))
        if word in ("discard", "later"):
            return await self._do(left, word)
        try:
            for item in left.unsettled:
                if item.kind == "send":
                    await self._runtime.settle_send(item.ref, item.effect_id, author=AUTHOR)
                elif not await self._settle_call(item):
                    return False
        except AgentLoopError as error:
            self._turns.tell_error(error)
            return False
        return await self._do(left, "continue")

    async def _settle_call(self, item: Unsettled) -> bool:
        """Have a person say what became of a call; False is later."""
        assert item.exchange is not None, "a call has a place"
        assert item.position is not None, "a call has a place"
        while True:
            self._show_call("settle", item.tool or "", item.arguments or "")
            word, rest = await self._choice(
                "done and its result, failed and why, repeat it, or later? ", ("done", "failed", "repeat", "later")
            )
            if word == "later":
                return False
            result = None
            if word != "repeat":
                result = ToolResult.ok(rest) if word == "done" else ToolResult.error(rest)
            limit = self._agent.limits.feedback_bytes
            try:
                await self._runtime.settle_call(
                    item.ref, item.exchange, item.position, author=AUTHOR, result=result, feedback_bytes=limit
                )
            except InputError as error:
                self._turns.tell_error(error)
                continue
            return True

    # -- asking

    def _show_call(self, label: str, tool: str, arguments: str) -> None:
        """A call with its arguments as the model wrote them; each row of those is marked, so none passes for ours."""
        self._front.labelled(label, tool, style="cyan")
        self._front.quoted(arguments)

    async def _choice(self, prompt: str, words: Sequence[str]) -> tuple[str, str]:
        """One of the words, and what follows it where something may; asks until there is one."""
        while True:
            try:
                choice = choice_of(await self._front.read(prompt), words)
            except InputError as error:
                self._turns.tell_error(error)
                continue
            if choice is not None and (not choice[1] or choice[0] in _EXPLAINED):
                return choice
