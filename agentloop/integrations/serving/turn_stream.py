"""One turn told to one client, in whatever protocol: what is stored, the live preview, and what it came to.

    (events | stored)*  end

What is stored of the turn is told where events that the client has not seen are not kept any more, as another process
told them, and each time that another process has stored more. The end is told with the turn as it is then: it has
ended, or waits for a person, or was left. A client that was not told the end was cut off, and comes back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

import msgspec

from ...events import event_id
from ...sinks import Follower
from .problem import OWN_ENDS
from .service import Service
from .sse import ClientGone, SSEStream, data_frame
from .turn import TurnView
from .user import User

__all__ = ["JsonTeller", "Teller", "tell_turn"]

_log = logging.getLogger("agentloop.web")

_POLL_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.01


class Teller(Protocol):
    """Writes a turn to a client. Each method may raise `ClientGone`."""

    async def events(self, events: Follower) -> None:
        """Tell the events of the run until there is none any more.

        Raises:
            Exception: what ended the run, after its last event.
        """

    async def stored(self, turn: TurnView) -> None:
        """Tell what is stored of the turn: it stands for all that was told before."""

    async def end(self, turn: TurnView) -> None:
        """Tell that nothing more comes, and what the turn is."""


class JsonTeller:
    """Events as `encode_event` writes them, and ``{"type": "turn" | "end", "turn": TurnView}``."""

    def __init__(self, stream: SSEStream) -> None:
        self._stream = stream

    async def events(self, events: Follower) -> None:
        """Each event with its id."""
        await self._stream.follow(events)

    async def stored(self, turn: TurnView) -> None:
        """A ``turn``."""
        await self._send("turn", turn)

    async def end(self, turn: TurnView) -> None:
        """An ``end``."""
        await self._send("end", turn)

    async def _send(self, kind: str, turn: TurnView) -> None:
        await self._stream.send(data_frame(msgspec.json.encode({"type": kind, "turn": turn})))


async def tell_turn(
    service: Service, user: User, conversation: str, turn: str, teller: Teller, follower: Follower | None
) -> None:
    """Tell a turn to its end.

    Args:
        follower: as `Service.follow` gave it, from where the client has read.

    Raises:
        LostError: the turn is gone. ClientGone: the client is.
    """
    run = user.run(conversation, turn)
    pause = 0.0
    while True:
        seen = None if follower is None else follower.seen
        if follower is None or follower.missed:
            await teller.stored(await service.turn(user, conversation, turn))
        if follower is not None:
            try:
                await teller.events(follower)
            except (ClientGone, *OWN_ENDS):
                raise
            except BaseException as error:  # noqa: BLE001  # what ended the run, of whatever kind; it stands in the turn
                _log.info("run %s ended with %s", run, type(error).__name__)
        view = await service.turn(user, conversation, turn)
        if view.state == "elsewhere" and follower is not None:
            await teller.stored(view)  # another process has told more, and nobody here has seen that
        while view.state == "elsewhere":
            view = await _grown(service, user, conversation, turn, teller, view)
        if view.state == "ended":
            await service.given_up(user, conversation, turn)
        if view.state != "running":
            break
        # its events have ended and its task is about to, which a store in memory does at once; others may take a while
        pause = 0.0 if follower is None or follower.seen != seen else min(_POLL_SECONDS, 2 * pause + _PAUSE_SECONDS)
        await asyncio.sleep(pause)
        after = event_id(run, follower.seen) if follower is not None else None
        follower = service.follow(user, conversation, turn, after=after)
    await teller.end(view)


async def _grown(
    service: Service, user: User, conversation: str, turn: str, teller: Teller, shown: TurnView
) -> TurnView:
    """Wait until more may be stored of a turn that another process is at, and tell it where it is."""
    await asyncio.sleep(_POLL_SECONDS)
    view = await service.turn(user, conversation, turn)
    if view.state != shown.state or (view.attempts, view.said) != (shown.attempts, shown.said):
        await teller.stored(view)
    return view
