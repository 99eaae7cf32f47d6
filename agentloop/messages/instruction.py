"""Where an instruction goes that is added to messages: to the end of the leading system messages.

Where there is one it is made longer, since some servers take a single one only.
"""

from __future__ import annotations

from .request import Message, SystemMessage

__all__ = ["instructed", "leading_system", "lengthened"]


def instructed(said: tuple[Message, ...], instruction: str | None) -> tuple[Message, ...]:
    """Messages with the instruction; None adds none."""
    if instruction is None:
        return said
    leading = leading_system(said)
    if not leading:
        return (SystemMessage(content=instruction), *said)
    longer = SystemMessage(content=lengthened(said[leading - 1], instruction))
    return (*said[: leading - 1], longer, *said[leading:])


def leading_system(said: tuple[Message, ...]) -> int:
    """How many system messages come before anything else."""
    leading = 0
    while leading < len(said) and type(said[leading]) is SystemMessage:
        leading += 1
    return leading


def lengthened(message: Message, instruction: str) -> str:
    """The text of a system message with the instruction after it."""
    assert type(message) is SystemMessage, "it leads"
    return f"{message.content}\n\n{instruction}"
