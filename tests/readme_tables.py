"""Writes the tables of the README that come from the code: `python -m tests.readme_tables`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentloop.cli import COMMANDS
from agentloop.wire.dialect import ALLOWANCES
from agentloop.wire.presets import PRESETS

__all__ = ["README", "rendered", "section"]

README = Path(__file__).resolve().parents[1] / "README.md"


def section(text: str, name: str) -> str:
    """What stands between the marks of a section."""
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- /{name} -->")[0]


def _marked(name: str, body: str) -> str:
    return f"<!-- {name} -->\n{body}<!-- /{name} -->"


def rendered() -> dict[str, str]:
    """Section name to what belongs into it."""
    return {"presets": _presets(), "commands": _commands()}


def _presets() -> str:
    lines = ["| dialect | allows |", "|---|---|"]
    for name, preset in PRESETS.items():
        if not name.endswith("_no_usage"):
            allowed = preset.allowances()
            missing = [allowance for allowance in ALLOWANCES if allowance not in allowed]
            words = f"everything but {_listed(missing)}" if len(allowed) > len(missing) else _listed(allowed)
            lines.append(f"| `{name}` | {words or 'nothing'} |")
    without = [name for name in PRESETS if name.endswith("_no_usage")]
    lines.append("")
    lines.append(
        "`NAME_no_usage` is the same for requests that ask for no usage (`ModelOptions(include_usage=False)`): "
        f"there are {len(without)}, such as `{without[0]}`."
    )
    return "\n".join(lines) + "\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _commands() -> str:
    lines = ["| command | what it does |", "|---|---|"]
    lines += [f"| `{name}` | {purpose} |" for name, purpose in COMMANDS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    content = README.read_text(encoding="utf-8")
    for name, body in rendered().items():
        content = content.replace(_marked(name, section(content, name)), _marked(name, body))
    README.write_text(content, encoding="utf-8")
