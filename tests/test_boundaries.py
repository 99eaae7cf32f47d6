"""What each part may know: the borders between sending, keeping facts and running tools."""

from __future__ import annotations

import pytest

from tests.source import PACKAGE, imports, modules, place


def known_to(part: str) -> set[str]:
    """The entries of the layer map that a part imports, itself aside."""
    names = [name for name in modules() if name != PACKAGE and place(name) == part]
    assert names
    ours = [item.target for name in names for item in imports(name) if item.target.startswith(f"{PACKAGE}.")]
    return {place(target) for target in ours} - {part}


@pytest.mark.parametrize("part", ["providers", "exchange", "tools"])
def test_sending_facts_and_tools_do_not_know_each_other(part: str) -> None:
    """(R1, R169)"""
    assert not known_to(part) & {"providers", "exchange", "tools"}


def test_a_provider_knows_messages_and_the_wire_only() -> None:
    """It runs no tool, judges no arguments, keeps no facts (R3, R4)."""
    assert known_to("providers") <= {"errors", "limits", "admission", "messages", "events", "wire"}


def test_the_facts_know_no_tool_no_store_and_no_send() -> None:
    """(R5)"""
    assert known_to("exchange") <= {"errors", "limits", "admission", "messages", "events"}


def test_tools_know_no_runtime_no_loop_and_no_provider() -> None:
    """(R7, R14)"""
    assert known_to("tools") <= {"errors", "error_info", "limits", "admission", "messages", "events"}


@pytest.mark.parametrize("part", ["runtime", "loop"])
def test_what_drives_a_run_knows_no_wire_format(part: str) -> None:
    """(R11)"""
    assert "wire" not in known_to(part)


def test_only_one_module_may_know_mcp() -> None:
    """(R145)"""
    knowing = [name for name in modules() for item in imports(name) if item.target.partition(".")[0] == "mcp"]
    assert {place(name) for name in knowing} <= {"integrations"}
