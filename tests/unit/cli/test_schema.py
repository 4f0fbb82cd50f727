"""Test the JSON Schemas that `streameval schema` prints and the package has as files."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest
from jsonschema import Draft202012Validator

import streameval
from streameval.events import reward_schema
from support.commands import Run, command
from tools.schemas import SCHEMAS


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    return lambda *arguments: command(capfd, *arguments)


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
