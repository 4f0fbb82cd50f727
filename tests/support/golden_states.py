"""Write small states that later versions must be able to continue, with the numbers that follow.

    PYTHONPATH=.:tests python -m support.golden_states

writes the states of the present schema, for schemas that have none yet. Written files stay as they are.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import streameval as se
from streameval.ope.core.state import STATE_SCHEMA
from support import recorded_logs as logs
from support.paths import DATA
from tools.recorded_reports import is_number, leaves

STATES = DATA / "states"
BEFORE, AFTER, BLOCK = 215, 145, 20
"""Events before a state was written and after it. Both end inside a block."""
KEPT = {"value", "lower", "lift", "lift_upper", "estimated", "held", "events", "accepted"}
"""Numbers of a Report that are compared."""


def default() -> tuple[se.Evaluator, logs.Columns]:
    """Return the default configuration, and plain events."""
    return se.Evaluator(["new"], block=BLOCK), logs.plain(70, BEFORE + AFTER)


def everything() -> tuple[se.Evaluator, logs.Columns]:
    """Return a configuration with nearly every part that has a state, and the log of a ramp."""
    columns = logs.described(71, BEFORE + AFTER)
    columns["logging_policy"] = ["good" if event % 3 == 0 else "partial" for event in range(BEFORE + AFTER)]
    averages: list[Any] = [
        se.Cumulative(),
        se.Window(tau=100, resolution=20),
        se.Window(span="20m", name="minutes"),
        se.AdaptiveWindow(drift_span=100),
        se.AdaptiveDecay(drift_span=100),
        se.Mixture(),
    ]
    evaluator = se.Evaluator(
        {"good": "logged", "apprentice": se.Learned(objective="snips")},
        [se.ControlVariate(), se.StratifiedDR()],
        averages,
        production="partial",
        intervals={"cumulative": "confidence_sequence", "adaptive_window": se.Normal(drift="include")},
        block=BLOCK,
        logging={"arms": {"partial": 0.6, "good": 0.4}, "weights": "logged"},
        promotion=se.Promotion(rule=("paired", "anytime", "sea"), min_events=60, hold=1),
    )
    return evaluator, columns


def rewards_and_segments() -> tuple[se.Evaluator, logs.Columns]:
    """Return several rewards with a guardrail, segments, units and a detector of river."""
    columns = logs.with_segments(logs.with_rewards(logs.described(73, BEFORE + AFTER), 74), 75)
    columns = logs.with_units(columns, 72, first=65, size=5)
    evaluator = se.Evaluator(
        ["good"],
        [se.IPS()],
        [se.Cumulative(), se.Mixture()],
        rewards={"reward": {}, "stay": {"guardrail": {"max_loss": 0.25}}},
        segments={"country": {"values": ["de", "fr"], "other": True}},
        block=BLOCK,
        drift="PageHinkley",
    )
    return evaluator, columns


CASES: dict[str, Callable[[], tuple[se.Evaluator, logs.Columns]]] = {
    "default": default,
    "everything": everything,
    "rewards_and_segments": rewards_and_segments,
}


def written(case: str) -> Any:
    """Return the state of a case after the first events, as a file would hold it."""
    evaluator, columns = CASES[case]()
    evaluator.update(se.EventBatch.from_arrays(**columns)[:BEFORE])
    evaluator.fold_pending()
    return msgspec.msgpack.decode(msgspec.msgpack.encode(evaluator.state()))


def continued(case: str, state: Any) -> dict[str, float]:
    """Return the numbers of a Report by path, after a state and the events that follow it."""
    _, columns = CASES[case]()
    evaluator = se.Evaluator.from_state(state)
    evaluator.update(se.EventBatch.from_arrays(**columns)[BEFORE:])
    numbers = leaves(json.loads(evaluator.report().to_json()))
    return {path: value for path, value in numbers if path.rpartition(".")[2] in KEPT and is_number(value)}


def read(path: Path) -> dict[str, Any]:
    """Return the `state` in a file, and the `numbers` that follow."""
    content: dict[str, Any] = msgspec.msgpack.decode(gzip.decompress(path.read_bytes()))
    return content


def main() -> None:
    """Write the files of the present schema that are missing."""
    STATES.mkdir(exist_ok=True)
    for case in CASES:
        path = STATES / f"{STATE_SCHEMA}-{case}.msgpack.gz"
        if not path.exists():
            state = written(case)
            content = {"state": state, "numbers": continued(case, state)}
            path.write_bytes(gzip.compress(msgspec.msgpack.encode(content), 9, mtime=0))
            print(path, path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
