"""Whether a run is taken up with what it was started with: agent, catalogue, input.

What does not match is refused with a code of its own, and what was expected and what came: names,
and digests of what is longer. No text of either side is in an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .admission import digest_bytes
from .agent import Agent
from .errors import RestoreError
from .exchange import Turn, canonical_bytes
from .messages import Message, SystemMessage, UserMessage
from .tools import ToolSet

__all__ = ["check_agent", "check_input"]

_DOMAIN: Final = "agentloop/basis/v1"


def check_agent(agent: Agent, turn: Turn) -> None:
    """Refuse what is not the agent of a run (R136, R138).

    Raises:
        RestoreError: ``agent_changed``: it has another name, or the run is no agent's but a model call of
            a runner. ``input_changed``: other instructions or options. ``catalogue_changed``: tools that
            are other ones, are shown to the model otherwise, or are run or recovered otherwise.
    """
    opened = turn.opened
    if opened.call is not None:
        call = f"a model call of a runner (stage {opened.agent!r}), which is made once and not taken up"
        raise _refusal("agent_changed", turn, "a run of an agent", call)
    if agent.name != opened.agent:
        raise _refusal("agent_changed", turn, f"agent {opened.agent!r}", f"agent {agent.name!r}")
    own = tuple(message for message in opened.messages if type(message) is SystemMessage)
    for what, expected, got in (("instructions", own, agent.system), ("options", opened.options, agent.options)):
        if got != expected:
            raise _refusal("input_changed", turn, f"{what} {_digest(expected)}", f"{what} {_digest(got)}")
    _check_catalogue(agent.toolset, turn)


def check_input(messages: Iterable[SystemMessage | UserMessage], turn: Turn) -> None:
    """Refuse a turn's messages whose user message is not the one that a run was started with.

    Raises:
        RestoreError: ``input_changed``: it is another one, or the run's texts were removed.
    """
    if turn.redacted is not None:
        raise _refusal("input_changed", turn, "input that is stored", "a run whose texts were removed")
    expected, got = _said(turn.opened.messages), _said(messages)
    if got != expected:
        raise _refusal("input_changed", turn, f"input {_digest(expected)}", f"input {_digest(got)}")


def _said(messages: Iterable[Message]) -> tuple[UserMessage, ...]:
    return tuple(message for message in messages if type(message) is UserMessage)


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
