"""Run a daemon several times on one state directory: start it, suspend it for a while, kill it, start it again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import yaml

from streameval.common.arrays import from_plain
from streameval.ingest.pipeline import describe_state
from streameval.ope.core import ring
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.service.snapshots import read_snapshot, snapshot_files
from support.asking import asking, report_of
from support.factories import wait_until
from support.paths import TESTS

RUN = "from streameval.cli.app import main; main()"
PATIENCE = 600.0


class DaemonRuns:
    """Hold a configuration in its own folder, and run it in one process after another.

    Args:
        folder: Directory of the configuration, the log and the state.
        config: The configuration.
        program: Python code, or the command in place of streameval.

    Attributes:
        process: The last process started.
        continuing: Number of runs that started with a snapshot.
    """

    def __init__(self, folder: Path, config: dict[str, Any], program: str | Sequence[str] = RUN) -> None:
        self.folder, self.log = folder, folder / "log"
        importing = f"import sys; sys.path.append({str(TESTS)!r})\n"  # programs may use `support`
        self._streameval = [sys.executable, "-c", importing + program] if isinstance(program, str) else program
        self.state = folder / "streameval-state"
        folder.mkdir(exist_ok=True)
        self.log.touch()
        (folder / "streameval.yaml").write_text(yaml.safe_dump(config))
        self.process: subprocess.Popen[bytes] | None = None
        self.continuing = 0

    def start(self, *options: str, **arguments: Any) -> None:
        """Start a run, and count it in `continuing` if there is a snapshot."""
        self.continuing += bool(self.snapshots())
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(*options), stdout=log, stderr=log, cwd=self.folder, **arguments
            )

    def refused(self, *options: str) -> str:
        """Start a second process, which must end at once while the first one runs, and return its log."""
        second = subprocess.run(
            self._command(*options), capture_output=True, text=True, cwd=self.folder, check=False, timeout=PATIENCE
        )
        assert second.returncode == 2, second
        return second.stderr

    def _command(self, *options: str) -> list[str]:
        return [*self._streameval, "run", "--log-format", "json", *options]

    def kill(self) -> None:
        """End a run, as by a power cut."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(PATIENCE)

    def processes(self) -> list[int]:
        """Return the process of the run, and those below it."""
        assert self.process is not None
        processes = [self.process.pid]
        for process in processes:  # the list grows during the loop
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in Path(f"/proc/{process}/task").glob("*/children"):
                    processes += map(int, task.read_text().split())
        return processes

    def processor_seconds(self) -> float:
        """Return the processor time of these processes so far, including ended child processes."""
        ticks = sum(sum(map(int, stat_of(process)[11:15])) for process in self.processes())
        return ticks / os.sysconf("SC_CLK_TCK")

    def java(self, program: str) -> list[int]:
        """Return the Java processes below the run with this name in their command lines."""
        processes = []
        for process in self.processes():
            with suppress(FileNotFoundError, ProcessLookupError):
                command = Path(f"/proc/{process}/cmdline").read_bytes()
                if program.encode() in command and b"java" in command.split(b"\0")[0]:
                    processes.append(process)
        return processes

    def sleep(self, seconds: float) -> None:
        """Suspend the run for a while, as a machine is suspended."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.process.send_signal(signal.SIGCONT)

    def disturbed(self, chance: random.Random, snapshots: int) -> None:
        """Start a run, sometimes suspend it, and kill it when there are at least this many snapshots."""
        reached = len(self.logged("source_reached"))
        self.start()
        wait_until(lambda: len(self.logged("source_reached")) > reached, PATIENCE)
        time.sleep(chance.uniform(0.2, 1.5))
        if chance.random() < 0.4:
            self.sleep(chance.uniform(0.2, 1.0))
            time.sleep(chance.uniform(0.0, 0.8))
        wait_until(lambda: len(self.snapshots()) >= snapshots, PATIENCE)
        self.kill()

    def finish(self, events: int, *options: str) -> dict[str, Any]:
        """Run until this number of events was accepted, and return the last report of that run."""
        self.start(*options)
        report = self.report_of(events)
        self.end()
        return report

    def end(self) -> None:
        """End a run in order."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()

    def report_of(self, events: int) -> dict[str, Any]:
        """Return the first report of at least this number of events."""
        deadline = time.monotonic() + PATIENCE
        seen: dict[str, Any] = {}
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            with suppress(httpx.TransportError, IndexError), asking(self.logged("serving")[-1]["url"]) as client:
                seen = report_of(client) or seen
            if seen and seen["events"]["accepted"] >= events:
                return seen
            time.sleep(0.5)  # the loop spends time on each request
        raise AssertionError(f"not within {PATIENCE} s: {seen.get('events')}\n{self.log.read_text()[-3000:]}")

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log entries of all runs under this name."""
        entries = []
        for line in self.log.read_text().splitlines():
            with suppress(ValueError):
                entry = msgspec.json.decode(line)
                if entry["event"] == event:
                    entries.append(entry)
        return entries

    def snapshots(self) -> list[Path]:
        """Return the snapshots on disk, the oldest first."""
        return snapshot_files(self.state)


def is_running(process: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    return stat_of(process)[:1] not in ([], ["Z"])


def stat_of(process: int) -> list[str]:
    """Return the fields of `/proc/PID/stat` from the state on, or none if the process does not exist."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return []


def final_state(state: Path) -> Any:
    """Return the state of the newest snapshot's evaluator. There must be no buffered events."""
    document = read_snapshot(snapshot_files(state)[-1])
    buffers = [row["what"] for row in describe_state(document.pipeline)["waiting"]]
    assert "buffered events" not in buffers
    return settled(Evaluator.from_state(document.evaluator, without_code=True))


def settled(changing: Evaluator) -> Any:
    """Return the state of an evaluator with all whole blocks folded. It does not depend on batches."""
    changing.fold_pending()
    changing.take_transitions()
    state = from_plain(changing.state())
    if state["pending"] is not None:
        state["pending"]["origin"] = None
    return with_rows_in_order(state)


def with_rows_in_order(state: Any) -> Any:
    """Return the state with the buckets of its rings in order, without the capacity that depends on batches."""
    if isinstance(state, dict) and state.keys() == set(ring.Ladder.__struct_fields__):
        buckets, lengths = ring.unrolled(ring.Ladder(**state))
        return {"buckets": buckets, "lengths": lengths}
    if isinstance(state, dict) and state.keys() == set(ring.Ring.__struct_fields__):
        kept = min(state["written"], state["capacity"])
        indices = np.arange(state["written"] - kept, state["written"]) % state["capacity"]
        return {**state, "full": state["full"][:, indices]}
    if isinstance(state, dict):
        return {key: with_rows_in_order(value) for key, value in state.items()}
    return [with_rows_in_order(value) for value in state] if isinstance(state, list) else state


def assert_same(one: Any, other: Any, where: str = "", tolerance: float = 1e-9) -> None:
    """Assert that values are equal, and numbers within a tolerance."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}/{key}", tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_same(left, right, f"{where}/{index}", tolerance)
    elif isinstance(one, float | np.ndarray) and not (isinstance(one, np.ndarray) and one.dtype.kind not in "fc"):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance, err_msg=where)
    elif isinstance(one, np.ndarray):
        np.testing.assert_array_equal(one, other, err_msg=where)
    else:
        assert one == other, where
