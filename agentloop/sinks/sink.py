"""Who receives events."""

from __future__ import annotations

from typing import Protocol

from ..errors import InputError
from ..events import Event, OutputEvent

__all__ = ["Observer", "Sink", "require_observer", "require_sink"]


class Sink(Protocol):
    """Receives a run's output events: previews and their start and end.

    Calls are awaited one after the other, at most one a network read, so a slow sink slows its own
    run down and nothing else. An error it raises ends the run; only for `ModelEnd` it does not
    (that notice has 250 ms, also after a cancel).
    """

    async def emit(self, event: OutputEvent) -> None:
        """Take one event."""


class Observer(Protocol):
    """Watches every event of every run, on the side.

    It has its own bounded queue and task: what it raises is logged and counted, what it is too
    slow for is dropped and counted, and neither reaches a run.
    """

    async def observe(self, event: Event) -> None:
        """Take one event."""


def require_sink(where: str, value: object) -> None:
    """Refuse what is no `Sink`, before a run meets it.

    Raises:
        InputError: names ``where`` and what came.
    """
    _require_method(where, value, "emit")


def require_observer(where: str, value: object) -> None:
    """Refuse what is no `Observer`; as `require_sink`."""
    _require_method(where, value, "observe")


def _require_method(where: str, value: object, method: str) -> None:
    if isinstance(value, type):
        raise InputError(f"{where}: expected an object with an async {method}(event), got the class {value.__name__}")
    if not callable(getattr(value, method, None)):
        raise InputError(f"{where}: expected an object with an async {method}(event), got {type(value).__name__}")
