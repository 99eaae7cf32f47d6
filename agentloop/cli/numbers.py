"""Numbers among the arguments of commands."""

from __future__ import annotations

import argparse

__all__ = ["port", "seconds", "some_seconds"]

_MOST_SECONDS = 3_600


def port(text: str) -> int:
    """A TCP port; 0 takes a free one."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, got {number}")
    return number


def seconds(text: str) -> float:
    """A time from 0 seconds to an hour."""
    number = float(text)
    if not 0 <= number <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"expected seconds from 0 to {_MOST_SECONDS}, got {text}")
    return number


def some_seconds(text: str) -> float:
    """A time above 0 seconds, up to an hour."""
    number = seconds(text)
    if not number:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got {text}")
    return number
