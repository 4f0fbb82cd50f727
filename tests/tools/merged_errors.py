"""Errors and coverage of averages on merged buckets, over those of one process: rows of the study of drift.

    PYTHONPATH=tests python tests/tools/merged_errors.py lastfm.npz --seeds 20 --store runs.jsonl
    PYTHONPATH=tests python tests/tools/merged_errors.py --store runs.jsonl --rows   # for `merged` in variants.json

A world is as in examples/nonstationary. Runs that are stored are not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from streameval import Evaluator
from support.merged_streams import PER_SECOND, followed
from support.paths import ROOT
from support.scripts import importable

ESTIMATOR, AVERAGES = "stratified_dr", ["mixture", "adaptive_window", "adaptive_decay"]
EVENTS, SCORED_EVERY, SETTINGS = 200_000, 5_000, ("smooth", "abrupt", "stationary")


def run(name: str, setting: str, seed: int) -> Iterator[dict[str, Any]]:
    """The scores of one stream, averaged over time."""
    with importable(ROOT / "examples" / "nonstationary"):
        stage = import_module("worlds").scene(name)
    world = stage.make()
    plan = Evaluator(world.candidates, [ESTIMATOR], AVERAGES, drift=None, promotion=None).plan
    moments = followed(plan, world, stage.drift(setting, world), EVENTS, seed, batch=PER_SECOND, every=SCORED_EVERY)
    found = np.mean(list(moments), axis=0)[:, :, 0]  # evaluators, scores, averages
    for place, average in enumerate(AVERAGES):
        one, merged = found[:, :, place].tolist()
        yield {"world": stage.name, "setting": setting, "seed": seed, "average": average, "one": one, "merged": merged}


def rows(runs: list[dict[str, Any]]) -> Iterator[list[str]]:
    """For each world and average, in each setting: the ratio of errors, and both coverages."""
    for world, average in dict.fromkeys((each["world"], each["average"]) for each in runs):
        cells = []
        for setting in SETTINGS:
            asked = (world, average, setting)
            some = [each for each in runs if (each["world"], each["average"], each["setting"]) == asked]
            one, merged = (np.mean([each[of] for each in some], axis=0) for of in ("one", "merged"))
            cells.append(f"{merged[0] / one[0]:.3f}, {merged[1]:.3f} ({one[1]:.3f})" if some else "-")
        yield [world, average, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", help="prepared .npz files, softmax-slow or softmax-fast")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--store", type=Path, required=True, help="a line of JSON for each average in each run")
    parser.add_argument("--rows", action="store_true", help="print the rows of the table")
    arguments = parser.parse_args()
    lines = arguments.store.read_text().splitlines() if arguments.store.exists() else []
    runs = [json.loads(line) for line in lines]
    done = {(each["world"], each["setting"], each["seed"]) for each in runs}
    for seed, name, setting in product(range(arguments.seeds), arguments.worlds, SETTINGS):
        if (Path(name).stem, setting, seed) not in done:
            with arguments.store.open("a") as file:
                file.writelines(json.dumps(each) + "\n" for each in run(name, setting, seed))
    if arguments.rows:
        print(json.dumps(list(rows(runs)), indent=1))


if __name__ == "__main__":
    main()
