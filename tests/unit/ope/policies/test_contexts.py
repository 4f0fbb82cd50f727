"""Functions see the contexts and the names of actions of every batch, wherever it comes from."""

import csv
import json
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

from streameval import Decisions, Evaluator, EventBatch, InputError, compare, read_events

NAMES = ("x", "y", "z")
EVENTS: list[dict[str, Any]] = [
    {
        "event_id": f"e-{number}",
        "timestamp": 1.6e9 + number,
        "action": NAMES[number % 3],
        "actions": [*NAMES[number % 2 :], *NAMES[: number % 2]],
        "propensities": [0.25, 0.25, 0.5],
        "reward": float(number % 4 == 0),
        "context": {"likes": NAMES[number * 7 % 5 % 3], "age": number},
    }
    for number in range(40)
]
PROBABILITIES = [
    [0.75 if name == event["context"]["likes"] else 0.125 for name in event["actions"]] for event in EVENTS
]
COLUMNS = {
    **{name: [event[name] for event in EVENTS] for name in EVENTS[0]},
    "logged": PROBABILITIES,
}
LINES = [
    json.dumps({**event, "policies": {"logged": row}}).encode()
    for event, row in zip(EVENTS, PROBABILITIES, strict=True)
]
SETS = {
    "reward": COLUMNS["reward"],
    "action": [event["actions"].index(event["action"]) for event in EVENTS],
    "propensities": COLUMNS["propensities"],
    "policies": {"logged": PROBABILITIES},
}


def ndjson_file(folder: Path) -> Path:
    (folder / "log.ndjson").write_bytes(b"\n".join(LINES))
    return folder / "log.ndjson"


RENAMED = {"context": ["likes", "age"], "actions": "offered", "propensities": "choice.p"}


def renamed_file(folder: Path) -> Path:
    events = map(json.loads, LINES)
    lines = [
        {**event, **event.pop("context"), "offered": event.pop("actions"), "choice": {"p": event.pop("propensities")}}
        for event in events
    ]
    (folder / "log.ndjson").write_text("\n".join(map(json.dumps, lines)))
    return folder / "log.ndjson"


def csv_file(folder: Path) -> Path:
    with (folder / "log.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(COLUMNS)
        for row in zip(*COLUMNS.values(), strict=True):
            rows.writerow([json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in row])
    return folder / "log.csv"


def parquet_file(folder: Path) -> Path:
    pyarrow.parquet.write_table(pa.table(COLUMNS), folder / "log.parquet")
    return folder / "log.parquet"


def spanning_csv_file(folder: Path) -> Path:
    """Write rows of several lines, which are not read by columns."""
    text = csv_file(folder).read_text()
    (folder / "log.csv").write_text(text.replace('{""likes', '{\n""likes'))
    return folder / "log.csv"


def batches_of(path: Path) -> Iterable[EventBatch]:
    return read_events(path, policies=["logged"], batch_size=15)


SOURCES: dict[str, Callable[[Path], Iterable[EventBatch]]] = {
    "pandas": lambda _: [EventBatch.from_frame(pd.DataFrame(COLUMNS), policies=["logged"])],
    "polars": lambda _: [EventBatch.from_frame(pl.DataFrame(COLUMNS), policies=["logged"])],
    "arrow": lambda _: [EventBatch.from_frame(pa.table(COLUMNS), policies=["logged"])],
    "ndjson": lambda folder: batches_of(ndjson_file(folder)),
    "renamed ndjson": lambda folder: read_events(renamed_file(folder), policies=["logged"], columns=RENAMED),
    "csv": lambda folder: batches_of(csv_file(folder)),
    "csv of spanning rows": lambda folder: batches_of(spanning_csv_file(folder)),
    "parquet": lambda folder: batches_of(parquet_file(folder)),
    "scores": lambda folder: read_events(ndjson_file(folder), policies=["logged"], scores=[]),
    "concatenated": lambda folder: [EventBatch.concat(batches_of(ndjson_file(folder)))],
    "pickled": lambda folder: [pickle.loads(pickle.dumps(batch)) for batch in batches_of(csv_file(folder))],
    "restored": lambda folder: [EventBatch.from_state(batch.to_state()) for batch in batches_of(ndjson_file(folder))],
    "cut": lambda _: [
        part
        for whole in [EventBatch.from_frame(pa.table(COLUMNS), policies=["logged"])]
        for part in (whole[:7], whole[7:31][:20], whole[27:])
    ],
}


class Favourite:
    """Prefer the liked action, and keep what is seen."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, list[Any]]] = []

    def __call__(self, decisions: Decisions) -> list[list[float]]:
        pairs = [(context, list(names)) for context, names in zip(decisions.contexts, decisions.actions, strict=True)]
        self.seen += pairs
        return [[0.75 if name == context["likes"] else 0.125 for name in names] for context, names in pairs]


def lifts(batches: Iterable[EventBatch], function: Any, logged: str = "logged") -> tuple[float | None, float | None]:
    """Return the lifts of a function and of the same policy in the log."""
    evaluator = Evaluator({"mine": function, logged: "logged"}, ["ips"], ["cumulative"])
    for batch in batches:
        evaluator.update(batch)
    report = evaluator.report()
    rows = [report.get(name, "ips", "cumulative") for name in ("mine", logged)]
    return rows[0].lift, rows[1].lift


@pytest.mark.parametrize("source", SOURCES)
def test_a_function_sees_what_was_logged(tmp_path: Path, source: str) -> None:
    function = Favourite()
    mine, logged = lifts(SOURCES[source](tmp_path), function)
    assert function.seen == [(event["context"], event["actions"]) for event in EVENTS]
    assert mine == logged != 0


def test_arrays_may_have_contexts() -> None:
    function = Favourite()
    contexts = [{"likes": event["actions"].index(event["context"]["likes"])} for event in EVENTS]
    mine, logged = lifts([EventBatch.from_arrays(**SETS, context=contexts)], function)
    assert function.seen == [(context, [0, 1, 2]) for context in contexts]
    assert mine == logged != 0


def test_a_function_sees_the_lines_of_vowpal_wabbit(tmp_path: Path) -> None:
    lines = [
        {
            "EventId": str(number),
            "_label_cost": -event["reward"],
            "_label_probability": 0.25,
            "_label_Action": 2,
            "a": [2, 1],
            "p": [0.25, 0.75],
            "c": {"likes": 1 + number % 2},
            "_ba": [1 + number % 2],
        }
        for number, event in enumerate(EVENTS)
    ]
    (tmp_path / "log.dsjson").write_text("\n".join(map(json.dumps, lines)))
    batches = read_events(tmp_path / "log.dsjson", format="dsjson")

    def function(decisions: Decisions) -> list[list[float]]:
        pairs = zip(decisions.contexts, decisions.actions, strict=True)
        return [[float(name == context["likes"]) for name in names] for context, names in pairs]

    mine, baseline = lifts(batches, function, "baseline")
    assert mine == baseline != 0


def test_slots_of_slates_have_the_names_of_their_actions(tmp_path: Path) -> None:
    slots = [
        {name: event[name] for name in ("action", "actions", "propensities")} | {"policies": {"logged": row}}
        for event, row in zip(EVENTS, PROBABILITIES, strict=True)
    ]
    shared = ("event_id", "timestamp", "reward", "context")
    lines = [
        {name: event[name] for name in shared} | {"slots": slots[number : number + 2]}
        for number, event in enumerate(EVENTS[:-1])
    ]
    (tmp_path / "slates.ndjson").write_text("\n".join(map(json.dumps, lines)))
    seen: list[tuple[int, list[str]]] = []

    def function(decisions: Decisions) -> list[list[float]]:
        pairs = list(zip(decisions.contexts, decisions.actions, strict=True))
        seen.extend((context["age"], names) for context, names in pairs)
        return [[1 / 3] * 3] * len(pairs)

    lifts(read_events(tmp_path / "slates.ndjson", policies=["logged"]), function)
    assert seen == [(number, EVENTS[number + slot]["actions"]) for number in range(39) for slot in (0, 1)]


def test_slots_of_slates_have_the_context_of_their_event() -> None:
    arrays = EventBatch.from_arrays(
        reward=[1.0, 0.0],
        action=[[0, 1], [1, 1]],
        propensities=[[[0.5, 0.5]] * 2] * 2,
        policies={"logged": [[[1, 0]] * 2, [[0, 1]] * 2]},
        context=[{"likes": 0}, {"likes": 1}],
    )
    mine, logged = lifts([arrays], lambda decisions: [[1 - one["likes"], one["likes"]] for one in decisions.contexts])
    assert mine == logged != 0


def test_batches_of_events_with_lists_are_compared_by_their_contexts(tmp_path: Path) -> None:
    answer = compare(batches_of(ndjson_file(tmp_path)), {"mine": Favourite(), "logged": "logged"})
    own, logged = (answer.report.get(name, "ips", "cumulative") for name in ("mine", "logged"))
    assert own.value == pytest.approx(logged.value, rel=1e-12)


def test_rejected_rows_do_not_shift_contexts(tmp_path: Path) -> None:
    rows = COLUMNS | {"reward": [None if number in (0, 9) else float(number % 2) for number in range(40)]}
    for batch in (
        EventBatch.from_frame(pa.table(rows), policies=["logged"]),
        *read_events(spoiled(tmp_path), policies=["logged"]),
    ):
        function = Favourite()
        mine, logged = lifts([batch], function)
        assert [context["age"] for context, _ in function.seen] == [age for age in range(40) if age not in (0, 9)]
        assert mine == logged


def spoiled(folder: Path) -> Path:
    (folder / "spoiled.ndjson").write_bytes(
        b"\n".join(b"{" + line if number in (0, 9) else line for number, line in enumerate(LINES))
    )
    return folder / "spoiled.ndjson"


def test_contexts_of_arrays_are_saved_as_plain_values() -> None:
    contexts = [{"numbers": np.arange(2), "one": np.int64(3)}] * 40
    batch = EventBatch.from_arrays(**SETS, context=contexts)
    restored = EventBatch.from_state(batch.to_state()).raw_fields
    assert restored is not None
    assert list(restored.values) == [{"context": {"numbers": [0, 1], "one": 3}}] * 40


@pytest.mark.parametrize("context", [[{}] * 39, [{}] * 41, {"likes": ["x"] * 40}, dict.fromkeys(range(40))])
def test_arrays_need_one_context_per_event(context: Any) -> None:
    with pytest.raises(ValueError, match="context: expected 40 values, one mapping or other value per event, found a"):
        EventBatch.from_arrays(**SETS, context=context)


def failure(batch: EventBatch) -> str:
    evaluator = Evaluator({"mine": Favourite()})
    evaluator.update(batch)
    (policy,) = [row for row in evaluator.report().policies if row.policy == "mine"]
    return policy.failures[0].example


def test_a_function_without_contexts_is_told_how_to_get_them() -> None:
    assert "give contexts to EventBatch.from_arrays(context=...)" in failure(EventBatch.from_arrays(**SETS))
    frame = pa.table({("info" if name == "context" else name): cells for name, cells in COLUMNS.items()})
    assert "name its columns, e.g. columns={'context': ['country']}" in failure(EventBatch.from_frame(frame))
    mine, logged = lifts([EventBatch.from_frame(frame, {"context": "info"}, policies=["logged"])], Favourite())
    assert mine == logged != 0


def test_a_named_column_of_the_context_is_required() -> None:
    with pytest.raises(InputError, match="the frame has no column 'country' for country"):
        EventBatch.from_frame(pa.table(COLUMNS), {"context": ["country"]})


def test_a_context_that_cannot_be_read_is_missing_for_functions_alone(tmp_path: Path) -> None:
    deep = json.dumps(EVENTS[0] | {"context": 0}).replace('"context": 0', f'"context": {"[" * 200}{"]" * 200}')
    (tmp_path / "deep.ndjson").write_text(deep)
    text = csv_file(tmp_path).read_text()
    (tmp_path / "broken.csv").write_text(text.replace('""likes""', "likes"))
    for file, problem in (("deep.ndjson", "nested too deeply"), ("broken.csv", "context: not JSON")):
        (batch,) = read_events(tmp_path / file, policies=[])
        assert (len(batch) > 0, batch.rejected) == (True, ())
        assert failure(batch).startswith(problem)


def test_events_without_lists_keep_no_messages(tmp_path: Path) -> None:
    lines = [{**event, "actions": None, "propensities": None, "propensity": 0.5} for event in EVENTS]
    (tmp_path / "log.ndjson").write_text("\n".join(map(json.dumps, lines)))
    assert [batch.raw_fields for batch in read_events(tmp_path / "log.ndjson")] == [None]


def test_estimated_propensities_follow_the_names_of_actions(tmp_path: Path) -> None:
    file, by = ndjson_file(tmp_path), {"country": "context.likes"}
    values = []
    for estimated in (True, False):
        evaluator = Evaluator(["logged"], ["snips"], ["cumulative"], propensity={"kind": "estimated"})
        for batch in read_events([file] * 50, policies=["logged"], estimated=estimated, segments=by):
            evaluator.update(batch)
        values.append(evaluator.report().get("logged", "snips", "cumulative").value)
    assert values[0] == values[1] is not None
