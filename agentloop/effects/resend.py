"""Which refused requests may be sent once more, when, and to whom: a host's decision, as values.

Everything here is a function of the ends of the attempts since the newest reply (`Turn.refused`),
so a run that is taken up later goes on as it would have. `next_attempt` is the decision, whoever
makes the model call; what is left of a budget is for the caller to look at, and `rest` waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ..errors import InputError
from ..exchange import SendEnded, Turn
from ..limits import MAX_RESENDS, MAX_RESENDS_CEILING, RESEND_DELAY, RESEND_MAX_DELAY, check_count, check_seconds
from ..providers import Provider

__all__ = ["Place", "Resend", "ResendPolicy", "next_attempt"]

_RATE_LIMIT: Final = 429
_UNAVAILABLE: Final = 503
_OURS: Final = frozenset({"first_event_timeout", "idle_timeout", "oversized", "total_timeout"})
"""Codes of a stream that was refused by a clock or a ceiling of this side, and not for what the server did."""


class Place(msgspec.Struct, frozen=True):
    """Where the next attempt of a model call goes.

    Attributes:
        provider: 0 is the runtime's own, 1 the first fallback.
        resends: how often that one has refused this call, since it was turned to.
    """

    provider: int
    resends: int


class Resend(msgspec.Struct, frozen=True):
    """Make the model call once more, after a wait; the attempt before was refused.

    Attributes:
        attempt_id: the attempt that was refused. code: its error's.
        at_least, at_most: seconds to wait; where they differ, at random between them.
    """

    attempt_id: str
    code: str
    at_least: float
    at_most: float


class ResendPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a request that was refused is sent once more. Off unless given.

    Each is a new attempt with its own id, facts, events and charge, and asks the same of the same
    provider byte for byte. It is made only after an outcome known not to have been processed, and
    after those for which a host says otherwise here; never after a timeout, a lost connection, a
    cancel, or anything of the attempt that was previewed.

    Attributes:
        max_resends: how often one provider is asked once more for one reply, 0 to 100.
        on_connection_failed: after `ConnectionFailed`: no connection was made.
        on_rate_limit: after HTTP 429.
        on_unavailable: after HTTP 503 too. An overloaded server has done nothing, but a proxy may
            send it for a request that was worked on: that it is safe is your word alone.
        on_refused_stream: after `StreamRefused` too, while nothing of the stream was previewed: the
            server broke it off, ended it with an error or broke a rule. It has worked on the request
            and may charge for it: that asking twice is right is your word alone. A stream that ran
            into a clock or a ceiling of this side is not meant.
        delay: seconds; the wait before the n-th resend is random between 0 and ``delay * 2**(n-1)``,
            unless the server said how long to wait.
        max_delay: the longest wait. A server that asks for a longer one is not asked again.
        fallbacks: providers that are turned to, in order and at once, when the one before may not
            be asked again. Closed with the runtime. The next reply is asked of the first one again.

    Raises:
        InputError: a value outside its range, by name.
    """

    max_resends: int = MAX_RESENDS
    on_connection_failed: bool = True
    on_rate_limit: bool = True
    on_unavailable: bool = False
    on_refused_stream: bool = False
    delay: float = RESEND_DELAY
    max_delay: float = RESEND_MAX_DELAY
    fallbacks: tuple[Provider, ...] = ()

    def __post_init__(self) -> None:
        check_count("ResendPolicy.max_resends", self.max_resends, 0, MAX_RESENDS_CEILING)
        for name in ("on_connection_failed", "on_rate_limit", "on_unavailable", "on_refused_stream"):
            value = getattr(self, name)
            if type(value) is not bool:
                raise InputError(f"ResendPolicy.{name}: expected a bool, got {type(value).__name__}")
        check_seconds("ResendPolicy.delay", self.delay)
        check_seconds("ResendPolicy.max_delay", self.max_delay)
        if self.max_delay < self.delay:
            raise InputError(
                f"ResendPolicy.max_delay: expected at least delay ({self.delay:g} s), got {self.max_delay:g}"
            )
        if type(self.fallbacks) is not tuple:
            raise InputError(
                f"ResendPolicy.fallbacks: expected a tuple of providers, got {type(self.fallbacks).__name__}"
            )
        for at, provider in enumerate(self.fallbacks):
            if not isinstance(provider, Provider):
                got = type(provider).__name__
                raise InputError(f"ResendPolicy.fallbacks[{at}]: expected a Provider, got {got}")

    def allows(self, ended: SendEnded) -> bool:
        """Whether an attempt that ended so may be followed by another one."""
        if ended.outcome != "failed" or ended.author is not None or ended.previewed:
            return False
        if ended.stream_refused:
            return self.on_refused_stream and ended.previewed is False and ended.code not in _OURS
        if ended.status == _UNAVAILABLE:
            return self.on_unavailable
        if ended.may_have_been_processed:
            return False
        if ended.status == _RATE_LIMIT:
            return self.on_rate_limit
        return ended.code == "connection_failed" and self.on_connection_failed

    def place(self, refused: Sequence[SendEnded]) -> Place | None:
        """Where the attempt after these goes; None when there is nobody left to ask."""
        provider = resends = 0
        for ended in refused:
            resends += 1
            if resends > self.max_resends or self._too_long(ended):
                provider, resends = provider + 1, 0
        return Place(provider, resends) if provider <= len(self.fallbacks) else None

    def wait(self, ended: SendEnded, place: Place) -> tuple[float, float]:
        """The least and the most seconds to wait before an attempt at ``place``, after this end of the one before."""
        if not place.resends:  # another one, which has refused nothing
            return 0.0, 0.0
        if ended.retry_after is not None:
            return ended.retry_after, ended.retry_after
        return 0.0, min(self.max_delay, self.delay * 2.0 ** (place.resends - 1))

    def _too_long(self, ended: SendEnded) -> bool:
        return ended.retry_after is not None and ended.retry_after > self.max_delay


def next_attempt(turn: Turn, policy: ResendPolicy | None) -> Resend | None:
    """Whether the newest attempt, which brought no reply, is followed by another one; None is that it is not.

    Args:
        policy: None is never (R114, R121).
    """
    ended = turn.ended
    if ended is None or policy is None or not policy.allows(ended):
        return None
    place = policy.place(turn.refused)
    return None if place is None else Resend(ended.attempt_id, ended.code or "", *policy.wait(ended, place))
