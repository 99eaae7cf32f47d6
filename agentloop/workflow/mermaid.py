"""A workflow drawn as a Mermaid flowchart, with the way that a run took.

Nodes have names of their own (``n0``, ``n1``, …), since an id may be a word of the language. All text stands in
quotes, and every character that means something there, or in Markdown or HTML, is written as an entity code.
Source: mermaid.js.org/syntax/flowchart.html, "Entity codes to escape characters" and "Styling links" (2025).
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Final

from ..events import Journal
from .nodes import Node

__all__ = ["Way", "escaped", "flowchart", "path_of"]

Way = tuple[str, int | None]
"""A node's id and which of its routes, None for the one of its errors."""

_SAFE: Final = frozenset(" .,:()!?+-=/'")
"""What stands as it is beside letters and digits; not at the start of a line, where some begin a list."""

_TAKEN: Final = "stroke:#d33,stroke-width:3px"
_CHARS: Final = 200


def path_of(journal: Journal, workflow: str) -> dict[Way, int]:
    """How often the newest run of a workflow took each way, in the order in which it first did."""
    routes = [trace for trace in journal.routes if trace.workflow == workflow]
    if not routes:
        return {}
    newest = routes[-1].run_id, routes[-1].parent_invocation_id
    return dict(Counter((one.node, one.route) for one in routes if (one.run_id, one.parent_invocation_id) == newest))


def flowchart(start: str, nodes: Mapping[str, Node], taken: Mapping[Way, int]) -> str:
    """The lines of the chart. A way that was taken is drawn thick, with how often where that is more than once.

    Args:
        taken: those that lead from none of the nodes, of another workflow of that name, are left out.
    """
    taken = {way: times for way, times in taken.items() if way[0] in nodes}
    names = {one: f"n{at}" for at, one in enumerate(nodes)}
    lines = ["flowchart TD", '  begin(["start"])', '  done(["complete"])']
    for one, node in nodes.items():
        left, right = ('{{"', '"}}') if node.starts_round else ('["', '"]')
        text = f"{one}: {node.description}" if node.description else one
        lines.append(f"  {names[one]}{left}{escaped(text)}{right}")
    edges = [f"begin --> {names[start]}"]
    marked = [0] if taken else []
    for one, node in nodes.items():
        for at, route in enumerate(node.routes):
            to = "done" if route.to is None else names[route.to]
            edges.append(f"{names[one]} -->{_label(route.text, taken.get((one, at), 0))} {to}")
            if (one, at) in taken:
                marked.append(len(edges) - 1)
        if node.on_error is not None:
            label = _label("on error", taken.get((one, None), 0))
            edges.append(f"{names[one]} -.->{label} {names[node.on_error]}")
            if (one, None) in taken:
                marked.append(len(edges) - 1)
    lines += [f"  {edge}" for edge in edges]
    if marked:
        visited = dict.fromkeys(names[one] for one, _ in taken)
        lines.append(f"  linkStyle {','.join(map(str, marked))} {_TAKEN}")
        lines.append(f"  classDef taken {_TAKEN}")
        lines.append(f"  class {','.join(visited)} taken")
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text to stand in quotes: one line, cut to 200 characters, never empty."""
    flat = "".join(char if unicodedata.category(char)[0] != "C" else " " for char in text)
    line = " ".join(flat.split())
    if len(line) > _CHARS:
        line = line[: _CHARS - 1] + "…"
    if line.split(".")[0].isdigit():  # Markdown would begin a list
        line = line.replace(".", "\N{ONE DOT LEADER}", 1)
    return "".join(_char(char, at) for at, char in enumerate(line)) or "#32;"


def _char(char: str, at: int) -> str:
    if char.isalnum() or (char in _SAFE and at):
        return char
    return f"#{ord(char)};"


def _label(text: str, times: int) -> str:
    parts = [*([text] if text else []), *([f"{times} times"] if times > 1 else [])]
    return f'|"{escaped(", ".join(parts))}"|' if parts else ""
