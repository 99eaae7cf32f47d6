"""Imports point one way: the map in the package's docstring is what the modules do."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib

import pytest

from tests.source import PACKAGE, ROOT, imports, layers, modules, place, tree

PURE_LAYERS = 5
OUTSIDE_WORLD = {
    "aiohttp",
    "anyio",
    "asyncio",
    "asyncpg",
    "http.client",
    "socket",
    "sqlite3",
    "ssl",
    "threading",
    "urllib.request",
}
DEAR = {
    "agentloop.persistence.choose": {"agentloop.persistence.sqlite", "agentloop.persistence.postgres"},  # one at most
    "agentloop.providers.http_errors": {"html"},  # for answers that are pages
    "agentloop.effects.pool": {"anyio"},  # for sync tools
    "agentloop.tools.arguments": {"agentloop.tools.coercion"},  # for tools with coerce=True
    "agentloop.workflow.definition": {"agentloop.workflow.mermaid"},  # to draw a workflow
    "agentloop.tools.validator": {"agentloop.tools.draft7"},  # for tools
    "agentloop.tools.exactness": {"dataclasses"},  # for tools that take one
}
"""What takes time to import and few programs use, by the one module that does when it is needed."""
BROUGHT_ALONG = {"jsonschema": {"referencing"}}
NAMES = [name for name in modules() if name != PACKAGE]


def optional_dependencies() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [line for extra, lines in project["optional-dependencies"].items() if extra != "dev" for line in lines]
    names = {line.split(";")[0].split(">")[0].strip().replace("-", "_") for line in extras}
    return names.union(*(BROUGHT_ALONG.get(name, set()) for name in names))


def root(target: str) -> str:
    return target.partition(".")[0]


def ours(name: str) -> list[str]:
    return [item.target for item in imports(name) if root(item.target) == PACKAGE]


def test_the_map_has_every_module_and_nothing_else() -> None:
    assert {place(name) for name in NAMES} == set(layers())


@pytest.mark.parametrize("name", NAMES)
def test_a_module_imports_lower_layers_or_siblings(name: str) -> None:
    wrong = []
    for target in ours(name):
        if target == PACKAGE:
            allowed = layers()[place(name)] >= layers()["testing"]
        else:
            allowed = place(target) == place(name) or layers()[place(target)] < layers()[place(name)]
        if not allowed:
            wrong.append(target)
    assert not wrong


def test_no_module_reaches_itself_through_imports() -> None:
    graph = {name: {target for target in ours(name) if target != name} for name in modules()}
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in done:
            for target in sorted(graph[name]):
                visit(target, [*trail, name])
            done.add(name)

    for name in graph:
        visit(name, [])


@pytest.mark.parametrize("name", [name for name in NAMES if layers().get(place(name), 0) <= PURE_LAYERS])
def test_the_lower_layers_know_no_event_loop_network_or_database(name: str) -> None:
    """What decides takes bytes and values; what acts stands above it (R1)."""
    targets = {item.target for item in imports(name)}
    assert not (targets | set(map(root, targets))) & OUTSIDE_WORLD


@pytest.mark.parametrize("name", NAMES)
def test_only_what_is_optional_or_dear_is_imported_late(name: str) -> None:
    optional = optional_dependencies()

    def wraps(target: str) -> bool:
        """Whether the target is an optional dependency, or a module of ours made for one."""
        if root(target) != PACKAGE:
            return root(target) in optional
        return any(root(item.target) in optional for item in imports(target))

    late = [item for item in imports(name) if item.late and item.target not in DEAR.get(name, ())]
    assert [item for item in late if not wraps(item.target)] == []


@pytest.mark.parametrize("name", list(modules()))
def test_no_module_imports_for_type_checkers_only(name: str) -> None:
    assert not [node for node in ast.walk(tree(name)) if isinstance(node, ast.Name) and node.id == "TYPE_CHECKING"]


def test_optional_dependencies_stay_out_of_the_core() -> None:
    """A plain install has only the core dependencies, so nothing below imports another at its top (R145)."""
    optional = optional_dependencies()
    assert {"asyncpg", "jsonschema"} <= optional
    assert not [item for name in NAMES for item in imports(name) if root(item.target) == "mcp"]
    wrappers = {name for name in NAMES for item in imports(name) if not item.late and root(item.target) in optional}
    eager = set()
    waiting = [PACKAGE]
    while waiting:
        name = waiting.pop()
        if name not in eager:
            eager.add(name)
            waiting += [item.target for item in imports(name) if not item.late and item.target in modules()]
    assert not wrappers & eager


def test_a_medium_is_imported_when_a_host_first_names_it() -> None:
    code = "import sys, agentloop; sys.exit(', '.join({'sqlite3', 'asyncpg', 'html'} & sys.modules.keys()) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
