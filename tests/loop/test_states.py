"""The table of a run's phases, held pair by pair."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.loop import NEXT, Phase, Signal, follow, phase_of
from tests.exchange.desk import Desk, asking
from tests.messages.values import reply

ALLOWED = {
    (Phase.ASKING, Signal.REFUSED): Phase.ASKING,
    (Phase.ASKING, Signal.OVERTAKEN): Phase.ASKING,
    (Phase.ASKING, Signal.REPLIED): Phase.ASKING,
    (Phase.ASKING, Signal.ASKED): Phase.ANSWERING,
    (Phase.ASKING, Signal.CLOSED): Phase.ENDED,
    (Phase.ANSWERING, Signal.ANSWERED_ONE): Phase.ANSWERING,
    (Phase.ANSWERING, Signal.RECOVERED): Phase.ANSWERING,
    (Phase.ANSWERING, Signal.ANSWERED_ALL): Phase.ASKING,
    (Phase.ANSWERING, Signal.SUSPENDED): Phase.SUSPENDED,
}


@pytest.mark.parametrize("signal", Signal)
@pytest.mark.parametrize("phase", Phase)
def test_the_table_has_exactly_the_steps_that_a_run_can_take(phase: Phase, signal: Signal) -> None:
    """(R13)"""
    if (phase, signal) in ALLOWED:
        assert follow(phase, signal) is ALLOWED[phase, signal]
        return
    with pytest.raises(ValueError, match=f"^a run that is {phase.value} cannot take {signal.value}$"):
        follow(phase, signal)


def test_every_phase_is_in_the_table_and_only_a_suspension_and_the_end_lead_nowhere() -> None:
    assert set(NEXT) == set(Phase)
    assert [phase for phase in Phase if not NEXT[phase]] == [Phase.SUSPENDED, Phase.ENDED]


@given(st.lists(st.sampled_from(Signal), max_size=20))
def test_a_walk_ends_only_from_asking_with_every_call_answered(signals: list[Signal]) -> None:
    """(R13)"""
    phase = Phase.ASKING
    for signal in signals:
        if signal not in NEXT[phase]:
            continue
        before, phase = phase, follow(phase, signal)
        if phase is Phase.ENDED:
            assert before is Phase.ASKING


def test_the_facts_alone_say_where_a_run_is() -> None:
    """(R13, R126)"""
    desk = Desk()
    turn = desk.open()
    seen = [phase_of(turn)]
    desk.take(turn, asking("a", "b"))
    seen.append(phase_of(turn))
    desk.run(turn, 0, 0)
    seen.append(phase_of(turn))
    desk.run(turn, 0, 1)
    seen.append(phase_of(turn))
    desk.take(turn, reply())
    seen.append(phase_of(turn))
    desk.close(turn)
    seen.append(phase_of(turn))
    assert seen == [Phase.ASKING, Phase.ANSWERING, Phase.ANSWERING, Phase.ASKING, Phase.ASKING, Phase.ENDED]
