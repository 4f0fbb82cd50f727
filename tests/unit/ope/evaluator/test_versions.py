"""Test frozen copies of a learning policy: made at exact events, evaluated from the next one on, and retired."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import ValidationError

import streameval as se
from streameval.common.problems import problems_of
from streameval.config.model import Config
from streameval.events import EventBatch
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.policies import policy_file
from streameval.ope.report import Report
from streameval.ope.reward_models import Ridge, Tabular
from streameval.ope.reward_models.base import LoggedActions
from support.changes import adopt
from support.learning import ACTIONS, log

EVERY, KEEP = 600, 2
STILL = {"kind": "learned", "weights": [[1.0, -1.0, 0.5]], "step": 0}
FROZEN = {"kind": "versions_of", "policy": "apprentice", "every": EVERY, "keep": KEEP}


def config(**changes: Any) -> EvaluatorConfig:
    frozen = FROZEN | changes.pop("frozen", {})
    candidates = {"apprentice": {"kind": "learned"}, "frozen": frozen} | changes.pop("candidates", {})
    settings = {"estimators": ["ips", "snips"], "averages": ["cumulative", "mixture"], "drift": "off"} | changes
    return Config.model_validate({"policies": {"candidates": candidates}, **settings}).evaluator_config()


def fed(changing: Evaluator, batch: EventBatch, size: int) -> Evaluator:
    for first in range(0, len(batch), size):
        changing.update(batch[first : min(first + size, len(batch))])
    return changing


def counts(report: Report) -> dict[str, int]:
    return {policy.policy: policy.events for policy in report.policies}


def values(report: Report) -> dict[tuple[str, str, str], float]:
    return {
        (estimate.policy, estimate.estimator, estimate.average): estimate.value or 0.0 for estimate in report.estimates
    }


def test_each_version_starts_with_the_next_event_and_the_oldest_is_retired() -> None:
    changing, seen = Evaluator.from_config(config()), {}
    for events in (599, 1, 1, 600, 600, 649):
        changing.update(log(events))
        seen[changing.accepted] = {
            name: events for name, events in counts(changing.report()).items() if "frozen" in name
        }
    assert seen == {
        599: {},
        600: {"frozen-1": 0},
        601: {"frozen-1": 1},
        1201: {"frozen-1": 601, "frozen-2": 1},
        1801: {"frozen-2": 601, "frozen-3": 1},
        2450: {"frozen-3": 650, "frozen-4": 50},
    }


@pytest.mark.parametrize("average", [False, True])
def test_a_version_keeps_the_weights_that_the_policy_had_at_its_own_temperature(average: bool) -> None:
    batch, temperature = log(1_900), 0.5 if average else None
    learning = {"apprentice": {"kind": "learned", "average": average}}
    made = fed(Evaluator.from_config(config(candidates=learning, frozen={"temperature": temperature})), batch, 333)
    report = made.report()
    assert Evaluator.from_state(made.state()).report() == report
    apprentice = se.Evaluator({"apprentice": se.Learned(average=average)}, drift=None)
    apprentice.update(batch[:1_200])
    state = apprentice.learned("apprentice")
    served = state["average" if average else "weights"]
    (content,) = (content for copy, _, content in Evaluator.versions_in(made.state()) if copy.name == "frozen-2")
    assert content is not None
    options = policy_file.options_of(content)
    assert np.array_equal(options["weights"], served)
    assert options["temperature"] == (temperature or 1.0)
    weights = served[0] / (temperature or 1.0)
    features, rest = batch.action_sets.features, slice(1_200, 1_900)  # type: ignore[union-attr]
    assert features is not None
    scores = features.values.reshape(len(batch), -1, len(weights))[rest] @ weights
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    index = batch.action_sets.index[rest]  # type: ignore[union-attr]
    terms = chances[np.arange(700), index] / batch.propensity[rest] * batch.reward[rest]
    assert values(report)["frozen-2", "ips", "cumulative"] == pytest.approx(terms.mean(), rel=1e-12)


MODELS: dict[str, Any] = {
    "ridge": Ridge(horizon=1_000),
    "ridge per action": Ridge(per_action=True),
    "tabular": Tabular(),
}
RIVER = {"kind": "river", "model": "linear_model.LinearRegression"}
GREEDY = {"apprentice": {"kind": "of_reward_model", "epsilon": 0.1}}


def model_config(model: Any) -> EvaluatorConfig:
    return config(candidates=GREEDY, reward_model=asdict(model))


@pytest.mark.parametrize("name", MODELS)
def test_a_version_of_the_reward_models_policy_keeps_the_model_that_it_was_made_with(name: str) -> None:
    model, batch = MODELS[name], log(1_900)
    changing = fed(Evaluator.from_config(model_config(model)), batch, 333)
    files = [None] * 3 if name == "tabular" else ["frozen-1.npz", "frozen-2.npz", "frozen-3.npz"]
    assert [made.file for made in changing.take_versions()] == files
    sets = batch.action_sets
    assert sets is not None
    learned, rest = (
        LoggedActions(sets.take(rows), batch.reward[rows], np.ones(events), block, (0.0, 1.0))
        for rows, events, block in ((slice(0, 1_200), 1_200, 100), (slice(1_200, 1_900), 700, 701))
    )
    expected = model.fold(model.fold(model.start(), learned)[1], rest)[0].reshape(700, -1)
    best = expected >= expected.max(axis=1, keepdims=True) - 1e-9
    chances = 0.1 / ACTIONS + 0.9 * best / best.sum(axis=1, keepdims=True)
    later = slice(1_200, 1_900)
    terms = chances[np.arange(700), sets.index[later]] / batch.propensity[later] * batch.reward[later]
    assert values(changing.report())["frozen-2", "ips", "cumulative"] == pytest.approx(terms.mean(), rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_versions_of_the_reward_models_policy_survive_an_interruption_but_not_another_model(name: str) -> None:
    settings, batch = model_config(MODELS[name]), log(1_350)
    evaluator = fed(Evaluator.from_config(settings), batch, 450)
    resumed = Evaluator.from_state(msgspec.msgpack.decode(msgspec.msgpack.encode(evaluator.state())))
    resumed.apply_config(settings)
    assert resumed.report() == evaluator.report()
    resumed.apply_config(model_config(Ridge(horizon=5_000)))
    assert resumed.policies == ("logging",)


def weights(changing: Evaluator) -> dict[str, bytes]:
    """Return the bytes of the weights of each policy that has learned."""
    return {name: learned["weights"]["data"] for name, learned in changing.state()["rooms"]["learning"].items()}


def test_versions_share_the_error_of_all_candidates_that_were_ever_added() -> None:
    changing = fed(Evaluator.from_config(config(candidates={"even": "uniform"})), log(1_900), 500)
    assert changing.config.candidate_order == {"apprentice": 1, "even": 2, "frozen-2": 4, "frozen-3": 5}


def test_a_new_configuration_keeps_versions_of_a_policy_that_it_keeps() -> None:
    changing = fed(Evaluator.from_config(config()), log(1_300), 1_300)
    assert changing.change_candidates(config(candidates={"even": "uniform"})) is not None
    assert changing.policies == ("logging", "apprentice", "frozen-1", "frozen-2")
    changing.change_candidates(config(frozen={"keep": 1}))
    assert changing.policies == ("logging", "apprentice", "frozen-2")
    resumed = Evaluator.from_state(changing.state())
    resumed.apply_config(config(frozen={"keep": 1}, estimators=["ips", "snips", "dm"]))
    assert resumed.policies == ("logging", "apprentice", "frozen-2")
    fed(changing, log(600), 200)
    assert changing.policies == ("logging", "apprentice", "frozen-3")
    changing.change_candidates(config(candidates={"apprentice": {"kind": "learned", "step": 0.5}}))
    assert changing.policies == ("logging",)


def test_versions_are_forgotten_when_they_are_made_at_other_events() -> None:
    changing = fed(Evaluator.from_config(config()), log(1_300), 1_300)
    changing.change_candidates(config(frozen={"every": 700}))
    assert changing.policies == ("logging", "apprentice")
    changing.update(log(100))
    assert changing.policies == ("logging", "apprentice", "frozen-2")


def test_versions_of_a_policy_that_is_reset_are_forgotten() -> None:
    changing = fed(Evaluator.from_config(config()), log(1_300), 1_300)
    changing.reset_policy("apprentice")
    assert changing.policies == ("logging",)
    late = changing.apply_config(config())
    assert late is not None
    changing.activate(late)
    fed(changing, log(600), 100)
    assert changing.policies == ("logging", "apprentice", "frozen-1")


def test_a_candidate_that_is_added_later_has_versions_after_its_own_events() -> None:
    changing = Evaluator.from_config(config(candidates={"even": "uniform"}).for_policies(["even"]))
    changing.update(log(250))
    adopt(changing, config(candidates={"even": "uniform"}))
    fed(changing, log(700), 700)
    # the candidate learns from whole blocks, and starts with the unfinished one
    assert counts(changing.report()) == {"logging": 950, "even": 950, "apprentice": 750, "frozen-1": 150}


def test_transitions_of_a_retired_version_are_still_taken() -> None:
    rule = {"rule": "paired", "min_events": 100, "hold": 1}
    settings = config(frozen={"keep": 1, "every": 3_000}, promotion=rule)
    one, other = (Evaluator.from_config(settings) for _ in range(2))
    batch = log(9_500)
    one.update(batch)
    taken = []
    for first in range(0, len(batch), 500):
        other.update(batch[first : first + 500])
        other.fold_pending()
        taken += other.take_transitions()
    actual = Evaluator.from_state(one.state()).take_transitions()
    assert one.policies == ("logging", "apprentice", "frozen-3")
    assert {transition.policy for transition in actual} >= {"frozen-1", "frozen-2"}
    assert sorted((transition.policy, transition.event) for transition in actual) == sorted(
        (transition.policy, transition.event) for transition in taken
    )


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"frozen": {"policy": "even"}, "candidates": {"even": "uniform"}}, "policy must be a candidate that learns"),
        ({"frozen": {"policy": "nobody"}}, "policy must be a candidate that learns"),
        ({"candidates": {"a/frozen": FROZEN}}, "no slash"),
        ({"frozen": {"every": 250}}, "every must be a multiple of 100 events, found 250"),
        ({"candidates": {"frozen-2": "uniform"}}, "rename frozen-2"),
        ({"candidates": GREEDY, "reward_model": RIVER}, "only ridge and tabular have frozen copies"),
    ],
)
def test_versions_that_cannot_be_made_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError) as error:
        config(**changes)
    (actual,) = problems_of(error.value, Config)
    assert problem in actual.message
    assert actual.path[:2] == ("policies", "candidates")
    assert "kind: versions_of" in actual.hint


def test_a_report_has_the_steps_the_regret_and_the_newest_version() -> None:
    changing = fed(Evaluator.from_config(config()), log(1_250), 250)
    report = changing.report()
    rows = {learner.policy: learner for learner in report.learners}
    assert {name: (row.version, row.steps) for name, row in rows.items()} == {
        "apprentice": (2, 12),
        "frozen-1": (1, 6),
        "frozen-2": (2, 12),
    }
    for name, row in rows.items():
        lift = report.get(name, "ips", "cumulative").lift
        assert row.regret == (None if lift is None else -lift)
    apprentice = rows["apprentice"]
    assert apprentice.learning_rate == 0.02
    assert (rows["frozen-1"].step_norm, rows["frozen-1"].learning_rate) == (None, None)
    before, after = (se.Evaluator({"apprentice": se.Learned()}) for _ in range(2))
    before.update(log(1_250)[:1_100])
    after.update(log(1_250))
    moved = after.learned("apprentice")["weights"] - before.learned("apprentice")["weights"]
    assert apprentice.step_norm == pytest.approx(np.linalg.norm(moved))


def test_a_decision_about_a_policy_that_learns_points_to_versions() -> None:
    rule = {"rule": "paired", "min_events": 100, "hold": 1}
    changing = fed(Evaluator.from_config(config(promotion=rule, frozen={"every": 3_000})), log(6_000), 500)
    decisions = {decision.policy: decision for decision in changing.report().promotion if decision.promotable}
    assert "`versions_of` makes copies that do not change" in decisions["apprentice"].reason
    assert "versions_of" not in decisions["frozen-1"].reason


def test_every_bound_of_a_policy_that_learns_points_to_versions() -> None:
    settings = config(
        promotion={"rule": "paired", "min_events": 100_000}, candidates={"even": "uniform", "fixed": STILL}
    )
    report = fed(Evaluator.from_config(settings), log(1_300), 500).report()
    (apprentice, *others) = report.promotion
    assert (apprentice.policy, apprentice.promotable) == ("apprentice", False)
    assert apprentice.lower is not None
    assert "but it still learns" in apprentice.reason
    assert not [other.policy for other in others if "still learns" in other.reason]
    assert [learner.policy for learner in report.learners if learner.learns] == ["apprentice"]
    assert "of candidates that still learn (apprentice) are about their past versions" in report.caution_about_learners
    assert report.caution_about_learners in report._repr_html_()
    fixed = se.Evaluator({"fixed": se.Learned(weights=((1.0, 0.0, 0.0),), step=0)}).report()
    assert fixed.caution_about_learners == ""
