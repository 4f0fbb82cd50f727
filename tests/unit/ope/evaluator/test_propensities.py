"""Test estimated propensities of logs that lack them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.config.model import Config
from streameval.errors import ConfigError, StateError
from streameval.events import JsonDecoder, json_schema
from streameval.events.origin import fingerprints
from streameval.ope.evaluator.estimated_propensity import FOR_ESTIMATES, EstimatedPropensity
from streameval.ope.evaluator.propensities import ChoiceCounts, LoggedChoices
from support import parts
from support.changes import adopt
from support.logged_choices import (
    ACTIONS,
    BY_COUNTRY,
    BY_RIVER,
    CONTEXTS,
    COUNTRIES,
    challenger_estimate,
    decoded,
    evaluated,
    world,
)
from support.ramps import three_actions

# --- The numbers ---


BY_CONTEXT: dict[str, Any] = {"kind": "estimated", "model": {"kind": "tabular", "by": ["context.country"]}}


def test_action_lists_names_and_indices_give_equal_estimates() -> None:
    log = world(4, 1_500)
    config = Evaluator(["challenger"], ["snips"], ["cumulative"], propensity=BY_CONTEXT).config
    list_report = evaluated(config.decoder().decode_batch(log.messages()), BY_CONTEXT).report()
    index_report, name_report = evaluated(log.listed()).report(), evaluated(log.batch()).report()
    assert challenger_estimate(list_report).value == pytest.approx(challenger_estimate(index_report).value, rel=1e-12)
    assert challenger_estimate(name_report).value == pytest.approx(challenger_estimate(index_report).value, rel=1e-2)


def test_propensities_that_events_carry_are_ignored() -> None:
    log = world(5, 1_100)
    rows = [json.loads(message) for message in log.messages()]
    wrong = [json.dumps(row | {"propensity": 7.0}).encode() for row in rows]
    decoder = Evaluator(["challenger"], ["snips"], ["cumulative"], propensity=BY_CONTEXT).config.decoder()
    actual = [evaluated(decoder.decode_batch(messages), BY_CONTEXT).report() for messages in (log.messages(), wrong)]
    assert actual[0] == actual[1]
    assert actual[1].events.accepted == 1_100


def test_listed_actions_have_an_estimated_distribution_so_that_dr_has_a_lift() -> None:
    log = world(2, 3_000)
    options = {"estimators": ["dr", "snips"], "reward_model": "tabular"}
    report = evaluated(log.listed(), **options).report()
    production, (dr, snips) = (
        report.get("logging", "dr", "cumulative"),
        (challenger_estimate(report, n) for n in ("dr", "snips")),
    )
    assert production.value == pytest.approx(log.reward[1_000:].mean(), abs=0.01)
    assert dr.lift == pytest.approx(snips.lift, abs=0.02)
    assert dr.details["unsupported_probability"] == 0.0


def test_the_probability_of_a_candidate_for_actions_that_were_never_logged_is_unsupported() -> None:
    log = world(2, 3_000)
    wider = np.column_stack([0.75 * log.candidate, np.full(CONTEXTS, 0.25)])
    report = evaluated(log._replace(candidate=wider).listed()).report()
    assert challenger_estimate(report).details["unsupported_probability"] == pytest.approx(0.25)


# --- Events without an estimate ---


def test_the_table_equals_the_share_of_each_action_by_hand() -> None:
    a, b = fingerprints(["a", "b"])
    two, none = np.array([a, a, b, a]), np.zeros(4, dtype=np.uint64)
    choices = LoggedChoices(two, none, np.ones(4), none, np.arange(4), np.zeros(4, dtype=bool))
    counts = ChoiceCounts.none().after(choices, none, fading=1.0)
    chosen, possible = counts.counts(none[:2], np.array([a, b]))
    assert chosen.tolist() == [3, 1]
    assert possible.tolist() == [4, 4]


def test_the_first_events_and_rare_actions_are_missing_for_candidates_only() -> None:
    log = world(6, 3_000)
    action = np.where(np.arange(3_000) % 1_000 == 7, 9, log.action)  # logged three times
    batch = log.batch(action=[f"a{number}" for number in action])
    report = evaluated(batch, {**BY_COUNTRY, "warm_up": 500}).report()
    production, challenger = report.policies
    assert (production.events, production.missing) == (3_000, 0)
    assert challenger.missing == 500 + 2
    assert report.propensity_model is not None
    assert report.propensity_model.unknown == 502


def test_an_estimate_below_the_floor_is_missing() -> None:
    report = evaluated(world(6, 3_000).batch(), {**BY_COUNTRY, "floor": 0.2}).report()
    assert (
        challenger_estimate(report).importance_weight_max is None
        or challenger_estimate(report).importance_weight_max <= 5.0
    )
    assert report.policies[1].missing > 1_000


def test_production_that_is_logging_needs_no_propensity() -> None:
    log = world(8, 1_500)
    report = evaluated(log.batch()).report()
    assert report.get("logging", "snips", "cumulative").value == pytest.approx(log.reward.mean(), rel=1e-12)


def test_the_score_of_the_model_shows_that_the_context_helps() -> None:
    model = evaluated(world(9).batch()).report().propensity_model
    assert model is not None
    assert model.events == 5_000
    assert model.log_loss is not None
    assert model.baseline_log_loss is not None
    assert model.log_loss < model.baseline_log_loss - 0.05
    alone = evaluated(world(9).batch(), {"kind": "estimated"}).report().propensity_model
    assert alone is not None
    assert alone.log_loss == pytest.approx(alone.baseline_log_loss)


# --- A classifier of river ---


def test_a_late_candidate_starts_with_a_copy_of_the_classifier() -> None:
    options: dict[str, Any] = {"averages": ["cumulative"], "estimators": ["snips"], "propensity": BY_RIVER}
    batch, before = decoded(world(3, 1_300), BY_RIVER), {"challenger": "logged"}
    changing = evaluator_with_late_candidate(batch, 1_100, before, {**before, "even": "uniform"}, **options)
    alone = Evaluator.from_config(Evaluator(before, **options).config)
    for piece in (batch[:1_100], batch[1_100:]):  # rounding depends on how many blocks are folded together
        alone.update(piece)
        alone.fold_pending()
    assert [policy.missing for policy in changing.report().policies if policy.policy == "even"] == [0]
    assert challenger_estimate(changing.report()) == challenger_estimate(alone.report())


def test_a_state_with_a_classifier_loads_only_for_a_caller_who_names_it() -> None:
    learned = evaluated(decoded(world(3, 300), BY_RIVER), BY_RIVER)
    learned.fold_pending()
    state = learned.state()
    with pytest.raises(StateError, match="a classifier of propensities, which is code"):
        Evaluator.from_state(state)
    config = Evaluator(["challenger"], ["snips"], ["cumulative"], propensity=BY_RIVER).config
    evaluator = Evaluator.from_config(config)
    evaluator.update(decoded(world(3, 1_400), BY_RIVER))
    shown = Evaluator.from_state(evaluator.state(), without_code=True)
    assert challenger_estimate(shown.report()).value is not None


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("linear_model.LinearRegression", "is not a classifier of several classes"),
        ("linear_model.LogisticRegression", "is not a classifier of several classes"),
        ("linear_model.Missing", "cannot be made"),
    ],
)
def test_only_classifiers_of_several_classes_are_taken(model: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        Evaluator(["challenger"], propensity={"kind": "estimated", "model": {"kind": "river", "model": model}})


def test_a_classifier_that_raises_costs_events_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr("river.linear_model.SoftmaxRegression.learn_one", broken)
    model = evaluated(decoded(world(3, 1_300), BY_RIVER), BY_RIVER).report().propensity_model
    assert model is not None
    assert (model.failures, model.unknown) == (1_300, 1_300)


# --- The marks ---


def test_every_row_says_that_its_propensities_are_estimated() -> None:
    segments = {"country": {"values": ["de", "fr"], "other": True}}
    options = {"propensity": BY_CONTEXT, "segments": segments}
    decoder = Evaluator(["challenger"], ["dr"], ["cumulative"], **options).config.decoder()
    report = evaluated(
        decoder.decode_batch(world(1, 1_500).messages()),
        BY_CONTEXT,
        estimators=["dr", "snips"],
        averages=["cumulative", "mixture"],
        reward_model="tabular",
        segments=segments,
    ).report()
    rows = [*report.estimates, *report.segments, *report.promotion]
    assert {type(row).__name__ for row in rows} == {"Estimate", "SegmentEstimate", "Decision"}
    assert {row.propensity for row in rows} == {"estimated"}
    (reason,) = {check.reason for check in report.trust if check.check == "propensities"}
    assert reason == "not checked: they are estimated (tabular), and intervals leave out their error"
    logged = evaluated(world(1, 200).batch_with_propensities(), None).report()
    assert {row.propensity for row in (*logged.estimates, *logged.promotion)} == {"logged"}
    assert logged.propensity_model is None


def test_the_comparison_of_a_ramp_shows_whether_its_propensities_are_estimated() -> None:
    logged = three_actions(1, 3_000)
    names = [f"item-{probability}" for probability in logged["policies"]["production"]]
    unlogged = {name: column for name, column in logged.items() if name != "propensity"} | {"action": names}
    for propensity, columns, origin in ((None, logged, "logged"), ("estimated", unlogged, "estimated")):
        settings: dict[str, Any] = {"production": "production", "propensity": propensity, "drift": None}
        evaluator = Evaluator(["challenger"], ["snips"], ["cumulative"], **settings)
        evaluator.update(EventBatch.from_arrays(**columns))
        assert {row.propensity for row in evaluator.report().calibration} == {origin}


def test_the_default_estimators_accept_estimated_propensities() -> None:
    config = Evaluator(["challenger"], propensity="estimated").config
    assert set(config.estimators) == {"snips", "dr"}
    assert len(config.averages) == 6
    assert config.promotion_lifts


# --- Refusals ---


def test_only_estimators_that_take_estimates_are_allowed() -> None:
    for estimator in parts.estimators():
        if estimator.takes_estimated:
            assert Evaluator(["challenger"], [estimator], production="now", propensity="estimated")
            assert estimator.kind in FOR_ESTIMATES.split(", ")
        elif not estimator.uses_clicks:
            with pytest.raises(ValueError, match=f"found '{estimator.label}', which needs logged propensities"):
                Evaluator(["challenger"], [estimator], production="now", propensity="estimated")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"propensity": {"kind": "estimated", "model": {"kind": "tabular", "by": ["action"]}}}, "known before"),
        ({"propensity": {"kind": "estimated", "model": {"kind": "tabular", "by": ["a", "a"]}}}, "a field twice"),
        ({"propensity": BY_COUNTRY, "ranking": {"metric": "dcg", "examination": "power"}}, "rankings"),
        ({"propensity": BY_COUNTRY, "logging": {"arms": {"logged": 0.5, "challenger": 0.5}}}, "arms"),
        (
            {"propensity": BY_COUNTRY, "estimators": ["dr"], "segments": {"country": {"field": "x", "values": ["de"]}}},
            "a segment of another field",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: Mapping[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Evaluator(["challenger"], **{"production": "logged", **options})


def test_events_without_propensities_need_an_evaluator_that_estimates_them() -> None:
    with pytest.raises(ValueError, match="give the evaluator propensity="):
        Evaluator(["challenger"]).update(world(0, 100).batch())


def test_other_propensities_start_an_evaluator_from_zero() -> None:
    config = Evaluator(["challenger"], ["snips"], ["cumulative"], propensity=BY_COUNTRY).config
    evaluator = Evaluator.from_config(config)
    evaluator.update(world(0, 300).batch())
    assert not evaluator.restarts(config)
    assert evaluator.restarts(Evaluator(["challenger"], ["snips"], ["cumulative"], propensity="estimated").config)


def test_a_candidate_that_is_added_later_starts_with_the_propensities_learned_so_far() -> None:
    log, start = world(0, 2_000), 1_300
    late = log.candidate[::-1][log.context, log.action]
    columns: dict[str, Any] = {
        "action": [f"a{action}" for action in log.action],
        "reward": log.reward,
        "segments": {"country": COUNTRIES[log.context].tolist()},
    }
    options: dict[str, Any] = {"averages": ["cumulative"], "estimators": ["snips"], "propensity": BY_COUNTRY}
    batch = EventBatch.from_arrays(policies={"early": late, "late": late}, **columns)
    changing = evaluator_with_late_candidate(batch, start, ["early"], ["early", "late"], **options)
    absent = np.where(np.arange(len(late)) < start, np.nan, late)
    whole = Evaluator(["late"], **options)
    whole.update(EventBatch.from_arrays(policies={"late": absent}, **columns))
    actual, expected = (instance.report().get("late", "snips", "cumulative") for instance in (changing, whole))
    assert actual.value == pytest.approx(expected.value, rel=1e-12)
    assert actual.importance_weight_mean == pytest.approx(expected.importance_weight_mean, rel=1e-12)
    assert [policy.missing for policy in changing.report().policies if policy.policy == "late"] == [0]


def test_a_frozen_copy_starts_with_the_propensities_learned_so_far() -> None:
    log = world(0, 1_500)
    apprentice = {"kind": "learned", "objective": "snips", "per_action": True}
    candidates = {"apprentice": apprentice, "frozen": {"kind": "versions_of", "policy": "apprentice", "every": 1_200}}
    settings = {"policies": {"candidates": candidates}, "averages": ["cumulative"], "propensity": "estimated"}
    changing = Evaluator.from_config(Config.model_validate(settings).evaluator_config())
    features = np.eye(ACTIONS)[None].repeat(len(log.action), axis=0)
    whole = log.candidate[log.context]
    changing.update(
        EventBatch.from_arrays(reward=log.reward, action=log.action, features=features, policies={"any": whole})
    )
    actual = {policy.policy: (policy.events, policy.missing) for policy in changing.report().policies}
    assert (actual["apprentice"], actual["frozen-1"]) == ((500, 1_000), (300, 0))


def evaluator_with_late_candidate(batch: EventBatch, start: int, before: Any, after: Any, **options: Any) -> Evaluator:
    """Return an evaluator of the events that gets a candidate after the event `start`."""
    changing = Evaluator.from_config(Evaluator(before, **options).config)
    changing.update(batch[:start])
    adopt(changing, Evaluator(after, **options).config)
    changing.update(batch[start:])
    return changing


# --- The events ---


def messages(**fields: Any) -> list[bytes]:
    event = {"event_id": 1, "timestamp": 0, "action": "a", "reward": 1, "policies": {"challenger": 0.5}} | fields
    return [json.dumps({name: value for name, value in event.items() if value is not None}).encode()]


def test_a_decoder_takes_events_without_propensities_only_if_they_are_estimated() -> None:
    (refused,) = JsonDecoder(["challenger"]).decode_batch(messages()).rejected
    assert refused.detail == "propensity: missing, as is `propensities`"
    batch = JsonDecoder(["challenger"], estimated=True).decode_batch(messages())
    assert np.isnan(batch.propensity).all()
    assert not batch.rejected


def test_the_schema_of_events_without_propensities_requires_none() -> None:
    (event,) = messages()
    required, open_schema = (
        jsonschema.Draft202012Validator(json_schema(estimated=estimated)) for estimated in (False, True)
    )
    assert not required.is_valid(json.loads(event))
    assert open_schema.is_valid(json.loads(event))
    assert not open_schema.is_valid({"event_id": 1, "timestamp": 0, "slots": [{"action": "a"}], "reward": 1})
    assert open_schema.is_valid({"event_id": 1, "timestamp": 0, "scored": {"values": {"challenger": 1}}})


def test_slates_have_no_estimated_propensity() -> None:
    slate = messages(slots=[{"action": "a"}], action=None, policies=None)
    (refused,) = JsonDecoder(["challenger"], estimated=True).decode_batch(slate).rejected
    assert refused.reason == "malformed"
    assert refused.detail == "slots: propensities are estimated for single actions"


def test_a_frame_without_propensities_is_read_if_they_are_estimated() -> None:
    frame = {"action": ["a", "b"], "reward": [1, 0], "challenger": [0.7, 0.2], "country": ["de", "fr"]}
    options: dict[str, Any] = {"policies": ["challenger"], "segments": {"country": "country"}}
    batch = EventBatch.from_frame(frame, estimated=True, **options)
    assert len(batch) == 2
    assert batch.actions is not None
    assert batch.actions.names == ("a", "b")
    with pytest.raises(Exception, match="no column with the propensity"):
        EventBatch.from_frame(frame, **options)


def test_the_settings_list_their_fields() -> None:
    actual = EstimatedPropensity()
    assert actual.fields == []
    assert (actual.floor, actual.warm_up) == (0.001, 1000)
