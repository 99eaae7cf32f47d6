"""The events of one turn as a client follows them: what is stored, the live preview, and what it came to.

    (event of the run | turn)*  end

``turn`` replaces all that the client knows of the turn by what is stored of it. It is sent where events that the
client has not seen are not kept any more, as another process told them, and each time that what is stored by
another process has grown. ``end`` is the last one, with the turn as it is then: it has ended, or waits for a person, or
was left. A stream without it was cut, and the client comes back with the last id that it has seen.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec

from ...events import event_id
from ...sinks import Follower
from .service import Service
from .sse import ClientGone, SSEStream, data_frame
from .turn import TurnView
from .user import User

__all__ = ["stream_turn"]

_log = logging.getLogger("agentloop.web")

_POLL_SECONDS: Final = 1.0


async def stream_turn(
    service: Service, user: User, conversation: str, turn: str, stream: SSEStream, follower: Follower | None
) -> None:
    """Send a turn to its end.

    Args:
        follower: as `Service.follow` gave it, from where the client has read.

    Raises:
        LostError: the turn is gone. ClientGone: the client is.
    """
    while True:
        if follower is None or follower.missed:
            view = await service.turn(user, conversation, turn)
            await _send(stream, "turn", view)
        if follower is not None:
            try:
                await stream.follow(follower)
            except ClientGone:
                raise
            except Exception as error:  # noqa: BLE001  # what ended the run, of whatever kind; it stands in the turn
                _log.info("run %s ended with %s", user.run(conversation, turn), type(error).__name__)
        view = await service.turn(user, conversation, turn)
        while view.state == "elsewhere":
            view = await _grown(service, user, conversation, turn, stream, view)
        if view.state != "running":
            break
        after = event_id(user.run(conversation, turn), follower.seen) if follower is not None else None
        follower = service.follow(user, conversation, turn, after=after)
    await _send(stream, "end", view)


async def _grown(
    service: Service, user: User, conversation: str, turn: str, stream: SSEStream, shown: TurnView
) -> TurnView:
    """Wait until more is stored of a turn that another process is at, and show it."""
    await asyncio.sleep(_POLL_SECONDS)
    view = await service.turn(user, conversation, turn)
    if view.state != shown.state or (view.attempts, view.said) != (shown.attempts, shown.said):
        await _send(stream, "turn", view)
    return view


async def _send(stream: SSEStream, kind: str, view: TurnView) -> None:
    await stream.send(data_frame(msgspec.json.encode({"type": kind, "turn": view})))
