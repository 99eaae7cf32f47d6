"""The table of a slot's states, held pair by pair and over random walks."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentloop.errors import ConflictError
from agentloop.exchange import CHILD, CLOSING, NEXT, Book, SlotState, WaitKind, call_digest, move, restore
from agentloop.messages import ToolFeedback
from tests.exchange.desk import Desk, picture
from tests.messages.values import call, reply

STATES: tuple[SlotState, ...] = get_args(SlotState)
ALLOWED = {
    ("open", "started"),
    ("open", "failed"),
    ("open", "skipped"),
    ("open", "waiting"),
    ("started", "open"),
    ("started", "done"),
    ("started", "failed"),
    ("started", "unknown"),
    ("started", "waiting"),
    ("waiting", "open"),
    ("waiting", "skipped"),
    ("waiting", "done"),
    ("waiting", "failed"),
    ("waiting", "started"),
    ("unknown", "done"),
    ("unknown", "failed"),
    ("unknown", "started"),
    ("unknown", "unknown"),
}


@pytest.mark.parametrize("to", STATES)
@pytest.mark.parametrize("state", STATES)
def test_the_table_allows_exactly_the_steps_that_the_design_names(state: SlotState, to: SlotState) -> None:
    if (state, to) in ALLOWED:
        assert move(state, to, where="call 0.0") == to
        return
    with pytest.raises(ConflictError, match=f"call 0.0: a slot that is {state} cannot become {to}: expected") as caught:
        move(state, to, where="call 0.0")
    assert caught.value.code == "conflict"


def test_a_refused_step_says_what_was_possible() -> None:
    with pytest.raises(ConflictError) as caught:
        move("started", "skipped", where="call 3.1")
    allowed = "done, failed, open, unknown, waiting"
    told = f"conflict: call 3.1: a slot that is started cannot become skipped: expected {allowed}"
    assert str(caught.value) == told
    with pytest.raises(ConflictError, match="a slot that is done cannot become started: expected no further state"):
        move("done", "started", where="call 0.0")


def test_a_word_that_is_no_state_is_refused() -> None:
    with pytest.raises(ConflictError):
        move("open", "finished", where="call 0.0")  # type: ignore[arg-type]


def test_every_state_is_in_the_table_and_closing_states_lead_nowhere() -> None:
    assert set(NEXT) == set(STATES)
    assert {state for state in STATES if not NEXT[state]} == CLOSING == {"done", "failed", "skipped"}


@given(st.lists(st.sampled_from(STATES), max_size=30))
def test_a_walk_keeps_its_state_at_each_refused_step(wanted: list[SlotState]) -> None:
    state: SlotState = "open"
    for to in wanted:
        before = state
        try:
            state = move(state, to, where="call 0.0")
        except ConflictError:
            assert (before, to) not in ALLOWED
            assert state == before
        else:
            assert (before, to) in ALLOWED


POSITIONS = st.integers(0, 2)
TEXTS = st.sampled_from(["one", "two"])


class SlotsOfABook(RuleBasedStateMachine):
    """One reply with three calls under random steps, beside a model of its slots."""

    @initialize()
    def begin(self) -> None:
        self.desk = Desk()
        self.turn = self.desk.open()
        self.desk.take(self.turn, reply(call("a"), call("b"), call("c"), word="tool_calls"))
        self.states: list[SlotState] = ["open"] * 3
        self.given: list[ToolFeedback | None] = [None] * 3
        self.kinds: list[str | None] = [None] * 3
        self.asked = [False] * 3
        self.decided: list[tuple[SlotState, str | None] | None] = [None] * 3
        self.started = 0

    def attempt(self, step: Any) -> bool:
        """Do a step; on a refusal hold that nothing changed."""
        before = picture(self.desk.book)
        try:
            facts = step()
            self.desk.add(facts)
        except ConflictError:
            assert picture(self.desk.book) == before
            return False
        return bool(facts)

    @rule(position=POSITIONS)
    def start(self, position: int) -> None:
        done = self.attempt(
            lambda: self.desk.book.start_slot(self.turn, 0, position, effect_id=f"effect {position}", at_ms=4)
        )
        goes_on = self.states[position] == "waiting" and self.kinds[position] == CHILD
        assert done == (self.states[position] == "open" or goes_on)
        if done:
            self.states[position] = "started"
            self.started += not goes_on

    @rule(position=POSITIONS, source=POSITIONS, state=st.sampled_from(STATES), text=TEXTS)
    def receive(self, position: int, source: int, state: SlotState, text: str) -> None:
        feedback = self.desk.feedback(self.turn, 0, position, text)
        receipt = self.desk.receipt(self.turn, f"effect {source}")
        done = self.attempt(
            lambda: self.desk.book.receive(receipt, 0, position, state=state, feedback=feedback, code=None, at_ms=4)
        )
        right = source == position and state in ("done", "failed", "unknown")
        assert done == (right and self.states[position] == "started")
        if done:
            self.states[position], self.given[position] = state, feedback

    @rule(position=POSITIONS, source=POSITIONS)
    def give_back(self, position: int, source: int) -> None:
        receipt = self.desk.receipt(self.turn, f"effect {source}")
        done = self.attempt(lambda: self.desk.book.give_back(receipt, 0, position, at_ms=4))
        right = source == position and not self.asked[position]
        assert done == (right and self.states[position] == "started")
        if done:
            self.states[position] = "open"
            self.started -= 1

    @rule(position=POSITIONS, source=POSITIONS)
    def wait_for_child(self, position: int, source: int) -> None:
        receipt = self.desk.receipt(self.turn, f"effect {source}")
        done = self.attempt(lambda: self.desk.book.hold_for_child(receipt, 0, position, at_ms=5))
        assert done == (source == position and self.states[position] == "started")
        if done:
            self.states[position], self.kinds[position], self.asked[position] = "waiting", CHILD, True

    @rule()
    def take_over(self) -> None:
        lost = self.desk.book.lose_slots(self.turn, at_ms=7)
        assert [fact.position for fact in lost] == [at for at, state in enumerate(self.states) if state == "started"]

    @rule()
    def read_again(self) -> None:
        read = Book(self.desk.mint)
        restore(read, self.desk.facts)
        assert picture(read) == picture(self.desk.book)

    @rule(position=POSITIONS, state=st.sampled_from(STATES), text=TEXTS)
    def complete(self, position: int, state: SlotState, text: str) -> None:
        feedback = self.desk.feedback(self.turn, 0, position, text)
        done = self.attempt(
            lambda: self.desk.book.complete(
                self.turn, 0, position, state=state, feedback=feedback, code="limit", at_ms=4
            )
        )
        unrun = self.states[position] == "open" or (self.states[position] == "waiting" and state == "skipped")
        assert done == (state in ("failed", "skipped") and unrun)
        if done:
            self.states[position], self.given[position] = state, feedback

    @rule(position=POSITIONS, kind=st.sampled_from(["approval", "external"]))
    def hold(self, position: int, kind: WaitKind) -> None:
        done = self.attempt(lambda: self.desk.book.hold_slot(self.turn, 0, position, kind=kind, at_ms=5))
        assert done == (self.states[position] == "open" and self.decided[position] is None)
        if done:
            self.states[position], self.kinds[position] = "waiting", kind

    @rule(position=POSITIONS, source=POSITIONS, state=st.sampled_from(STATES), text=TEXTS)
    def decide(self, position: int, source: int, state: SlotState, text: str) -> None:
        feedback = None if state == "open" else self.desk.feedback(self.turn, 0, position, text)
        done = self.attempt(
            lambda: self.desk.book.decide_slot(
                self.turn,
                0,
                position,
                digest=call_digest(self.turn, 0, source),
                state=state,
                code="said",
                feedback=feedback,
                author="Ann",
                at_ms=6,
                max_bytes=4096,
            )
        )
        possible = state in ("skipped", "done", "failed") or (state == "open" and self.kinds[position] == "approval")
        waits = self.states[position] == "waiting" and self.kinds[position] != CHILD
        assert done == (source == position and possible and waits)
        if done:
            self.states[position], self.given[position] = state, feedback
            self.decided[position] = (state, text)

    @invariant()
    def the_book_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "turn"):
            return
        entry = self.turn.entries[0]
        assert [slot.state for slot in entry.slots] == self.states
        assert [slot.feedback for slot in entry.slots] == self.given
        assert [slot.decided is not None for slot in entry.slots] == [made is not None for made in self.decided]
        assert self.turn.tool_calls == self.started
        assert entry.complete == (None not in self.given)
        assert len(self.turn.exchanges) == entry.complete


TestSlotsOfABook = SlotsOfABook.TestCase
TestSlotsOfABook.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
