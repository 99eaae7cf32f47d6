"""The lives of one run, each a process that may be killed, and what must hold over all of them."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec

from tests.source import ROOT
from tests.system.counting_model import CountingModel, Received
from tests.system.kill_child import LOOKUP, NON_IDEMPOTENT, RUN, Birth, effects

__all__ = ["Case", "Life", "Nursery", "Place", "State", "Verdict"]


class Place(NamedTuple):
    """A medium of one case: a file, or a schema of a database."""

    store: str
    schema: str = ""


class State(NamedTuple):
    """What the facts say of the run, worked out without the code under test.

    Attributes:
        unsettled: kind, id and tool of each effect without an outcome.
        waits: those of them that keep the run from going on until a host settles them.
        asks: those of them that a lookup decides on first.
        claims: ids of everything that was claimed.
    """

    unfinished: list[str]
    unsettled: list[list[str | None]]
    waits: list[list[str | None]]
    asks: list[list[str | None]]
    claims: set[str]

    @classmethod
    def of(cls, records: list[str], *, lookups: Container[str | None] = ()) -> State:
        """The state after these records, where these tools have a lookup."""
        facts = [json.loads(record) for record in records]
        opened = [fact["run_id"] for fact in facts if fact["fact"] == "origin_opened"]
        closed = [fact["run_id"] for fact in facts if fact["fact"] == "run_closed"]
        sends = [fact["attempt_id"] for fact in facts if fact["fact"] == "send_started"]
        ended = [fact["attempt_id"] for fact in facts if fact["fact"] == "send_ended"]
        slots = {fact["effect_id"]: fact for fact in facts if fact["fact"] == "slot_moved"}
        names = [
            (f"{RUN}/{fact['index']}.{at}", item["name"])
            for fact in facts
            if fact["fact"] == "reply_taken"
            for at, item in enumerate(item for item in fact["reply"]["output"] if item["kind"] == "tool-call")
        ]
        lost: list[list[str | None]] = [
            ["call", effect_id, name]
            for effect_id, name in names
            if effect_id in slots and slots[effect_id]["state"] in ("started", "unknown")
        ]
        allowed = set()  # to run once more, and not begun since
        for fact in facts:
            if fact["fact"] == "rerun_allowed":
                allowed.add(f"{RUN}/{fact['exchange']}.{fact['position']}")
            elif fact["fact"] == "slot_moved" and fact["state"] == "started":
                allowed.discard(fact["effect_id"])
        asked: list[list[str | None]] = [["send", send, None] for send in sends if send not in ended]
        decided = [item for item in lost if item[2] != "look" and item[1] not in allowed]
        return cls(
            unfinished=[run for run in opened if run not in closed],
            unsettled=asked + lost,
            waits=asked + [item for item in decided if item[2] not in lookups],
            asks=[item for item in decided if item[2] in lookups],
            claims={*sends, *slots},
        )


class Life:
    """What one process printed, and how it ended."""

    def __init__(self, lines: list[dict[str, Any]], status: int | None, pid: int) -> None:
        self._lines, self.status, self.pid = lines, status, pid

    def all(self, name: str) -> list[Any]:
        """Every value printed under a name."""
        return [line[name] for line in self._lines if name in line]

    def one(self, name: str) -> Any:
        """The value printed under a name; None where it was not."""
        found = self.all(name)
        return found[0] if found else None

    @property
    def points(self) -> list[str]:
        return self.all("name")

    @property
    def held(self) -> list[str]:
        """The records whose writing was acknowledged."""
        return [record for batch in self.all("held") for record in batch]

    @property
    def killed(self) -> bool:
        return self.status == -signal.SIGKILL


class Verdict(NamedTuple):
    """What went wrong in one case: nothing, it is hoped."""

    double_sends: int = 0
    double_effects: int = 0
    lost_facts: int = 0
    faults: tuple[str, ...] = ()


class Nursery:
    """A process that forks lives, one at a time; it never had anything open that they use."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @asynccontextmanager
    async def open(cls, module: str = "tests.system.kill_child") -> AsyncIterator[Self]:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            yield cls(process)
        finally:
            await process.communicate(b"")  # closes its input, which ends it

    async def bear(self, birth: Birth) -> tuple[int, int]:
        """Let one life be led; its pid and its exit status, negative for a signal."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(birth) + b"\n")
        told = json.loads(await self._process.stdout.readline())
        return told["pid"], told["status"]


class Case:
    """One run on a medium of its own, from its beginning to its end, whatever dies in between.

    Args:
        text: what the run must end with. recovery: whether it has recovery points.
    """

    def __init__(
        self, name: str, model: CountingModel, place: Place, folder: Path, *, text: str, recovery: bool = False
    ) -> None:
        self.name, self.folder, self._recovery = name, folder, recovery
        self._lookups = ("pay",) if recovery else ()
        self._model, self._place, self._text = model, place, text
        self.lives: list[Life] = []
        self._seen: list[tuple[list[Received], list[dict[str, Any]]]] = []

    async def live(self, nursery: Nursery, *, kill_at: int = 0, **settings: str) -> Life:
        """Be born, and die or end."""
        output = self.folder / f"life{len(self.lives)}"
        arguments = [self._place.store, self._place.schema, self._model.url(self.name), str(self.folder)]
        named = {"KILL_AT": str(kill_at), "RECOVERY": "on" if self._recovery else "off", **settings}
        environment = {f"AGENTLOOP_TEST_{name}": value for name, value in named.items()}
        pid, status = await nursery.bear(Birth(arguments, environment, str(output)))
        life = Life([json.loads(line) for line in output.read_text().splitlines()], status, pid)
        self.lives.append(life)
        self._seen.append((self._model.of(self.name), effects(self.folder)))
        return life

    def judge(self) -> Verdict:
        """Hold everything that was promised against everything that happened."""
        faults: list[str] = []
        lost = 0
        held: list[str] = []
        for number, life in enumerate(self.lives):
            if life.status not in (0, -signal.SIGKILL):
                faults.append(f"life {number} ended with status {life.status}")
            found = life.one("found")
            if found is not None:
                lost += sum((Counter(held) - Counter(found)).values())
                faults += self._listed(number, life, found, held)
            held += life.held
        last = self.lives[-1]
        left = last.one("left") or []
        lost += sum((Counter(held) - Counter(left)).values())
        if left != held:
            faults.append("the facts at the end are not those that were acknowledged, in their order")
        if (last.one("outcome"), last.one("text")) != ("completed", self._text):
            faults.append(f"the run ended with {last.one('outcome')!r}, {last.one('text')!r}")
        faults += self._looked_up(left)
        return Verdict(self._double_sends(left), self._double_effects(), lost, tuple(faults))

    def state(self, number: int) -> State:
        """What a life found."""
        return State.of(self.lives[number].one("found") or [], lookups=self._lookups)

    def _listed(self, number: int, life: Life, found: list[str], held: list[str]) -> list[str]:
        """What a life found and listed is true."""
        state = self.state(number)
        faults = []
        if found != held:
            faults.append(f"life {number} found other facts than those acknowledged")
        listed = (life.one("unfinished"), life.one("unsettled"))
        if listed not in ((state.unfinished, state.unsettled), (None, None)):
            faults.append(f"life {number} listed {listed}, and the facts say {state[:2]}")
        if number:
            requests, done = self._seen[number - 1]
            unclaimed = {item.attempt_id for item in requests} | {item["effect_id"] for item in done}
            if not unclaimed <= state.claims:
                faults.append(f"life {number} found effects that were never claimed: {unclaimed - state.claims}")
        refused = life.all("refused")
        if not life.killed and refused != (["unsettled"] if state.waits else []):
            faults.append(f"life {number} was refused {refused} where {state.waits} was unsettled")
        again = [item for item in self._seen[number][1] if item["pid"] == life.pid and item["tool"] == "look"]
        if not life.killed and any(item[2] == "look" for item in state.unsettled) and len(again) != 1:
            faults.append(f"life {number} ran the idempotent tool {len(again)} times")
        asked = life.points.count(LOOKUP)
        if not life.killed and asked != len(state.asks):
            faults.append(f"life {number} made {asked} lookups where the facts say {state.asks}")
        return faults

    def _looked_up(self, left: list[str]) -> list[str]:
        """What a lookup decides was decided in its name, and by nobody else."""
        if not self._recovery:
            return []
        faults = []
        by_host = {name for life in self.lives for name in life.all("settles")}
        if not by_host <= {"send", "mail"}:
            faults.append(f"a host had to settle {by_host}")
        asked = {item[1] for number in range(len(self.lives)) for item in self.state(number).asks}
        decided = {
            f"{RUN}/{fact['exchange']}.{fact['position']}"
            for fact in map(json.loads, left)
            if fact.get("author") == "recovery:pay"
        }
        if decided != asked:
            faults.append(f"lookups decided {decided} where the facts say {asked}")
        return faults

    def _double_sends(self, left: list[str]) -> int:
        """Requests beyond one an attempt, and beyond one a turn that no host asked for."""
        requests = self._model.of(self.name)
        allowed = {attempt for life in self.lives for attempt in life.all("sends_again_after")}
        per_attempt = Counter(item.attempt_id for item in requests)
        per_turn = Counter(item.turn for item in requests if item.attempt_id not in allowed)
        return sum(count - 1 for counts in (per_attempt, per_turn) for count in counts.values())

    def _double_effects(self) -> int:
        """Executions of tools that are not idempotent, beyond those that a host allowed; and changed identities."""
        done = effects(self.folder)
        doubles = 0
        for tool in NON_IDEMPOTENT:
            allowed = {line["after"] for life in self.lives for line in life._lines if line.get("runs_again") == tool}
            doubles += max(0, sum(item["tool"] == tool for item in done) - 1 - len(allowed))
        identities = {(item["tool"], item["effect_id"]) for item in done}
        return doubles + len(identities) - len({tool for tool, _ in identities})
