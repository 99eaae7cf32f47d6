"""One stream for each allowance: refused by the strict rules, admitted with the allowance alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.wire.streams import (
    CALLED,
    COUNTED,
    DONE,
    FIRST,
    OSLO,
    ROME,
    STOP,
    USAGE,
    call,
    calls,
    choice,
    chunk,
    event,
    text,
)

__all__ = ["QUIRKS", "Quirk"]


class Quirk(NamedTuple):
    """A stream, the strict rules' code for it, and what of the reply the allowance decides."""

    events: tuple[bytes, ...]
    code: str
    text: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    more: tuple[str, ...] = ()  # further allowances that the stream needs


END = (CALLED, COUNTED, DONE)
A = ("call_a", "f", OSLO)
B = ("call_b", "f", ROME)


def whole(index: object, id: object, arguments: object = OSLO, **fields: Any) -> bytes:
    return calls(call(index, id=id, name="f", arguments=arguments, **fields))


QUIRKS: dict[str, Quirk] = {
    "identity_late": Quirk(
        (chunk(id="", model="", prompt_filter_results=[]), FIRST, text("Hi"), STOP, COUNTED, DONE),
        "identity_changed",
        "Hi",
    ),
    "identity_empty_later": Quirk(
        (FIRST, chunk(choice({"content": "Hi"}), id="", model=...), STOP, COUNTED, DONE), "identity_changed", "Hi"
    ),
    "id_changes": Quirk(
        (FIRST, chunk(choice({"content": "Hi"}), id="x1"), chunk(choice({}, finish="stop"), id="x2"), COUNTED, DONE),
        "identity_changed",
        "Hi",
    ),
    "model_changes": Quirk(
        (FIRST, chunk(choice({"content": "Hi"}), model="other"), STOP, COUNTED, DONE), "identity_changed", "Hi"
    ),
    "delta_absent": Quirk(
        (FIRST, text("Hi"), chunk(choice(content_filter_results={})), STOP, chunk(choice(None)), COUNTED, DONE),
        "bad_shape",
        "Hi",
    ),
    "content_parts": Quirk(
        (
            FIRST,
            chunk(choice({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]}]})),
            chunk(choice({"content": [{"type": "text", "text": "H"}, {"type": "reference", "reference_ids": [1]}]})),
            text("i"),
            STOP,
            COUNTED,
            DONE,
        ),
        "bad_shape",
        "Hi",
    ),
    "index_absent": Quirk(
        (
            FIRST,
            whole(..., "call_a", ""),
            calls(call(arguments=OSLO)),
            whole(None, "call_b", ""),
            calls(call(arguments=ROME)),
            *END,
        ),
        "missing_index",
        calls=(A, B),
    ),
    "index_base": Quirk(
        (FIRST, whole(1, "call_a", OSLO[:4]), whole(2, "call_b", ROME), calls(call(1, arguments=OSLO[4:])), *END),
        "index_gap",
        calls=(A, B),
    ),
    "index_shared": Quirk(
        (FIRST, whole(0, "call_a"), whole(0, "call_b", ROME[:3]), calls(call(0, arguments=ROME[3:])), *END),
        "index_conflict",
        calls=(A, B),
    ),
    "call_id_absent": Quirk(
        (FIRST, whole(0, ...), whole(1, "", ROME), *END),
        "missing_call_id",
        calls=(("call_0", "f", OSLO), ("call_1", "f", ROME)),
    ),
    "call_id_duplicated": Quirk(
        (FIRST, whole(0, "call_a"), whole(1, "call_a", ROME), *END),
        "duplicate_call_id",
        calls=(A, ("call_a#1", "f", ROME)),
    ),
    "call_repeated": Quirk(
        (FIRST, whole(0, "call_a"), whole(1, "call_a", OSLO[:5]), calls(call(1, arguments=OSLO[5:])), *END),
        "duplicate_call_id",
        calls=(A,),
    ),
    "name_pieces": Quirk(
        (
            FIRST,
            calls(call(0, id="call_a", name="get_")),
            calls(call(0, name="weather")),
            calls(call(0, arguments=OSLO)),
            *END,
        ),
        "name_conflict",
        calls=(("call_a", "get_weather", OSLO),),
    ),
    "arguments_object": Quirk(
        (FIRST, whole(0, "call_a", {"n": 2512292042121000777, "city": "Oslo"}), *END),
        "bad_shape",
        calls=(("call_a", "f", '{"city":"Oslo","n":2512292042121000777}'),),
    ),
    "surrogates_split": Quirk(
        (
            FIRST,
            b'data: {"id":"chatcmpl-1","model":"model-1","choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n',
            b'data: {"id":"chatcmpl-1","model":"model-1","choices":[{"index":0,"delta":{"content":"\\ude00b"}}]}\n\n',
            STOP,
            COUNTED,
            DONE,
        ),
        "invalid_json",
        "a😀b",
    ),
    "finish_empty": Quirk(
        (chunk(choice({"role": "assistant"}, finish="")), text("Hi"), STOP, COUNTED, DONE), "bad_shape", "Hi"
    ),
    "finish_repeated": Quirk((FIRST, text("Hi"), STOP, STOP, COUNTED, DONE), "duplicate_terminal", "Hi"),
    "finish_first": Quirk((FIRST, whole(0, "call_a"), CALLED, STOP, COUNTED, DONE), "duplicate_terminal", calls=(A,)),
    "finish_inferred": Quirk((FIRST, whole(0, "call_a"), COUNTED, DONE), "missing_terminal", calls=(A,)),
    "delta_after_finish": Quirk((FIRST, text("H"), STOP, text("i"), COUNTED, DONE), "after_terminal", "Hi"),
    "calls_after_finish": Quirk(
        (FIRST, whole(0, "call_a"), CALLED, whole(1, "call_b", ROME), COUNTED, DONE), "after_terminal", calls=(A, B)
    ),
    "done_unended": Quirk((FIRST, text("Hi"), STOP, COUNTED, b"data: [DONE]\n"), "missing_done", "Hi"),
    "done_absent": Quirk((FIRST, text("Hi"), STOP, COUNTED), "missing_done", "Hi"),
    "usage_absent": Quirk((FIRST, text("Hi"), STOP, DONE), "missing_usage", "Hi"),
    "usage_running": Quirk(
        (
            FIRST,
            chunk(choice({"content": "Hi"}), usage={"prompt_tokens": 11}),
            chunk(choice({}, finish="stop"), usage={**USAGE, "completion_tokens": 6}),
            COUNTED,
            DONE,
        ),
        "bad_usage",
        "Hi",
    ),
    "usage_partial": Quirk(
        (FIRST, text("Hi"), STOP, chunk(usage={"prompt_tokens": 11, "total_tokens": 18}), DONE), "bad_usage", "Hi"
    ),
    "usage_in_x_groq": Quirk(
        (FIRST, text("Hi"), chunk(choice({}, finish="stop"), x_groq={"usage": USAGE}), DONE), "missing_usage", "Hi"
    ),
    "usage_in_choice": Quirk(
        (FIRST, text("Hi"), chunk(choice({}, finish="stop", usage=USAGE)), DONE), "missing_usage", "Hi"
    ),
    "choices_absent": Quirk(
        (FIRST, text("Hi"), STOP, event({"id": "chatcmpl-1", "model": "model-1", "usage": USAGE}), DONE),
        "bad_shape",
        "Hi",
    ),
}
"""``arguments_placeholder`` is not among them: without it the same stream is admitted, with other arguments."""
