"""How a model call asks for a value, and how its answer becomes one: the contract of a transport.

A transport prepares one interaction for one stage: what is added to the request (an instruction,
tools, options) and how the answer is collected. A collector is made for each call and shares
nothing with another one (R186). It is given the fragments of a stream while it runs, so that what no end can mend
is known early, and the checked reply at its end, which alone gives the value. A refusal cuts no stream
off: the reply is read to its end, stored and paid for, whoever refused it when.

    prepare(stage) -> Interaction;  create_response() -> Collector;  push(fragment)*;  finish(reply) -> value
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar, runtime_checkable

import msgspec

from ..messages import FunctionSpec, ModelOptions, ModelReply
from ..wire.deltas import CallDelta
from ..wire.dialect import Dialect

__all__ = ["Collector", "Fragment", "Interaction", "Stage", "Transport"]

T_co = TypeVar("T_co", covariant=True)

Fragment = str | CallDelta
"""A piece of an answer: body text, or a piece of a tool call. Reasoning is not shown to a collector."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Where in an application a call is made, and what its server can be asked for.

    Attributes:
        stage_id: the host's word for it, 1 to 128 characters.
        dialect: of the model's server.
    """

    stage_id: str
    dialect: Dialect


class Collector(Protocol[T_co]):
    """Collects one answer. Plain objects may implement it (R202). Never asked again after it raised.

    Attributes:
        output_chars: characters it has taken so far: an ``int`` of 0 or more, read after it is made,
            after every push and after `finish` (R188, R189). It may go down when a buffer is released.

    It may have an attribute ``call`` with metadata for diagnostics; that is read once, at best (R200).
    """

    @property
    def output_chars(self) -> int: ...

    def push(self, fragment: Fragment, /) -> None:
        """Take the next fragment.

        Raises:
            OutputRefused: the answer can no longer be what was asked for. It is the call's error once the reply
                was read to its end and stored; neither `push` nor `finish` is called again, nor is anything
                counted. Any other error cuts the call off at once.
        """
        ...

    def finish(self, reply: ModelReply, /) -> T_co:
        """The value, once protocol and content of the whole reply were checked (R187).

        Raises:
            OutputRefused: the reply is not what was asked for.
        """
        ...


class Interaction(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True):
    """What one transport asks of one call (R185, R205).

    Attributes:
        create_response: makes the collector of one call.
        route: how the value is asked for, in the record: ``text``, ``call``, ``json_schema``, ``json_text``,
            ``session``, or a word of a transport of your own.
        options: what the transport asks for; a field that is not its default overrides the runner's. The
            call's own ``max_output_tokens`` is none of them.
        tools: the visible tools.
        instruction: added to the instructions of the call; None adds none.
        schema_chars: characters of all declarations: tools, response format, and a schema that stands in
            the instruction, which is not counted twice (R244).
        embedded_chars: how many of ``schema_chars`` stand in the instruction; the rest of the instruction
            is what it counts for besides.
    """

    create_response: Callable[[], Collector[T_co]]
    route: str
    options: ModelOptions = ModelOptions()
    tools: tuple[FunctionSpec, ...] = ()
    instruction: str | None = None
    schema_chars: int = 0
    embedded_chars: int = 0


@runtime_checkable
class Transport(Protocol[T_co]):
    """A way to ask for a value. Fixed once made; any number of runners may use it.

    Attributes:
        id: names it among the transports of a runner, as ``core:plain-text``.
    """

    @property
    def id(self) -> str: ...

    def prepare(self, stage: Stage, /) -> Interaction[T_co]:
        """Prepare an interaction; reads nothing but the stage, and sends nothing.

        Raises:
            InputError: it cannot be used at this stage or with this server.
        """
        ...
