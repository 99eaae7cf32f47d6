"""Times, sizes and states in words, the same in tables and on the page."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ...exchange import Checkpoint, CompletedPoint, ModelPoint, PreparedPoint, ToolsPoint
from ...messages import Usage
from ...views import AttemptView, RunView

__all__ = [
    "answered",
    "asked_by",
    "clock",
    "counted",
    "cut",
    "duration",
    "made_by",
    "place",
    "run_title",
    "size",
    "tokens",
]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def clock(at_ms: int) -> str:
    """Wall clock in UTC, to the second."""
    try:
        return (_EPOCH + timedelta(milliseconds=at_ms)).strftime("%Y-%m-%d %H:%M:%S")
    except OverflowError:
        return f"{at_ms} ms"


def duration(ms: int | None) -> str:
    """A span in the unit that suits it, "-" where it is unknown."""
    if ms is None:
        return "-"
    if ms < 1_000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    seconds = ms // 1000
    if seconds < 3_600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours} h {minutes:02d} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    if count < 1024:
        return f"{count} B"
    amount, units = count / 1024, ["KiB", "MiB", "GiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:.1f} {units[0]}"


def tokens(usage: Usage | None) -> str:
    """Tokens in and out as reported, "-" where none were."""
    return "-" if usage is None else f"{usage.input_tokens:,} in, {usage.output_tokens:,} out"


def counted(count: int, one: str, many: str | None = None) -> str:
    """ "1 run", "2 runs"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def cut(run: RunView) -> str | None:
    """What of its conversation a run is not asked with, and which calls made its summaries; None where it has all."""
    told = [f"without {counted(run.left_out, 'turn')}"] if run.left_out else []
    if run.summaries:
        refs = ", ".join(ref or "the host" for ref in run.summaries)
        of = counted(run.summarised, "turn")
        told.append(f"with {counted(len(run.summaries), 'summary', 'summaries')} of {of} ({refs})")
    return ", ".join(told) or None


def run_title(run: RunView) -> str:
    """What a run is, where its id alone says too little."""
    if run.kind == "branch":
        return f"branch of {run.source}"
    return made_by(run) or "run"


def made_by(run: RunView) -> str:
    """Whose a run is: its agent's name, or "stage triage" for a model call of a runner; empty where nobody tells."""
    return run.agent if run.call is None else f"stage {run.call.stage_id}"


def asked_by(run: RunView) -> str:
    """How a runner's model call asks for its value: "core:plain-text (text)"; empty for a run of an agent."""
    if run.call is None:
        return ""
    model = "" if run.call.model_id is None else f", model {run.call.model_id}"
    return f"{run.call.transport} ({run.call.route}){model}"


def answered(attempt: AttemptView) -> str:
    """What a server answered in place of a stream: "HTTP 429, asked to wait 2 s"; empty where it did not."""
    if attempt.status is None:
        return ""
    wait = "" if attempt.retry_after is None else f", asked to wait {attempt.retry_after:g} s"
    return f"HTTP {attempt.status}{wait}"


def place(point: Checkpoint) -> tuple[str, str]:
    """Where a run is, and the evidence, with the ids that a person would look for."""
    if type(point) is PreparedPoint:
        return "prepared", f"origin {point.origin_id}"
    if type(point) is ModelPoint:
        answers = counted(point.feedback, "answer")
        return "model-waiting", f"model call {point.call_sequence}, attempt {point.attempt_id}, {answers} stored"
    if type(point) is CompletedPoint:
        return "completed", f"outcome {point.outcome}, exchanges {point.digest[:16]}"
    assert type(point) is ToolsPoint
    at = "" if point.cursor is None else f", at call {point.exchange}.{point.cursor}"
    waits = f", {counted(len(point.waiting), 'call waits', 'calls wait')}" if point.waiting else ""
    return "tools", f"exchange {point.exchange}, {counted(len(point.feedback), 'answer')} stored{at}{waits}"
