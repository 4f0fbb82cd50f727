"""Serve a deployed policy, while a daemon learns from the log and evaluates frozen copies.

When a copy becomes promotable, the recommender deploys its policy file. The daemon keeps running and starts the next
apprentice from the same file: python serve.py --events 40000
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
from digits import EXPLORATION, Digits

EVERY = 2_000
"""Events between two frozen copies of the apprentice. The last four copies are candidates."""
LOOK = 500
"""Events between two questions to the daemon."""
PATIENCE = 300.0
"""Seconds to wait for the daemon."""
RUN = (sys.executable, "-c", "from streameval.cli.app import main; main()", "run")
"""`streameval run`, in this interpreter."""


START = "apprentice.npz"
"""Policy file that the apprentice starts from. After a deployment, it has the policy that is served."""
PRODUCTION = "production"


def configuration(rule: str, port: int, actions: int) -> dict[str, Any]:
    """Return the configuration of the daemon, which no deployment changes. JSON is valid YAML."""
    return {
        "source": {"kind": "file", "path": "log.ndjson", "follow": True},
        "policies": {
            "production": PRODUCTION,
            "candidates": {
                "apprentice": {"kind": "learned", "file": START},
                "frozen": {"kind": "versions_of", "policy": "apprentice", "every": EVERY, "keep": 4},
            },
        },
        "estimators": ["stratified_ips"],
        "averages": ["mixture"],
        "drift": "off",
        "promotion": {
            "rule": {"kind": "sea", "max_weight": actions / EXPLORATION} if rule == "sea" else rule,
            "min_events": EVERY,
        },
        "http": {"port": port},
        "state": {"dir": "state", "interval": "1s"},
    }


def write_start(path: Path, digits: Digits) -> None:
    """Write a policy file of an apprentice that has learned nothing: all weights are 0."""
    options = {"schema": 1, "kind": "learned", "objective": "snips", "per_action": True, "events": 0}
    weights = np.zeros((digits.actions, digits.features.shape[1]))
    np.savez(path, weights=weights, description=np.array(json.dumps(options)))


class Recommender:
    """Serve the baseline, and then policy files, and write the events to a log."""

    def __init__(self, directory: Path, digits: Digits, seed: int) -> None:
        self._digits, self._rng = digits, np.random.default_rng([seed, 3])
        self._log = directory / "log.ndjson"
        self._log.touch()
        self.served, self.events, self.last = digits.baseline, 0, 0.0

    def deploy(self, file: Path) -> None:
        """Serve the policy in a file from now on: the softmax of its weights times the features."""
        with np.load(file) as content:
            self.served = self._digits.chosen_by(content["weights"])

    def serve(self, events: int) -> None:
        """Choose for this number of images, and log the choices with their propensities."""
        with self._log.open("a") as log:
            for _ in range(events):
                log.write(json.dumps(self._decide()) + "\n")
        self.events += events

    def _decide(self) -> dict[str, Any]:
        image = int(self._rng.integers(len(self._digits.label)))
        policy = self.served[image]
        actions = len(policy)
        propensities = (1 - EXPLORATION) * policy + EXPLORATION / actions
        action = int(self._rng.choice(actions, p=propensities / propensities.sum()))
        self.last = max(time.time(), self.last + 1e-6)
        return {
            "event_id": f"{self.events}-{self.last}",
            "timestamp": self.last,
            "actions": list(range(actions)),
            "features": [self._digits.features[image].round(4).tolist()] * actions,
            "propensities": propensities.tolist(),
            "action": action,
            "reward": int(action == self._digits.label[image]),
            "policies": {PRODUCTION: policy.tolist()},
        }


class Daemon:
    """Control a running daemon."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes], port: int) -> None:
        self.directory, self._process, self._port = directory, process, port

    def report(self) -> dict[str, Any]:
        """Return the present Report, which is empty until the daemon has started."""
        try:
            with urlopen(f"http://127.0.0.1:{self._port}/api/v1/report", timeout=10) as answer:
                report: dict[str, Any] = json.load(answer)
        except OSError:
            return {"events": {}, "policies": []}
        return report

    def report_where(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a Report for which `holds` is true.

        Raises:
            TimeoutError: There is none.
        """
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            report = self.report()
            if holds(report):
                return report
            time.sleep(0.05)
        raise TimeoutError(f"the daemon is still at {report['events']}")

    def report_after(self, moment: float) -> dict[str, Any]:
        """Wait for a Report that includes the event of this time."""
        return self.report_where(lambda report: (report["events"].get("last_timestamp") or 0.0) >= moment)

    def deploy(self, name: str) -> Path:
        """Copy a frozen copy to the policy file that the apprentice starts from, and reload the daemon.

        The apprentice is then another candidate. Its estimates, and production's next to them, start from zero.
        """
        copy, file = self.directory / "state" / f"{name}.npz", self.directory / START
        self.report_where(lambda report: copy.exists())  # the next snapshot writes it
        shutil.copy(copy, file)
        self._process.send_signal(signal.SIGHUP)
        self.report_where(lambda report: name not in [estimate["policy"] for estimate in report["policies"]])
        return file


@contextmanager
def running(directory: Path, settings: dict[str, Any]) -> Iterator[Daemon]:
    """Run a daemon with these settings."""
    (directory / "streameval.yaml").write_text(json.dumps(settings))
    with (directory / "daemon.log").open("ab") as log:
        process = subprocess.Popen([*RUN, "streameval.yaml"], cwd=directory, stderr=log)
    try:
        yield Daemon(directory, process, settings["http"]["port"])
    finally:
        process.terminate()
        process.wait(PATIENCE)


def promotable(report: dict[str, Any]) -> str | None:
    """Return the newest frozen copy that is promotable, if any.

    The apprentice itself does not count. It changes all the time, so it has no file.
    """
    names = [
        decision["policy"]
        for decision in report["promotion"]
        if decision["promotable"] and decision["policy"] != "apprentice"
    ]
    return max(names, key=lambda name: int(name.rpartition("-")[2]), default=None)


def run(directory: Path, digits: Digits, events: int, rule: str, seed: int) -> list[tuple[int, str, float]]:
    """Serve this number of events.

    Returns:
        Each deployment with the events before it, the name of the copy, and the true value of its policy.
    """
    recommender, deployed = Recommender(directory, digits, seed), []
    write_start(directory / START, digits)
    print(f"      0 events: the baseline is worth {digits.value(digits.baseline):.3f} per event")
    with running(directory, configuration(rule, free_port(), digits.actions)) as daemon:
        while recommender.events < events:
            recommender.serve(LOOK)
            name = promotable(daemon.report_after(recommender.last))
            if name is None:
                continue
            recommender.deploy(daemon.deploy(name))
            value = digits.value(recommender.served)
            deployed.append((recommender.events, name, value))
            print(f"{recommender.events:7,} events: {name} is deployed, worth {value:.3f}", flush=True)
    return deployed


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=40_000, help="number of events, by default 40,000")
    parser.add_argument("--rule", default="paired", choices=["sea", "bsea", "anytime", "paired"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dataset", type=Path, help="a file in the format of LIBSVM in place of the digits")
    parser.add_argument("--to", type=Path, help="an empty directory to keep the log, the state and the policy files")
    chosen = parser.parse_args()
    digits = Digits.prepared(chosen.seed, chosen.dataset)
    with TemporaryDirectory() as temporary:
        run(chosen.to or Path(temporary), digits, chosen.events, chosen.rule, chosen.seed)


if __name__ == "__main__":
    main()
