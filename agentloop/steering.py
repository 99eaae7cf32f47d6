"""What a user says to a run that goes on: one more message, or that it shall stop.

Each is stored before the call returns. When it takes effect follows from the order of what is stored,
so it does in whatever process the run goes on, and in the same way when it is taken up again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .errors import ConflictError
from .events import RunSteered, RunStopping
from .exchange import Book, Fact, Turn
from .life import Life
from .limits import check_name
from .messages import ImagePart, text_chars
from .persistence import ConversationStore
from .runs import Runs
from .sinks import Emitter
from .windows import RunInput, admitted_user, check_ref

__all__ = ["Steering"]


class Steering:
    """The part of `Runtime` that a user of a run that goes on has."""

    _life: Life
    _store: ConversationStore
    _runs: Runs
    _now_ms: Callable[[], int]

    async def steer(self, ref: str, input: RunInput, *, author: str | None = None) -> None:
        """Say something to a run while it goes on; it is stored when this returns.

        The run's next model call has it, as a user message after the exchanges that are complete then; a request
        that a host's `ResendPolicy` repeats stays as it was. Where the model gives its final reply
        meanwhile, the run does not end with that: it asks again, with the reply and the message, or ends as
        ``limit_reached`` where no model call is left. An error, a cancel, a limit or a stop ends the run all
        the same, and what was not asked with is not part of its conversation then.

        Any task of the event loop may call it, a tool of the run too. A run that goes on nowhere is taken over for it
        and given up again, and has the message when it is resumed.

        Args:
            input: admitted like a run's input. It counts against the run's bytes, and may bring it to a limit.
            author: who says it; stored with it. 1 to 128 characters.

        Raises:
            ConflictError: the run has ended, or was asked to stop, or is a runner's model call: nothing was stored.
            LostError: no such run. NotOwnerError: it goes on elsewhere, or in a runner of this runtime.
            InputError, AdmissionError: bad input. LimitExceeded: the store is full (`BookLimits`).
            RestoreError: the store holds facts of it that cannot be. PersistenceError: it failed.
        """
        self._life.require_open()
        check_ref(ref)
        if author is not None:
            check_name("author", author)
        message = admitted_user(input)
        content = message.content
        images = 0 if type(content) is str else sum(type(part) is ImagePart for part in content)

        def step(book: Book, turn: Turn) -> Sequence[Fact]:
            return book.steer(turn, message, author=author, at_ms=self._now_ms())

        def told(emitter: Emitter) -> None:
            emitter.aside(RunSteered, author=author, text_chars=text_chars(message), images=images)

        await self._runs.whole(self._runs.write(ref, step, told))

    async def stop_after_current(self, ref: str, *, author: str | None = None) -> None:
        """Have a run end after the exchange under way; that is stored when this returns. It is not waited for.

        The model call under way is finished, what a `ResendPolicy` repeats of it included, and so are the tools
        of its reply. Then the run ends as ``incomplete`` with the reason ``stopped``, and its conversation can go
        on; a final reply still completes it. Nothing else is asked, whatever was said to the run before.
        Asking again, or after the end, changes nothing. A run that goes on nowhere ends so when it is resumed.

        Args:
            author: who asks for it; stored with it. 1 to 128 characters.

        Raises:
            ConflictError: it is a runner's model call. Otherwise as `steer`.
        """
        self._life.require_open()
        check_ref(ref)
        if author is not None:
            check_name("author", author)

        def step(book: Book, turn: Turn) -> Sequence[Fact]:
            return book.ask_stop(turn, author=author, at_ms=self._now_ms())

        def told(emitter: Emitter) -> None:
            emitter.aside(RunStopping, author=author)

        try:
            await self._runs.whole(self._runs.write(ref, step, told))
        except ConflictError:
            turn = await self._store.turn(ref)
            if turn.closed is None or turn.opened.call is not None:
                raise
