"""Read a table of PostgreSQL by the example, with kills of the daemon and of the server's connections."""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from support.factories import wait_until
from support.integration.daemon_runs import DaemonRuns
from support.integration.postgresql import postgresql
from support.paths import ROOT

EXAMPLE = ROOT / "examples" / "from_postgresql"
EVENTS = 30_000
INSERT = """
INSERT INTO decisions (event_id, action, propensity, reward, policies)
SELECT 'e-' || number, 'a', 0.5, number %% 2, '{"challenger": 0.25}' FROM generate_series(%s::int, %s::int - 1) number
"""
CUT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_snapshot_xmin%' AND pid <> pg_backend_pid()
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with postgresql() as address:
        yield address


def write(address: str, first: int, count: int) -> None:
    """Write rows in several transactions at once, which commit in another order than they begin."""
    chance = random.Random(first)
    connections = [psycopg.connect(address) for _ in range(3)]
    for start in range(first, first + count, 300):
        for part, connection in enumerate(connections):
            connection.execute(INSERT, (start + 100 * part, start + 100 * (part + 1)))
        for connection in chance.sample(connections, 3):
            connection.commit()
        connections[0].execute(INSERT, (start, start + 100))
        connections[0].rollback()
    for connection in connections:
        connection.close()


def config(**options: Any) -> dict[str, Any]:
    return {
        "source": {"kind": "python", "target": "stream:decisions", "options": {"pause": 0.05}, "buffered": 500},
        "policies": {"candidates": ["challenger"]},
        "estimators": ["ips"],
        "averages": ["cumulative"],
        "http": {"port": 0},
        "state": {"interval": "100ms"},
        "dead_letters": {"kind": "file", "path": "rejected.ndjson"},
        **options,
    }


def test_every_row_counts_once_through_kills_and_lost_connections(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DECISIONS_DSN", address)
    runs = DaemonRuns(tmp_path / "daemon", config())
    shutil.copy(EXAMPLE / "stream.py", runs.folder)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute((EXAMPLE / "decisions.sql").read_text())
        writing = threading.Thread(target=write, args=(address, 0, EVENTS))
        writing.start()
        for _ in range(3):
            before = runs.snapshots()[-1:]
            runs.start()
            wait_until(lambda: runs.snapshots()[-1:] not in ([], before), 60.0)  # noqa: B023 - waits within the loop
            time.sleep(0.2)
            runs.kill()
        runs.start()
        assert runs.process is not None

        def is_cut() -> bool:  # the first connections may still be of daemons that were killed
            connection.execute(CUT)
            return bool(runs.logged("source_function_failed"))

        wait_until(is_cut, 60.0)
        writing.join()
        wait_until(lambda: bool(runs.logged("source_function_works")), 60.0)
        connection.execute(INSERT.replace("0.5", "0"), (EVENTS, EVENTS + 1))
        changed = config(policies={"candidates": ["challenger", "other"]})
        (runs.folder / "streameval.yaml").write_text(yaml.safe_dump(changed))
        runs.process.send_signal(signal.SIGHUP)
        wait_until(lambda: bool(runs.logged("reloaded")), 60.0)
        runs.report_of(EVENTS)
        wait_until(lambda: (runs.folder / "rejected.ndjson").stat().st_size > 0, 60.0)
        time.sleep(0.5)  # for events that would count twice
        report = runs.report_of(EVENTS)
        runs.end()
    assert report["events"]["accepted"] == EVENTS
    assert sum(report["events"]["rejected"].values()) == 1
    assert f"e-{EVENTS}" in (runs.folder / "rejected.ndjson").read_text()
    assert runs.continuing == 3
    (value,) = (row["value"] for row in report["estimates"] if row["policy"] == "challenger")
    assert value == pytest.approx(0.25)
