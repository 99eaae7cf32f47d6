"""The error tree: drawn as it is, whole after pickling, readable."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import traceback
from typing import Any

import pytest

import agentloop
from agentloop import error_info, errors
from agentloop.errors import (
    AdmissionError,
    AgentLoopError,
    ApprovalFailed,
    BudgetError,
    CallTimeout,
    ConflictError,
    ConnectionFailed,
    ConnectionLost,
    HandleError,
    HistoryError,
    HTTPStatusError,
    InputError,
    LimitExceeded,
    LostError,
    ModelPending,
    NotOwnerError,
    OutcomeError,
    OutputRefused,
    PersistenceError,
    ProviderError,
    RestoreError,
    RunCancelled,
    RunPaused,
    SendTimeout,
    StaleHeadError,
    StreamRefused,
    ToolCrashed,
    ToolDefinitionError,
    ToolFailed,
    ToolResultError,
    UnsettledError,
    WorkflowError,
)

# One example of each class, what it says, its code, and whether its effect may have happened.
EXAMPLES: list[tuple[AgentLoopError, str, str, bool]] = [
    (AgentLoopError("something"), "something", "error", False),
    (InputError("stop: expected a tuple, got list"), "stop: expected a tuple, got list", "input", False),
    (AdmissionError("$.a[1]", "expected str, got int"), "$.a[1]: expected str, got int", "admission", False),
    (
        HandleError("used_handle", "expected a handle that made no call, got one that did"),
        "used_handle: expected a handle that made no call, got one that did",
        "used_handle",
        False,
    ),
    (
        HistoryError("missing_tool_result", "$.feedback[0]", "expected 1 feedback, got 0"),
        "missing_tool_result: $.feedback[0]: expected 1 feedback, got 0",
        "missing_tool_result",
        False,
    ),
    (
        ToolDefinitionError("bad_tool_name", "a b", "expected 1 to 64 of A-Z a-z 0-9 _ -"),
        "bad_tool_name: tool 'a b': expected 1 to 64 of A-Z a-z 0-9 _ -",
        "bad_tool_name",
        False,
    ),
    (
        ToolResultError("read", "expected JSON, got NaN"),
        "invalid_tool_result: tool 'read': expected JSON, got NaN",
        "invalid_tool_result",
        False,
    ),
    (
        StreamRefused(
            "oversized", 3, 120, "at most 10 bytes", "12", dialect="azure", suggestion="vllm", limit="event", allowed=10
        ),
        "oversized at event 3, byte 120: expected at most 10 bytes, got 12 (dialect 'azure'; dialect 'vllm' admits it)",
        "oversized",
        True,
    ),
    (ProviderError("no answer", attempt_id="a1"), "no answer", "provider", True),
    (ConnectionFailed("cannot connect", attempt_id="a1"), "cannot connect", "connection_failed", False),
    (ConnectionLost("connection ended", attempt_id="a1"), "connection ended", "connection_lost", True),
    (SendTimeout("60 s are over", code="total_timeout", attempt_id="a1"), "60 s are over", "total_timeout", True),
    (
        HTTPStatusError(
            "expected status 200, got 429", status=429, retry_after=1.5, vendor_code="rate", request_id="q"
        ),
        "expected status 200, got 429",
        "http_status",
        False,
    ),
    (
        OutputRefused("no_json", "expected JSON in the text, got none", transport="t", ref="r1"),
        "no_json: expected JSON in the text, got none (transport 't')",
        "no_json",
        True,
    ),
    (
        OutputRefused("refined", "expected arguments that its checks accept", transport="t", feedback="No room 4."),
        "refined: expected arguments that its checks accept (transport 't')",
        "refined",
        True,
    ),
    (CallTimeout("call_timeout", 30.0), "call_timeout: expected an end within 30 s, got none", "call_timeout", True),
    (LimitExceeded("reply_bytes", 256, 300), "reply_bytes: allowed 256, got at least 300", "limit", False),
    (BudgetError("model_calls", 8, 9), "model_calls: allowed 8, got at least 9", "BUDGET", False),
    (
        ConflictError("origin 'o1'", "another content is kept"),
        "conflict: origin 'o1': another content is kept",
        "conflict",
        False,
    ),
    (
        StaleHeadError("c1", "aa", "bb", "the conversation moved on"),
        "stale_head: conversation 'c1': the conversation moved on",
        "stale_head",
        False,
    ),
    (
        NotOwnerError("run 'r1'", "another owner holds it", owner="o1", seconds_left=4.5),
        "not_owner: run 'r1': another owner holds it",
        "not_owner",
        False,
    ),
    (PersistenceError("the write was cancelled"), "the write was cancelled", "persistence", True),
    (
        RestoreError("restore_version", "snapshot", "expected version 2, got 3"),
        "restore_version: snapshot: expected version 2, got 3",
        "restore_version",
        False,
    ),
    (LostError("run", "r9"), "lost: no run 'r9' is kept", "lost", False),
    (
        OutcomeError("limit_reached", "model_calls", "r1"),
        "run 'r1': expected outcome completed, got limit_reached (model_calls)",
        "outcome",
        True,
    ),
    (RunCancelled("r1"), "run 'r1' was cancelled", "cancelled", True),
    (RunCancelled("order-18", "signal"), "signal 'order-18' was cancelled", "cancelled", True),
    (RunCancelled("", "runtime"), "the call was cut off: its runtime closed", "cancelled", True),
    (
        ModelPending("r1", "a1"),
        "run 'r1' left send 'a1', which goes on; resume the run when its reply is stored",
        "pending",
        True,
    ),
    (RunPaused("r1"), "run 'r1' is unfinished: the runtime closed; resume it", "paused", True),
    (
        UnsettledError("r1", (), ("0.2",), "r1/0.2/1.0"),
        "run 'r1' waits for run 'r1/0.2/1.0' (call 0.2): settle or decide about that one first",
        "unsettled",
        True,
    ),
    (
        UnsettledError("r1", ("t1",), ("0.2",)),
        (
            "run 'r1' waits to be settled: send 't1', call 0.2; "
            "decide with settle_send and settle_call, or end it with cancel(author=...)"
        ),
        "unsettled",
        True,
    ),
    (ToolFailed("no such note"), "no such note", "tool_failed", False),
    (
        ApprovalFailed("pay", "c1", "e1", "a value of type str"),
        (
            "approval of tool 'pay' in call 'c1': expected a predicate that returns True or False, "
            "got a value of type str; the call did not run"
        ),
        "approval_failed",
        False,
    ),
    (
        ToolCrashed("read", "c1", "e1", "KeyError"),
        (
            "tool 'read' raised KeyError in call 'c1'; raise ToolFailed, or declare the type in errors=, "
            "when the model shall read it"
        ),
        "tool_crashed",
        True,
    ),
    (
        WorkflowError("unreachable", "b", "expected a way that leads to it from 'a', got none"),
        "unreachable: node 'b': expected a way that leads to it from 'a', got none",
        "unreachable",
        False,
    ),
    (
        WorkflowError("bad_node", "", "nodes: expected one and more, got none"),
        "bad_node: workflow: nodes: expected one and more, got none",
        "bad_node",
        False,
    ),
]


def names(error: AgentLoopError) -> str:
    return type(error).__name__


def classes() -> list[type[AgentLoopError]]:
    return [getattr(errors, name) for name in errors.__all__]


def test_there_is_an_example_of_every_class() -> None:
    assert sorted({names(error) for error, *_ in EXAMPLES}) == sorted(errors.__all__)


def test_the_tree_that_is_drawn_is_the_tree_that_is() -> None:
    drawn: dict[str, str] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    (?P<rails>[|` ]*(?:-- )?)(?P<name>[A-Z]\w+)(?:\s|$)", line)
        if match is None:
            continue
        depth = len(match["rails"]) // 4
        above[depth] = match["name"]
        drawn[match["name"]] = above[depth - 1] if depth else "Exception"
    assert drawn == {kind.__name__: kind.__bases__[0].__name__ for kind in classes()}


def test_every_error_of_the_package_is_in_the_list_and_at_the_front_door() -> None:
    made_here = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__]
    assert sorted(kind.__name__ for kind in made_here) == errors.__all__
    assert all(getattr(agentloop, name) is getattr(errors, name) for name in errors.__all__)


@pytest.mark.parametrize(
    ("error", "text", "code", "processed"),
    EXAMPLES,
    ids=lambda item: names(item) if isinstance(item, AgentLoopError) else "",
)
def test_an_error_says_what_was_expected_and_carries_its_code(
    error: AgentLoopError, text: str, code: str, processed: bool
) -> None:
    assert str(error) == text
    assert error.code == code
    assert error.may_have_been_processed is processed


@pytest.mark.parametrize("error", [example[0] for example in EXAMPLES], ids=names)
@pytest.mark.parametrize("again", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy])
def test_an_error_is_whole_after_pickling_and_copying(error: AgentLoopError, again: Any) -> None:
    """(R324)"""
    back = again(error)
    assert type(back) is type(error)
    assert (str(back), back.args, back.code) == (str(error), error.args, error.code)
    assert back.may_have_been_processed is error.may_have_been_processed
    assert back.__dict__ == error.__dict__


@pytest.mark.parametrize("error", [example[0] for example in EXAMPLES], ids=names)
def test_every_fact_given_is_an_attribute(error: AgentLoopError) -> None:
    facts = [
        name for name in inspect.signature(type(error).__init__).parameters if name not in ("self", "args", "kwargs")
    ]
    assert all(hasattr(error, name) for name in facts if name != "message")


def test_a_position_is_told_where_there_is_one() -> None:
    assert str(AdmissionError("$.a", "expected a number", 17)) == "$.a: expected a number (at character 17)"


def test_a_refusal_without_a_suggestion_points_nowhere() -> None:
    error = StreamRefused("missing_done", 5, 900, "[DONE]", "the end of the body")
    assert str(error) == (
        "missing_done at event 5, byte 900: expected [DONE], got the end of the body (dialect 'openai')"
    )
    assert (error.vendor_code, error.limit, error.suggestion) == (None, None, None)


def test_what_a_model_could_read_of_a_refusal_is_in_no_text_of_it() -> None:
    """(R187)"""
    error = OutputRefused("refined", "rule", transport="t", feedback="Secret of the reply.")
    back = pickle.loads(pickle.dumps(error))
    for one in (error, back):
        assert one.feedback == "Secret of the reply."
        told = "".join(traceback.format_exception(one))
        assert "Secret" not in f"{one} {one!r} {one.args} {told}"
        assert "Secret" not in f"{error_info(one)}"
    assert OutputRefused("no_json", "rule").feedback is None


def test_standard_handlers_catch_the_errors_they_expect() -> None:
    assert issubclass(InputError, ValueError)
    assert issubclass(LostError, LookupError)
    assert not issubclass(SendTimeout, TimeoutError)
    assert not any(issubclass(kind, OSError) for kind in classes())


def test_an_outcome_without_a_reason_names_none() -> None:
    assert str(OutcomeError("running", None, "r1")) == "run 'r1': expected outcome completed, got running"


def test_what_waits_to_be_settled_names_only_the_way_that_fits() -> None:
    told = str(UnsettledError("r1", (), ("0.2", "0.3")))
    assert told.partition("; ")[2] == "decide with settle_call, or end it with cancel(author=...)"
    assert "decide with settle_send, or" in str(UnsettledError("r1", ("t1",), ()))


def test_whether_a_send_may_have_been_processed_can_be_known_better_than_by_its_class() -> None:
    assert ProviderError("x", may_have_been_processed=False).may_have_been_processed is False
    assert HTTPStatusError("x", status=500, may_have_been_processed=True).may_have_been_processed is True


def test_a_tool_that_returned_no_result_is_not_said_to_have_raised() -> None:
    error = ToolCrashed("read", "c1", "e1", "agentloop.errors.ToolResultError")
    assert str(error) == "tool 'read' in call 'c1' returned a value that cannot be a result; see __cause__"
