"""Kill a daemon again and again while a policy learns and makes frozen copies."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from streameval.service.snapshots import read_snapshot
from support.integration.daemon_runs import PATIENCE, DaemonRuns, assert_same, final_state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

EVENTS, KILLS = 60_000, 10
ACTIONS = ["a", "b", "c"]

KILLED = """
import os, signal, sys
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.service.snapshots import SnapshotStore

turns, least = int(sys.argv.pop()), int(sys.argv.pop())
update, maybe_write, drawn, accepted = Evaluator.update, SnapshotStore.maybe_write, turns, 0

def counted(evaluator, batch):
    global accepted
    update(evaluator, batch)
    accepted = evaluator.accepted

def write_or_kill(writer, document):
    global turns
    if accepted < least:
        return maybe_write(writer, document)
    if turns == drawn:
        writer.write_last(document)
    if turns == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    turns -= 1

Evaluator.update, SnapshotStore.maybe_write = counted, write_or_kill
from streameval.cli.app import main
main()
"""
"""A daemon that writes a snapshot once it has counted `least` events, and is killed some `turns` of its loop later."""


LEARNER = """
class Counting:
    def __init__(self):
        self.sums = {}

    def predict(self, decisions):
        return [self.answer(actions) for actions in decisions.actions]

    def answer(self, actions):
        values = [self.sums.get(action, 0.0) for action in actions]
        return [0.9 * (value == max(values)) / values.count(max(values)) + 0.1 / len(values) for value in values]

    def learn(self, decisions, action, propensity, reward):
        for actions, place, p, r in zip(decisions.actions, action.tolist(), propensity.tolist(), reward.tolist()):
            self.sums[actions[place]] = self.sums.get(actions[place], 0.0) + r / p
"""


def write_log(path: Path) -> None:
    rng = np.random.default_rng(18)
    features = rng.normal(size=(EVENTS, len(ACTIONS), 3)).round(4)
    propensities = rng.dirichlet(np.full(len(ACTIONS), 5.0), EVENTS)
    action = (propensities.cumsum(axis=1) > rng.random((EVENTS, 1))).argmax(axis=1)
    scores = features @ np.array([1.0, -1.0, 0.5])
    reward = rng.random(EVENTS) < 1 / (1 + np.exp(-2 * scores[np.arange(EVENTS), action]))
    events = (
        {
            "event_id": f"e-{number}",
            "timestamp": 1_700_000_000 + number / 100,
            "actions": ACTIONS,
            "features": features[number].tolist(),
            "propensities": propensities[number].tolist(),
            "action": ACTIONS[action[number]],
            "reward": int(reward[number]),
        }
        for number in range(EVENTS)
    )
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def config(log: Path) -> dict[str, Any]:
    return {
        "source": {"kind": "file", "path": str(log), "follow": True},
        "policies": {
            "candidates": {
                "apprentice": {"kind": "learned", "objective": "snips", "counter_sample": True},
                "frozen": {"kind": "versions_of", "policy": "apprentice", "every": 7_000, "keep": 3},
                "mine": {"kind": "python", "target": "learner:Counting", "learns": True},
                "own": {"kind": "learned", "learns_from": "own", "own_limit": 4.0, "average": True},
            }
        },
        "estimators": ["ips", "snips"],
        "averages": ["cumulative", {"kind": "decay", "half_life": 5_000}, "mixture"],
        "drift": "off",
        "http": {"port": 0},
        "state": {"interval": "300ms"},
    }


def learned(runs: DaemonRuns) -> dict[str, Any]:
    """By policy what it has learned, bit for bit as in the newest snapshot."""
    state: dict[str, Any] = read_snapshot(runs.snapshots()[-1]).evaluator["rooms"]["learning"]
    return state


def files(runs: DaemonRuns) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in runs.state.glob("*.npz")}


def test_a_policy_that_learns_has_the_same_weights_to_the_last_bit_after_kills(tmp_path: Path) -> None:
    log, chance = tmp_path / "log.ndjson", random.Random(18)
    write_log(log)
    undisturbed, runs = (DaemonRuns(tmp_path / name, config(log)) for name in ("undisturbed", "killed"))
    for daemon_runs in (undisturbed, runs):
        (daemon_runs.folder / "learner.py").write_text(LEARNER)
    undisturbed.finish(EVENTS)
    killed = DaemonRuns(tmp_path / "killed", config(log), KILLED)
    for kill in range(KILLS):
        least = round(0.9 * EVENTS * (kill + chance.random()) / KILLS)
        killed.start(str(least), str(chance.randrange(1, 4)))
        assert killed.process is not None
        assert killed.process.wait(PATIENCE) == -signal.SIGKILL, killed.log.read_text()
    report = runs.finish(EVENTS)
    assert len(runs.logged("continued")) == KILLS
    assert [policy["policy"] for policy in report["policies"]] == [
        *("logging", "apprentice", "mine", "own", "frozen-6", "frozen-7", "frozen-8")
    ]
    assert learned(runs) == learned(undisturbed)
    assert files(runs) == files(undisturbed)
    assert sorted(files(runs)) == ["frozen-6.npz", "frozen-7.npz", "frozen-8.npz"]
    assert_same(final_state(runs.state), final_state(undisturbed.state))
