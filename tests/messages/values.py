"""Message values for tests: examples, and strategies that make any admitted value."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from agentloop.admission import canonical_text
from agentloop.messages import (
    FunctionSpec,
    ImagePart,
    JsonText,
    ModelExchange,
    ModelOptions,
    ModelReply,
    ModelRequest,
    Native,
    ResponseFormat,
    SystemMessage,
    Termination,
    Text,
    TextContent,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolFeedback,
    ToolResult,
    Usage,
    UserMessage,
)

__all__ = ["call", "exchange", "exchanges", "reply", "replies", "request", "requests", "results"]


def call(id: str = "c1", name: str = "read_note", arguments: str = "{}") -> ToolCall:
    return ToolCall(id=id, name=name, arguments=JsonText(text=arguments))


def reply(*output: Text | ToolCall, word: str = "stop", native: dict[str, Any] | None = None) -> ModelReply:
    return ModelReply(
        id="chatcmpl-1",
        model="model-1",
        output=output or (Text(text="hello"),),
        termination=Termination.of(word),
        usage=Usage(input_tokens=1, output_tokens=2, total_tokens=3),
        native=Native(data=canonical_text(native or {})),
    )


def exchange(*ids: str) -> ModelExchange:
    return ModelExchange(
        reply=reply(*map(call, ids), word="tool_calls"),
        feedback=tuple(ToolFeedback.of(id, ToolResult.ok(f"result of {id}")) for id in ids),
    )


def request(**fields: Any) -> ModelRequest:
    return ModelRequest(**{"messages": (UserMessage(content="hi"),), **fields})


texts = st.text(max_size=20)
names = st.text("abcXYZ019_-", min_size=1, max_size=12)
counts = st.integers(0, 2**53 - 1)
objects = st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts, max_size=3).map(canonical_text)
contents = st.lists(texts.map(lambda text: TextContent(text=text)), max_size=3).map(tuple)
results = st.builds(ToolResult, status=st.sampled_from(["ok", "error"]), content=contents)
usages = st.builds(
    Usage,
    input_tokens=counts,
    output_tokens=counts,
    total_tokens=counts,
    cached_input_tokens=st.none() | counts,
    reasoning_tokens=st.none() | counts,
)
calls = st.builds(
    ToolCall,
    id=st.text(min_size=1, max_size=8),
    name=st.text(min_size=1, max_size=8),
    arguments=st.builds(JsonText, text=texts),
)
outputs = st.lists(
    st.builds(Text, text=texts) | calls,
    max_size=4,
    unique_by=lambda item: item.id if isinstance(item, ToolCall) else id(item),
).map(tuple)
replies = st.builds(
    ModelReply,
    id=texts,
    model=texts,
    output=outputs,
    termination=st.none().map(Termination.of) | texts.map(Termination.of) | st.just("stop").map(Termination.of),
    usage=st.none() | usages,
    native=st.builds(Native, data=objects),
)


def _complete(made: ModelReply, answers: list[ToolResult]) -> ModelExchange:
    ids = [item.id for item in made.calls]
    return ModelExchange(
        reply=made, feedback=tuple(ToolFeedback.of(id, answers[at % len(answers)]) for at, id in enumerate(ids))
    )


exchanges = st.builds(_complete, replies, st.lists(results, min_size=1, max_size=2))
parts = st.builds(TextPart, text=texts) | st.builds(
    ImagePart, url=texts.map("https://example.org/".__add__), detail=st.sampled_from([None, "auto", "low", "high"])
)
messages = (
    st.builds(SystemMessage, content=texts)
    | st.builds(UserMessage, content=texts | st.lists(parts, min_size=1, max_size=3).map(tuple))
    | exchanges
)
options = st.builds(
    ModelOptions,
    temperature=st.none() | st.floats(0, 2) | st.integers(0, 2),
    top_p=st.none() | st.floats(0, 1),
    max_output_tokens=st.none() | st.integers(1, 10**6),
    stop=st.lists(st.text(min_size=1, max_size=4), max_size=3).map(tuple),
    seed=st.none() | st.integers(),
    tool_choice=st.sampled_from([None, "auto", "none", "required"]),
    parallel_tool_calls=st.none() | st.booleans(),
    response_format=st.none()
    | st.just(ResponseFormat(kind="json"))
    | st.builds(ResponseFormat, kind=st.just("json_schema"), schema=objects),
    reasoning_effort=st.none() | texts,
    include_usage=st.booleans(),
    extra=objects,
)
specs = st.builds(FunctionSpec, name=names, description=texts, parameters=objects, strict=st.none() | st.booleans())


def _forced(made: ModelRequest) -> ModelRequest:
    """The same request with its first tool forced."""
    chosen = ToolChoice(name=made.tools[0].name)
    fields = {name: getattr(made.options, name) for name in made.options.__struct_fields__}
    forced = ModelOptions(**{**fields, "tool_choice": chosen})
    return ModelRequest(messages=made.messages, options=forced, tools=made.tools, exchanges=made.exchanges)


_requests = st.builds(
    ModelRequest,
    messages=st.lists(messages, min_size=1, max_size=3).map(tuple),
    options=options,
    tools=st.lists(specs, max_size=3, unique_by=lambda spec: spec.name).map(tuple),
    exchanges=st.lists(exchanges, max_size=2).map(tuple),
)
requests = _requests | _requests.filter(lambda made: made.tools).map(_forced)
