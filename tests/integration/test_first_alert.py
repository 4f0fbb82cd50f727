"""Follow the quick start of the README with a log of 50,000 rows: answer, picture, and a daemon with an alert."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from support.asking import asking, report_of
from support.documents import blocks, shell
from support.factories import wait_until
from support.integration.monitoring import query, server
from support.integration.running import served_at
from support.paths import ROOT
from support.ports import free_port
from support.programs import program

ROWS = 50_000
PORT, CONFIG = "9108", "deploy/prometheus/local.yml"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare a directory with the log, the files that the README names, and a free port."""
    chance = random.Random(17)
    with gzip.open(tmp_path / "log.csv.gz", "wt") as file:
        file.write("action,propensity,reward,challenger\n")
        for _ in range(ROWS):
            is_first = chance.random() < 0.7
            click = int(chance.random() < (0.1 if is_first else 0.3))
            file.write(f"first,0.7,{click},0.3\n" if is_first else f"second,0.3,{click},0.7\n")
    shutil.copytree(ROOT / "deploy" / "prometheus", tmp_path / "deploy" / "prometheus")
    port, config = str(free_port()), tmp_path / CONFIG
    config.write_text(config.read_text().replace(PORT, port))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMEVAL_HTTP__PORT", port)
    return tmp_path


def commands() -> Iterator[str]:
    """Return the commands of the quick start about the log, in their order."""
    console = [block.text for block in blocks((ROOT / "README.md").read_text()) if block.language == "console"]
    for text in console:
        if "log.csv.gz" in text:
            yield from (line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))


def firing(monitor: httpx.Client) -> set[str]:
    return {labels["alertname"] for labels, _ in query(monitor, 'ALERTS{alertstate="firing"}')}


def accepted(client: httpx.Client) -> int:
    report = report_of(client)
    return 0 if report is None else int(report["events"]["accepted"])


def test_the_readme_leads_from_a_log_to_an_alert(folder: Path) -> None:
    prometheus = program("prometheus", "prometheus")
    *_, picture, written, run, alerts = commands()
    answer = shell(picture)
    assert answer.splitlines()[1].startswith("Ship challenger: +")
    assert f"{ROWS:,} events, 0 rejected" in answer
    assert (folder / "answer.png").read_bytes().startswith(b"\x89PNG")
    assert shell(written) == ""
    log = folder / "log"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with ExitStack() as stack:
        out = stack.enter_context(log.open("w"))
        daemon = stack.enter_context(subprocess.Popen(run.split(), stderr=out, env=os.environ | {"PATH": path}))
        stack.callback(daemon.terminate)
        client = stack.enter_context(asking(served_at(log, daemon)))
        (folder / "alerts").mkdir()
        port = free_port()
        options = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'alerts' / 'data'}"]
        started = [prometheus, *alerts.split()[1:], *options]
        monitor = stack.enter_context(server(started, port, folder / "alerts"))
        wait_until(lambda: accepted(client) == ROWS, seconds=120.0)
        assert "Ship challenger: +" in client.get("/").text
        wait_until(lambda: firing(monitor) == {"StreamevalCandidateBeatsProduction"}, seconds=120.0)
