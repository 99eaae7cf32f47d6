"""Events about a run and its tools.

    RunStarted  (<asking>  <tool call>*)*  RunEnded
    <asking>:  <model call>  (ResendScheduled  <model call>)*
    <tool call>:  (ToolStarted ToolProgress* ToolEnded)+ | ToolSkipped

One `ToolStarted` and one `ToolEnded` for each execution that began; a call has more than one where it ran
out of time and was repeated, under the same ``invocation_id`` and with the next ``attempt``. `ToolSkipped`
for each call that is answered without running. Calls come in their order, one after the other; with
``max_parallel_tools`` above 1 those of one reply begin in their order, and the events of as many are
interleaved, each call's own in order. A claim is stored before its execution is told, with the reply, with
the answer of the call before, or alone; one that is given back before its tool begins is not told.
Before that, observers alone are told of the calls that made summaries for the run (the ``context`` of an
agent): their events have the run's id, and a span of their own below it.
`RequestRejected` reports a model call that a budget or a size limit refused before it was admitted: it
has no ModelStart and no ModelEnd (R321).
`RunSteered` and `RunStopping` may come anywhere between `RunStarted` and `RunEnded`, also in the middle of a
model call or of a tool: a host's word is told when it is stored, whatever the run is at. Where a run goes on in
no process, or in another one, nobody here is told.
`ResendScheduled` comes only where a host asked for it (`ResendPolicy`), after the `ModelEnd` of an
attempt that was refused; what ends the run while it waits leaves it without another model call. In
a run that was taken up it may come first.
A run that goes on after it had left off (it waited, was paused, or its process died) begins with `RunStarted`
again. Its numbering goes on: no id stands for two events, and those of a later time are the larger ones.

An engine tells of its own run in the same envelope (`agentloop.workflow`):

    (NodeStarted  (<model call> | ToolStarted ToolProgress* ToolEnded)*  NodeEnded  RouteTaken?)*

Each node that is entered begins and ends once; what it asks for is told below its span. `RouteTaken` follows
where the workflow goes on or completes, so the end of a workflow that gave its result is one to no node. A
step without a workflow is told as one node each round, named ``step``, and takes no route. A tool of a node
belongs to no reply: its ``exchange`` is 0, and its ``position`` its number in the engine's run, from 0.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from ..messages.parts import Usage
from .envelope import Event

__all__ = [
    "NodeEnded",
    "NodeStarted",
    "ProcessEvent",
    "RequestRejected",
    "ResendScheduled",
    "RouteTaken",
    "RunEnded",
    "RunStarted",
    "RunSteered",
    "RunStopping",
    "ToolEnded",
    "ToolProgress",
    "ToolSkipped",
    "ToolStarted",
]


class RunStarted(Event, frozen=True):
    """The run's origin is stored and its loop begins."""

    type: ClassVar[str] = "run.started"

    agent: str
    conversation: str | None
    origin_id: str
    catalogue_digest: str


class RunSteered(Event, frozen=True):
    """A user said more to the run, and it is stored; the run's next request that repeats no refused one has it.

    Attributes:
        author: who said it; None where nobody was named.
        text_chars: characters of its text. images: how many came with it.
    """

    type: ClassVar[str] = "run.steered"

    author: str | None
    text_chars: int
    images: int


class RunStopping(Event, frozen=True):
    """The run was asked to end after the exchange under way, and that is stored.

    ``author`` is who asked; None where nobody was named.
    """

    type: ClassVar[str] = "run.stopping"

    author: str | None


class RequestRejected(Event, frozen=True):
    """A model call was refused before it was admitted; nothing was sent or charged."""

    type: ClassVar[str] = "runtime.rejected"

    code: str
    limit: str
    allowed: int
    got: int


class ResendScheduled(Event, frozen=True):
    """A request was refused, and is sent once more after a wait.

    Attributes:
        attempt_id: the attempt that was refused; the next one has its own. code: why.
        delay_ms: the wait, milliseconds.
        model: who is asked next; another one where a fallback is turned to.
    """

    type: ClassVar[str] = "resend.scheduled"

    attempt_id: str
    code: str
    delay_ms: int
    model: str


class ToolStarted(Event, frozen=True):
    """A tool begins: its arguments passed every check and its slot is ``started``.

    Attributes:
        arguments: the raw argument text as the model sent it (exact also for big integers).
        attempt: 1, or more for a repeated run: of an idempotent tool, or one that was allowed. The same again
            for one that goes on after it waited for its child run.
        converted: which arguments the tool is given in another JSON type (`ToolPolicy.coerce`), as
            ``$.count: string to integer``; up to 16 lines.
    """

    type: ClassVar[str] = "tool.started"

    tool: str
    call_id: str
    exchange: int
    position: int
    arguments: str
    attempt: int = 1
    converted: tuple[str, ...] = ()


class ToolProgress(Event, frozen=True):
    """A note from the running tool (`ToolContext.progress`)."""

    type: ClassVar[str] = "tool.progress"

    tool: str
    call_id: str
    message: str
    fraction: float | None = None


class ToolEnded(Event, frozen=True):
    """A started tool has an outcome, or ran out of time and is repeated (``unknown``, ``timeout``, no output).

    Or it waits, as calls of its child run wait for a host (``waiting``, ``child``, no output). When the run is
    resumed the same execution goes on, with a `ToolStarted` of the same number.

    Attributes:
        status: ``success`` (feedback ok), ``error`` (error feedback), ``cancelled``, ``waiting``.
        slot: the slot's state: ``done``, ``failed``, ``unknown`` or ``waiting``.
        code: why, when the status is not ``success``.
        output: what the model reads, cut as it is. output_bytes: its size.
        kept: whether the full text of an output that was cut is kept (`Runtime.output`); None where it
            was not cut.
    """

    type: ClassVar[str] = "tool.ended"

    tool: str
    call_id: str
    exchange: int
    position: int
    status: Literal["success", "error", "cancelled", "waiting"]
    slot: str
    code: str | None = None
    output: str = ""
    output_bytes: int = 0
    kept: bool | None = None
    duration_ms: int = 0


class ToolSkipped(Event, frozen=True):
    """A call was answered without running: refused (``failed``) or not run (``skipped``).

    Or not again (``unknown``): a process ran it and died, and no tool call was left to repeat it.
    """

    type: ClassVar[str] = "tool.skipped"

    tool: str
    call_id: str
    exchange: int
    position: int
    slot: str
    code: str


class RunEnded(Event, frozen=True):
    """The run is over.

    Attributes:
        outcome: a run outcome, or ``failed`` / ``cancelled`` when the run raised; ``unsettled``
            when it waits for a host to say what became of an effect, ``waiting_for_approval`` when
            calls of it, or of its child runs, wait for a host, and ``paused`` when the runtime closed (it has
            not ended then).
        reason: the finish word, the limit's name, the error's code, or what calls wait for:
            ``approval``, ``external``, or ``approval+external``.
    """

    type: ClassVar[str] = "run.ended"

    outcome: str
    reason: str | None
    model_calls: int
    tool_calls: int
    usage: Usage | None
    duration_ms: int


class NodeStarted(Event, frozen=True):
    """A node of a workflow is entered.

    Attributes:
        workflow, node: their names; of a step without a workflow ``""`` and ``step``.
        round: in which round of the engine's run, from 1.
    """

    type: ClassVar[str] = "node.started"

    workflow: str
    node: str
    round: int


class NodeEnded(Event, frozen=True):
    """A node that was entered is left.

    Attributes:
        status: ``success``: its patch is part of the state. ``error``: it raised, or broke its contract.
            ``cancelled``: its work was no longer wanted; it may not have ended by itself.
        code: why, when the status is not ``success``.
    """

    type: ClassVar[str] = "node.ended"

    workflow: str
    node: str
    round: int
    status: Literal["success", "error", "cancelled"]
    code: str | None = None
    duration_ms: int = 0


class RouteTaken(Event, frozen=True):
    """A workflow goes on from a node that ended.

    Attributes:
        route: which of the node's routes, from 0; None is the one for its errors.
        to: the node that comes next; None completes the workflow.
    """

    type: ClassVar[str] = "route.taken"

    workflow: str
    node: str
    round: int
    route: int | None
    to: str | None


ProcessEvent = (
    RunStarted
    | RunSteered
    | RunStopping
    | RequestRejected
    | ResendScheduled
    | ToolStarted
    | ToolProgress
    | ToolEnded
    | ToolSkipped
    | RunEnded
    | NodeStarted
    | NodeEnded
    | RouteTaken
)
"""What a run's reader and its observers get besides the output events."""
