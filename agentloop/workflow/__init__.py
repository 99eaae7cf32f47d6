"""Work in steps: a workflow of nodes on a typed state, checked when it is defined, and the engine that runs it."""

from .agent_nodes import agent_node
from .agents import Spawn
from .context import NodeContext
from .definition import Workflow, define_workflow
from .engine import Engine
from .models import ModelDefinition, ModelService, RunnerDefinition
from .nodes import Guard, Handler, Node, Route
from .options import EngineOptions
from .outcomes import Complete, Continue
from .ports import AgentPort, ModelPort
from .tool_port import ToolAnswer, ToolPort

__all__ = [
    "AgentPort",
    "Complete",
    "Continue",
    "Engine",
    "EngineOptions",
    "Guard",
    "Handler",
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
]
