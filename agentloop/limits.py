"""Every default and range in one place.

Bytes are UTF-8 bytes of the encoded JSON; characters are Unicode code points; tokens are what a
provider reports. The three are never converted into each other. Seconds are floats.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from .errors import InputError

__all__ = [
    "BODY_BYTES",
    "BODY_SECONDS",
    "CALL_TIMEOUT",
    "CHILD_CONCURRENT_CALLS",
    "CHILD_COUNT",
    "CHILD_DEPTH",
    "CLOSE_SECONDS",
    "COLLECTION_BYTES",
    "DRAIN_SECONDS",
    "ENCODED_REQUEST_BYTES",
    "EVENT_BYTES",
    "FEEDBACK_BYTES",
    "FIRST_EVENT_TIMEOUT",
    "GONE_SECONDS",
    "IDLE_TIMEOUT",
    "JOURNAL_RECORDS",
    "JSON_BYTES",
    "JSON_DEPTH",
    "JSON_VALUES",
    "KEEP_ALIVE_SECONDS",
    "LEASE_SECONDS",
    "LoopLimits",
    "MAX_CALL_TIMEOUT",
    "MAX_INPUT_CHARS",
    "MAX_MODEL_CALLS",
    "MAX_MODEL_CALLS_CEILING",
    "MAX_OUTPUT_CHARS",
    "MAX_OUTPUT_TOKENS",
    "MAX_PARALLEL_TOOLS",
    "MAX_PARALLEL_TOOLS_CEILING",
    "MAX_RESENDS",
    "MAX_RESENDS_CEILING",
    "MAX_ROUNDS",
    "MAX_RUNNER_CALLS",
    "MAX_SCHEMA_CHARS",
    "MAX_TOOLS",
    "MODEL_END_SECONDS",
    "REPLY_BYTES",
    "REQUEST_BYTES",
    "RESEND_DELAY",
    "RESEND_MAX_DELAY",
    "RESPONSE_BYTES",
    "RUNS",
    "RUNS_A_USER",
    "SAFE_INTEGER",
    "SETTLE_SECONDS",
    "STORE_EXCHANGES",
    "STORE_ITEM_BYTES",
    "STORE_ORIGINS",
    "STORE_TOTAL_BYTES",
    "STREAMS",
    "STREAMS_A_USER",
    "TOOL_GRACE",
    "TOOL_RETRIES",
    "TOOL_THREADS",
    "TOOL_TIMEOUT",
    "TOTAL_TIMEOUT",
    "Timeouts",
    "WAIT_SECONDS",
    "WRITE_SECONDS",
    "WebLimits",
    "check_chars",
    "check_count",
    "check_name",
    "check_seconds",
    "number_or_type",
]

SAFE_INTEGER: Final = 2**53 - 1
"""Largest integer that every JSON reader keeps; counts are 0 to this."""

_SECONDS_CEILING: Final = SAFE_INTEGER // 1000
_NAME_CHARS: Final = 128
_SHOWN_BITS: Final = 128  # of a longer integer only the length is shown

# loop
MAX_MODEL_CALLS: Final = 8
MAX_MODEL_CALLS_CEILING: Final = 32
MAX_PARALLEL_TOOLS: Final = 1
MAX_PARALLEL_TOOLS_CEILING: Final = 32
MAX_TOOLS: Final = 32
REPLY_BYTES: Final = 64 * 1024
FEEDBACK_BYTES: Final = 4 * 1024
REQUEST_BYTES: Final = 2 * 1024 * 1024
COLLECTION_BYTES: Final = 8 * 1024 * 1024

# values admitted at public boundaries
JSON_BYTES: Final = 2 * 1024 * 1024
JSON_DEPTH: Final = 64
JSON_VALUES: Final = 100_000

# one send over HTTP
ENCODED_REQUEST_BYTES: Final = 2 * 1024 * 1024
RESPONSE_BYTES: Final = 2 * 1024 * 1024
EVENT_BYTES: Final = 1024 * 1024
TOTAL_TIMEOUT: Final = 60.0
FIRST_EVENT_TIMEOUT: Final = None
IDLE_TIMEOUT: Final = 30.0

# sending once more, where a host asks for it
MAX_RESENDS: Final = 2
MAX_RESENDS_CEILING: Final = 100
RESEND_DELAY: Final = 0.5
RESEND_MAX_DELAY: Final = 60.0

# memory store, or one loaded conversation
STORE_ORIGINS: Final = 10_000
STORE_EXCHANGES: Final = 10_000
STORE_TOTAL_BYTES: Final = 64 * 1024 * 1024
STORE_ITEM_BYTES: Final = 8 * 1024 * 1024

# tools
TOOL_TIMEOUT: Final = 15.0
TOOL_GRACE: Final = 2.0
TOOL_RETRIES: Final = 3
TOOL_THREADS: Final = 32

# serving over HTTP
BODY_BYTES: Final = 2 * 1024 * 1024
BODY_SECONDS: Final = 10.0
RUNS: Final = 512
RUNS_A_USER: Final = 8
STREAMS: Final = 4_096
STREAMS_A_USER: Final = 32
KEEP_ALIVE_SECONDS: Final = 15.0
WRITE_SECONDS: Final = 30.0
GONE_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 20.0

# life of a runtime, in seconds
LEASE_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 5.0
SETTLE_SECONDS: Final = 30.0

# local wait for a detached model call, which goes on after it (R96)
WAIT_SECONDS: Final = 30.0

# one model call of a runner; calls and children of one runner
MAX_RUNNER_CALLS: Final = 8
CALL_TIMEOUT: Final = 30.0
MAX_CALL_TIMEOUT: Final = 2_147_483.647
MAX_INPUT_CHARS: Final = 32_000
MAX_OUTPUT_CHARS: Final = 16_000
MAX_SCHEMA_CHARS: Final = 16_000
MAX_OUTPUT_TOKENS: Final = 1_024
CHILD_DEPTH: Final = 1
CHILD_CONCURRENT_CALLS: Final = 1
CHILD_COUNT: Final = 32

# one run of a workflow
MAX_ROUNDS: Final = 8

# events
MODEL_END_SECONDS: Final = 0.250
JOURNAL_RECORDS: Final = 10_000


def check_count(name: str, value: object, low: int, high: int = SAFE_INTEGER, *, raised_by: str | None = None) -> None:
    """Refuse anything but an ``int`` (not ``bool``) from ``low`` to ``high``.

    Args:
        raised_by: what makes ``high`` larger, where something does; the error names it.

    Raises:
        InputError: says the name, the range and what came.
    """
    if type(value) is not int or not low <= value <= high:
        more = "" if raised_by is None else f" (more with {raised_by})"
        raise InputError(f"{name}: expected an integer from {low} to {high}{more}, got {number_or_type(value)}")


def check_chars(name: str, value: object) -> None:
    """Refuse anything but an ``int`` (not ``bool``) from 0 to 2**53 - 1, or ``math.inf``, which is no limit.

    Raises:
        InputError: says the name, the range and what came.
    """
    if type(value) is float and value == math.inf:
        return
    if type(value) is not int or not 0 <= value <= SAFE_INTEGER:
        got = number_or_type(value)
        raise InputError(f"{name}: expected an integer from 0 to {SAFE_INTEGER}, or math.inf, got {got}")


def check_name(name: str, value: object) -> None:
    """Refuse anything but a ``str`` of 1 to 128 characters that UTF-8 can encode, since names stand in records.

    Raises:
        InputError: says the name, the range and what came.
    """
    if type(value) is not str:
        raise InputError(f"{name}: expected a string of 1 to 128 characters, got {type(value).__name__}")
    if not 1 <= len(value) <= _NAME_CHARS:
        raise InputError(f"{name}: expected a string of 1 to 128 characters, got {len(value)} characters")
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise InputError(f"{name}: expected text that UTF-8 can encode, got a lone surrogate")


def check_seconds(name: str, value: object, *, low: float = 0.0) -> None:
    """Refuse anything but a number of seconds above ``low``, whose milliseconds are an integer that JSON can hold.

    Raises:
        InputError: says the name, the range and what came.
    """
    if type(value) not in (int, float) or not low < value < math.inf:  # type: ignore[operator]
        raise InputError(f"{name}: expected seconds above {low:g}, got {number_or_type(value)}")
    if value > _SECONDS_CEILING:  # type: ignore[operator]
        raise InputError(f"{name}: expected at most {_SECONDS_CEILING} seconds, got {number_or_type(value)}")


def number_or_type(value: object) -> str:
    """What came, for the text of an error: a number as it is unless it is very long, of anything else the type."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return f"an integer of {value.bit_length()} bits"
    return str(value) if isinstance(value, (int, float)) else type(value).__name__


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The three clocks of one send, in seconds; None turns one off.

    Attributes:
        total: from the first byte of the request to the end of the reply.
        first_event: from the start of the send to the first event that carries data.
        idle: between two events that carry data; comments and empty events are not progress.
        connect: to an established connection, inside ``total``.

    Raises:
        InputError: a value that is not a finite number above 0.
    """

    total: float | None = TOTAL_TIMEOUT
    first_event: float | None = FIRST_EVENT_TIMEOUT
    idle: float | None = IDLE_TIMEOUT
    connect: float | None = 10.0

    def __post_init__(self) -> None:
        for name in ("total", "first_event", "idle", "connect"):
            value = getattr(self, name)
            if value is not None:
                check_seconds(f"Timeouts.{name}", value)


class LoopLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ceilings of one run. Reaching one is an outcome (``limit_reached``), not an exception.

    Attributes:
        max_model_calls: model calls a run, each attempt counted, 1 to ``ceiling``.
        max_tool_calls: started tool calls a run, 0 and up; None is no limit.
        max_tokens: sum of the reported total tokens of a run's calls; the call that crosses it
            still counts, the next one is not made. None is no limit.
        max_seconds: wall seconds of the run; checked before each effect, and it ends a running
            model call or tool. None is no limit.
        max_equal_calls: how often the same tool may be asked with the same arguments text in one
            run, 1 and up. None is no limit.
        max_depth: how deep the runs may be nested that its tools have agents do (`delegate`), the run itself
            being at 0; 0 and up, where 0 allows none. That of the outermost run holds for all of them.
        max_parallel_tools: how many calls of one reply may run at the same time, 1 to 32; 1 runs them one
            after the other, in order (R93, R338). It bounds one run; what several runs do at once it does not
            (R340). Results stand in the order of the calls, whichever tool ends first.
        reply_bytes, feedback_bytes, request_bytes, collection_bytes: one reply; one feedback with
            its call id, which ends the run where it leaves no room for an answer; one expanded
            request; all exchanges of the run.
        max_wire_request_bytes: encoded request as the provider would send it, checked with
            ``Provider.inspect_request`` before each send; None leaves the provider's own limit.
        ceiling: what ``max_model_calls`` may be at most; more than 32 must be said here.

    Raises:
        InputError: a value outside its range, by name.
    """

    max_model_calls: int = MAX_MODEL_CALLS
    max_tool_calls: int | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None
    max_equal_calls: int | None = None
    max_depth: int = CHILD_DEPTH
    max_parallel_tools: int = MAX_PARALLEL_TOOLS
    reply_bytes: int = REPLY_BYTES
    feedback_bytes: int = FEEDBACK_BYTES
    request_bytes: int = REQUEST_BYTES
    collection_bytes: int = COLLECTION_BYTES
    max_wire_request_bytes: int | None = None
    ceiling: int = MAX_MODEL_CALLS_CEILING

    def __post_init__(self) -> None:
        check_count("LoopLimits.ceiling", self.ceiling, 1)
        check_count("LoopLimits.max_model_calls", self.max_model_calls, 1, self.ceiling, raised_by="ceiling=")
        if self.max_tool_calls is not None:
            check_count("LoopLimits.max_tool_calls", self.max_tool_calls, 0)
        if self.max_tokens is not None:
            check_count("LoopLimits.max_tokens", self.max_tokens, 1)
        if self.max_seconds is not None:
            check_seconds("LoopLimits.max_seconds", self.max_seconds)
        if self.max_equal_calls is not None:
            check_count("LoopLimits.max_equal_calls", self.max_equal_calls, 1)
        check_count("LoopLimits.max_depth", self.max_depth, 0)
        check_count("LoopLimits.max_parallel_tools", self.max_parallel_tools, 1, MAX_PARALLEL_TOOLS_CEILING)
        check_count("LoopLimits.reply_bytes", self.reply_bytes, 256)
        check_count("LoopLimits.feedback_bytes", self.feedback_bytes, 256)
        check_count("LoopLimits.request_bytes", self.request_bytes, 1_024)
        check_count("LoopLimits.collection_bytes", self.collection_bytes, 1_024)
        if self.max_wire_request_bytes is not None:
            check_count("LoopLimits.max_wire_request_bytes", self.max_wire_request_bytes, 1)


class WebLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a chat backend takes from its clients.

    Attributes:
        body_bytes: of one request's body (2 MiB); 413. body_seconds: in which it must have arrived (10); 408.
        runs, runs_a_user: turns that go on at the same time, in all (512) and for one user (8); 429. A turn that waits
            for a person takes no place.
        streams, streams_a_user: event streams that are open, in all (4,096) and for one user (32); 429.
        keep_alive_seconds: of silence before a stream carries a comment (15).
        write_seconds: how long a client may take no byte of its stream before it is cut off (30); what it has not
            read it gets when it comes back.
        gone_seconds: how long nobody may follow a turn before it is cancelled, where `chat_app` shall cancel (10).
        drain_seconds: how long a shutdown waits for turns that go on (20).

    Raises:
        InputError: a value outside its range, by name.
    """

    body_bytes: int = BODY_BYTES
    body_seconds: float = BODY_SECONDS
    runs: int = RUNS
    runs_a_user: int = RUNS_A_USER
    streams: int = STREAMS
    streams_a_user: int = STREAMS_A_USER
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    write_seconds: float = WRITE_SECONDS
    gone_seconds: float = GONE_SECONDS
    drain_seconds: float = DRAIN_SECONDS

    def __post_init__(self) -> None:
        for name in ("body_bytes", "runs", "runs_a_user", "streams", "streams_a_user"):
            check_count(f"WebLimits.{name}", getattr(self, name), 1)
        for name in ("body_seconds", "keep_alive_seconds", "write_seconds", "gone_seconds", "drain_seconds"):
            check_seconds(f"WebLimits.{name}", getattr(self, name))
