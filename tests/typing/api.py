"""The public types as a caller meets them. Type-checked by mypy, never run."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, TypedDict, assert_never, assert_type

import msgspec
from aiohttp import web

import agentloop as al
from agentloop.integrations.metrics import PrometheusMetrics
from agentloop.integrations.web import SERVICE, Service, WebLimits, chat_app, sse_response
from agentloop.runner import (
    Collector,
    Fragment,
    Interaction,
    JsonCall,
    NativeCall,
    PlainText,
    Session,
    SessionReply,
    Stage,
    Structured,
    Transport,
)
from agentloop.views import RunView


class Notes:
    """What an application hands to its tools."""

    async def read(self, id: str) -> str:
        return id


@al.tool
async def read_note(id: str, ctx: al.ToolContext[Notes]) -> str:
    """Read a note."""
    await ctx.progress("reading", 0.5)
    return await ctx.deps.read(id)


@al.tool(idempotent=True, timeout=2.0, errors=(KeyError,))
def count(words: list[str]) -> int:
    """Count words."""
    return len(words)


async def find_payment(amount: int, ctx: al.ToolContext[Notes]) -> str | al.NotDone:
    """What became of a payment."""
    found = await ctx.deps.read(ctx.effect_id)
    return found or al.NOT_DONE


@al.tool(recovery=find_payment)
async def pay(amount: int, ctx: al.ToolContext[Notes]) -> str:
    """Pay."""
    return await ctx.deps.read(ctx.effect_id)


@al.tool(recovery="settle", coerce=True)
def mail(text: str) -> str:
    """Send a mail."""
    return text


def is_dear(arguments: dict[str, Any], ctx: al.ToolContext[Notes]) -> bool:
    return arguments["amount"] > 100 and ctx.attempt == 1


@al.tool(approval=is_dear)
async def buy(amount: int) -> str:
    """Buy."""
    return str(amount)


@al.external
def sign(document: str) -> None:
    """Have it signed."""


assert_type(al.ToolPolicy(approval="required").approval_kind in ("none", "required", "predicate"), bool)
assert_type(al.Tool.external("sign", "Sign.", parameters={"type": "object"}), al.Tool)


def not_empty(words: list[str]) -> str | None:
    return None if words else "there are no words"


@al.selection
def pick(n: int, where: al.SelectionContext) -> str:
    """Pick one."""
    return f"{n} at {where.stage_id}"


@al.selection(refine=(not_empty,))
def choose(words: list[str]) -> str:
    """Choose one."""
    return words[0]


def execute(tool: al.Tool, arguments: Mapping[str, Any], proceed: Callable[[], Any]) -> Any:
    return proceed() if arguments else None


assert_type(read_note, al.Tool)
assert_type(choose, al.Tool)
assert_type(pick.resolve("{}", stage_id="s"), object)
assert_type(al.ToolSet([pick]).resolve("pick", "{}", stage_id="s"), object)
assert_type(al.ToolSet([count]).invoke("count", "{}", pipeline=al.ToolPipeline(execute=execute)).value, object)
assert_type(al.ToolPipeline(journal=al.Journal()).journal, al.tools.ToolJournal | None)
assert_type(al.ToolSet([pay, mail]).unstated(), tuple[str, ...])
assert_type(count, al.Tool)

assistant = al.Agent(
    name="notes",
    instructions="Be brief.",
    tools=[read_note, count],
    policy_version="notes.v1",
    options=al.ModelOptions(temperature=0, tool_choice=al.ToolChoice(name="count")),
    limits=al.LoopLimits(max_model_calls=4, max_seconds=10),
)


async def the_front_door(base_url: str, notes: Notes, sink: al.Sink) -> str:
    provider = al.ChatCompletions(base_url, model="m", api_key=lambda: "key", timeouts=al.Timeouts(total=5))
    as_provider: al.Provider = provider
    policy = al.ResendPolicy(on_unavailable=True, on_refused_stream=True, delay=0.1, max_delay=5, fallbacks=(provider,))
    assert_type(policy.fallbacks, tuple[al.Provider, ...])
    async with al.Runtime(as_provider, resend=policy) as runtime:
        result = await runtime.run(assistant, "hello", deps=notes, sink=sink)
        assert_type(result, al.RunResult[None])
        assert_type(result.usage, al.Usage | None)
        async with runtime.start(assistant, "hello", deps=notes) as run:
            async for event in run:
                assert_type(event, al.Event)
            assert_type(await run.result(), al.RunResult[None])
        texts: AsyncIterator[str] = runtime.text(assistant, "hello", deps=notes)
        async for text in texts:
            assert_type(text, str)
        try:
            await runtime.run(assistant, "hello", deps=notes, checkpoint=True, wait=5.0)
        except al.ModelPending as pending:
            status = await runtime.read(pending.ref, pending.attempt_id)
            assert_type(status, al.SendStatus)
            assert_type(status.reply, al.ModelReply | None)
        ref = await runtime.submit(assistant, "hello", deps=notes, conversation="c1", run_id="r1")
        before: tuple[al.Message, ...] = await runtime.history("c1")
        assert_type(await runtime.run(assistant, "hello", deps=notes, history=before), al.RunResult[None])
        async for event in runtime.follow(ref, after=None):
            assert_type(event.event_id, str)
        await runtime.cancel(ref)
        await runtime.cancel(ref, author="Ann")
        assert_type(runtime.left_over, tuple[al.LeftOver, ...])
        return result.require_text()


def every_event_can_be_told_apart(event: al.RunEvent) -> str:
    match event:
        case al.ModelStart() | al.ModelParsed() | al.ReasoningPreview():
            return event.attempt_id
        case al.TextPreview():
            return assert_type(event.text, str)
        case al.ModelEnd():
            assert_type(event.usage, al.Usage | None)
            return event.status
        case al.RunStarted():
            return event.agent
        case al.RunSteered() | al.RunStopping():
            return event.author or ""
        case al.RequestRejected():
            return event.limit
        case al.ResendScheduled():
            return event.model
        case al.ToolStarted() | al.ToolProgress() | al.ToolEnded() | al.ToolSkipped():
            return event.tool
        case al.RunEnded():
            return event.outcome
        case al.NodeStarted() | al.NodeEnded():
            return event.node
        case al.RouteTaken():
            assert_type(event.route, int | None)
            return event.to or "complete"
        case _:
            assert_never(event)


async def a_run_is_spoken_to_while_it_goes_on(runtime: al.Runtime) -> None:
    async with runtime.start(assistant, "hello", deps=Notes()) as run:
        assert_type(await run.steer("more", author="Ada"), None)
        assert_type(await run.steer((al.TextPart(text="more"),)), None)
        assert_type(await runtime.stop_after_current(run.ref, author="Ada"), None)


async def a_person_decides(runtime: al.Runtime) -> None:
    found = await runtime.waiting()
    assert_type(found, list[al.WaitingCall])
    decisions: dict[str, al.Decision] = {}
    for item in found:
        match item.kind:
            case "approval":
                decisions[item.ref] = al.Approve(author="Ann")
            case "external":
                decisions[item.ref] = al.Answer(al.ToolResult.ok("signed"))
            case _:
                assert_never(item.kind)
    assert_type(await runtime.decide(decisions), None)
    result = await runtime.resume("r1", assistant, decisions={"ref": al.Deny("no")})
    assert_type(result.waiting, tuple[al.WaitingCall, ...])


async def every_checkpoint_can_be_told_apart(runtime: al.Runtime) -> str | None:
    assert_type(await runtime.resume("r1", assistant, input="hello", deps=Notes()), al.RunResult[None])
    assert_type(await runtime.output("r1", 0, 0), str)
    point = await runtime.checkpoint("r1")
    match point:
        case al.PreparedPoint():
            return assert_type(point.catalogue_digest, str)
        case al.ModelPoint():
            return assert_type(point.request.digest, str)
        case al.ToolsPoint():
            assert_type(point.effects, tuple[al.ToolClaim, ...])
            return point.attempt_id
        case al.CompletedPoint():
            return assert_type(point.attempt_id, str | None)
        case _:
            assert_never(point)


def every_output_item_can_be_told_apart(reply: al.ModelReply) -> list[str]:
    found = []
    for item in reply.output:
        match item:
            case al.Text():
                found.append(item.text)
            case al.ToolCall():
                found.append(item.arguments.text)
            case _:
                assert_never(item)
    return found


def every_message_can_be_told_apart(message: al.Message) -> object:
    match message:
        case al.SystemMessage() | al.UserMessage():
            return message.content
        case al.ModelExchange():
            return message.reply
        case _:
            assert_never(message)


def checks_return_what_they_were_given(
    request: al.ModelRequest,
    reply: al.ModelReply,
    result: al.ToolResult,
    feedback: al.ToolFeedback,
    exchange: al.ModelExchange,
) -> None:
    assert_type(al.require_model_request(request), al.ModelRequest)
    assert_type(al.require_model_reply(reply), al.ModelReply)
    assert_type(al.require_tool_result(result), al.ToolResult)
    assert_type(al.require_tool_feedback(feedback), al.ToolFeedback)
    assert_type(al.require_model_exchange(exchange), al.ModelExchange)
    assert_type(al.decode_model_reply(b""), al.ModelReply)
    assert_type(al.reply_text(reply), str)


def events_go_to_json_and_back(event: al.RunEvent) -> al.RunEvent:
    return al.decode_event(al.encode_event(event))


def facts_of_errors_have_types(error: al.AgentLoopError) -> object:
    assert_type(error.code, str)
    assert_type(error.may_have_been_processed, bool)
    match error:
        case al.StreamRefused():
            return assert_type(error.event, int) + assert_type(error.byte, int)
        case al.HTTPStatusError():
            return assert_type(error.retry_after, float | None)
        case al.AdmissionError():
            return assert_type(error.path, str)
        case al.LimitExceeded():
            return assert_type(error.allowed, int)
        case al.NotOwnerError():
            return assert_type(error.owner, str | None), assert_type(error.seconds_left, float | None)
        case al.RunCancelled():
            return assert_type(error.ref, str)
    return None


def a_provider_of_ones_own(provider: al.Provider, request: al.ModelRequest) -> AbstractAsyncContextManager[object]:
    assert_type(provider.inspect_request(request).body_bytes, int)
    return provider.stream(request, attempt_id="a1")


class Printing:
    """A sink is anything with this method."""

    async def emit(self, event: al.OutputEvent) -> None:
        print(event.type)


as_sink: al.Sink = Printing()


class Ticket(msgspec.Struct):
    """A typed value."""

    title: str


sorter = al.Agent(name="sorter", output=Ticket)
by_call = al.Agent(name="sorter", tools=[count], output=al.Structured(Ticket, route="call", instruction="Sort it."))

assert_type(assistant, al.Agent[None])
assert_type(sorter, al.Agent[Ticket])
assert_type(by_call, al.Agent[Ticket])
assert_type(al.Agent(name="sorter", output=list[int]), al.Agent[list[int]])
anything: al.Agent[object] = sorter
chosen: al.Agent[Ticket | None] = al.Agent(name="sorter", output=Ticket | None)  # as the caller says: no type[T]


async def a_value_has_the_type_of_the_output(runtime: al.Runtime) -> Ticket:
    result = await runtime.run(sorter, "hello")
    assert_type(result, al.RunResult[Ticket])
    assert_type(result.value, Ticket | None)
    assert_type(result.require_value(), Ticket)
    assert_type((await runtime.run(chosen, "hello")).require_value(), Ticket | None)
    async with runtime.start(by_call, "hello") as run:
        assert_type(run, al.Run[Ticket])
        assert_type(await run.result(), al.RunResult[Ticket])
    assert_type(await runtime.resume("r1", sorter), al.RunResult[Ticket])
    assert_type(await runtime.result("r1", sorter), al.RunResult[Ticket])
    assert_type(await runtime.result("r1"), al.RunResult[Any])
    return (await runtime.result("r1", by_call)).require_value()


class Point(TypedDict):
    """Another one."""

    x: int


def structured_values_have_their_type(stage: Stage) -> None:
    assert_type(Structured(Ticket), Structured[Ticket])
    assert_type(Structured(Point, id="point", route="call"), Structured[Point])
    assert_type(Structured(list[int]), Structured[list[int]])
    assert_type(Structured(dict[str, Ticket]), Structured[dict[str, Ticket]])
    assert_type(Structured(int, name="count"), Structured[int])
    named: Structured[Ticket | None] = Structured(Ticket | None)
    assert_type(Structured(Ticket).prepare(stage), Interaction[Ticket])
    assert_type(named.output.decode(""), Ticket | None)
    as_transport: Transport[Ticket] = Structured(Ticket)
    assert_type(as_transport.prepare(stage).create_response(), Collector[Ticket])


def transports_have_the_types_of_their_values(stage: Stage, reply: al.ModelReply, tools: al.ToolSet) -> None:
    assert_type(PlainText().prepare(stage).create_response().finish(reply), str)
    assert_type(NativeCall("a", tools).prepare(stage).create_response().finish(reply), object)
    assert_type(JsonCall("b", [read_note]).prepare(stage).create_response().finish(reply), object)
    assert_type(Session("c", tools=tools).prepare(stage).create_response().finish(reply), SessionReply)
    everything: list[Transport[Any]] = [PlainText(), NativeCall("a", tools), Session("c", [read_note])]
    everything.clear()


class Counting:
    """A collector is anything with these members (R202)."""

    output_chars = 0

    def push(self, fragment: Fragment, /) -> None:
        self.output_chars += 1

    def finish(self, reply: al.ModelReply, /) -> int:
        return self.output_chars


class Pieces:
    """So is a transport."""

    id = "pieces"

    def prepare(self, stage: Stage, /) -> Interaction[int]:
        return Interaction(create_response=Counting, route="pieces")


pieces: Transport[int] = Pieces()


async def calls_of_a_runner_have_the_types_of_their_values(
    runtime: al.Runtime, name: str, talk: list[al.Message]
) -> None:
    ticket = Structured(Ticket)
    runner = runtime.runner(transports=(ticket, pieces), max_calls=4, max_input_chars=math.inf)
    assert_type(runner, al.ModelRunner)
    assert_type(await runner.invoke("q"), al.ModelResult[str])
    assert_type((await runner.invoke(talk, stage_id="a", max_output_tokens=5)).value, str)
    assert_type(await runner.invoke("q", transport="core:plain-text"), al.ModelResult[str])
    assert_type(await runner.invoke("q", transport=ticket), al.ModelResult[Ticket])
    assert_type((await runner.invoke("q", transport=pieces)).value, int)
    assert_type(await runner.invoke("q", transport="structured:Ticket"), al.ModelResult[object])
    assert_type(await runner.invoke("q", transport=name), al.ModelResult[object])
    result = await runner.invoke("q")
    assert_type(result.invocation, al.ModelCallRecord)
    assert_type((await runtime.read(result.invocation.ref)).reply, al.ModelReply | None)
    assert_type(runner.last_call, al.ModelCallTrace | None)


async def prepared_calls_have_the_types_of_their_values(provider: al.Provider, name: str) -> None:
    ticket = Structured(Ticket)
    runner = al.ModelRunner(provider, models={"fast": provider}, transports=[ticket], execution=al.Execution())
    assert_type(runner.prepare(), al.Prepared[str])
    assert_type(runner.prepare(transport="core:plain-text"), al.Prepared[str])
    assert_type(runner.prepare(transport=name), al.Prepared[object])
    prepared = runner.prepare(stage_id="triage", transport=ticket, model_id="fast")
    assert_type(prepared, al.Prepared[Ticket])
    assert_type(runner.measure("q", prepared), al.Measurement)
    assert_type(runner.measure("q", prepared).within_budget, bool)
    assert_type(await runner.invoke("q", prepared=prepared), al.ModelResult[Ticket])


async def children_of_a_runner_have_the_types_of_what_they_do(runner: al.ModelRunner, signal: al.Signal) -> None:
    ticket = Structured(Ticket)
    child = runner.child("part", max_calls=2, reserve_calls=1, timeout=5, transports=(ticket,), signal=signal)
    assert_type(child, al.ModelRunner)
    pair = child.execution
    assert_type(pair, al.Execution)
    assert_type(pair.signal, al.Signal | None)
    assert_type(pair.diagnostics, al.Diagnostics | None)

    async def ask() -> Ticket:
        return (await child.invoke("q", transport=ticket)).value

    assert_type(await al.run_children([ask, ask], max_concurrent=2), list[Ticket])
    assert_type(await al.run_children([lambda: runner.invoke("q")], max_concurrent=1), list[al.ModelResult[str]])


class Article(msgspec.Struct, frozen=True):
    topic: str
    text: str | None = None


async def a_workflow_gives_what_it_is_said_to(runtime: al.Runtime, provider: al.Provider) -> int:
    async def write(state: Article, context: al.NodeContext) -> dict[str, object]:
        assert_type((await context.model.invoke(state.topic)).value, str)
        assert_type((await context.model.invoke("x", transport=Structured(Ticket))).value, Ticket)
        assert_type(await context.agents.run(assistant, "x"), al.RunResult[None])
        assert_type((await context.tools.call("read_note", {"id": "n"})).require(), str)
        return {"text": "…"}

    def is_long(value: int) -> bool:
        return value > 3

    node = al.Node("write", "Write", run=write, provides=("text",), routes=(al.Route(complete=len),))
    workflow = al.define_workflow("article", state=Article, nodes=[node], is_result=is_long)
    assert_type(workflow, al.Workflow[Article, int])
    engine = runtime.engine(workflow, max_calls=2)
    assert_type(engine, al.Engine[Article, int])
    assert_type(engine.state, Article | None)
    fork = engine.fork(model=al.RunnerDefinition(provider, max_calls=1))
    assert_type(fork, al.Engine[Article, int])

    async def step(number: int, context: al.NodeContext) -> al.Continue | al.Complete[bytes]:
        return al.Continue() if number < 3 else al.Complete(context.node.encode())

    by_hand = al.Engine(model_runtime=runtime.runner())
    assert_type(await by_hand.run(step), bytes)
    return assert_type(await fork.run(Article(topic="tides")), int)


async def a_backend_takes_what_it_is_said_to(
    runtime: al.Runtime, request: web.Request, exchange: al.ModelExchange
) -> None:
    async def auth(request: web.Request) -> str | None:
        return request.headers.get("X-User")

    metrics = PrometheusMetrics()
    app = chat_app(runtime, [assistant], auth=auth, deps=len, limits=WebLimits(runs=3), metrics=metrics)
    assert_type(app, web.Application)
    assert_type(app[SERVICE], Service)
    chat_app(runtime, (assistant,), auth=None, client_gone="detach", page=True, origins=["https://a.example"])
    chat_app(runtime, [assistant])  # type: ignore[call-arg]  # who may ask must be said
    chat_app(runtime, [assistant], auth=None, client_gone="stay")  # type: ignore[arg-type]
    async with runtime.start(assistant, "x", history=(exchange,)) as run:
        assert_type(await sse_response(request, run), web.StreamResponse)
    assert_type(await sse_response(request, runtime.follow("r")), web.StreamResponse)
    assert_type(await runtime.view("r"), RunView)
    assert_type(await runtime.turns("c"), list[RunView])
    await runtime.take_up("r", assistant, decisions={"ref": al.Approve()})
