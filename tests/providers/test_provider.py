"""The shape of the provider contract: messages and options in, pieces of one answer out, nothing judged."""

from __future__ import annotations

import inspect
import json

from agentloop.messages import FunctionSpec, ModelOptions, ModelRequest, ToolChoice, UserMessage
from agentloop.providers import Provider
from agentloop.testing import ScriptedProvider, call, reply
from agentloop.wire.deltas import CallDelta, TextDelta
from agentloop.wire.dialect import Dialect
from agentloop.wire.encode import encode_request

REQUEST = ModelRequest(messages=(UserMessage(content="hello"),))


async def test_a_stream_is_asked_for_messages_and_options_and_gives_pieces_as_they_come() -> None:
    """Cancelling is the task's own affair, so a request holds no signal (R256)."""
    assert list(inspect.signature(Provider.stream).parameters) == [
        "self", "request", "attempt_id", "max_reply_bytes",
    ]  # fmt: skip
    assert ModelRequest.__struct_fields__ == ("messages", "options", "tools", "exchanges")
    provider = ScriptedProvider([reply("hello", calls=[call("f", n=1)])], deltas=2)
    async with provider.stream(REQUEST, attempt_id="a1") as stream:
        pieces = [piece async for piece in stream]
        whole = await stream.reply()
    assert "".join(piece.text for piece in pieces if isinstance(piece, TextDelta)) == whole.text == "hello"
    assert "".join(piece.arguments for piece in pieces if isinstance(piece, CallDelta)) == '{"n":1}'


def test_options_are_neutral_and_the_adapter_gives_them_their_names_on_the_wire() -> None:
    """(R257, R259)"""
    assert set(ModelOptions.__struct_fields__) >= {
        "response_format", "temperature", "tool_choice", "include_usage", "max_output_tokens",
    }  # fmt: skip
    plain = json.loads(encode_request(REQUEST, model="m", dialect=Dialect(name="d")).body)
    assert plain.keys() == {"model", "stream", "stream_options", "messages"}  # the rest is left to the server
    options = ModelOptions(temperature=0.5, max_output_tokens=7, stop=("x",), tool_choice=ToolChoice(name="f"))
    request = ModelRequest(messages=REQUEST.messages, options=options, tools=(FunctionSpec(name="f"),))
    for field in ("max_completion_tokens", "max_tokens"):
        sent = json.loads(encode_request(request, model="m", dialect=Dialect(name="d", max_tokens_field=field)).body)
        assert (sent["temperature"], sent[field], sent["stop"]) == (0.5, 7, ["x"])
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "f"}}
        assert "max_output_tokens" not in sent


async def test_a_provider_passes_calls_on_as_they_are_and_judges_none() -> None:
    """A name that is in no catalogue, arguments that no schema takes: that is for others to refuse (R259)."""
    arguments = '{"sure": "not an object that anybody declared"}'
    provider = ScriptedProvider([reply(calls=[call("delete_everything", arguments_text=arguments)])])
    async with provider.stream(REQUEST, attempt_id="a1") as stream:
        (got,) = (await stream.reply()).calls
    assert (got.name, got.arguments.text) == ("delete_everything", arguments)
