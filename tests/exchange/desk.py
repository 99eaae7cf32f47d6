"""A book to write in: short steps that are installed at once, and a picture of all that it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from agentloop.exchange import Book, BookLimits, Entry, Fact, Receipt, ReceiptMint, RunOutcome, SlotState, Turn
from agentloop.messages import (
    FunctionSpec,
    ModelOptions,
    ModelReply,
    SystemMessage,
    ToolFeedback,
    ToolResult,
    UserMessage,
)
from tests.messages.values import call, reply

__all__ = ["Desk", "asking", "picture", "refused"]

E = TypeVar("E", bound=Exception)


class Desk:
    """A book, its mint, and every fact that was installed, in order."""

    def __init__(self, **limits: int) -> None:
        self.mint = ReceiptMint()
        self.book = Book(self.mint, limits=BookLimits(**limits))
        self.facts: list[Fact] = []
        self._attempts = 0

    def add(self, facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
        self.book.install(facts)
        self.facts += facts
        return facts

    def opening(
        self,
        run: str = "r1",
        *messages: SystemMessage | UserMessage,
        conversation: str | None = None,
        options: ModelOptions | None = None,
        tools: tuple[FunctionSpec, ...] = (),
        origin: str | None = None,
        asked: str = "asked",
        **more: Any,
    ) -> tuple[Fact, ...]:
        return self.book.open_origin(
            run_id=run,
            origin_id=origin or f"origin of {run}",
            conversation=conversation,
            messages=messages or (UserMessage(content="hi"),),
            options=options or ModelOptions(),
            tools=tools,
            catalogue_digest="catalogue",
            input_digest=asked,
            agent="agent",
            at_ms=1,
            **more,
        )

    def open(self, run: str = "r1", *messages: SystemMessage | UserMessage, **fields: Any) -> Turn:
        self.add(self.opening(run, *messages, **fields))
        return self.book.turn(run)

    def receipt(self, turn: Turn, invocation: str) -> Receipt:
        return self.mint.receipt(invocation_id=invocation, parent_id=turn.run_id)

    def send(self, turn: Turn, attempt: str | None = None) -> str:
        self._attempts += 1
        attempt = attempt or f"attempt {self._attempts}"
        self.add(self.book.begin_send(self.book.reference(turn), attempt_id=attempt, model="model", at_ms=2))
        return attempt

    def take(self, turn: Turn, reply: ModelReply) -> Entry:
        self.add(self.book.intake(self.receipt(turn, self.send(turn)), reply, at_ms=4))
        return turn.entries[-1]

    def start(self, turn: Turn, exchange: int, position: int) -> str:
        effect = f"{turn.run_id}/{exchange}.{position}"
        self.add(self.book.start_slot(turn, exchange, position, effect_id=effect, at_ms=4))
        return effect

    def wait_for_child(self, turn: Turn, exchange: int, position: int) -> None:
        receipt = self.receipt(turn, turn.entries[exchange].slots[position].effect_id or "none")
        self.add(self.book.hold_for_child(receipt, exchange, position, at_ms=5))

    def receive(
        self, turn: Turn, exchange: int, position: int, text: str = "ok", *, state: SlotState = "done"
    ) -> ToolFeedback:
        effect = turn.entries[exchange].slots[position].effect_id or "none"
        given = self.feedback(turn, exchange, position, text)
        self.add(
            self.book.receive(
                self.receipt(turn, effect), exchange, position, state=state, feedback=given, code=None, at_ms=4
            )
        )
        return given

    def keep(self, turn: Turn, exchange: int, position: int, text: str = "all of it") -> None:
        self.add(self.book.keep_output(turn, exchange, position, text=text, at_ms=4))

    def run(self, turn: Turn, exchange: int, position: int, text: str = "ok") -> ToolFeedback:
        self.start(turn, exchange, position)
        return self.receive(turn, exchange, position, text)

    def skip(self, turn: Turn, exchange: int, position: int, text: str = "not run", code: str = "limit") -> None:
        given = self.feedback(turn, exchange, position, text)
        self.add(self.book.complete(turn, exchange, position, state="skipped", feedback=given, code=code, at_ms=4))

    def exchange(self, turn: Turn, reply: ModelReply, text: str = "ok") -> Entry:
        """Take the reply and run every call of it."""
        entry = self.take(turn, reply)
        for position in range(len(entry.slots)):
            self.run(turn, len(turn.entries) - 1, position, text)
        return entry

    def steer(self, turn: Turn, text: str, *, author: str | None = None) -> UserMessage:
        message = UserMessage(content=text)
        self.add(self.book.steer(turn, message, author=author, at_ms=4))
        return message

    def stop(self, turn: Turn) -> None:
        self.add(self.book.ask_stop(turn, author=None, at_ms=4))

    def close(self, turn: Turn, outcome: RunOutcome = "completed", reason: str | None = "stop") -> None:
        self.add(self.book.close_run(turn, outcome=outcome, reason=reason, at_ms=3))

    def fail(
        self, turn: Turn, attempt: str, *, processed: bool = True, code: str = "total_timeout", **fields: Any
    ) -> None:
        receipt = self.receipt(turn, attempt)
        fields = {"at_ms": 4, **fields}
        self.add(self.book.fail_send(receipt, abandoned=False, code=code, may_have_been_processed=processed, **fields))

    @staticmethod
    def feedback(turn: Turn, exchange: int, position: int, text: str = "ok") -> ToolFeedback:
        return ToolFeedback.of(turn.entries[exchange].slots[position].call.id, ToolResult.ok(text))


def picture(book: Book) -> Any:
    """All that a book holds, as values that compare by content."""
    turns = [_turn(book.turn(run)) for run in sorted(book._turns)]
    conversations = [(c.name, c.head, c.live, tuple(c.runs)) for _, c in sorted(book._conversations.items())]
    rooms = [book._rooms._all, *book._rooms._of.values()]
    room = (book.size, *(sum(getattr(one, name) for one in rooms) for name in ("origins", "exchanges", "outputs")))
    return turns, conversations, sorted(book._origins), room


def _turn(turn: Turn) -> Any:
    entries = [
        (
            (entry.reply, entry.attempt_id, entry.encoded, entry.exchange, entry.size, entry.unanswered),
            (entry.started_at_ms, entry.ended_at_ms),
            [(s.call, s.state, s.effect_id, s.attempt, s.feedback, s.code, s.encoded) for s in entry.slots],
            [(s.started_at_ms, s.ended_at_ms, s.kept, s.waits_since_ms, s.decided, s.asked) for s in entry.slots],
        )
        for entry in turn.entries
    ]
    counts = (turn.model_calls, turn.tool_calls, turn.usage, dict(turn.equal_calls))
    sizes = (turn.origin_size, turn.size, turn.request_size, turn.kept)
    steers = (turn.steers.pending, turn.steers.pending_size, turn.steers.placed, turn.next_digest, turn.stopping)
    sends = (dict(turn.sends), list(turn.unknown_sends), turn.refused, sorted(turn.claims))
    return (
        turn.opened,
        turn.closed,
        turn.history,
        list(turn.exchanges),
        list(turn.digests),
        entries,
        counts,
        sizes,
        sends,
        steers,
    )


def asking(*ids: str) -> ModelReply:
    return reply(*map(call, ids), word="tool_calls")


def refused(desk: Desk, step: Callable[[], Any], kind: type[E], match: str = ".") -> E:
    """Hold that ``step`` is refused and changes nothing; return the error."""
    before = picture(desk.book)
    with pytest.raises(kind, match=match) as caught:
        step()
    assert picture(desk.book) == before
    return caught.value
