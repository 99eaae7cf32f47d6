"""The transports of the package against their contract."""

from __future__ import annotations

import datetime as dt
from typing import Any, Literal

import msgspec

from agentloop.messages import ModelReply
from agentloop.runner import JsonCall, NativeCall, PlainText, Session, SessionCall, SessionReply, Structured, Transport
from agentloop.testing import call, reply
from agentloop.tools import SelectionContext, selection, tool
from agentloop.wire import PRESETS
from tests.contracts.transport_contract import TransportContract


class Even(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        if self.n % 2:
            raise ValueError(f"expected an even number, got {self.n} xyzzy")


class Answer(msgspec.Struct):
    n: int
    kind: Literal["high", "low"] = "low"
    labels: dict[str, int] = {}
    when: dt.datetime | None = None
    even: Even | None = None


def few(n: int, labels: dict[str, int] = {}) -> str | None:  # noqa: B006
    return "xyzzy" if n > 99 else None


@selection(refine=(few,))
def pick(n: int, labels: dict[str, int] = {}, *, where: SelectionContext) -> tuple[int, str]:  # noqa: B006
    """Pick a number."""
    return n, where.stage_id


@selection
def other(even: Even) -> Even:
    """Another choice."""
    return even


@tool
def act(n: int) -> None:
    """Does something."""
    raise AssertionError("nothing runs")


ONE = reply(calls=[call("pick", n=3)])
TWO = reply(calls=[call("pick", n=1), call("other", even={"n": 2})])


class TestPlainText(TransportContract):
    def transport(self) -> Transport[Any]:
        return PlainText()

    def accepted(self) -> list[tuple[ModelReply, Any]]:
        return [(reply(text="Hello"), "Hello"), (reply(text=""), ""), (reply(text="a\r\n 数🙂"), "a\r\n 数🙂")]

    def refused(self) -> list[tuple[ModelReply, str]]:
        return [(ONE, "unexpected_call"), (reply(text="x", calls=[call("pick", n=1)]), "unexpected_call")]


class TestNativeCall(TransportContract):
    def transport(self) -> Transport[Any]:
        return NativeCall("choice", [pick, other])

    def accepted(self) -> list[tuple[ModelReply, Any]]:
        labelled = reply(calls=[call("pick", n=4, labels={"数": 1})])
        return [(ONE, (3, "stage")), (labelled, (4, "stage"))]

    def refused(self) -> list[tuple[ModelReply, str]]:
        return [
            (reply(text=""), "no_call"),
            (reply(text="pick 3"), "unexpected_text"),
            (reply(text=" ", calls=[call("pick", n=3)]), "unexpected_text"),
            (TWO, "several_calls"),
            (reply(calls=[call("act", n=3)]), "unknown_tool"),
            (reply(calls=[call("pick", arguments_text='{"n": 3')]), "invalid_json"),
            (reply(calls=[call("pick", arguments_text="[3]")]), "not_an_object"),
            (reply(calls=[call("pick", n="3")]), "schema_mismatch"),
            (reply(calls=[call("pick", arguments_text="")]), "schema_mismatch"),
            (reply(calls=[call("other", even={"n": 3})]), "schema_mismatch"),
            (reply(calls=[call("pick", n=100)]), "refined"),
        ]


class TestJsonCall(TransportContract):
    def transport(self) -> Transport[Any]:
        return JsonCall("choice", [pick, other])

    def accepted(self) -> list[tuple[ModelReply, Any]]:
        texts = [
            '{"tool": "pick", "input": {"n": 3}}',
            'So:\n```json\n{"tool":"pick","input":{"n":3.0}}\n```\nDone {}.',
        ]
        return [(reply(text=text), (3, "stage")) for text in texts]

    def refused(self) -> list[tuple[ModelReply, str]]:
        texts = {
            "": "no_json",
            "pick 3": "no_json",
            "}{": "no_json",
            '{"tool": "pick", "input": {"n": 3}': "invalid_json",
            '{"tool": "pick", "input": {"n": 3, "n": 4}}': "invalid_json",
            '{"tool": "pick", "input": {"n": 3}} or {"tool": "pick", "input": {"n": 4}}': "invalid_json",
            '[{"tool": "pick", "input": {"n": 3}}]': "not_an_object",
            '{"tool": "pick"}': "schema_mismatch",
            '{"tool": "pick", "input": {"n": 3}, "why": 1}': "schema_mismatch",
            '{"tool": 1, "input": {"n": 3}}': "schema_mismatch",
            '{"tool": "act", "input": {"n": 3}}': "unknown_tool",
            '{"tool": "pick", "input": "{\\"n\\": 3}"}': "not_an_object",
            '{"tool": "pick", "input": {"n": "3"}}': "schema_mismatch",
            '{"tool": "pick", "input": {"n": 100}}': "refined",
        }
        return [(ONE, "unexpected_call"), *((reply(text=text), code) for text, code in texts.items())]


class TestSession(TransportContract):
    def transport(self) -> Transport[Any]:
        return Session("talk", tools=[pick, other, act])

    def accepted(self) -> list[tuple[ModelReply, Any]]:
        first = SessionCall(id="call_1", name="pick", arguments_text='{"n":1}', value=(1, "stage"))
        second = SessionCall(id="call_2", name="act", arguments_text='{"n":2}', value={"n": 2})
        both = reply(text="Both.", calls=[call("pick", n=1), call("act", n=2)])
        return [
            (reply(text="Hello"), SessionReply(text="Hello", calls=())),
            (reply(text=""), SessionReply(text="", calls=())),
            (both, SessionReply(text="Both.", calls=(first, second))),
        ]

    def refused(self) -> list[tuple[ModelReply, str]]:
        return [
            (reply(text="x", calls=[call("pick", n=1), call("xyzzy", n=2)]), "unknown_tool"),
            (reply(text="x", calls=[call("pick", n=1), call("act", n="2")]), "schema_mismatch"),
            (reply(calls=[call("pick", n=1), call("pick", arguments_text="{")]), "invalid_json"),
            (reply(calls=[call("pick", n=100)]), "refined"),
        ]


TEXTS = {
    '{"n": 3}': Answer(3),
    ' {"n": 3.0, "kind": "high", "labels": {"a.b": 1}, "when": null}\n': Answer(3, "high", {"a.b": 1}),
    '{"n": 1, "even": {"n": 2}}': Answer(1, even=Even(2)),
}
FAULTS = {
    '{"n": 3': "invalid_json",
    '{"n": 3, "n": 3}': "invalid_json",
    "{'n': 3}": "invalid_json",
    '{"n": "3"}': "schema_mismatch",
    '{"n": 3, "more": 1}': "schema_mismatch",
    '{"n": 3, "kind": "middle"}': "schema_mismatch",
    '{"n": 3, "when": "xyzzy"}': "schema_mismatch",
    '{"n": 3, "even": {"n": 3}}': "schema_mismatch",
    "{}": "schema_mismatch",
}


class TestStructuredBySchema(TransportContract):
    def transport(self) -> Transport[Any]:
        return Structured(Answer)

    def accepted(self) -> list[tuple[ModelReply, Any]]:
        return [(reply(text=text), value) for text, value in TEXTS.items()]

    def refused(self) -> list[tuple[ModelReply, str]]:
        others = {"": "no_json", " ": "invalid_json", "[]": "not_an_object", "null": "not_an_object"}
        others['```\n{"n": 3}\n```'] = "invalid_json"
        faults = [(reply(text=text), code) for text, code in (FAULTS | others).items()]
        return [*faults, (ONE, "unexpected_call")]


class TestStructuredByText(TransportContract):
    dialect = PRESETS["zai"]

    def transport(self) -> Transport[Any]:
        return Structured(Answer)

    def accepted(self) -> list[tuple[ModelReply, Any]]:
        fenced = [(reply(text=f"So:\n~~~\n{text}\n~~~"), value) for text, value in TEXTS.items()]
        return [*fenced, *((reply(text=f"It is {text}."), value) for text, value in TEXTS.items())]

    def refused(self) -> list[tuple[ModelReply, str]]:
        others = {"": "no_json", "null": "no_json", "[]": "not_an_object"}
        faults = [(reply(text=text), code) for text, code in (FAULTS | others).items() if text != '{"n": 3']
        return [*faults, (ONE, "unexpected_call")]


class TestStructuredByCall(TransportContract):
    dialect = PRESETS["deepseek"]

    def transport(self) -> Transport[Any]:
        return Structured(Answer)

    def accepted(self) -> list[tuple[ModelReply, Any]]:
        return [(reply(calls=[call("Answer", arguments_text=text)]), value) for text, value in TEXTS.items()]

    def refused(self) -> list[tuple[ModelReply, str]]:
        others = {"": "invalid_json", "null": "not_an_object", "[]": "not_an_object"}
        faults = [
            (reply(calls=[call("Answer", arguments_text=text)]), code) for text, code in (FAULTS | others).items()
        ]
        twice = reply(calls=[call("Answer", n=3), call("Answer", n=3)])
        return [*faults, (ONE, "unknown_tool"), (twice, "several_calls"), (reply(text='{"n": 3}'), "unexpected_text")]
