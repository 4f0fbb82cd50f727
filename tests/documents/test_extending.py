"""Use the recipes of CONTRIBUTING.md as built-in parts are used."""

from __future__ import annotations

import tomllib
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
import pytest
from pydantic import Field, TypeAdapter

import streameval as se
from streameval.config.model import AnySource
from streameval.events import JsonDecoder
from streameval.ope.candidates import AnyPolicy
from streameval.ope.core import AnyAverage, Lift
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evidence import Evidence
from streameval.ope.intervals import AnyInterval
from streameval.ope.policies.coded import fields_read, fill
from streameval.ope.promotion.block_sums import BlockSums
from streameval.ope.promotion.rules import AnyRule, RuleContext
from streameval.ope.promotion.sums import RewardSums
from streameval.service.metrics import METRICS, metrics_text
from support import recipes
from support.factories import make_published, make_report
from support.messages import message
from support.recipes.average import PolynomialDecay
from support.recipes.estimator import TrimmedIPS
from support.recipes.interval import Chebyshev
from support.recipes.policy import FirstOrBest
from support.recipes.promotion_rule import Present
from support.recipes.source import LiteralSettings

EVENTS, BLOCK, CAP = 1_030, 100, 1.5


@pytest.mark.parametrize(
    ("union", "variant", "options"),
    [
        (AnyEstimator, TrimmedIPS, {"kind": "trimmed_ips", "cap": 2.0}),
        (AnyAverage, PolynomialDecay, {"kind": "polynomial_decay", "eta": 1.0}),
        (AnyInterval, Chebyshev, {"kind": "chebyshev"}),
        (AnyRule, Present, {"kind": "present"}),
        (AnySource, LiteralSettings, {"kind": "literal", "messages": ["{}"]}),
        (AnyPolicy, FirstOrBest, {"kind": "first_or_best", "share": 0.25, "scores": "clicks"}),
    ],
)
def test_a_part_that_is_added_to_its_union_is_configured_by_its_kind(
    union: Any, variant: type, options: dict[str, Any]
) -> None:
    kinds = reduce(or_, get_args(get_args(union)[0]), variant)
    added: TypeAdapter[Any] = TypeAdapter(Annotated[kinds, Field(discriminator="kind")])
    configured = added.validate_python(options)
    assert configured == variant(**options) == added.validate_python(added.dump_python(configured))
    assert added.json_schema()["$defs"][variant.__name__]["properties"].keys() >= options.keys()


@pytest.fixture(scope="module")
def events() -> dict[str, Any]:
    """Return the columns of a log, with a candidate of importance weights up to 2.2."""
    rng = np.random.default_rng(1)
    propensity = rng.uniform(0.2, 0.8, EVENTS)
    reward = (rng.random(EVENTS) < 0.2 + 0.5 * propensity).astype(float)
    return {"reward": reward, "propensity": propensity, "policies": {"challenger": np.sqrt(propensity)}}


def reported(events: dict[str, Any], size: int = EVENTS) -> se.Report:
    """Report on the events with the new parts beside built-in ones, with `size` events in a batch."""
    evaluator = se.Evaluator(
        ["challenger"],
        estimators=["ips", TrimmedIPS(cap=CAP), "stratified_ips"],
        averages=["cumulative", PolynomialDecay(), "mixture"],
        intervals={"cumulative": Chebyshev()},
        block=BLOCK,
    )
    batch = se.EventBatch.from_arrays(**events)
    for first in range(0, EVENTS, size):
        evaluator.update(batch[first : first + size])
    return evaluator.report()


def defined_average(terms: Any, eta: float = 3.0) -> float:
    """Average terms by polynomial decay, event by event. The events of a block share their weight."""
    kernel = np.zeros(EVENTS)
    for event in range(EVENTS):
        newest = (eta + 1) / (event + 1 + eta)
        kernel *= 1 - newest
        kernel[event] = newest
    blocks = zip(*(np.split(values, range(BLOCK, EVENTS, BLOCK)) for values in (kernel, terms)), strict=True)
    return sum(weight.sum() * block.mean() for weight, block in blocks)


@pytest.mark.parametrize("size", [EVENTS, 37])
def test_a_new_estimator_and_a_new_average_are_combined_with_every_other(events: dict[str, Any], size: int) -> None:
    report, weight = reported(events, size), events["propensity"] ** -0.5
    trimmed = np.where(weight <= CAP, weight * events["reward"], 0.0)
    assert report.get("challenger", "trimmed_ips", "cumulative").value == pytest.approx(trimmed.mean())
    assert report.get("challenger", "trimmed_ips", "mixture").value is not None
    estimate = report.get("challenger", "trimmed_ips", "polynomial_decay")
    assert estimate.value == pytest.approx(defined_average(trimmed))
    assert estimate.lift == pytest.approx(defined_average(trimmed) - defined_average(events["reward"]))
    assert estimate.lower < estimate.value < estimate.upper
    assert report.get("logging", "ips", "polynomial_decay").value == pytest.approx(defined_average(events["reward"]))
    assert report == reported(events)


def test_a_new_average_weighs_blocks_of_any_size_alike() -> None:
    reward, ones = np.repeat([0.0, 1.0, 0.0, 1.0, 1.0], BLOCK), np.ones(5 * BLOCK)
    batch = se.EventBatch.from_arrays(reward=reward, propensity=ones, policies={"challenger": ones})
    values = []
    for block in (10, 50, BLOCK):
        evaluator = se.Evaluator(["challenger"], estimators=["ips"], averages=[PolynomialDecay()], block=block)
        evaluator.update(batch)
        values.append(evaluator.report().get("challenger", "ips", "polynomial_decay").value)
    assert values == pytest.approx([values[0]] * 3, rel=1e-9)


def test_the_range_of_a_new_estimator_holds_for_weights_below_the_largest() -> None:
    limits = TrimmedIPS(cap=2.0).term_range((0.0, 1.0), np.array([1.5, 9.0]))
    assert limits.width.tolist() == [1.5, 2.0]


def test_a_new_interval_bounds_values_and_lifts(events: dict[str, Any]) -> None:
    estimate = reported(events).get("challenger", "trimmed_ips", "cumulative")
    assert estimate.kind == "chebyshev"
    assert estimate.lower < estimate.value < estimate.upper
    assert estimate.lift_lower < estimate.lift < estimate.lift_upper


def test_a_new_rule_judges_every_candidate_after_every_block() -> None:
    value, unknown = np.array([[0.1, -0.1], [0.1, 0.1]]), np.full((2, 2), np.nan)
    sums = RewardSums(
        BlockSums.from_evidence(Evidence.from_numbers(np.ones((2 * BLOCK, 3)), np.zeros(2 * BLOCK), BLOCK))
    )
    context = RuleContext(0.0, 0.95, np.array([0.01, 0.01]), (0.0, 1.0), BLOCK, logged=True)
    judgement, _ = Present().judge({}, sums, Lift(value, unknown, unknown, unknown), context)
    assert judgement.enter.tolist() == [[True, False], [True, True]]


def test_a_new_policy_reads_its_field_and_lacks_events_without_it() -> None:
    policy = FirstOrBest(share=0.25, scores="clicks")
    sets = {"actions": ["a", "b", "c"], "propensities": [0.25, 0.5, 0.25], "action": "b", "propensity": ...}
    decoder = JsonDecoder([], scores=fields_read([policy]))
    batch = decoder.decode_batch([message(1, **sets, clicks=[1, 3, 2]), message(2, **sets)])
    filled, faults = fill(batch.with_policies(["mixed"]), {"mixed": policy.prepare()})
    np.testing.assert_equal(filled.action_sets.probabilities[:, 0], [0.25, 0.75, 0.0, *[np.nan] * 3])
    assert {event: fault.reason for event, fault in faults["mixed"].items()} == {1: "missing_field"}


def test_a_new_source_is_opened_by_its_settings() -> None:
    settings = LiteralSettings(messages=["one", "two"])
    source = settings.open()
    assert settings.description == "2 messages of the configuration"
    assert [records.values for records in source.poll(0.0)] == [[b"one", b"two"]]
    assert source.status().exhausted


def test_a_new_metric_is_exported_with_its_help(monkeypatch: pytest.MonkeyPatch) -> None:
    sections = tomllib.loads((Path(recipes.__file__).parent / "metrics.toml").read_text())
    for section, metrics in sections.items():
        monkeypatch.setitem(METRICS, section, METRICS[section] | metrics)
    text = metrics_text(make_published(make_report())).decode()
    assert "# HELP streameval_report_confidence Nominal coverage of all intervals of the Report.\n" in text
    assert "\nstreameval_report_confidence 0.95\n" in text
