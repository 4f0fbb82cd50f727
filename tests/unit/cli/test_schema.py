"""Test the JSON Schemas that `streameval schema` prints and the package has as files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from jsonschema import Draft202012Validator

import streameval
from streameval.cli.arrow_schema import Form, arrow_schema
from streameval.config.model import Config
from streameval.events import reward_schema
from support.commands import Run
from tools.schemas import SCHEMAS


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_command_prints_the_schema_in_the_package_which_is_up_to_date(run: Run, name: str) -> None:
    outcome = run("schema", name)
    assert outcome.code == 0
    assert outcome.out == (files("streameval") / "config" / "schemas" / f"{name}.json").read_text()
    schema = json.loads(outcome.out)
    Draft202012Validator.check_schema(schema)
    assert schema == json.loads(json.dumps(SCHEMAS[name]())), "`make schemas` writes the files"


def test_an_unknown_name_is_refused(run: Run) -> None:
    assert run("schema", "estimate").code == 2


def test_the_schema_of_a_report_describes_every_report() -> None:
    validator = Draft202012Validator(streameval.Report.json_schema())
    event = {"event_id": 1, "timestamp": 1.5, "action": "a", "propensity": 0.5, "reward": 1, "policies": {"new": 0.25}}
    for events in (0, 1, 1000):
        evaluator = streameval.Evaluator(["new"])
        for number in range(events):
            evaluator.update_one(event | {"event_id": number, "timestamp": 1.5 + number})
        report = json.loads(evaluator.report().to_json())
        validator.validate(report)
        assert not validator.is_valid(report | {"estimates": [{}]})
        assert not validator.is_valid(report | {"production": None})


def test_the_schema_of_a_reward_needs_what_its_decoder_needs() -> None:
    validator = Draft202012Validator(reward_schema("clicks"))
    reward = {"event_id": "e-1", "timestamp": 1.5, "clicks": 1}
    validator.validate(reward)
    for field in reward:
        assert not validator.is_valid({name: value for name, value in reward.items() if name != field})


ARROW = {"kind": "kafka", "topic": "decisions", "format": {"kind": "arrow"}}
BASE: dict[str, Any] = {"event_id": "e", "timestamp": 7.5, "unit": "u", "context": '{"hour": 9}'}
LISTS: dict[str, Any] = {
    "actions": ["a", "b"],
    "propensities": [0.25, 0.75],
    "features": [[1.0], [2.0]],
    "policies": {"new": [0.5, 0.5]},
}


def single(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"action": "a", "propensity": 0.25, "reward": 1.0, "policies": {"new": 0.5}}


def with_lists(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"action": "a", "reward": 1.0} | LISTS


def slate(event: dict[str, Any]) -> dict[str, Any]:
    return event | {"reward": 1.0, "slots": [{"action": "a"} | LISTS, {"action": "b"} | LISTS]}


def page(event: dict[str, Any]) -> dict[str, Any]:
    ranking = {"shown": ["a", "b"], "clicked": ["b"], "swap": [1, 2]}
    return event | {"ranking": ranking, "policies": {"new": {"ranking": ["b", "a"]}}}


def renamed(event: dict[str, Any]) -> dict[str, Any]:
    event = single(event)
    return event | {"at": event.pop("timestamp"), "choice.p": event.pop("policies")["new"]}


@pytest.mark.parametrize(
    ("form", "event_of", "options"),
    [
        ("action", single, {}),
        ("actions", with_lists, {}),
        ("slots", slate, {}),
        ("action", page, {"ranking": {"examination": {"kind": "power"}}}),
        ("action", renamed, {"columns": {"timestamp": "at", "policies": {"new": "choice.p"}}}),
        ("action", single, {"rewards": {"reward": {"max": 1}, "click": {"max": 1}}}),
    ],
)
def test_a_batch_with_the_schema_of_arrow_has_the_events_of_json(
    form: Form, event_of: Callable[[dict[str, Any]], dict[str, Any]], options: dict[str, Any]
) -> None:
    config = Config.model_validate({"source": ARROW, "policies": {"candidates": ["new"]}} | options)
    events = [event_of(BASE | {"event_id": f"e-{number}", "timestamp": number + 0.5}) for number in range(20)]
    random.Random(1).choice(events).pop("unit")
    schema, sink = arrow_schema(config, form), pa.BufferOutputStream()
    assert {field.name for field in schema if not field.nullable} <= {*events[0]} <= {*schema.names}
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(events, schema))
    texts = [json.dumps(event | {"context": {"hour": 9}}).encode() for event in events]
    found, expected = map(config.event_format().decode_batch, ([bytes(sink.getvalue())], texts))
    assert (len(found), found.rejected) == (20, expected.rejected) == (20, ())
    for name in ("timestamp", "reward", "probabilities", "propensity"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_the_columns_of_arrow_are_printed_for_a_configuration(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "streameval.yaml"
    path.write_text(json.dumps({"source": ARROW, "policies": {"candidates": ["new"]}, "reward": {"field": "click"}}))
    lines = run("schema", "arrow", str(path)).out.splitlines()
    assert "event_id: string not null" in lines
    assert "click: double not null" in lines
    assert "policies: struct<new: double>" in lines
    assert "policies: struct<new: list<item: double>>" in run("schema", "arrow", str(path), "--form", "actions").out


def test_the_columns_of_arrow_need_a_configuration(run: Run) -> None:
    outcome = run("schema", "arrow")
    assert outcome.code == 2
    assert "hint: streameval schema arrow streameval.yaml" in outcome.err
