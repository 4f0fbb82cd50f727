"""Test the arms of a ramp: balanced propensities, measured shares, and refused settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.common.arrays import from_plain
from streameval.config.model import Config
from streameval.events import JsonDecoder
from streameval.ope.evidence import arms
from streameval.ope.evidence.arms import Arms
from streameval.ope.policies.coded import Uniform
from support.ramps import ARMS, ramp

SHARES = {"production": 0.9, "challenger": 0.1}


def evaluator(**settings: Any) -> Evaluator:
    options: dict[str, Any] = {"estimators": ["ips", "snips"], "averages": ["cumulative"], "promotion": None}
    return Evaluator(["challenger"], production="production", **options | {"drift": None} | settings)


def values(columns: dict[str, Any], **settings: Any) -> dict[tuple[str, str], float | None]:
    instance = evaluator(**settings)
    instance.update(EventBatch.from_arrays(**columns))
    return {(estimate.policy, estimate.estimator): estimate.value for estimate in instance.report().estimates}


def test_balanced_weights_divide_by_the_mixture_of_all_arms() -> None:
    columns, _ = ramp(1, events=2050)
    policies = columns["policies"]
    mixture = sum(share * policies[name] for name, share in SHARES.items())
    expected = values(columns | {"propensity": mixture})
    assert values(columns, logging={"arms": SHARES}) == pytest.approx(expected, rel=1e-12)
    assert values(columns, logging={"arms": SHARES, "weights": "logged"}) == values(columns)


def test_measured_shares_come_near_the_configured_ones() -> None:
    columns, _ = ramp(2, events=30_000)
    measured, configured = (values(columns, logging={"arms": arms}) for arms in (ARMS, SHARES))
    assert measured == pytest.approx(configured, rel=0.02)
    assert measured != configured


def test_measured_shares_come_from_events_before_each_block() -> None:
    batch = EventBatch.from_arrays(**ramp(3, events=3000)[0])
    measured = Arms(ARMS)
    balanced, state = arms.fold(measured, arms.start(measured), batch, block=100)
    assert np.array_equal(balanced.propensity[:100], batch.propensity[:100]), "an arm has too few events"
    changed = balanced.propensity[1200:] != batch.propensity[1200:]
    assert changed.mean() > 0.9
    assert state.counts[1] / state.counts.sum() == pytest.approx(0.1, abs=0.02)


def test_distributions_over_actions_are_balanced() -> None:
    both = {"production": [[0.8, 0.2], [0.8, 0.2]], "challenger": [[0.0, 1.0], [0.0, 1.0]]}
    batch = EventBatch.from_arrays(reward=[1, 0], action=[0, 1], propensities=both["production"], policies=both)
    actual, _ = arms.fold(Arms(SHARES), arms.start(Arms(SHARES)), batch, block=2)
    assert actual.action_sets is not None
    assert actual.action_sets.propensities == pytest.approx([0.72, 0.28, 0.72, 0.28])
    assert actual.propensity == pytest.approx([0.72, 0.28])


def test_an_event_that_lacks_an_arm_keeps_its_logged_propensity() -> None:
    policies = {"production": [0.5, 0.5], "challenger": [0.25, np.nan]}
    batch = EventBatch.from_arrays(reward=[1, 0], propensity=[0.5, 0.5], policies=policies)
    actual, _ = arms.fold(Arms(SHARES), arms.start(Arms(SHARES)), batch, block=2)
    assert actual.propensity == pytest.approx([0.475, 0.5])


def test_slates_keep_their_logged_propensities() -> None:
    policies = {name: [[0.25, 0.5]] for name in ARMS}
    batch = EventBatch.from_arrays(reward=[1.0], propensity=[[0.5, 0.5]], policies=policies)
    actual, _ = arms.fold(Arms(SHARES), arms.start(Arms(SHARES)), batch, block=1)
    assert np.array_equal(actual.propensity, batch.propensity)


def test_shares_may_change_between_two_runs_and_measured_ones_are_kept_by_name() -> None:
    columns, _ = ramp(5, events=2000)
    first = evaluator(logging={"arms": ARMS})
    first.update(EventBatch.from_arrays(**columns))
    first.fold_pending()
    before = from_plain(first.state()["rooms"]["ramp"]["balance"]["counts"])
    assert first.apply_config(evaluator(logging={"arms": ARMS[::-1]}).config) is None
    assert from_plain(first.state()["rooms"]["ramp"]["balance"]["counts"]).tolist() == before[::-1].tolist()
    assert before.all()
    first.apply_config(evaluator(logging={"arms": {"production": 0.5, "challenger": 0.5}}).config)
    first.update(EventBatch.from_arrays(**columns))
    assert first.report().events.accepted == 4000


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"arms": {"production": 0.9, "challenger": 0.2}}, "must sum to 1"),
        ({"arms": {"production": 0.9, "other": 0.1}}, "the arm other is neither production nor a candidate"),
        ({"arms": {"logging": 0.8, "challenger": 0.2}, "production": "logging"}, "the arm logging is the log itself"),
        ({"arms": ["production"]}, "logging.arms: .*at least 2"),
        ({"arms": SHARES, "weights": "other"}, "balanced"),
    ],
)
def test_wrong_arms_are_refused(settings: dict[str, Any], problem: str) -> None:
    production = settings.pop("production", "production")
    with pytest.raises(ValueError, match=problem):
        Evaluator(["challenger"], production=production, logging=settings)


def test_a_state_is_resumed_while_an_arm_waits_for_its_history() -> None:
    columns, _ = ramp(7, events=2_000)
    changing = evaluator(logging={"arms": SHARES})
    changing.update(EventBatch.from_arrays(**columns))
    computed = Evaluator({"challenger": Uniform()}, production="production", logging={"arms": SHARES}).config
    changing.change_candidates(replace(changing.config, computed_policies=computed.computed_policies))
    resumed = Evaluator.from_state(changing.state())
    assert resumed.policies == ("production",)
    assert resumed.report() == changing.report()


def test_arms_come_from_messages_and_from_arrays() -> None:
    message = (
        b'{"event_id":%d,"timestamp":1.5,"action":"a","propensity":0.5,"reward":1,"logging_policy":%s,'
        b'"policies":{"challenger":0.25}}'
    )
    names = (b'"challenger"', b"null", b"7")
    batch = JsonDecoder(["challenger"]).decode_batch([message % (row, name) for row, name in enumerate(names)])
    arrays = EventBatch.from_arrays(reward=[1] * 3, propensity=[0.5] * 3, logging_policy=["challenger", None, 7])
    assert batch.logging_policy is not None
    assert arrays.logging_policy is not None
    assert np.array_equal(batch.logging_policy, arrays.logging_policy)
    assert batch.logging_policy[1] == 0
    assert JsonDecoder().decode_batch([message % (1, b"null")]).logging_policy is None


def test_the_configuration_names_the_arms() -> None:
    document = {"policies": {"production": "production", "candidates": ["challenger"]}, "logging": {"arms": SHARES}}
    config = Config.model_validate(document).evaluator_config()
    assert config.logging == Arms(SHARES)
    assert type(config).from_settings(config.settings()) == config
