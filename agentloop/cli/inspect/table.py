"""A store as tables and a run as a timeline, for a terminal or a log."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ...views import AttemptView, CallView, MessageView, RunView, StoreView
from ..inert import clean
from .words import answered, asked_by, clock, counted, cut, duration, made_by, place, size, tokens

__all__ = ["Style", "store_lines", "timeline_lines"]

Style = Callable[[str, str], str]
"""Puts a style (``bold``, ``dim``, ``red``, ``green``, ``cyan``) on a text, where there is colour."""

_COLOURS: Final = {
    "completed": "green",
    "replied": "green",
    "done": "green",
    "failed": "red",
    "cancelled": "red",
    "abandoned": "red",
    "unknown": "red",
    "unfinished": "red",
    "open": "red",
    "running": "cyan",
    "started": "cyan",
    "waiting": "cyan",
}
_WORD: Final = re.compile("|".join(rf"\b{word}\b" for word in _COLOURS))
_LONGEST_CELL: Final = 40
_LONGEST_TEXT: Final = 2_000


def store_lines(view: StoreView, style: Style) -> Iterator[str]:
    """Conversations, runs, and what is to be settled."""
    unfinished = sum(run.ended_at_ms is None for run in view.runs)
    unsettled = sum(run.unsettled for run in view.runs)
    waiting = sum(run.waiting for run in view.runs)
    what = [counted(len(view.conversations), "conversation"), counted(len(view.runs), "run")]
    if unfinished:
        what.append(f"{unfinished} unfinished")
    if unsettled:
        what.append(f"{unsettled} to settle")
    if waiting:
        what.append(f"{waiting} to decide")
    yield f"{style(clean(view.store), 'bold')}: {', '.join(what)}"
    if view.conversations:
        yield ""
        rows = [
            [
                conversation.name,
                str(len(conversation.runs)),
                "free" if conversation.live is None else f"run {conversation.live}",
                conversation.source or "",
            ]
            for conversation in view.conversations
        ]
        yield from _table(["CONVERSATION", "RUNS", "ON IT NOW", "BRANCH OF"], rows, style)
    if view.runs:
        yield ""
        heads = [
            "RUN",
            "CONVERSATION",
            "AGENT",
            "OPENED (UTC)",
            "STATE",
            "RECOVERY",
            "TIME",
            "ATTEMPTS",
            "CALLS",
            "TOKENS",
            "SIZE",
        ]
        yield from _table(heads, [_run_row(run) for run in view.runs], style)
    for run in view.runs:
        if run.unsettled:
            yield ""
            yield style(f"to settle in run {_cell(run.run_id)}", "bold")
            yield from _table(["KIND", "WHERE", "WHAT", "STATE", "ID"], list(_unsettled_rows(run)), style)
        if run.waiting:
            yield ""
            yield style(f"to decide in run {_cell(run.run_id)}", "bold")
            rows = [
                [call.code or "", f"{call.exchange}.{call.position}", call.tool, call.arguments]
                for call in run.calls
                if call.state == "waiting" and not call.waits_for_child
            ]
            yield from _table(["KIND", "WHERE", "WHAT", "ARGUMENTS"], rows, style)


def timeline_lines(run: RunView, style: Style) -> Iterator[str]:
    """One run from its opening to its end."""
    yield f"{style('run ' + _cell(run.run_id), 'bold')}  {_coloured(_state(run), style)}"
    yield from _facts(run, style)
    yield ""
    zero = run.opened_at_ms
    if run.kind == "run":
        whose = f"agent {_cell(run.agent)}" if run.call is None else f"model call of {_cell(made_by(run))}"
        yield f"{_offset(zero, zero)}  opened  {whose}, {counted(len(run.tools), 'tool')}"
    for message in run.messages:
        yield from _message_lines(message, _BLANK, "", style)
    yield from _steer_lines(run, 0, style)
    for at, attempt in enumerate(run.attempts, 1):
        yield from _attempt_lines(attempt, zero, style)
        yield from _steer_lines(run, at, style)
    if run.ended_at_ms is None:
        yield f"{_BLANK}  no end; {_coloured(_state(run), style)}"
    else:
        yield f"{_offset(zero, run.ended_at_ms)}  ended  {_coloured(_state(run), style)}"


def _message_lines(message: MessageView, margin: str, by: str, style: Style) -> Iterator[str]:
    images = f", {counted(message.images, 'image')}" if message.images else ""
    yield f"{margin}  {style(message.role, 'cyan')}{by}  {size(message.bytes)}{images}"
    yield from _indented(message.text, style)


def _steer_lines(run: RunView, model_calls: int, style: Style) -> Iterator[str]:
    for steer in run.steers_after(model_calls):
        margin, by = _offset(run.opened_at_ms, steer.at_ms), f" by {_cell(steer.author)}" if steer.author else ""
        if steer.message is None:
            yield f"{margin}  asked to stop{by}"
        else:
            yield from _message_lines(steer.message, margin, by, style)


def _attempt_lines(attempt: AttemptView, zero: int, style: Style) -> Iterator[str]:
    told = [f"model {_cell(attempt.model)}", _why(attempt.state, attempt.code, attempt.author)]
    if attempt.status is not None:
        told.append(answered(attempt))
    if attempt.state in ("failed", "abandoned"):
        told.append("may have been processed" if attempt.may_have_been_processed else "was not processed")
    if attempt.usage is not None:
        told.append(tokens(attempt.usage))
    if attempt.duration_ms is not None:
        told.append(f"took {duration(attempt.duration_ms)}")
    told.append(f"{duration(attempt.step_ms)} to the next step")
    yield f"{_offset(zero, attempt.started_at_ms)}  model call {attempt.number}  {_coloured(', '.join(told), style)}"
    yield f"{_BLANK}  {style('attempt ' + _cell(attempt.attempt_id), 'dim')}"
    reply = attempt.reply
    if reply is None:
        return
    yield f"{_BLANK}  {style('reply', 'cyan')}  {size(reply.bytes)}, finish {_cell(str(reply.finish))}"
    yield from _indented(reply.refusal or reply.text, style)
    for call in reply.calls:
        runs = f", {counted(call.executions, 'execution')}" if call.executions else ""
        sizes = f"{size(call.argument_bytes)} in, {size(call.feedback_bytes)} out"
        took = "" if call.duration_ms is None else f", took {duration(call.duration_ms)}"
        yield (
            f"{_BLANK}  {style(f'call {call.exchange}.{call.position}', 'cyan')}  {_cell(call.tool)}  "
            f"{_coloured(_call_state(call), style)}{runs}, {sizes}{took}"
        )
        yield from _indented(call.arguments, style)
        if call.converted:
            yield from _indented(f"converted: {', '.join(call.converted)}", style)
        if call.feedback is not None:
            yield from _indented(f"→ {call.feedback}", style)
        if call.kept_bytes is not None:
            yield from _indented(f"full output kept: {size(call.kept_bytes)} ({call.kept_bytes:,} bytes)", style)


def _facts(run: RunView, style: Style) -> Iterator[str]:
    told = [
        ("conversation", run.conversation),
        ("asked by", asked_by(run)),
        ("made for", run.call and run.call.parent),
        ("continues", run.continues),
        ("branch of", run.source),
        ("asked", cut(run)),
        ("opened", f"{clock(run.opened_at_ms)} UTC"),
        ("took", duration(run.duration_ms)),
        ("calls", f"{counted(run.model_calls, 'model call')}, {counted(run.tool_calls, 'tool execution')}"),
        ("tokens", tokens(run.usage)),
        ("recovery", "points" if run.recovery_points else None),
        ("checkpoint", run.checkpoint and ": ".join(place(run.checkpoint))),
        ("stored", f"{counted(run.facts, 'fact')}, {size(run.bytes)}"),
        ("owner", run.owner and f"{run.owner} for {run.owned_for_seconds:g} s"),
        ("redacted by", run.author),
    ]
    for name, value in told:
        if value:
            yield f"  {style(name.ljust(13), 'dim')}{_cell(value, longest=200)}"


def _run_row(run: RunView) -> list[str]:
    attempts = Counter(_attempt_word(attempt) for attempt in run.attempts)
    calls = Counter(_call_word(call) for call in run.calls)
    return [
        run.run_id,
        run.conversation or "-",
        made_by(run) or "-",
        clock(run.opened_at_ms),
        _state(run),
        "points" if run.recovery_points else "-",
        duration(run.duration_ms),
        _counts(attempts),
        _counts(calls),
        tokens(run.usage),
        size(run.bytes),
    ]


def _unsettled_rows(run: RunView) -> Iterator[list[str]]:
    for attempt in run.attempts:
        if attempt.state == "open":
            yield ["send", f"model call {attempt.number}", attempt.model, "no end", attempt.attempt_id]
    for call in run.calls:
        if call.feedback is None and call.state in ("started", "unknown"):
            state = f"{call.state}, re-run allowed by {call.author}" if call.rerun else call.state
            yield ["call", f"{call.exchange}.{call.position}", call.tool, state, call.effect_id or ""]


def _state(run: RunView) -> str:
    if run.kind == "branch":
        return f"branch of {clean(run.source or '')}"
    state = _why(run.state, run.reason if run.reason != "stop" else None, None)
    if run.kind == "redacted":
        return f"redacted, was {state}"
    if run.waiting:
        state += f", {run.waiting} to decide"
    return f"{state}, {run.unsettled} to settle" if run.unsettled else state


def _attempt_word(attempt: AttemptView) -> str:
    if attempt.status is None:
        return attempt.state
    wait = "" if attempt.retry_after is None else f", wait {attempt.retry_after:g} s"
    return f"{attempt.state} ({attempt.status}{wait})"


def _call_word(call: CallView) -> str:
    return "waiting for feedback" if call.state == "open" else call.state


def _call_state(call: CallView) -> str:
    if call.waits_for_child:
        return f"waiting for its agent, run {clean(call.effect_id or '')}"
    code = None if call.code == call.decided else call.code
    state = _why(call.state, code, call.author)
    if call.decided:
        state += f", {_why(call.decided, None, call.decided_by)}"
    return f"{state}, re-run allowed" if call.rerun else state


def _why(state: str, code: str | None, author: str | None) -> str:
    return state + (f" ({clean(code)})" if code else "") + (f" by {clean(author)}" if author else "")


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in counts.items()) or "-"


_BLANK: Final = " " * 10


def _offset(zero: int, at: int) -> str:
    return f"{(at - zero) / 1000:+10.3f}"


def _indented(text: str, style: Style) -> Iterator[str]:
    shown = clean(text[:_LONGEST_TEXT])
    for line in shown.splitlines():
        for piece in textwrap.wrap(line, 100, break_on_hyphens=False) or [""]:
            yield f"{_BLANK}    {piece}"
    if len(text) > _LONGEST_TEXT:
        yield f"{_BLANK}    {style(f'… {len(text) - _LONGEST_TEXT:,} more characters', 'dim')}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> Iterator[str]:
    cells = [[_cell(cell) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(heads, *cells, strict=True)]
    yield style(_row(heads, widths).rstrip(), "dim")
    for row in cells:
        yield _coloured(_row(row, widths).rstrip(), style)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True))


def _cell(text: str, *, longest: int = _LONGEST_CELL) -> str:
    line = clean(text).replace("\n", "\ufffd").replace("\t", " ")
    return line if len(line) <= longest else line[: longest - 1] + "…"


def _width(text: str) -> int:
    """Columns that a terminal gives it."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def _coloured(text: str, style: Style) -> str:
    return _WORD.sub(lambda found: style(found[0], _COLOURS[found[0]]), text)
