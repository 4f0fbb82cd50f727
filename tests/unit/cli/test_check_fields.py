"""Test that `check` names the fields of a log, proposes `columns` for them, and recognises other forms of events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.commands import Run

STANDARD = {"event_id": "e-0", "timestamp": 1.7e9, "action": "a", "propensity": 0.5, "reward": 1}
STANDARD |= {"policies": {"challenger": 0.25}}
FLAT = {"id": "e-0", "ts": "2026-01-01T00:00:00", "arm": "a", "prob": 0.5, "clicked": True, "p_challenger": 0.25}
FLAT_COLUMNS = {"event_id": "id", "timestamp": "ts", "action": "arm", "propensity": "prob", "reward": "clicked"}
FLAT_COLUMNS |= {"policies": {"challenger": "p_challenger"}}
NESTED = {
    "requestId": "e-0",
    "meta": {"createdAt": 1.7e9, "userId": 7, "note": None},
    "decision": {"item": "a", "prob": 0.5, "probs": {"challenger": 0.25}},
    "outcome": {"revenue": 0.5},
}
NESTED_COLUMNS = {"event_id": "requestId", "timestamp": "meta.createdAt", "action": "decision.item"}
NESTED_COLUMNS |= {"propensity": "decision.prob", "reward": "outcome.revenue", "unit": "meta.userId"}
NESTED_COLUMNS |= {"policies": {"challenger": "decision.probs.challenger"}}
LISTS = {"uuid": "e-0", "time": 1.7e9, "chosen": "a", "arms": ["a", "b"], "probs": [0.5, 0.5], "click": 1}
LISTS |= {"challenger_probs": [0.25, 0.75]}
LISTS_COLUMNS = {"event_id": "uuid", "timestamp": "time", "action": "chosen", "actions": "arms"}
LISTS_COLUMNS |= {"propensities": "probs", "reward": "click", "policies": {"challenger": "challenger_probs"}}
ARRAYS = {
    "id": "e-0",
    "ts": 1.7e9,
    "arm": "a",
    "prob": 0.5,
    "outcomes": [{"kind": "view"}, {"kind": "click", "value": 1}],
}
ARRAYS |= {"policies": [{"name": "old", "p": 0.5}, {"name": "challenger", "p": 0.25}]}
ARRAYS_COLUMNS = {"event_id": "id", "timestamp": "ts", "action": "arm", "propensity": "prob"}
ARRAYS_COLUMNS |= {"reward": "outcomes.click.value", "policies": {"challenger": "policies.challenger.p"}}
SAVED = {"log.ndjson": json.dumps, "log.csv": lambda event: ",".join(str(value) for value in event.values())}


def write(event: dict[str, Any], path: str = "log.ndjson", count: int = 20, **config: Any) -> None:
    """Write a log of events that differ by their ids, and its configuration."""
    text = SAVED[path](event)
    header = [",".join(event)] if path.endswith(".csv") else []
    Path(path).write_text("\n".join(header + [text.replace("e-0", f"e-{index}") for index in range(count)]) + "\n")
    configure(path, **config)


def configure(path: str = "log.ndjson", **config: Any) -> None:
    source = {"kind": "file", "path": path}
    values = {"policies": {"candidates": ["challenger"]}, "source": source, "http": {"port": 0}}
    Path("c.yaml").write_text(json.dumps(values | config))


def proposed(err: str) -> dict[str, Any]:
    """Return the section `columns` that is printed."""
    lines = err[err.index("columns:\n") :].splitlines()
    section = [line for index, line in enumerate(lines) if index == 0 or line.startswith(" ")]
    columns: dict[str, Any] = yaml.safe_load("\n".join(section))["columns"]
    return columns


@pytest.mark.parametrize(
    ("event", "path", "columns"),
    [
        (FLAT, "log.ndjson", FLAT_COLUMNS),
        (FLAT, "log.csv", {name: path for name, path in FLAT_COLUMNS.items() if name != "event_id"}),
        (NESTED, "log.ndjson", NESTED_COLUMNS),
        (LISTS, "log.ndjson", LISTS_COLUMNS),
        (ARRAYS, "log.ndjson", ARRAYS_COLUMNS),
    ],
    ids=["flat", "csv", "nested", "lists", "arrays"],
)
def test_columns_that_check_proposes_read_the_log(
    event: dict[str, Any], path: str, columns: dict[str, Any], run: Run
) -> None:
    write(event, path)
    first = run("check", "c.yaml")
    assert first.code == 1
    assert "error: most of the first events lack " in first.err
    assert all(name in first.err.partition("; they have ")[2] for name in event)
    assert proposed(first.err) == columns
    configure(path, columns=columns)
    second = run("check", "c.yaml")
    assert (second.code, second.err) == (0, "")
    assert run("replay", "c.yaml", path, "--json").code == 0


def test_the_proposal_keeps_the_columns_that_are_configured(run: Run) -> None:
    write(STANDARD | {"user": 7, "p": 0.5, "propensity": None}, columns={"unit": "user"})
    assert proposed(run("check", "c.yaml").err) == {"unit": "user", "propensity": "p"}


def test_a_field_that_nothing_looks_like_is_named(run: Run) -> None:
    write({"foo": 1})
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert "; they have foo\n" in outcome.err
    assert "action, policies.challenger: log it, or name it in `columns`" in outcome.err


def test_a_name_with_values_of_another_kind_is_not_proposed(run: Run) -> None:
    write({name: value for name, value in STANDARD.items() if name != "propensity"} | {"prob": 50, "p": "half"})
    outcome = run("check", "c.yaml")
    assert "propensity: log it, or name it in `columns`" in outcome.err
    assert "columns:\n" not in outcome.err


def test_events_without_rewards_may_wait_for_them(run: Run) -> None:
    write({name: value for name, value in STANDARD.items() if name != "reward"})
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert "if rewards come later, set source.rewards" in outcome.err


def test_sound_events_have_no_proposal(run: Run) -> None:
    write(STANDARD | {"prob": 0.3, "user_id": 3})
    assert run("check", "c.yaml").err == ""


RANKING = {"event_id": "e-0", "timestamp": 1.7e9, "ranking": {"shown": ["a", "b"], "clicked": ["b"]}}
SLATE = {**STANDARD, "slots": [{"action": "a", "propensity": 0.5, "policies": {"challenger": 0.25}}]}
SCORED = {"event_id": "e-0", "timestamp": 1.7e9, "scored": {"propensity": 0.5, "values": {"now": 1, "challenger": 0}}}
DSJSON = {"_label_cost": -1, "_label_probability": 0.8, "_label_Action": 1, "a": [1, 2], "p": [0.8, 0.2]}


def without_choice(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in ("action", "propensity", "policies")}


@pytest.mark.parametrize(
    ("event", "code", "message", "hint"),
    [
        (RANKING, 1, "which the option `ranking` reads", "write ranking: {metric: dcg, "),
        (without_choice(SLATE), 0, "the first events are slates", "write estimators: [pseudo_inverse]"),
        (SCORED, 1, "the first events are scored outcomes", "write policies: {production: NAME}"),
        (DSJSON, 1, "which the format `dsjson` reads", "write source: {format: dsjson}"),
    ],
    ids=["ranking", "slate", "scored", "dsjson"],
)
def test_another_form_of_events_is_recognised(
    event: dict[str, Any], code: int, message: str, hint: str, run: Run
) -> None:
    write(event)
    outcome = run("check", "c.yaml")
    assert outcome.code == code
    assert message in outcome.err
    assert f"\nhint: {hint}" in outcome.err
    assert "columns:\n" not in outcome.err


@pytest.mark.parametrize(
    ("event", "options"),
    [
        (without_choice(SLATE), {"estimators": ["pseudo_inverse"]}),
        (SCORED, {"estimators": ["scored_snips"], "policies": {"production": "now", "candidates": ["challenger"]}}),
        (
            DSJSON,
            {
                "source": {"kind": "file", "path": "log.ndjson", "format": "dsjson"},
                "policies": {"candidates": {"even": "uniform"}},
            },
        ),
    ],
    ids=["slate", "scored", "dsjson"],
)
def test_the_hint_for_another_form_of_events_reads_them(
    event: dict[str, Any], options: dict[str, Any], run: Run
) -> None:
    write(event, **options)
    outcome = run("check", "c.yaml")
    assert (outcome.code, outcome.err) == (0, "")


def test_names_of_fields_that_rankings_cannot_have_are_warned_of(run: Run) -> None:
    ranking = {"metric": "dcg", "examination": {"kind": "power", "eta": 1.0}}
    write(RANKING | {"policies": {"challenger": {"ranking": ["b"]}}}, ranking=ranking, columns={"unit": "user"})
    assert "warning: columns: it does not apply to rankings\nhint: remove it" in run("check", "c.yaml").err
    source = {"kind": "file", "path": "log.ndjson", "policies_of": {"v7": ["challenger"]}}
    write(RANKING | {"policies": {"challenger": {"ranking": ["b"]}}}, ranking=ranking, source=source)
    assert "warning: source.policies_of: it does not apply to rankings" in run("check", "c.yaml").err


def test_the_binary_message_of_a_registry_is_recognised(run: Run) -> None:
    configure()
    Path("log.ndjson").write_bytes(b"\0\0\0\0\7\2ab\n" * 3)
    outcome = run("check", "c.yaml")
    assert outcome.code == 1
    assert "hint: this is the frame of a schema registry: write source: {format: {kind: avro" in outcome.err
