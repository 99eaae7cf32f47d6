"""Every example runs, without a network, and prints what it is about."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentloop.testing import ReplayServer
from tests.cli.demo_recordings import ANSWER, recordings

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))

SHOWS = {
    "01_chat.py": ["assistant  Air scatters blue light more than red.", "(Read 4 messages.)"],
    "02_tools.py": [
        'find_item {"name":"blue mug"}',
        "  success, ",
        "reserve did not run: schema_mismatch",
        'reserve {"sku":"M-1","quantity":2}',
        "Two blue mugs are yours; 1 is left.",
        "completed: 4 model calls, 2 tool calls",
        "in stock: 1",
    ],
    "03_stream_to_a_client.py": [
        "taken back:  'Water boils at 100 degr' (truncated)",
        "refused:     truncated at byte 2048",
        "kept:        'Water boils at 100 degrees Celsius at sea level.'",
        "client left: after 'One, t'",
        "and so:      cancelled",
    ],
    "04_test_your_agent.py": [
        "passed: the answer comes from the note that was really written",
        "passed: other notes give another answer",
        "passed: an error that a tool does not declare ends the run",
    ],
    "05_resume.py": [
        "the first process ended with status -9",
        "order-17 may go on elsewhere for up to ",
        'unsettled: pay {"amount":12}, effect order-17/1.0',
        "settled:   the ledger has it",
        "completed: Done: paid 12.",
        "3 model calls over both processes; in the ledger: order-17/1.0 12",
        "the second process ended with status 0",
    ],
    "06_typed_result.py": [
        "value       Ticket(title='Printer on fire', urgency='high', floor=3)",
        "record      stage triage, call 1, by json_schema, success",
        'refused     schema_mismatch: $.urgency: expected one of "high", "low"',
        "the reply   found; 0 calls left",
        "deepseek    'Printer on fire' by call",
        "moonshot    'Printer on fire' by json_text",
    ],
    "07_children_on_one_budget.py": [
        "before: 3 calls for the request, 2 for children",
        "north:  4 degrees and dry.",
        "south:  11 degrees and dry.",
        "refused: model_calls: allowed 2, got at least 3; nothing was sent, 1 left",
        "report: Both sides are dry; the north is cold.",
        "after:  1 call of its own, 3 with its children's",
        "  north/research 1: success\n  not admitted: model_calls, allowed 2, 3 wanted",
        "  request/report 1: success",
    ],
    "08_workflow.py": [
        "result: The moon pulls the sea; so tides rise.",
        "state:  1 revision, facts: The moon pulls the sea.",
        "  round 1: research, success\n  round 2: write, success\n  round 2: review, success\n",
        "flowchart TD\n",
        '  n0 -.->|"on error"| n3\n  n1 -->|"2 times"| n2\n  n2 -->|"is good"| done\n  n2 -->|"revise"| n1\n',
        "  linkStyle 0,1,3,4,5 ",
        "refused: endless_cycle: node 'a': ",
    ],
    "09_approval.py": [
        "waiting_for_approval: 3 calls wait for approval+external",
        'order-17 approval: pay {"to":"Ann","amount":900}',
        'order-17 external: sign {"document":"order 17"}',
        "too late: expected the decision that was made (approved by 'Dora')",
        "completed: paid Ann 900; paid Bob 12; This call was denied, and did not run. Reason: it was paid twice; ",
        "order-17/0.1 Bob 12\norder-17/0.0 Ann 900\n",
    ],
    "10_delegate.py": [
        "order-1        tool.started ask_clerk",
        "the clerk reads: 7 | There is no tool named 'set_price', and nothing ran. Expected one of find_price.",
        "order-1/0.0    run.ended    completed",
        "clerk: The blue mug costs 7, the red one 9. (3 model calls, 2 tool calls)",
        "both:  5 of 20 model calls; prices {'blue mug': 7, 'red mug': 9}",
    ],
    "11_chat_backend.py": [
        "POST /api/conversations/rooms/turns: 201",
        "connection lost after 'The blue roo'",
        "and back: 'The blue room is free then. '",
        'may it? book {"room":"blue","day":"Friday"}',
        "POST /api/conversations/rooms/turns/1/decide: 404\nGET /api/conversations/rooms: 404\n",
        "POST /api/conversations/rooms/turns/1/decide: 200",
        "completed: Done: blue is booked on Friday for Ann. (2 model calls)",
    ],
}

GUARD = """
import socket
def refuse(*args, **kwargs):
    raise AssertionError("an example reached for the network")
connect = socket.socket.connect
def local(self, address):
    if address[0] != "127.0.0.1":
        refuse()
    return connect(self, address)
socket.socket.connect = local
socket.socket.connect_ex = socket.getaddrinfo = refuse
"""


def environment(**extra: str) -> dict[str, str]:
    """This process's, without what names an endpoint."""
    named = ("OPENAI_", "AGENTLOOP_")
    return {name: value for name, value in os.environ.items() if not name.startswith(named)} | extra


def test_every_example_is_described_here() -> None:
    assert [path.name for path in EXAMPLES] == list(SHOWS)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_offline_and_shows_its_use(path: Path, tmp_path: Path) -> None:
    """(R151, R163)"""
    (tmp_path / "sitecustomize.py").write_text(GUARD)
    done = subprocess.run(
        [sys.executable, str(path)],
        check=False,
        cwd=tmp_path,
        env=environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)])),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
    at = -1
    for line in SHOWS[path.name]:
        at = done.stdout.find(line, at + 1)
        assert at >= 0, f"expected {line!r}, in this order, in:\n{done.stdout}"


def test_the_test_example_is_a_test_file(tmp_path: Path) -> None:
    """(R163, R164, R170, R171, R172)"""
    example = ROOT / "examples" / "04_test_your_agent.py"
    command = [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={tmp_path}", str(example)]
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


async def test_an_example_talks_to_the_endpoint_that_the_environment_names(replay_server: ReplayServer) -> None:
    replay_server.script(*[recordings()["4-answer.sse"]] * 2)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(ROOT / "examples" / "01_chat.py"),
        env=environment(OPENAI_BASE_URL=replay_server.url, AGENTLOOP_MODEL="some-model"),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert output.decode().count(ANSWER) == 2
    assert [request.json["model"] for request in replay_server.requests] == ["some-model"] * 2
    assert len(replay_server.requests[1].json["messages"]) == 4
