"""Files of a person that nobody else may read: the history of lines, saved conversations."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["HISTORY_BYTES", "history_file", "write_private"]

HISTORY_BYTES: Final = 1 << 20
"""What the history of lines may grow to; it is cut to the newer half when it is opened."""

_ENTRY: Final = b"\n# "
"""What an entry of the history begins with: an empty line, and the time."""


def history_file(environ: Mapping[str, str]) -> Path:
    """The file of lines that were typed, made where it is not there, of mode 0600 in any case.

    It is in ``XDG_STATE_HOME`` (XDG Base Directory Specification 0.8: a path that is not absolute counts
    as none), else in ``~/.local/state``.

    Raises:
        OSError: it cannot be made, read or written.
    """
    home = environ.get("XDG_STATE_HOME", "")
    state = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "state"
    folder = state / "agentloop"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "chat_history"
    _check_regular(path)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    path.chmod(0o600)
    if path.stat().st_size > HISTORY_BYTES:
        newer = path.read_bytes()[-HISTORY_BYTES // 2 :]
        _replace(path, _ENTRY + newer.partition(_ENTRY)[2])
    return path


def write_private(name: str, text: str, *, replace: bool) -> None:
    """Write a file that only its owner may read, whole or not at all where it replaces another.

    Args:
        name: its path; ``~`` is the person's home.

    Raises:
        FileExistsError: there is a file, and ``replace`` is not said. OSError: it cannot be written.
        RuntimeError: the home is not known. ValueError: no file can have that name.
    """
    path = Path(name).expanduser()
    if replace:
        _check_regular(path)
        _replace(path, text.encode())
        return
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(text.encode())


def _check_regular(path: Path) -> None:
    """A device, a pipe or a folder that stands there is no file of ours to be replaced.

    Raises:
        OSError: there is one.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def _replace(path: Path, content: bytes) -> None:
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
    try:
        with open(handle, "wb") as out:
            out.write(content)
        Path(made).replace(path)
    except BaseException:
        Path(made).unlink()
        raise
