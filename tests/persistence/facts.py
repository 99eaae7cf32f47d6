"""Facts for tests: one of each kind and corner that the golden files hold, and strategies for any fact."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from hypothesis import strategies as st

from agentloop.exchange import (
    ContextCut,
    ConversationBranched,
    DroppedTurns,
    ExchangeRef,
    Fact,
    OriginOpened,
    OutputKept,
    ReplyTaken,
    RequestRef,
    RerunAllowed,
    RunClosed,
    RunRedacted,
    SendEnded,
    SendStarted,
    SlotMoved,
    Steered,
    StopAsked,
    TurnSummary,
)
from agentloop.messages import (
    FunctionSpec,
    ImagePart,
    ModelOptions,
    SystemMessage,
    Text,
    TextContent,
    TextPart,
    ToolChoice,
    ToolFeedback,
    Usage,
    UserMessage,
)
from tests.messages.values import (
    call,
    contents,
    counts,
    exchange,
    messages,
    options,
    replies,
    reply,
    specs,
    texts,
    usages,
)

__all__ = ["ARGUMENTS", "GOLDEN", "LATER", "UNTOLD", "as_told_by_v1", "facts", "v1_record"]

ARGUMENTS: Final = (
    '{"z": -0, "big": 1234567890123456789012345678901234567890, "f":1.50e+400 ,"t":"\\u0000\\ud83d\\ude00"}'
)
"""Argument text with all that a parser would change: a sign, digits, an exponent, spaces, escapes."""

_CORNERS: Final = '\0\x1f\x7f\x85\xa0\xad\u200b\u2028\u2029\ud7ff\ue000\ufeff\ufffd\uffff\U00010000\U0010ffff"\\/<&'

GOLDEN: Final[dict[str, Fact]] = {
    "conversation_branched": ConversationBranched(
        run_id="branch-1",
        conversation="a talk, again",
        source="a talk",
        continues=ExchangeRef(origin_id="origin-0", index=3, digest="1" * 64),
        at_ms=1_700_000_000_000,
    ),
    "origin_opened": OriginOpened(
        run_id="run-1",
        origin_id="origin-1",
        digest="0" * 64,
        conversation="a talk",
        continues=ExchangeRef(origin_id="origin-0", index=3, digest="1" * 64),
        messages=(
            SystemMessage(content="Be brief."),
            UserMessage(
                content=(
                    TextPart(text="What is this?"),
                    ImagePart(url="https://example.org/a.png", detail="low"),
                    ImagePart(url="data:image/png;base64,AAAA"),
                )
            ),
        ),
        options=ModelOptions(
            temperature=0.5,
            top_p=1,
            max_output_tokens=100,
            stop=("END",),
            seed=-(2**70),
            tool_choice=ToolChoice(name="read_note"),
            parallel_tool_calls=False,
            reasoning_effort="low",
            include_usage=True,
            extra='{"user":"u1"}',
        ),
        tools=(FunctionSpec(name="read_note", description="Read a note.", strict=True),),
        catalogue_digest="2" * 64,
        input_digest="3" * 64,
        agent="reader",
        at_ms=1_700_000_000_000,
        checkpoint=True,
    ),
    "origin_opened_cut": OriginOpened(
        run_id="run-1",
        origin_id="origin-5",
        digest="0" * 64,
        conversation="a talk",
        continues=ExchangeRef(origin_id="origin-4", index=0, digest="1" * 64),
        messages=(UserMessage(content="Go on."),),
        options=ModelOptions(),
        tools=(),
        catalogue_digest="2" * 64,
        input_digest=None,
        agent="reader",
        at_ms=1_700_000_000_000,
        context=ContextCut(
            dropped=(DroppedTurns(first="origin-0", last="origin-3", count=3),),
            summaries=(
                TurnSummary(origins=("origin-1", "origin-2"), text="They met.", ref="run-of-a-call"),
                TurnSummary(origins=("origin-4",), text="A host's own words."),
            ),
        ),
    ),
    "origin_opened_least": OriginOpened(
        run_id="run-1",
        origin_id="origin-1",
        digest="0" * 64,
        conversation=None,
        continues=None,
        messages=(UserMessage(content="hi"),),
        options=ModelOptions(),
        tools=(),
        catalogue_digest="2" * 64,
        input_digest=None,
        agent="reader",
        at_ms=0,
    ),
    "output_kept": OutputKept(
        run_id="run-1",
        origin_id="origin-1",
        exchange=0,
        position=0,
        text=_CORNERS,
        size=len(_CORNERS.encode()),
        at_ms=1_700_000_000_700,
    ),
    "reply_taken": ReplyTaken(
        run_id="run-1",
        origin_id="origin-1",
        index=0,
        attempt_id="attempt-1",
        reply=reply(
            Text(text="I look."),
            call("call-1", arguments=ARGUMENTS),
            word="tool_calls",
            native={"reasoning_content": "Look first."},
        ),
    ),
    "reply_taken_text": ReplyTaken(
        run_id="run-1", origin_id="origin-1", index=1, attempt_id="attempt-2", reply=reply(Text(text=_CORNERS))
    ),
    "rerun_allowed": RerunAllowed(
        run_id="run-1", origin_id="origin-1", exchange=0, position=1, author="Ada", at_ms=1_700_000_000_900
    ),
    "steered": Steered(
        run_id="run-1",
        message=UserMessage(
            content=(TextPart(text=_CORNERS), ImagePart(url="https://notes.example/plan.png", detail="low"))
        ),
        at_ms=1_700_000_000_950,
        author="Ada",
    ),
    "steered_least": Steered(run_id="run-1", message=UserMessage(content=""), at_ms=0),
    "stop_asked": StopAsked(run_id="run-1", at_ms=1_700_000_000_960, author="Ada"),
    "stop_asked_least": StopAsked(run_id="run-1", at_ms=0),
    "run_closed": RunClosed(run_id="run-1", outcome="completed", reason="stop", at_ms=1_700_000_001_000),
    "run_closed_failed": RunClosed(run_id="run-1", outcome="failed", reason=None, at_ms=1_700_000_001_000),
    "run_redacted": RunRedacted(
        run_id="run-1",
        origin_id="origin-1",
        digests=("0" * 64, "5" * 64),
        conversation="a talk",
        continues=ExchangeRef(origin_id="origin-0", index=3, digest="1" * 64),
        catalogue_digest="2" * 64,
        input_digest="3" * 64,
        agent="reader",
        at_ms=1_700_000_000_000,
        outcome="completed",
        reason="stop",
        ended_at_ms=1_700_000_001_000,
        model_calls=1,
        tool_calls=0,
        usage=Usage(input_tokens=10, output_tokens=2, total_tokens=15),
        author="Ada",
        redacted_at_ms=1_700_000_002_000,
    ),
    "send_ended": SendEnded(
        run_id="run-1",
        attempt_id="attempt-1",
        outcome="replied",
        at_ms=1_700_000_000_500,
        usage=Usage(input_tokens=10, output_tokens=2, total_tokens=15, cached_input_tokens=8, reasoning_tokens=3),
    ),
    "send_ended_failed": SendEnded(
        run_id="run-1",
        attempt_id="attempt-2",
        outcome="failed",
        at_ms=1_700_000_000_500,
        code="http_status",
        may_have_been_processed=False,
        author="Ada",
    ),
    "send_ended_refused": SendEnded(
        run_id="run-1",
        attempt_id="attempt-3",
        outcome="failed",
        code="http_status",
        may_have_been_processed=False,
        status=429,
        retry_after=1.5,
        at_ms=1_700_000_000_975,
    ),
    "send_ended_stream_refused": SendEnded(
        run_id="run-1",
        attempt_id="attempt-4",
        outcome="failed",
        code="truncated",
        stream_refused=True,
        previewed=False,
        at_ms=1_700_000_000_985,
    ),
    "send_started": SendStarted(
        run_id="run-1",
        attempt_id="attempt-1",
        request=RequestRef(origin_id="origin-1", exchanges=0, digest="4" * 64),
        call_sequence=1,
        model="model-1",
        at_ms=1_700_000_000_001,
    ),
    "slot_moved": SlotMoved(
        run_id="run-1",
        origin_id="origin-1",
        exchange=0,
        position=0,
        state="done",
        at_ms=1_700_000_000_700,
        effect_id="effect-1",
        attempt=1,
        feedback=ToolFeedback(
            tool_call_id="call-1", status="ok", content=(TextContent(text="a note"), TextContent(text=""))
        ),
    ),
    "slot_moved_started": SlotMoved(
        run_id="run-1",
        origin_id="origin-1",
        exchange=0,
        position=1,
        state="started",
        at_ms=1_700_000_000_600,
        effect_id="effect-2",
        attempt=1,
    ),
    "slot_moved_converted": SlotMoved(
        run_id="run-1",
        origin_id="origin-1",
        exchange=0,
        position=1,
        state="started",
        at_ms=1_700_000_000_600,
        effect_id="effect-2",
        attempt=1,
        converted=("$.count: string to integer", "$.tags[2]: integer to string"),
    ),
    "slot_moved_waiting": SlotMoved(
        run_id="run-1",
        origin_id="origin-1",
        exchange=0,
        position=2,
        state="waiting",
        at_ms=1_700_000_000_650,
        code="approval",
    ),
    "slot_moved_child": SlotMoved(
        run_id="run-1",
        origin_id="origin-1",
        exchange=0,
        position=1,
        state="waiting",
        at_ms=1_700_000_000_655,
        effect_id="effect-2",
        attempt=1,
        code="child",
    ),
    "slot_moved_approved": SlotMoved(
        run_id="run-1",
        origin_id="origin-1",
        exchange=0,
        position=2,
        state="open",
        at_ms=1_700_000_000_660,
        code="approved",
        author="Ada",
    ),
    "slot_moved_settled": SlotMoved(
        run_id="run-1",
        origin_id="origin-1",
        exchange=0,
        position=0,
        state="failed",
        at_ms=1_700_000_000_950,
        effect_id="effect-1",
        attempt=2,
        feedback=ToolFeedback(tool_call_id="call-1", status="error", content=()),
        code="settled",
        author="Ada",
    ),
}
"""By the file's name, in any version that could hold it."""

UNTOLD: Final[dict[type[Fact], dict[str, Any]]] = {
    OriginOpened: {"checkpoint": False, "call": None, "context": None, "parent": None, "brought": 0},
    RunRedacted: {"parent": None},
    SendEnded: {"at_ms": None, "status": None, "retry_after": None, "stream_refused": False, "previewed": None},
    SlotMoved: {"at_ms": None, "converted": ()},
    RerunAllowed: {"at_ms": None},
}
"""What a record of version 1 did not tell, by kind, as it is read from one."""


LATER: Final = (OutputKept, Steered, StopAsked)
"""Kinds that version 1 did not have."""


def as_told_by_v1(fact: Fact) -> Fact:
    """The fact as a record of version 1 tells it."""
    return msgspec.structs.replace(fact, **UNTOLD.get(type(fact), {}))


def v1_record(fact: Fact) -> bytes:
    """The record that version 1 wrote of it."""
    members = {**msgspec.json.decode(msgspec.json.encode(fact)), "version": 1}
    return msgspec.json.encode({name: members[name] for name in members if name not in UNTOLD.get(type(fact), {})})


for _name in ("send_ended", "slot_moved", "rerun_allowed"):
    GOLDEN[f"{_name}_untold"] = as_told_by_v1(GOLDEN[_name])
GOLDEN["origin_opened_child"] = msgspec.structs.replace(GOLDEN["origin_opened_least"], parent="run-0/1.2")
GOLDEN["origin_opened_after"] = msgspec.structs.replace(
    GOLDEN["origin_opened_least"],
    messages=(
        SystemMessage(content="Be brief."),
        SystemMessage(content="Rhyme."),
        UserMessage(content="hi"),
        exchange("call-1"),
        UserMessage(content="Go on."),
    ),
    brought=3,
)

_ids = texts
_digests = st.text("0123456789abcdef", min_size=64, max_size=64)
_feedback = st.builds(
    ToolFeedback, tool_call_id=st.text(min_size=1), status=st.sampled_from(["ok", "error"]), content=contents
)
_words = st.none() | texts
_times = st.none() | counts
_refs = st.builds(ExchangeRef, origin_id=_ids, index=counts, digest=_digests)
_requests = st.builds(RequestRef, origin_id=_ids, exchanges=counts, digest=_digests)

_origins = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True)


@st.composite
def _cuts(draw: st.DrawFn) -> ContextCut:
    origins = draw(_origins)
    cut = draw(st.integers(0, len(origins)))
    summary = st.builds(
        TurnSummary,
        origins=st.just(tuple(origins[cut:])),
        text=st.text(min_size=1, max_size=20),
        ref=st.none() | st.text(min_size=1, max_size=8),
    )
    dropped = tuple(DroppedTurns(first=origin, last=origin, count=1) for origin in origins[:cut])
    return ContextCut(dropped=dropped, summaries=(draw(summary),) if origins[cut:] else ())


facts: st.SearchStrategy[Fact] = st.one_of(
    st.builds(
        OriginOpened,
        run_id=_ids,
        origin_id=_ids,
        digest=_digests,
        conversation=_words,
        continues=st.none() | _refs,
        messages=st.lists(messages, max_size=3).map(tuple),
        options=options,
        tools=st.lists(specs, max_size=2).map(tuple),
        catalogue_digest=_digests,
        input_digest=st.none() | _digests,
        agent=texts,
        at_ms=counts,
        checkpoint=st.booleans(),
        context=st.none() | _cuts(),
        brought=counts,
    ),
    st.builds(
        SendStarted, run_id=_ids, attempt_id=_ids, request=_requests, call_sequence=counts, model=texts, at_ms=counts
    ),
    st.builds(
        SendEnded,
        run_id=_ids,
        attempt_id=_ids,
        outcome=st.sampled_from(["replied", "failed", "abandoned"]),
        at_ms=_times,
        code=_words,
        may_have_been_processed=st.booleans(),
        usage=st.none() | usages,
        author=_words,
        status=st.none() | st.integers(300, 599),
        retry_after=st.none() | st.floats(0, allow_infinity=False),
        stream_refused=st.booleans(),
        previewed=st.none() | st.booleans(),
    ),
    st.builds(ReplyTaken, run_id=_ids, origin_id=_ids, index=counts, attempt_id=_ids, reply=replies),
    st.builds(
        SlotMoved,
        run_id=_ids,
        origin_id=_ids,
        exchange=counts,
        position=counts,
        state=st.sampled_from(["open", "started", "done", "failed", "unknown", "skipped", "waiting"]),
        at_ms=_times,
        effect_id=_words,
        attempt=counts,
        feedback=st.none() | _feedback,
        code=_words,
        author=_words,
        converted=st.lists(texts, max_size=3).map(tuple),
    ),
    st.builds(
        OutputKept, run_id=_ids, origin_id=_ids, exchange=counts, position=counts, text=texts, size=counts, at_ms=counts
    ),
    st.builds(RerunAllowed, run_id=_ids, origin_id=_ids, exchange=counts, position=counts, author=texts, at_ms=_times),
    st.builds(
        Steered,
        run_id=_ids,
        message=messages.filter(lambda message: type(message) is UserMessage),
        at_ms=counts,
        author=_words,
    ),
    st.builds(StopAsked, run_id=_ids, at_ms=counts, author=_words),
    st.builds(
        RunClosed,
        run_id=_ids,
        outcome=st.sampled_from(["completed", "refused", "incomplete", "limit_reached", "failed", "cancelled"]),
        reason=_words,
        at_ms=counts,
    ),
    st.builds(ConversationBranched, run_id=_ids, conversation=texts, source=texts, continues=_refs, at_ms=counts),
    st.builds(
        RunRedacted,
        run_id=_ids,
        origin_id=_ids,
        digests=st.lists(_digests, min_size=1, max_size=3).map(tuple),
        conversation=_words,
        continues=st.none() | _refs,
        catalogue_digest=_digests,
        input_digest=st.none() | _digests,
        agent=texts,
        at_ms=counts,
        outcome=st.sampled_from(["completed", "refused", "incomplete", "limit_reached", "failed", "cancelled"]),
        reason=_words,
        ended_at_ms=counts,
        model_calls=counts,
        tool_calls=counts,
        usage=st.none() | usages,
        author=texts,
        redacted_at_ms=counts,
    ),
)
