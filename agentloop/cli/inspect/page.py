"""A store as one self-contained page. No script, nothing loaded, every text of the store escaped.

The page forbids itself, by its own policy, whatever it does not need, so that no text that a model
or a server wrote can do more than be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from typing import Final, NamedTuple

from ...messages import Usage
from ...views import AttemptView, CallView, MessageView, RunView, StoreView
from ..inert import clean
from .words import answered, asked_by, clock, counted, cut, duration, place, run_title, size, tokens

__all__ = ["page"]

_SHEET: Final = "page.css"
_LONGEST_TEXT: Final = 20_000
_FOLDED: Final = 1_500


class _Mark(NamedTuple):
    """How a state looks: its colour's class, and the sign before its word."""

    colour: str
    sign: str


_MARKS: Final = {
    "completed": _Mark("good", "✓"),
    "replied": _Mark("good", "✓"),
    "done": _Mark("good", "✓"),
    "refused": _Mark("warn", "!"),
    "incomplete": _Mark("warn", "!"),
    "limit_reached": _Mark("warn", "!"),
    "failed": _Mark("bad", "✕"),
    "cancelled": _Mark("bad", "✕"),
    "abandoned": _Mark("bad", "✕"),
    "unknown": _Mark("warn", "?"),
    "unfinished": _Mark("warn", "…"),
    "running": _Mark("busy", "●"),
    "started": _Mark("busy", "●"),
    "waiting": _Mark("busy", "●"),
    "branched": _Mark("idle", "↳"),
    "redacted": _Mark("idle", "■"),
    "skipped": _Mark("idle", "○"),
    "open": _Mark("idle", "○"),
    "recovery points": _Mark("idle", "◆"),
}
_OTHER: Final = _Mark("idle", "·")


def page(view: StoreView) -> str:
    """The whole document."""
    return "".join(_document(view))


def _document(view: StoreView) -> Iterator[str]:
    name, sheet = _text(view.store), files(__package__).joinpath(_SHEET).read_text(encoding="utf-8")
    yield (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{name} · agentloop</title>\n<style>\n{sheet}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#runs">Skip to the runs</a>\n'
    )
    yield f'<header class="top">\n<p class="kicker">agentloop store</p>\n<h1><bdi>{name}</bdi></h1>\n'
    yield from _figures(view)
    yield '</header>\n<div class="layout">\n'
    yield from _index(view)
    yield '<main id="runs">\n'
    for number, run in enumerate(view.runs):
        yield from _run(number, run)
    if not view.runs:
        yield '<p class="run empty">Nothing has run on this store yet.</p>\n'
    yield "</main>\n</div>\n"
    yield (
        "<footer>Times are UTC. A model call or a tool call took the time from its claim to its recorded end. The "
        "parts of a bar reach from one model call to the next, tools included.</footer>\n</body>\n</html>\n"
    )


def _figures(view: StoreView) -> Iterator[str]:
    usage: Usage | None = None
    for run in view.runs:
        if run.usage is not None:
            usage = run.usage if usage is None else usage + run.usage
    unfinished = sum(run.ended_at_ms is None for run in view.runs)
    unsettled = sum(run.unsettled for run in view.runs)
    waiting = sum(run.waiting for run in view.runs)
    figures = [
        counted(len(view.conversations), "conversation"),
        counted(sum(run.kind != "branch" for run in view.runs), "run"),
        counted(unfinished, "unfinished", "unfinished"),
        counted(unsettled, "to settle", "to settle"),
        counted(waiting, "to decide", "to decide"),
        counted(sum(run.model_calls for run in view.runs), "model call"),
        counted(sum(run.tool_calls for run in view.runs), "tool execution"),
        "- tokens" if usage is None else counted(usage.total_tokens, "token"),
    ]
    yield '<dl class="figures">\n'
    for figure in figures:
        value, _, name = figure.partition(" ")
        alarm = ' class="alarm"' if name in ("unfinished", "to settle", "to decide") and value != "0" else ""
        yield f"<div{alarm}><dt>{name}</dt><dd>{value}</dd></div>\n"
    yield f"<div><dt>stored</dt><dd>{size(sum(run.bytes for run in view.runs))}</dd></div>\n"
    yield "</dl>\n"


def _index(view: StoreView) -> Iterator[str]:
    yield '<nav class="index" aria-label="Conversations and runs">\n'
    at = {run.run_id: number for number, run in enumerate(view.runs)}
    for conversation in view.conversations:
        yield f"<section>\n<h2><bdi>{_text(conversation.name)}</bdi></h2>\n"
        numbers = [at[run_id] for run_id in conversation.runs if run_id in at]
        if conversation.source is not None:
            where = f'<a href="#run-{numbers.pop(0)}"><bdi>{_text(conversation.source)}</bdi></a>'
            yield f'<p class="from">branch of {where}</p>\n'
        yield from _links(view, numbers)
        yield "</section>\n"
    alone = [number for number, run in enumerate(view.runs) if run.conversation is None]
    if alone:
        yield "<section>\n<h2>Runs of their own</h2>\n"
        yield from _links(view, alone)
        yield "</section>\n"
    yield "</nav>\n"


def _links(view: StoreView, numbers: list[int]) -> Iterator[str]:
    yield "<ol>\n"
    for number in numbers:
        run = view.runs[number]
        mark = _mark(_state(run))
        said = (message.text for message in reversed(run.messages) if message.role == "user")
        what = next(filter(str.strip, said), None) or run_title(run)
        yield (
            f'<li><a href="#run-{number}"><span class="dot {mark.colour}" aria-hidden="true"></span>'
            f'<span class="what"><bdi>{_text(" ".join(what.split())[:80])}</bdi></span>'
            f'<span class="when">{escape(_state(run).replace("_", " "))}</span></a></li>\n'
        )
    yield "</ol>\n"


def _run(number: int, run: RunView) -> Iterator[str]:
    yield f'<article class="run" id="run-{number}" aria-labelledby="title-{number}">\n<header>\n'
    where = f'<span class="in">in <bdi>{_text(run.conversation)}</bdi></span>' if run.conversation is not None else ""
    points = _pill("recovery points", None) if run.recovery_points else ""
    title = f"<bdi>{_text(run_title(run))}</bdi> {where} {_pill(_state(run), run.reason)} {points}"
    yield f'<h2 id="title-{number}">{title}</h2>\n'
    yield f'<ul class="facts">\n<li><code>{_text(run.run_id)}</code></li>\n<li>{clock(run.opened_at_ms)}</li>\n'
    if run.kind != "branch":
        told = [
            duration(run.duration_ms) if run.duration_ms is not None else "",
            counted(run.model_calls, "model call"),
            counted(run.tool_calls, "tool execution"),
            f"tokens {tokens(run.usage)}" if run.usage is not None else "tokens not reported",
            f"{counted(run.facts, 'fact')}, {size(run.bytes)}",
        ]
        yield "".join(f"<li>{item}</li>\n" for item in told if item)
    if run.call is not None:
        yield f"<li>asked by <bdi>{_text(asked_by(run))}</bdi></li>\n"
    if run.continues is not None:
        yield f"<li>continues <code>{_text(run.continues)}</code></li>\n"
    if (missing := cut(run)) is not None:
        yield f"<li>asked <bdi>{_text(missing)}</bdi></li>\n"
    yield "</ul>\n"
    if run.checkpoint is not None:
        point, evidence = map(_text, place(run.checkpoint))
        yield f'<p class="point">checkpoint <strong>{point}</strong> · <bdi>{evidence}</bdi></p>\n'
    yield "</header>\n"
    yield from _bar(run)
    yield from _notes(run)
    if run.kind == "run":
        yield from _rail(run)
    yield "</article>\n"


def _bar(run: RunView) -> Iterator[str]:
    spans = [(attempt, attempt.step_ms or 0) for attempt in run.attempts]
    if len(spans) > 1 and any(span for _, span in spans):
        yield '<div class="bar" aria-hidden="true">'
        for attempt, span in spans:
            title = f"model call {attempt.number}: {duration(attempt.step_ms)} to the next step"
            yield f'<i class="{_mark(attempt.state).colour}" style="flex:{span} 1 0" title="{escape(title)}"></i>'
        yield "</div>\n"


def _notes(run: RunView) -> Iterator[str]:
    if run.kind == "redacted":
        yield f'<p class="note quiet">The texts of this run were removed by <bdi>{_text(run.author or "")}</bdi>. '
        yield "Its digests stay, so that what follows it is still checked.</p>\n"
    elif run.owner is not None and run.ended_at_ms is None:
        yield f'<p class="note">Owned by <code>{_text(run.owner)}</code> for {run.owned_for_seconds:g} s more.</p>\n'
    elif run.unsettled:
        what = counted(run.unsettled, "send or call", "sends or calls")
        yield f'<p class="note">Nobody knows what became of {what}: settle, then resume this run.</p>\n'
    elif run.waiting:
        what = counted(run.waiting, "call waits", "calls wait")
        yield f'<p class="note">{what} for a decision: decide, then resume this run.</p>\n'
    elif run.ended_at_ms is None:
        yield '<p class="note">This run goes on nowhere. It can be resumed.</p>\n'


def _rail(run: RunView) -> Iterator[str]:
    yield '<ol class="rail">\n'
    for message in run.messages:
        yield from _message(message)
    yield from _steers(run, 0)
    for at, attempt in enumerate(run.attempts, 1):
        yield from _attempt(run, attempt)
        yield from _steers(run, at)
    if run.ended_at_ms is not None:
        reason = f'<span class="small"><bdi>{_text(run.reason)}</bdi></span>' if run.reason else ""
        yield f'<li class="end">{_offset(run, run.ended_at_ms)}<div class="head"><strong>End</strong> '
        yield f"{_pill(run.state, None)} {reason}</div></li>\n"
    yield "</ol>\n"


def _steers(run: RunView, model_calls: int) -> Iterator[str]:
    for steer in run.steers_after(model_calls):
        by = f" by <bdi>{_text(steer.author)}</bdi>" if steer.author else ""
        if steer.message is None:
            head = f'<div class="head"><strong>Asked to stop</strong>{by}</div>'
            yield f'<li class="user">{_offset(run, steer.at_ms)}{head}</li>\n'
        else:
            yield from _message(steer.message, _offset(run, steer.at_ms), by)


def _message(message: MessageView, when: str = "", by: str = "") -> Iterator[str]:
    images = f", {counted(message.images, 'image')}" if message.images else ""
    label = {"system": "Instructions", "user": "User", "assistant": "Earlier reply"}[message.role]
    yield f'<li class="{message.role}">{when}<div class="head"><strong>{label}</strong>{by} '
    yield f'<span class="small">{size(message.bytes)}{images}</span></div>'
    yield from _said(message.text, folded=message.role == "system")
    yield "</li>\n"


def _attempt(run: RunView, attempt: AttemptView) -> Iterator[str]:
    told = [f"<bdi>{_text(attempt.model)}</bdi>"]
    if attempt.duration_ms is not None:
        told.append(f"took {duration(attempt.duration_ms)}")
    if attempt.usage is not None:
        told.append(f"tokens {tokens(attempt.usage)}")
    if attempt.status is not None:
        told.append(answered(attempt))
    if attempt.state in ("failed", "abandoned"):
        told.append("may have been processed" if attempt.may_have_been_processed else "was not processed")
    if attempt.author:
        told.append(f"settled by <bdi>{_text(attempt.author)}</bdi>")
    if attempt.reply is not None:
        told.append(f"{size(attempt.reply.bytes)}, finish <bdi>{_text(str(attempt.reply.finish))}</bdi>")
    told.append(f'<span class="id">attempt <code>{_text(attempt.attempt_id)}</code></span>')
    yield f'<li class="model">{_offset(run, attempt.started_at_ms)}'
    yield f'<div class="head"><strong>Model call {attempt.number}</strong> {_pill(_end(run, attempt), attempt.code)} '
    yield f'<span class="small">{" · ".join(told)}</span></div>'
    reply = attempt.reply
    if reply is not None:
        yield from _said(reply.refusal or reply.text)
        if reply.calls:
            yield '<ul class="calls">\n'
            for call in reply.calls:
                yield from _call(run, call)
            yield "</ul>\n"
    yield "</li>\n"


def _call(run: RunView, call: CallView) -> Iterator[str]:
    told = []
    if call.executions > 1:
        told.append(counted(call.executions, "execution"))
    if call.author:
        told.append(f"{'re-run allowed' if call.rerun else 'settled'} by <bdi>{_text(call.author)}</bdi>")
    if call.decided:
        told.append(f"{_text(call.decided)} by <bdi>{_text(call.decided_by or '')}</bdi>")
    told.append(f"{size(call.argument_bytes)} in, {size(call.feedback_bytes)} out")
    if call.duration_ms is not None:
        told.append(f"took {duration(call.duration_ms)}")
    why = "for its agent" if call.waits_for_child else call.code
    yield f'<li><div class="head"><code><bdi>{_text(call.tool)}</bdi></code> {_pill(_standing(run, call), why)} '
    yield f'<span class="small">{" · ".join(told)}</span></div>'
    first = " ".join(call.arguments[:200].split())
    peek = f"<code>{_text(first[:90])}{'…' if len(first) > 90 else ''}</code>"
    yield f"<details{' open' if call.feedback is None else ''}><summary>{peek}</summary>"
    yield f'<p class="label">arguments</p><pre>{_text(call.arguments[:_LONGEST_TEXT])}</pre>'
    yield _cut(call.arguments)
    if call.converted:
        yield f'<p class="label">converted</p><pre>{_text(chr(10).join(call.converted))}</pre>'
    if call.feedback is not None:
        label = "feedback" if call.feedback_status == "ok" else "feedback, an error"
        yield f'<p class="label">{label}</p><pre>{_text(call.feedback[:_LONGEST_TEXT])}</pre>{_cut(call.feedback)}'
    if call.kept_bytes is not None:
        kept = f"{size(call.kept_bytes)} ({call.kept_bytes:,} bytes)"
        yield f'<p class="label">full output kept</p><pre>{kept}</pre>'
    if call.effect_id is not None:
        yield f'<p class="label">execution</p><pre>{_text(call.effect_id)}</pre>'
    yield "</details></li>\n"


def _said(text: str, *, folded: bool = False) -> Iterator[str]:
    if not text.strip():
        return
    body = f'<p class="said">{_text(text[:_LONGEST_TEXT])}</p>{_cut(text)}'
    if folded or len(text) > _FOLDED:
        first = " ".join(text[:200].split())
        yield f"<details><summary>{_text(first[:70])}{'…' if len(first) > 70 else ''}</summary>{body}</details>"
    else:
        yield body


def _cut(text: str) -> str:
    more = len(text) - _LONGEST_TEXT
    return f'<p class="cut">{more:,} more characters are not shown</p>' if more > 0 else ""


def _offset(run: RunView, at_ms: int) -> str:
    span = at_ms - run.opened_at_ms
    return f"<time>+{duration(span)}</time>" if span >= 0 else "<time></time>"


def _end(run: RunView, attempt: AttemptView) -> str:
    """An open attempt is under way while its run has an owner."""
    if attempt.state != "open":
        return attempt.state
    return "running" if run.owner is not None else "unknown"


def _standing(run: RunView, call: CallView) -> str:
    """A call that was started is at work only while its run has an owner."""
    return "unknown" if call.state == "started" and run.owner is None else call.state


def _state(run: RunView) -> str:
    return "redacted" if run.kind == "redacted" else run.state


def _pill(state: str, why: str | None) -> str:
    mark = _mark(state)
    told = f": {_text(why)}" if why and why not in ("stop", "tool_calls") else ""
    word = escape(state.replace("_", " "))
    return f'<span class="pill {mark.colour}" data-mark="{mark.sign}">{word}{told}</span>'


def _mark(state: str) -> _Mark:
    return _MARKS.get(state, _OTHER)


def _text(text: str) -> str:
    return escape(clean(text))
