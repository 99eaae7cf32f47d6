"""What `test_web_browser` serves: an assistant that may send mail when a person approves."""

from __future__ import annotations

import os
from pathlib import Path

import agentloop as al

__all__ = ["OUTBOX", "assistant", "send_mail"]

OUTBOX = "AGENTLOOP_TEST_OUTBOX"
"""Environment variable with the file that mail is written to."""


@al.tool(approval="required", recovery="settle")
def send_mail(to: str, body: str) -> str:
    """Send a mail."""
    with Path(os.environ[OUTBOX]).open("a", encoding="utf-8") as outbox:
        outbox.write(f"{to}: {body}\n")
    return f"sent to {to}"


assistant = al.Agent(name="assistant", tools=[send_mail], policy_version="v1")
