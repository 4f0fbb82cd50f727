"""The work of `streameval` before it answers: the modules that it imports, and its processor time.

Seconds depend on the machine, so the limits are multiples of the processor time of `import numpy`. Where that takes
0.08 s, they are 0.4 s for the import of the package, 0.35 s for `--help`, and 1 s until the daemon is ready.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

import yaml

from streameval.ingest.kafka.mock_broker import EmbeddedBroker
from support.asking import asking
from support.factories import wait_until
from support.integration.running import served_at

MAIN = "import sys; sys.argv[0] = 'streameval'; from streameval.cli.app import main; main()"
LATER = {"confluent_kafka", "matplotlib", "pyarrow", "river", "scipy", "sklearn"}
"""Libraries that a daemon without events does not use."""


def spent() -> float:
    """Seconds of processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def processor_time(*arguments: str) -> float:
    """The least of three runs of Python."""
    seconds = []
    for _ in range(3):
        before = spent()
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
        seconds.append(spent() - before)
    return min(seconds)


def test_importing_the_package_and_help_take_little_processor_time() -> None:
    unit = processor_time("-c", "import numpy")
    assert processor_time("-c", "import streameval") < 5 * unit
    assert processor_time("-c", MAIN, "--help") < 4.4 * unit


def test_a_daemon_is_ready_after_little_processor_time_and_before_it_imports_what_it_uses_later(
    tmp_path: Path,
) -> None:
    log, seconds = tmp_path / "log", []
    unit = processor_time("-c", "import numpy")
    with EmbeddedBroker({"clicks": 4}) as broker:
        source = {"kind": "kafka", "bootstrap_servers": broker.bootstrap, "api_version": "2.3", "topic": "clicks"}
        parts = {"source": source, "policies": {"candidates": ["new"]}, "http": {"port": 0}}
        (tmp_path / "streameval.yaml").write_text(yaml.safe_dump(parts))
        command = [sys.executable, "-X", "importtime", "-c", MAIN, "run", "--log-format", "json"]
        for _ in range(3):
            before = spent()
            with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, cwd=tmp_path) as process:
                try:
                    with asking(served_at(log, process)) as client:
                        wait_until(lambda: client.get("/readyz").status_code == 200)
                finally:
                    process.kill()
            seconds.append(spent() - before)
    assert min(seconds) < 12.5 * unit
    imported = set(re.findall(r"^import time:.*\| +(\w+)$", log.read_text(), re.M))
    assert "kafka" in imported
    assert not imported & LATER
