"""A disk of one's own that is small enough to fill. Mounting it takes the administrator's rights."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["fill", "remount", "small_disk"]


@contextmanager
def small_disk(at: Path, size: str) -> Iterator[Path]:
    """An empty disk, at this place inside of the block."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def remount(disk: Path, how: str) -> None:
    """Mount it anew, as ``ro`` or ``rw``."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free; return the file to remove when there shall be room again."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return ballast
