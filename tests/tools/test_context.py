"""What a tool is given besides its arguments."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agentloop.errors import InputError
from agentloop.tools import ToolContext
from agentloop.tools.context import PROGRESS_CHARS


def context(on_progress: Any = None) -> ToolContext[str]:
    return ToolContext(
        deps="secret key", run_id="r1", agent="a", tool="t", call_id="c", effect_id="r1/0.0", on_progress=on_progress
    )


async def test_progress_reaches_the_callback_cleaned_and_bounded() -> None:
    told: list[tuple[str, float | None]] = []

    async def on_progress(message: str, fraction: float | None) -> None:
        told.append((message, fraction))

    ctx = context(on_progress)
    await ctx.progress("half", 1)
    await ctx.progress("bad \udc97")
    await ctx.progress("x" * 10_000, 0.5)
    assert told[:2] == [("half", 1.0), ("bad \ufffd", None)]
    assert told[2] == ("x" * (PROGRESS_CHARS - 1) + "…", 0.5)


async def test_progress_without_a_listener_is_nothing() -> None:
    await context().progress("half", 0.5)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan, True, "0.5"])
async def test_a_fraction_outside_its_range_is_refused(fraction: Any) -> None:
    with pytest.raises(InputError, match="fraction"):
        await context().progress("x", fraction)


async def test_a_message_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="message"):
        await context().progress(b"x")  # type: ignore[arg-type]


def test_a_context_is_frozen_and_its_repr_hides_the_deps() -> None:
    ctx = context()
    with pytest.raises(AttributeError):
        ctx.deps = "other"  # type: ignore[misc]
    assert "secret" not in repr(ctx)
    assert "r1" in repr(ctx)
    assert ctx.attempt == 1
