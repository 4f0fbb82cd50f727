"""Test a ramp: what an arm earned, its estimate from events of other arms, and the checks of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.ope.report import Report, TrustCheck
from support.ramps import ARMS, sessions, three_actions

SHARES = {"production": 0.8, "challenger": 0.2}
NUMBERS = ("value", "lower", "upper", "estimated", "error", "error_lower", "error_upper")


def evaluator(**settings: Any) -> Evaluator:
    options: dict[str, Any] = {"estimators": ["ips"], "averages": ["cumulative", "window", "mixture"], "drift": None}
    arms = {"arms": SHARES, "weights": "logged"}
    return Evaluator(["challenger"], **options | {"logging": arms, "production": "production"} | settings)


def report(columns: dict[str, Any], **settings: Any) -> Report:
    instance = evaluator(**settings)
    instance.update(EventBatch.from_arrays(**columns))
    return instance.report()


def checks(report: Report, name: str) -> dict[str, TrustCheck]:
    return {check.policy: check for check in report.trust if check.check == name}


def test_the_observed_value_comes_from_events_of_the_arm_and_the_estimate_from_the_others() -> None:
    columns = three_actions(1, 20_000)
    actual = {(row.policy, row.average): row for row in report(columns).calibration}
    assert set(actual) == {(arm, average) for arm in ARMS for average in ("cumulative", "window", "mixture")}
    reward, own = columns["reward"], columns["logging_policy"] == "challenger"
    weighted = columns["policies"]["challenger"] / columns["propensity"] * reward
    challenger = actual["challenger", "cumulative"]
    assert challenger.value == pytest.approx(reward[own].mean())
    assert challenger.estimated == pytest.approx(weighted[~own].mean())
    assert challenger.error == pytest.approx(weighted[~own].mean() - reward[own].mean())
    assert challenger.lift == pytest.approx(reward[own].mean() - reward[~own].mean())
    assert challenger.lift_estimated == pytest.approx(weighted[~own].mean() - reward[~own].mean())
    late = own[-10_000:]
    assert actual["challenger", "window"].value == pytest.approx(reward[-10_000:][late].mean())


def test_the_interval_of_the_error_equals_that_for_a_difference_of_independent_means() -> None:
    columns = three_actions(2, 20_000)
    (actual,) = (
        row for row in report(columns).calibration if (row.policy, row.average) == ("challenger", "cumulative")
    )
    assert actual.error_lower is not None
    assert actual.error_upper is not None
    reward, own = columns["reward"], columns["logging_policy"] == "challenger"
    weighted = (columns["policies"]["challenger"] / columns["propensity"] * reward)[~own]
    spread = np.sqrt(weighted.var() / len(weighted) + reward[own].var() / own.sum())
    assert actual.error_upper - actual.error_lower == pytest.approx(2 * 1.96 * spread, rel=0.15)


def test_without_events_of_a_candidate_there_is_no_comparison_and_no_state() -> None:
    columns = three_actions(3, 1000)
    for names in (None, ["production"] * 1000, ["another"] * 1000):
        instance = evaluator(logging=None)
        instance.update(EventBatch.from_arrays(**{**columns, "logging_policy": names}))
        assert (instance.report().calibration, instance.state()["rooms"]["calibration"]) == ((), None)
    only = report({**columns, "logging_policy": ["challenger"] * 1000}).calibration
    assert {(row.policy, row.estimated) for row in only} == {("challenger", None)}


def test_without_arms_the_comparison_starts_with_the_first_block_that_has_an_event_of_the_candidate() -> None:
    before, ramp = three_actions(11, 5040, share=0.0), three_actions(12, 20_000)
    joined = {name: np.concatenate([before[name], ramp[name]]) for name in ("reward", "propensity", "logging_policy")}
    joined["policies"] = {arm: np.concatenate([before["policies"][arm], ramp["policies"][arm]]) for arm in ARMS}
    actual = report(joined, logging=None, averages=["cumulative"])
    first = int(np.argmax(joined["logging_policy"] == "challenger")) // 100 * 100
    later = {name: values[first:] for name, values in joined.items() if name != "policies"}
    later["policies"] = {arm: values[first:] for arm, values in joined["policies"].items()}
    assert first >= 5000
    for one, other in zip(actual.calibration, report(later, averages=["cumulative"]).calibration, strict=True):
        assert [getattr(one, name) for name in NUMBERS] == pytest.approx([getattr(other, name) for name in NUMBERS])
    assert {row.policy for row in actual.calibration} == set(ARMS)
    assert set(checks(actual, "calibration")) == set(ARMS)
    assert checks(actual, "arm_shares") == {}


def test_a_candidate_is_compared_with_all_other_events_if_production_is_logging() -> None:
    columns = three_actions(13, 20_000)
    (actual,) = report(columns, logging=None, production="logging", averages=["cumulative"]).calibration
    reward, own = columns["reward"], columns["logging_policy"] == "challenger"
    weighted = columns["policies"]["challenger"] / columns["propensity"] * reward
    assert actual.policy == "challenger"
    assert actual.lift == pytest.approx(reward[own].mean() - reward[~own].mean())
    assert actual.lift_estimated == pytest.approx(weighted[~own].mean() - reward[~own].mean())


def test_on_a_mixture_both_values_are_near_the_plain_means_and_have_intervals() -> None:
    columns = three_actions(14, 60_000)
    actual = {(row.policy, row.average): row for row in report(columns, logging=None).calibration}
    mixed, plain = actual["challenger", "mixture"], actual["challenger", "cumulative"]
    assert mixed.value == pytest.approx(plain.value, abs=0.01)
    assert mixed.estimated == pytest.approx(plain.estimated, abs=0.01)
    assert mixed.error_lower is not None
    assert mixed.error_upper is not None
    assert mixed.error_lower < 0 < mixed.error_upper < 0.1


def test_propensities_of_all_arms_together_give_the_same_estimate_and_pass_the_check() -> None:
    """Use the own events too, because weights of the others alone would be too small."""
    columns = three_actions(15, 60_000)
    mixed = sum(share * columns["policies"][arm] for arm, share in SHARES.items())
    actual, own = (
        report({**columns, "propensity": propensity}, logging=None) for propensity in (mixed, columns["propensity"])
    )
    assert all(check.ok for check in checks(actual, "calibration").values())
    for one, other in zip(actual.calibration, own.calibration, strict=True):
        assert one.estimated == pytest.approx(other.estimated, abs=0.02)
        assert one.error_lower is not None
        assert one.error_upper is not None
        assert one.error_lower < 0 < one.error_upper


def test_units_widen_the_intervals_of_both_values_and_of_the_check() -> None:
    columns = sessions(17, 40_000)
    unknown = {name: values for name, values in columns.items() if name != "unit"}
    clustered, independent = (report(log, logging=None, averages=["cumulative"]) for log in (columns, unknown))
    for one, other in zip(clustered.calibration, independent.calibration, strict=True):
        assert one.value == other.value
        assert None not in (one.lower, one.upper, other.lower, other.upper, one.error_upper, other.error_upper)
        assert one.upper - one.lower > 1.2 * (other.upper - other.lower)
        assert one.error_upper > 1.1 * other.error_upper


def test_balanced_weights_do_not_change_the_comparison() -> None:
    columns = three_actions(4, 5000)
    balanced = report(columns, logging={"arms": SHARES}).calibration
    for row, expected in zip(balanced, report(columns).calibration, strict=True):
        assert [getattr(row, name) for name in NUMBERS] == [getattr(expected, name) for name in NUMBERS]


def test_wrong_propensities_fail_the_check_and_nothing_is_promotable() -> None:
    right, wrong = (report(three_actions(5, 40_000, wrong=factor), promotion="bsea") for factor in (1.0, 1.2))
    assert all(check.ok for check in checks(right, "calibration").values())
    verdicts = checks(wrong, "calibration")
    assert not verdicts["challenger"].ok
    assert "the propensities are wrong" in verdicts["challenger"].reason
    (decision,) = wrong.promotion
    assert not decision.promotable
    assert decision.reason.startswith(verdicts["challenger"].reason)


def test_the_reason_names_the_check_that_fails_and_then_a_guardrail_that_is_not_kept() -> None:
    """Let users of the action that the challenger prefers stay less often."""
    columns = three_actions(5, 40_000, wrong=1.2)
    preferred = columns["policies"]["challenger"] == 0.6
    stays = np.random.default_rng(1).uniform(size=40_000) < np.where(preferred, 0.5, 0.9)
    guarded = {"click": {}, "stay": {"guardrail": {"max_loss": 0.01}}}
    (decision,) = report({**columns, "rewards": {"stay": stays.astype(float)}}, rewards=guarded).promotion
    check, _, rest = decision.reason.partition(": the propensities are wrong; ")
    assert check.startswith("the estimate is 0.")
    assert check.endswith(" below the seen reward")
    assert "guardrail stay: decision bound of lift -0." in rest


def test_the_reason_names_production_if_its_check_fails() -> None:
    columns = three_actions(5, 40_000)
    wrong = (columns["logging_policy"] == "challenger") & (columns["policies"]["challenger"] == 0.6)
    columns["propensity"] = np.where(wrong, 0.4, columns["propensity"])
    actual = report(columns)
    assert {policy: check.ok for policy, check in checks(actual, "calibration").items()} == {
        "production": False,
        "challenger": True,
    }
    (decision,) = actual.promotion
    assert decision.reason.startswith(f"production: {checks(actual, 'calibration')['production'].reason}")


def test_shares_other_than_the_configured_ones_fail_the_check_of_all_policies() -> None:
    columns = three_actions(6, 20_000, share=0.25)
    verdicts = checks(report(columns), "arm_shares")
    assert {(policy, check.ok) for policy, check in verdicts.items()} == {(arm, False) for arm in ARMS}
    assert "configured 80.0 % and 20.0 %" in verdicts["challenger"].reason
    right = three_actions(6, 20_000)
    assert all(check.ok for check in checks(report(right), "arm_shares").values())
    measured = {"arms": ARMS, "weights": "logged"}
    assert checks(report(columns, logging=measured), "arm_shares") == {}, "measured shares have nothing to differ from"


def test_rewards_that_drift_while_the_share_grows_pass_the_check() -> None:
    """Let most events of the challenger come late, when everyone earns more. Means over all events would differ."""
    early, late = three_actions(7, 30_000, share=0.05), three_actions(8, 30_000, share=0.5)
    joined: dict[str, Any] = {
        name: np.concatenate([early[name], late[name]]) for name in ("propensity", "logging_policy")
    }
    joined["reward"] = np.concatenate([early["reward"], np.maximum(late["reward"], np.arange(30_000) % 2)])
    joined["policies"] = {arm: np.concatenate([early["policies"][arm], late["policies"][arm]]) for arm in ARMS}
    actual = report(joined, logging={"arms": ARMS, "weights": "logged"})
    assert all(check.ok for check in checks(actual, "calibration").values())
    (row,) = (row for row in actual.calibration if (row.policy, row.average) == ("challenger", "cumulative"))
    assert row.error_upper is not None
    assert row.error_upper < 0, "the plain means differ"


def test_the_comparison_continues_on_the_averages_that_a_changed_configuration_keeps() -> None:
    batch = EventBatch.from_arrays(**three_actions(10, 5000))
    changing = Evaluator.from_config(evaluator().config)
    changing.update(batch)
    before = changing.report().calibration
    again = Evaluator.from_state(changing.state())
    assert again.report().calibration == before
    again.apply_config(evaluator(averages=["cumulative"]).config)
    kept = tuple(row for row in before if row.average == "cumulative")
    assert again.report().calibration == kept
    again.apply_config(evaluator(averages=["cumulative", "decay"]).config)
    again.update(batch)
    assert [row for row in again.report().calibration if row.average == "decay"] == []


def test_on_a_mixture_the_error_of_a_small_arm_is_never_many_times_as_uncertain_as_on_all_events() -> None:
    """Start with about five events of the arm in the first block, which may all have earned."""
    widths: dict[str, list[float]] = {"cumulative": [], "mixture": []}
    for seed in range(12):
        columns = three_actions(seed, 10_000, share=0.05)
        for row in report(columns, logging=None, averages=list(widths), promotion=None).calibration:
            if row.policy == "challenger":
                assert row.error_lower is not None
                assert row.error_upper is not None
                widths[row.average].append(row.error_upper - row.error_lower)
    ratios = np.divide(widths["mixture"], widths["cumulative"])
    assert ratios.shape == (12,)
    assert ratios.max() < 6
