"""The tools of one agent: one registry that is both the catalogue and what can be called (R60)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from ..admission import digest
from ..errors import InputError, ToolDefinitionError
from ..limits import MAX_TOOLS
from ..messages import FunctionSpec
from .function import Tool
from .pipeline import ToolInvocation, ToolPipeline

__all__ = ["ToolSet"]

_DOMAIN: Final = "agentloop/catalogue/v1"
_PLAIN: Final = ToolPipeline()


class ToolSet:
    """Up to 32 tools, in order, fixed when made: there is nothing to register later, or to seal.

    It says what a model may ask for, and whoever makes it decides that beforehand. That a tool is
    in it permits no call: a permission is checked where the tool is executed (R174, R183).

    Args:
        tools: 0 to 32 tools with different names.
        policy_version: a name for what the schemas do not say: the meaning of refinements and of
            results (R66, R155). Change it when those change; part of the digest.

    Attributes:
        specs: what the model sees, in order.
        repeatable, lookups: names of the tools whose lost calls run again, and of those with a lookup.
        digest: hex SHA-256 over each tool's schema, name, description, kind, idempotence, kind of
            recovery, budgets and whether it converts, their order, and the policy version; not over
            library versions or the code of a lookup (R67).

    Raises:
        ToolDefinitionError: ``duplicate_tool_name`` names both owners; ``bad_tool`` for what is no
            tool or is too many.
    """

    __slots__ = ("_by_name", "digest", "lookups", "policy_version", "repeatable", "specs")

    _by_name: dict[str, Tool]
    specs: tuple[FunctionSpec, ...]
    repeatable: frozenset[str]
    lookups: frozenset[str]
    policy_version: str
    digest: str

    def __init__(self, tools: Iterable[Tool] = (), *, policy_version: str = "") -> None:
        if type(policy_version) is not str:
            raise InputError(f"ToolSet.policy_version: expected str, got {type(policy_version).__name__}")
        if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Iterable):
            raise InputError(f"ToolSet.tools: expected a sequence of tools, got {type(tools).__name__}")
        by_name: dict[str, Tool] = {}
        for member in tools:
            _add(by_name, member)
        basis = {"policy_version": policy_version, "tools": [member.digest_basis for member in by_name.values()]}
        fixed = object.__setattr__
        fixed(self, "_by_name", by_name)
        fixed(self, "specs", tuple(member.spec for member in by_name.values()))
        for field, kind in (("repeatable", "repeat"), ("lookups", "lookup")):
            names = (name for name, member in by_name.items() if member.policy.recovery_kind == kind)
            fixed(self, field, frozenset(names))
        fixed(self, "policy_version", policy_version)
        fixed(self, "digest", digest(_DOMAIN, basis))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a tool set is fixed once it is made")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: a tool set is fixed once it is made")

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self._by_name)

    def unstated(self) -> tuple[str, ...]:
        """Names of the tools that do not state how they are recovered (`ToolPolicy.recovery`), in order."""
        return tuple(name for member in self._by_name.values() for name in member.unstated)

    def get(self, name: str) -> Tool | None:
        """The tool with this name; None when there is none (a model may ask for any name, R56)."""
        return self._by_name.get(name)

    def require(self, name: str) -> Tool:
        """The tool with this name.

        Raises:
            ToolDefinitionError: ``unknown_tool``.
        """
        member = self._by_name.get(name)
        if member is None:
            raise ToolDefinitionError("unknown_tool", str(name)[:80], f"expected {self._choices()}")
        return member

    def unknown_tool_feedback(self, name: str) -> str:
        """What a model shall read that asked for a name outside the set (R56)."""
        shown = name if len(name) <= 80 else name[:79] + "…"
        return f"There is no tool named {shown!r}, and nothing ran. Expected {self._choices()}."

    def _choices(self) -> str:
        return "one of " + ", ".join(self._by_name) if self._by_name else "no tool call: there are no tools"

    def select(self, *names: str) -> ToolSet:
        """A set of the named tools only, in this set's order; as fixed as this one (R178).

        Raises:
            ToolDefinitionError: ``unknown_tool``; ``duplicate_tool_name`` when a name is given twice.
            InputError: no name was given.
        """
        if not names:
            raise InputError("ToolSet.select: expected at least one name")
        for at, name in enumerate(names):
            self.require(name)
            if name in names[:at]:
                raise ToolDefinitionError("duplicate_tool_name", name, "expected each name once")
        chosen = (member for name, member in self._by_name.items() if name in names)
        return ToolSet(chosen, policy_version=self.policy_version)

    def resolve(self, name: str, arguments_text: str, *, stage_id: str) -> object:
        """Build the value of the selection that a model named: is it in this set, then `Tool.resolve` (R184).

        Raises:
            ToolDefinitionError: ``unknown_tool``: it is not in this set; the arguments were not looked at.
            ArgumentsRefused, ToolResultError, InputError: as `Tool.resolve`.
        """
        return self.require(name).resolve(arguments_text, stage_id=stage_id)

    def invoke(
        self,
        name: str,
        input: object,
        *,
        pipeline: ToolPipeline = _PLAIN,
        deps: object = None,
        invocation_id: str | None = None,
        parent_invocation_id: str | None = None,
    ) -> ToolInvocation:
        """Call a tool of this set outside an agent's loop, see `ToolPipeline.invoke`.

        Raises:
            ToolDefinitionError: ``unknown_tool``: it is not in this set; nothing is recorded.
        """
        return pipeline.invoke(
            self.require(name),
            input,
            deps=deps,
            invocation_id=invocation_id,
            parent_invocation_id=parent_invocation_id,
        )

    async def invoke_async(
        self,
        name: str,
        input: object,
        *,
        pipeline: ToolPipeline = _PLAIN,
        deps: object = None,
        invocation_id: str | None = None,
        parent_invocation_id: str | None = None,
    ) -> ToolInvocation:
        """As `invoke`, and awaits, see `ToolPipeline.invoke_async`."""
        return await pipeline.invoke_async(
            self.require(name),
            input,
            deps=deps,
            invocation_id=invocation_id,
            parent_invocation_id=parent_invocation_id,
        )

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._by_name.values())

    def __contains__(self, item: object) -> bool:
        """Whether a name, or this very tool, is in the set."""
        if isinstance(item, Tool):
            return self._by_name.get(item.name) is item
        return item in self._by_name

    def __repr__(self) -> str:
        return f"<ToolSet {', '.join(self._by_name) or 'empty'}>"


def _add(by_name: dict[str, Tool], member: object) -> None:
    if not isinstance(member, Tool):
        name = str(getattr(member, "__name__", ""))[:80]
        raise ToolDefinitionError("bad_tool", name, f"expected a Tool (see @tool), got {type(member).__name__}")
    if len(by_name) == MAX_TOOLS:
        raise ToolDefinitionError("bad_tool", member.name, f"expected at most {MAX_TOOLS} tools in a set")
    other = by_name.get(member.name)
    if other is member:
        raise ToolDefinitionError("duplicate_tool_name", member.name, f"the same tool is given twice ({member.owner})")
    if other is not None:
        raise ToolDefinitionError(
            "duplicate_tool_name", member.name, f"both {other.owner} and {member.owner} define it"
        )
    by_name[member.name] = member
