"""A recommender that serves a deployed policy, and a daemon that learns from its log and judges frozen copies.

When a copy becomes promotable, the recommender deploys it from its policy file: python serve.py --events 40000
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import numpy as np
from digits import EXPLORATION, Digits

EVERY = 2_000
"""Events between two frozen copies of the apprentice; the last four of them are candidates."""
LOOK = 500
"""Events between two questions to the daemon."""
PATIENCE = 300.0
"""Seconds to wait for the daemon."""
RUN = (sys.executable, "-c", "from streameval.cli.app import main; main()", "run")
"""`streameval run`, in this interpreter."""


def configuration(version: int, rule: str, port: int, actions: int) -> dict[str, Any]:
    """The configuration of the daemon for a version of production; JSON is YAML, too."""
    apprentice: dict[str, Any] = {"kind": "learned", "objective": "snips", "per_action": True}
    if version:
        apprentice["file"] = f"production-{version}.npz"
    frozen = {"kind": "versions_of", "policy": "apprentice", "every": EVERY, "keep": 4}
    return {
        "source": {"kind": "file", "path": "log.ndjson", "follow": True},
        "policies": {
            "production": f"production-{version}",
            "candidates": {"apprentice": apprentice, "frozen": frozen},
        },
        "estimators": ["stratified_ips"],
        "averages": ["mixture"],
        "drift": "off",
        "promotion": {"rule": rule, "min_events": EVERY, "max_weight": actions / EXPLORATION},
        "http": {"port": port},
        "state": {"dir": "state", "interval": "1s"},
    }


class Recommender:
    """Serves the baseline, and then policy files; writes its events to a log."""

    def __init__(self, directory: Path, digits: Digits, seed: int) -> None:
        self._digits, self._rng = digits, np.random.default_rng([seed, 3])
        self._log = directory / "log.ndjson"
        self._log.touch()
        self.served, self.version, self.events, self.last = digits.baseline, 0, 0, 0.0

    def deploy(self, file: Path) -> None:
        """Serve the policy in a file from now on: the softmax of its weights times the features."""
        with np.load(file) as content:
            self.served = self._digits.chosen_by(content["weights"])
        self.version += 1

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
            "policies": {f"production-{self.version}": policy.tolist()},
        }


@contextmanager
def daemon(directory: Path, settings: dict[str, Any]) -> Iterator[str]:
    """A daemon with these settings, which continues from the snapshot of the one before; yields its address."""
    (directory / "streameval.yaml").write_text(json.dumps(settings))
    with (directory / "daemon.log").open("ab") as log:
        process = subprocess.Popen([*RUN, "streameval.yaml"], cwd=directory, stderr=log)
    try:
        yield f"http://127.0.0.1:{settings['http']['port']}/api/v1/report"
    finally:
        process.terminate()
        process.wait(PATIENCE)


def report_until(address: str, moment: float) -> dict[str, Any]:
    """The Report that has the event of this time.

    Raises:
        TimeoutError: The daemon has not read so far.
    """
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            with urlopen(address, timeout=10) as answer:
                report: dict[str, Any] = json.load(answer)
        except OSError:  # it has not started yet
            report = {"events": {}}
        if (report["events"].get("last_timestamp") or 0.0) >= moment:
            return report
        time.sleep(0.05)
    raise TimeoutError(f"the daemon has not read the events until {moment}")


def promotable(report: dict[str, Any]) -> str | None:
    """The newest frozen copy that is promotable, if any: the apprentice itself has no file, as it changes."""
    names = [each["policy"] for each in report["promotion"] if each["promotable"] and each["policy"] != "apprentice"]
    return max(names, key=lambda name: int(name.rpartition("-")[2]), default=None)


def run(directory: Path, digits: Digits, events: int, rule: str, seed: int) -> list[tuple[int, str, float]]:
    """Serve this number of events; each deployment with the events before it, and the true value of the policy."""
    recommender, deployed = Recommender(directory, digits, seed), []
    print(f"      0 events: the baseline is worth {digits.value(digits.baseline):.3f} per event")
    while recommender.events < events:
        settings = configuration(recommender.version, rule, free_port(), digits.actions)
        with daemon(directory, settings) as address:
            name = None
            while name is None and recommender.events < events:
                recommender.serve(LOOK)
                name = promotable(report_until(address, recommender.last))
        if name is not None:
            file = directory / f"production-{recommender.version + 1}.npz"
            shutil.copy(directory / "state" / f"{name}.npz", file)
            recommender.deploy(file)
            value = digits.value(recommender.served)
            deployed.append((recommender.events, name, value))
            print(f"{recommender.events:7,} events: {name} is deployed as {file.stem}, worth {value:.3f}", flush=True)
    return deployed


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def main() -> None:
    """The command line."""
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
