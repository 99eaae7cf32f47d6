"""The demo's world: a notebook in memory, two tools over it, and the agent that has them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from ..agent import Agent
from ..errors import ToolFailed
from ..tools import ToolContext, tool

__all__ = ["NOTES", "Note", "Notebook", "PROMPT", "notes_agent", "read_note", "write_note"]

PROMPT: Final = "Read the two launch notes and write one summary note."

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "notebook.agentloop.example")

_Line = Annotated[str, msgspec.Meta(min_length=1)]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """One note; its id is made from its title, so the same title is the same note."""

    id: uuid.UUID
    title: str
    text: str

    @classmethod
    def of(cls, title: str, text: str) -> Note:
        """A note as the notebook keeps it: white space is made single."""
        title = " ".join(title.split())
        return cls(id=uuid.uuid5(_NAMESPACE, title), title=title, text=" ".join(text.split()))


NOTES: Final = (
    Note.of("Launch plan", "The launch is on 12 May. Maya opens the doors at nine, the demo starts at ten."),
    Note.of("Open questions", "Who brings the projector? The room holds 40 people and 52 have signed up."),
)


class Notebook:
    """Notes by id, and a log of what was really done to them.

    Attributes:
        log: ``(tool, note)`` for each read and write that happened, oldest first.
    """

    def __init__(self, notes: Iterable[Note] = NOTES) -> None:
        self._notes = {note.id: note for note in notes}
        self.log: list[tuple[str, Note]] = []

    def __len__(self) -> int:
        return len(self._notes)

    def read(self, id: uuid.UUID) -> Note:
        """The note with this id.

        Raises:
            ToolFailed: there is none.
        """
        note = self._notes.get(id)
        if note is None:
            raise ToolFailed(f"there is no note {id}")
        self.log.append(("read_note", note))
        return note

    def write(self, title: str, text: str) -> Note:
        """Keep a new note and return it as it is kept.

        Raises:
            ToolFailed: the title is taken.
        """
        note = Note.of(title, text)
        if note.id in self._notes:
            raise ToolFailed("a note with this title exists")
        self._notes[note.id] = note
        self.log.append(("write_note", note))
        return note


@tool(idempotent=True)
async def read_note(id: uuid.UUID, ctx: ToolContext[Notebook]) -> Note:
    """Read an existing note by its id."""
    return ctx.deps.read(id)


@tool
async def write_note(title: _Line, text: _Line, ctx: ToolContext[Notebook]) -> Note:
    """Write a new note. Returns it as it is kept."""
    return ctx.deps.write(title, text)


def notes_agent() -> Agent[None]:
    """The agent of the demo; its instructions name the notes there are."""
    known = "; ".join(f"{note.title}: {note.id}" for note in NOTES)
    return Agent(
        name="notes",
        instructions=f"You keep a notebook. Notes: {known}.",
        tools=[read_note, write_note],
        policy_version="notes.v1",
    )
