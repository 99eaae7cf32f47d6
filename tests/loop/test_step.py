"""Which effect is next, as a function of facts, ledger and limits: every branch, no run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.admission import canonical_text
from agentloop.effects import Ledger, Resend, ResendPolicy
from agentloop.errors import InputError
from agentloop.exchange import Entry, SlotState, Turn, call_digest
from agentloop.limits import LoopLimits
from agentloop.loop import Action, Answer, Ask, Close, Recover, Skip, Suspend, Wait, cancelled_end, step, verdict
from agentloop.loop.step import _LIMITS, _WIRE_FRAME, ahead
from agentloop.messages import ModelReply, ModelRequest, Native, UserMessage
from agentloop.testing import ScriptedProvider
from agentloop.wire.encode import encode_request
from agentloop.wire.presets import PRESETS, dialect
from tests.exchange.desk import Desk, asking, picture
from tests.messages import values
from tests.messages.values import call, reply

ROOMY = LoopLimits()


def ledger_of(limits: LoopLimits, turn: Turn | None = None) -> Ledger:
    """The ledger of a run with these limits, with what ``turn`` used taken off."""
    ledger = Ledger(model_calls=limits.max_model_calls, tool_calls=limits.max_tool_calls, tokens=limits.max_tokens)
    if turn is not None:
        ledger.note_spent("model_calls", turn.model_calls)
        ledger.note_spent("tool_calls", turn.tool_calls)
        ledger.note_spent("tokens", turn.usage.total_tokens if turn.usage else 0)
    return ledger


def act(turn: Turn, limits: LoopLimits = ROOMY, *, elapsed: float = 0.0, **sizes: Any) -> Action:
    return step(turn, ledger_of(limits, turn), limits, elapsed=elapsed, **sizes)


def run_with(*replies: ModelReply) -> tuple[Desk, Turn]:
    """A run in which all these replies were answered, but for the last."""
    desk = Desk()
    turn = desk.open()
    for made in replies[:-1]:
        desk.exchange(turn, made)
    if replies:
        desk.take(turn, replies[-1])
    return desk, turn


# -- the plain course


def test_a_new_run_asks() -> None:
    """(R12)"""
    _, turn = run_with()
    assert act(turn) == Ask()


def test_calls_are_answered_one_at_a_time_in_their_order_and_then_the_model_is_asked() -> None:
    """(R13, R93)"""
    desk, turn = run_with(asking("a", "b", "c"))
    for position in range(3):
        assert act(turn) == Answer(0, position)
        desk.run(turn, 0, position)
    assert act(turn) == Ask()
    desk.take(turn, asking("d"))
    assert act(turn) == Answer(1, 0)


def test_a_call_that_was_refused_or_whose_outcome_is_unknown_counts_as_answered() -> None:
    """(R55)"""
    desk, turn = run_with(asking("a", "b", "c"))
    given = desk.feedback(turn, 0, 0)
    desk.add(desk.book.complete(turn, 0, 0, state="failed", feedback=given, code="bad_arguments", at_ms=4))
    desk.start(turn, 0, 1)
    desk.receive(turn, 0, 1, state="unknown")
    assert act(turn) == Answer(0, 2)
    desk.run(turn, 0, 2)
    assert act(turn) == Ask()


def test_a_final_reply_ends_the_run_whatever_is_left_of_its_budget() -> None:
    """(R24)"""
    _, turn = run_with(reply())
    assert act(turn) == Close("completed", "stop")
    spent = LoopLimits(max_model_calls=1, max_tokens=1, max_seconds=1.0)
    assert act(turn, spent, elapsed=99.0) == Close("completed", "stop")


def test_an_end_that_a_dialect_inferred_has_no_word() -> None:
    _, turn = run_with(reply(word=None))  # type: ignore[arg-type]  # as the wire layer makes it
    assert act(turn) == Close("completed", None)


def test_a_decision_changes_nothing_and_is_the_same_again() -> None:
    desk, turn = run_with(asking("a"))
    before = picture(desk.book)
    ledger = ledger_of(ROOMY)
    assert step(turn, ledger, ROOMY, elapsed=0.0) == step(turn, ledger, ROOMY, elapsed=0.0)
    assert picture(desk.book) == before
    assert ledger.spent("tool_calls") == 0


# -- what a user says meanwhile


def test_a_reply_that_a_user_has_said_more_after_is_no_end() -> None:
    for made in (reply(), reply(word="length"), reply(native={"refusal": "no"})):
        desk, turn = run_with(made)
        end = act(turn)
        assert isinstance(end, Close)
        desk.steer(turn, "more")
        assert act(turn) == act(turn, check=codes("not_json")) == Ask()
        assert act(turn, LoopLimits(max_model_calls=1)) == Close("limit_reached", "max_model_calls")
        desk.add(desk.book.settle_send(turn, desk.send(turn), author="host", at_ms=4))
        assert act(turn) == Ask()  # it was asked with, and not answered
        desk.stop(turn)
        assert act(turn) == end


def test_calls_of_a_reply_that_is_no_end_are_answered_before_it_is_asked_again() -> None:
    desk, turn = run_with(reply(call("a"), word="length"))
    desk.steer(turn, "more")
    assert isinstance(act(turn), Skip)
    desk.skip(turn, 0, 0, code="reply_incomplete")
    assert act(turn) == Ask()


def test_an_output_that_was_given_before_a_user_said_more_is_asked_for_again() -> None:
    desk, turn = run_with(reply(call("a", name="give"), word="tool_calls"))
    desk.run(turn, 0, 0)
    given = {"check": codes(None), "final": "give"}
    assert act(turn, **given) == Close("completed", "tool_calls")
    desk.steer(turn, "shorter")
    assert act(turn, **given) == Ask()
    desk.stop(turn)
    assert act(turn, **given) == Close("completed", "tool_calls")


def test_an_output_is_not_the_end_where_something_waits_so_its_answer_must_fit() -> None:
    limits = LoopLimits(max_model_calls=1)
    desk, turn = run_with(reply(call("a", name="give"), word="tool_calls"))
    given = {"check": codes(None), "final": "give"}
    assert act(turn, limits, **given) == Answer(0, 0)
    assert ahead(turn, turn.entries[0], ledger_of(limits, turn), limits, elapsed=0.0, **given) == 0
    desk.steer(turn, "shorter")
    skip = act(turn, limits, **given)
    assert isinstance(skip, Skip)
    assert skip.code == "max_model_calls"
    assert ahead(turn, turn.entries[0], ledger_of(limits, turn), limits, elapsed=0.0, **given) is None


def test_a_run_that_was_asked_to_stop_finishes_its_exchange_and_asks_nothing() -> None:
    desk, turn = run_with()
    desk.stop(turn)
    assert act(turn) == Close("incomplete", "stopped")
    desk, turn = run_with(asking("a", "b"))
    desk.stop(turn)
    for position in range(2):
        assert act(turn, LoopLimits(max_model_calls=1, max_tokens=1)) == Answer(0, position)
        desk.run(turn, 0, position)
    assert act(turn) == Close("incomplete", "stopped")


@pytest.mark.parametrize("limits", [LoopLimits(max_tool_calls=1), LoopLimits(max_equal_calls=1)])
def test_limits_on_the_calls_themselves_hold_also_after_a_stop(limits: LoopLimits) -> None:
    desk, turn = run_with(reply(call("a"), call("b"), word="tool_calls"))
    desk.stop(turn)
    assert isinstance(act(turn, limits), Skip)


def test_an_end_that_began_comes_whatever_a_user_says() -> None:
    desk, turn = run_with(asking("a"))
    desk.skip(turn, 0, 0, code="max_tokens")
    desk.steer(turn, "more")
    assert act(turn) == Close("limit_reached", "max_tokens")
    desk, turn = run_with()
    attempt = desk.send(turn)
    desk.steer(turn, "more")
    desk.fail(turn, attempt)
    assert act(turn) == Close("failed", "total_timeout")


@settings(max_examples=60, deadline=None)
@given(values.messages.filter(lambda message: type(message) is UserMessage), st.sampled_from(sorted(PRESETS)))
def test_what_waits_is_weighed_on_the_wire_with_the_next_request(message: UserMessage, preset: str) -> None:
    """No request is longer than what the step before it reserved (R102)."""
    desk, turn = run_with(asking("a"))
    before = ModelRequest(messages=turn.history)
    sent = encode_request(before, model="m", dialect=dialect(preset)).body_bytes
    desk.add(desk.book.steer(turn, message, author=None, at_ms=1))
    desk.run(turn, 0, 0)
    after = desk.book.request(desk.book.reference(turn), max_bytes=10**9)
    exact = encode_request(after, model="m", dialect=dialect(preset)).body_bytes
    limits = LoopLimits(feedback_bytes=256)
    desk, turn = run_with(asking("a"))
    room = sent + turn.entries[0].size + limits.feedback_bytes + _WIRE_FRAME
    assert act(turn, limits, sent_bytes=sent, max_request_bytes=room) == Answer(0, 0)
    desk.add(desk.book.steer(turn, message, author=None, at_ms=1))
    assert isinstance(act(turn, limits, sent_bytes=sent, max_request_bytes=room), Skip)
    room += 2 * turn.steers.pending_size
    assert act(turn, limits, sent_bytes=sent, max_request_bytes=room) == Answer(0, 0)
    assert exact <= room


# -- an output


def refuse(desk: Desk, turn: Turn, position: int) -> None:
    given = desk.feedback(turn, 0, position)
    desk.add(desk.book.complete(turn, 0, position, state="failed", feedback=given, code="schema_mismatch", at_ms=4))


def codes(code: str | None) -> Any:
    return lambda _reply: code


def test_a_final_reply_that_gives_no_output_is_incomplete() -> None:
    _, turn = run_with(reply())
    assert act(turn, check=codes(None)) == Close("completed", "stop")
    assert act(turn, check=codes("no_json")) == Close("incomplete", "no_json")
    _, cut = run_with(reply(word="length"))
    assert act(cut, check=codes("no_json")) == Close("incomplete", "length")


@pytest.mark.parametrize(("states", "end"), [("d", "completed"), ("dd", "several_calls"), ("fd", "completed")])
def test_the_output_is_given_once_every_call_of_its_reply_is_answered(states: str, end: str) -> None:
    desk, turn = run_with(reply(*(call(f"o{at}", "out") for at in range(len(states))), call("z")))
    given = {"check": codes(None), "final": "out"}
    for position, state in enumerate(states):
        assert act(turn, **given) == Answer(0, position)
        if state == "d":
            desk.run(turn, 0, position)
        else:
            refuse(desk, turn, position)
    assert act(turn, **given) == Answer(0, len(states))
    desk.run(turn, 0, len(states))
    done = Close("completed", turn.last.reply.termination.reason) if end == "completed" else Close("incomplete", end)
    assert act(turn, **given) == act(turn, LoopLimits(max_model_calls=1), **given) == done
    assert act(turn) == Ask()
    assert act(turn, final="other") == Ask()


def test_an_output_that_was_refused_is_asked_for_again() -> None:
    desk, turn = run_with(reply(call("o", "out")))
    refuse(desk, turn, 0)
    assert act(turn, check=codes("schema_mismatch"), final="out") == Ask()
    limited = act(turn, LoopLimits(max_model_calls=1), check=codes("schema_mismatch"), final="out")
    assert limited == Close("limit_reached", "max_model_calls")


@pytest.mark.parametrize("code", [None, "several_calls", "schema_mismatch", "no_output"])
def test_limits_on_the_next_request_hold_no_reply_up_that_there_is_none_after(code: str | None) -> None:
    """(R102)"""
    _, turn = run_with(reply(call("o", "out"), call("z")))
    ends = code in (None, "several_calls")
    small = {"max_model_calls": 1, "max_tokens": 1, "request_bytes": 1}
    for name, value in small.items():
        limits = LoopLimits(**{name: value}) if name != "request_bytes" else LoopLimits(request_bytes=4200)
        ledger = Ledger(model_calls=limits.max_model_calls, tokens=limits.max_tokens)
        ledger.note_spent("model_calls", 1)
        ledger.note_spent("tokens", 1)
        given: Any = {"elapsed": 0.0, "check": codes(code), "final": "out"}
        assert turn.last is not None
        expected = 0 if ends else None
        assert ahead(turn, turn.last, ledger, limits, **given) == expected
        action = step(turn, ledger, limits, **given)
        assert action == (Answer(0, 0) if ends else Skip(0, (0, 1), name, f"the run reached its limit ({name})"))
    out = LoopLimits(max_seconds=1.0)
    assert act(turn, out, elapsed=1.0, check=codes(None), final="out") == Skip(
        0, (0, 1), "max_seconds", "the run reached its limit (max_seconds)"
    )
    few = LoopLimits(max_tool_calls=1)
    assert isinstance(act(turn, few, check=codes(None), final="out"), Skip)


# -- how a reply ended


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("length", "incomplete"),
        ("max_tokens", "incomplete"),
        ("something new", "incomplete"),
        ("", "incomplete"),
        ("content_filter", "refused"),
    ],
)
def test_a_reply_that_did_not_end_well_runs_none_of_its_calls(word: str, kind: str) -> None:
    """(R25, R26)"""
    desk, turn = run_with(reply(call("a"), call("b"), word=word))
    action = act(turn)
    assert action == Skip(0, (0, 1), f"reply_{kind}", f"the reply that asked for it was {kind}")
    for position in range(2):
        desk.skip(turn, 0, position, code=f"reply_{kind}")
    assert act(turn) == Close(kind, word)  # type: ignore[arg-type]
    assert turn.tool_calls == 0


@pytest.mark.parametrize(("word", "kind"), [("length", "incomplete"), ("content_filter", "refused")])
def test_a_reply_that_did_not_end_well_ends_the_run_also_without_calls(word: str, kind: str) -> None:
    """(R25, R26)"""
    _, turn = run_with(asking("a"), reply(word=word))
    assert act(turn) == Close(kind, word)  # type: ignore[arg-type]


def test_a_refusal_in_words_is_a_refusal_with_calls_and_without() -> None:
    """(R27)"""
    refusal = {"refusal": "I will not."}
    _, turn = run_with(reply(native=refusal))
    assert act(turn) == Close("refused", "stop")
    _, turn = run_with(reply(call("a"), word="tool_calls", native=refusal))
    assert act(turn) == Skip(0, (0,), "reply_refused", "the reply that asked for it was refused")


@pytest.mark.parametrize("native", [{"refusal": ""}, {"refusal": None}, {"reasoning": 'say "refusal"'}])
def test_what_is_no_refusal_text_refuses_nothing(native: dict[str, Any]) -> None:
    _, turn = run_with(reply(native=native))
    assert act(turn) == Close("completed", "stop")


def test_the_word_stop_with_calls_runs_them() -> None:
    """(R27)"""
    _, turn = run_with(reply(call("a"), word="stop"))
    assert act(turn) == Answer(0, 0)


def test_a_verdict_is_about_the_protocol_and_not_about_the_tools() -> None:
    """(R27)"""
    made = asking("a")
    assert verdict(Entry(made, "attempt", b"", 2, 4)) == "completed"


# -- limits


def test_the_model_call_limit_closes_a_run_that_would_ask_again() -> None:
    """(R95)"""
    desk, turn = run_with()
    desk.exchange(turn, asking("a"))
    assert act(turn, LoopLimits(max_model_calls=2)) == Ask()
    assert act(turn, LoopLimits(max_model_calls=1)) == Close("limit_reached", "max_model_calls")


def test_at_the_last_model_call_no_tool_starts_whose_answer_nobody_would_read() -> None:
    """Two calls are allowed and the second asks for a tool: its slots are filled, the history stays usable (R95)."""
    limits = LoopLimits(max_model_calls=2)
    desk, turn = run_with(asking("a"), asking("b", "c"))
    assert act(turn, limits) == Skip(1, (0, 1), "max_model_calls", "the run reached its limit (max_model_calls)")
    for position in range(2):
        desk.skip(turn, 1, position, code="max_model_calls")
    assert act(turn, limits) == Close("limit_reached", "max_model_calls")
    assert turn.model_calls == 2
    assert desk.book.request(desk.book.reference(turn), max_bytes=10**6).exchanges == tuple(turn.exchanges)


def test_a_batch_that_does_not_fit_the_tool_call_limit_starts_none_of_it() -> None:
    """Eight calls, six allowed: reserved before the first starts (R102)."""
    limits = LoopLimits(max_tool_calls=6)
    _, turn = run_with(asking(*"abcdefgh"))
    action = act(turn, limits)
    assert action == Skip(0, tuple(range(8)), "max_tool_calls", "the run reached its limit (max_tool_calls)")
    desk, turn = run_with(asking(*"abcdef"))
    for position in range(6):
        assert act(turn, limits) == Answer(0, position)
        desk.run(turn, 0, position)
    assert act(turn, limits) == Ask()
    desk.take(turn, asking("g"))
    assert act(turn, limits) == Skip(1, (0,), "max_tool_calls", "the run reached its limit (max_tool_calls)")


def test_no_tool_call_at_all_may_be_allowed() -> None:
    _, turn = run_with(asking("a"))
    action = act(turn, LoopLimits(max_tool_calls=0))
    assert isinstance(action, Skip)
    assert action.code == "max_tool_calls"


def test_the_call_that_crosses_the_token_limit_counts_and_the_next_is_not_made() -> None:
    """(R278)"""
    limits = LoopLimits(max_tokens=3)
    desk, turn = run_with(asking("a"))  # its usage is 3 tokens
    action = act(turn, limits)
    assert action == Skip(0, (0,), "max_tokens", "the run reached its limit (max_tokens)")
    desk.skip(turn, 0, 0, code="max_tokens")
    assert act(turn, limits) == Close("limit_reached", "max_tokens")
    assert act(turn, LoopLimits(max_tokens=4)) == Close("limit_reached", "max_tokens")  # what was skipped stays so


def test_a_shared_ledger_limits_as_the_runs_own_does() -> None:
    """(R278, R279)"""
    parent = Ledger(model_calls=3, tokens=100)
    _, turn = run_with()
    child = parent.child(model_calls=8)
    assert step(turn, child, ROOMY, elapsed=0.0) == Ask()
    parent.debit("model_calls", 3)
    assert step(turn, child, ROOMY, elapsed=0.0) == Close("limit_reached", "max_model_calls")
    parent = Ledger(tokens=100)
    parent.charge("tokens", 101)
    assert step(turn, parent.child(), ROOMY, elapsed=0.0) == Close("limit_reached", "max_tokens")


def test_time_is_checked_before_each_effect() -> None:
    limits = LoopLimits(max_seconds=10.0)
    desk, turn = run_with()
    assert act(turn, limits, elapsed=9.9) == Ask()
    assert act(turn, limits, elapsed=10.0) == Close("limit_reached", "max_seconds")
    desk.take(turn, asking("a", "b"))
    desk.run(turn, 0, 0)
    assert act(turn, limits, elapsed=9.9) == Answer(0, 1)
    assert act(turn, limits, elapsed=10.0) == Skip(0, (1,), "max_seconds", "the run reached its limit (max_seconds)")


def test_equal_calls_are_those_of_one_name_and_one_text() -> None:
    limits = LoopLimits(max_equal_calls=2)

    def ask_for(name: str, text: str) -> ModelReply:
        return reply(call("x", name, text), word="tool_calls")

    desk, turn = run_with(ask_for("read", '{"id":1}'), ask_for("read", '{"id":1}'))
    assert act(turn, limits) == Answer(1, 0)
    desk.run(turn, 1, 0)
    for name, text in [("write", '{"id":1}'), ("read", '{"id": 1}'), ("read", '{"id":2}')]:
        desk.take(turn, ask_for(name, text))
        assert isinstance(act(turn, limits), Answer)
        desk.run(turn, len(turn.entries) - 1, 0)
    desk.take(turn, ask_for("read", '{"id":1}'))
    action = act(turn, limits)
    assert action == Skip(5, (0,), "max_equal_calls", "the run reached its limit (max_equal_calls)")
    assert isinstance(act(turn), Answer)  # off by default


def test_equal_calls_of_one_reply_count_too() -> None:
    _, turn = run_with(reply(call("x"), call("y"), word="tool_calls"))
    action = act(turn, LoopLimits(max_equal_calls=1))
    assert isinstance(action, Skip)
    assert (action.code, action.positions) == ("max_equal_calls", (0, 1))


# -- room, reserved before an effect


def test_the_request_has_room_for_every_answer_before_the_first_tool_runs() -> None:
    """(R99, R102)"""
    desk, turn = run_with(asking("a", "b"))
    need = turn.request_size + 2 * 1_000
    fits = LoopLimits(request_bytes=need, feedback_bytes=1_000)
    tight = LoopLimits(request_bytes=need - 1, feedback_bytes=1_000)
    assert act(turn, fits) == Answer(0, 0)
    assert act(turn, tight) == Skip(0, (0, 1), "request_bytes", "the run reached its limit (request_bytes)")
    size = turn.request_size
    desk.run(turn, 0, 0, "short")  # what an answer really took is what it takes from then on
    assert turn.request_size + 1_000 < size + 2 * 1_000
    assert act(turn, tight) == Answer(0, 1)


def test_the_collection_has_room_for_every_answer_before_the_first_tool_runs() -> None:
    """(R100, R102)"""
    _, turn = run_with(asking("a"), asking("b", "c"))
    need = turn.size - turn.origin_size + 2 * 1_000
    assert need == sum(entry.size for entry in turn.entries) + 2_000
    limits = LoopLimits(collection_bytes=need, feedback_bytes=1_000)
    assert act(turn, limits) == Answer(1, 0)
    limits = LoopLimits(collection_bytes=need - 1, feedback_bytes=1_000)
    assert act(turn, limits) == Skip(1, (0, 1), "collection_bytes", "the run reached its limit (collection_bytes)")


def test_the_collection_is_the_runs_own_and_the_request_has_the_history() -> None:
    """Limits of their own, and none reserves for another (R106, R111)."""
    desk = Desk()
    first = desk.open("r1", UserMessage(content="x" * 5_000), conversation="c")
    desk.exchange(first, asking("a"), "y" * 5_000)
    desk.take(first, reply())
    desk.close(first)
    turn = desk.open("r2", conversation="c")
    desk.take(turn, asking("a"))
    assert act(turn, LoopLimits(collection_bytes=3_000, feedback_bytes=1_000)) == Answer(0, 0)
    action = act(turn, LoopLimits(request_bytes=10_000, feedback_bytes=1_000))
    assert isinstance(action, Skip)
    assert action.code == "request_bytes"


def test_one_reply_and_one_feedback_have_their_defaults() -> None:
    """(R97, R98, R99, R100)"""
    limits = LoopLimits()
    kib = 1024
    assert (limits.reply_bytes, limits.feedback_bytes) == (64 * kib, 4 * kib)
    assert (limits.request_bytes, limits.collection_bytes) == (2 * kib * kib, 8 * kib * kib)


def test_model_calls_have_a_default_a_range_and_a_ceiling_to_say_aloud() -> None:
    """(R95)"""
    assert LoopLimits().max_model_calls == 8
    for allowed in (1, 32):
        assert LoopLimits(max_model_calls=allowed).max_model_calls == allowed
    for refused in (0, 33):
        with pytest.raises(InputError, match=r"LoopLimits.max_model_calls: expected an integer from 1 to 32"):
            LoopLimits(max_model_calls=refused)
    assert LoopLimits(max_model_calls=100, ceiling=100).max_model_calls == 100


@pytest.mark.parametrize("name", ["max_wire_request_bytes", "max_request_bytes"])
def test_the_encoded_request_has_room_for_the_reply_and_every_answer(name: str) -> None:
    """(R102, R103)"""
    _, turn = run_with(asking("a", "b"))
    need = 10_000 + turn.entries[0].size + 2 * ROOMY.feedback_bytes + _WIRE_FRAME

    def decide(allowed: int) -> Action:
        if name == "max_request_bytes":
            return act(turn, sent_bytes=10_000, max_request_bytes=allowed)
        return act(turn, LoopLimits(max_wire_request_bytes=allowed), sent_bytes=10_000)

    assert decide(need) == Answer(0, 0)
    assert decide(need - 1) == Skip(0, (0, 1), name, f"the run reached its limit ({name})")


hard = st.text('"\\\n\x00é😀a', max_size=9)
natives = st.fixed_dictionaries(
    {},
    optional={
        "reasoning_content": hard,
        "reasoning": hard,
        "reasoning_details": st.lists(st.fixed_dictionaries({"type": hard, "text": hard}), max_size=2),
        "refusal": hard,
        "calls": st.dictionaries(st.sampled_from(["0", "1"]), st.dictionaries(hard, hard, max_size=2), max_size=2),
    },
)


@settings(max_examples=150, deadline=None)
@given(values.exchanges, natives, st.sampled_from(sorted(PRESETS)))
def test_what_an_exchange_adds_on_the_wire_is_no_more_than_is_reserved_for_it(
    exchange: Any, native: dict[str, Any], preset: str
) -> None:
    """(R102)"""
    desk = Desk()
    turn = desk.open()
    made = msgspec.structs.replace(exchange.reply, native=Native(data=canonical_text(native)))
    entry = desk.take(turn, made)
    for position, given_feedback in enumerate(exchange.feedback):
        desk.add(desk.book.complete(turn, 0, position, state="failed", feedback=given_feedback, code="x", at_ms=4))
    sizes = [
        len(encode_request(made, model="m", dialect=dialect(preset)).body)
        for made in (
            ModelRequest(messages=turn.history),
            ModelRequest(messages=turn.history, exchanges=tuple(turn.exchanges)),
        )
    ]
    assert sizes[1] - sizes[0] <= entry.size + _WIRE_FRAME


# -- any run


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_run_never_goes_over_a_limit_and_always_ends_with_every_call_answered(data: st.DataObject) -> None:
    """(R13, R95, R102)"""
    limits = LoopLimits(
        max_model_calls=data.draw(st.integers(1, 4)),
        max_tool_calls=data.draw(st.none() | st.integers(0, 5)),
        max_tokens=data.draw(st.none() | st.integers(1, 12)),
        max_equal_calls=data.draw(st.none() | st.integers(1, 3)),
        request_bytes=data.draw(st.sampled_from([1_024, 3_000, 10**6])),
        feedback_bytes=256,
    )
    desk = Desk()
    turn = desk.open()
    words = st.sampled_from(["tool_calls", "tool_calls", "stop", "length", "content_filter"])
    for _ in range(100):
        action = act(turn, limits)
        if isinstance(action, Ask):
            ids = data.draw(st.lists(st.sampled_from("abcd"), max_size=3, unique=True))
            word = data.draw(words)
            desk.take(turn, reply(*map(call, ids), word=word))
        elif isinstance(action, Answer):
            assert turn.request_size + limits.feedback_bytes <= limits.request_bytes
            desk.run(turn, action.exchange, action.position, "x" * data.draw(st.integers(0, 100)))
        elif isinstance(action, Skip):
            for position in action.positions:
                desk.skip(turn, action.exchange, position, code=action.code)
        else:
            desk.close(turn, action.outcome, action.reason)
            break
    assert turn.closed is not None
    assert turn.model_calls <= limits.max_model_calls
    assert limits.max_tool_calls is None or turn.tool_calls <= limits.max_tool_calls
    assert all(entry.complete for entry in turn.entries)
    ran = [entry for entry in turn.entries if any(slot.effect_id for slot in entry.slots)]
    assert all(verdict(entry) == "completed" for entry in ran)


# -- what an earlier owner left


def test_an_attempt_without_an_end_is_waited_for_before_anything_else() -> None:
    """(R133)"""
    desk, turn = run_with()
    attempt = desk.send(turn)
    assert act(turn, LoopLimits(max_seconds=1), elapsed=2) == Wait((attempt,), ())


def lost(*states: str) -> tuple[Desk, Turn]:
    """A reply whose calls were all started and lost, but for those that are open."""
    desk, turn = run_with(asking(*(f"c{at}" for at in range(len(states)))))
    for position, state in enumerate(states):
        if state == "lost":
            desk.start(turn, 0, position)
    desk.add(desk.book.lose_slots(turn, at_ms=4))
    return desk, turn


def test_a_call_that_was_lost_is_waited_for_before_another_begins() -> None:
    """(R134)"""
    _, turn = lost("lost", "open")
    assert act(turn) == Wait((), (0,))
    assert act(turn, repeatable={"read"}) == Wait((), (0,))
    name = turn.entries[0].slots[0].call.name
    assert act(turn, repeatable={name}) == Answer(0, 0)


def test_what_may_not_run_again_holds_up_what_may() -> None:
    """Nothing is done while a host must be asked anyway."""
    desk, turn = lost("lost", "open", "lost")
    desk.add(desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=4))
    assert act(turn) == Wait((), (0, 2))
    desk.add(desk.book.allow_rerun(turn, 0, 2, author="Ann", at_ms=4))
    assert act(turn) == Answer(0, 0)
    desk.run(turn, 0, 0)
    assert act(turn) == Answer(0, 2)
    desk.run(turn, 0, 2)
    assert act(turn) == Answer(0, 1)


def lost_calls(*names: str) -> tuple[Desk, Turn]:
    """One call of each of these tools, all started and lost, and one more that is open."""
    desk, turn = run_with(reply(*(call(f"c{at}", name) for at, name in enumerate((*names, "last"))), word="tool_calls"))
    for position in range(len(names)):
        desk.start(turn, 0, position)
    desk.add(desk.book.lose_slots(turn, at_ms=1))
    return desk, turn


def test_lookups_are_asked_before_anything_waits_or_runs_again() -> None:
    """(R134)"""
    ways = {"repeatable": {"read"}, "lookups": {"pay", "buy"}}
    desk, turn = lost_calls("read", "pay", "mail", "buy")
    assert act(turn, **ways) == Recover(0, (1, 3))
    settle(desk, turn, 1)
    assert act(turn, **ways) == Recover(0, (3,))
    settle(desk, turn, 3)
    assert act(turn, **ways) == Wait((), (0, 2))
    settle(desk, turn, 2)
    assert act(turn, **ways) == Answer(0, 0)
    desk.run(turn, 0, 0)
    assert act(turn, **ways) == Answer(0, 4)


def settle(desk: Desk, turn: Turn, position: int) -> None:
    given_ = desk.feedback(turn, 0, position)
    desk.add(desk.book.settle_slot(turn, 0, position, state="done", feedback=given_, author="recovery:pay", at_ms=1))


def test_a_call_that_was_looked_up_and_not_done_runs_and_is_not_asked_for_again() -> None:
    """(R134)"""
    desk, turn = lost_calls("pay")
    desk.add(desk.book.allow_rerun(turn, 0, 0, author="recovery:pay", at_ms=1))
    assert act(turn, lookups={"pay"}) == Answer(0, 0)
    desk.start(turn, 0, 0)
    desk.add(desk.book.lose_slots(turn, at_ms=1))
    assert act(turn, lookups={"pay"}) == Recover(0, (0,))  # of its second execution nobody knows


def test_a_lookup_needs_no_budget_and_the_run_that_it_allows_does() -> None:
    """(R102)"""
    desk, turn = lost_calls("pay")
    limits = LoopLimits(max_tool_calls=1)
    assert act(turn, limits, lookups={"pay"}) == Recover(0, (0,))
    desk.add(desk.book.allow_rerun(turn, 0, 0, author="recovery:pay", at_ms=1))
    assert act(turn, limits, lookups={"pay"}) == Wait((), (0,))


def test_only_what_is_unknown_and_unanswered_is_looked_up() -> None:
    desk, turn = run_with(reply(call("a", "pay"), call("b", "pay"), word="tool_calls"))
    assert act(turn, lookups={"pay"}) == Answer(0, 0)
    desk.start(turn, 0, 0)
    desk.receive(turn, 0, 0, state="unknown")  # a timeout, which the model has read
    assert act(turn, lookups={"pay"}) == Answer(0, 1)


def test_a_call_that_may_run_again_needs_its_budget() -> None:
    """(R102)"""
    desk, turn = lost("lost")
    desk.add(desk.book.allow_rerun(turn, 0, 0, author="Ann", at_ms=4))
    assert act(turn, LoopLimits(max_tool_calls=1)) == Wait((), (0,))
    assert act(turn, LoopLimits(max_tool_calls=2)) == Answer(0, 0)


def test_an_idempotent_call_that_no_budget_is_left_for_stays_unknown_and_ends_the_run() -> None:
    """Nobody need be asked about it, and nothing is run in vain (R102, R139)."""
    desk, turn = lost("lost", "open", "lost")
    names = {slot.call.name for slot in turn.entries[0].slots}
    assert act(turn, LoopLimits(max_tool_calls=4), repeatable=names) == Answer(0, 0)
    words = "the run reached its limit (max_tool_calls)"
    for spent in (2, 3):
        limits = LoopLimits(max_tool_calls=spent)
        assert act(turn, limits, repeatable=names) == Skip(0, (0, 1, 2), "max_tool_calls", words)
    desk.add(desk.book.leave_slot(turn, 0, 0, feedback=desk.feedback(turn, 0, 0), code="max_tool_calls", at_ms=4))
    assert act(turn, limits, repeatable=names) == Skip(0, (1, 2), "max_tool_calls", words)
    desk.add(desk.book.leave_slot(turn, 0, 2, feedback=desk.feedback(turn, 0, 2), code="max_tool_calls", at_ms=4))
    assert act(turn, limits, repeatable=names) == Skip(0, (1,), "max_tool_calls", words)
    desk.skip(turn, 0, 1, code="max_tool_calls")
    assert act(turn, limits, repeatable=names) == Close("limit_reached", "max_tool_calls")


def test_an_attempt_that_failed_is_not_made_again() -> None:
    """(R142)"""
    desk, turn = run_with()
    desk.fail(turn, desk.send(turn))
    assert act(turn) == Close("failed", "total_timeout")
    desk, turn = run_with(asking("a"), asking("b"))
    desk.run(turn, 1, 0)
    assert act(turn) == Ask()
    receipt = desk.receipt(turn, desk.send(turn))
    desk.add(desk.book.fail_send(receipt, abandoned=True, code="cancelled", may_have_been_processed=True, at_ms=4))
    assert act(turn) == Close("cancelled", "cancelled")


def test_an_attempt_that_a_host_settled_or_that_never_left_is_made_anew() -> None:
    desk, turn = run_with()
    desk.add(desk.book.settle_send(turn, desk.send(turn), author="Ann", at_ms=4))
    assert act(turn) == Ask()
    receipt = desk.receipt(turn, desk.send(turn))
    desk.add(desk.book.fail_send(receipt, abandoned=True, code="paused", may_have_been_processed=False, at_ms=4))
    assert act(turn) == Ask()


@pytest.mark.parametrize(
    ("code", "outcome", "words"),
    [
        ("max_seconds", "limit_reached", "the run reached its limit (max_seconds)"),
        ("cancelled", "cancelled", "the run was cancelled"),
        ("tool_crashed", "failed", "the run ended with an error"),
        ("OSError", "failed", "the run ended with an error"),
    ],
)
def test_an_end_that_was_begun_is_gone_through_with(code: str, outcome: Any, words: str) -> None:
    """(R102, R142)"""
    desk, turn = run_with(asking("a", "b", "c"))
    desk.run(turn, 0, 0)
    desk.skip(turn, 0, 1, code=code)
    assert act(turn) == Skip(0, (2,), code, words)
    desk.skip(turn, 0, 2, code=code)
    assert act(turn) == Close(outcome, code)


@pytest.mark.parametrize("code", ["tool_crashed", "invalid_tool_result"])
def test_nothing_runs_after_a_crash(code: str) -> None:
    """(R62)"""
    desk, turn = run_with(asking("a", "b"))
    receipt, given_ = desk.receipt(turn, desk.start(turn, 0, 0)), desk.feedback(turn, 0, 0)
    desk.add(desk.book.receive(receipt, 0, 0, state="unknown", feedback=given_, code=code, at_ms=4))
    assert act(turn) == Skip(0, (1,), "tool_crashed", "the run ended with an error")
    desk.skip(turn, 0, 1, code="tool_crashed")
    assert act(turn) == Close("failed", "tool_crashed")


CANCELLED = ("cancelled", "cancelled", "the run was cancelled")


def test_a_run_that_is_cancelled_where_nobody_drives_it_keeps_the_end_that_was_begun() -> None:
    """(R142)"""
    desk, turn = run_with()
    assert cancelled_end(turn) == CANCELLED
    desk.fail(turn, desk.send(turn))
    assert cancelled_end(turn) == ("failed", "total_timeout", "the run ended with an error")
    desk, turn = run_with(asking("a", "b", "c"))
    desk.run(turn, 0, 0)
    assert cancelled_end(turn) == CANCELLED
    desk.skip(turn, 0, 1, code="max_seconds")
    assert cancelled_end(turn) == ("limit_reached", "max_seconds", "the run reached its limit (max_seconds)")


@pytest.mark.parametrize("word", ["stop", "length"])
def test_a_run_whose_last_reply_is_stored_and_whose_end_is_not_is_cancelled(word: str) -> None:
    desk, turn = run_with(reply(word=word))
    assert cancelled_end(turn) == CANCELLED
    desk, turn = run_with(reply(call("a"), call("b"), word="length"))
    desk.skip(turn, 0, 0, code="reply_incomplete")
    assert cancelled_end(turn) == CANCELLED


def test_every_limit_that_skips_calls_is_known_as_one() -> None:
    """So that a run taken up later ends as it would have."""
    names = {name for name in LoopLimits.__struct_fields__ if name.startswith("max_") or name.endswith("_bytes")}
    skipping = names - {"max_depth", "reply_bytes", "max_parallel_tools"} | {"max_request_bytes"}
    assert skipping == _LIMITS


# -- a request that was refused

BUSY: dict[str, Any] = {"code": "http_status", "processed": False, "status": 429}
CUT: dict[str, Any] = {"code": "truncated", "processed": True, "stream_refused": True, "previewed": False}
OUTCOMES: list[dict[str, Any]] = [
    BUSY,
    BUSY | {"retry_after": 2.0},
    BUSY | {"retry_after": 1e6},
    {"code": "connection_failed", "processed": False},
    {"code": "http_status", "processed": True, "status": 503},
    CUT,
    {"code": "http_status", "processed": True, "status": 500},
    {"code": "http_status", "processed": False, "status": 401},
    {"code": "http_status", "processed": False},
    {"code": "connection_lost", "processed": True},
    {"code": "total_timeout", "processed": True},
    {"code": "truncated", "processed": True},
    CUT | {"previewed": True},
    CUT | {"previewed": None},
    CUT | {"code": "idle_timeout"},
    {"code": "provider", "processed": False},
]


def test_without_a_policy_a_refused_request_ends_the_run() -> None:
    """(R114, R142)"""
    desk, turn = run_with()
    desk.fail(turn, desk.send(turn), **BUSY)
    assert act(turn) == Close("failed", "http_status")


def test_with_a_policy_it_is_sent_once_more_until_there_is_a_reply() -> None:
    policy = ResendPolicy(max_resends=1)
    desk, turn = run_with()
    for after in (0, 1):
        assert act(turn, resend=policy) == Ask()
        attempt = desk.send(turn)
        desk.fail(turn, attempt, **BUSY)
        assert act(turn, resend=policy) == Resend(attempt, "http_status", 0.0, 0.5)
        desk.take(turn, asking("a"))
        assert act(turn, resend=policy) == Answer(after, 0)
        desk.run(turn, after, 0)
    for resent in (Resend("attempt 5", "http_status", 3.0, 3.0), Close("failed", "http_status")):
        desk.fail(turn, desk.send(turn), **BUSY, retry_after=3.0)
        assert act(turn, resend=policy) == resent


def test_an_attempt_that_never_left_is_made_anew_and_counts_for_no_refusal() -> None:
    policy = ResendPolicy(max_resends=1)
    desk, turn = run_with()
    desk.fail(turn, desk.send(turn), **BUSY)
    receipt = desk.receipt(turn, desk.send(turn))
    desk.add(desk.book.fail_send(receipt, abandoned=True, code="paused", may_have_been_processed=False, at_ms=4))
    assert act(turn, resend=policy) == Ask()
    assert policy.place(turn.refused) == policy.place(turn.refused[:1])


@pytest.mark.parametrize(
    ("limits", "elapsed"), [(LoopLimits(max_model_calls=1), 0.0), (LoopLimits(max_seconds=5), 5.0)]
)
def test_a_budget_that_is_used_up_ends_the_run_with_the_error(limits: LoopLimits, elapsed: float) -> None:
    """(R102)"""
    desk, turn = run_with()
    desk.fail(turn, desk.send(turn), **BUSY)
    assert act(turn, limits, elapsed=elapsed, resend=ResendPolicy()) == Close("failed", "http_status")
    assert type(act(turn, resend=ResendPolicy())) is Resend


@given(
    outcomes=st.sampled_from([OUTCOMES, OUTCOMES[:6]]).flatmap(
        lambda known: st.lists(st.sampled_from(known), min_size=40, max_size=40)
    ),
    policy=st.builds(
        ResendPolicy,
        max_resends=st.integers(0, 4),
        on_connection_failed=st.booleans(),
        on_rate_limit=st.booleans(),
        on_unavailable=st.booleans(),
        on_refused_stream=st.booleans(),
        fallbacks=st.integers(0, 2).map(lambda count: (ScriptedProvider([]),) * count),
    ),
    calls=st.integers(1, 12),
)
def test_nothing_that_may_have_been_processed_is_sent_again_unasked_nor_more_often_than_allowed_or_paid_for(
    outcomes: list[dict[str, Any]], policy: ResendPolicy, calls: int
) -> None:
    """(R114, R121, R142)"""
    limits = LoopLimits(max_model_calls=calls)
    desk, turn = run_with()
    sent = 0
    for outcome in outcomes:
        desk.fail(turn, desk.send(turn), **outcome)
        sent += 1
        action = act(turn, limits, resend=policy)
        if type(action) is not Resend:
            assert action == Close("failed", outcome["code"])
            break
        if outcome.get("status") == 503:
            assert policy.on_unavailable
        elif outcome == CUT:
            assert policy.on_refused_stream
        else:
            assert not outcome["processed"]
            assert outcome["code"] == "connection_failed" or outcome.get("status") == 429
        assert 0 <= action.at_least <= action.at_most <= policy.max_delay
    assert type(action) is Close
    assert sent <= min(calls, (policy.max_resends + 1) * (len(policy.fallbacks) + 1))


# -- a call that is claimed with what is stored before it


def test_a_call_that_is_claimed_comes_first_unless_time_is_up() -> None:
    """It was judged when it was claimed, and only time passed in between (R102)."""
    desk, turn = run_with(asking("a", "b"))
    desk.start(turn, 0, 0)
    limits = LoopLimits(max_tool_calls=1, max_seconds=5)
    assert act(turn, limits, elapsed=4.0) == Answer(0, 0)
    assert act(turn, limits, elapsed=5.0) == Skip(0, (0, 1), "max_seconds", "the run reached its limit (max_seconds)")
    desk.receive(turn, 0, 0)
    assert type(act(turn, limits, elapsed=4.0)) is Skip


@given(
    calls=st.lists(st.sampled_from(["one", "two"]), min_size=1, max_size=4),
    before=st.integers(0, 2),
    word=st.sampled_from(["tool_calls", "stop", "length"]),
    limits=st.builds(
        LoopLimits,
        max_model_calls=st.integers(1, 5),
        max_tool_calls=st.none() | st.integers(1, 8),
        max_equal_calls=st.none() | st.integers(1, 4),
        feedback_bytes=st.sampled_from([256, 512]),
        request_bytes=st.integers(1_500, 5_000),
        collection_bytes=st.integers(1_500, 5_000),
        max_wire_request_bytes=st.none() | st.integers(1_500, 5_000),
        max_seconds=st.sampled_from([None, 5]),
    ),
    elapsed=st.sampled_from([0.0, 5.0]),
    own=st.none() | st.integers(1_500, 5_000),
    answers=st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["done", "unknown"])), min_size=4, max_size=4),
)
def test_what_is_decided_before_something_is_stored_is_what_is_decided_once_it_is(
    calls: list[str],
    before: int,
    word: str,
    limits: LoopLimits,
    elapsed: float,
    own: int | None,
    answers: list[tuple[int, Any]],
) -> None:
    """(R102)"""
    desk, turn = run_with()
    for _ in range(before):
        desk.exchange(turn, asking("one"))
    sizes: dict[str, Any] = {"sent_bytes": turn.request_size, "max_request_bytes": own}
    attempt = desk.send(turn)
    made = reply(*(call(f"{at}", arguments=f'{{"{which}": 1}}') for at, which in enumerate(calls)), word=word)
    entry = Entry(made, attempt, desk.book.encoded(made), 4, None)
    decided = ahead(turn, entry, ledger_of(limits, turn), limits, elapsed=elapsed, **sizes)
    desk.add(desk.book.intake(desk.receipt(turn, attempt), made, at_ms=4))
    for position, (length, state) in enumerate(answers):
        action = act(turn, limits, elapsed=elapsed, **sizes)
        assert (action.position if type(action) is Answer else None) == decided
        if decided is None:
            break
        assert decided == position
        effect = desk.start(turn, before, position)
        assert act(turn, limits, elapsed=elapsed, **sizes) == action
        given_ = desk.feedback(turn, before, position, "x" * length)
        decided = ahead(
            turn,
            turn.entries[-1],
            ledger_of(limits, turn),
            limits,
            elapsed=elapsed,
            answered=position,
            feedback_bytes=len(desk.book.encoded(given_)),
            **sizes,
        )
        receipt = desk.receipt(turn, effect)
        desk.add(desk.book.receive(receipt, before, position, state=state, feedback=given_, at_ms=4))


# -- calls that wait for a host


def hold(desk: Desk, turn: Turn, *positions: int) -> None:
    for position in positions:
        desk.add(desk.book.hold_slot(turn, 0, position, kind="approval", at_ms=5))


def decide(desk: Desk, turn: Turn, position: int, state: SlotState) -> None:
    code = "approved" if state == "open" else "denied"
    desk.add(
        desk.book.decide_slot(
            turn,
            0,
            position,
            digest=call_digest(turn, 0, position),
            state=state,
            code=code,
            feedback=None if state == "open" else desk.feedback(turn, 0, position),
            author="Ann",
            at_ms=6,
            max_bytes=4096,
        )
    )


def test_a_call_that_waits_is_passed_over_and_the_run_is_suspended_when_the_others_are_answered() -> None:
    desk, turn = run_with(asking("a", "b", "c"))
    hold(desk, turn, 1)
    assert act(turn) == Answer(0, 0)
    desk.run(turn, 0, 0)
    assert act(turn) == Answer(0, 2)
    desk.run(turn, 0, 2)
    assert act(turn) == Suspend(0, (1,))


def test_waiting_uses_nothing_up() -> None:
    desk, turn = run_with(asking("a", "b"))
    hold(desk, turn, 0, 1)
    spent = LoopLimits(max_model_calls=1, max_tool_calls=1, max_seconds=1.0)
    assert act(turn, spent, elapsed=99.0) == Suspend(0, (0, 1))


def test_a_limit_that_ends_the_run_skips_what_waits_too() -> None:
    desk, turn = run_with(asking("a", "b", "c"))
    hold(desk, turn, 0)
    skip = act(turn, LoopLimits(max_tool_calls=2))
    assert type(skip) is Skip
    assert (skip.positions, skip.code) == ((0, 1, 2), "max_tool_calls")
    desk.skip(turn, 0, 0, code="max_tool_calls")
    skip = act(turn)  # an owner ended half way through
    assert type(skip) is Skip
    assert (skip.positions, skip.code) == ((1, 2), "max_tool_calls")


def test_an_approved_call_runs_and_a_denied_one_ends_nothing() -> None:
    desk, turn = run_with(asking("a", "b"))
    hold(desk, turn, 0, 1)
    decide(desk, turn, 0, "skipped")
    assert act(turn) == Suspend(0, (1,))
    assert cancelled_end(turn)[:2] == ("cancelled", "cancelled")
    decide(desk, turn, 1, "open")
    assert act(turn) == Answer(0, 1)
    desk.run(turn, 0, 1)
    assert act(turn) == Ask()


def test_what_nobody_knows_is_settled_before_a_run_is_suspended() -> None:
    """(R142)"""
    desk, turn = run_with(asking("a", "b"))
    hold(desk, turn, 0)
    desk.start(turn, 0, 1)
    desk.add(desk.book.lose_slots(turn, at_ms=7))
    assert act(turn) == Wait((), (1,))
    desk.add(desk.book.allow_rerun(turn, 0, 1, author="Ann", at_ms=8))
    assert act(turn) == Answer(0, 1)
    desk.run(turn, 0, 1)
    assert act(turn) == Suspend(0, (0,))


def test_what_is_claimed_ahead_is_what_will_be_answered_past_calls_that_wait() -> None:
    """(R80)"""
    desk, turn = run_with(asking("a", "b", "c"))
    hold(desk, turn, 1)
    last = turn.last
    assert last is not None
    ledger = ledger_of(ROOMY, turn)
    assert ahead(turn, last, ledger, ROOMY, elapsed=0.0, answered=0) == 2
    desk.run(turn, 0, 0)
    assert act(turn) == Answer(0, 2)
    assert ahead(turn, last, ledger, ROOMY, elapsed=0.0, answered=2) is None


# -- calls that wait for their child runs


def waits_for_child(desk: Desk, turn: Turn, *positions: int) -> None:
    for position in positions:
        desk.start(turn, 0, position)
        desk.wait_for_child(turn, 0, position)


def test_a_call_that_waits_for_its_child_run_is_asked_about_once_and_then_passed_over() -> None:
    desk, turn = run_with(asking("a", "b", "c"))
    waits_for_child(desk, turn, 0, 2)
    assert act(turn) == Answer(0, 0)
    assert act(turn, held={(0, 0)}) == Answer(0, 2)
    assert act(turn, held={(0, 0), (0, 2)}) == Answer(0, 1)
    assert act(turn, held={(1, 0), (1, 2)}) == Answer(0, 0)  # of another reply
    desk.run(turn, 0, 1)
    assert act(turn, held={(0, 0), (0, 2)}) == Suspend(0, (0, 2))
    assert act(turn) == Answer(0, 0)


def test_limits_leave_a_call_that_waits_for_its_child_run_alone_but_for_time() -> None:
    """(R102)"""
    desk, turn = run_with(asking("a"))
    waits_for_child(desk, turn, 0)
    for limits in (LoopLimits(max_model_calls=1), LoopLimits(max_tool_calls=1), LoopLimits(request_bytes=4200)):
        assert act(turn, limits) == Answer(0, 0)
        assert act(turn, limits, held={(0, 0)}) == Suspend(0, (0,))
    assert act(turn, LoopLimits(max_seconds=1.0), elapsed=1.0) == Suspend(0, (0,))


def test_a_call_that_waits_for_its_child_run_takes_no_tool_call_from_the_others() -> None:
    desk, turn = run_with(asking("a", "b"))
    waits_for_child(desk, turn, 0)
    assert act(turn, LoopLimits(max_tool_calls=2), held={(0, 0)}) == Answer(0, 1)
    few = act(turn, LoopLimits(max_tool_calls=1), held={(0, 0)})
    assert few == Skip(0, (0, 1), "max_tool_calls", "the run reached its limit (max_tool_calls)")


def test_what_nobody_knows_comes_before_a_child_run_that_waits() -> None:
    desk, turn = run_with(asking("a", "b"))
    waits_for_child(desk, turn, 0)
    desk.start(turn, 0, 1)
    desk.add(desk.book.lose_slots(turn, at_ms=9))
    assert act(turn) == Wait((), (1,))


def test_no_claim_is_made_ahead_of_a_child_run_that_is_to_be_asked() -> None:
    desk, turn = run_with(asking("a", "b", "c"))
    waits_for_child(desk, turn, 0, 2)
    desk.start(turn, 0, 0)
    assert turn.last is not None
    given: Any = {"elapsed": 0.0}
    assert ahead(turn, turn.last, ledger_of(ROOMY, turn), ROOMY, answered=0, **given) is None
    given["held"] = {(0, 2)}
    assert ahead(turn, turn.last, ledger_of(ROOMY, turn), ROOMY, answered=0, **given) == 1


def test_an_end_that_began_with_a_child_run_is_gone_through_with() -> None:
    """(R142)"""
    desk, turn = run_with(asking("a", "b"))
    waits_for_child(desk, turn, 0)
    desk.skip(turn, 0, 0, code="cancelled")
    assert act(turn) == Skip(0, (1,), "cancelled", "the run was cancelled")


def test_an_end_that_began_with_an_approved_call_is_gone_through_with() -> None:
    """(R142)"""
    desk, turn = run_with(asking("a", "b"))
    desk.add(desk.book.hold_slot(turn, 0, 0, kind="approval", at_ms=5))
    digest = call_digest(turn, 0, 0)
    approved = desk.book.decide_slot(
        turn, 0, 0, digest=digest, state="open", code="approved", feedback=None, author="Ann", at_ms=6, max_bytes=99
    )
    desk.add(approved)
    desk.skip(turn, 0, 0, code="max_seconds")
    assert act(turn) == Skip(0, (1,), "max_seconds", "the run reached its limit (max_seconds)")
