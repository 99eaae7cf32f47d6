"""A chat from its first line to its last: what is said is a turn, what begins with a slash a command."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from ...agent import Agent
from ...errors import AgentLoopError, LostError
from ...limits import check_name
from ...messages import Message, ModelExchange, Usage, UserMessage
from ...persistence import ConversationRow
from ...runtime import Runtime
from ...tools import Tool
from ..inert import one_line
from ..screen import counted, usage_words
from .front import Front
from .left import conversation_row, left_turn
from .private import write_private
from .slash import COMMANDS, Slash, read_slash, said
from .transcript import transcript, user_words
from .turns import Spent, Turns
from .unfinished import Unfinished

__all__ = ["Chat"]

_NUMBERED: Final = re.compile(r"(.*?)(?:~\d+)?", re.DOTALL)
_SHOWN: Final = 60
"""Characters of a message by which a person knows it again."""
_NAME_CHARS: Final = 118
"""What a number may be added to."""


class Chat:
    """One person and one agent, on one runtime.

    Args:
        named: a conversation to go on with, or to begin by that name; None begins one.
        kept: whether the store outlives the chat.
    """

    def __init__(
        self, runtime: Runtime, agent: Agent[Any], front: Front, turns: Turns, *, named: str | None, kept: bool
    ) -> None:
        self._runtime, self._agent, self._front, self._turns = runtime, agent, front, turns
        self._unfinished = Unfinished(runtime, agent, front, turns)
        self._name = _new_name() if named is None else named
        self._named, self._kept = named is not None, kept
        self._leaves = False

    async def run(self) -> None:
        """Talk until the person leaves.

        Raises:
            OSError: what the person writes cannot be read, or what is shown not written.
        """
        tools = counted(len(self._agent.toolset), "tool")
        self._front.labelled("chat", f"with {self._agent.name} ({tools}); /help lists the commands", style="cyan")
        try:
            if self._named and await self._row() is not None:
                await self._switch(self._name)
            else:
                self._tell_name()
            while not self._leaves:
                await self._step()
        except EOFError:
            return

    async def _step(self) -> None:
        """One line of the person; an error of it is told, and the chat goes on."""
        try:
            line = await self._front.read("> ", remember=True)
            slash = read_slash(line)
            if slash is not None:
                await self._do(slash)
            elif line.strip():
                await self._say(said(line))
        except AgentLoopError as error:
            self._turns.tell_error(error)

    async def _say(self, text: str) -> None:
        if not await self._unfinished.attend(self._name):
            self._front.labelled(
                "not said", "a turn is unfinished; say what becomes of it, or begin a /new conversation", style="red"
            )
            return
        await self._turns.say(text, self._name)
        await self._unfinished.attend(self._name)

    async def _do(self, slash: Slash) -> None:
        command = COMMANDS.get(slash.name)
        if command is None:
            self._tell_wrong(f"expected a command that /help lists, got /{slash.name}; // begins a text with a slash")
            return
        if slash.argument and not command.takes:
            self._tell_wrong(f"/{slash.name}: expected nothing after it")
            return
        if slash.insists and slash.name != "save":
            self._tell_wrong(f"/{slash.name}: expected no ! after it")
            return
        match slash.name:
            case "help":
                self._help()
            case "tools":
                self._tools()
            case "budget":
                self._budget()
            case "save":
                await self._save(slash.argument, replace=slash.insists)
            case "resume":
                await (self._switch(slash.argument) if slash.argument else self._list())
            case "undo":
                await self._undo()
            case "new":
                self._name = _new_name()
                self._tell_name()
            case "quit":
                self._leaves = True

    def _tell_wrong(self, why: str) -> None:
        self._front.labelled("error", why, style="red")

    def _tell_name(self) -> None:
        where = "in the store" if self._kept else "in memory only"
        self._front.labelled("talk", f"{self._name} ({where})")

    # -- commands

    def _help(self) -> None:
        for name, command in COMMANDS.items():
            self._front.line(f"  {f'/{name} {command.takes}'.ljust(16)}{command.purpose}")
        self._front.line("  Alt-Enter begins another line; Ctrl-C stops a turn, or clears the line")

    def _tools(self) -> None:
        tools = list(self._agent.toolset)
        if not tools:
            self._front.line("  the agent has no tools")
        for tool in tools:
            self._front.line(f"  {tool.spec.name}: {one_line(tool.spec.description)}")
            self._front.line(f"      {_policy_words(tool)}")

    def _budget(self) -> None:
        spent = list(self._turns.spent.values())
        if not spent:
            self._front.line("  no turn was taken yet")
            return
        last, limits = spent[-1], self._agent.limits
        tokens = 0 if last.usage is None else last.usage.total_tokens
        rows = [
            ("last turn", f"{last.outcome}, {last.duration_ms / 1000:.1f} s{_of(limits.max_seconds, ' s')}"),
            ("model calls", f"{last.model_calls}{_of(limits.max_model_calls)}"),
            ("tool calls", f"{last.tool_calls}{_of(limits.max_tool_calls)}"),
            ("tokens", f"{tokens}{_of(limits.max_tokens)} ({usage_words(last.usage)})"),
            ("session", f"{counted(len(spent), 'turn')}, {usage_words(_total(spent))}"),
        ]
        for label, words in rows:
            self._front.line(f"  {label.ljust(13)}{words}")

    async def _save(self, name: str, *, replace: bool) -> None:
        if not name:
            self._tell_wrong("/save: expected the name of a file")
            return
        messages = await self._history()
        if not messages:
            self._tell_wrong("/save: nothing was said yet that is part of the conversation")
            return
        text = transcript(self._name, self._agent.name, messages)
        try:
            write_private(name, text, replace=replace)
        except FileExistsError:
            self._tell_wrong(f"/save: {name} is there already; /save! replaces it")
        except (OSError, RuntimeError, ValueError) as error:  # no such home, a null character
            why = error.strerror if isinstance(error, OSError) else error
            self._tell_wrong(f"/save: {name}: {why}")
        else:
            self._front.labelled("saved", name)

    async def _list(self) -> None:
        rows = await self._runtime.conversations()
        if not rows:
            self._front.line("  there are no conversations yet")
        for row in rows:
            mark = "*" if row.name == self._name else " "
            left = await left_turn(self._runtime, self._agent, row)
            self._front.line(f"{mark} {one_line(row.name)}: {'at rest' if left is None else left.words}")

    async def _undo(self) -> None:
        row = await self._row()
        if row is not None and row.live is not None:
            self._tell_wrong("/undo: the last turn is unfinished; say what becomes of it first")
            await self._unfinished.attend(self._name)
            return
        refs = () if row is None else await self._runtime.exchanges(self._name)
        if not refs:
            self._tell_wrong("/undo: no turn is part of the conversation")
            return
        kept = [ref for ref in refs if ref.origin_id != refs[-1].origin_id]
        taken = _last_said(await self._history())
        before, self._name = self._name, await self._free_name()
        if kept:
            await self._runtime.branch(before, kept[-1], self._name)
        words = one_line(taken)
        self._front.labelled("undone", words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…")
        self._front.labelled("talk", f"{self._name} goes on before that; {before} stays as it is")

    # -- conversations

    async def _switch(self, name: str) -> None:
        """Go on with a conversation that is there."""
        check_name("/resume", name)
        row = await conversation_row(self._runtime, name)
        if row is None:
            raise LostError("conversation", name)
        self._name = name
        self._tell_name()
        if row.live is not None:
            self._turns.recap(await self._runtime.view(row.live))
            await self._unfinished.attend(name)
            return
        messages = await self._history()
        if words := _last_said(messages):
            self._front.line(f"> {words}")
        answer = next((one.reply.text for one in reversed(messages) if isinstance(one, ModelExchange)), "")
        if answer:
            self._front.document(answer)

    async def _row(self) -> ConversationRow | None:
        return await conversation_row(self._runtime, self._name)

    async def _history(self) -> tuple[Message, ...]:
        try:
            return await self._runtime.history(self._name)
        except LostError:  # nothing of it is stored yet
            return ()

    async def _free_name(self) -> str:
        """The conversation's name with the first number that is free behind it."""
        found = _NUMBERED.fullmatch(self._name)
        base = (found[1] if found else self._name)[:_NAME_CHARS]
        taken = {row.name for row in await self._runtime.conversations(prefix=base)} | {self._name}
        number = 2
        while f"{base}~{number}" in taken:
            number += 1
        return f"{base}~{number}"


def _new_name() -> str:
    """When the conversation began, and something that makes the name the only one."""
    return f"chat-{datetime.now().astimezone():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _policy_words(tool: Tool) -> str:
    if tool.kind == "external":
        return "external: a person gives its result"
    policy = tool.policy
    again = "idempotent" if policy.idempotent else "not idempotent"
    approval = {"none": "no approval", "required": "each call needs approval", "predicate": "some calls need approval"}
    clock = "no timeout" if policy.timeout is None else f"timeout {policy.timeout:g} s"
    return f"{again}, {approval[policy.approval_kind]}, {clock}"


def _of(limit: float | None, unit: str = "") -> str:
    return " (no limit)" if limit is None else f" of {limit}{unit}"


def _total(spent: Iterable[Spent]) -> Usage | None:
    total: Usage | None = None
    for one in spent:
        if one.usage is not None:
            total = one.usage if total is None else total + one.usage
    return total


def _last_said(messages: Iterable[Message]) -> str:
    return next((user_words(one) for one in reversed(tuple(messages)) if isinstance(one, UserMessage)), "")
