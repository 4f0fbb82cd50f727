"""Test every format of events with every kind of candidate, estimator and reward model: no event stops a replay."""

from __future__ import annotations

import csv
import json
import math
import random
from dataclasses import asdict
from itertools import cycle
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streameval import Evaluator
from streameval.cli.replay import Replay
from streameval.config.model import Config
from streameval.ope.estimators import AnyEstimator
from streameval.ope.report import Report
from support import parts
from support.fuzz_messages import FORMATS, Mutator, encode
from tools.fuzz import numbers_in

CANDIDATES: dict[str, Any] = {
    "logged": "logged",
    "uniform": "uniform",
    "first": "first",
    "bold": {"kind": "epsilon_greedy", "epsilon": 0.1},
    "soft": {"kind": "softmax", "scores": "mine"},
    "python": {"kind": "python", "target": "support.coded_policies:favourite"},
}


def form(estimator: AnyEstimator) -> str:
    """Return which events an estimator takes: `decisions`, `clicks` or `outcomes` (scored events)."""
    if estimator.uses_clicks:
        return "clicks"
    return "outcomes" if "scored" in estimator.needs else "decisions"


def estimators(wanted: str) -> list[dict[str, Any]]:
    """List the settings of all estimators of one form."""
    return [asdict(estimator) for estimator in parts.estimators() if form(estimator) == wanted]


ESTIMATORS = estimators("decisions")
METRICS: list[Any] = [
    "dcg",
    "precision",
    "rank_biased_precision",
    "average_relevance_position",
    "clicked_reciprocal_rank",
]
EXAMINATIONS: list[Any] = ["power", {"kind": "table", "values": [1, 0.5, 0.25]}, "given"]
AVERAGES = [*(average.kind for average in parts.averages()), {"kind": "window", "tau": 100, "name": "short"}]
MODELS: list[Any] = [
    "ridge",
    "tabular",
    {"kind": "river", "model": "linear_model.LinearRegression", "inputs": ["context", "action"]},
]
SHAPES = [shape for shape in FORMATS if shape != "late_reward"]
FILES = [*(f"{shape}.ndjson" for shape in SHAPES), "scored.csv", "scored.parquet"]


def events(shape: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Make events with the fields that candidates read, if the shape has them."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        event = FORMATS[shape](chance, number)
        listed = event.get("actions") or event.get("a") or [None, None]
        scores = [chance.gauss(0, 1) for _ in listed]
        fields = {"scores": scores, "mine": scores, "context": {"likes": listed[0]}, "c": {"likes": listed[0]}}
        event |= {name: value if chance.random() < 0.9 else None for name, value in fields.items()}
        if isinstance(event.get("policies"), dict):
            event["policies"]["logged"] = event["policies"]["a"]
        made.append(event)
    return made


def write(path: Path, shape: str, count: int, seed: int, mutated: bool) -> None:
    made = events(shape, count, seed)
    if path.suffix == ".ndjson":
        messages: list[bytes | None] = [encode(event) for event in made]
        if mutated:
            messages += Mutator([encode(event) for event in made], random.Random(seed)).messages(2 * count)
        path.write_bytes(b"\n".join((message or b"").replace(b"\n", b" ") for message in messages))
        return
    fields = ("event_id", "action", "actions", "propensities", "features", "scores", "mine", "context")
    rows = [{name: event.get(name) for name in fields} for event in made]
    for number, (row, event) in enumerate(zip(rows, made, strict=True)):
        row |= {"event_id": str(number), "timestamp": float(number), "reward": float(event["reward"])}
        row["logged"] = event["policies"]["logged"]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
        return
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows({name: cell_of(value) for name, value in row.items()} for row in rows)


def cell_of(value: Any) -> str:
    """Return a value as text of a CSV cell."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value)


def replayed(path: Path, shape: str, settings: dict[str, Any]) -> Report:
    """Replay a file, check that an evaluator restored from its state reports the same, and return the Report."""
    source = {"kind": "file", "path": "-", "format": "dsjson" if shape == "dsjson" else "json"}
    config_file = path.with_name(path.name + ".yaml")
    config_file.write_text(json.dumps({"source": source, "reward": {"min": 0, "max": 1}, **settings}))
    config = Config.load(config_file, {})
    replay = Replay(config)
    report = replay.read([str(path)])
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(replay.evaluator.state()))
    again = Evaluator.from_state(state, config.reward_model, config.policies.candidates)
    assert msgspec.to_builtins(again.report()) == msgspec.to_builtins(replay.evaluator.report())
    return report


def check(path: Path, settings: dict[str, Any], count: int, seed: int, mutated: bool) -> None:
    shape = path.name.partition(".")[0]
    write(path, shape, count, seed, mutated)
    report = replayed(path, shape, settings)
    assert report.events.accepted > 10
    for location, number in numbers_in(msgspec.to_builtins(report)):
        assert math.isfinite(number), f"{location} is {number}"


@pytest.mark.parametrize("file", FILES)
def test_every_format_works_with_every_candidate_and_some_estimators_and_all_averages(
    file: str, tmp_path: Path
) -> None:
    """Let estimators and reward models take turns, so that each of them meets some formats."""
    seed = FILES.index(file)
    settings = {
        "policies": {"candidates": CANDIDATES},
        "estimators": ESTIMATORS[seed :: len(FILES)],
        "averages": AVERAGES,
        "reward_model": MODELS[seed % len(MODELS)],
    }
    check(tmp_path / file, settings, count=60, seed=seed, mutated=True)


def page(chance: random.Random, number: int) -> dict[str, Any]:
    """Make a page with clicks. Most pages have all optional fields."""
    shown = chance.sample("abcdef", 4)
    clicked = [item for item in shown if chance.random() < 0.3]
    ranking: dict[str, Any] = {"shown": shown, "clicked": clicked, "propensities": [0.5] * len(clicked)}
    if chance.random() < 0.5:
        ranking |= {"swap": [1, 3], "marginals": [[0.5, 0.25]] * 4, "rank_probabilities": [[0.25] * 4] * 4}
    whole = {"ranking": chance.sample("abcdefgh", 6)}
    ranks = {"ranks": {item: chance.randint(1, 9) for item in clicked}, "support": chance.random()}
    features = [[chance.gauss(0, 1), 1.0] for _ in shown]
    event = {"event_id": number, "timestamp": 1.7e9 + number, "unit": number // 3, "features": features}
    return event | {"ranking": ranking, "policies": {"whole": whole, "ranks": ranks}}


@pytest.mark.parametrize(("metric", "examination"), list(zip(METRICS, cycle(EXAMINATIONS), strict=False)), ids=str)
def test_damaged_rankings_stop_no_estimator_of_clicks(metric: str, examination: Any, tmp_path: Path) -> None:
    chance = random.Random(METRICS.index(metric))
    messages: list[bytes | None] = [encode(page(chance, number)) for number in range(60)]
    path = tmp_path / "pages.ndjson"
    damaged = Mutator([message or b"" for message in messages], chance).messages(120)
    path.write_bytes(b"\n".join((message or b"").replace(b"\n", b" ") for message in [*messages, *damaged]))
    settings = {
        "policies": {"candidates": ["whole", "ranks"]},
        "estimators": estimators("clicks"),
        "averages": ["cumulative", "mixture", {"kind": "window", "tau": 100}],
        "ranking": {"metric": metric, "examination": examination},
    }
    config = tmp_path / "streameval.yaml"
    config.write_text(json.dumps({"source": {"kind": "file", "path": str(path)}, **settings}))
    replay = Replay(Config.load(config, {}))
    report = replay.read([str(path)])
    assert report.events.accepted >= 60
    for location, number in numbers_in(msgspec.to_builtins(report)):
        assert math.isfinite(number), f"{location} is {number}"
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(replay.evaluator.state()))
    assert msgspec.to_builtins(Evaluator.from_state(state).report()) == msgspec.to_builtins(replay.evaluator.report())


def test_scored_events_work_with_every_estimator_of_outcomes(tmp_path: Path) -> None:
    settings = {
        "policies": {"production": "a", "candidates": ["b"]},
        "estimators": estimators("outcomes"),
        "averages": AVERAGES,
    }
    check(tmp_path / "outcome.ndjson", settings, count=60, seed=3, mutated=True)
