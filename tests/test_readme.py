"""The README's code runs as shown, and its tables say what the code says."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

import agentloop as al
from agentloop import errors, limits
from agentloop.cli import COMMANDS
from agentloop.exchange import Fact, ReplyTaken, SendEnded, SlotMoved, SlotState
from agentloop.persistence.sqlite import SQLiteBackend
from agentloop.runner import Route
from agentloop.testing import ReplayServer, ScriptedProvider, call, reply
from agentloop.tools.recovery import RecoveryKind
from agentloop.wire.presets import PRESETS
from tests.readme_tables import README, rendered, section

ROOT = README.parent
TEXT = README.read_text(encoding="utf-8")
BLOCKS = re.findall(r"<!-- run: (script|fragment) -->\n```python\n(.*?)```", TEXT, re.DOTALL)
FIRST = next(code for kind, code in BLOCKS if kind == "script")


def stream(delta: dict[str, Any], finish: str) -> bytes:
    """A stream with one delta."""
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    chunks = [
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"id": "r", "model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {"id": "r", "model": "m", "choices": [], "usage": usage},
    ]
    return b"".join(b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


FUNCTION = {"name": "read_note", "arguments": '{"name":"plan"}'}
ASKS = stream({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": FUNCTION}]}, "tool_calls")
ANSWERS = stream({"content": "On 12 May."}, "stop")
TYPED = {
    "Ticket": '{"title":"Printer on fire","urgency":"high"}',
    "Size": '{"width":"two metres"}',
    "Launch": '{"day":12,"month":"May"}',
}
"""What it says where a schema is asked for, by the name of that."""


@pytest.fixture
def endpoint() -> Iterator[ReplayServer]:
    """A server in a thread of its own, since a script has its own event loop."""
    server, started, stop = ReplayServer().script(*[ASKS, ANSWERS] * 4), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with server:
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    started.wait(10)
    yield server
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


ASKED: dict[str, dict[str, Any]] = {
    "ask_notes": {"task": "When is the launch?"},
    "publish": {"title": "Launch"},
    "read_page": {"url": "https://example.org"},
    "buy": {"what": "tea"},
    "reserve": {"sku": "M-1", "quantity": 2},
    "shop": {"task": "Buy tea."},
}
"""What the model of the fragments asks tools for; every other one for the plan."""


def answer(request: al.ModelRequest) -> al.ModelReply:
    """What the model of the fragments says: it calls the first tool once, then answers."""
    wanted = request.options.response_format
    if wanted is not None:
        return reply(text=TYPED[wanted.name or ""])
    if not request.tools or request.exchanges:
        return reply(text="On 12 May.")
    name = request.tools[0].name
    arguments = ASKED.get(name, {"name": "plan"})
    return reply(calls=[call(name, arguments_text=msgspec.json.encode(arguments).decode())])


def test_every_python_block_is_run() -> None:
    assert TEXT.count("```python") == len(BLOCKS)
    assert [kind for kind, _ in BLOCKS].count("script") == 1


def test_the_first_agent_runs_as_shown(
    endpoint: ReplayServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
    monkeypatch.setenv("AGENTLOOP_MODEL", "some-model")
    exec(compile(FIRST, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == "On 12 May.\n"
    assert endpoint.requests[1].json["messages"][-1]["content"] == "The launch is on 12 May."


def test_the_fragments_run_inside_a_runtime(
    endpoint: ReplayServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "readme", "base_url": endpoint.url}
    exec(compile(FIRST.partition("async def main")[0], "README.md", "exec"), scope)

    async def run_all() -> dict[str, Any]:
        results: dict[str, Any] = {}
        for kind, code in BLOCKS:
            if kind == "script":
                continue
            async with al.Runtime(ScriptedProvider([answer] * 8)) as runtime:
                scope["runtime"] = runtime
                body = compile(code, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
                made = eval(body, scope)
                if inspect.isawaitable(made):
                    await made
                results[code] = scope.get("result")
        return results

    results = asyncio.run(run_all())
    ended = [result for result in results.values() if result is not None]
    assert len(results) == len(BLOCKS) - 1
    assert all(result.outcome == "completed" for result in ended)
    shown = capsys.readouterr().out
    assert '[read_note {"name":"plan"}]' in shown
    assert 'approval publish {"title":"Launch"}' in shown
    assert "On 12 May." in shown
    assert scope["clerk"].toolset.require("reserve").spec.description == "Reserve some pieces of an item."


class CutOff(SQLiteBackend):
    """A medium that fails when a certain fact is to be written, so that the runtime leaves all as it is."""

    def __init__(self, path: Path, cut: Callable[[Fact], bool]) -> None:
        super().__init__(path)
        self._cut = cut

    async def append(self, facts: Sequence[Fact], *, token: int | None = None, after: str | None = None) -> None:
        if any(map(self._cut, facts)):
            raise al.PersistenceError("cut off")
        await super().append(facts, token=token, after=after)


@pytest.mark.parametrize(
    ("cut", "kind"),
    [
        (lambda fact: type(fact) is ReplyTaken, "send"),
        (lambda fact: type(fact) is SlotMoved and fact.state == "done", "call"),
    ],
)
async def test_a_service_takes_up_what_it_left_as_shown(
    tmp_path: Path, cut: Callable[[Fact], bool], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """(R84)"""
    chapter = section_of("## What happens when the process dies")
    shown = next(code for _, code in BLOCKS if code in chapter).partition("\nmodel = ")[0]
    ran = []

    @al.tool
    async def pay(name: str) -> str:
        """Pay somebody."""
        ran.append(name)
        return "paid"

    payer = al.Agent(name="payer", tools=[pay], policy_version="v1")
    scope: dict[str, Any] = {"al": al, "assistant": payer}
    exec(compile(shown, "README.md", "exec"), scope)
    async with al.Runtime(ScriptedProvider([answer]), store=CutOff(tmp_path / "facts.db", cut)) as runtime:
        with pytest.raises(al.PersistenceError):
            await runtime.run(payer, "Pay.", run_id="r")
    async with al.Runtime(ScriptedProvider([answer] * 2), store=tmp_path / "facts.db") as runtime:
        (item,) = await runtime.unsettled()
        assert item.kind == kind
        await scope["take_up"](runtime)
        if kind == "call":
            assert "for a person to decide: run 'r' waits to be settled: call 0.0" in capsys.readouterr().out
            scope["known"][item.effect_id] = al.ToolResult.ok("paid, says the bank")
            await scope["take_up"](runtime)
        assert (await runtime.result("r")).text == "On 12 May."
        assert await runtime.unfinished() == []
    assert ran == ["plan"]


async def test_two_services_that_take_up_at_once_share_what_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The slower one has seen what the faster one took since, and goes on with the rest (R84)."""
    chapter = section_of("## What happens when the process dies")
    shown = next(code for _, code in BLOCKS if code in chapter).partition("\nmodel = ")[0]
    path, began, go = tmp_path / "facts.db", asyncio.Event(), asyncio.Event()

    @al.tool(idempotent=True)
    async def hold() -> str:
        """Hold the run where it is."""
        began.set()
        await go.wait()
        return "held"

    agent = al.Agent(name="a", tools=[hold])
    scope: dict[str, Any] = {"al": al, "assistant": agent}
    exec(compile(shown, "README.md", "exec"), scope)
    cut = CutOff(path, lambda fact: type(fact) is ReplyTaken)
    async with al.Runtime(ScriptedProvider([reply("lost")] * 2), store=cut) as runtime:
        ended = [runtime.run(agent, "Go.", run_id=name) for name in ("r1", "r2")]
        assert all(isinstance(end, al.PersistenceError) for end in await asyncio.gather(*ended, return_exceptions=True))
    holds, answers = ScriptedProvider([reply(calls=[call("hold")]), reply("done")]), ScriptedProvider([reply("done")])
    async with al.Runtime(holds, store=path) as faster, al.Runtime(answers, store=path) as slower:
        seen = {name: await getattr(slower, name)() for name in ("unsettled", "unfinished")}
        assert [len(rows) for rows in seen.values()] == [2, 2]
        taken = seen["unfinished"][0].run_id
        (send,) = [item.effect_id for item in seen["unsettled"] if item.ref == taken]
        await faster.settle_send(taken, send, author="faster")
        going = asyncio.create_task(faster.resume(taken, agent))
        await began.wait()
        for name, rows in seen.items():
            monkeypatch.setattr(slower, name, lambda rows=rows: asyncio.sleep(0, rows))
        await scope["take_up"](slower)
        monkeypatch.undo()
        assert f"not finished here: not_owner: run '{taken}'" in capsys.readouterr().out
        assert [row.run_id for row in await slower.unfinished()] == [taken]
        go.set()
        assert (await going).text == "done"


@pytest.mark.parametrize("arrived", [True, False])
async def test_a_lookup_recovers_a_payment_as_shown(tmp_path: Path, arrived: bool) -> None:
    """The process dies before the answer is stored, whether the payment has arrived or not (R139)."""
    shown = next(code for _, code in BLOCKS if "find_payment" in code)
    scope: dict[str, Any] = {"al": al}
    exec(compile(shown, "README.md", "exec"), scope)
    payer = al.Agent(name="payer", tools=[scope["pay"]])
    script = [reply(calls=[call("pay", to="Ann", amount=7)])]
    cut = CutOff(tmp_path / "facts.db", lambda fact: type(fact) is SlotMoved and fact.state == "done")
    async with al.Runtime(ScriptedProvider(script), store=cut) as runtime:
        with pytest.raises(al.PersistenceError):
            await runtime.run(payer, "Pay.", run_id="r")
    assert scope["payments"].pop("r/0.0") == "paid 7 to Ann"
    if arrived:
        scope["payments"]["r/0.0"] = "paid, says the bank"
    provider = ScriptedProvider([reply("Paid.")])
    async with al.Runtime(provider, store=tmp_path / "facts.db") as runtime:
        assert (await runtime.resume("r", payer)).text == "Paid."
    said = "paid, says the bank" if arrived else "paid 7 to Ann"
    assert scope["payments"] == {"r/0.0": said}
    assert [item.text for item in provider.requests[0].exchanges[0].feedback] == [said]


def test_how_a_tool_is_recovered_is_told_for_each_way() -> None:
    told = section_of("## What happens when the process dies").partition("| `recovery=` |")[2].partition("<!--")[0]
    assert all(way in told for way in ('`"repeat"`', "a lookup", '`"settle"`, or nothing'))
    assert set(get_args(RecoveryKind)) == {"repeat", "lookup", "settle", "none"}


def test_the_tables_of_states_name_every_state() -> None:
    """Of slots but ``waiting``, which nothing sets yet, and of sends."""
    told = section(TEXT, "states")
    states = {
        state for row in re.findall(r"^\| ([^|]+) \|", told, re.MULTILINE) for state in re.findall(r"`(\w+)`", row)
    }
    assert states == {*get_args(SlotState), *get_args(get_type_hints(SendEnded)["outcome"])} - {"waiting"}


@pytest.mark.parametrize("name", list(rendered()))
def test_a_table_says_what_the_code_says(name: str) -> None:
    assert section(TEXT, name) == rendered()[name], "run: python -m tests.readme_tables"


def test_the_error_table_names_every_error_to_catch_and_whether_repeating_is_safe() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", section(TEXT, "errors"), re.MULTILINE))
    for name, said in rows.items():
        kind = getattr(al, name)
        assert issubclass(kind, al.AgentLoopError)
        if said.startswith(("no", "yes", "maybe")):
            assert kind.may_have_been_processed is not said.startswith("no"), name
    direct = {kind.__name__ for kind in al.AgentLoopError.__subclasses__() if kind.__module__ == errors.__name__}
    untold = {"ToolFailed", "RestoreError", "ProviderError"}  # raised by you, or told by their kinds
    assert direct - untold <= set(rows)
    assert {kind.__name__ for kind in al.ProviderError.__subclasses__()} <= set(rows)


def test_the_limits_are_those_of_the_code() -> None:
    numbers = dict(re.findall(r"^\| (.+?) \| (.+) \|$", section_of("## Limits and outcomes"), re.MULTILINE))
    loop, send = al.LoopLimits(), al.Timeouts()
    assert numbers["model calls a run (`max_model_calls`; above 32 only with `ceiling=`)"] == str(loop.max_model_calls)
    sizes = [loop.reply_bytes, loop.feedback_bytes, loop.request_bytes, loop.collection_bytes]
    assert numbers["one reply / one feedback / the expanded request / all exchanges of a run"] == _sizes(sizes)
    http = [limits.ENCODED_REQUEST_BYTES, limits.RESPONSE_BYTES, limits.EVENT_BYTES]
    assert numbers["encoded HTTP request / response / one event"] == _sizes(http)
    clocks = [send.total, send.idle, send.first_event, send.connect]
    shown = " / ".join("off" if clock is None else f"{clock:g} s" for clock in clocks)
    assert numbers["one send: total / idle / first event / connect"] == shown
    most = f"{limits.MAX_TOOLS}; {loop.max_parallel_tools} (up to {limits.MAX_PARALLEL_TOOLS_CEILING})"
    assert numbers["tools an agent; at the same time; agents below agents"] == f"{most}; {loop.max_depth} deep"
    clocks = f"{limits.TOOL_TIMEOUT:g} s / {limits.TOOL_GRACE:g} s / {limits.TOOL_RETRIES}"
    assert numbers["one execution of a tool: timeout / grace / retries if idempotent"] == clocks
    assert numbers["rounds of a workflow"] == str(limits.MAX_ROUNDS)


def test_the_budgets_of_a_runner_are_those_of_the_code() -> None:
    told = section_of("### Budgets")
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", told, re.MULTILINE))
    children = al.ChildLimits()
    assert rows == {
        "max_calls": f"{limits.MAX_RUNNER_CALLS}",
        "max_tokens": "off",
        "call_timeout": f"{limits.CALL_TIMEOUT:g} s",
        "max_input_chars": f"{limits.MAX_INPUT_CHARS:,}",
        "max_schema_chars": f"{limits.MAX_SCHEMA_CHARS:,}",
        "max_output_chars": f"{limits.MAX_OUTPUT_CHARS:,}",
        "max_output_tokens": f"{limits.MAX_OUTPUT_TOKENS:,}",
        "token_budget": "off",
        "children": f"depth {children.max_depth}, {children.max_concurrent_calls} call at a time, "
        f"{children.max_children} in all",
    }


def test_the_route_of_each_dialect_is_told() -> None:
    told = section(TEXT, "routes")
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", told, re.MULTILINE))
    assert list(rows) == list(get_args(Route))
    named = {name: route for route, names in rows.items() for name in re.findall(r"`(\w+)`", names)}
    for name, dialect in PRESETS.items():
        if not name.endswith("_no_usage"):
            taken = al.Structured(int).prepare(al.Stage(stage_id="s", dialect=dialect)).route
            assert taken == named.get(name, "call"), name


def test_what_it_points_to_is_there() -> None:
    targets = set(re.findall(r"    make ([a-z]+)", TEXT)) | set(re.findall(r"`make ([a-z]+)`", TEXT))
    assert set(re.findall(r"(?:`|    )agentloop ([a-z]+)\b", TEXT)) <= set(COMMANDS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    assert all(
        (ROOT / path).exists() for path in re.findall(r"`((?:examples|agentloop|benchmarks|\.ci)/[\w./]*)`", TEXT)
    )


def test_it_never_names_the_other_distribution() -> None:
    assert "pip install agentloop" not in TEXT.replace("pip install agentloop-runtime", "")


def section_of(heading: str) -> str:
    """The text from a heading to the next one."""
    return TEXT.split(heading)[1].split("\n## ")[0]


def _sizes(values: list[int]) -> str:
    return " / ".join(f"{v // (1 << 20)} MiB" if v >= 1 << 20 else f"{v // 1024} KiB" for v in values)
