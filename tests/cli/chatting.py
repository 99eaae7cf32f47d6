"""What the tests of a chat share: agents, and streams of the model they talk to."""

from __future__ import annotations

from typing import Any

import msgspec

__all__ = ["AGENTS", "asks", "says"]

AGENTS = '''
import agentloop as al

@al.tool(idempotent=True)
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b

@al.tool(approval="required")
async def sign(text: str) -> str:
    """Sign a text."""
    return f"signed {text}"

@al.tool
async def fail(why: str) -> str:
    """Fail."""
    raise al.ToolFailed(why)

@al.external
def measure(what: str) -> None:
    """Measure something."""

async def find_payment(to: str, ctx: al.ToolContext[None]) -> str:
    raise RuntimeError("the bank is closed")

@al.tool(recovery=find_payment)
async def pay(to: str) -> str:
    """Pay somebody."""
    return f"paid {to}"

payer = al.Agent(name="payer", tools=[pay])
plain = al.Agent(name="plain", instructions="Help.")
helper = al.Agent(name="helper", tools=[add, sign, fail, measure], limits=al.LoopLimits(max_tool_calls=4))
chief = al.Agent(
    name="chief", tools=[al.delegate(helper, name="ask_helper", description="Ask.", tools=["add", "sign", "fail"])]
)
typed = al.Agent(name="typed", output=al.Structured(list[int], name="numbers", route="call"))
'''


def says(text: str, *, finish: str = "stop", pieces: int = 1) -> bytes:
    """A stream that answers with a text, in as many deltas."""
    size = -(-len(text) // pieces) or 1
    return _stream([{"content": text[at : at + size]} for at in range(0, max(len(text), 1), size)], finish)


def asks(*calls: tuple[str, dict[str, Any] | str], text: str = "") -> bytes:
    """A stream that asks for calls; arguments that are text are sent as they are."""
    deltas: list[dict[str, Any]] = [{"content": text}] if text else []
    for index, (tool, arguments) in enumerate(calls):
        raw = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        function = {"name": tool, "arguments": raw}
        deltas.append(
            {"tool_calls": [{"index": index, "id": f"call_{index}", "type": "function", "function": function}]}
        )
    return _stream(deltas, "tool_calls")


def _stream(deltas: list[dict[str, Any]], finish: str) -> bytes:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    choices += [[{"index": 0, "delta": {}, "finish_reason": finish}]]
    chunks: list[dict[str, Any]] = [{"id": "r", "model": "m", "choices": choice} for choice in choices]
    chunks.append({"id": "r", "model": "m", "choices": [], "usage": usage})
    return b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
