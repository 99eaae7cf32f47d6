from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from agentloop.cli.chat.private import HISTORY_BYTES, history_file, write_private

posix = pytest.mark.skipif(os.name == "nt", reason="modes are those of POSIX")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@posix
def test_the_history_is_in_the_state_directory_and_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = history_file({"XDG_STATE_HOME": str(tmp_path)})
    finally:
        os.umask(before)
    assert path == tmp_path / "agentloop" / "chat_history"
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)


@posix
def test_a_history_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    path = history_file({"XDG_STATE_HOME": str(tmp_path)})
    path.write_text("\n# now\n+secret\n")
    path.chmod(0o644)
    assert history_file({"XDG_STATE_HOME": str(tmp_path)}) == path
    assert (mode(path), path.read_text()) == (0o600, "\n# now\n+secret\n")


@pytest.mark.parametrize("state", ["", "relative/state"])
def test_a_state_directory_that_is_not_absolute_counts_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert history_file({"XDG_STATE_HOME": state}) == tmp_path / ".local/state/agentloop/chat_history"


def test_a_long_history_is_cut_to_its_newer_half_at_an_entry(tmp_path: Path) -> None:
    path = history_file({"XDG_STATE_HOME": str(tmp_path)})
    entries = [f"\n# {number:07d}\n+line {number:07d}\n" for number in range(HISTORY_BYTES // 20)]
    path.write_text("".join(entries))
    kept = history_file({"XDG_STATE_HOME": str(tmp_path)}).read_text()
    assert HISTORY_BYTES // 2 - 100 < len(kept) <= HISTORY_BYTES // 2
    assert kept.startswith("\n# ")
    assert kept.endswith(entries[-1])
    assert kept in "".join(entries)


@posix
def test_a_file_is_written_privately_and_never_over_another(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    before = os.umask(0)
    try:
        write_private(str(path), "one", replace=False)
        assert mode(path) == 0o600
        with pytest.raises(FileExistsError):
            write_private(str(path), "two", replace=False)
        assert path.read_text() == "one"
        path.chmod(0o644)
        write_private(str(path), "two", replace=True)
    finally:
        os.umask(before)
    assert (path.read_text(), mode(path), os.listdir(tmp_path)) == ("two", 0o600, ["a.md"])


@posix
def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "link.md"
    other.write_text("other")
    link.symlink_to(other)
    with pytest.raises(FileExistsError):
        write_private(str(link), "new", replace=False)
    write_private(str(link), "new", replace=True)
    assert (other.read_text(), link.read_text(), link.is_symlink()) == ("other", "new", False)


@posix
def test_what_is_no_file_is_not_replaced_and_holds_no_history(tmp_path: Path) -> None:
    pipe, link = tmp_path / "agentloop" / "chat_history", tmp_path / "link.md"
    pipe.parent.mkdir()
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link, pipe.parent):
        with pytest.raises(OSError, match="not a regular file"):
            write_private(str(path), "new", replace=True)
    with pytest.raises(OSError, match="not a regular file"):
        history_file({"XDG_STATE_HOME": str(tmp_path)})
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert link.is_symlink()


def test_a_file_may_be_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    write_private("~/a.md", "text", replace=False)
    assert (tmp_path / "a.md").read_text() == "text"
