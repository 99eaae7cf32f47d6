"""The front door lists what is public, and nothing else does."""

from __future__ import annotations

import ast
import importlib

import pytest

import agentloop
from agentloop import errors, events, messages
from tests.source import PACKAGE, modules, public_names, tree

# What the top level takes from packages that it does not re-export whole.
CHOSEN = {
    "agentloop.agent": ["Agent"],
    "agentloop.decisions": ["Answer", "Approve", "Decision", "Deny", "WaitingCall"],
    "agentloop.delegation": ["delegate"],
    "agentloop.effects": ["Ledger", "LeftOver", "ResendPolicy", "Signal"],
    "agentloop.error_info": ["ErrorInfo", "error_info"],
    "agentloop.exchange": [
        "BookLimits",
        "CallBasis",
        "Checkpoint",
        "CompletedPoint",
        "ExchangeRef",
        "ModelPoint",
        "PreparedPoint",
        "ToolClaim",
        "ToolsPoint",
    ],
    "agentloop.limits": ["LoopLimits", "Timeouts"],
    "agentloop.persistence": ["ConversationRow", "RunRow"],
    "agentloop.providers": [
        "ChatCompletions",
        "ModelStream",
        "Provider",
        "Recorder",
        "ReplayProvider",
        "RequestInspection",
    ],
    "agentloop.results": ["RunResult"],
    "agentloop.runner": [
        "BuiltContext",
        "ChildLimits",
        "Collector",
        "ContextPlan",
        "Execution",
        "Fragment",
        "Interaction",
        "JsonCall",
        "Measurement",
        "ModelInput",
        "ModelResult",
        "ModelRunner",
        "NativeCall",
        "NeedsSummary",
        "PlainText",
        "Prepared",
        "RunnerOptions",
        "Session",
        "SessionCall",
        "SessionReply",
        "Stage",
        "Structured",
        "Summary",
        "SummaryOf",
        "TokenBudget",
        "TokenCounter",
        "Transport",
        "run_children",
    ],
    "agentloop.runtime": ["Run", "RunInput", "RunOptions", "Runtime"],
    "agentloop.sinks": ["Diagnostics", "FanOut", "JsonLinesSink", "Observer", "QueueSink", "Sink"],
    "agentloop.tools": [
        "ArgumentsRefused",
        "NOT_DONE",
        "NotDone",
        "SelectionContext",
        "Tool",
        "ToolContext",
        "ToolInvocation",
        "ToolJournal",
        "ToolPipeline",
        "ToolPolicy",
        "ToolSet",
        "external",
        "selection",
        "tool",
    ],
    "agentloop.unsettled": ["SendStatus", "Unsettled"],
    "agentloop.wire": [
        "CallDelta",
        "CallText",
        "CallTextRefused",
        "Dialect",
        "ReasoningDelta",
        "TextCall",
        "TextDelta",
        "ToolCallParser",
        "dialect",
    ],
    "agentloop.workflow": [
        "AgentPort",
        "Complete",
        "Continue",
        "Engine",
        "EngineOptions",
        "ModelDefinition",
        "ModelPort",
        "ModelService",
        "Node",
        "NodeContext",
        "Route",
        "RunnerDefinition",
        "Spawn",
        "ToolAnswer",
        "ToolPort",
        "Workflow",
        "agent_node",
        "define_workflow",
    ],
}
PACKAGES = [name for name, path in modules().items() if path.name == "__init__.py"]
MODULES = [name for name, path in modules().items() if path.name not in ("__init__.py", "__main__.py")]


def listed(name: str) -> list[str]:
    for node in tree(name).body:
        target = (
            node.targets[0]
            if isinstance(node, ast.Assign)
            else node.target
            if isinstance(node, ast.AnnAssign)
            else None
        )
        if isinstance(target, ast.Name) and target.id == "__all__":
            assert node.value is not None  # type: ignore[union-attr]
            names: list[str] = ast.literal_eval(node.value)  # type: ignore[union-attr]
            return names
    pytest.fail(f"{name} has no __all__")


@pytest.mark.parametrize("name", [*PACKAGES, *MODULES])
def test_a_module_lists_its_public_names_in_order(name: str) -> None:
    names = listed(name)
    assert names == sorted(set(names))


@pytest.mark.parametrize("name", [*PACKAGES, *MODULES])
def test_a_module_says_what_it_is_for(name: str) -> None:
    first = (ast.get_docstring(tree(name)) or "").partition("\n")[0]
    assert first.endswith((".", ":", "?"))


@pytest.mark.parametrize("name", MODULES)
def test_a_module_lists_exactly_what_it_defines(name: str) -> None:
    assert set(listed(name)) == public_names(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_only_re_exports(name: str) -> None:
    body = tree(name).body[1:]
    assert all(isinstance(node, ast.ImportFrom | ast.Assign | ast.AnnAssign) for node in body)
    assert sum(isinstance(node, ast.Assign | ast.AnnAssign) for node in body) == 1
    taken = [
        alias.asname or alias.name
        for node in body
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    ]
    assert sorted(taken) == sorted(listed(name))


@pytest.mark.parametrize("name", [PACKAGE, "agentloop.admission", "agentloop.events", "agentloop.messages"])
def test_every_listed_name_is_there(name: str) -> None:
    module = importlib.import_module(name)
    assert all(hasattr(module, item) for item in listed(name))


def test_the_top_level_is_the_union_it_promises() -> None:
    """(R36)"""
    whole = [*errors.__all__, *events.__all__, *messages.__all__]
    chosen = [item for names in CHOSEN.values() for item in names]
    assert agentloop.__all__ == sorted([*whole, *chosen])
    for name, items in CHOSEN.items():
        module = importlib.import_module(name)
        assert all(getattr(agentloop, item) is getattr(module, item) for item in items)
