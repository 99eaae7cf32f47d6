"""How much a book may hold, and how much it holds."""

from __future__ import annotations

import msgspec

from ..errors import LimitExceeded
from ..limits import STORE_EXCHANGES, STORE_ITEM_BYTES, STORE_ORIGINS, STORE_TOTAL_BYTES, check_count

__all__ = ["BookLimits", "Room", "Rooms"]


class BookLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ceilings of a store in memory; or of one conversation, or one run of none, on a durable one (R112).

    They never relax a provider's limits (R113).

    Attributes:
        origins, exchanges: how many. total_bytes: of all. item_bytes: one origin, or one exchange
            with its feedback. Each 0 and up. The full text of an output that was cut for the model is
            kept up to ``item_bytes``, and 8 MiB; in memory all of them take half of ``total_bytes`` at
            most, so that they never are why a run cannot go on.

    Raises:
        InputError: a value outside its range, by name.
    """

    origins: int = STORE_ORIGINS
    exchanges: int = STORE_EXCHANGES
    total_bytes: int = STORE_TOTAL_BYTES
    item_bytes: int = STORE_ITEM_BYTES

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_count(f"BookLimits.{name}", getattr(self, name), 0)


class Room:
    """Counts what is held against the limits."""

    __slots__ = ("_limits", "exchanges", "origins", "outputs", "size")

    def __init__(self, limits: BookLimits) -> None:
        self._limits = limits
        self.origins = self.exchanges = self.size = self.outputs = 0

    def check(self, size: int, *, origins: int = 0, exchanges: int = 0) -> None:
        """Refuse ``size`` bytes that do not fit. Changes nothing.

        Raises:
            LimitExceeded: names the limit, what it allows and what it would come to.
        """
        limits = self._limits
        _check("item_bytes", limits.item_bytes, size)
        _check("total_bytes", limits.total_bytes, self.size + size)
        if origins:
            _check("origins", limits.origins, self.origins + origins)
        if exchanges:
            _check("exchanges", limits.exchanges, self.exchanges + exchanges)

    def takes_output(self, size: int, *, held: bool) -> bool:
        """Whether the full text of an output can be kept.

        Args:
            held: whether it stays in memory, and so takes room here.
        """
        limits = self._limits
        if size > min(limits.item_bytes, STORE_ITEM_BYTES):
            return False
        total = limits.total_bytes
        return not held or (self.outputs + size <= total // 2 and self.size + size <= total)

    def add_output(self, size: int) -> None:
        """Count the text of an output that stays in memory; a negative number for what was dropped."""
        self.size += size
        self.outputs += size

    def add(self, size: int, *, origins: int = 0, exchanges: int = 0) -> None:
        """Count what was installed; negative numbers for what was dropped."""
        self.size += size
        self.origins += origins
        self.exchanges += exchanges


class Rooms:
    """The room of a book: one for all it holds, or one for each conversation, and each run of none.

    Attributes:
        size: bytes held in all.
    """

    __slots__ = ("_all", "_limits", "_of", "size")

    def __init__(self, limits: BookLimits) -> None:
        self._limits, self._all = limits, Room(limits)
        self._of: dict[tuple[str | None, str | None], Room] = {}
        self.size = 0

    def of(self, conversation: str | None, run_id: str, *, apart: bool) -> Room:
        """What the facts of a run are counted in, to be looked at.

        Args:
            apart: whether its conversation has room of its own.
        """
        if not apart:
            return self._all
        return self._of.get(_key(conversation, run_id)) or Room(self._limits)

    def add(
        self,
        size: int,
        conversation: str | None,
        run_id: str,
        *,
        apart: bool,
        origins: int = 0,
        exchanges: int = 0,
        output: int = 0,
    ) -> None:
        """Count what was installed of a run; negative numbers for what was dropped.

        Args:
            size: bytes of all but texts of outputs. output: bytes of those.
        """
        key = _key(conversation, run_id)
        room = self._of.get(key) if apart else self._all
        if room is None:
            room = self._of[key] = Room(self._limits)
        room.add(size, origins=origins, exchanges=exchanges)
        if output:
            room.add_output(output)
        self.size += size + output
        if apart and not room.origins:
            del self._of[key]


def _key(conversation: str | None, run_id: str) -> tuple[str | None, str | None]:
    return conversation, run_id if conversation is None else None


def _check(limit: str, allowed: int, got: int) -> None:
    if got > allowed:
        raise LimitExceeded(limit, allowed, got)
