"""A prompt with editing, history and completion, by ``prompt_toolkit``; imported by those who have it.

Enter sends, Alt-Enter begins another line, Ctrl-C clears what was typed, Ctrl-D on an empty line ends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_completions
from prompt_toolkit.history import DummyHistory, FileHistory, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.input.typeahead import clear_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.patch_stdout import patch_stdout

from .quiet import drop_typed
from .slash import COMMANDS

__all__ = ["Prompt"]


class Prompt:
    """Reads what a person types at a terminal.

    Args:
        history: the file of lines to recall; None keeps them for this session only.
        input, output: the terminal; None is the process's own.
    """

    def __init__(self, history: Path | None, *, input: Input | None = None, output: Output | None = None) -> None:
        keys = _keys()
        self._said: PromptSession[str] = PromptSession(
            history=InMemoryHistory() if history is None else FileHistory(history),
            completer=_Commands(),
            complete_while_typing=True,
            reserve_space_for_menu=len(COMMANDS),
            multiline=True,
            key_bindings=keys,
            input=input,
            output=output,
        )
        self._answered: PromptSession[str] = PromptSession(
            history=DummyHistory(), multiline=True, key_bindings=keys, input=input, output=output
        )

    async def read(self, prompt: str, *, remember: bool) -> str:
        """What is typed until Enter.

        Args:
            remember: it is something said, which may be typed ahead. Anything else is an answer, and none was
                typed before its question could be read: what is there of that is dropped.

        Raises:
            EOFError: Ctrl-D on an empty line, or the terminal has gone.
        """
        session = self._said if remember else self._answered
        if not remember:
            clear_typeahead(session.input)
            drop_typed(sys.stdin)
        with patch_stdout():  # what a left-over tool prints stands above the prompt
            return await session.prompt_async(prompt, handle_sigint=False, set_exception_handler=False)


class _Commands(Completer):
    """Completes the name of a command, at the beginning of a line that names one."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        typed = document.text
        if not typed.startswith("/") or typed != document.text_before_cursor:
            return
        for name, command in COMMANDS.items():
            if name.startswith(typed[1:]):
                yield Completion(f"/{name}", start_position=-len(typed), display_meta=command.purpose)


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=~has_completions)
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("enter", filter=has_completions)
    def take(event: KeyPressEvent) -> None:
        """A completion that was chosen is taken first; one that is only offered is not."""
        buffer = event.current_buffer
        chosen = buffer.complete_state is not None and buffer.complete_state.current_completion is not None
        buffer.complete_state = None
        if not chosen:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def more(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def clear(event: KeyPressEvent) -> None:
        event.current_buffer.reset()

    return keys
