"""What a chat transport asks for: the newest message of its chat, as words for a turn or as answers to calls that wait.

Earlier messages are not read: what was said before is the server's own. Source: the ``ai`` package, version 7,
``ui/http-chat-transport.ts`` and ``ui/ui-messages.ts``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ...admission import parse, to_type
from ...decisions import Answer, Approve, CallRef, Decision, Deny, read_decisions
from ...errors import AdmissionError, InputError
from ...messages import ImagePart, TextPart, ToolResult
from ...windows import RunInput
from ..serving.problem import Problem
from ..serving.turn import TurnView, WaitingOf
from .ids import below_id_of, call_id_of, turn_id_of

__all__ = ["Answers", "Asked", "Words", "asked_of", "decisions_of", "newest_exchange"]

_GIVEN: Final = ("output-available", "output-error")


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    role: str
    parts: list[dict[str, Any]]


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    messages: list[Any]
    trigger: str = "submit-message"
    agent: str | None = None


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """What a user says; ``turn`` is the id of the message."""

    turn: str
    input: RunInput


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What a user, or the user's client, answers to calls that a turn waits for.

    Attributes:
        approvals: by their refs, whether a call may run, and the reason.
        results: by the calls' ids, what the client made of those that are its own to run.
    """

    turn: str
    approvals: Mapping[str, tuple[bool, str]]
    results: Mapping[str, ToolResult]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request. ``agent`` is whom it names, None where it names none."""

    conversation: str
    agent: str | None
    said: Words | Answers


def asked_of(body: bytes, *, max_bytes: int) -> Asked:
    """Read a request's body.

    Raises:
        Problem: 400, it is of another form, or asks for what is not done here: a message that was answered is not
            answered anew.
    """
    try:
        read = to_type(parse(body, max_bytes=max_bytes), _Body)
        if not read.messages:
            raise AdmissionError("$.messages", "expected at least one message")
        last = to_type(read.messages[-1], _Message, path="$.messages[-1]")
    except AdmissionError as error:
        raise Problem(400, "bad_request", str(error), facts={"path": error.path}) from None
    if read.trigger != "submit-message":
        raise Problem(400, "unsupported", "trigger: expected submit-message; a turn is not answered a second time")
    return Asked(conversation=read.id, agent=read.agent, said=_said(last))


def _said(message: _Message) -> Words | Answers:
    if message.role == "user":
        return Words(turn=message.id, input=_input(message.parts))
    if message.role != "assistant":
        raise _bad("role", "expected user or assistant")
    turn = turn_id_of(message.id)
    if turn is None:
        raise _bad("id", "expected the id of a message that was streamed from here")
    approvals: dict[str, tuple[bool, str]] = {}
    results: dict[str, ToolResult] = {}
    for at, part in enumerate(message.parts):
        kind, state = part.get("type"), part.get("state")
        if not isinstance(kind, str) or not (kind == "dynamic-tool" or kind.startswith("tool-")):
            continue
        if state == "approval-responded":
            ref, approved, reason = _approval(at, part.get("approval"))
            approvals[ref] = approved, reason
        elif state in _GIVEN and part.get("providerExecuted") is not True:
            call_id = part.get("toolCallId")
            if not isinstance(call_id, str):
                raise _bad(f"parts[{at}].toolCallId", "expected text")
            results[call_id] = _result(part)
    if not approvals and not results:
        raise _bad("parts", "expected an answer to a call that waits, got none; reconnect to the turn's stream")
    return Answers(turn=turn, approvals=approvals, results=results)


def _approval(at: int, approval: Any) -> tuple[str, bool, str]:
    if isinstance(approval, dict):
        ref, approved, reason = approval.get("id"), approval.get("approved"), approval.get("reason")
        if isinstance(ref, str) and isinstance(approved, bool) and (reason is None or isinstance(reason, str)):
            return ref, approved, reason or ""
    raise _bad(f"parts[{at}].approval", "expected an id, approved true or false, and no reason or text")


def _result(part: Mapping[str, Any]) -> ToolResult:
    if part["state"] == "output-error":
        text = part.get("errorText")
        return ToolResult.error(text if isinstance(text, str) else "")
    output = part.get("output")
    return ToolResult.ok(output if isinstance(output, str) else msgspec.json.encode(output).decode())


def _input(parts: Sequence[Mapping[str, Any]]) -> RunInput:
    read: list[TextPart | ImagePart] = []
    for at, part in enumerate(parts):
        text, url, media = part.get("text"), part.get("url"), part.get("mediaType")
        if part.get("type") == "text" and isinstance(text, str):
            if text:
                read.append(TextPart(text=text))
        elif part.get("type") == "file" and isinstance(url, str) and isinstance(media, str):
            if media.partition("/")[0] != "image":
                raise _bad(f"parts[{at}].mediaType", "expected an image")
            try:
                read.append(ImagePart(url=url))
            except InputError:
                raise _bad(f"parts[{at}].url", "expected an https: or data:image/ URL") from None
        else:
            raise _bad(f"parts[{at}]", "expected text, or a file that is an image")
    if not any(isinstance(part, ImagePart) or part.text.strip() for part in read):
        raise _bad("parts", "expected text that is not blank, or an image")
    only = read[0]
    return only.text if len(read) == 1 and isinstance(only, TextPart) else tuple(read)


def _bad(where: str, message: str) -> Problem:
    return Problem(400, "bad_request", f"$.messages[-1].{where}: {message}")


def decisions_of(answers: Answers, turn: TurnView, run: str, *, author: str) -> dict[str, Decision]:
    """Answers as decisions about calls of a turn and of the runs below it.

    Args:
        run: the turn's run. author: who decides.

    Raises:
        InputError: an approval names a call of another run, or of none; a result or a reason is too long.
    """
    decisions: dict[str, Decision] = {
        ref: Approve(author=author) if approved else Deny(author=author, reason=reason)
        for ref, (approved, reason) in answers.approvals.items()
    }
    read_decisions(decisions, run, below=True)
    for waiting in turn.waiting:
        result = answers.results.get(_call_id(turn, waiting))
        if result is not None and waiting.kind == "external":
            decisions[waiting.ref] = Answer(author=author, result=result)
    return decisions


def _call_id(turn: TurnView, waiting: WaitingOf) -> str:
    if waiting.below:
        return below_id_of(turn.id, waiting.ref)
    return call_id_of(turn.id, waiting.exchange, waiting.position)


def newest_exchange(answers: Answers, run: str) -> int:
    """The newest exchange of a turn whose calls, or calls below those, are answered.

    Raises:
        Problem: 400, a result is of a call of another turn.
    """
    places = [str(CallRef.read(ref)).removeprefix(f"{run}/") for ref in answers.approvals]
    for call_id in answers.results:
        head, _, place = call_id.partition(".")
        if head != answers.turn:
            raise _bad("parts", "expected results of calls of the message's own turn")
        places.append(place)
    exchanges = [place.partition(".")[0] for place in places]
    if not all(text.isascii() and text.isdigit() and len(text) < 10 for text in exchanges):
        raise _bad("parts", "expected results of calls of the message's own turn")
    return max(map(int, exchanges))
