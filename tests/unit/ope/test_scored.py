"""Test scored events: what a revealed outcome is worth under each policy, from the message to the estimate."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streameval import (
    IPS,
    Evaluator,
    EventBatch,
    Mixture,
    ScoredSNIPS,
)
from streameval.events import JsonDecoder
from streameval.ope.evidence import Evidence
from support.messages import message
from support.scored_events import BOTH, POLICIES, batch_of, evaluator, hidden, log, scored
from support.strategies import examples
from support.streams import close


def values(batch: EventBatch, policy: str = "challenger", **options: Any) -> dict[str, float | None]:
    evaluated = evaluator(**options)
    evaluated.update(batch)
    return {e.estimator: e.value for e in evaluated.report().estimates if e.policy == policy}


def rejection(one: bytes, **options: Any) -> tuple[str, str]:
    (rejected,) = JsonDecoder(POLICIES, **options).decode_batch([one]).rejected
    return rejected.reason, rejected.detail


# -- from the message --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policies", [POLICIES, None])
def test_the_message_of_the_readme_becomes_an_outcome_for_each_policy(policies: list[str] | None) -> None:
    batch = batch_of(scored(0.12, 0.30, 0.41), message(2, policies={"challenger": 0.25}), hidden(), policies=policies)
    batch = batch.with_policies(POLICIES)
    assert batch.scored is not None
    assert batch.scored.sizes.tolist() == [1, 0, 1]
    assert batch.scored.outcomes[0].tolist() == [0.30, 0.41]
    assert batch.scored.revealed.tolist() == [True, False]
    assert batch.scored.propensity[0] == 0.12
    assert batch.probabilities[1, 1] == 0.25


def test_rows_of_tables_may_be_scored() -> None:
    batch = JsonDecoder(POLICIES).decode_rows([json.loads(scored(0.5, 1, 0.5))])
    assert values(batch) == {"scored_ips": close(1.0), "scored_snips": close(0.5)}


def test_batches_can_be_cut_taken_joined_and_stored_with_their_outcomes() -> None:
    batch = batch_of(scored(0.5, 1, 0.5), message(2), hidden(), scored(0.25, 0, 1))
    for same in (
        EventBatch.concat([batch[:1], batch[1:2], batch[2:]]),
        EventBatch.from_state(batch.to_state()),
        batch.take(np.arange(4)[::-1]).take(np.arange(4)[::-1]),
        batch.with_policies(POLICIES[::-1]).with_policies(POLICIES),
    ):
        assert same.scored is not None
        assert values(same) == values(batch)
    assert batch[1:2].trimmed().scored is None


def test_faulty_scored_events_are_rejected_with_the_reason() -> None:
    actual = [
        rejection(scored(None, 0, 0)),
        rejection(scored(0, 0, 0)),
        rejection(scored(0.5, 2, 0), reward_range=(0.0, 1.0)),
        rejection(scored(0.5, 0, 0, action="a")),
        rejection(scored(0.5, 0, 0, slots=[{"action": 0}])),
        rejection(scored(0.5, 0, "x")),
        rejection(message(1, reward=...)),
        rejection(message(1, revenue=...), reward_field="revenue"),
    ]
    assert actual == [
        ("missing_field", "scored.propensity: missing"),
        ("propensity_range", "scored.propensity: 0 is not in (0, 1]"),
        ("reward_range", "scored.values.production: 2 is not in [0, 1]"),
        ("malformed", "action: not allowed together with `scored`"),
        ("malformed", "slots: not allowed together with `scored`"),
        ("malformed", "scored.values.challenger: expected bool | float, got str"),
        ("missing_field", "reward: missing"),
        ("missing_field", "revenue: missing"),
    ]
    assert rejection(scored(0.5, 0, 7).replace(b" 7", b" 1e999"))[0] == "not_finite"


def test_an_evaluator_rejects_values_outside_its_range() -> None:
    evaluated = evaluator(reward_range=(-4.0, 0.0))
    evaluated.update(batch_of(scored(0.5, -3, -1), scored(0.5, -5, -1), scored(0.5, 0, 1)))
    assert dict(evaluated.report().events.rejected) == {"reward_range": 2}


# -- estimates ---------------------------------------------------------------------------------------------------------


@examples(20)
@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1), st.floats(0.05, 1)), min_size=1, max_size=6))
def test_the_mean_over_all_ways_to_reveal_outcomes_is_the_mean_of_all_outcomes(
    rows: list[tuple[float, float, float]],
) -> None:
    worth, propensity = np.array(rows)[:, :2], np.array(rows)[:, 2]
    batch = batch_of(*[scored(p, *own) for own, p in zip(worth.tolist(), propensity.tolist(), strict=True)], hidden())
    evidence = Evidence.from_slots(batch, POLICIES, "scored")
    ips, snips = (estimator.terms(evidence, {})[0] for estimator in BOTH)
    assert snips.denominator is not None
    assert propensity @ ips.numerator[:-1] == pytest.approx(worth.sum(axis=0), rel=1e-12, abs=1e-12)
    assert propensity @ snips.denominator[:-1] == pytest.approx(len(rows))
    assert (ips.numerator[-1] == 0).all()
    assert (evidence.sample_weight == 1).all()


def test_both_estimators_follow_their_definitions() -> None:
    batch = batch_of(scored(0.5, 1, 0.5), scored(0.25, 0, 1), hidden(), hidden())
    assert values(batch) == {"scored_ips": close((1 + 4) / 4), "scored_snips": close((1 + 4) / (2 + 4))}
    assert values(batch, "production") == {"scored_ips": close(2 / 4), "scored_snips": close(2 / 6)}
    evaluated = evaluator()
    evaluated.update(batch)
    assert evaluated.report().get("challenger", "scored_ips", "cumulative").lift == close(3 / 4)
    assert evaluated.report().get("challenger", "scored_snips", "cumulative").lift == close(3 / 6)


def test_an_event_without_a_value_is_missing_for_that_candidate_and_plain_events_for_both() -> None:
    plain = message(3, policies={"production": 0.5, "challenger": 1.0})
    batch = batch_of(scored(0.5, 1, None), scored(0.5, 0, 0.25), plain)
    options: dict[str, Any] = {"estimators": [*BOTH, IPS()]}
    assert values(batch, **options) == {"scored_ips": close(0.5), "scored_snips": close(0.25), "ips": close(2.0)}
    assert values(batch, "production", **options)["scored_snips"] == close(0.5)
    evaluated = evaluator()
    evaluated.update(batch)
    counts = {row.policy: (row.events, row.missing) for row in evaluated.report().policies}
    assert counts == {"production": (3, 0), "challenger": (2, 1)}


def test_production_must_have_values() -> None:
    with pytest.raises(ValueError, match="found 'scored_snips', which needs values of production"):
        Evaluator(["challenger"], estimators=[ScoredSNIPS()])
    evaluated = evaluator()
    missing = evaluated.missing_fields(batch_of(message(1, policies={"production": 0.5, "challenger": 0.5})))
    assert str(missing[0]).startswith("none of the first 1 event has `scored.values.production`")


# -- with estimated propensities ---------------------------------------------------------------------------------------

MARGINALS = {1: 0.5, 2: 0.3, 3: 0.2}
CHANCES = {1: 0.1, 2: 0.4, 3: 0.8}
TABLES: dict[str, dict[str, Any]] = {
    "by context": {"by": ["country"]},
    "by value": {"by": ["rating"], "marginals": MARGINALS},
}


def ratings(n: int, name: str, seed: int = 1) -> tuple[list[bytes], list[tuple[int, bool, dict[str, float]]]]:
    """Draw outcomes that are revealed by a country, or by the rating itself, and return their messages and facts."""
    rng, messages, facts = np.random.default_rng(seed), [], []
    for key in rng.choice(3, n, p=list(MARGINALS.values())).tolist():
        key += 1
        is_shown = bool(rng.random() < CHANCES[key])
        worth = {"production": -float(key), "challenger": -float(rng.random() * key)}
        facts.append((key, is_shown, worth))
        outcome = {"values": worth} if is_shown else {"revealed": False}
        fields = {"country": f"c{key}"} if name == "by context" else {"rating": key} if is_shown else {}
        messages.append(json.dumps({"event_id": len(messages), "timestamp": 0, "scored": outcome, **fields}).encode())
    return messages, facts


@pytest.mark.parametrize("name", TABLES)
def test_estimated_propensities_of_outcomes_equal_a_loop_over_the_blocks(name: str) -> None:
    """Count revealed outcomes by their country among all of it, or by their rating among a share of all."""
    messages, facts = ratings(1_550, name)
    model = {"kind": "tabular", "horizon": 2_000, "shrinkage": 5, **TABLES[name]}
    options = {"estimators": [ScoredSNIPS()], "reward_range": (-3.0, 0.0), "drift": None}
    propensity = {"kind": "estimated", "warm_up": 300, "model": model}
    made = evaluator(propensity=propensity, **options)
    batch = made.config.decoder().decode_batch(messages)
    assert not batch.rejected
    shown, every = dict.fromkeys(CHANCES, 0.0), dict.fromkeys(CHANCES, 0.0)
    weights, sums, counted = 0.0, np.zeros(2), 0
    for first in range(0, 1_550, 100):
        block, total = facts[first : first + 100], sum(every.values()) or 1.0
        share, known = sum(shown.values()) / total, first >= 300
        for key, is_shown, worth in block if known else ():
            possible = every[key] if name == "by context" else total * MARGINALS[key]
            inverse = (possible + 5) / (shown[key] + 5 * share)
            counted += 1
            weights += is_shown * inverse
            sums += is_shown * inverse * np.array(list(worth.values()))
        for key in CHANCES:
            shown[key] = shown[key] * (1 - 1 / 2_000) ** 100 + sum(one[0] == key and one[1] for one in block)
            every[key] = every[key] * (1 - 1 / 2_000) ** 100 + sum(one[0] == key for one in block)
    made.update(batch[:730])
    made = Evaluator.from_state(made.state())
    made.update(batch[730:])
    report = made.report()
    actual = [report.get(policy, "scored_snips", "cumulative") for policy in POLICIES]
    assert [row.value for row in actual] == pytest.approx((sums / weights).tolist(), rel=1e-9)
    assert {row.propensity for row in actual} == {"estimated"}
    assert [(row.events, row.missing) for row in report.policies] == [(counted, 300)] * 2


def test_estimates_take_the_place_of_logged_propensities_of_outcomes() -> None:
    messages, _ = ratings(1_100, "by context")
    logged = [message.replace(b'"values"', b'"propensity": 7, "values"') for message in messages]
    reports = []
    for log_messages in (messages, logged):
        made = evaluator(propensity={"kind": "estimated"}, estimators=[ScoredSNIPS()], reward_range=(-3.0, 0.0))
        made.update(made.config.decoder().decode_batch(log_messages))
        reports.append(made.report())
    assert reports[0] == reports[1]
    assert reports[0].events.accepted == 1_100


@pytest.mark.parametrize("is_shown", [True, False])
def test_outcomes_are_unknown_until_some_were_revealed_and_some_were_hidden(is_shown: bool) -> None:
    """Without hidden outcomes, each one would seem to be revealed for certain."""
    messages, facts = ratings(1_100, "by context")
    alike = [message for message, fact in zip(messages, facts, strict=True) if fact[1] == is_shown]
    made = evaluator(propensity={"kind": "estimated", "warm_up": 1}, estimators=[ScoredSNIPS()], reward_range=(-3, 0))
    made.update(made.config.decoder().decode_batch(alike))
    report = made.report()
    assert [row.missing for row in report.policies] == [len(alike)] * 2
    assert report.get("production", "scored_snips", "cumulative").value is None


def test_marginals_tell_nothing_about_choices_of_actions() -> None:
    fields = {"propensity": None, "policies": {"new": 0.5}, "country": "x"}
    messages = [message(number, action=str(number % 2), **fields) for number in range(1_000)]
    table = {"kind": "tabular", "by": ["country"], "marginals": {"x": 0.5, "y": 0.5}}
    made = Evaluator(["new"], propensity={"kind": "estimated", "warm_up": 1, "model": table}, drift=None)
    made.update(made.config.decoder().decode_batch(messages))
    assert made.report().propensity_model.unknown == 1_000


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ({"by": ["rating", "country"], "marginals": MARGINALS}, "one field"),
        ({"by": ["rating"], "marginals": {1: 0.5, 2: 0.3}}, "must sum to 1, found 0.8"),
        ({"by": ["rating"], "marginals": {0.5: 0.5, 1: 0.5}}, "expected texts, whole numbers or truth values"),
        ({"by": ["rating"], "marginals": {"1": 0.5, 1: 0.5}}, "each of them once"),
    ],
)
def test_marginals_are_shares_of_the_values_of_one_field(model: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        evaluator(estimators=[ScoredSNIPS()], propensity={"kind": "estimated", "model": {"kind": "tabular", **model}})


# -- in evaluators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", BOTH, ids=lambda estimator: estimator.label)
def test_a_mean_weight_away_from_1_matters_for_the_mean_over_all_decisions_alone(estimator: Any) -> None:
    evaluated = evaluator(
        estimators=[estimator],
        averages=[Mixture()],
        reward_range=(-1.0, 0.0),
        promotion={"rule": "paired", "min_events": 1_000},
    )
    evaluated.update(batch_of(*log(8_000, complete=False)))
    report = evaluated.report()
    failed = {check.check for check in report.trust if not check.ok}
    assert ("mean_weight" in failed) == (estimator.kind == "scored_ips")
    assert report.promotion[0].promotable == (estimator.kind == "scored_snips")
    mean = report.get("challenger", estimator.label, "mixture").importance_weight_mean
    assert (mean is None) == (estimator.kind == "scored_snips")
