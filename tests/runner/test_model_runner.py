"""Calls of a runner: their forms, what comes of them, who is told, and what stays after them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, get_overloads

import msgspec
import pytest

import agentloop as al
from agentloop.errors import ConflictError, InputError, OutputRefused
from agentloop.exchange import Fact, OriginOpened
from agentloop.messages import ImagePart, ModelReply, SystemMessage, TextPart, UserMessage
from agentloop.testing import RecordingSink, ScriptedProvider, broken, call, reply
from tests.messages.values import exchange
from tests.runs import SlowBackend, on_backend


class Ticket(msgspec.Struct):
    """A typed value that has the names of a record's fields."""

    invocation_id: str
    call_sequence: int


TICKET = al.Structured(Ticket)
FORGED = reply('{"invocation_id":"mine","call_sequence":99}', usage=(3, 2))


def runner(*script: Any, **options: Any) -> tuple[al.ModelRunner, ScriptedProvider]:
    provider = ScriptedProvider(script)
    return al.ModelRunner(provider, **options), provider


def told(sink: RecordingSink) -> list[dict[str, Any]]:
    """What a sink was told, without ids and times."""
    hidden = {"event_id", "occurred_at_ms", "run_id", "span_id", "parent_span_id", "invocation_id", "attempt_id", "ref"}
    return [
        {"type": event.type}
        | {
            name: getattr(event, name)
            for name in event.__struct_fields__
            if name not in hidden and name != "duration_ms"
        }
        for event in sink.events
    ]


# -- forms of a call


async def test_text_in_text_out() -> None:
    """(R207, R219)"""
    made, provider = runner(reply("hi", usage=(3, 1)))
    result = await made.invoke("q")
    assert type(result) is al.ModelResult
    assert result.__struct_fields__ == ("value", "invocation")
    assert result.value == "hi"
    assert provider.requests[0].messages == (UserMessage(content="q"),)


async def test_all_forms_of_a_call_for_text_are_one() -> None:
    """(R207, R208)"""
    seen = []
    forms: list[tuple[Any, dict[str, Any]]] = [
        ("q", {}),
        (UserMessage(content="q"), {}),
        ([UserMessage(content="q")], {"stage_id": "model"}),
        ((UserMessage(content="q"),), {"transport": "core:plain-text"}),
        ("q", {"transport": None, "max_output_tokens": None, "model_id": None, "stage_id": None}),
        ("q", {"max_output_tokens": 1_024}),
    ]
    for said, options in forms:
        sink = RecordingSink()
        made, provider = runner(reply("hi", usage=(3, 1)), sink=sink)
        result = await made.invoke(said, **options)
        record = msgspec.structs.replace(result.invocation, invocation_id="", started_at_ms=0, ref="")
        seen.append((result.value, record, provider.requests, told(sink)))
    assert all(one == seen[0] for one in seen)


async def test_a_stage_is_called_model_where_none_is_named() -> None:
    """(R223)"""
    made, _ = runner(reply("hi"), reply("hi"))
    assert (await made.invoke("q")).invocation.stage_id == "model"
    assert (await made.invoke("q", stage_id="triage")).invocation.stage_id == "triage"


async def test_plain_text_is_meant_where_no_transport_is_named_even_if_one_is_there() -> None:
    """(R209, R222)"""
    made, provider = runner(reply("hi"), transports=(TICKET,))
    assert (await made.invoke("q")).value == "hi"
    assert provider.requests[0].options.response_format is None


async def test_a_transport_is_named_by_its_id_or_by_itself() -> None:
    """(R225)"""
    made, _ = runner(FORGED, FORGED, transports=(TICKET,))
    by_handle = await made.invoke("q", transport=TICKET)
    by_id = await made.invoke("q", transport="structured:Ticket")
    assert by_handle.value == by_id.value == Ticket(invocation_id="mine", call_sequence=99)


def test_the_type_of_a_value_is_that_of_the_handle_text_for_the_literal_id_and_object_for_other_ids() -> None:
    """(R224)"""
    for method, kind in ((al.ModelRunner.invoke, "ModelResult"), (al.ModelRunner.prepare, "Prepared")):
        told = [
            (form.__annotations__.get("transport", "-"), form.__annotations__["return"])
            for form in get_overloads(method)
        ]
        assert told[:3] == [
            ("Literal['core:plain-text'] | None", f"{kind}[str]"),
            ("Transport[T]", f"{kind}[T]"),
            ("str", f"{kind}[object]"),
        ]


@pytest.mark.parametrize(
    ("transport", "expected"),
    [
        (al.Structured(Ticket), "expected one that this runner was given, got another ('structured:Ticket')"),
        (al.Structured(int), "expected one that this runner was given, got another ('structured:output')"),
        ("structured:int", "expected one of structured:Ticket, core:plain-text, got 'structured:int'"),
        (3, "expected a transport or its id, got int"),
    ],
)
async def test_another_transport_is_refused_also_one_of_the_same_id(transport: Any, expected: str) -> None:
    """(R225)"""
    made, provider = runner(transports=(TICKET,))
    with pytest.raises(InputError) as caught:
        await made.invoke("q", transport=transport)
    assert str(caught.value) == f"transport: {expected}"
    assert (provider.requests, made.total_call_count) == ([], 0)


async def test_messages_go_as_they_are_with_images_and_earlier_exchanges() -> None:
    """(R218, R234)"""
    image = ImagePart(url="https://example.test/a.png")
    said = (
        SystemMessage(content="Be brief."),
        UserMessage(content=(TextPart(text="what is this"), image)),
        exchange("x"),
        UserMessage(content="and now"),
    )
    made, provider = runner(reply("a cat"))
    await made.invoke(said)
    assert provider.requests[0].messages == said
    with pytest.raises(AttributeError):
        said[1].content = ""  # type: ignore[misc]


@pytest.mark.parametrize("said", [None, 3, b"q", {"role": "user"}, [], (), ["q"], [None], object()])
async def test_what_is_no_input_is_refused(said: Any) -> None:
    """(R218)"""
    made, provider = runner()
    with pytest.raises(InputError):
        await made.invoke(said)
    assert (provider.requests, made.total_call_count, made.journal.rejected) == ([], 0, ())


async def test_one_message_of_any_kind_is_an_input() -> None:
    """(R218)"""
    for said in (SystemMessage(content="s"), UserMessage(content="u"), exchange("x")):
        made, provider = runner(reply("hi"))
        await made.invoke(said)
        assert provider.requests[0].messages == (said,)


# -- results


async def test_a_result_has_the_record_of_its_own_call() -> None:
    """(R219, R253, R254)"""
    made, provider = runner(reply("one", usage=(3, 2)), al.ConnectionFailed("no"), FORGED, transports=(TICKET,))
    first = await made.invoke("q", stage_id="a")
    with pytest.raises(al.ConnectionFailed):
        await made.invoke("q")
    third = await made.invoke("q", stage_id="b", transport=TICKET)
    for result, number, stage, transport, route in (
        (first, 1, "a", "core:plain-text", "text"),
        (third, 3, "b", "structured:Ticket", "json_schema"),
    ):
        record = result.invocation
        assert type(record) is al.ModelCallRecord
        assert (record.call_sequence, record.stage_id, record.status) == (number, stage, "success")
        assert (record.transport, record.route, record.model, record.model_id) == (
            transport,
            route,
            "scripted-model",
            None,
        )
        assert record.invocation_id == provider.attempts[number - 1]
        assert record.usage is not None
        assert record.usage.total_tokens == 5
        assert record.started_at_ms > 0
    assert [trace.status for trace in made.journal.model] == ["success", "error", "success"]


async def test_a_model_cannot_write_the_record() -> None:
    """(R221)"""
    made, provider = runner(FORGED, transports=(TICKET,))
    result = await made.invoke("q", transport=TICKET)
    assert result.value == Ticket(invocation_id="mine", call_sequence=99)
    assert (result.invocation.invocation_id, result.invocation.call_sequence) == (provider.attempts[0], 1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (al.ConnectionFailed("no"), al.ConnectionFailed),
        (al.HTTPStatusError("HTTP 400", status=400), al.HTTPStatusError),
        (broken(reply("hi"), al.StreamRefused("truncated", 1, 9, "[DONE]", "the end")), al.StreamRefused),
        (reply("", calls=[call("x")]), OutputRefused),
        (reply("cut", finish="length"), OutputRefused),
        (reply("no", finish="content_filter"), OutputRefused),
    ],
)
async def test_a_failure_is_raised_and_is_no_result(answer: Any, error: type[Exception]) -> None:
    """(R220, R254)"""
    made, _ = runner(answer)
    with pytest.raises(error) as caught:
        await made.invoke("q")
    assert not hasattr(caught.value, "__notes__")  # its end was stored, and once
    trace = made.last_call
    assert trace is not None
    assert trace.status == "error"
    with pytest.raises(ConflictError, match="expected status success"):
        trace.record()


async def test_what_was_refused_is_charged_stored_and_can_be_read() -> None:
    """(R220)"""
    async with on_backend(None, ScriptedProvider([reply("no json", usage=(3, 2))])) as runtime:
        made = runtime.runner(transports=(TICKET,))
        with pytest.raises(OutputRefused) as caught:
            await made.invoke("q", transport=TICKET)
        assert caught.value.transport == "structured:Ticket"
        assert caught.value.ref is not None
        assert "no json" not in str(caught.value)
        status = await runtime.read(caught.value.ref)
        assert status.reply is not None
        assert status.reply.text == "no json"
        assert made.last_call is not None
        assert made.last_call.usage is not None


@al.selection
def pick(n: int) -> int:
    """Pick."""
    return n


EARLY: list[tuple[al.Transport[Any], ModelReply, str]] = [
    (al.PlainText(), reply("words", calls=[call("pick", n=1)]), "unexpected_call"),
    (TICKET, reply("words", calls=[call("pick", n=1)]), "unexpected_call"),
    (al.Structured(Ticket, route="json_text"), reply("words", calls=[call("pick", n=1)]), "unexpected_call"),
    (al.Structured(Ticket, route="call"), reply("words", calls=[call("Ticket", title="x")]), "unexpected_text"),
    (al.NativeCall("n", [pick]), reply("words", calls=[call("pick", n=1)]), "unexpected_text"),
    (al.NativeCall("n", [pick]), reply(calls=[call("pick", n=1), call("pick", n=2)]), "several_calls"),
    (al.JsonCall("j", [pick]), reply("words", calls=[call("pick", n=1)]), "unexpected_call"),
    (al.Session("s", tools=[pick]), reply("words", calls=[call("other", n=1)]), "unknown_tool"),
]


@pytest.mark.parametrize("deltas", [None, 2])
@pytest.mark.parametrize(("transport", "said", "code"), EARLY, ids=lambda value: getattr(value, "id", None))
async def test_a_reply_that_its_pieces_give_away_is_read_to_its_end_charged_once_and_stored(
    transport: al.Transport[Any], said: ModelReply, code: str, deltas: int | None
) -> None:
    """Every transport that refuses early (R220)."""
    said = msgspec.structs.replace(said, usage=reply(usage=(3, 2)).usage)
    provider = ScriptedProvider([said, reply("again")], deltas=deltas)
    sink, spent = RecordingSink(), al.Ledger()
    async with on_backend(None, provider) as runtime:
        made = runtime.runner(
            transports=(transport,) if transport.id != al.PlainText().id else (), sink=sink, ledger=spent
        )
        with pytest.raises(OutputRefused) as caught:
            await made.invoke("q", transport=transport.id)
        assert (caught.value.code, caught.value.transport) == (code, transport.id)
        assert caught.value.ref is not None
        status = await runtime.read(caught.value.ref)
        assert status.reply == said
        with pytest.raises(al.OutcomeError, match=rf"got failed \({code}\)"):
            await runtime.result(caught.value.ref)
    assert (spent.spent("tokens"), spent.spent("model_calls"), len(provider.requests)) == (5, 1, 1)
    end = sink.events[-1]
    assert isinstance(end, al.ModelEnd)
    previewed = any(isinstance(event, al.TextPreview) for event in sink.events)
    assert previewed is bool(said.text)
    assert (end.status, end.code, end.retracted, end.usage) == ("error", code, previewed, said.usage)


async def test_a_stream_that_breaks_after_a_refusal_has_no_reply_and_says_so() -> None:
    """What is wrong with a reply counts only where there is one."""
    torn = broken(reply("words", calls=[call("pick", n=1)]), al.StreamRefused("truncated", 1, 2, "more", "its end"))
    made, _ = runner(torn)
    with pytest.raises(al.StreamRefused):
        await made.invoke("q")


# -- one at a time


async def test_a_second_call_at_the_same_time_is_refused_and_the_first_goes_on() -> None:
    """(R236)"""
    sink = RecordingSink(gate=asyncio.Event())
    gate = sink._gate
    assert gate is not None
    made, provider = runner(reply("one"), reply("two"), sink=sink)
    first = asyncio.create_task(made.invoke("a"))
    await sink.waiting.wait()
    with pytest.raises(ConflictError, match="expected one call at a time, got another one; concurrent tasks have"):
        await made.invoke("b")
    gate.set()
    assert (await first).value == "one"
    assert (await made.invoke("b")).value == "two"
    assert (made.call_count, [request.messages[0].content for request in provider.requests]) == (2, ["a", "b"])  # type: ignore[union-attr]


async def test_children_call_at_the_same_time_and_each_result_has_its_own_record() -> None:
    """(R236)"""

    def answer(request: al.ModelRequest) -> ModelReply:
        return reply(f"re {request.messages[0].content}")  # type: ignore[union-attr]

    provider = ScriptedProvider([answer] * 4)
    made = al.ModelRunner(provider, children=al.ChildLimits(max_concurrent_calls=4))
    parts = [made.child() for _ in range(4)]
    results = await asyncio.gather(*(part.invoke(str(at)) for at, part in enumerate(parts)))
    for at, (part, result) in enumerate(zip(parts, results, strict=True)):
        assert result.value == f"re {at}"
        assert part.last_call is not None
        assert part.last_call.invocation_id == result.invocation.invocation_id
    assert len({result.invocation.invocation_id for result in results}) == 4


async def test_what_a_runner_tells_of_itself_can_be_read() -> None:
    """(R235)"""
    made, _ = runner(reply("hi"), reply("hi"), max_calls=3)
    part = made.child()
    assert (made.last_call, made.remaining_calls, made.signal.cancelled) == (None, 3, False)
    await made.invoke("q")
    before = made.last_call
    await part.invoke("q")
    assert (made.call_count, made.total_call_count, part.call_count, made.remaining_calls) == (1, 2, 1, 1)
    assert made.last_call is before is made.journal.model[-1]
    with pytest.raises(AttributeError):
        before.status = "error"  # type: ignore[misc]
    assert made.execution.signal is made.signal
    assert made.execution.diagnostics is not None
    assert made.execution.diagnostics.journal is made.journal
    assert repr(made) == f"<ModelRunner {made.execution.diagnostics.span_id!r}: 1 calls left>"


# -- what is taken when


async def test_messages_are_taken_before_anything_is_waited_for() -> None:
    """(R249)"""
    stored: list[OriginOpened] = []
    writing, gate = asyncio.Event(), asyncio.Event()

    async def hold(facts: Any) -> None:
        opened = [fact for fact in facts if isinstance(fact, OriginOpened)]
        if opened:
            stored.extend(opened)
            writing.set()
            await gate.wait()

    said: list[al.Message] = [UserMessage(content="one"), exchange("x"), UserMessage(content="two")]
    kept = tuple(said)
    provider = ScriptedProvider([reply("hi")])
    async with on_backend(SlowBackend(hold), provider) as runtime:
        made = runtime.runner()
        going = asyncio.create_task(made.invoke(said))
        await writing.wait()
        said.clear()
        said.append(UserMessage(content="forged"))
        gate.set()
        await going
    assert provider.requests[0].messages == kept == stored[0].messages


async def test_what_is_changed_while_the_server_answers_changes_nothing() -> None:
    """(R249)"""
    said: list[al.Message] = [UserMessage(content="one")]

    async def forge(request: al.ModelRequest) -> ModelReply:
        said[0] = UserMessage(content="forged")
        said.append(UserMessage(content="more"))
        await asyncio.sleep(0)
        return reply(request.messages[0].content)  # type: ignore[union-attr, arg-type]

    made, provider = runner(forge)
    assert (await made.invoke(said)).value == "one"
    assert provider.requests[0].messages == (UserMessage(content="one"),)


# -- who is told


async def test_a_sink_is_awaited_for_each_piece_in_order() -> None:
    """(R216)"""
    log: list[str] = []

    class Slow:
        async def emit(self, event: al.OutputEvent) -> None:
            word = event.text if isinstance(event, al.TextPreview) else event.type
            log.append(f"+{word}")
            await asyncio.sleep(0)
            log.append(f"-{word}")

    provider = ScriptedProvider([reply("abc")], deltas=1)
    await al.ModelRunner(provider, sink=Slow()).invoke("q")
    words = ["model.start", "a", "b", "c", "model.parsed", "model.end"]
    assert log == [f"{sign}{word}" for word in words for sign in "+-"]


@pytest.mark.parametrize("at", [al.ModelStart, al.TextPreview, al.ModelParsed])
async def test_what_a_sink_raises_ends_the_call(at: type[al.Event]) -> None:
    """(R216)"""
    fault = ValueError("full")
    sink = RecordingSink(fails_on=(at, fault))
    made, provider = runner(reply("hi"), sink=sink)
    with pytest.raises(ValueError, match="full") as caught:
        await made.invoke("q")
    assert caught.value is fault
    end = sink.events[-1]
    assert isinstance(end, al.ModelEnd)
    assert (end.status, end.code, made.total_call_count) == ("error", "delivery", 1)
    assert len(provider.requests) == (0 if at is al.ModelStart else 1)


async def test_the_end_is_a_notice_that_nobody_waits_long_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """(R216)"""
    monkeypatch.setattr("agentloop.sinks.emitter.MODEL_END_SECONDS", 0.001)
    never = asyncio.Event()

    class Hanging:
        async def emit(self, event: al.OutputEvent) -> None:
            if isinstance(event, al.ModelEnd):
                await never.wait()

    made, _ = runner(reply("hi"), sink=Hanging())
    assert (await made.invoke("q")).value == "hi"


async def test_each_call_of_a_failing_sink_is_said_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        calls = 0

        async def emit(self, event: al.OutputEvent) -> None:
            self.calls += isinstance(event, al.ModelStart)
            if self.calls == 1 or isinstance(event, al.ModelEnd):
                raise ValueError(f"call {self.calls}")

    made, _ = runner(reply("hi"), reply("hi"), sink=Failing())
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="call 1"):
        await made.invoke("q")
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING):
        assert (await made.invoke("q")).value == "hi"
    assert "sink failed on model.end; the outcome stands" in caplog.text


# -- a transport that fails


class Broken:
    """A transport whose collector cannot be made."""

    id = "broken"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def prepare(self, stage: al.Stage, /) -> al.Interaction[str]:
        return al.Interaction(create_response=self.create, route="broken")

    def create(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "error", [RuntimeError("no"), OutputRefused("no", "rule"), al.ConnectionFailed("mine"), al.BudgetError("x", 1, 2)]
)
async def test_a_collector_that_cannot_be_made_ends_an_attempt_that_is_charged_and_never_sent(error: Exception) -> None:
    """(R322)"""
    sink = RecordingSink()
    provider = ScriptedProvider([])
    async with on_backend(None, provider, resend=al.ResendPolicy(on_refused_stream=True)) as runtime:
        transport = Broken(error)
        made = runtime.runner(transports=(transport,), sink=sink)
        prepared = made.prepare(transport=transport)
        with pytest.raises(type(error)) as caught:
            await made.invoke("q", prepared=prepared)
        assert caught.value is error
        assert (provider.requests, made.call_count, made.remaining_calls, prepared.used) == ([], 1, 7, True)
        assert sink.types == ["model.start", "model.end"]
        end = sink.events[-1]
        assert isinstance(end, al.ModelEnd)
        assert (end.status, end.output_chars, end.call) == ("error", 0, None)
        (row,) = await runtime._store.runs()
        turn = runtime._store.book.turn(row.run_id)
        assert turn.ended is not None
        assert (turn.ended.outcome, turn.ended.may_have_been_processed) == ("abandoned", False)
        assert row.outcome in {"failed", "limit_reached"}


# -- what stays


async def test_a_thousand_calls_keep_the_newest_128_and_few_more() -> None:
    made, _ = runner(*[reply("hi")] * 1_000, max_calls=1_000)
    refs = [(await made.invoke("q")).invocation.ref for _ in range(1_000)]
    kept = [row.run_id for row in await made._host.store.runs()]
    assert 128 <= len(kept) < 160
    assert kept == refs[-len(kept) :]
    facts: list[Fact] = await made._host.store._backend.load()
    assert {fact.run_id for fact in facts} == set(kept)
    assert (made.total_call_count, made.remaining_calls) == (1_000, 0)


async def test_the_160th_call_leaves_the_newest_128() -> None:
    made, _ = runner(*[reply("hi")] * 160, max_calls=160)
    refs = [(await made.invoke("q")).invocation.ref for _ in range(159)]
    assert [row.run_id for row in await made._host.store.runs()] == refs
    refs.append((await made.invoke("q")).invocation.ref)
    assert [row.run_id for row in await made._host.store.runs()] == refs[-128:]


async def test_a_closed_runner_makes_no_call() -> None:
    async with al.ModelRunner(ScriptedProvider([reply("hi")])) as made:
        await made.invoke("q")
    await made.aclose()
    with pytest.raises(al.RunCancelled):
        await made.invoke("q")


# -- what else works for the same request


async def test_a_runner_shows_its_budget_and_who_watches() -> None:
    """(R269)"""
    above = al.Ledger(model_calls=5)
    made, _ = runner(reply("hi"), ledger=above, max_calls=2)
    assert made.observers is None
    made.ledger.debit("model_calls")
    assert (made.remaining_calls, above.left("model_calls")) == (1, 4)
    assert made.child().ledger is not made.ledger
    seen = RecordingSink()
    async with al.ModelRunner(ScriptedProvider([]), observers=[seen]) as watched:
        assert watched.observers is watched.child().observers
        assert watched.observers is not None
