"""Set up whole processes. Each test uses its own, because the settings are permanent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MEASURED = """
import gc, json, sys, time
import streameval.cli.app, streameval.service.startup, streameval.service.http.server
from streameval.service.process import make_responsive

def seconds():
    started = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started

before = min(seconds() for _ in range(5))
make_responsive()
after = min(seconds() for _ in range(5))
kept = [[]]
kept[0].append(kept)
del kept
print(json.dumps({"before": before, "after": after, "found": gc.collect(), "interval": sys.getswitchinterval()}))
"""

SETTINGS = """
import ctypes, gc, json, signal, sys

class Library(ctypes.CDLL):
    asked = 0
    def __init__(self, name, *arguments, **options):
        super().__init__(name, *arguments, **options)
        self.mallopt = self.count
    def count(self, *_):
        type(self).asked += 1
        return 1

ctypes.CDLL = Library

def settings():
    from threadpoolctl import threadpool_info
    return {
        "threads": max(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"),
        "collections": gc.get_threshold(),
        "frozen": gc.get_freeze_count(),
        "interval": sys.getswitchinterval(),
        "memory": Library.asked,
        "signals": [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
    }
"""

OF_A_VERB = f"""{SETTINGS}
sys.argv = ["streameval", *sys.argv[1:]]
from streameval.cli.app import main
try:
    main()
finally:
    print(json.dumps(settings()))
"""

OF_A_LIBRARY_USER = f"""{SETTINGS}
import streameval as se
from streameval.service.daemon import Daemon
from streameval.cli.replay import Replay
from streameval.config.model import Config
from streameval.events import JsonDecoder
from streameval.cli.plan import plan_power
from streameval.ingest.files.source import FileSource
before = settings()
config, log = sys.argv[1:]
evaluator = se.Evaluator(candidates=["challenger"])
Daemon(FileSource([log]), JsonDecoder(["challenger"]), evaluator, stop_when_exhausted=True).run()
assert evaluator.report().events.accepted == 200
Replay(Config.load(config)).read([log])
plan_power(Config.load(config), [log])
print(json.dumps([before, settings()]))
"""

EVENT = (
    '{"event_id": "e", "timestamp": 1574553634.5, "action": "a", "propensity": 0.25, "reward": %d, '
    '"policies": {"challenger": 0.5}}\n'
)


def last_line(program: str, *arguments: str) -> Any:
    command = [sys.executable, "-c", program, *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Write a configuration and a log."""
    config, log = tmp_path / "c.yaml", tmp_path / "log.ndjson"
    config.write_text("policies: {candidates: [challenger]}\n")
    log.write_text("".join(EVENT % (number % 2) for number in range(200)))
    return [str(config), str(log)]


def test_a_full_garbage_collection_no_longer_walks_over_what_was_loaded_and_still_finds_what_is_new() -> None:
    found = json.loads(subprocess.run([sys.executable, "-c", MEASURED], check=True, capture_output=True).stdout)
    assert found["after"] < 0.2 * found["before"]
    assert found["found"] >= 2
    assert found["interval"] == 0.001


@pytest.mark.parametrize("verb", ["replay", "plan"])
def test_verbs_that_read_files_collect_rarely_keep_memory_and_compute_in_one_thread(
    verb: str, files: list[str]
) -> None:
    found = last_line(OF_A_VERB, verb, *files)
    assert (found["threads"], found["collections"][0], found["frozen"]) == (1, 10_000, 0)
    assert found["memory"] > 0


def test_the_library_leaves_the_settings_of_the_process_alone(files: list[str]) -> None:
    before, after = last_line(OF_A_LIBRARY_USER, *files)
    assert after == before
    assert after["memory"] == 0


def test_a_configuration_names_code_in_the_working_directory(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "own_policy.py").write_text("def even():\n    return lambda decisions: [[0.5, 0.5]] * 200\n")
    (tmp_path / "json.py").write_text("raise ImportError('hides a module of Python')\n")
    target = "{even: {kind: python, target: 'own_policy:even'}}"
    Path(files[0]).write_text(f"policies: {{candidates: {target}}}\n")
    program = "from streameval.cli.app import main; main()"
    verb = [sys.executable, "-P", "-c", program, "check", files[0]]
    done = subprocess.run(verb, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "even (python)" in done.stdout
