"""Test streams of events with full distributions, mixed with events that have numbers of the logged action alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streameval as se
from streameval.cli.plots import ReplayPlot
from streameval.events import JsonDecoder
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.power import LogSummary, TargetLift, forecast_power
from streameval.ope.report import Decision
from streameval.service.status_page.page import chosen
from support.changes import adopt

EARLY = {"rule": "paired", "min_events": 2_000, "hold": 5}
DR, IPS = 0, 1
"""Indices of the lifts that may decide, by `stratified_dr` and by `stratified_ips`."""
EVENTS = 12_000


class Log:
    """Hold events twice, with full distributions and features, and without."""

    def __init__(self, count: int, seed: int = 1) -> None:
        rng = np.random.default_rng(seed)
        propensities, better, worse = (rng.dirichlet(np.full(4, 2.0), count) * 0.8 + 0.05 for _ in range(3))
        better[:, 0] += 1.0
        better /= 2.0
        action = (rng.random(count)[:, None] > propensities.cumsum(axis=1)).sum(axis=1).clip(0, 3)
        reward = (rng.random(count) < np.where(action == 0, 0.6, 0.2)).astype(float)
        rows = np.arange(count)
        self.full = se.EventBatch.from_arrays(
            reward=reward,
            action=action,
            propensities=propensities,
            policies={"better": better, "worse": worse},
            features=np.broadcast_to(np.eye(4), (count, 4, 4)),
        )
        self.plain = se.EventBatch.from_arrays(
            reward=reward,
            propensity=propensities[rows, action],
            policies={"better": better[rows, action], "worse": worse[rows, action]},
        )

    def mixed(self, full: NDArray[np.bool_]) -> se.EventBatch:
        """Return the events with full distributions and features if `full`."""
        both = se.EventBatch.concat([self.plain, self.full])
        return both.take(np.arange(len(full)) + len(full) * full)


@pytest.fixture(scope="module")
def log() -> Log:
    return Log(EVENTS)


def evaluated(batch: se.EventBatch, **options: Any) -> se.Evaluator:
    evaluator = se.Evaluator(["better", "worse"], **{"promotion": EARLY, "drift": None, **options})
    evaluator.update(batch)
    evaluator.fold_pending()
    return evaluator


def decided_by(evaluator: se.Evaluator) -> list[int]:
    evaluator.fold_pending()
    return reported_by(evaluator)


def reported_by(evaluator: se.Evaluator) -> list[int]:
    """Return the index of the lift that decides each candidate in the newest Report."""
    pairs, lifts = deciding_pairs(evaluator), evaluator.promotion_lifts
    return [lifts.index(pairs[policy]) if policy in pairs else -1 for policy in evaluator.policies[1:]]


def deciding_pairs(evaluator: se.Evaluator) -> dict[str, tuple[str | None, str | None]]:
    """Return the estimator and average with the deciding lift of each candidate, if there is one."""
    return {row.policy: (row.estimator, row.average) for row in evaluator.report().promotion if row.estimator}


def decisions(report: se.Report) -> dict[str, Decision]:
    return {decision.policy: decision for decision in report.promotion}


def rows(report: se.Report) -> dict[tuple[str, str, str], float | None]:
    return {(row.policy, row.estimator, row.average): row.value for row in report.estimates}


def choices(batch: se.EventBatch, every: int = 100) -> list[int]:
    """Return which lift decided for the first candidate, after every block or every few."""
    evaluator = se.Evaluator(["better", "worse"], promotion=EARLY, drift=None)
    indices = []
    for first in range(0, len(batch), every):
        evaluator.update(batch[first : first + every])
        indices.append(decided_by(evaluator)[0])
    return indices


def full_at(*indices: int) -> NDArray[np.bool_]:
    full = np.zeros(EVENTS, dtype=bool)
    full[list(indices)] = True
    return full


ORDERS = {
    "one full event first": full_at(0),
    "one plain event first": ~full_at(0),
    "alternating": np.arange(EVENTS) % 2 == 0,
    "full, then plain": np.arange(EVENTS) < EVENTS // 2,
    "plain, then full": np.arange(EVENTS) >= EVENTS // 2,
    "one in twenty full": np.random.default_rng(5).random(EVENTS) < 0.05,
    "bursts": np.arange(EVENTS) // 700 % 2 == 0,
}


def test_rows_and_lifts_are_known_before_the_first_event() -> None:
    evaluator = se.Evaluator(["better"])
    before = {(estimator, average) for _, estimator, average in rows(evaluator.report())}
    assert ("stratified_ips", "mixture") in before
    assert not any(estimator == "stratified_dr" for estimator, _ in before)
    assert evaluator.promotion_lifts == (("stratified_dr", "mixture"), ("stratified_ips", "mixture"))


@pytest.mark.parametrize("index", [0, 100, EVENTS - 1])
def test_one_full_event_among_plain_ones_changes_no_decision(log: Log, index: int) -> None:
    plain, odd = evaluated(log.plain), evaluated(log.mixed(full_at(index)))
    assert decided_by(odd) == [IPS, IPS]
    assert decisions(odd.report()) == decisions(plain.report())
    assert odd.report().transitions == plain.report().transitions
    assert decisions(plain.report())["better"].promotable
    others = {key: value for key, value in rows(odd.report()).items() if key[1] != "stratified_dr"}
    assert others == rows(plain.report())


def test_one_event_does_not_decide_the_estimator_shown_first(log: Log) -> None:
    picture = ReplayPlot([("stratified_dr", "mixture"), ("stratified_ips", "mixture")], None, {})
    for batch, shown in ((log.mixed(full_at(0)), "stratified_ips"), (log.full, "stratified_dr")):
        report = evaluated(batch).report()
        assert chosen(report, {}) == (shown, "mixture")
        assert picture.choice(report) == (shown, "mixture")


def test_plans_use_the_estimator_with_the_evidence(log: Log) -> None:
    for batch, planned in ((log.mixed(full_at(0)), "stratified_ips"), (log.full, "stratified_dr")):
        every = (se.StratifiedDR(), se.StratifiedIPS(), se.SNIPS(), se.IPS())
        estimators = {estimator.label: estimator for estimator in every}
        planner = se.Evaluator(["better", "worse"], averages=[se.Cumulative()], intervals={"cumulative": "normal"})
        planner.update(batch)
        summary = LogSummary(("logging", "better", "worse"), {}, (0.0, 1.0))
        summary.update(batch)
        actual = forecast_power(planner.report(), summary, estimators, [TargetLift.read("0.01")], 0.8, {})
        assert [candidate.estimator for candidate in actual.candidates] == [planned, planned]


def test_the_pair_that_decides_follows_the_evidence_and_is_absent_before_it(log: Log) -> None:
    for batch, estimator in ((log.plain, "stratified_ips"), (log.full, "stratified_dr")):
        evaluator = Evaluator.from_config(se.Evaluator(["better", "worse"]).config)
        assert deciding_pairs(evaluator) == {}
        evaluator.update(batch[:3_000])
        evaluator.fold_pending()
        assert deciding_pairs(evaluator) == dict.fromkeys(["better", "worse"], (estimator, "mixture"))
    undecided = evaluated(log.plain[:3_000], promotion=None)
    assert deciding_pairs(undecided) == {}


@pytest.mark.parametrize("index", [0, EVENTS - 1])
def test_one_plain_event_among_full_ones_leaves_the_decision_to_the_better_estimator(log: Log, index: int) -> None:
    odd = evaluated(log.mixed(~full_at(index)))
    assert decided_by(odd) == [DR, DR]
    one, other = decisions(odd.report())["better"], decisions(evaluated(log.full).report())["better"]
    assert (one.promotable, one.events) == (other.promotable, EVENTS - 1) == (True, other.events - 1)
    assert one.lift == pytest.approx(other.lift, abs=0.01)


def test_a_configuration_that_names_the_estimators_decides_the_same(log: Log) -> None:
    for batch, name in ((log.plain, "stratified_ips"), (log.full, "stratified_dr")):
        estimators = {"stratified_ips": [se.StratifiedIPS()], "stratified_dr": [se.StratifiedDR()]}[name]
        named = evaluated(batch, estimators=estimators, averages=[se.Mixture()]).report()
        report = evaluated(batch).report()
        for one, other in zip(report.promotion, named.promotion, strict=True):
            assert (one.promotable, one.reason, one.held) == (other.promotable, other.reason, other.held)
            assert (one.lift, one.lower) == pytest.approx((other.lift, other.lower), rel=1e-12)
        for row in named.estimates:
            same = report.get(row.policy, name, "mixture")
            assert (same.value, same.lower) == pytest.approx((row.value, row.lower), rel=1e-12)


@pytest.mark.parametrize(
    "order", [pytest.param(order, marks=[pytest.mark.slow] * (index != 1)) for index, order in enumerate(ORDERS)]
)
def test_the_deciding_lift_changes_at_most_once(log: Log, order: str) -> None:
    path = choices(log.mixed(ORDERS[order]), every=500)
    changes = [(index, now) for index, (before, now) in enumerate(pairwise(path)) if before != now]
    assert len(changes) <= 1, changes
    if order in ("one in twenty full", "alternating", "full, then plain", "bursts"):
        assert path[-1] == IPS or order == "bursts"


@pytest.mark.slow
def test_a_slow_change_from_one_form_to_the_other_changes_the_deciding_lift_once() -> None:
    long = Log(60_000, seed=3)
    draws = np.random.default_rng(4).random(60_000)
    ramp = np.clip((np.arange(60_000) - 5_000) / 25_000, 0, 1)
    for share, last in ((ramp, DR), (1 - ramp, IPS)):
        path = choices(long.mixed(draws < share), every=200)
        assert np.count_nonzero(np.diff(path)) == 1
        assert path[-1] == last


def test_after_a_change_a_candidate_must_hold_again_and_the_reason_names_the_lift() -> None:
    log = Log(9_000, seed=3)
    batch = log.mixed(np.arange(9_000) < 4_000)
    evaluator = evaluated(batch[:6_000])
    steps = []
    for first in range(6_000, 9_000, 100):
        evaluator.update(batch[first : first + 100])
        evaluator.fold_pending()
        steps.append(decisions(evaluator.report())["better"])
    index = next(index for index in range(1, 30) if steps[index].estimator != steps[index - 1].estimator)
    assert (steps[index - 1].estimator, steps[index].estimator) == ("stratified_dr", "stratified_ips")
    assert steps[index - 1].promotable
    assert [(decision.promotable, decision.held) for decision in steps[index : index + 7]] == [
        (False, 0), (False, 1), (False, 2), (False, 3), (False, 4), (True, 5), (True, 6)
    ]  # fmt: skip
    text = "; decided by stratified_ips on mixture, as stratified_dr on mixture can use only 49 % of the events"
    assert steps[index].reason.endswith(text)
    assert "decided by" not in steps[index - 1].reason


def pieces(batch: se.EventBatch, cuts: Sequence[int]) -> Iterator[se.EventBatch]:
    ends = [0, *cuts, len(batch)]
    for first, last in pairwise(ends):
        yield batch[first:last]


@pytest.mark.parametrize("order", ["one plain event first", "bursts"])
def test_blocks_folded_early_change_nothing(log: Log, order: str) -> None:
    batch = log.mixed(ORDERS[order])
    whole, watched = evaluated(batch), se.Evaluator(["better", "worse"], promotion=EARLY, drift=None)
    for piece in pieces(batch, range(130, EVENTS, 370)):
        watched.update(piece)
        watched.fold_pending()
    one, other = rows(watched.report()), rows(whole.report())
    assert one.keys() == other.keys()
    assert [one[key] for key in one] == pytest.approx([other[key] for key in one], rel=1e-9)
    assert decided_by(watched) == decided_by(whole)


def test_blocks_without_evidence_are_left_out(log: Log) -> None:
    alone = log.full[3_000:5_000]
    among = se.EventBatch.concat([log.plain[:3_000], alone, log.plain[5_000:]])
    one, other = evaluated(among), evaluated(alone)
    for policy in ("logging", "better", "worse"):
        values = [instance.report().get(policy, "stratified_dr", "mixture").value for instance in (one, other)]
        assert values[0] == pytest.approx(values[1], abs=0.02)  # the initial value includes earlier events
    assert one.state()["predictions"][0]["model"] == other.state()["predictions"][0]["model"]


def test_a_policy_without_evidence_has_no_row() -> None:
    log = Log(500)
    batch = se.EventBatch.from_arrays(
        reward=log.full.reward,
        action=np.zeros(500, dtype=int),
        propensities=np.full((500, 4), 0.25),
        policies={"better": np.full((500, 4), 0.25)},
        features=np.broadcast_to(np.eye(4), (500, 4, 4)),
    )
    actual = {policy for policy, estimator, _ in rows(evaluated(batch).report()) if estimator == "stratified_dr"}
    assert actual == {"logging", "better"}
    named = evaluated(batch, estimators=[se.StratifiedDR()], averages=[se.Mixture()])
    assert {policy for policy, _, _ in rows(named.report())} == {"logging", "better", "worse"}  # as before


def test_full_events_without_features_count_as_plain_ones_for_the_best_estimator(log: Log) -> None:
    events = log.full
    assert events.action_sets is not None
    bare = se.EventBatch.from_arrays(
        reward=events.reward,
        action=events.action_sets.index,
        propensities=events.action_sets.propensities.reshape(-1, 4),
        policies={
            name: events.action_sets.probabilities[:, index].reshape(-1, 4)
            for index, name in enumerate(events.policies)
        },
    )
    report = evaluated(bare).report()
    assert report.reward_model is None
    assert rows(report) == pytest.approx(rows(evaluated(log.plain).report()))


@pytest.mark.parametrize("order", ["one full event first", "plain, then full", "alternating"])
def test_a_late_candidate_has_the_rows_of_a_stream_that_started_then(log: Log, order: str) -> None:
    batch = log.mixed(ORDERS[order])
    plans = [se.Evaluator(names, promotion=EARLY, drift=None).config for names in (["better"], ["better", "worse"])]
    changing = Evaluator.from_config(plans[0])
    changing.update(batch[:5_000])
    adopt(changing, plans[1])
    changing.update(batch[5_000:])
    fresh = se.Evaluator(["worse"], promotion=EARLY, drift=None)
    fresh.update(batch[5_000:])
    actual, expected = (
        {key: value for key, value in rows(instance.report()).items() if key[0] == "worse"}
        for instance in (changing, fresh)
    )
    assert actual.keys() == expected.keys()
    for key, value in actual.items():  # a mixture starts at the mean of earlier rewards
        assert value == pytest.approx(expected[key], rel=2e-3 if key[2] == "mixture" else 1e-9)
    again = Evaluator.from_state(changing.state())
    assert again.report().to_json() == changing.report().to_json()


def test_removing_an_estimator_that_does_not_decide_changes_no_decision(log: Log) -> None:
    batch = log.mixed(ORDERS["one in twenty full"])
    changing = Evaluator.from_config(se.Evaluator(["better", "worse"], promotion=EARLY, drift=None).config)
    changing.update(batch)
    before = {decision.policy: decision for decision in changing.report().promotion}
    some = {"estimators": [se.StratifiedIPS()], "averages": [se.Mixture()]}
    changing.apply_config(se.Evaluator(["better", "worse"], promotion=EARLY, drift=None, **some).config)
    after = {decision.policy: decision for decision in changing.report().promotion}
    for name in before:
        assert after[name].since_event == before[name].since_event
        assert after[name].held == before[name].held
    changing.update(batch)
    assert {estimate.estimator for estimate in changing.report().estimates} == {"stratified_ips"}


def test_removing_the_deciding_estimator_makes_the_other_hold_from_zero(log: Log) -> None:
    changing = Evaluator.from_config(se.Evaluator(["better", "worse"], promotion=EARLY, drift=None).config)
    changing.update(log.full)
    assert changing.report().promotion[0].promotable
    some = {"estimators": [se.StratifiedIPS()], "averages": [se.Mixture()]}
    changing.apply_config(se.Evaluator(["better", "worse"], promotion=EARLY, drift=None, **some).config)
    assert changing.report().promotion[0].held == 0
    changing.update(log.full[:1_000])
    assert changing.report().promotion[0].promotable


def test_slates_among_plain_and_full_events_are_missing_for_the_best_estimator() -> None:
    rng, lines = np.random.default_rng(8), []
    for number in range(3_000):
        event: dict[str, Any] = {"event_id": number, "timestamp": number, "reward": int(rng.random() < 0.3)}
        match number % 3:
            case 0:
                event |= {"action": 1, "propensity": 0.5, "policies": {"better": 0.25}}
            case 1:
                event |= {"actions": ["a", "b"], "features": [[0.0], [1.0]], "propensities": [0.5, 0.5]}
                event |= {"action": "a", "policies": {"better": [0.25, 0.75]}}
            case _:
                slot = {"actions": ["a", "b"], "action": "b", "propensities": [0.5, 0.5]}
                event |= {"slots": [slot | {"policies": {"better": [0.25, 0.75]}}] * 2}
        lines.append(json.dumps(event).encode())
    batch = JsonDecoder(["better"]).decode_batch(lines)
    assert not batch.rejected
    reports = []
    for cuts in ([], [1], [2], [3, 1_234]):
        evaluator = se.Evaluator(["better"], drift=None, promotion=EARLY)
        for piece in pieces(batch, cuts):
            evaluator.update(piece)
        assert decided_by(evaluator) == [IPS]
        reports.append(evaluator.report().to_json())
    assert len(set(reports)) == 1
