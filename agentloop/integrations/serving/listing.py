"""A user's conversations as a list, each under the words that it began with."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from ...errors import LostError
from ...runtime import Runtime
from .user import User

__all__ = ["ConversationItem", "Listing"]

_TITLE_CHARS = 80
_TITLES = 4_096
_KEPT_SECONDS = 60.0


class ConversationItem(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation in a user's list.

    Attributes:
        title: the beginning of what was said first, up to 80 characters. updated_at_ms: when its newest turn began.
        turns: how many it has. live: the one that has not ended, None where all have.
    """

    id: str
    title: str
    updated_at_ms: int
    turns: int
    live: str | None


class Listing:
    """Lists conversations, and keeps the titles of the newest 4,096 that it was asked for.

    For a minute: a text may be removed from the store, by whatever process, and nobody tells of that.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._titles: dict[str, tuple[float, str]] = {}  # and when it was read, by the id of the first run

    async def items(self, user: User, *, limit: int) -> list[ConversationItem]:
        """A user's conversations, the one with the newest turn first."""
        rows = await self._runtime.conversations(prefix=user.prefix)
        rows.sort(key=lambda row: (row.newest_at_ms, row.name), reverse=True)
        return [
            ConversationItem(
                id=row.name.removeprefix(user.prefix),
                title=await self._title(row.runs),
                updated_at_ms=row.newest_at_ms,
                turns=len(row.runs),
                live=None if row.live is None else row.live.rpartition(".")[2],
            )
            for row in rows[:limit]
        ]

    def forget(self, run_id: str) -> None:
        """Drop what is kept of the conversation that began with a run."""
        self._titles.pop(run_id, None)

    async def _title(self, runs: Sequence[str]) -> str:
        first, now = runs[0], asyncio.get_running_loop().time()
        read_at, title = self._titles.pop(first, (now - _KEPT_SECONDS, ""))
        if now - read_at >= _KEPT_SECONDS:
            try:
                messages = (await self._runtime.view(first)).messages
            except LostError:  # it was forgotten just now
                return ""
            said = [message.text for message in messages if message.role == "user"]
            line = said[-1].strip().partition("\n")[0] if said else ""
            read_at, title = now, line if len(line) <= _TITLE_CHARS else f"{line[: _TITLE_CHARS - 1]}…"
            if len(self._titles) >= _TITLES:
                self._titles.pop(next(iter(self._titles)))
        self._titles[first] = read_at, title
        return title
