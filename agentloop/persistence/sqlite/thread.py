"""A thread that owns one connection: what waits is done together, and the event loop never waits.

It is a daemon, so that it never holds up the end of the process. A job that was handed over is
done even when its caller was cancelled or its loop is gone: a write that began has an end.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from ...errors import PersistenceError

__all__ = ["ConnectionThread", "Outcome", "Work"]

P = ParamSpec("P")
T = TypeVar("T")

_TOGETHER: Final = 1_000
"""Most jobs done in one go, so that a transaction has a bound."""


class Work(NamedTuple):
    """One thing to do with the connection."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self, connection: sqlite3.Connection) -> Any:
        return self.function(connection, *self.args, **self.kwargs)


class Outcome(NamedTuple):
    """What became of one job: its value, or its error."""

    value: Any = None
    error: BaseException | None = None


class _Job(NamedTuple):
    work: Work
    future: asyncio.Future[Any]


class ConnectionThread:
    """One event loop uses it.

    Args:
        connect: makes the connection, in the thread.
        perform: does jobs that waited together, in order; one outcome a job.
    """

    def __init__(
        self,
        name: str,
        *,
        connect: Callable[[], sqlite3.Connection],
        perform: Callable[[sqlite3.Connection, Sequence[Work]], Sequence[Outcome]],
    ) -> None:
        self._name, self._connect, self._perform = name, connect, perform
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopped = False

    async def start(self) -> None:
        """Connect.

        Raises:
            What ``connect`` raises; the thread has ended then.
        """
        self._thread.start()
        try:
            await self._started
        except asyncio.CancelledError:
            self.stop()
            raise
        except BaseException:
            await self._ended
            self._thread.join()
            raise

    async def do(
        self, function: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Have it done; return its value or raise its error. Cancelling gives up the wait only."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(_Job(Work(function, args, kwargs), future))
        return await future

    def stop(self) -> None:
        """Let the thread end when it has done what it was handed."""
        if not self._stopped:
            self._stopped = True
            self._jobs.put(None)

    async def close(self, *, seconds: float) -> None:
        """Stop it and wait for its end.

        Raises:
            PersistenceError: it has not ended in time; a job hangs in the operating system.
        """
        self.stop()
        done, _ = await asyncio.wait([self._ended], timeout=seconds)
        if not done:
            raise PersistenceError(f"{self._name}: expected it to end within {seconds:g} s, it is still at work")
        self._thread.join()  # it has nothing left to do

    # -- in the thread

    def _run(self) -> None:
        # The connection is a local, so that no other thread, and no forked child, ever drops it.
        try:
            connection = self._connect()
        except BaseException as error:  # noqa: BLE001  # it is the caller's, whatever it is
            self._tell([(self._started, Outcome(error=error)), (self._ended, Outcome())])
            return
        self._tell([(self._started, Outcome())])
        try:
            while self._serve(connection):
                pass
        finally:
            try:
                connection.close()
            finally:
                self._tell([(self._ended, Outcome())])

    def _serve(self, connection: sqlite3.Connection) -> bool:
        """Wait for jobs and do those that are there; False when it was the last time."""
        jobs: list[_Job] = []
        job = self._jobs.get()
        while job is not None:
            jobs.append(job)
            if len(jobs) == _TOGETHER:
                break
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
        if jobs:
            try:
                outcomes = self._perform(connection, [job.work for job in jobs])
            except Exception as error:  # noqa: BLE001  # a fault of ours must not leave its callers waiting
                outcomes = [Outcome(error=error)] * len(jobs)
            self._tell([(job.future, outcome) for job, outcome in zip(jobs, outcomes, strict=True)])
        return job is not None

    def _tell(self, news: list[tuple[asyncio.Future[Any], Outcome]]) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, news)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more


def _settle(news: list[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, outcome in news:
        if future.done():
            continue  # its caller was cancelled
        if outcome.error is not None:
            future.set_exception(outcome.error)
        else:
            future.set_result(outcome.value)
