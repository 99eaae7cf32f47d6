"""Every error a caller can catch.

    AgentLoopError
    |-- InputError                 ours to refuse: a value handed in is wrong (also a ValueError)
    |   |-- AdmissionError             a value is not what a public boundary admits
    |   |-- HandleError                a prepared call is another runner's, was used, or is out of date
    |   |-- HistoryError               calls and results of a history do not belong together
    |   |-- ToolDefinitionError        a tool or tool set cannot be registered
    |   |-- ToolResultError            what a tool returned cannot be a result
    |   `-- WorkflowError              a workflow cannot be defined, or a part of one broke its contract
    |-- StreamRefused              the peer's: a stream that is not one complete, checked reply
    |-- ProviderError              the transport's: one send failed
    |   |-- ConnectionFailed           no request reached the server
    |   |-- ConnectionLost             the request may have reached it; no reply began
    |   |-- SendTimeout                one of the three clocks ran out before a reply began
    |   `-- HTTPStatusError            the server answered with a status other than 200
    |-- OutputRefused              a complete reply is not what was asked for
    |-- CallTimeout                a model call took longer than its caller gave it
    |-- LimitExceeded              a configured ceiling was reached
    |   `-- BudgetError                a budget does not cover an effect
    |-- ConflictError              two facts cannot both hold
    |   |-- StaleHeadError             the conversation moved on, or another run is on it
    |   `-- NotOwnerError              the run belongs to another owner
    |-- PersistenceError           the store is not known to hold a fact; reload it
    |-- RestoreError               a snapshot or record cannot be restored
    |-- LostError                  a reference names nothing that is kept
    |-- OutcomeError               a run's text was required, and it did not complete
    |-- UnsettledError             a run waits: nobody knows what became of an effect
    |-- ModelPending               the run left a model call that goes on; resume it
    |-- RunPaused                  the run was left unfinished by a runtime that closed
    |-- RunCancelled               the run one waits for was cancelled by somebody else
    |-- ToolFailed                 raised by tools: a failure the model shall read
    `-- ToolCrashed                a tool raised an error it did not declare; the run ended
        `-- ApprovalFailed             the predicate of its approval is at fault, and it did not run

One more `InputError` is in `agentloop.tools`: `ArgumentsRefused`, for arguments of a model that do not fit a tool.

Every class has a ``code``, a short stable word for programs. Facts are attributes. No message
holds a message body, tool arguments or a key. ``may_have_been_processed`` says whether the effect
may already have happened elsewhere, so whether repeating is safe is never a matter of wording.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AdmissionError",
    "AgentLoopError",
    "ApprovalFailed",
    "BudgetError",
    "CallTimeout",
    "ConflictError",
    "ConnectionFailed",
    "ConnectionLost",
    "HTTPStatusError",
    "HandleError",
    "HistoryError",
    "InputError",
    "LimitExceeded",
    "LostError",
    "ModelPending",
    "NotOwnerError",
    "OutcomeError",
    "OutputRefused",
    "PersistenceError",
    "ProviderError",
    "RestoreError",
    "RunCancelled",
    "RunPaused",
    "SendTimeout",
    "StaleHeadError",
    "StreamRefused",
    "ToolCrashed",
    "ToolDefinitionError",
    "ToolFailed",
    "ToolResultError",
    "UnsettledError",
    "WorkflowError",
]


class AgentLoopError(Exception):
    """The root. ``code`` is a stable word; ``may_have_been_processed`` is about the outside world."""

    code: str = "error"
    may_have_been_processed: bool = False


class InputError(AgentLoopError, ValueError):
    """A value handed in by the caller is wrong; nothing was done with it."""

    code = "input"


class AdmissionError(InputError):
    """A value is not admitted at a public boundary.

    Attributes:
        path: where in the value, as ``$.messages[2].content``; ``$`` is the value itself.
        rule: the rule it breaks, as "expected str, got int". Never the value.
        position: character offset in the JSON text, when the value came as text.
    """

    code = "admission"

    def __init__(self, path: str, rule: str, position: int | None = None) -> None:
        super().__init__(path, rule, position)
        self.path, self.rule, self.position = path, rule, position

    def __str__(self) -> str:
        at = "" if self.position is None else f" (at character {self.position})"
        return f"{self.path}: {self.rule}{at}"


class HandleError(InputError):
    """A prepared model call cannot be made with this handle; nothing was sent or charged.

    Attributes:
        code: ``foreign_handle``: another runner, or nobody, prepared it. ``used_handle``: it was used
            for a call before. ``expired_handle``: its runner was cancelled, or is past its deadline.
        rule: what was expected and what came.
    """

    def __init__(self, code: str, rule: str) -> None:
        super().__init__(code, rule)
        self.code, self.rule = code, rule

    def __str__(self) -> str:
        return f"{self.code}: {self.rule}"


class HistoryError(InputError):
    """Calls and results do not belong together.

    Attributes:
        code: ``missing_tool_result``, ``orphan_tool_result`` or ``invalid_tool_result``.
        path: where in the history.
    """

    def __init__(self, code: str, path: str, rule: str) -> None:
        super().__init__(code, path, rule)
        self.code, self.path, self.rule = code, path, rule

    def __str__(self) -> str:
        return f"{self.code}: {self.path}: {self.rule}"


class ToolDefinitionError(InputError):
    """A tool or a tool set cannot be registered.

    Attributes:
        code: ``bad_tool_name``, ``duplicate_tool_name``, ``unknown_tool``, ``unsupported_schema`` or ``bad_tool``.
        tool: the name as given.
        rule: what was expected and what came, with the schema path where there is one.
    """

    def __init__(self, code: str, tool: str, rule: str) -> None:
        super().__init__(code, tool, rule)
        self.code, self.tool, self.rule = code, tool, rule

    def __str__(self) -> str:
        return f"{self.code}: tool {self.tool!r}: {self.rule}"


class ToolResultError(InputError):
    """A tool returned what cannot be a result (not JSON, NaN, an undeclared type)."""

    code = "invalid_tool_result"

    def __init__(self, tool: str, rule: str) -> None:
        super().__init__(tool, rule)
        self.tool, self.rule = tool, rule

    def __str__(self) -> str:
        return f"invalid_tool_result: tool {self.tool!r}: {self.rule}"


class WorkflowError(InputError):
    """A workflow cannot be defined, or a part of one broke its contract while it ran; no error route takes it.

    Attributes:
        code: of a definition ``bad_node`` (a value, an id or a field that cannot be), ``unknown_target``,
            ``unreachable``, ``endless_cycle`` or ``no_completion``. Of a run ``missing_field``: what a node requires
            is not there, or it left out what it provides. ``bad_patch``: what a handler returned is no patch of
            the state. ``bad_guard``: a guard, or what completes or judges a result, did not answer as it must.
            ``no_route``: no guard took the node's end. ``not_a_result``: the workflow refuses its own result.
            ``bad_outcome``: a step returned neither of the two outcomes.
        node: id of the node, ``""`` where it is about the workflow or a step.
        rule: what was expected and what came.
    """

    def __init__(self, code: str, node: str, rule: str) -> None:
        super().__init__(code, node, rule)
        self.code, self.node, self.rule = code, node, rule

    def __str__(self) -> str:
        where = f"node {self.node!r}" if self.node else "workflow"
        return f"{self.code}: {where}: {self.rule}"


class StreamRefused(AgentLoopError):
    """A stream is not one complete, checked reply. Nothing of it became a fact.

    Attributes:
        code: which rule, one of the words of the table in the package documentation.
        event: index of the offending server-sent event, from 0; the number of complete events
            when the stream ended too early.
        byte: offset of that event's first byte in the body, from 0; the body's size at an end.
        expected, got: what the rule wants and what came, without any of the reply's text.
        dialect: name of the dialect it was checked against.
        suggestion: a preset that admits the stream, where one was looked for.
        vendor_code, vendor_type, vendor_message: what a ``vendor_error`` event said.
        limit, allowed: name and value of the limit, for ``oversized``.
    """

    may_have_been_processed = True

    def __init__(
        self,
        code: str,
        event: int,
        byte: int,
        expected: str,
        got: str,
        *,
        dialect: str = "openai",
        suggestion: str | None = None,
        vendor_code: str | None = None,
        vendor_type: str | None = None,
        vendor_message: str | None = None,
        limit: str | None = None,
        allowed: int | None = None,
    ) -> None:
        super().__init__(code, event, byte, expected, got)
        self.code, self.event, self.byte = code, event, byte
        self.expected, self.got = expected, got
        self.dialect, self.suggestion = dialect, suggestion
        self.vendor_code, self.vendor_type, self.vendor_message = vendor_code, vendor_type, vendor_message
        self.limit, self.allowed = limit, allowed

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (StreamRefused, self.args, self.__dict__))

    def __str__(self) -> str:
        hint = f"; dialect {self.suggestion!r} admits it" if self.suggestion else ""
        return (
            f"{self.code} at event {self.event}, byte {self.byte}: expected {self.expected}, "
            f"got {self.got} (dialect {self.dialect!r}{hint})"
        )


class ProviderError(AgentLoopError):
    """One send failed outside the stream itself. It was not repeated.

    Attributes:
        attempt_id: the id sent as ``X-Client-Request-Id``.
        may_have_been_processed: whether the server may have worked on it (and charged for it).
    """

    code = "provider"
    may_have_been_processed = True

    def __init__(self, message: str, *, attempt_id: str = "", may_have_been_processed: bool | None = None) -> None:
        super().__init__(message)
        self.attempt_id = attempt_id
        if may_have_been_processed is not None:
            self.may_have_been_processed = may_have_been_processed

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class ConnectionFailed(ProviderError):
    """No connection was made, so no byte of the request left: repeating is safe."""

    code = "connection_failed"
    may_have_been_processed = False


class ConnectionLost(ProviderError):
    """The connection ended after the request began to leave and before a reply began."""

    code = "connection_lost"


class SendTimeout(ProviderError):
    """A clock ran out before the reply began; ``code`` is ``total_timeout`` or ``first_event_timeout``."""

    def __init__(self, message: str, *, code: str, attempt_id: str = "") -> None:
        super().__init__(message, attempt_id=attempt_id)
        self.code = code


class HTTPStatusError(ProviderError):
    """The server answered with a status other than 200. The text names its code; its words are an attribute.

    Attributes:
        status: the HTTP status.
        retry_after: seconds to wait as the server asked, from ``Retry-After-Ms``, ``Retry-After``
            in seconds or as an HTTP date (RFC 9110 section 10.2.3); None when it did not say.
        vendor_code, vendor_type: what the error body said, each a short string.
        vendor_message: the server's own words, shortened, known keys blanked. They may quote the
            request, so keep them out of logs that must not hold it.
        request_id: the server's ``x-request-id``.
    """

    code = "http_status"

    def __init__(
        self,
        message: str,
        *,
        status: int,
        attempt_id: str = "",
        may_have_been_processed: bool = False,
        retry_after: float | None = None,
        vendor_code: str | None = None,
        vendor_type: str | None = None,
        vendor_message: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, attempt_id=attempt_id, may_have_been_processed=may_have_been_processed)
        self.status, self.retry_after, self.request_id = status, retry_after, request_id
        self.vendor_code, self.vendor_type, self.vendor_message = vendor_code, vendor_type, vendor_message


class OutputRefused(AgentLoopError):
    """A reply was complete, and is not what its transport asked for; or a collector broke its contract.

    The reply itself is a stored fact, also where its first pieces gave the reason: it was read to its end.
    Only ``bad_output_chars`` cuts a reply off. The value was never made from a part of it, and nothing
    was repaired or asked again.

    Attributes:
        code: ``unexpected_call``, ``unexpected_text``, ``no_call``, ``several_calls``, ``call_conflict``,
            ``unknown_tool``, ``malformed_call``: calls and text are not what the transport takes. ``no_json``,
            ``invalid_json``, ``not_an_object``, ``schema_mismatch``, ``refined``: its text or arguments
            do not fit. ``no_output``: an agent's output function was not called, or a summary is empty. ``incomplete``,
            ``refused``: it was cut off, or the model or a filter refused. ``bad_fragment``,
            ``bad_output_chars``: a provider or a collector is at fault.
        rule: what was expected and what came, with the place; none of the reply's text.
        transport: id of the transport.
        ref: where the reply is kept, as `Runtime.read` takes it; None where none is.
        feedback: what a model could read to mend its answer, as the words of a ``refine=`` check; None where
            the rule is all there is to say. It may quote names and values of the reply, and is no part of the
            text of the error, so keep it out of logs that must not hold them.
    """

    may_have_been_processed = True

    def __init__(
        self, code: str, rule: str, *, transport: str = "", ref: str | None = None, feedback: str | None = None
    ) -> None:
        super().__init__(code, rule)
        self.code, self.rule, self.transport, self.ref = code, rule, transport, ref
        self.feedback = feedback

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))

    def __str__(self) -> str:
        by = f" (transport {self.transport!r})" if self.transport else ""
        return f"{self.code}: {self.rule}{by}"


class CallTimeout(AgentLoopError):
    """A model call took longer than the time it was given; it was cut off, and is not repeated.

    Attributes:
        limit: ``call_timeout``, or ``deadline`` of what it was part of.
        seconds: how much that was.
    """

    code = "call_timeout"
    may_have_been_processed = True

    def __init__(self, limit: str, seconds: float) -> None:
        super().__init__(limit, seconds)
        self.limit, self.seconds = limit, seconds

    def __str__(self) -> str:
        return f"{self.limit}: expected an end within {self.seconds:g} s, got none"


class LimitExceeded(AgentLoopError):
    """A configured ceiling was reached; names it, so that a user can raise it."""

    code = "limit"

    def __init__(self, limit: str, allowed: int, got: int) -> None:
        super().__init__(limit, allowed, got)
        self.limit, self.allowed, self.got = limit, allowed, got

    def __str__(self) -> str:
        return f"{self.limit}: allowed {self.allowed}, got at least {self.got}"


class BudgetError(LimitExceeded):
    """A budget of calls, tokens or characters does not cover an effect.

    Raised before the effect, nothing was debited; only ``max_output_chars`` is known while one goes on.
    """

    code: str = "BUDGET"


class ConflictError(AgentLoopError):
    """Two facts cannot both hold; the one already kept stands."""

    code = "conflict"

    def __init__(self, what: str, rule: str) -> None:
        super().__init__(what, rule)
        self.what, self.rule = what, rule

    def __str__(self) -> str:
        return f"{self.code}: {self.what}: {self.rule}"


class StaleHeadError(ConflictError):
    """A conversation moved on since the run began, or another run is on it.

    Attributes:
        expected, actual: digests of the heads (``expected`` is what the run began from).
    """

    code = "stale_head"

    def __init__(self, conversation: str, expected: str, actual: str, rule: str) -> None:
        super().__init__(f"conversation {conversation!r}", rule)
        self.conversation, self.expected, self.actual = conversation, expected, actual

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class NotOwnerError(ConflictError):
    """The run belongs to another owner.

    Attributes:
        owner: who holds the run's lease, as in `RunRow`; None where nobody does, or it is not known.
        seconds_left: how long the lease lives still, on the store's clock, 0.0 when it has run out;
            None where there is none, or it is not known. A living owner prolongs it.
    """

    code = "not_owner"

    def __init__(self, what: str, rule: str, *, owner: str | None = None, seconds_left: float | None = None) -> None:
        super().__init__(what, rule)
        self.owner, self.seconds_left = owner, seconds_left

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


class PersistenceError(AgentLoopError):
    """A write did not end well, so the store stopped: what it holds is settled by reloading it."""

    code = "persistence"
    may_have_been_processed = True


class RestoreError(AgentLoopError):
    """A snapshot, a stored record or a run cannot be taken up.

    Attributes:
        code: ``restore_version``: another version wrote it. ``bad_record``, ``bad_snapshot``,
            ``unknown_event``: it cannot be right.
            ``agent_changed``, ``input_changed``, ``catalogue_changed``: a run was begun with another
            agent, input or tool set than it shall be resumed with.
        where: which run or line. rule: what was expected and what came: names and digests, no texts.
    """

    def __init__(self, code: str, where: str, rule: str) -> None:
        super().__init__(code, where, rule)
        self.code, self.where, self.rule = code, where, rule

    def __str__(self) -> str:
        return f"{self.code}: {self.where}: {self.rule}"


class LostError(AgentLoopError, LookupError):
    """A reference names nothing that is kept (it was forgotten, or never was)."""

    code = "lost"

    def __init__(self, what: str, ref: str) -> None:
        super().__init__(what, ref)
        self.what, self.ref = what, ref

    def __str__(self) -> str:
        return f"lost: no {self.what} {self.ref!r} is kept"


class OutcomeError(AgentLoopError):
    """A run did not complete, or brought no output, and its text or value was required.

    Attributes:
        outcome, reason: as in `RunResult`.
        ref: the run's id.
    """

    code = "outcome"
    may_have_been_processed = True

    def __init__(self, outcome: str, reason: str | None, ref: str) -> None:
        super().__init__(outcome, reason, ref)
        self.outcome, self.reason, self.ref = outcome, reason, ref

    def __str__(self) -> str:
        why = "" if self.reason is None else f" ({self.reason})"
        wanted = "a value" if self.outcome == "completed" else "outcome completed"
        return f"run {self.ref!r}: expected {wanted}, got {self.outcome}{why}"


class RunCancelled(AgentLoopError):
    """The run one waits for, or reads, was cancelled; the waiting task was not. Or the work of a signal was.

    Attributes:
        what: ``run``; ``signal``: a `Signal` was cancelled without a reason of its own; ``runtime``: a
            runtime closed, which cuts the calls of its runners off.
        ref: the run's id; of a signal its name, ``""`` where it has none; ``""`` of a runtime.
    """

    code = "cancelled"
    may_have_been_processed = True

    def __init__(self, ref: str, what: str = "run") -> None:
        super().__init__(ref, what)
        self.ref, self.what = ref, what

    def __str__(self) -> str:
        if self.what == "runtime":
            return "the call was cut off: its runtime closed"
        named = f"{self.what} {self.ref!r}" if self.ref else f"a {self.what} without a name"
        return f"{named} was cancelled"


class RunPaused(AgentLoopError):
    """The runtime closed while a submitted run went on; it is unfinished and can be resumed.

    Attributes:
        ref: the run's id.
    """

    code = "paused"
    may_have_been_processed = True

    def __init__(self, ref: str) -> None:
        super().__init__(ref)
        self.ref = ref

    def __str__(self) -> str:
        return f"run {self.ref!r} is unfinished: the runtime closed; resume it"


class ModelPending(AgentLoopError):
    """A run left a model call that goes on by itself: its outcome will be stored (R140, R141).

    The local wait was over, or the caller was cancelled. Nothing was cancelled or sent again; look
    the call up with `Runtime.read`, and go on with `Runtime.resume`.

    Attributes:
        ref: the run's id.
        attempt_id: the send's, as the server saw it.
    """

    code = "pending"
    may_have_been_processed = True

    def __init__(self, ref: str, attempt_id: str) -> None:
        super().__init__(ref, attempt_id)
        self.ref, self.attempt_id = ref, attempt_id

    def __str__(self) -> str:
        return f"run {self.ref!r} left send {self.attempt_id!r}, which goes on; resume the run when its reply is stored"


class UnsettledError(AgentLoopError):
    """A run cannot go on: nobody knows what became of an effect of a process that ended.

    Attributes:
        ref: the run's id.
        sends: ids of attempts without an end. calls: the calls without an answer, as
            "exchange.position". Each is settled with `Runtime.settle_send` or `settle_call`, or the
            run is ended without knowing, with `Runtime.cancel`.
            ``__cause__`` is the error of a lookup that was asked and failed.
        below: id of the run that the call had an agent do, or of one below that, where the run can only go on
            once that one was settled or decided about; None where it waits for itself. ``__cause__`` is its error.
    """

    code = "unsettled"
    may_have_been_processed = True

    def __init__(self, ref: str, sends: tuple[str, ...], calls: tuple[str, ...], below: str | None = None) -> None:
        super().__init__(ref, sends, calls, below)
        self.ref, self.sends, self.calls, self.below = ref, sends, calls, below

    def __str__(self) -> str:
        if self.below is not None:
            calls = ", ".join(f"call {c}" for c in self.calls)
            return f"run {self.ref!r} waits for run {self.below!r} ({calls}): settle or decide about that one first"
        what = [*(f"send {a!r}" for a in self.sends), *(f"call {c}" for c in self.calls)]
        how = [*(["settle_send"] if self.sends else ()), *(["settle_call"] if self.calls else ())]
        return (
            f"run {self.ref!r} waits to be settled: {', '.join(what)}; decide with {' and '.join(how)}, "
            "or end it with cancel(author=...)"
        )


class ToolFailed(AgentLoopError):
    """Raise it in a tool: its message becomes error feedback that the model reads."""

    code = "tool_failed"


class ToolCrashed(AgentLoopError):
    """A tool raised an exception it did not declare. The run ended; ``__cause__`` is the exception.

    Attributes:
        tool, call_id, effect_id: which execution; its slot says that the outcome is unknown.
        error_type: qualified name of the exception's class.
    """

    code = "tool_crashed"
    may_have_been_processed = True

    def __init__(self, tool: str, call_id: str, effect_id: str, error_type: str) -> None:
        super().__init__(tool, call_id, effect_id, error_type)
        self.tool, self.call_id, self.effect_id, self.error_type = tool, call_id, effect_id, error_type

    def __str__(self) -> str:
        if self.error_type == f"{__name__}.{ToolResultError.__qualname__}":  # its value, not its code, was at fault
            return (
                f"tool {self.tool!r} in call {self.call_id!r} returned a value that cannot be a result; see __cause__"
            )
        return (
            f"tool {self.tool!r} raised {self.error_type} in call {self.call_id!r}; raise ToolFailed, or declare "
            "the type in errors=, when the model shall read it"
        )


class ApprovalFailed(ToolCrashed):
    """Whether a call needs an approval could not be asked, so it did not run, and the run ended.

    ``__cause__`` is what the predicate of `ToolPolicy.approval` raised, None where it returned no bool.

    Attributes:
        error_type: qualified name of that exception's class, or of what was returned "a value of type str".
    """

    code = "approval_failed"
    may_have_been_processed = False

    def __str__(self) -> str:
        error = "" if self.error_type.startswith(("a ", "an ")) else "the error "
        return (
            f"approval of tool {self.tool!r} in call {self.call_id!r}: expected a predicate that returns True or "
            f"False, got {error}{self.error_type}; the call did not run"
        )


def _rebuild(cls: type[AgentLoopError], args: tuple[Any, ...], state: dict[str, Any]) -> AgentLoopError:
    """Pickle support for errors with keyword-only facts."""
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error
