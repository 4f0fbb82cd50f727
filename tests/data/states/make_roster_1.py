"""Made roster_1.snapshot and roster_1.json with version 0.1.0 before lifts were kept (commit fba52fd): its states had
schema 1. Run there, with the snapshot format of a later version: python make_roster_1.py LATER_PACKAGE_DIRECTORY
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from streameval.events import EventBatch
from streameval.ope.evaluator.cohorts import CohortEvaluator
from streameval.ope.evaluator.evaluator import Evaluator

HERE = Path(__file__).parent


def events(count: int, seed: int) -> EventBatch:
    """Events with action sets, deterministic over versions."""
    rng = np.random.default_rng(seed)
    return EventBatch.from_arrays(
        reward=(rng.random(count) < 0.3).astype(float),
        propensities=np.full((count, 4), 0.25),
        action=rng.integers(0, 4, count),
        policies={name: rng.dirichlet(np.ones(4), count) for name in ("early", "late")},
        features=rng.random((count, 4, 2)),
        timestamp=1_700_000_000.0 + np.arange(count),
    )


def report(roster: Any) -> Any:
    return json.loads(roster.report().to_json())


def main(later: Path) -> None:
    roster = CohortEvaluator(Evaluator(["early"]).plan)
    roster.update(events(1050, seed=1))
    late = roster.change(Evaluator(["early", "late"]).plan)
    assert late is not None
    roster.join(late)
    roster.update(events(580, seed=2))
    roster.report()  # folds whole blocks, so that not all events wait in the state
    document = {
        "schema": 1,
        "version": "0.1.0",
        "fingerprint": {},
        "written": 1_700_000_000.0,
        "bookmarks": {},
        "intake": {},
        "roster": roster.state(),
    }
    with (HERE / "roster_1.snapshot").open("wb") as file:
        _snapshot_file(later).write_document(file, document)
    at = report(roster)
    roster.update(events(777, seed=3))
    (HERE / "roster_1.json").write_text(json.dumps({"at": at, "after": report(roster)}, separators=(",", ":")) + "\n")


def _snapshot_file(later: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("later", later / "sinks" / "snapshot_file.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(Path(sys.argv[1]))
