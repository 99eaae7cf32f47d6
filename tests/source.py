"""The package's own source as data: modules, imports, layers, public names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["PACKAGE", "ROOT", "Import", "imports", "layers", "modules", "place", "public_names", "tree"]

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "agentloop"


class Import(NamedTuple):
    """One imported name, as an absolute module path; ``late`` when not at the top of the file."""

    target: str
    line: int
    late: bool


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name, packages under their own name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(name: str) -> ast.Module:
    """The syntax tree of a module of the package."""
    return ast.parse(modules()[name].read_text(encoding="utf-8"))


def _statements(node: ast.AST, late: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, late
        else:
            yield from _statements(
                child, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            )


def imports(name: str) -> list[Import]:
    """What a module imports. ``from x import y`` counts as ``x.y`` where that is a module of ours."""
    path = modules()[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = []
    for node, late in _statements(tree(name), False):
        if isinstance(node, ast.Import):
            found += [Import(alias.name, node.lineno, late) for alias in node.names]
            continue
        base = package[: len(package) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            found.append(Import(inner if inner in modules() else source, node.lineno, late))
    return found


@cache
def layers() -> dict[str, int]:
    """The map in the package's docstring: first name below the package, to its number."""
    found = {}
    for line in (ast.get_docstring(tree(PACKAGE)) or "").splitlines():
        match = re.match(r"\s+([a-z_]+(?:/|\.py))\s+(\d+)  \S", line)
        if match:
            found[match[1].removesuffix("/").removesuffix(".py")] = int(match[2])
    return found


def place(name: str) -> str:
    """The entry of the map that a module stands under; the entry point belongs to the command line."""
    part = name.split(".")[1]
    return "cli" if part == "__main__" else part


def public_names(name: str) -> set[str]:
    """Names without an underscore that a module itself binds at its top; type variables aside."""
    found = set()
    for node in tree(name).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id in ("TypeVar", "ParamSpec")
        ):
            continue
        found.update(target.id for target in targets if isinstance(target, ast.Name))
    return {item for item in found if not item.startswith("_")}
