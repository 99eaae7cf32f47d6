"""How many things may go on at the same time, in all and for each user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .problem import Problem
from .user import User

__all__ = ["Places"]

_RETRY_SECONDS = 1.0
_CROWDED_SECONDS = 5.0


class Places:
    """Places that are taken and given back. One event loop.

    Args:
        what: what they are for, as in ``runs``; the limits are named after it.
        total, a_user: how many there are.

    Attributes:
        taken: how many are taken now.
    """

    def __init__(self, what: str, *, total: int, a_user: int) -> None:
        self._what, self._total, self._a_user = what, total, a_user
        self._of: dict[str, int] = {}
        self.taken = 0

    def take(self, user: User) -> None:
        """Take a place for a user; `give_back` it.

        Raises:
            Problem: 429 with ``Retry-After``, all places of the user, or all there are, are taken.
        """
        own = self._of.get(user.key, 0)
        if own >= self._a_user:
            raise self._full(f"{self._what}_a_user", self._a_user, _RETRY_SECONDS)
        if self.taken >= self._total:
            raise self._full(self._what, self._total, _CROWDED_SECONDS)
        self._of[user.key] = own + 1
        self.taken += 1

    def give_back(self, user: User) -> None:
        """Give a place back that was taken for the user."""
        left = self._of[user.key] - 1
        if left:
            self._of[user.key] = left
        else:
            del self._of[user.key]
        self.taken -= 1

    @contextmanager
    def hold(self, user: User) -> Iterator[None]:
        """Have a place for the time of a block. As `take`."""
        self.take(user)
        try:
            yield
        finally:
            self.give_back(user)

    def _full(self, limit: str, allowed: int, seconds: float) -> Problem:
        message = f"{limit}: allowed {allowed} at the same time, got one more"
        return Problem(429, "too_many", message, retry_after=seconds, facts={"limit": limit, "allowed": allowed})
