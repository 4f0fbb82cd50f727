"""Measure the overfitting of propensities: few events, many passes, by `streameval learn`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from digits import DIGITS, EXPLORATION, Digits

EVENTS = 875
"""Events of a log. The first 700 are learned from."""
PASSES = (1, 10, 100)
SEEDS = range(5)
CONFIG = "policies: {candidates: {apprentice: {kind: learned, objective: snips, per_action: true, step: 0.05}}}\n"
LEARN = (sys.executable, "-c", "from streameval.cli.app import main; main()", "learn")
"""`streameval learn`, in this interpreter."""


def measured() -> dict[str, Any]:
    """Return means over seeds for each number of passes without early stopping, and with it."""
    rows = [{"passes": passes, **_mean(("--passes", str(passes), "--patience", "0"))} for passes in PASSES]
    return {"passes": rows, "whole": rows[-1], "stopped": {"passes": PASSES[-1], **_mean(("--passes", "100"))}}


def _mean(options: tuple[str, ...]) -> dict[str, float]:
    results = [learned(seed, options) for seed in SEEDS]
    return {name: float(np.mean([result[name] for result in results])) for name in results[0]}


def learned(seed: int, options: tuple[str, ...]) -> dict[str, float]:
    """Learn a policy, and return the report of `streameval learn` and the true value of the policy in its file."""
    digits = Digits.prepared(seed)
    with TemporaryDirectory() as directory:
        config, log = Path(directory) / "streameval.yaml", Path(directory) / "log.ndjson"
        config.write_text(CONFIG)
        write_log(digits, log, seed)
        command = [*LEARN, str(config), str(log), "--to", directory, "--json", *options]
        output = json.loads(
            subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        )
        with np.load(Path(directory) / "apprentice.npz") as file:
            weights = file["weights"]
    (policy,) = output["policies"]
    best = policy["passes"][policy["best"] - 1]
    return {
        "training": policy["learned_from"]["value"],
        "weight": policy["learned_from"]["importance_weight_mean"],
        "validation": best["later"]["value"],
        "truth": digits.value(digits.chosen_by(weights)),
    }


def write_log(digits: Digits, path: Path, seed: int) -> None:
    """Write a log of the baseline."""
    rng = np.random.default_rng([seed, 2])
    with path.open("w") as file:
        for number in range(EVENTS):
            image = int(rng.integers(len(digits.label)))
            propensities = (1 - EXPLORATION) * digits.baseline[image] + EXPLORATION / DIGITS
            action = int(rng.choice(DIGITS, p=propensities))
            event = {
                "event_id": f"{number}",
                "timestamp": 1.7e9 + number,
                "actions": list(range(DIGITS)),
                "features": digits.action_features[image].tolist(),
                "propensities": propensities.tolist(),
                "action": action,
                "reward": int(action == digits.label[image]),
            }
            file.write(json.dumps(event) + "\n")
