"""A typed function becomes a tool."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Final, Literal, overload

from ..admission import parse
from ..errors import InputError, ToolDefinitionError
from ..limits import TOOL_GRACE, TOOL_TIMEOUT
from ..messages import FunctionSpec, ToolResult
from .arguments import Admitted, Arguments
from .context import STAGE_CHARS, SelectionContext, ToolContext
from .definition import by_keyword, check_tool_name, is_async, owner_of, read_definition, run_elsewhere
from .policy import NeedsApproval, ToolPolicy, external_policy, selection_policy
from .recovery import Lookup
from .resolver import Check, Resolve, in_loop, read_resolver
from .result import encode_result
from .schema import admit_schema
from .signature import read_lookup
from .validator import compile_check

__all__ = ["Call", "Tool", "tool"]

_DEFAULTS: Final = ToolPolicy()

Call = Callable[[dict[str, Any], ToolContext[Any]], Any]
"""What runs a tool made from a schema: the arguments as parsed, and the context."""


class Tool:
    """One function that a model may call; fixed once it is made (R50).

    `tool` and `Tool.from_schema` make one with an effect. A selection, made by `selection` or
    `Tool.selection`, has none: `resolve` builds a value of the host from what the model chose, and
    neither runs nor authorises anything. An external tool, made by `external` or `Tool.external`, runs
    elsewhere: a call of it waits until the host gives its result.

    Two tools are equal only if they are the same object. Calling a tool calls its function, so a
    test may use it as if it were not decorated.

    Attributes:
        spec: what the model sees.
        policy: how it is run.
        kind: ``function``, ``schema`` for one made from a JSON Schema, ``selection`` or ``external``.
        owner: where it is defined, for errors: ``module.function``, or a server's name.
        is_async: whether its function is awaited; otherwise it runs in a thread, or, of a selection, in place.
        lookup_is_async: as much of its lookup; False where it has none.
    """

    __slots__ = (
        "_arguments",
        "_call",
        "_function",
        "_lookup",
        "_resolve",
        "is_async",
        "kind",
        "lookup_is_async",
        "owner",
        "policy",
        "spec",
    )

    spec: FunctionSpec
    policy: ToolPolicy
    kind: str
    owner: str
    is_async: bool
    lookup_is_async: bool
    _function: Callable[..., Any]
    _call: Call
    _lookup: Call | None
    _resolve: Resolve | None
    _arguments: Arguments

    def __init__(
        self,
        spec: FunctionSpec,
        *,
        policy: ToolPolicy,
        kind: str,
        owner: str,
        function: Callable[..., Any],
        call: Call,
        lookup: Call | None,
        arguments: Arguments,
        resolve: Resolve | None = None,
    ) -> None:
        fixed = object.__setattr__
        for name, value in (("spec", spec), ("policy", policy), ("kind", kind), ("owner", owner)):
            fixed(self, name, value)
        fixed(self, "is_async", is_async(function))
        fixed(self, "_function", function)
        fixed(self, "_call", call)
        fixed(self, "_lookup", lookup)
        fixed(self, "_resolve", resolve)
        fixed(self, "lookup_is_async", lookup is not None and is_async(policy.recovery))
        fixed(self, "_arguments", arguments)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: a tool is fixed once it is defined")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: a tool is fixed once it is defined")

    @property
    def name(self) -> str:
        """The name that the model calls it by."""
        return self.spec.name

    @property
    def unstated(self) -> tuple[str, ...]:
        """Its name, where it does not state how it is recovered (`ToolPolicy.recovery`)."""
        return (self.spec.name,) if self.policy.recovery_kind == "none" else ()

    @property
    def digest_basis(self) -> dict[str, Any]:
        """What a catalogue's digest covers of this tool: plain values, no library versions (R67).

        How often it is repeated or called, and its approval, stand there where a policy says it otherwise
        than by default.
        """
        stated = {"max_calls": self.policy.max_calls, "retries": self.policy.stated_retries}
        approval = self.policy.approval_kind
        return {
            **({} if approval == "none" else {"approval": approval}),
            "description": self.spec.description,
            "idempotent": self.policy.idempotent,
            "kind": self.kind,
            "max_output_bytes": self.policy.max_output_bytes,
            "name": self.spec.name,
            "parameters": parse(self.spec.parameters),
            "recovery": self.policy.recovery_kind,
            "strict": self.spec.strict,
            "timeout": self.policy.timeout,
            **({"coerce": True} if self.policy.coerce else {}),
            **{name: value for name, value in stated.items() if value is not None},
        }

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        *,
        parameters: dict[str, Any] | str,
        call: Call,
        policy: ToolPolicy = _DEFAULTS,
        owner: str = "",
        strict: bool | None = None,
    ) -> Tool:
        """Make a tool from a JSON Schema.

        Args:
            parameters: the schema of the arguments object, as a plain dict or JSON text. It is only
                checked against: arguments reach ``call`` exactly as the model wrote them, unless
                ``policy`` says ``coerce=True``.
            call: sync or async; gets the arguments and a `ToolContext`.
            policy: a lookup in it (``recovery=``) gets the same.
            owner: who defines it, for errors; by default the name of ``call``.
            strict: asks the provider to hold the schema itself.

        Raises:
            ToolDefinitionError: a bad name, ``unsupported_schema`` with the path of the keyword, or a
                lookup that does not take what ``call`` does.
        """
        check_tool_name(name)
        admitted = admit_schema(name, parameters)
        check = compile_check(name, admitted)  # now, so that a faulty schema is refused here
        if not callable(call):
            raise ToolDefinitionError("bad_tool", name, f"call: expected a callable, got {type(call).__name__}")
        return cls(
            FunctionSpec(name=name, description=description, parameters=admitted.text, strict=strict),
            policy=policy,
            kind="schema",
            owner=owner or owner_of(call),
            function=call,
            call=call,
            lookup=_checked_lookup(name, policy.recovery),
            arguments=Arguments(name, lambda: check, None, admitted.text if policy.coerce else None),
        )

    @classmethod
    def selection(
        cls,
        name: str,
        description: str,
        *,
        parameters: dict[str, Any] | str,
        resolve: Resolve,
        refine: tuple[Check, ...] = (),
        errors: tuple[type[Exception], ...] = (),
        max_output_bytes: int | None = None,
        coerce: bool = False,
        owner: str = "",
        strict: bool | None = None,
    ) -> Tool:
        """Make a selection from a JSON Schema; what `selection` makes of a typed function.

        Args:
            parameters, owner, strict: as of `from_schema`.
            resolve: sync; builds the value from the arguments and a `SelectionContext`.
            refine: sync checks of the arguments; each returns None, or the reason why they are refused.
            errors, max_output_bytes: see `ToolPolicy`; they count in an agent's loop only.
            coerce: see `ToolPolicy`.

        Raises:
            ToolDefinitionError: as `from_schema`, or ``resolve`` or a check is async.
        """
        check_tool_name(name)
        admitted = admit_schema(name, parameters)
        check = compile_check(name, admitted)
        resolver = read_resolver(name, resolve, refine)
        return cls(
            FunctionSpec(name=name, description=description, parameters=admitted.text, strict=strict),
            policy=selection_policy(errors=errors, max_output_bytes=max_output_bytes, coerce=coerce),
            kind="selection",
            owner=owner or owner_of(resolve),
            function=resolve,
            call=in_loop(name, resolver),
            lookup=None,
            arguments=Arguments(name, lambda: check, None, admitted.text if coerce else None),
            resolve=resolver,
        )

    @classmethod
    def external(
        cls,
        name: str,
        description: str,
        *,
        parameters: dict[str, Any] | str,
        owner: str = "",
        strict: bool | None = None,
    ) -> Tool:
        """Make an external tool from a JSON Schema; what `external` makes of a typed function.

        Args:
            parameters, strict: as of `from_schema`.
            owner: who defines it, for errors.

        Raises:
            ToolDefinitionError: as `from_schema`.
        """
        check_tool_name(name)
        admitted = admit_schema(name, parameters)
        check = compile_check(name, admitted)
        elsewhere = run_elsewhere(name)
        return cls(
            FunctionSpec(name=name, description=description, parameters=admitted.text, strict=strict),
            policy=external_policy(),
            kind="external",
            owner=owner or f"external {name!r}",
            function=elsewhere,
            call=elsewhere,
            lookup=None,
            arguments=Arguments(name, lambda: check, None),
        )

    def admit(self, arguments_text: str) -> dict[str, Any]:
        """Check a model's arguments and decode them.

        Args:
            arguments_text: as the model wrote it; "" and ``null`` mean ``{}``.

        Returns:
            What `invoke` takes: keyword arguments, or the parsed object of a tool made from a schema.

        Raises:
            ArgumentsRefused: they are no JSON, or do not fit; its ``feedback`` is for the model.
            ToolDefinitionError: the schema or a type of the tool is at fault; the run ends.
        """
        return self.admitted(arguments_text).arguments

    def admitted(self, arguments_text: str) -> Admitted:
        """As `admit`, with what was converted on the way (`ToolPolicy.coerce`).

        Raises:
            ArgumentsRefused, ToolDefinitionError: as `admit`.
        """
        return self._arguments.admit(arguments_text)

    def resolve(self, arguments_text: str, *, stage_id: str) -> object:
        """Build a selection's value: admit the arguments, hold them against its checks, call its function (R175).

        Synchronous, and no effect of it is known to agentloop. That a model chose something
        does not authorise it.

        Args:
            arguments_text: as `admit` takes it.
            stage_id: where in the application the choice is made, 1 to 128 characters.

        Raises:
            ArgumentsRefused: as of `admit`; or ``refined``: a check refused them, and the function was
                not called.
            ToolResultError: the function or a check gave an awaitable, or a check neither None nor a str.
            InputError: the tool is no selection, or ``stage_id`` is no such text.
            Whatever the function or a check raises passes through as it is.
        """
        if self._resolve is None:
            raise InputError(f"tool {self.spec.name!r}: expected a selection, got one of kind {self.kind}")
        if type(stage_id) is not str:
            raise InputError(f"stage_id: expected str, got {type(stage_id).__name__}")
        if not 1 <= len(stage_id) <= STAGE_CHARS:
            raise InputError(f"stage_id: expected 1 to {STAGE_CHARS} characters, got {len(stage_id)}")
        arguments = self.admit(arguments_text)
        return self._resolve(arguments, SelectionContext(stage_id=stage_id, tool=self.spec.name))

    def invoke(self, arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        """Call the function: returns its value, or an awaitable when ``is_async``.

        A selection runs its checks first; its stage is the agent's name.

        Raises:
            ArgumentsRefused: ``refined``: a check of a selection refused them.
        """
        return self._call(arguments, context)

    def look_up(self, arguments: dict[str, Any], context: ToolContext[Any]) -> Any:
        """Call the lookup: returns its value, or an awaitable when ``lookup_is_async``.

        Raises:
            InputError: it has none.
        """
        if self._lookup is None:
            raise InputError(f"tool {self.spec.name!r}: expected one with a lookup, got {self.policy.recovery_kind}")
        return self._lookup(arguments, context)

    def encode(self, value: object) -> ToolResult:
        """The result that a returned value stands for.

        Raises:
            ToolResultError: the value has no JSON, or holds NaN, an infinity or bytes.
        """
        return encode_result(self.spec.name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, with no checks."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Tool {self.spec.name!r} of {self.owner}>"


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout: float | None = TOOL_TIMEOUT,
    grace: float = TOOL_GRACE,
    retries: int | None = None,
    max_calls: int | None = None,
    errors: tuple[type[Exception], ...] = (),
    max_output_bytes: int | None = None,
    recovery: Literal["repeat", "settle"] | Lookup | None = None,
    coerce: bool = False,
    approval: Literal["required"] | NeedsApproval | None = None,
    policy: ToolPolicy | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout: float | None = TOOL_TIMEOUT,
    grace: float = TOOL_GRACE,
    retries: int | None = None,
    max_calls: int | None = None,
    errors: tuple[type[Exception], ...] = (),
    max_output_bytes: int | None = None,
    recovery: Literal["repeat", "settle"] | Lookup | None = None,
    coerce: bool = False,
    approval: Literal["required"] | NeedsApproval | None = None,
    policy: ToolPolicy | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async; used as ``@tool`` or ``@tool(…)``.

    Each parameter becomes a member of the arguments object, by its annotation: JSON types, and
    whatever msgspec decodes (structs, dataclasses, typed dicts, UUIDs, dates, enums, literals).
    ``Annotated[T, msgspec.Meta(description=…, ge=…)]`` adds to the schema. A parameter annotated
    `ToolContext` gets the context and is not shown to the model. What the function returns is
    described at `agentloop.tools.result`. A sync function runs in a thread.

    Args:
        name: by default the function's.
        description: by default the first paragraph of its docstring.
        idempotent, timeout, grace, retries, max_calls, errors, max_output_bytes, recovery, coerce,
            approval: see
            `ToolPolicy`.
        policy: all of these at once, instead of them.

    Raises:
        ToolDefinitionError: names the parameter, the schema path or the name that is wrong, also
            of a lookup whose parameters are not the tool's.
        InputError: a policy value is outside its range, or given twice.
    """
    own = ToolPolicy(
        idempotent=idempotent,
        timeout=timeout,
        grace=grace,
        retries=retries,
        max_calls=max_calls,
        errors=errors,
        max_output_bytes=max_output_bytes,
        recovery=recovery,
        coerce=coerce,
        approval=approval,
    )
    if policy is not None and type(policy) is not ToolPolicy:
        raise InputError(f"tool: expected policy= to be a ToolPolicy, got {type(policy).__name__}")
    if policy is not None and own != _DEFAULTS:
        raise InputError("tool: expected either policy= or its single values, got both")
    scope = dict(sys._getframe(1).f_locals)  # types local to the defining function, for string annotations
    make = functools.partial(
        _from_function, name=name, description=description, policy=own if policy is None else policy, scope=scope
    )
    return make if fn is None else make(fn)


def _from_function(
    fn: Callable[..., Any], *, name: str | None, description: str | None, policy: ToolPolicy, scope: dict[str, Any]
) -> Tool:
    if isinstance(fn, Tool):
        raise ToolDefinitionError("bad_tool", "", f"expected a function, got {type(fn).__name__}")
    read = read_definition(
        fn, name=name, description=description, scope=scope, context=ToolContext, coerce=policy.coerce
    )
    known, lookup = read.spec.name, None
    if callable(policy.recovery):
        lookup = by_keyword(policy.recovery, read_lookup(known, policy.recovery, scope, read.signature))
    return Tool(
        read.spec,
        policy=policy,
        kind="function",
        owner=read.owner,
        function=fn,
        call=by_keyword(fn, read.signature.context),
        lookup=lookup,
        arguments=read.arguments,
    )


def _checked_lookup(name: str, recovery: object) -> Call | None:
    """The lookup of a tool made from a schema."""
    if not callable(recovery):
        return None
    try:
        inspect.signature(recovery).bind({}, None)
    except (TypeError, ValueError) as error:
        rule = f"recovery: expected a lookup that takes the arguments and a ToolContext: {error}"
        raise ToolDefinitionError("bad_tool", name, rule) from error
    return recovery
