"""One life of a process that is killed: ``python -m tests.system.kill_child STORE SCHEMA BASE_URL FOLDER``.

It does what a host does when it starts: look for the run, settle what an earlier life left, and
finish it. Every durable write, send, tool start and lookup has a point before it and one after it. The
environment variable ``AGENTLOOP_TEST_KILL_AT`` names the point, counted from 1, at which it sends
itself SIGKILL. What it does, and what it was promised, it prints as JSON lines, unbuffered.

Without arguments it imports everything, opens nothing, and forks one life for each line of standard
input (`Birth`), so that hundreds of them need no minutes; it prints the pid and the status of each.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import aiohttp
import msgspec

import agentloop as al
from agentloop.exchange import Fact, SendStarted, SlotMoved
from agentloop.persistence import Backend, Lease
from agentloop.persistence.postgres import PostgresBackend
from agentloop.persistence.records import encode_record
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.providers import ModelStream
from tests.system.counting_model import HELD

__all__ = [
    "Birth",
    "CONVERSATION",
    "KillableBackend",
    "KillableModel",
    "LEFT",
    "LOOKUP",
    "NON_IDEMPOTENT",
    "RUN",
    "act",
    "effects",
    "find_payment",
    "point",
    "said",
    "serve",
    "setting",
    "tell",
]

LEFT = "left its send"
LOOKUP = "before lookup pay"
"""Points by name: the run has left a send that goes on, and the tool ``pay`` is looked up."""

RUN = "order-1"
CONVERSATION = "orders"
NON_IDEMPOTENT = ("pay", "mail")

_EFFECTS = "effects.jsonl"
_WAIT = 0.001
"""Seconds that a run waits for a send that it shall leave: held answers come later."""

_points = 0


class Birth(msgspec.Struct):
    """Where one life is to be led.

    Attributes:
        arguments: of the command line. environment: set in that process only. output: a file for what it prints.
    """

    arguments: list[str]
    environment: dict[str, str]
    output: str


def setting(name: str, default: str) -> str:
    """What the test wants of this life.

    ``KILL_AT``: the point to die at. ``LEASE``: seconds that a lease lives, so short by default that
    who comes next need not wait for it. ``CLAIMS``: ``late`` keeps claims off the medium until what
    they claimed is over, which is the fault to be seen. ``RECOVERY``: ``on`` runs with recovery
    points and tools that say how they are recovered. ``LEAVES``: the first send is held and left;
    it is answered while the runtime closes (``close``), or while the run waits again (``resume``).
    """
    return os.environ.get(f"AGENTLOOP_TEST_{name}", default)


def recovers() -> bool:
    """Whether the run has recovery points."""
    return setting("RECOVERY", "off") == "on"


def tell(**values: Any) -> None:
    """Print one line that a kill cannot take back."""
    os.write(1, json.dumps(values).encode() + b"\n")


def point(name: str) -> None:
    """A place to die at."""
    global _points  # noqa: PLW0603
    _points += 1
    tell(point=_points, name=name)
    if _points == int(setting("KILL_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)


def said(tool: str, word: str) -> str:
    """What a tool answers."""
    return f"{tool} did {word}"


class KillableBackend:
    """A medium with points around its writes, that tells every write it was promised."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._late: list[Fact] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        what = "+".join(_kind(fact) for fact in facts)
        point(f"before append {what}")
        claims = [fact for fact in facts if setting("CLAIMS", "stored") == "late" and _is_claim(fact)]
        facts, self._late = [*self._late, *(fact for fact in facts if fact not in claims)], claims
        if facts:
            await self._inner.append(facts, token=token, after=after)
            tell(held=[encode_record(fact).decode() for fact in facts])
        point(f"after append {what}")

    async def acquire(self, run_id: str, owner: str, *, seconds: float) -> Lease:
        point("before acquire")
        lease = await self._inner.acquire(run_id, owner, seconds=min(seconds, float(setting("LEASE", "0.001"))))
        point("after acquire")
        return lease

    async def release(self, lease: Lease) -> None:
        point("before release")
        await self._inner.release(lease)
        point("after release")


def _kind(fact: Fact) -> str:
    return f"{type(fact).__name__} {fact.state}" if type(fact) is SlotMoved else type(fact).__name__


def _is_claim(fact: Fact) -> bool:
    return type(fact) is SendStarted or (type(fact) is SlotMoved and fact.state == "started")


class KillableModel(al.ChatCompletions):
    """An endpoint with points around the send: before its first byte, and when its answer has begun.

    Attributes:
        answered: set once an answer has begun.
    """

    def __init__(self, base_url: str, **options: Any) -> None:
        super().__init__(base_url, **options)
        self.answered = asyncio.Event()

    @asynccontextmanager
    async def stream(
        self, request: al.ModelRequest, *, attempt_id: str, max_reply_bytes: int | None = None
    ) -> AsyncIterator[ModelStream]:
        point("before send")
        async with super().stream(request, attempt_id=attempt_id, max_reply_bytes=max_reply_bytes) as stream:
            point("after send")
            self.answered.set()
            yield stream


def act(ctx: al.ToolContext[Path], word: str) -> str:
    """The effect: one line, written whole."""
    point(f"before tool {ctx.tool}")
    line = json.dumps({"tool": ctx.tool, "word": word, "effect_id": ctx.effect_id, "pid": os.getpid()})
    file = os.open(ctx.deps / _EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode() + b"\n")
    os.close(file)
    point(f"after tool {ctx.tool}")
    return said(ctx.tool, word)


@al.tool(idempotent=True)
async def look(word: str, ctx: al.ToolContext[Path]) -> str:
    """Safe to repeat."""
    return act(ctx, word)


async def pay(word: str, ctx: al.ToolContext[Path]) -> str:
    """Not safe to repeat."""
    return act(ctx, word)


def mail(word: str, ctx: al.ToolContext[Path]) -> str:
    """Not safe to repeat; runs in a thread."""
    return act(ctx, word)


async def find_payment(word: str, ctx: al.ToolContext[Path]) -> str | al.NotDone:
    """What became of a payment, by the id of its execution. Nobody can be late: who paid is dead."""
    point(LOOKUP)
    done = [effect for effect in effects(ctx.deps) if effect["effect_id"] == ctx.effect_id]
    point("after lookup pay")
    return said("pay", done[0]["word"]) if done else al.NOT_DONE


def clerk() -> al.Agent:
    """The same agent in all lives of a case; whether its tools say how they are recovered, is a setting."""
    tools = [look, al.tool(pay), al.tool(mail)]
    if recovers():
        tools = [look, al.tool(recovery=find_payment)(pay), al.tool(recovery="settle")(mail)]
    return al.Agent(name="clerk", instructions="Look, pay, then write.", tools=tools, policy_version="v1")


def effects(folder: Path) -> list[dict[str, Any]]:
    """What the tools did so far, in all lives."""
    path = folder / _EFFECTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


async def settle(runtime: al.Runtime, unsettled: al.Unsettled, folder: Path) -> None:
    """Decide as a host may: by evidence for ``pay``, by allowing one more run for ``mail``.

    With recovery points it goes by evidence alone, so that nothing has to be done twice.
    """
    tell(settles=unsettled.tool or "send")
    if unsettled.kind == "send":
        tell(sends_again_after=unsettled.effect_id)
        await runtime.settle_send(unsettled.ref, unsettled.effect_id, author="kill test")
        return
    result = None
    done = [effect for effect in effects(folder) if effect["effect_id"] == unsettled.effect_id]
    if done and (unsettled.tool == "pay" or recovers()):
        result = al.ToolResult.ok(said(unsettled.tool or "", done[0]["word"]))
    elif done:
        tell(runs_again=unsettled.tool, after=len(done))
    assert unsettled.exchange is not None
    assert unsettled.position is not None
    await runtime.settle_call(unsettled.ref, unsettled.exchange, unsettled.position, author="kill test", result=result)


async def begin(runtime: al.Runtime, folder: Path, **options: Any) -> al.RunResult:
    """Run from the beginning."""
    if recovers():
        options["checkpoint"] = True
    return await runtime.run(clerk(), "Order it.", conversation=CONVERSATION, run_id=RUN, deps=folder, **options)


async def finish(runtime: al.Runtime, folder: Path) -> al.RunResult:
    """Resume the run, or begin it where nothing of it is there."""
    try:
        return await runtime.resume(RUN, clerk(), deps=folder)
    except al.LostError:
        return await begin(runtime, folder)


async def leave(runtime: al.Runtime, provider: KillableModel, folder: Path, base_url: str) -> al.RunResult | None:
    """Begin the run, leave its first send when that has been answered in part, and let the rest come.

    Meanwhile the runtime closes, which waits for the send, or the run is waited for again.
    """
    try:
        await begin(runtime, folder, wait=_WAIT)
    except al.ModelPending as pending:
        tell(left_attempt=pending.attempt_id)
    else:
        raise AssertionError("expected the run to leave a send that is held")
    await provider.answered.wait()
    point(LEFT)
    async with asyncio.TaskGroup() as group:  # in this order
        if setting("LEAVES", "") == "close":
            group.create_task(runtime.aclose())
            going = None
        else:
            going = group.create_task(runtime.resume(RUN, clerk(), deps=folder, wait=None))
        group.create_task(release(base_url))
    return None if going is None else going.result()


async def release(base_url: str) -> None:
    """Let the endpoint finish what it holds."""
    async with aiohttp.ClientSession() as session, session.post(f"{base_url}/release") as response:
        response.raise_for_status()


async def once(work: Callable[[], Awaitable[al.RunResult]]) -> al.RunResult | None:
    """Its result; None, and told, where it is refused until something is settled or an owner is gone."""
    try:
        return await work()
    except al.UnsettledError as error:
        tell(refused="unsettled", sends=error.sends, calls=error.calls)
    except al.NotOwnerError as error:
        tell(refused="owned", message=str(error))
    return None


async def live(store: str, schema: str, base_url: str, folder: Path) -> None:
    """Do what is left to do, and say what was found."""
    inner: Backend = PostgresBackend(store, schema=schema) if schema else SQLiteBackend(store)
    backend = KillableBackend(inner)
    leaves = setting("LEAVES", "")
    provider = KillableModel(base_url, model="some-model", headers={HELD: "yes"} if leaves else None)
    async with al.Runtime(provider, store=backend) as runtime:
        tell(found=[encode_record(fact).decode() for fact in await inner.load()])
        tell(
            unfinished=[row.run_id for row in await runtime.unfinished()],
            unsettled=[[item.kind, item.effect_id, item.tool] for item in await runtime.unsettled()],
        )
        if leaves:
            result = await leave(runtime, provider, folder, base_url)
            if leaves == "close":
                return
        else:
            result = await once(lambda: finish(runtime, folder))
        if result is None:
            for item in await runtime.unsettled():
                if item.tool != "look":
                    await settle(runtime, item, folder)
            result = await once(lambda: finish(runtime, folder))
        if result is not None:
            tell(outcome=result.outcome, text=result.text)
        tell(left=[encode_record(fact).decode() for fact in await inner.load()])


def serve(main: Callable[[list[str]], None]) -> None:
    """Fork one life after the other."""
    for line in sys.stdin.buffer:
        birth = msgspec.json.decode(line, type=Birth)
        pid = os.fork()
        if pid == 0:
            lead(birth, main)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        tell(pid=pid, status=status)


def lead(birth: Birth, main: Callable[[list[str]], None]) -> NoReturn:
    """Be that process, and end."""
    try:
        os.environ.update(birth.environment)
        os.dup2(os.open(birth.output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 1)
        main(birth.arguments)
    except BaseException:  # noqa: BLE001  # nothing of it may go on as the one that forks
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Live once."""
    store, schema, base_url, folder = arguments
    asyncio.run(live(store, schema, base_url, Path(folder)))


if __name__ == "__main__":
    if sys.argv[1:]:
        main(sys.argv[1:])
    else:
        serve(main)
