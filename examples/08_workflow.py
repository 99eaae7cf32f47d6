"""A workflow: nodes on a typed state, a loop that is bounded, a tool, an agent as a node, and the way it took."""

import asyncio
from typing import Any

import msgspec

import agentloop as al
from agentloop.testing import call, reply

from endpoint import provider


class Article(msgspec.Struct, frozen=True):
    """The state. Nodes read it and return patches; the engine replaces it."""

    topic: str
    facts: str | None = None
    text: str | None = None
    fault: str | None = None
    revisions: int = 0


@al.tool(idempotent=True)
async def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


@al.tool(idempotent=True)
async def look_up(topic: str, ctx: al.ToolContext[dict[str, str]]) -> str:
    """Look a topic up in the almanac."""
    return ctx.deps[topic]


researcher = al.Agent(name="researcher", instructions="Find the facts.", tools=[look_up])


async def write(article: Article, context: al.NodeContext) -> dict[str, Any]:
    """A model call; the run's budget, signal and diagnostics come with the context."""
    asked = f"Write one sentence: {article.facts}"
    if article.fault is not None:
        asked = f"Revise, {article.fault}: {article.text}"
    text = (await context.model.invoke(asked)).value
    return {"text": text, "revisions": article.revisions + (article.fault is not None)}


async def review(article: Article, context: al.NodeContext) -> dict[str, Any]:
    """A tool, executed as in an agent's loop. A recoverable fault is part of the state."""
    words = int((await context.tools.call("count_words", {"text": article.text})).require())
    return {"fault": f"{words} words are too many" if words > 8 else None}


def is_good(article: Article) -> bool:
    """A guard: sync, and exactly a bool."""
    return article.fault is None


workflow: al.Workflow[Article, str] = al.define_workflow(
    "article",
    state=Article,
    nodes=[
        al.agent_node(
            "research",
            "Find the facts",
            researcher,
            input=lambda article: f"What is known of {article.topic}?",
            into="facts",
            on_error="give up",
            routes=(al.Route(to="write"),),
        ),
        al.Node(
            "write",
            "Write, or revise",
            run=write,
            starts_round=True,  # what bounds the loop
            requires=("facts",),
            provides=("text", "revisions"),
            routes=(al.Route(to="review"),),
        ),
        al.Node(
            "review",
            "Count the words",
            run=review,
            requires=("text",),
            provides=("fault",),
            routes=(
                al.Route(complete=lambda article: article.text, when=is_good),
                al.Route(to="write", label="revise"),
            ),
        ),
        al.Node("give up", "Say so", routes=(al.Route(complete="Nothing is known."),)),
    ],
    is_result=lambda text: isinstance(text, str),
)


def answer(request: al.ModelRequest) -> al.ModelReply:
    """What a model would say; it follows from what it is asked."""
    if "Revise, 11 words are too many" in str(request.messages):
        return reply(text="The moon pulls the sea; so tides rise.")
    return reply(text="The moon pulls at the sea, and so the tides rise.")


SCRIPT = [reply(calls=[call("look_up", topic="tides")]), reply(text="The moon pulls the sea."), answer, answer]


async def main() -> None:
    async with al.Runtime(provider(SCRIPT)) as runtime:
        engine = runtime.engine(workflow, tools=[count_words], max_rounds=3, max_calls=4)  # calls of the agent included
        text = await engine.run(Article(topic="tides"), deps={"tides": "The moon does it."})

    print(f"result: {text}")
    if (state := engine.state) is not None:  # as it was committed last, however a run ends
        print(f"state:  {state.revisions} revision, facts: {state.facts}")
    for trace in engine.journal.nodes:
        print(f"  round {trace.round}: {trace.node}, {trace.status}")
    print(workflow.to_mermaid(engine.journal), end="")

    try:
        al.define_workflow("endless", state=Article, nodes=[al.Node("a", "A", routes=(al.Route(to="a"),))])
    except al.WorkflowError as refused:
        print(f"refused: {refused}")


asyncio.run(main())
