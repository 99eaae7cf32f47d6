"""A process that is killed in a model call of its own: ``python -m tests.system.runner_child JOB URL STORE [SCHEMA]``.

``call`` makes one call of a runner; ``context`` starts run ``r2`` on a conversation that needs a
summary first. Both say ``shown`` when a part of the answer has come.
"""

from __future__ import annotations

import asyncio
import sys

import agentloop as al
from agentloop.persistence.postgres import PostgresBackend

__all__ = ["BRIEF", "medium"]

BRIEF = al.Agent(
    name="brief",
    context=al.ContextPlan(max_chars=300, strategy="summarise", summary=al.Summary(max_chars=60)),
)


def medium(store: str, schema: str | None = None) -> str | PostgresBackend:
    """A file, or a schema of a database."""
    return store if schema is None else PostgresBackend(store, schema=schema)


class Said:
    """Says so when something was shown."""

    async def emit(self, event: al.OutputEvent) -> None:
        if isinstance(event, al.TextPreview):
            print("shown", flush=True)

    async def observe(self, event: al.Event) -> None:
        if isinstance(event, al.TextPreview):
            print("shown", flush=True)


async def main(job: str, url: str, *store: str) -> None:
    """Make the call, which its server does not end."""
    provider = al.ChatCompletions(url, model="m", dialect="openai")
    said = Said()
    if job == "call":
        async with al.Runtime(provider, store=medium(*store), lease_seconds=0.5) as runtime:
            await runtime.runner(sink=said).invoke("go", stage_id="triage")
    else:
        async with al.Runtime(provider, store=medium(*store), lease_seconds=0.5, observers=[said]) as runtime:
            await runtime.run(BRIEF, "go on", conversation="c", run_id="r2")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
