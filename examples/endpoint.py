"""Where the examples send: the script in the example, or the endpoint that the environment names.

OPENAI_BASE_URL=http://127.0.0.1:8080/v1 AGENTLOOP_MODEL=qwen3 python examples/01_chat.py
"""

import os
from typing import Any

import agentloop as al
from agentloop.testing import ScriptedProvider


def provider(script: list[Any]) -> al.Provider:
    """A scripted provider; with OPENAI_BASE_URL set, the live one."""
    base_url = os.environ.get("OPENAI_BASE_URL")
    if base_url is None:
        return ScriptedProvider(script, deltas=6)
    return al.ChatCompletions(
        base_url,
        model=os.environ.get("AGENTLOOP_MODEL", "gpt-4o-mini"),
        api_key=os.environ.get("OPENAI_API_KEY"),
        dialect=os.environ.get("AGENTLOOP_DIALECT"),
    )
