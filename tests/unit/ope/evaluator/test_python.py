"""Test the evaluator as Python code uses it: names for classes, single events, and wrong types."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streameval as se
from streameval.errors import InputError

EVENT = {"action": "a", "propensity": 0.25, "reward": 1, "policies": {"challenger": 0.5}}


def evaluator(**options: Any) -> se.Evaluator:
    return se.Evaluator(["challenger"], **{"estimators": ["ips"], "averages": ["cumulative"]} | options)


def test_names_and_mappings_stand_for_values() -> None:
    named = se.Evaluator(
        {"challenger": "logged", "even": "uniform"},
        estimators=["ips", {"kind": "clipped_ips", "cap": 10}],
        averages=["cumulative", {"kind": "window", "tau": 500}],
        intervals={"window": "normal"},
        reward_model="tabular",
    )
    built = se.Evaluator(
        {"challenger": se.Logged(), "even": se.Uniform()},
        estimators=[se.IPS(), se.ClippedIPS(cap=10)],
        averages=[se.Cumulative(), se.Window(tau=500)],
        intervals={"window": se.Normal()},
        reward_model=se.Tabular(),
    )
    assert named.config == built.config


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"estimators": ["isp"]}, r"estimators\.0: expected one of ips, .* found 'isp'"),
        ({"estimators": "ips"}, "estimators: expected a list, found 'ips'"),
        ({"averages": ["cumulative", "widow"]}, r"averages\.1: expected one of cumulative, .* found 'widow'"),
        (
            {"averages": [{"kind": "window", "taus": 5}]},
            r"averages\.0\.taus: expected one of .* found the unknown key 'taus'",
        ),
        ({"intervals": {"cumulative": "nrmal"}}, r"intervals\.cumulative: expected one of .* found 'nrmal'"),
        ({"reward_model": "rigde"}, r"reward_model: expected one of ridge, .* found 'rigde'"),
        ({"estimators": [se.IPS]}, r"estimators\.0: "),
    ],
)
def test_an_unknown_name_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluator(**options)


def test_wrong_arguments_are_reported_together_with_paths_and_hints() -> None:
    with pytest.raises(se.ConfigError) as caught:
        evaluator(averages=["mixture", {"kind": "window", "tau": 0}], intervals={"mixture": "nrmal"})
    assert isinstance(caught.value, ValueError)
    lines = caught.value.report().splitlines()
    assert [line.partition(" ")[0] for line in lines if "expected" in line] == ["averages.1.tau:", "intervals.mixture:"]
    assert lines[-1] == "hint: did you mean 'normal'?"


def test_arguments_that_do_not_fit_together_are_reported_together() -> None:
    with pytest.raises(se.ConfigError, match="2 problems") as caught:
        se.Evaluator(["logging"], intervals={"windw": "normal"})
    assert "candidates.0: expected the name of a policy, found 'logging'" in caught.value.report()
    assert caught.value.report().endswith("hint: did you mean 'window'?")


def test_single_events_count_like_a_batch() -> None:
    one, whole = evaluator(), evaluator()
    rewards = [1, 0, 1]
    for reward in rewards:
        one.update_one(EVENT | {"reward": reward})
    columns = {"propensity": [0.25] * 3, "policies": {"challenger": [0.5] * 3}}
    whole.update(se.EventBatch.from_arrays(reward=rewards, **columns))
    assert one.report().to_json() == whole.report().to_json()


def test_single_events_carry_what_policies_in_code_read() -> None:
    policies = se.Evaluator({"greedy": se.Softmax()}, estimators=["ips"], averages=["cumulative"])
    policies.update_one(
        {"action": "a", "actions": ["a", "b"], "propensities": [0.5, 0.5], "reward": 1, "scores": [0.0, 0.0]}
    )
    assert policies.report().get("greedy", "ips", "cumulative").value == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"propensity": 25}, "propensity_range: propensity: 25 is not in"),
        ({"reward": 2}, "reward_range: "),
        ({"reward": None}, "missing_field: reward: missing"),
        ({"timestamp": 1e14}, "timestamp"),
    ],
)
def test_an_invalid_event_is_refused_and_changes_nothing(change: dict[str, Any], message: str) -> None:
    estimates = evaluator()
    before = estimates.report()
    with pytest.raises(ValueError, match=message):
        estimates.update_one(EVENT | change)
    assert estimates.report() == before


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (EVENT, "update takes an EventBatch, found dict: give one event to update_one, and columns to"),
        (pd.DataFrame({"reward": [1]}), "found DataFrame: EventBatch.from_frame makes one"),
        (iter([1]), "read_events yields them; call update with each"),
        (np.zeros(3), "found ndarray: "),
        ([pd.DataFrame({"reward": [1]})], "found list: join the frames into one, e.g. pandas.concat"),
    ],
)
def test_update_names_the_conversion_from_another_type(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        evaluator().update(value)


def test_hints_name_the_help_of_python() -> None:
    calls: list[Callable[[], object]] = [
        lambda: se.Evaluator({"new": 5}),  # type: ignore[dict-item]
        lambda: se.compare({"a": [1]}, ["new"], nope=1),
    ]
    for call, name in zip(calls, ("Evaluator", "compare"), strict=True):
        with pytest.raises(InputError) as caught:
            call()
        assert f"help(streameval.{name}) describes the arguments" in caught.value.hint
        assert "streameval init" not in caught.value.hint


def test_update_one_names_the_place_of_a_probability() -> None:
    estimates = se.Evaluator(["challenger"])
    event = {name: value for name, value in EVENT.items() if name != "policies"}
    with pytest.raises(InputError, match="challenger: expected the probability of this policy inside of `policies`"):
        estimates.update_one({**event, "challenger": 0.5})
    assert estimates.accepted == 0


def warned(read: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        read()
    assert {one.filename for one in caught} <= {__file__}
    return [str(one.message) for one in caught]


def log_of(folder: Path, **change: Any) -> Path:
    event = {"event_id": "e", "timestamp": 1e9, "action": "a", "propensity": 0.5, "reward": 1}
    path = folder / "log.ndjson"
    path.write_text("".join(json.dumps({**event, "policies": {"new": 0.5}, **change}) + "\n" for _ in range(3)))
    return path


@pytest.mark.parametrize(
    ("change", "policy", "expected"),
    [
        ({}, "new", []),
        ({}, "newer", ["no event has a probability of the policy 'newer'\nhint: the events name new"]),
        (
            {"propensity": 25},
            "new",
            [
                "3 of 3 events were rejected\n"
                "          3  propensity_range  e.g. propensity: 25 is not in (0, 1]\n"
                "hint: a propensity is greater than 0 and at most 1: write 0.25, not 25; divide by 100, as this looks "
                "like percent"
            ],
        ),
    ],
)
def test_a_log_that_tells_nothing_is_a_warning(
    tmp_path: Path, change: dict[str, Any], policy: str, expected: list[str]
) -> None:
    log = log_of(tmp_path, **change)
    assert warned(lambda: list(se.read_events(log, policies=[policy]))) == expected
    estimates = se.Evaluator([policy])
    for batch in warned_batches(log):
        estimates.update(batch)
    assert warned(estimates.report) == expected
    assert warned(estimates.report) == []
    assert warned(se.Evaluator.from_config(estimates.config).report) == []


def warned_batches(log: Path) -> list[se.EventBatch]:
    batches: list[se.EventBatch] = []
    warned(lambda: batches.extend(se.read_events(log)))
    return batches


def test_update_one_refuses_a_frame() -> None:
    with pytest.raises(TypeError, match="update_one takes one event as a dictionary, found DataFrame"):
        evaluator().update_one(pd.DataFrame({"reward": [1]}))  # type: ignore[arg-type]


def test_an_evaluator_shows_its_parts() -> None:
    estimates = evaluator()
    estimates.update_one(EVENT)
    assert repr(estimates) == (
        "Evaluator(1 event, policies=['logging', 'challenger'], estimators=['ips'], averages=['cumulative'])"
    )
