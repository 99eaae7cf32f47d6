"""A turn as chunks of a UI message: from events, from what is stored, and from both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.events import EVENT_TYPES, RunEvent
from agentloop.integrations.serving.turn import AttemptOf, Budget, CallOf, TurnView, Used, WaitingOf
from agentloop.integrations.ui_stream import MessageWriter
from agentloop.integrations.ui_stream.ids import message_id_of, turn_id_of
from tests.integrations.ui_messages import fold, kinds, plain, text_of

RUN = "k.c.t"
REF = f"{RUN}/0.0:{'0' * 64}"
BELOW = f"{RUN}/0.0/1.2:{'1' * 64}"
COMPLETED = {"outcome": "completed", "reason": "stop"}


def events_of(*items: tuple[str, dict[str, Any]]) -> list[RunEvent]:
    """Events of one run, with their envelope."""
    made: list[RunEvent] = []
    for number, (kind, payload) in enumerate(items, 1):
        envelope = {"event_id": f"{RUN}:{number:010d}", "occurred_at_ms": number, "run_id": RUN, "span_id": RUN}
        made.append(EVENT_TYPES[kind](**envelope, **payload))  # type: ignore[arg-type]  # of the union, by its type
    return made


def attempt(
    attempt_id: str, *pieces: str, reasoning: Sequence[str] = (), calls: int = 0, code: str | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """What a run tells of one attempt; with a ``code`` it failed."""
    items: list[tuple[str, dict[str, Any]]] = [("model.start", {"attempt_id": attempt_id, "call_sequence": 1})]
    for kind, texts in (("model.reasoning", reasoning), ("model.output", pieces)):
        offset = 0
        for text in texts:
            items.append((kind, {"attempt_id": attempt_id, "offset": offset, "text": text}))
            offset += len(text)
    end: dict[str, Any] = {"attempt_id": attempt_id, "call_sequence": 1}
    if code is None:
        chars = sum(map(len, pieces))
        finish = al.Termination.of("tool_calls" if calls else "stop")
        parsed = {"attempt_id": attempt_id, "text_chars": chars, "calls": calls, "termination": finish}
        return [*items, ("model.parsed", parsed), ("model.end", {**end, "status": "success", "retracted": False})]
    shown = bool(pieces or reasoning)
    return [*items, ("model.end", {**end, "status": "error", "retracted": shown, "code": code})]


def started(exchange: int, position: int, arguments: str = "{}") -> tuple[str, dict[str, Any]]:
    fields = {"tool": "look", "call_id": f"call_{position}", "exchange": exchange, "position": position}
    return "tool.started", {**fields, "arguments": arguments}


def ended(exchange: int, position: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    call = {"tool": "look", "call_id": f"call_{position}", "exchange": exchange, "position": position}
    return "tool.ended", {**call, "status": "success", "slot": "done", "output": "seen", **fields}


def call_view(exchange: int = 0, position: int = 0, **fields: Any) -> CallOf:
    """A stored call that is open unless ``fields`` say otherwise."""
    plain_one: dict[str, Any] = {"call_id": "c", "arguments": "{}", "state": "open", "code": None, "executions": 0}
    unanswered: dict[str, Any] = {"output": None, "status": None, "kept_bytes": None, "converted": ()}
    given = plain_one | unanswered | {"duration_ms": None} | fields
    return CallOf(exchange=exchange, position=position, tool="look", **given)


def reply_view(**fields: Any) -> AttemptOf:
    """A stored attempt that brought a reply unless ``fields`` say otherwise."""
    made: dict[str, Any] = {"state": "replied", "code": None, "may_have_been_processed": True, "started_at_ms": 0}
    said: dict[str, Any] = {"exchange": None, "text": "", "refusal": None, "finish": None, "usage": None, "calls": ()}
    return AttemptOf(**(made | said | fields))


def waiting_view(**fields: Any) -> WaitingOf:
    """A call that waits to be approved unless ``fields`` say otherwise."""
    call: dict[str, Any] = {"agent": "a", "tool": "look", "arguments": "{}", "exchange": 0, "position": 0}
    return WaitingOf(**({"kind": "approval", "below": False} | call | fields))


def stored(**fields: Any) -> TurnView:
    """A turn that has ended unless ``fields`` say otherwise."""
    times: dict[str, Any] = {"opened_at_ms": 0, "ended_at_ms": None, "seconds_left": None, "redacted": False}
    rest: dict[str, Any] = {"said": (), "attempts": (), "waiting": (), "unsettled": (), "usage": None}
    budget = Budget(model_calls=Used(0, None), tool_calls=Used(0, None), tokens=Used(0, None))
    end: dict[str, Any] = {"state": "ended", "outcome": None, "reason": None, "budget": budget}
    return TurnView(**({"conversation": "c", "agent": "a"} | times | rest | end | fields))


def written(
    events: Iterable[RunEvent], turn: TurnView, *, during: TurnView | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The whole message as a client gets it; ``during`` is what is stored while the events come."""
    writer = MessageWriter("t", **options)
    chunks = writer.start()
    for event in events:
        if writer.needs_turn(event):
            chunks += writer.turn(during or turn)
        chunks += writer.event(event)
    return plain([*chunks, *writer.end(turn)])


def types(chunks: Sequence[dict[str, Any]]) -> list[str]:
    """The chunks' types without what is only told aside."""
    return kinds(chunk for chunk in chunks if not chunk.get("transient"))


# -- text and reasoning


def test_an_answer_is_one_step_with_one_text() -> None:
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, text="Hello."),))
    chunks = written(events_of(*attempt("m1", "Hel", "lo.")), turn)
    assert types(chunks) == [
        "start",
        "start-step",
        "text-start",
        "text-delta",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]
    assert chunks[0] == {"type": "start", "messageId": "t.reply"}
    assert chunks[-1] == {"type": "finish", "finishReason": "stop"}
    assert text_of(fold(chunks)) == "Hello."


def test_a_stored_turn_alone_gives_the_same_message() -> None:
    first = reply_view(
        attempt_id="m1", exchange=0, text="Let me look.", calls=(call_view(state="done", status="ok", output="seen"),)
    )
    turn = stored(id="t", **COMPLETED, attempts=(first, reply_view(attempt_id="m2", exchange=1, text="Seen.")))
    told = events_of(*attempt("m1", "Let me", " look.", calls=1), started(0, 0), ended(0, 0), *attempt("m2", "Seen."))
    assert fold(written([], turn)) == fold(written(told, turn))
    assert kinds(fold(written([], turn))) == ["step-start", "text", "dynamic-tool", "step-start", "text"]


def test_reasoning_is_a_part_of_its_own_that_ends_where_text_begins() -> None:
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, text="Four."),))
    told = attempt("m1", "Fo", "ur.", reasoning=["Two and", " two."])
    told.insert(4, ("model.reasoning", {"attempt_id": "m1", "offset": 12, "text": "Sure?"}))
    chunks = written(events_of(*told), turn)
    parts = fold(chunks)
    assert [part for part in parts if part["type"] == "reasoning"] == [
        {"type": "reasoning", "text": "Two and two."},
        {"type": "reasoning", "text": "Sure?"},
    ]
    assert text_of(parts) == "Four."
    assert types(chunks).index("reasoning-end") < types(chunks).index("text-start")


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


def cut(text: str, cuts: Iterable[int]) -> list[str]:
    edges = [0, *sorted({at % (len(text) + 1) for at in cuts}), len(text)]
    return [text[a:b] for a, b in pairwise(edges) if a < b]


@given(TEXTS, TEXTS, st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30)))
def test_the_cuts_of_previews_change_no_part(text: str, reasoning: str, cuts: list[int], more: list[int]) -> None:
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, text=text),))
    whole = fold(written(events_of(*attempt("m1", text, reasoning=[reasoning])), turn))
    pieces = events_of(*attempt("m1", *cut(text, cuts), reasoning=cut(reasoning, more)))
    assert fold(written(pieces, turn)) == whole
    assert text_of(whole) == text


@st.composite
def turns(draw: st.DrawFn) -> tuple[list[tuple[str, dict[str, Any]]], TurnView]:
    """What a run tells, and what is stored of it: replies, failed attempts, calls that ran or were skipped."""
    told: list[tuple[str, dict[str, Any]]] = []
    attempts: list[AttemptOf] = []
    names = (f"m{number}" for number in count(1))
    exchanges = draw(st.integers(1, 3))
    for exchange in range(exchanges):
        for text in draw(st.lists(TEXTS | st.just(""), max_size=2)):
            failed = next(names)
            told += attempt(failed, *([text] if text else []), code="timeout")
            attempts.append(reply_view(attempt_id=failed, state="failed", code="timeout"))
        text = draw(TEXTS | st.just(""))
        results = draw(st.lists(st.sampled_from(["ran", "failed", "skipped"]), max_size=3))
        pieces = cut(text, draw(st.lists(st.integers(0, 30), max_size=3)))
        told += attempt(name := next(names), *pieces, calls=len(results))
        calls = []
        for position, result in enumerate(results):
            place = {"tool": "look", "call_id": "c", "exchange": exchange, "position": position}
            if result == "skipped":
                told.append(("tool.skipped", {**place, "slot": "failed", "code": "unknown_tool"}))
                calls.append(call_view(exchange, position, state="failed", status="error", output="No such tool."))
                continue
            told.append(("tool.started", {**place, "arguments": "{}"}))
            status = "success" if result == "ran" else "error"
            told.append(("tool.ended", {**place, "status": status, "slot": "done", "output": result}))
            seen = "ok" if result == "ran" else "error"
            calls.append(call_view(exchange, position, state="done", status=seen, output=result))
        attempts.append(reply_view(attempt_id=name, exchange=exchange, text=text, calls=tuple(calls)))
    return told, stored(id="t", **COMPLETED, attempts=tuple(attempts))


def lasting(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts without what tells of previews that were taken back: who saw none is told of none."""
    return [part for part in parts if part["type"] != "data-withdrawn"]


@given(turns(), st.integers(0, 60), st.integers(0, 60), st.data())
def test_events_and_stored_turns_make_one_message_in_whatever_order_they_come(
    made: tuple[list[tuple[str, dict[str, Any]]], TurnView], lost: int, gap: int, data: st.DataObject
) -> None:
    """A reader may miss events, see a stored turn instead, and see events again that it holds already."""
    told, turn = made
    events = events_of(*told)
    expected = lasting(fold(written([], turn)))
    assert lasting(fold(written(events, turn))) == expected
    lost %= len(events) + 1
    writer = MessageWriter("t")
    chunks = writer.start()
    for event in events[:lost]:
        if writer.needs_turn(event):
            chunks += writer.turn(turn)
        chunks += writer.event(event)
    chunks += writer.turn(turn)
    for event in events[max(0, lost - gap) :]:
        chunks += writer.event(event)
    assert lasting(fold(plain([*chunks, *writer.end(turn)]))) == expected


def test_text_that_was_missed_comes_from_the_stored_reply() -> None:
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, text="one two three"),))
    told = events_of(*attempt("m1", "one ", "two ", "three"))
    chunks = written([*told[:2], *told[3:]], turn)
    assert text_of(fold(chunks)) == "one two three"
    assert types(chunks).count("text-start") == 1


def test_a_preview_that_repeats_what_was_shown_adds_the_rest() -> None:
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, text="one two"),))
    told = attempt("m1", "one", " two", reasoning=["a", "b"])
    for kind, text in (("model.reasoning", "ab"), ("model.output", "one tw")):
        at = next(at for at, (other, _) in enumerate(told) if other == kind) + 1
        told.insert(at, (kind, {"attempt_id": "m1", "offset": 0, "text": text}))
    parts = fold(written(events_of(*told), turn))
    assert [(part["type"], part["text"]) for part in parts[1:]] == [("reasoning", "ab"), ("text", "one two")]


def test_a_reply_that_has_ended_and_is_not_taken_in_yet_is_waited_for() -> None:
    early = stored(id="t", state="running", attempts=(reply_view(attempt_id="m1"),))
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, text="Hi."),))
    writer = MessageWriter("t")
    chunks = plain([*writer.start(), *writer.turn(early), *writer.end(turn)])
    assert text_of(fold(chunks)) == "Hi."


def test_a_reply_that_was_not_previewed_stands_before_the_tools_it_asked_for() -> None:
    first = reply_view(
        attempt_id="m1", exchange=0, text="hidden", calls=(call_view(state="done", status="ok", output="seen"),)
    )
    told = events_of(*attempt("m1", "hidden", calls=1), started(0, 0), ended(0, 0))
    unseen = [event for event in told if event.type != "model.output"]
    assert kinds(fold(written(unseen, stored(id="t", **COMPLETED, attempts=(first,))))) == [
        "step-start",
        "text",
        "dynamic-tool",
    ]


def test_a_stored_reply_that_is_not_what_was_shown_takes_its_place() -> None:
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, text="other"),))
    chunks = written(events_of(*attempt("m1", "shown")[:2]), turn)
    assert kinds(fold(chunks)) == ["step-start", "data-withdrawn", "text"]
    assert text_of(fold(chunks)) == "other"


def test_model_calls_of_other_runs_add_nothing() -> None:
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, text="Hi."),))
    summary = attempt("s1", "a summary")
    summary[0][1]["ref"] = "another"
    chunks = written(events_of(*summary, *attempt("m1", "Hi.")), turn)
    assert fold(chunks) == fold(written([], turn))


# -- previews that do not stand


FAILED = stored(
    id="t",
    outcome="failed",
    reason="stream_refused",
    attempts=(reply_view(attempt_id="m1", state="failed", code="stream_refused"),),
)


def test_a_preview_that_does_not_stand_is_taken_back_by_the_protocols_own_word() -> None:
    chunks = written(events_of(*attempt("m1", "never", code="stream_refused")), FAILED)
    assert types(chunks) == [
        "start",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "reset-step",
        "data-withdrawn",
        "finish-step",
        "error",
    ]
    (withdrawn,) = [part for part in fold(chunks) if part["type"] == "data-withdrawn"]
    assert withdrawn["data"] == {"attemptId": "m1", "textId": "m1", "code": "stream_refused"}
    assert text_of(fold(chunks)) == ""


def test_a_client_of_an_older_version_is_told_which_text_to_strike() -> None:
    chunks = written(events_of(*attempt("m1", "never", code="stream_refused")), FAILED, reset_step=False)
    assert "reset-step" not in kinds(chunks)
    (begun,) = [chunk for chunk in chunks if chunk["type"] == "text-start"]
    (withdrawn,) = [chunk for chunk in chunks if chunk["type"] == "data-withdrawn"]
    assert withdrawn["data"]["textId"] == begun["id"]
    assert begun["providerMetadata"] == {"agentloop": {"attemptId": withdrawn["data"]["attemptId"]}}


def test_an_attempt_that_is_sent_once_more_shares_the_step_of_the_refused_one() -> None:
    turn = stored(
        id="t",
        **COMPLETED,
        attempts=(
            reply_view(attempt_id="m1", state="failed", code="http_503"),
            reply_view(attempt_id="m2", exchange=0, text="Now."),
        ),
    )
    resend = ("resend.scheduled", {"attempt_id": "m1", "code": "http_503", "delay_ms": 5, "model": "x"})
    chunks = written(events_of(*attempt("m1", "No", code="http_503"), resend, *attempt("m2", "Now.")), turn)
    assert kinds(fold(chunks)) == ["step-start", "data-withdrawn", "text"]
    assert text_of(fold(chunks)) == "Now."
    (told,) = [chunk for chunk in chunks if chunk["type"] == "data-resend"]
    assert told["transient"]
    assert told["data"] == {"attemptId": "m1", "code": "http_503", "delayMs": 5, "model": "x"}


def test_a_text_that_was_cut_off_by_the_end_of_the_turn_is_taken_back() -> None:
    turn = stored(id="t", outcome="cancelled", reason="cancelled")
    chunks = written(events_of(*attempt("m1", "half")[:2]), turn)
    assert types(chunks)[-4:] == ["reset-step", "data-withdrawn", "finish-step", "abort"]


# -- ends


def test_a_failed_turn_ends_with_an_error_and_is_never_finished() -> None:
    chunks = written([], FAILED)
    assert chunks[-1] == {"type": "error", "errorText": "stream_refused: The turn failed."}
    assert "finish" not in kinds(chunks)


@pytest.mark.parametrize("state", ["running", "elsewhere", "paused", "unsettled"])
def test_a_turn_that_has_not_ended_does_not_look_finished(state: str) -> None:
    last = written([], stored(id="t", state=state))[-1]
    assert last["type"] == "error"
    assert last["errorText"].startswith(f"{state}: ")


def test_a_cancelled_turn_is_aborted() -> None:
    assert written([], stored(id="t", outcome="cancelled", reason="stopped"))[-1] == {
        "type": "abort",
        "reason": "stopped",
    }


@pytest.mark.parametrize(
    ("outcome", "reason", "word"),
    [
        ("completed", "stop", "stop"),
        ("refused", "content_filter", "content-filter"),
        ("incomplete", "length", "length"),
        ("incomplete", "stopped", "other"),
        ("limit_reached", "model_calls", "other"),
    ],
)
def test_an_end_says_why_in_the_protocols_words_and_what_was_used(outcome: str, reason: str, word: str) -> None:
    usage = al.Usage(input_tokens=5, output_tokens=2, total_tokens=7)
    last = written([], stored(id="t", outcome=outcome, reason=reason, usage=usage))[-1]
    counts = {"inputTokens": 5, "outputTokens": 2, "totalTokens": 7}
    assert last == {"type": "finish", "finishReason": word, "messageMetadata": {"usage": counts}}


def test_what_the_protocol_has_no_word_for_is_told_aside() -> None:
    chunks = written([], stored(id="t", outcome="limit_reached", reason="model_calls"))
    (told,) = [chunk for chunk in chunks if chunk["type"] == "data-turn"]
    assert told["transient"]
    assert told["data"] == {
        "turn": "t",
        "state": "ended",
        "outcome": "limit_reached",
        "reason": "model_calls",
        "usage": None,
        "budget": {name: {"used": 0, "limit": None} for name in ("modelCalls", "toolCalls", "tokens")},
    }


def test_a_refusal_is_told_beside_the_text() -> None:
    refused = reply_view(attempt_id="m1", exchange=0, refusal="I will not.")
    chunks = written(events_of(*attempt("m1")), stored(id="t", outcome="refused", attempts=(refused,)))
    (told,) = [chunk for chunk in chunks if chunk["type"] == "data-refusal"]
    assert told["data"] == {"attemptId": "m1", "text": "I will not."}


# -- tools


def tool_parts(chunks: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part for part in fold(chunks) if part["type"] == "dynamic-tool"]


def shown_input(arguments: str) -> dict[str, Any]:
    call = call_view(arguments=arguments, state="done", status="ok", output="seen")
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, calls=(call,)),))
    writer = MessageWriter("t")
    raw = [*writer.start(), *writer.turn(turn)]
    return next(chunk for chunk in plain(raw) if chunk["type"].startswith("tool-input"))


def test_arguments_are_given_as_they_were_written() -> None:
    text = '{"n": 123456789012345678901234567890,\n "x": 1.10, "s": "a b"}'
    call = call_view(arguments=text, state="done", status="ok")
    writer = MessageWriter("t")
    turn = stored(id="t", attempts=(reply_view(attempt_id="m1", exchange=0, calls=(call,)),))
    encoded = [msgspec.json.encode(chunk) for chunk in writer.turn(turn)]
    assert b'"input":{"n":123456789012345678901234567890,"x":1.10,"s":"a b"}' in encoded[1]


@pytest.mark.parametrize("arguments", ["", "nonsense", "[1]", '"text"', '{"a":1,"a":2}', '{"a":'])
def test_arguments_that_are_no_json_object_are_given_as_text_with_an_error(arguments: str) -> None:
    chunk = shown_input(arguments)
    assert (chunk["type"], chunk["input"], chunk["dynamic"]) == ("tool-input-error", arguments, True)


@pytest.mark.parametrize("arguments", ['{"__proto__":{}}', '{"a":[{"constructor":{"prototype":1}}]}'])
def test_arguments_with_a_key_that_a_client_refuses_are_given_as_text(arguments: str) -> None:
    chunk = shown_input(arguments)
    assert (chunk["type"], chunk["input"]) == ("tool-input-available", arguments)


def test_the_client_does_not_run_what_runs_here() -> None:
    assert shown_input("{}")["providerExecuted"]


def test_calls_with_the_same_id_of_the_model_are_two_calls() -> None:
    told = events_of(
        *attempt("m1", calls=1),
        started(0, 0),
        ended(0, 0),
        *attempt("m2", calls=1),
        started(1, 0),
        ended(1, 0, output="again"),
    )
    replies = tuple(
        reply_view(
            attempt_id=f"m{number + 1}",
            exchange=number,
            calls=(call_view(number, 0, state="done", status="ok", output=output),),
        )
        for number, output in enumerate(["seen", "again"])
    )
    parts = tool_parts(written(told, stored(id="t", **COMPLETED, attempts=replies)))
    assert [(part["toolCallId"], part["output"]) for part in parts] == [("t.0.0", "seen"), ("t.1.0", "again")]


def test_what_a_running_tool_notes_is_told_aside() -> None:
    note = ("tool.progress", {"tool": "look", "call_id": "call_0", "message": "half", "fraction": 0.5})
    turn = stored(
        id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, calls=(call_view(state="started"),)),)
    )
    chunks = written(events_of(*attempt("m1", calls=1), started(0, 0), note), turn)
    (told,) = [chunk for chunk in chunks if chunk["type"] == "data-progress"]
    assert told["data"] == {"toolCallId": "t.0.0", "message": "half", "fraction": 0.5}


def test_a_call_that_ran_out_of_time_and_is_repeated_has_one_result() -> None:
    late = ended(0, 0, status="cancelled", slot="unknown", code="timeout", output="")
    told = events_of(*attempt("m1", calls=1), started(0, 0), late, started(0, 0), ended(0, 0))
    turn = stored(
        id="t",
        **COMPLETED,
        attempts=(
            reply_view(attempt_id="m1", exchange=0, calls=(call_view(state="done", status="ok", output="seen"),)),
        ),
    )
    (part,) = tool_parts(written(told, turn))
    assert part["state"] == "output-available"


def test_a_call_that_was_refused_is_told_with_its_arguments_and_what_the_model_reads() -> None:
    refused = call_view(arguments='{"a":1}', state="failed", code="bad_arguments", status="error", output="Expected b.")
    turn = stored(id="t", **COMPLETED, attempts=(reply_view(attempt_id="m1", exchange=0, calls=(refused,)),))
    place = {"tool": "look", "call_id": "call_0", "exchange": 0, "position": 0}
    skipped = ("tool.skipped", {**place, "slot": "failed", "code": "bad_arguments"})
    chunks = written(events_of(*attempt("m1", calls=1), skipped), turn)
    (part,) = tool_parts(chunks)
    assert (part["input"], part["state"], part["errorText"]) == ({"a": 1}, "output-error", "Expected b.")
    assert types(chunks).index("tool-output-error") < types(chunks).index("finish-step")


# -- calls that wait


def waiting_turn(*calls: CallOf, waiting: Sequence[WaitingOf]) -> TurnView:
    reply = reply_view(attempt_id="m1", exchange=0, text="May I?", calls=calls)
    return stored(id="t", state="waiting", attempts=(reply,), waiting=tuple(waiting))


WAITS = waiting_turn(call_view(state="waiting", code="approval"), waiting=[waiting_view(ref=REF, tool="look")])


def test_a_call_that_waits_is_asked_about_and_the_message_is_complete() -> None:
    chunks = written(events_of(*attempt("m1", "May I?", calls=1)), WAITS)
    assert types(chunks)[-4:] == ["tool-input-available", "tool-approval-request", "finish-step", "finish"]
    assert chunks[-1]["finishReason"] == "tool-calls"
    (part,) = tool_parts(chunks)
    assert (part["state"], part["approval"]) == ("approval-requested", {"id": REF})


def test_a_message_goes_on_after_a_decision_with_what_the_client_has_not() -> None:
    before = fold(written([], WAITS))
    done = reply_view(
        attempt_id="m1",
        exchange=0,
        text="May I?",
        calls=(call_view(state="done", status="ok", output="seen"),),
    )
    turn = stored(id="t", **COMPLETED, attempts=(done, reply_view(attempt_id="m2", exchange=1, text="Done.")))
    approved = msgspec.structs.replace(WAITS, state="running", waiting=())
    writer = MessageWriter("t")
    chunks = writer.resume(approved, 0)
    for event in events_of(*attempt("m1", "May I?", calls=1), started(0, 0), ended(0, 0), *attempt("m2", "Done.")):
        chunks += writer.event(event)
    said = plain([*chunks, *writer.end(turn)])
    assert types(said) == [
        "start",
        "tool-output-available",
        "start-step",
        "text-start",
        "text-delta",
        "text-end",
        "finish-step",
        "finish",
    ]
    assert said[0]["messageId"] == "t.reply"
    parts = fold(said, before)
    assert text_of(parts) == "May I?Done."
    assert [part["state"] for part in parts if part["type"] == "dynamic-tool"] == ["output-available"]


def test_what_came_of_earlier_calls_is_not_told_again_where_a_message_goes_on() -> None:
    ran = reply_view(attempt_id="m1", exchange=0, calls=(call_view(state="done", status="ok", output="seen"),))
    asks = reply_view(attempt_id="m2", exchange=1, calls=(call_view(1, 0, state="waiting", code="approval"),))
    turn = stored(id="t", state="running", attempts=(ran, asks))
    assert types(plain(MessageWriter("t").resume(turn, 1))) == ["start"]


DENIED = stored(
    id="t",
    **COMPLETED,
    attempts=(
        reply_view(
            attempt_id="m1",
            exchange=0,
            text="May I?",
            calls=(call_view(state="skipped", code="denied", status="error", output="This call was denied."),),
        ),
    ),
)


def test_a_denied_call_is_denied_in_the_message_that_asked() -> None:
    writer = MessageWriter("t")
    said = plain([*writer.resume(DENIED, 0), *writer.end(DENIED)])
    assert types(said) == ["start", "tool-output-denied", "finish"]
    (part,) = [part for part in fold(said, fold(written([], WAITS))) if part["type"] == "dynamic-tool"]
    assert (part["state"], part["approval"]["id"]) == ("output-denied", REF)


@pytest.mark.parametrize(
    ("reset_step", "approval"), [(True, {"id": "t.0.0", "approved": False}), (False, {"id": "t.0.0"})]
)
def test_a_client_that_was_not_asked_learns_that_a_call_was_denied(reset_step: bool, approval: dict[str, Any]) -> None:
    (part,) = tool_parts(written([], DENIED, reset_step=reset_step))
    assert (part["state"], part["approval"]) == ("output-denied", approval)


def test_a_call_whose_result_the_host_gives_is_the_clients_to_run() -> None:
    waits = waiting_view(ref=REF, kind="external", tool="look")
    chunks = written([], waiting_turn(call_view(state="waiting", code="external"), waiting=[waits]))
    (part,) = tool_parts(chunks)
    assert part["state"] == "input-available"
    assert "providerExecuted" not in part


def test_a_call_that_nobody_has_turned_to_yet_is_not_told_to_run_here() -> None:
    refused = call_view(0, 0, state="failed", status="error", output="No.")
    reading = stored(
        id="t", state="running", attempts=(reply_view(attempt_id="m1", exchange=0, calls=(refused, call_view(0, 1))),)
    )
    waits = waiting_view(ref=REF, kind="external", position=1)
    turn = waiting_turn(refused, call_view(0, 1, state="waiting", code="external"), waiting=[waits])
    place = {"tool": "look", "call_id": "call_0", "exchange": 0, "position": 0}
    skipped = ("tool.skipped", {**place, "slot": "failed", "code": "unknown_tool"})
    chunks = written(events_of(*attempt("m1", calls=2), skipped), turn, during=reading)
    assert [part.get("providerExecuted", False) for part in tool_parts(chunks)] == [True, False]


def test_a_call_of_a_run_below_is_asked_about_with_its_own_tool_and_arguments() -> None:
    waits = waiting_view(
        ref=BELOW, agent="helper", tool="pay", arguments='{"sum":5}', exchange=1, position=2, below=True
    )
    turn = waiting_turn(call_view(state="waiting", code="child"), waiting=[waits])
    chunks = written([], turn)
    above, below = tool_parts(chunks)
    assert (above["state"], above["output"]) == ("output-available", {"state": "waiting"})
    assert (below["toolName"], below["input"], below["toolCallId"]) == ("pay", {"sum": 5}, "t.0.0/1.2")
    assert (below["state"], below["approval"]) == ("approval-requested", {"id": BELOW})


@pytest.mark.parametrize(("approved", "state"), [(True, "output-available"), (False, "output-denied")])
def test_a_call_of_a_run_below_is_closed_when_it_was_decided_about(approved: bool, state: str) -> None:
    waits = waiting_view(ref=BELOW, tool="pay", exchange=1, position=2, below=True)
    turn = waiting_turn(call_view(state="waiting", code="child"), waiting=[waits])
    before = fold(written([], turn))
    done = msgspec.structs.replace(
        turn,
        state="ended",
        outcome="completed",
        waiting=(),
        attempts=(
            reply_view(
                attempt_id="m1",
                exchange=0,
                text="May I?",
                calls=(call_view(state="done", status="ok", output="paid"),),
            ),
        ),
    )
    writer = MessageWriter("t")
    chunks = [*writer.resume(turn, 0), *writer.decided(BELOW, approved=approved)]
    parts = fold(plain([*chunks, *writer.end(done)]), before)
    above, below = [part for part in parts if part["type"] == "dynamic-tool"]
    assert (above["output"], below["state"]) == ("paid", state)


def test_a_message_and_its_turn_name_each_other() -> None:
    assert turn_id_of(message_id_of("abc")) == "abc"
    assert turn_id_of("abc") is None


def test_the_stored_turn_is_asked_for_only_where_an_event_tells_too_little() -> None:
    writer = MessageWriter("t")
    writer.start()
    told = events_of(*attempt("a1", "Hi", calls=1), started(0, 0), ended(0, 0), ended(0, 1))
    asked = []
    for event in told:
        asked.append(writer.needs_turn(event))
        writer.event(event)
    assert asked == [False] * (len(told) - 1) + [True]  # the last call began where nobody listened
