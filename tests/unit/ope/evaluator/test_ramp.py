"""A ramp: what an arm earned itself, the estimate of it from the events of the others, and the checks of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.ope.evaluator.cohorts import CohortEvaluator
from streameval.ope.report import Report, TrustCheck
from support.ramps import ARMS, three_actions

SHARES = {"production": 0.8, "challenger": 0.2}
NUMBERS = ("value", "lower", "upper", "estimated", "error", "error_lower", "error_upper")


def evaluator(**settings: Any) -> Evaluator:
    options: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative", "window", "mixture"], "drift": None}
    arms = {"arms": SHARES, "weights": "logged"}
    return Evaluator(["challenger"], production="production", **options | {"logging": arms} | settings)


def report(columns: dict[str, Any], **settings: Any) -> Report:
    found = evaluator(**settings)
    found.update(EventBatch.from_arrays(**columns))
    return found.report()


def checks(found: Report, name: str) -> dict[str, TrustCheck]:
    return {each.policy: each for each in found.trust if each.check == name}


def test_the_seen_value_is_the_mean_of_an_arms_own_events_and_the_estimated_one_comes_from_the_others() -> None:
    columns = three_actions(1, 20_000)
    found = {(each.policy, each.average): each for each in report(columns).calibration}
    assert set(found) == {(arm, average) for arm in ARMS for average in ("cumulative", "window")}
    reward, own = columns["reward"], columns["logging_policy"] == "challenger"
    weighted = columns["policies"]["challenger"] / columns["propensity"] * reward
    challenger = found["challenger", "cumulative"]
    assert challenger.value == pytest.approx(reward[own].mean())
    assert challenger.estimated == pytest.approx(weighted[~own].mean())
    assert challenger.error == pytest.approx(weighted[~own].mean() - reward[own].mean())
    assert challenger.lift == pytest.approx(reward[own].mean() - reward[~own].mean())
    assert challenger.lift_estimated == pytest.approx(weighted[~own].mean() - reward[~own].mean())
    late = own[-10_000:]
    assert found["challenger", "window"].value == pytest.approx(reward[-10_000:][late].mean())


def test_the_interval_of_the_error_is_that_of_a_difference_of_independent_means() -> None:
    columns = three_actions(2, 20_000)
    (found,) = (
        each for each in report(columns).calibration if (each.policy, each.average) == ("challenger", "cumulative")
    )
    assert found.error_lower is not None
    assert found.error_upper is not None
    reward, own = columns["reward"], columns["logging_policy"] == "challenger"
    weighted = (columns["policies"]["challenger"] / columns["propensity"] * reward)[~own]
    spread = np.sqrt(weighted.var() / len(weighted) + reward[own].var() / own.sum())
    assert found.error_upper - found.error_lower == pytest.approx(2 * 1.96 * spread, rel=0.15)


def test_the_start_of_a_ramp_and_no_ramp_have_no_calibration() -> None:
    columns = three_actions(3, 1000)
    assert report(columns, logging=None).calibration == ()
    assert report({**columns, "logging_policy": None}).calibration == ()
    only = report({**columns, "logging_policy": ["challenger"] * 1000}).calibration
    assert {(each.policy, each.estimated) for each in only} == {("challenger", None)}


def test_balanced_weights_do_not_change_the_comparison() -> None:
    columns = three_actions(4, 5000)
    balanced = report(columns, logging={"arms": SHARES}).calibration
    for found, expected in zip(balanced, report(columns).calibration, strict=True):
        assert [getattr(found, name) for name in NUMBERS] == [getattr(expected, name) for name in NUMBERS]


def test_wrong_propensities_fail_the_check_and_nothing_is_promotable() -> None:
    right, wrong = (report(three_actions(5, 40_000, wrong=factor), promotion="bsea") for factor in (1.0, 1.2))
    assert all(each.ok for each in checks(right, "calibration").values())
    found = checks(wrong, "calibration")
    assert not found["challenger"].ok
    assert "the propensities are wrong" in found["challenger"].reason
    (decision,) = wrong.promotion
    assert (decision.promotable, decision.reason) == (False, found["challenger"].reason)


def test_shares_other_than_the_configured_ones_fail_the_check_of_all_policies() -> None:
    columns = three_actions(6, 20_000, share=0.25)
    found = checks(report(columns), "arm_shares")
    assert {(policy, check.ok) for policy, check in found.items()} == {(arm, False) for arm in ARMS}
    assert "configured 80.0 % and 20.0 %" in found["challenger"].reason
    right = three_actions(6, 20_000)
    assert all(check.ok for check in checks(report(right), "arm_shares").values())
    measured = {"arms": ARMS, "weights": "logged"}
    assert checks(report(columns, logging=measured), "arm_shares") == {}, "measured shares have nothing to differ from"


def test_rewards_that_drift_while_the_share_grows_pass_the_check() -> None:
    """Most events of the challenger come late, when everyone earns more: means over all events would differ."""
    early, late = three_actions(7, 30_000, share=0.05), three_actions(8, 30_000, share=0.5)
    joined: dict[str, Any] = {
        name: np.concatenate([early[name], late[name]]) for name in ("propensity", "logging_policy")
    }
    joined["reward"] = np.concatenate([early["reward"], np.maximum(late["reward"], np.arange(30_000) % 2)])
    joined["policies"] = {arm: np.concatenate([early["policies"][arm], late["policies"][arm]]) for arm in ARMS}
    found = report(joined, logging={"arms": ARMS, "weights": "logged"})
    assert all(each.ok for each in checks(found, "calibration").values())
    (row,) = (each for each in found.calibration if (each.policy, each.average) == ("challenger", "cumulative"))
    assert row.error_upper is not None
    assert row.error_upper < 0, "the plain means differ"


def test_the_numbers_do_not_depend_on_how_the_stream_is_cut_or_resumed() -> None:
    batch = EventBatch.from_arrays(**three_actions(9, 7777))
    whole, pieces = evaluator(), evaluator()
    whole.update(batch)
    for first in range(0, len(batch), 1357):
        pieces.update(batch[first : first + 1357])
        pieces = Evaluator.from_state(pieces.state())
    for found, expected in zip(pieces.report().calibration, whole.report().calibration, strict=True):
        for name in NUMBERS:
            assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-9)


def test_the_comparison_starts_from_zero_with_other_averages_and_else_continues() -> None:
    batch = EventBatch.from_arrays(**three_actions(10, 5000))
    cohorts = CohortEvaluator(evaluator().plan)
    cohorts.update(batch)
    before = cohorts.report().calibration
    again = CohortEvaluator.from_state(cohorts.state())
    assert again.report().calibration == before
    again.apply_plan(evaluator(averages=["cumulative"]).plan)
    assert again.report().calibration == ()
    again.update(batch)
    assert len(again.report().calibration) == 2
