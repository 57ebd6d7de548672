"""A private PostgreSQL for tests: a cluster in a folder of its own, reached through a socket in it."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

_START_S = 30.0


class Unavailable(Exception):
    """No PostgreSQL can be started here; the message says why, for a skip."""


class Cluster:
    """A running server. Its data is not safe from a crash: it lives for a test run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self._folder}"

    def create(self, database: str, template: str = "template1") -> str:
        """A new database, as a copy of `template`; returns its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}"'.encode())
        return self.url(database)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Starts a server and stops it at the end. Raises `Unavailable`."""
    programs = _programs()
    # A socket's path holds some 100 bytes at most: pytest's own folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="pg-"))
    # The server refuses to run as root; then Debian's own user runs it.
    user = "postgres" if os.geteuid() == 0 else None
    try:
        if user:
            os.chown(folder, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
        data = folder / "data"
        initdb = [
            "initdb",
            "-D",
            str(data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        ]
        _run(programs / initdb[0], initdb[1:], folder, user)
        options = [
            "-k",
            str(folder),
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=off",
            "-c",
            "max_connections=60",
        ]
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, *options],
            cwd=folder,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            running = Cluster(folder)
            _await(running, server)
            yield running
        finally:
            # At once, without a word to sessions that a failed test left open.
            server.send_signal(signal.SIGQUIT)
            server.wait(10)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path:
    found = [Path(initdb).parent for initdb in filter(None, [shutil.which("initdb")])]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    if not found:
        raise Unavailable("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    if os.geteuid() == 0:
        try:
            pwd.getpwnam("postgres")
        except KeyError:
            raise Unavailable("PostgreSQL does not run as root, and there is no user postgres") from None
    return found[-1]


def _run(program: Path, arguments: list[str], folder: Path, user: str | None) -> None:
    done = subprocess.run(
        [program, *arguments],
        cwd=folder,
        user=user,
        group=user,
        extra_groups=[] if user else None,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Unavailable(f"{program.name} failed: {done.stderr.strip()[-200:]}")


def _await(running: Cluster, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            psycopg.connect(running.url("postgres")).close()
            return
        except psycopg.OperationalError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"the server does not start: {error}") from error
            time.sleep(0.05)
