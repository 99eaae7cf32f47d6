"""Whether a run is taken up with what it was started with: agent, catalogue, input.

What does not match is refused with a code of its own, and what was expected and what came: names,
and digests of what is longer. No text of either side is in an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from .admission import digest_bytes
from .agent import Agent
from .errors import InputError, RestoreError
from .exchange import OriginOpened, Turn, canonical_bytes
from .messages import Message
from .runner import Asking, has_begun
from .tools import ToolSet

__all__ = ["check_agent", "check_input", "check_same", "read_by", "require_agent"]

T = TypeVar("T")

_DOMAIN: Final = "agentloop/basis/v1"


def require_agent(agent: object) -> None:
    """Refuse what is no agent.

    Raises:
        InputError: it is of another type.
    """
    if type(agent) is not Agent:
        raise InputError(f"Runtime: expected an Agent, got {type(agent).__name__}")


def check_agent(agent: Agent[Any], asking: Asking[Any], turn: Turn) -> None:
    """Refuse what is not the agent of a run, or asks otherwise than the run did (R136, R138).

    Args:
        asking: what it asks of the server that the run shall go on with.

    Raises:
        RestoreError: ``agent_changed``: it has another name, or the run is no agent's but a model call of
            a runner. ``input_changed``: other instructions, options or output, or another way to ask for
            that. ``catalogue_changed``: tools that are other ones, are shown to the model otherwise, or are
            run or recovered otherwise.
    """
    opened = turn.opened
    _check_name(agent, turn)
    if asking.read is not None and not has_begun(asking, opened):
        begun, route = agent.begun(opened), asking.label.route
        stored = _output(opened) if begun is None else f"output by route {begun.label.route}"
        raise _refusal("input_changed", turn, stored, f"output by route {route}")
    for what, expected, got in (
        ("instructions", opened.instructions, asking.system),
        ("options", opened.options, asking.options),
    ):
        if got != expected:
            raise _refusal("input_changed", turn, f"{what} {_digest(expected)}", f"{what} {_digest(got)}")
    _check_catalogue(asking.toolset, turn)


def read_by(agent: Agent[Any], turn: Turn) -> Asking[Any] | None:
    """What makes the value of a stored run of this agent, whichever server it asked; None where nothing does.

    Raises:
        RestoreError: ``agent_changed``: it has another name. ``input_changed``: it has an output that the run
            was not asked for.
    """
    if agent.output is None or turn.redacted is not None:
        return None
    _check_name(agent, turn)
    begun = agent.begun(turn.opened)
    if begun is None:
        raise _refusal("input_changed", turn, _output(turn.opened), f"output {agent.output.output.name!r}")
    return begun


def check_same(agent: Agent[T], asking: Asking[T], turn: Turn) -> Asking[T]:
    """What a run is taken up with: ``asking``, or of one that has ended what makes its value.

    Raises:
        RestoreError: as `check_agent`, or of a run that has ended as `read_by`.
    """
    if turn.closed is None:
        check_agent(agent, asking, turn)
        return asking
    return read_by(agent, turn) or asking


def check_input(messages: Sequence[Message], turn: Turn) -> None:
    """Refuse a turn's messages whose last one, the input, is not the one that a run was started with.

    Raises:
        RestoreError: ``input_changed``: it is another one, or the run's texts were removed.
    """
    if turn.redacted is not None:
        raise _refusal("input_changed", turn, "input that is stored", "a run whose texts were removed")
    expected, got = turn.opened.messages[-1:], tuple(messages[-1:])
    if got != expected:
        raise _refusal("input_changed", turn, f"input {_digest(expected)}", f"input {_digest(got)}")


def _check_name(agent: Agent[Any], turn: Turn) -> None:
    opened = turn.opened
    if opened.call is not None:
        call = f"a model call of a runner (stage {opened.agent!r}), which is made once and not taken up"
        raise _refusal("agent_changed", turn, "a run of an agent", call)
    if agent.name != opened.agent:
        raise _refusal("agent_changed", turn, f"agent {opened.agent!r}", f"agent {agent.name!r}")


def _output(opened: OriginOpened) -> str:
    """What a run was asked for, where that is no output of the agent."""
    wanted = opened.options.response_format
    if wanted is not None:
        return f"output {wanted.name!r} of schema {_digest(wanted)}"
    return f"another output or none, tools ({', '.join(spec.name for spec in opened.tools)})"


def _check_catalogue(tools: ToolSet, turn: Turn) -> None:
    opened = turn.opened
    if tools.digest != opened.catalogue_digest:
        names = [spec.name for spec in opened.tools]
        expected, got = _catalogue(opened.catalogue_digest, names), _catalogue(tools.digest, tools.names)
        raise _refusal("catalogue_changed", turn, expected, got)
    if tools.specs != opened.tools:  # the same schemas, written otherwise
        expected, got = f"visible tools {_digest(opened.tools)}", f"visible tools {_digest(tools.specs)}"
        raise _refusal("catalogue_changed", turn, expected, got)


def _catalogue(digest: str, names: Iterable[str]) -> str:
    return f"catalogue {digest} of tools ({', '.join(names)})"


def _digest(value: object) -> str:
    return digest_bytes(_DOMAIN, canonical_bytes(value))


def _refusal(code: str, turn: Turn, expected: str, got: str) -> RestoreError:
    return RestoreError(code, f"run {turn.run_id!r}", f"expected {expected}, got {got}")
