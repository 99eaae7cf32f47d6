"""What a turn's requests say of the turns before it."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.exchange import Turn
from agentloop.messages import FunctionSpec, Message, ModelExchange, SystemMessage, UserMessage
from agentloop.wire.encode import encode_request
from agentloop.wire.presets import dialect
from tests.exchange.desk import Desk, asking
from tests.messages.values import reply


def system(text: str) -> SystemMessage:
    return SystemMessage(content=text)


def user(text: str) -> UserMessage:
    return UserMessage(content=text)


def said(turn: Turn) -> list[str]:
    """The history in short: ``system:…``, ``user:…``, and ``exchange`` for a reply with its feedback."""
    tags = {SystemMessage: "system", UserMessage: "user"}
    return ["exchange" if isinstance(m, ModelExchange) else f"{tags[type(m)]}:{m.content}" for m in turn.history]


def turn_of(desk: Desk, run: str, *messages: SystemMessage | UserMessage, calls: int = 0) -> Turn:
    turn = desk.open(run, *messages, conversation="c")
    for _ in range(calls):
        desk.exchange(turn, asking("a"))
    desk.take(turn, reply())
    desk.close(turn)
    return turn


def test_the_next_turn_says_the_old_messages_then_the_exchanges_then_the_new_ones() -> None:
    """(R70, R128)"""
    desk = Desk()
    turn_of(desk, "r1", system("S"), user("one"), calls=1)
    turn_of(desk, "r2", system("S"), user("two"))
    third = desk.open("r3", system("S"), user("three"), conversation="c")
    assert said(third) == ["system:S", "user:one", "exchange", "exchange", "user:two", "exchange", "user:three"]


def test_changed_instructions_replace_the_old_ones_in_their_place() -> None:
    desk = Desk()
    turn_of(desk, "r1", system("old"), system("older"), user("one"))
    second = desk.open("r2", system("new"), user("two"), conversation="c")
    assert said(second) == ["system:new", "user:one", "exchange", "user:two"]


def test_a_turn_without_instructions_keeps_those_before() -> None:
    desk = Desk()
    turn_of(desk, "r1", system("S"), user("one"))
    turn_of(desk, "r2", user("two"))
    third = desk.open("r3", user("three"), conversation="c")
    assert said(third) == ["system:S", "user:one", "exchange", "user:two", "exchange", "user:three"]


def test_a_system_message_in_the_middle_stays_where_it_was_said() -> None:
    desk = Desk()
    turn_of(desk, "r1", system("old"), user("one"), system("note"))
    second = desk.open("r2", system("new"), user("two"), conversation="c")
    assert said(second) == ["system:new", "user:one", "system:note", "exchange", "user:two"]


def test_a_turn_that_failed_before_any_exchange_is_not_part_of_the_history() -> None:
    """(R126)"""
    desk = Desk()
    turn_of(desk, "r1", user("one"))
    failed = desk.open("r2", user("lost"), conversation="c")
    desk.fail(failed, desk.send(failed))
    desk.close(failed, "failed", "total_timeout")
    third = desk.open("r3", user("three"), conversation="c")
    assert said(third) == ["user:one", "exchange", "user:three"]
    assert third.opened.continues == desk.book.turn("r2").opened.continues


def test_a_turn_that_failed_after_an_exchange_is_kept_so_far() -> None:
    desk = Desk()
    failed = desk.open("r1", user("one"), conversation="c")
    desk.exchange(failed, asking("a"))
    desk.fail(failed, desk.send(failed))
    desk.close(failed, "failed", "total_timeout")
    assert said(desk.open("r2", user("two"), conversation="c")) == ["user:one", "exchange", "user:two"]


def test_a_run_without_a_conversation_has_no_history() -> None:
    """(R71)"""
    desk = Desk()
    turn_of(desk, "r1", user("one"))
    assert said(desk.open("r2", user("two"))) == ["user:two"]


def bodies(desk: Desk, turn: Turn) -> bytes:
    request = desk.book.request(desk.book.reference(turn), max_bytes=10**6)
    return encode_request(request, model="m", dialect=dialect("openai")).body


def test_a_request_without_its_brackets_is_a_prefix_of_the_next_turns_request() -> None:
    desk = Desk()
    sent: list[bytes] = []
    for at in range(3):
        turn = desk.open(f"r{at}", system("S"), user(f"question {at}"), conversation="c")
        sent.append(bodies(desk, turn))
        desk.exchange(turn, asking("a"), f"answer {at}")
        sent.append(bodies(desk, turn))
        desk.take(turn, reply())
        desk.close(turn)
    for earlier, later in pairwise(sent):
        assert later.startswith(earlier.removesuffix(b"]}"))
        assert len(later) > len(earlier)


spoken = st.builds(SystemMessage, content=st.text(max_size=5)) | st.builds(UserMessage, content=st.text(max_size=5))
specs = st.lists(st.builds(FunctionSpec, name=st.just("t"), description=st.text(max_size=9)), max_size=1).map(tuple)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(spoken, max_size=3), specs, st.integers(0, 2)), min_size=1, max_size=5))
def test_the_size_of_a_request_is_the_size_of_its_parts_however_many_turns_came_before(
    turns: list[tuple[list[SystemMessage | UserMessage], tuple[FunctionSpec, ...], int]],
) -> None:
    """A catalogue and instructions that every turn repeats are in a request once (R99, R111)."""

    def size(message: Message) -> int:
        if isinstance(message, ModelExchange):
            return sum(len(msgspec.json.encode(part)) for part in (message.reply, *message.feedback))
        return len(msgspec.json.encode(message))

    desk = Desk()
    for at, (messages, tools, calls) in enumerate(turns):
        turn = desk.open(f"r{at}", *messages, tools=tools, conversation="c")
        for _ in range(calls):
            desk.exchange(turn, asking("a", "b"))
        frame = len(msgspec.json.encode(tools)) + len(msgspec.json.encode(turn.opened.options))
        assert turn.request_size == sum(map(size, (*turn.history, *turn.exchanges))) + frame
        desk.take(turn, reply())
        desk.close(turn)
