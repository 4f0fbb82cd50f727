"""Set up whole processes. Each test uses its own, because the settings are permanent."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from streameval.service.process import keep_freed_memory

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

OF_A_COMMAND = f"""{SETTINGS}
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


def test_a_command_that_reads_files_collects_rarely_keeps_memory_and_computes_in_one_thread(files: list[str]) -> None:
    settings = last_line(OF_A_COMMAND, "replay", *files)
    assert (settings["threads"], settings["collections"][0], settings["frozen"]) == (1, 10_000, 0)
    assert settings["memory"] > 0


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


PAGES = 25_000_000 // resource.getpagesize()
COUNTED = """
import resource
import numpy as np
from streameval.service.process import keep_freed_memory
keep_freed_memory()
[np.ones(625_000) for _ in range(5)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
[np.ones(625_000) for _ in range(5)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_freed_by_arrays_is_used_again() -> None:
    if not keep_freed_memory():
        pytest.skip("this C library has no such setting")
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES / 10


LEFT = """
import resource, threading
from pathlib import Path
from streameval.service.process import keep_freed_memory, return_large_arrays

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

def grow():
    document = bytearray()
    for _ in range(30):
        document += bytes(1_000_000)

keep_freed_memory()
return_large_arrays()
before = megabytes()
for _ in range(4):
    thread = threading.Thread(target=grow)
    thread.start()
    thread.join()
print(megabytes() - before)
"""


def test_threads_of_a_daemon_keep_no_large_array() -> None:
    if not keep_freed_memory():
        pytest.skip("this C library has no such setting")
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 10


STARTED = """
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from streameval.config.model import Config
from streameval.service.startup import daemon
from support.factories import running, wait_until
for path in map(Path, sys.argv[1:]):
    started = daemon(path, Config.load(path, {}))
    print("river" in sys.modules)
    with running(started):
        wait_until(lambda: started.published.accepted > 0)
    print("river" in sys.modules)
"""


def test_river_is_loaded_only_for_its_own_detectors(tmp_path: Path, files: list[str]) -> None:
    paths = []
    for detector in ("ADWIN", "PageHinkley"):
        paths.append(tmp_path / f"{detector}.yaml")
        source = {"kind": "file", "path": files[1], "follow": True}
        parts = {"source": source, "policies": {"candidates": ["challenger"]}, "drift": detector, "state": "off"}
        paths[-1].write_text(yaml.safe_dump(parts))
    command = [sys.executable, "-c", STARTED, *map(str, paths)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment).stdout
    assert [line for line in output.splitlines() if line in ("True", "False")] == ["False", "False", "True", "True"]
