"""Every requirement that the project lists is held by a test that names it."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.source import ROOT

TESTS = ROOT / "tests"
NUMBERS = re.compile(r"\bR(\d+)(?:\s*(?:-|–|to)\s*R(\d+))?")  # noqa: RUF001  # ranges with either dash


def named(text: str) -> set[int]:
    """The numbers in a text, ranges spelled out."""
    return {number for first, last in NUMBERS.findall(text) for number in range(int(first), int(last or first) + 1)}


@cache
def listed() -> dict[int, str]:
    """The list: number to line."""
    lines = re.findall(
        r"^- \*\*R(\d+)\*\* (.+)$", (TESTS / "REQUIREMENTS.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    return {int(number): line for number, line in lines}


@cache
def held() -> dict[int, set[str]]:
    """Number to the tests that name it, as paths below the folder of the tests."""
    found: dict[int, set[str]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for number in named(ast.get_docstring(node) or ""):
                    found.setdefault(number, set()).add(f"{path.relative_to(TESTS).as_posix()}::{node.name}")
    return found


def unheld(numbers: set[int], *folders: str) -> list[str]:
    return [
        f"R{number}"
        for number in sorted(numbers)
        if not any(test.startswith(folders or ("",)) for test in held().get(number, ()))
    ]


def test_every_listed_requirement_is_held_by_a_test() -> None:
    assert unheld(set(listed())) == []


def test_no_test_names_a_requirement_that_is_not_listed() -> None:
    strangers = {f"R{number}": sorted(tests) for number, tests in held().items() if number not in listed()}
    assert strangers == {}


def test_the_list_has_no_hole_where_the_project_is_complete() -> None:
    complete = named("R1-R145, R148-R326")
    assert sorted(complete - listed().keys()) == []


def test_each_requirement_is_one_line_in_order() -> None:
    numbers = list(listed())
    assert numbers == sorted(numbers)
    assert len(set(listed().values())) == len(numbers)
    text = (TESTS / "REQUIREMENTS.md").read_text(encoding="utf-8")
    assert text.count("- **R") == len(numbers)


def test_ranges_are_read() -> None:
    assert named("(R1, R3-R5, R7 to R9)") == {1, 3, 4, 5, 7, 8, 9}
    assert named("SR1, R, R-1, AR2") == set()


def test_the_provider_side_is_tested_for_admission_continuation_and_sizes() -> None:
    """(R148)"""
    assert unheld(named("R115-R120"), "wire/") == []
    assert unheld(named("R20-R22"), "messages/", "wire/") == []
    assert unheld(named("R107, R108, R110"), "admission/", "messages/", "wire/", "providers/") == []


def test_origins_and_exchanges_are_tested_for_storage_conflicts_and_missing_bases() -> None:
    """(R149)"""
    assert unheld(named("R70, R71, R77, R79, R82, R83"), "exchange/", "persistence/") == []


def test_tools_are_tested_for_order_failures_budgets_and_refusals() -> None:
    """(R150)"""
    assert unheld(named("R55-R58, R61, R93, R102"), "tools/", "effects/", "exchange/", "loop/", "test_") == []


def test_where_a_promise_ends_is_said_in_the_list() -> None:
    """(R152)"""
    ends = [number for number, line in listed().items() if line.startswith("We do not claim")]
    assert ends == [4, 6, 8, 10, 23, 29, 35, 65, 69, 84, 111, 128, 139, 145, 152, 157, 292, 305, 326, 336, 340]
