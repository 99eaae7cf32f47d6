"""When a command that serves shall end."""

from __future__ import annotations

import asyncio
import contextlib
import signal

__all__ = ["stop_signal"]


def stop_signal() -> asyncio.Event:
    """What Ctrl-C and SIGTERM set from here on, in the event loop that runs."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows, where Ctrl-C interrupts by itself
            loop.add_signal_handler(number, stop.set)
    return stop
