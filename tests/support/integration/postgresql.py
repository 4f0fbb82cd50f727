"""Start a server of PostgreSQL that belongs to the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.factories import wait_until
from support.ports import free_port
from support.programs import program

DEBIAN = Path("/usr/lib/postgresql")
PATIENCE = 60.0


def installed(name: str) -> str:
    """Return the path of a program of the server, which Debian does not put on PATH."""
    newest = max(DEBIAN.glob(f"*/bin/{name}"), default=None, key=lambda path: int(path.parts[-3]))
    return str(newest) if newest else program(name, "postgresql")


@contextmanager
def postgresql() -> Iterator[str]:
    """Run a server with an empty database on a free port of 127.0.0.1, and yield its address.

    It refuses to run as root, so root starts it as the user `nobody`.
    """
    initdb, postgres = installed("initdb"), installed("postgres")
    owner: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="streameval-postgresql-", ignore_cleanup_errors=True) as directory:
        if owner:
            shutil.chown(directory, **owner)
        data, port, options = f"{directory}/data", free_port(), {**owner, "cwd": directory, "stdin": subprocess.DEVNULL}
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, **options}
        command = [initdb, "--pgdata", data, "--auth", "trust", "--username", "tests", "--no-sync"]
        command += ["--locale", "C", "--encoding", "UTF8"]
        subprocess.run(command, check=True, timeout=PATIENCE, **quiet)
        with open(f"{directory}/log", "wb") as log:
            server = subprocess.Popen(
                [postgres, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", directory, "-F"],
                stderr=log,
                **quiet,
            )
        address = f"host=127.0.0.1 port={port} user=tests dbname=postgres"
        try:
            wait_until(lambda: _answers(address), PATIENCE)
            yield address
        finally:
            server.terminate()
            server.wait(PATIENCE)


def _answers(address: str) -> bool:
    import psycopg  # reads the library of PostgreSQL

    try:
        psycopg.connect(address, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
