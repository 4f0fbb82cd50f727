"""`streameval broker`: the embedded broker alone, as a process that other verbs use."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.messages import message

pytest.importorskip("confluent_kafka")

STREAMEVAL = [sys.executable, "-c", "from streameval.cli.app import main; main()"]


def streameval(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*STREAMEVAL, *arguments], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_configuration_that_it_prints_works_until_ctrl_c(tmp_path: Path) -> None:
    command = [*STREAMEVAL, "broker", "--topic", "clicks", "--partitions", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first, section = process.stdout.readline(), process.stdout.readline()
            assert re.match(r"the broker listens at 127\.0\.0\.1:\d+ until Ctrl-C", first)
            (tmp_path / "streameval.yaml").write_text(section + "policies: {candidates: [challenger]}\n")
            (tmp_path / "log.ndjson").write_bytes(message(0, policies={"challenger": 0.5}) + b"\n")
            produced = streameval(tmp_path, "produce", "log.ndjson", "--config", "streameval.yaml")
            assert produced.returncode == 0, produced.stderr
            assert "1 event sent to clicks" in produced.stderr
            checked = streameval(tmp_path, "check")
            assert checked.returncode == 0, checked.stdout + checked.stderr
            assert "2 partitions" in checked.stdout
        finally:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
