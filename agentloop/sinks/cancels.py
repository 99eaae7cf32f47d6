"""A cancel that meets work which has to come to its end first: taken, and raised later.

asyncio raises a cancel once, at an await that waits. Whoever has something to finish takes it there, and
has it raised anew afterwards. How often a task was asked to end (`asyncio.Task.cancelling`) stays what
it was: clocks and task groups around it compare that.
"""

from __future__ import annotations

import asyncio

__all__ = ["put_off", "take_cancel"]


async def take_cancel() -> asyncio.CancelledError | None:
    """Wait one turn of the loop; return the cancel that was to be raised in this task."""
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError as cancel:
        return cancel
    return None


def put_off(cancel: asyncio.CancelledError) -> None:
    """Have the next await of this task that waits raise a cancel that it has met, with the same words."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    task.uncancel()
    task.cancel(cancel.args[0] if cancel.args else None)
