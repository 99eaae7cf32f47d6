"""Requests of OpenAI clients as runs, and runs as what such clients read."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop as al
from agentloop.integrations.openai_endpoint import (
    Answer,
    ChatRequest,
    ChunkWriter,
    Refusal,
    RequestRefused,
    decode_chat_request,
    refusal_of,
)
from agentloop.integrations.openai_endpoint.refusal import NEEDS_PERSON, RETRACTED
from agentloop.messages import (
    ImagePart,
    JsonText,
    ModelExchange,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolFeedback,
    ToolResult,
    UserMessage,
)
from agentloop.messages.parts import Usage
from agentloop.views import AttemptView, ReplyView, RunView
from agentloop.wire.check import check_stream
from agentloop.wire.presets import dialect

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c1", "type": "function", "function": {"name": "note", "arguments": '{"text": "x"}'}}
IMAGE = "data:image/png;base64,AAAA"


def decode(*messages: Any, **more: Any) -> ChatRequest:
    return decode_chat_request(json.dumps({"model": "clerk", "messages": messages or (USER,), **more}).encode())


def refused(body: bytes | None = None, *messages: Any, **more: Any) -> Refusal:
    with pytest.raises(RequestRefused) as caught:
        decode(*messages, **more) if body is None else decode_chat_request(body)
    refusal = caught.value.refusal
    assert (refusal.status, refusal.type) == (400, "invalid_request_error")
    return refusal


# -- requests


def test_a_request_is_a_model_a_history_and_an_input() -> None:
    request = decode(
        {"role": "developer", "content": "Rhyme."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "first"}, {"type": "image_url", "image_url": {"url": IMAGE}}],
        },
        {"role": "assistant", "content": "Noting.", "tool_calls": [CALL], "refusal": None, "annotations": []},
        {"role": "tool", "tool_call_id": "c1", "content": "noted x"},
        {"role": "assistant", "content": [{"type": "text", "text": "one"}], "audio": None, "function_call": None},
        {"role": "system", "content": "Louder."},
        {"role": "user", "content": "second"},
        stream=True,
        stream_options={"include_usage": True},
    )
    assert (request.model, request.stream, request.include_usage) == ("clerk", True, True)
    system, user, noting, answered, later = request.history
    assert (system, later) == (SystemMessage(content="Rhyme."), SystemMessage(content="Louder."))
    assert user == UserMessage(content=(TextPart(text="first"), ImagePart(url=IMAGE)))
    assert type(noting) is type(answered) is ModelExchange
    assert noting.reply.text == "Noting."
    assert noting.reply.calls == (ToolCall(id="c1", name="note", arguments=JsonText(text='{"text": "x"}')),)
    assert noting.feedback == (ToolFeedback.of("c1", ToolResult.ok("noted x")),)
    assert answered.reply.text == "one"
    assert request.input == UserMessage(content="second")


def test_a_request_says_little_when_it_says_the_least() -> None:
    assert decode() == ChatRequest(model="clerk", history=(), input=UserMessage(content="hi"))


IGNORED: dict[str, Any] = {
    "frequency_penalty": 1.5,
    "max_completion_tokens": 5,
    "max_tokens": 5,
    "metadata": {"a": "b"},
    "parallel_tool_calls": False,
    "presence_penalty": -1,
    "prompt_cache_key": "k",
    "reasoning_effort": "high",
    "safety_identifier": "s",
    "seed": 7,
    "service_tier": "flex",
    "store": True,
    "temperature": 0,
    "top_p": 0.5,
    "user": "u",
    "verbosity": "low",
    "x_of_tomorrow": [1],
}
ALLOWED: dict[str, list[Any]] = {
    "audio": [None],
    "function_call": ["auto", "none"],
    "functions": [[], None],
    "logit_bias": [{}, None],
    "logprobs": [False, None],
    "modalities": [["text"], None],
    "n": [1, None],
    "response_format": [{"type": "text"}, None],
    "stop": [[], "", None],
    "stream": [False, None],
    "stream_options": [{}, {"include_usage": False, "include_obfuscation": False}, None],
    "tool_choice": ["auto", "none", None],
    "tools": [[], None],
    "top_logprobs": [0, None],
}


@pytest.mark.parametrize("name", IGNORED)
def test_what_the_agent_decides_is_ignored(name: str) -> None:
    assert decode(**{name: IGNORED[name]}) == decode()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ALLOWED.items() for value in values])
def test_what_says_what_holds_anyway_is_taken(name: str, value: Any) -> None:
    assert decode(**{name: value}) == decode()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("audio", {"voice": "alloy", "format": "wav"}),
        ("function_call", {"name": "f"}),
        ("functions", [{"name": "f"}]),
        ("logit_bias", {"50256": -100}),
        ("logprobs", True),
        ("modalities", ["text", "audio"]),
        ("moderation", {"model": "m"}),
        ("n", 2),
        ("n", True),
        ("prediction", {"type": "content", "content": "x"}),
        ("response_format", {"type": "json_object"}),
        ("response_format", "text"),
        ("stop", ["END"]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("top_logprobs", 3),
        ("web_search_options", {}),
    ],
)
def test_what_would_change_the_answer_is_refused_by_its_name(name: str, value: Any) -> None:
    refusal = refused(**{name: value})
    assert (refusal.param, refusal.code) == (name, "unsupported_parameter")
    assert refusal.message.startswith(f"{name}: expected ")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ("hi", "messages"),
        ([], "messages"),
        ([7], "messages[0]"),
        ([{"role": "assistant", "content": "x"}], "messages"),
        ([USER, {"role": "function", "name": "f", "content": "x"}, USER], "messages[1].role"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}], "messages[0].content[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
            "messages[0].content[0].image_url",
        ),
        ([{"role": "user", "content": "x", "name": "Ann"}], "messages[0]"),
        ([{"role": "assistant", "tool_calls": [CALL]}, USER], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [CALL, CALL]}, USER], "messages[0].tool_calls"),
        ([{"role": "tool", "tool_call_id": "c1", "content": "x"}, USER], "messages[0]"),
        (
            [
                {"role": "assistant", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c2", "content": "x"},
                USER,
            ],
            "messages[1]",
        ),
    ],
)
def test_messages_that_do_not_fit_are_refused_with_their_place(messages: Any, param: str) -> None:
    refusal = refused(messages=messages)
    assert refusal.param == param
    assert "/etc/passwd" not in refusal.message


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"model": None}, "model"),
        ({"model": ""}, "model"),
        ({"model": "x" * 129}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": [1]}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_parameters_of_another_type_are_refused(more: dict[str, Any], param: str) -> None:
    assert refused(**more).param == param


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": "a", "model": "b"}', b'{"n": NaN}', b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    assert refused(body).param is None


_scalars = st.none() | st.booleans() | st.integers() | st.text()
_json = st.recursive(_scalars, lambda value: st.lists(value) | st.dictionaries(st.text(), value))
_roles = st.sampled_from(["system", "user", "assistant", "tool"])


@given(st.lists(st.fixed_dictionaries({"role": _roles}, optional={"content": _json, "tool_calls": _json})) | _json)
def test_any_json_as_messages_is_a_request_or_a_refusal(value: Any) -> None:
    refusal = None
    try:
        request = decode(messages=value)
    except RequestRefused as error:
        refusal = error.refusal
    else:
        assert len(request.history) < len(value)
    assert refusal is None or (refusal.status, refusal.param is None) == (400, False)


# -- answers


def events_of(*attempts: list[str], fails: bool = False) -> list[Any]:
    """Events of model calls with these previews; the last call fails where it shall."""
    events: list[Any] = []

    def add(kind: Any, **payload: Any) -> None:
        number = len(events) + 1
        events.append(
            kind(event_id=al.event_id("r", number), occurred_at_ms=5_000 + number, run_id="r", span_id="r", **payload)
        )

    add(al.RunStarted, agent="clerk", conversation=None, origin_id="o", catalogue_digest="d")
    for at, pieces in enumerate(attempts, 1):
        attempt, offset = f"a{at}", 0
        add(al.ModelStart, attempt_id=attempt, call_sequence=at)
        for piece in pieces:
            add(al.TextPreview, attempt_id=attempt, offset=offset, text=piece)
            offset += len(piece)
        failed = fails and at == len(attempts)
        status = "error" if failed else "success"
        add(al.ModelEnd, attempt_id=attempt, call_sequence=at, status=status, retracted=failed and bool(offset))
    return events


TOKENS = Usage(input_tokens=3, output_tokens=2, total_tokens=5)


def result(text: str = "", outcome: Any = "completed", **more: Any) -> al.RunResult[Any]:
    facts = {"reason": None, "refusal": None, "conversation": None, "usage": TOKENS, **more}
    return al.RunResult(outcome=outcome, text=text, ref="r", model_calls=1, tool_calls=0, **facts)


def written(events: list[Any], end: al.RunResult[Any], *, include_usage: bool = True) -> tuple[list[bytes], Answer]:
    writer = ChunkWriter(Answer("chatcmpl-1", "clerk"), include_usage=include_usage)
    return [*(writer.take(event) for event in events), writer.end(end)], writer.answer


def chunks_in(stream: bytes) -> list[Any]:
    """The data of each event, as a strict reader of the framing takes them."""
    lines = stream.split(b"\n\n")
    assert lines.pop() == b""
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    return [line[6:] if line == b"data: [DONE]" else json.loads(line[6:]) for line in lines]


def test_a_stream_is_a_role_texts_a_finish_the_tokens_and_done() -> None:
    frames, _ = written(events_of(["Not", "ing."], [], ["Done."]), result("Done."))
    role, *texts, finish, usage, done = chunks_in(b"".join(frames))
    assert role == {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 5,
        "model": "clerk",
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        ],
        "usage": None,
    }
    assert [chunk["choices"][0]["delta"] for chunk in texts] == [
        {"content": "Not"},
        {"content": "ing."},
        {"content": "\n\nDone."},
    ]
    assert finish["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert (usage["choices"], usage["usage"]) == ([], {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})
    assert done == b"[DONE]"


def test_tokens_are_told_only_where_they_were_asked_for_and_are_known() -> None:
    for include_usage, usage in ((False, Usage(input_tokens=1, output_tokens=1, total_tokens=2)), (True, None)):
        frames, _ = written(events_of(["x"]), result("x", usage=usage), include_usage=include_usage)
        *_, last, done = chunks_in(b"".join(frames))
        assert (last["choices"][0]["finish_reason"], done) == ("stop", b"[DONE]")
        assert ("usage" in last) is include_usage


def test_details_of_tokens_are_told_where_a_provider_told_them() -> None:
    usage = Usage(input_tokens=3, output_tokens=2, total_tokens=5, cached_input_tokens=1, reasoning_tokens=0)
    frames, _ = written(events_of(["x"]), result("x", usage=usage))
    assert chunks_in(frames[-1])[-2]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


@pytest.mark.parametrize(
    ("end", "finish", "refusal"),
    [
        (result(outcome="limit_reached", reason="max_tool_calls"), "length", None),
        (result(outcome="incomplete", reason="length"), "length", None),
        (result(outcome="refused", reason="stop", refusal="I will not."), "stop", "I will not."),
        (result(outcome="refused", reason="content_filter"), "content_filter", None),
    ],
)
def test_each_end_has_its_finish(end: al.RunResult[Any], finish: str, refusal: str | None) -> None:
    frames, answer = written(events_of([]), end)
    choice = json.loads(answer.completion())["choices"][0]
    assert (choice["finish_reason"], choice["message"]["refusal"]) == (finish, refusal)
    assert choice["message"]["content"] == ("" if refusal is None else None)
    verdict = check_stream([b"".join(frames)])
    assert verdict.reply is not None, verdict.refusal
    assert (verdict.reply.termination.reason, verdict.reply.refusal) == (finish, refusal)


def test_a_value_that_the_model_said_in_a_call_is_the_text() -> None:
    frames, answer = written(events_of(["Let me see."], []), result(value={"n": 1}, has_value=True))
    assert answer.text == 'Let me see.\n\n{"n":1}'
    assert check_stream([b"".join(frames)]).reply.text == answer.text  # type: ignore[union-attr]


def test_a_value_that_the_model_said_in_text_is_not_said_twice() -> None:
    _, answer = written(events_of(['{"n": 1}']), result('{"n": 1}', value={"n": 1}, has_value=True))
    assert answer.text == '{"n": 1}'


_texts = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), max_size=4)


@given(attempts=st.lists(_texts, max_size=4), usage=st.booleans(), data=st.data())
def test_however_previews_are_cut_the_answer_is_the_same_and_admitted(
    attempts: list[list[str]], usage: bool, data: st.DataObject
) -> None:
    tokens = Usage(input_tokens=1, output_tokens=2, total_tokens=3) if usage else None
    end = result("".join(attempts[-1]) if attempts else "", usage=tokens)
    frames, answer = written(events_of(*attempts), end)
    whole, same = written(events_of(*([text] if (text := "".join(pieces)) else [] for pieces in attempts)), end)
    text = "\n\n".join(filter(None, map("".join, attempts)))
    assert answer.text == same.text == text
    assert answer.completion() == same.completion()
    stream = b"".join(frames)
    server = dialect("openai")
    known = server if usage else msgspec.structs.replace(server, usage_absent=True)
    for one in (stream, b"".join(whole)):
        verdict = check_stream([one], known)
        assert verdict.reply is not None, verdict.refusal
        assert (verdict.reply.text, verdict.reply.usage) == (text, tokens)
        assert (verdict.reply.id, verdict.reply.model) == ("chatcmpl-1", "clerk")
    cut = data.draw(st.integers(0, len(stream) - 1))
    assert check_stream([stream[:cut]], known).reply is None


def test_no_part_of_a_stream_is_taken_for_the_whole() -> None:
    frames, _ = written(events_of(["Not", "ing."], ["Done."]), result("Done."))
    stream = b"".join(frames)
    assert check_stream([stream]).reply is not None
    assert [cut for cut in range(len(stream)) if check_stream([stream[:cut]]).reply is not None] == []


@given(attempts=st.lists(_texts, min_size=1, max_size=3), refusal=st.sampled_from([RETRACTED, NEEDS_PERSON]))
def test_a_stream_that_ends_with_an_error_is_refused(attempts: list[list[str]], refusal: Refusal) -> None:
    writer = ChunkWriter(Answer("chatcmpl-1", "clerk"))
    stream = b"".join(writer.take(event) for event in events_of(*attempts)) + writer.fail(refusal)
    assert b"[DONE]" not in stream
    assert b'"finish_reason":"' not in stream
    verdict = check_stream([stream], dialect("lenient"))
    assert verdict.refusal is not None
    assert (verdict.refusal.code, verdict.refusal.vendor_code) == ("vendor_error", refusal.code)


def test_a_text_that_comes_at_once_is_cut_into_chunks() -> None:
    text = "🔥" * 300_000
    frames, _ = written(events_of([text]), result(text))
    stream = b"".join(frames)
    verdict = check_stream([stream], max_event_bytes=64 * 1024, max_response_bytes=1 << 30)
    assert verdict.reply is not None, verdict.refusal
    assert verdict.reply.text == text


def test_text_that_was_sent_and_does_not_stand_ends_the_stream() -> None:
    writer = ChunkWriter(Answer("chatcmpl-1", "clerk"))
    *before, end = events_of(["Noted."], ["It"], fails=True)
    for event in before:
        writer.take(event)
    with pytest.raises(RequestRefused) as caught:
        writer.take(end)
    assert caught.value.refusal is RETRACTED


def test_text_of_an_attempt_whose_end_nobody_told_is_taken_back_by_the_next_one() -> None:
    writer = ChunkWriter(Answer("chatcmpl-1", "clerk"))
    started, model, preview, _, *after = events_of(["It"], ["It is."])
    for event in (started, model, preview):
        writer.take(event)
    with pytest.raises(RequestRefused):
        writer.take(after[0])
    assert writer.answer.text == ""


def test_an_answer_that_is_not_streamed_holds_what_stands() -> None:
    answer = Answer("chatcmpl-1", "clerk")
    for event in (*events_of(["Noted."], ["It"], fails=True), *events_of([], [], ["It is."])[-3:]):
        answer.take(event)
    assert answer.text == "Noted.\n\nIt is."


def test_an_attempt_that_failed_before_it_showed_text_retracts_nothing() -> None:
    answer = Answer("chatcmpl-1", "clerk")
    for event in events_of(["Noted."], [], fails=True):
        answer.take(event)
    assert (answer.retracted, answer.text) == (False, "Noted.")


def test_a_preview_that_holds_what_was_said_adds_the_rest_only() -> None:
    answer = Answer("chatcmpl-1", "clerk")
    *_, model, preview, _ = events_of(["ab"])
    answer.take(model)
    told = [("ab", 0), ("abc", 0), ("cd", 2), ("d", 3)]
    taken = [answer.take(msgspec.structs.replace(preview, text=text, offset=offset)) for text, offset in told]
    assert taken == ["ab", "c", "d", ""]
    assert answer.text == "abcd"


def reply_of(text: str | None) -> ReplyView | None:
    if text is None:
        return None
    return ReplyView(exchange=0, text=text, refusal=None, finish="stop", bytes=1, calls=[])


def view_of(*texts: str | None) -> RunView:
    """A stored run with these replies; None is an attempt without one."""
    attempts = [
        AttemptView(attempt_id=f"a{at}", number=at, model="m", started_at_ms=0, reply=reply_of(text))
        for at, text in enumerate(texts, 1)
    ]
    return RunView(run_id="r", attempts=attempts)


def test_what_is_stored_comes_before_events_and_is_not_said_again() -> None:
    writer = ChunkWriter(Answer("chatcmpl-1", "clerk", created=3))
    frames = writer.recall(view_of("Noted.", "", None))
    for event in events_of(["Noted."], [], ["It ", "is."]):
        frames += writer.take(event)
    frames += writer.end(result("It is."))
    role, first, *rest = (chunk["choices"][0]["delta"] for chunk in chunks_in(frames)[:-1])
    assert (role, first) == ({"role": "assistant", "content": ""}, {"content": "Noted."})
    assert rest == [{"content": "\n\nIt "}, {"content": "is."}, {}]
    assert writer.answer.created == 3
    assert check_stream([frames], msgspec.structs.replace(dialect("openai"), usage_absent=True)).reply is not None


def test_a_run_that_waits_is_no_answer() -> None:
    with pytest.raises(al.InputError, match="expected a run that ended"):
        Answer("chatcmpl-1", "clerk").end(result(outcome="waiting_for_approval"))


# -- errors


def test_an_error_has_openais_form() -> None:
    refusal = Refusal(status=429, message="slow", code="too_many", retry_after=1.2, should_retry=True)
    assert json.loads(refusal.body()) == {
        "error": {"message": "slow", "type": "rate_limit_error", "param": None, "code": "too_many"}
    }
    assert refusal.headers == {"Retry-After": "2", "x-should-retry": "true"}
    assert Refusal(status=503, message="m").headers == {}


SECRET = "hunter2"
ERRORS: list[tuple[BaseException, int, str | None]] = [
    (al.ConnectionLost(SECRET), 502, "connection_lost"),
    (al.HTTPStatusError(SECRET, status=429, retry_after=7), 502, "http_status"),
    (al.StreamRefused("vendor_error", 1, 2, "x", SECRET), 502, "vendor_error"),
    (al.CallTimeout("call_timeout", 3), 502, "call_timeout"),
    (al.ToolCrashed(SECRET, SECRET, SECRET, SECRET), 500, "tool_crashed"),
    (al.LimitExceeded("total_bytes", 1, 2), 503, "limit"),
    (al.PersistenceError(SECRET), 503, "persistence"),
    (al.UnsettledError(SECRET, (), (SECRET,)), 500, "unsettled"),
    (al.RunCancelled("r"), 503, "cancelled"),
    (al.RunPaused("r"), 503, "paused"),
    (al.OutcomeError("failed", "connection_lost", "r"), 500, "connection_lost"),
    (al.InputError(SECRET), 500, "input"),
    (ZeroDivisionError(SECRET), 500, "internal_error"),
]


@pytest.mark.parametrize(("error", "status", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_after_a_run_began_is_told_by_its_code_and_not_retried(
    error: BaseException, status: int, code: str | None
) -> None:
    refusal = refusal_of(error, begun=True)
    assert (refusal.status, refusal.code, refusal.headers["x-should-retry"]) == (status, code, "false")
    assert SECRET not in refusal.message


def test_before_a_run_began_a_client_may_try_again() -> None:
    assert refusal_of(al.PersistenceError("x"), begun=False).should_retry is None
    refusal = refusal_of(al.LimitExceeded("item_bytes", 10, 20), begun=False)
    assert (refusal.status, refusal.param) == (413, "messages")


def test_a_run_that_another_request_joins_may_be_asked_for_again_while_it_has_not_ended() -> None:
    elsewhere = refusal_of(al.NotOwnerError("r", "x", seconds_left=2.5), begun=True, joins=True)
    assert elsewhere.headers == {"Retry-After": "3", "x-should-retry": "true"}
    assert refusal_of(al.RunPaused("r"), begun=True, joins=True).should_retry is True
    assert refusal_of(al.ConnectionLost("x"), begun=True, joins=True).should_retry is False


def test_another_request_under_the_same_key_is_a_conflict_that_no_client_repeats() -> None:
    refusal = refusal_of(al.ConflictError("r", "x"), begun=False)
    assert (refusal.status, refusal.code, refusal.should_retry) == (409, "idempotency_conflict", False)
