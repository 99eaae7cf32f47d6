"""Everything follows from the facts: the same facts in another book give the same state."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.exchange import (
    Book,
)
from agentloop.messages import (
    FunctionSpec,
    SystemMessage,
    ToolFeedback,
    ToolResult,
    UserMessage,
)
from tests.exchange.desk import Desk, picture
from tests.messages import values

SPEC = FunctionSpec(name="read_note", description="Read.", parameters='{"type":"object"}')


class _Script:
    """Random but legal runs, written from one stream of draws."""

    def __init__(self, data: st.DataObject) -> None:
        self.draw: Any = data.draw
        self.desk = Desk()

    def turn(self, run: str, conversation: str | None) -> None:
        made: list[Any] = self.draw(st.lists(values.messages.filter(_is_said), min_size=1, max_size=2))
        turn = self.desk.open(
            run,
            *made,
            conversation=conversation,
            options=self.draw(values.options),
            tools=tuple(self.draw(st.lists(values.specs, max_size=2))),
        )
        for _ in range(self.draw(st.integers(0, 3))):
            if self.draw(st.booleans()):
                self.desk.fail(turn, self.desk.send(turn), processed=self.draw(st.booleans()))
            entry = self.desk.take(turn, self.draw(values.replies))
            for position in range(len(entry.slots)):
                self.answer(turn, len(turn.entries) - 1, position)
            if not entry.slots:
                break
        if turn.entries or self.draw(st.booleans()):
            self.desk.close(turn, self.draw(st.sampled_from(["completed", "failed", "cancelled"])))
        elif conversation is not None:
            self.desk.close(turn, "cancelled", "cancelled")

    def answer(self, turn: Any, exchange: int, position: int) -> None:
        result: ToolResult = self.draw(values.results)
        given = ToolFeedback.of(turn.entries[exchange].slots[position].call.id, result)
        if self.draw(st.booleans()):
            facts = self.desk.book.complete(
                turn, exchange, position, state="skipped", feedback=given, code="x", at_ms=4
            )
        else:
            effect = self.desk.start(turn, exchange, position)
            state = self.draw(st.sampled_from(["done", "failed", "unknown"]))
            receipt = self.desk.receipt(turn, effect)
            facts = self.desk.book.receive(receipt, exchange, position, state=state, feedback=given, code=None, at_ms=4)
            if result.status == "ok" and self.draw(st.booleans()):
                text = self.draw(st.text(max_size=20))
                facts += self.desk.book.keep_output(turn, exchange, position, text=text, at_ms=4)
        self.desk.add(facts)


def _is_said(message: Any) -> bool:
    return isinstance(message, SystemMessage | UserMessage)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_replaying_the_facts_gives_an_equal_book(data: st.DataObject) -> None:
    """Digests, requests, sizes and counts follow from the facts alone (R76, R89)."""
    script = _Script(data)
    names = data.draw(st.lists(st.sampled_from([None, "c", "d"]), min_size=1, max_size=4))
    for at, name in enumerate(names):
        script.turn(f"r{at}", name)
    again = Book(script.desk.mint)
    again.install(script.desk.facts)
    assert picture(again) == picture(script.desk.book)
    for at in range(len(names)):
        turn = script.desk.book.turn(f"r{at}")
        for count in range(len(turn.exchanges) + 1):
            if count and not turn.exchanges[count - 1].feedback:
                continue
            ref = script.desk.book.reference(turn)
            ref = type(ref)(origin_id=ref.origin_id, exchanges=count, digest=turn.digests[count])
            assert again.request(ref, max_bytes=10**9) == script.desk.book.request(ref, max_bytes=10**9)
