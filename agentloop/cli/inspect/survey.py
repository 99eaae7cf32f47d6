"""A whole store as a person looks at it. Reads only, one run at a time."""

from __future__ import annotations

from ...errors import LostError
from ...persistence.reading import Reader
from ...views import ConversationView, StoreView, run_view

__all__ = ["survey"]


async def survey(reader: Reader, name: str, *, run_id: str | None = None) -> StoreView:
    """Look at a whole store, or at one run.

    Args:
        name: what the store is called.

    Raises:
        LostError: there is no such run. RestoreError: a run's facts do not fit together.
        PersistenceError: the store failed.
    """
    if run_id is None:
        rows = await reader.runs()
    else:
        row = await reader.run(run_id)
        if row is None:
            raise LostError("run", run_id)
        rows = [row]
    runs = [run_view(row, await reader.load_run(row.run_id)) for row in rows]
    sources = {run.conversation: run.source for run in runs if run.kind == "branch"}
    named = {run.conversation for run in runs}
    conversations = [
        ConversationView(name=row.name, runs=list(row.runs), live=row.live, source=sources.get(row.name))
        for row in await reader.conversations()
        if row.name in named
    ]
    return StoreView(store=name, conversations=conversations, runs=runs)
