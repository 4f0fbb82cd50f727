"""Test properties of every estimator on every average: cutting, resuming, bounded memory, no evidence, extremes."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streameval.common.arrays import from_plain
from streameval.events import EventBatch, Rejected
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, AnyAverage, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import (
    DM,
    DR,
    IPS,
    SNIPS,
    ClippedIPS,
    ControlVariate,
    PseudoInverse,
    StratifiedDR,
    StratifiedIPS,
)
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.policies.logged import LOGGING
from streameval.ope.report import Estimate, Report
from support import parts
from support.strategies import examples
from support.streams import (
    CANDIDATE,
    Array,
    Stream,
    close,
    cuttings,
    evaluated,
    from_weights,
    pieces,
    random_stream,
    streams,
)

BLOCK = 20
ESTIMATORS = parts.estimators_of_weights()
SPECIAL: list[AnyAverage] = [
    Window(tau=230, resolution=1, name="exact window"),
    Window(tau=300, resolution=60, name="coarse window"),
    Decay(alpha=0.99),
    AdaptiveWindow(drift_span=200, name="adaptive window"),
    AdaptiveWindow(
        drift_span=200, growth="immediate", objective="published", bias_weight=0.01, name="published window"
    ),
    AdaptiveDecay(drift_span=200, name="adaptive decay"),
    AdaptiveDecay(drift_span=200, bias="exact", name="exact adaptive decay"),
    AdaptiveDecay(drift_span=200, objective="published", bias_weight=0.01, name="published decay"),
]
"""Averages with the parameters that short streams need."""
FURTHER = parts.further_averages(SPECIAL)
AVERAGES = [*(estimator for estimator in FURTHER if not estimator.mixes_components), *SPECIAL]
MIXTURES = [estimator for estimator in FURTHER if estimator.mixes_components]
INTERVALS = {"exact window": "empirical_bernstein"}
EVERYTHING: dict[str, Any] = {"estimators": ESTIMATORS, "averages": AVERAGES, "block": BLOCK, "intervals": INTERVALS}
MIXED: dict[str, Any] = {"estimators": ESTIMATORS, "averages": MIXTURES, "block": BLOCK}
every_average = pytest.mark.parametrize("wanted", [EVERYTHING, MIXED], ids=["plain", "mixture"])


def numbers(estimate: Estimate) -> dict[str, float | None]:
    """Return all numbers of an estimate by name."""
    fields = ("value", "lower", "upper", "effective_sample_size", "importance_weight_mean", "importance_weight_max")
    named = {name: getattr(estimate, name) for name in fields}
    return named | {name: value for name, value in estimate.details.items() if not isinstance(value, str)}


def assert_same(report: Report, expected: Report, rel: float = 1e-9) -> None:
    """Require equal rows with equal numbers."""
    assert report.events == expected.events
    assert report.policies == expected.policies
    assert len(report.estimates) == len(expected.estimates)
    for one, other in zip(report.estimates, expected.estimates, strict=True):
        row = (one.policy, one.estimator, one.average)
        assert row == (other.policy, other.estimator, other.average)
        for name, number in numbers(other).items():
            assert numbers(one)[name] == close(number, rel=rel, abs=1e-10), (*row, name)


MAY_BE_UNKNOWN = ("values", "latest", "mean", "prior", "prior_square", "rate")
MAY_BE_UNKNOWN += ("lift", "lower", "more", "staying", "present", "since", "first")  # for promotion
MAY_BE_UNKNOWN += ("clock", "number", "level", "upper", "dip", "residual", "alarm", "again", "known", "period")
"""Names in a state that may hold NaN for values that are not known yet."""


def arrays(value: Any, name: str = "") -> Iterator[tuple[str, Array]]:
    """Yield all arrays inside a state with their names."""
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from arrays(item, key)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays(item, name)


def packed(evaluator: Evaluator) -> bytes:
    return msgspec.msgpack.encode(evaluator.state())


def resumed(evaluator: Evaluator) -> Evaluator:
    """Return another evaluator that continues from the state as stored in a file."""
    return Evaluator.from_state(msgspec.msgpack.decode(packed(evaluator)))


@examples(20)
@given(stream=streams(most=300), cutting=cuttings())
def test_a_report_in_between_changes_nothing(stream: Stream, cutting: list[float]) -> None:
    asked, silent = Evaluator([CANDIDATE], **EVERYTHING), Evaluator([CANDIDATE], **EVERYTHING)
    for piece in pieces(stream, cutting):
        asked.update(piece.batch())
        silent.update(piece.batch())
        before = packed(asked)
        assert asked.report().to_json() == asked.report().to_json()
        assert packed(asked) == before
    assert asked.report().to_json() == silent.report().to_json()


@every_average
def test_a_state_does_not_change_when_its_evaluator_continues(wanted: dict[str, Any]) -> None:
    stream = random_stream(15, 1_000)
    evaluator = evaluated(stream[:490], **wanted)
    state, report = evaluator.state(), evaluator.report().to_json()
    kept = msgspec.msgpack.encode(state)
    evaluator.update(stream[490:].batch())
    assert msgspec.msgpack.encode(state) == kept
    other = Evaluator.from_state(state)
    other.update(stream[490:].batch())
    assert Evaluator.from_state(state).report().to_json() == report


def test_a_resumed_evaluator_has_the_settings_of_the_first() -> None:
    first = Evaluator(
        [CANDIDATE, "other"],
        production="champion",
        reward_range=(-5.0, 5.0),
        confidence=0.9,
        **EVERYTHING | {"estimators": [ClippedIPS(cap=math.inf, name="open"), IPS()]},
    )
    again = resumed(first)
    assert again.policies == ("champion", CANDIDATE, "other")
    assert again.config == first.config
    assert list(again.config.estimators.values()) == [ClippedIPS(cap=math.inf, name="open"), IPS()]


def test_a_state_resumes_in_a_process_that_orders_sets_otherwise() -> None:
    every = (DR(), PseudoInverse(), StratifiedIPS(), StratifiedDR(), DM(), SNIPS())
    needs = [sorted(grid.needs) for grid in Evaluator(["a"], every, [Cumulative()]).config.grids()]
    assert needs == sorted(needs)
    assert len(needs) > 3


def test_the_state_stops_growing_when_its_longest_window_is_full() -> None:
    averages: list[AnyAverage] = [Window(tau=20_000), Decay(), AdaptiveWindow(), AdaptiveDecay(), Cumulative()]
    evaluator = Evaluator([CANDIDATE], estimators=[SNIPS(), ControlVariate()], averages=averages, drift=None)
    stream = random_stream(16, 50_000, missing=0.1)
    sizes = {}
    for events in range(50_000, 800_001, 50_000):
        evaluator.update(stream.batch())
        evaluator.fold_pending()
        sizes[events] = len(packed(evaluator))
    full = [sizes[events] for events in range(650_000, 800_001, 50_000)]  # the adaptive window is full at 641,000
    assert sizes[100_000] < sizes[500_000] < full[0]
    assert max(full) - full[0] < 100
    (grid,), buckets = evaluator.config.grids(), 201 + 5 * 101
    assert full[0] < buckets * 2 * len(grid.bank.kept) * 8 * 1.6  # buckets of the adaptive window, and a little more


def test_the_state_of_fixed_averages_does_not_grow_with_the_stream() -> None:
    fixed = [Cumulative(), Window(tau=1_000), Decay()]
    settings_: dict[str, Any] = {"averages": fixed, "estimators": ESTIMATORS, "drift": None}
    stream = random_stream(16, 70_000)
    evaluators = [evaluated(stream[:n], **settings_) for n in (60_000, 70_000)]
    for evaluator in evaluators:
        evaluator.fold_pending()
    before, after = (len(packed(evaluator)) for evaluator in evaluators)
    assert abs(after - before) < 100


def known_numbers(report: Report, policy: str) -> dict[str, float]:
    """Return all known numbers of a policy, except those that an average has without events."""
    own_fields = ("alpha", "horizon_events", "window_events")
    return {
        f"{e.estimator}/{e.average}/{name}": number
        for e in report.estimates
        if e.policy == policy
        for name, number in numbers(e).items()
        if number is not None and name not in own_fields
    }


def rejected(*reasons: str) -> EventBatch:
    empty = EventBatch.from_arrays(reward=[], propensity=[])
    return replace(empty, rejected=tuple(Rejected(reason, "", b"") for reason in reasons))


@every_average
def test_before_the_first_event_nothing_is_known(wanted: dict[str, Any]) -> None:
    report = Evaluator([CANDIDATE], **wanted).report()
    assert (report.events.accepted, report.events.last_timestamp) == (0, None)
    assert len(report.estimates) == 2 * len(ESTIMATORS) * len(wanted["averages"])
    assert known_numbers(report, CANDIDATE) == known_numbers(report, LOGGING) == {}
    assert b"NaN" not in report.to_json()


@every_average
def test_rejected_events_are_only_counted(wanted: dict[str, Any]) -> None:
    evaluator = Evaluator([CANDIDATE], **wanted)
    evaluator.update(rejected("malformed", "not_finite", "malformed"))
    report = evaluator.report()
    assert (report.events.accepted, dict(report.events.rejected)) == (0, {"malformed": 2, "not_finite": 1})
    assert known_numbers(report, LOGGING) == {}
    assert dict(resumed(evaluator).report().events.rejected) == {"malformed": 2, "not_finite": 1}


def test_a_reward_outside_the_range_is_rejected_and_the_rest_of_the_batch_counts() -> None:
    batch = EventBatch.from_arrays(reward=[0.0, 1.5, 1.0, -0.1], propensity=[0.5] * 4, policies={CANDIDATE: [0.5] * 4})
    evaluator = Evaluator([CANDIDATE], estimators=[IPS()], averages=[Cumulative()])
    evaluator.update(replace(batch, rejected=(Rejected("malformed", "", b""),)))
    report = evaluator.report()
    assert report.events.accepted == 2
    assert dict(report.events.rejected) == {"malformed": 1, "reward_range": 2}
    assert report.get(CANDIDATE, "ips", "cumulative").value == 0.5


@pytest.mark.parametrize("n", [1, BLOCK, 10 * BLOCK + 3, 1_503])
@every_average
def test_a_policy_without_events_has_no_numbers_and_changes_no_other(wanted: dict[str, Any], n: int) -> None:
    stream = random_stream(18, n)
    evaluator = Evaluator([CANDIDATE, "absent"], **wanted)
    evaluator.update(stream.batch())
    report = evaluator.report()
    assert known_numbers(report, "absent") == {}
    assert {p.policy: (p.events, p.missing) for p in report.policies}["absent"] == (0, n)
    alone = evaluated(stream, **wanted).report()
    for expected in alone.estimates:
        estimate = report.get(expected.policy, expected.estimator, expected.average)
        assert numbers(estimate) == {name: close(number) for name, number in numbers(expected).items()}


@every_average
def test_events_before_a_late_policy_count_as_missing_for_it(wanted: dict[str, Any]) -> None:
    stream = random_stream(19, 400)
    early = EventBatch.from_arrays(reward=stream.reward[:150], propensity=stream.propensity[:150])
    evaluator = Evaluator([CANDIDATE], **wanted)
    evaluator.update(early)
    evaluator.update(stream[150:].batch())
    missing = stream.with_(target=np.where(np.arange(400) < 150, np.nan, stream.target))
    assert_same(evaluator.report(), evaluated(missing, **wanted).report())


@examples(20)
@given(seed=st.integers(0, 1_000), n=st.integers(1, 700))
def test_a_policy_missing_from_some_events_has_the_cumulative_numbers_of_the_others(seed: int, n: int) -> None:
    stream = random_stream(seed, n, missing=0.4)
    there = stream[~np.isnan(stream.target)]
    settings_: dict[str, Any] = {"estimators": [IPS(), SNIPS(), ClippedIPS(cap=2)], "averages": [Cumulative()]}
    some, only = (evaluated(s, block=BLOCK, **settings_).report() for s in (stream, there))
    for estimator in ("ips", "snips", "clipped_ips"):
        one, other = (report.get(CANDIDATE, estimator, "cumulative") for report in (some, only))
        assert one.value == close(other.value)
        assert one.effective_sample_size == close(other.effective_sample_size)
        counts = {p.policy: p for p in some.policies}[CANDIDATE]
        assert (counts.events, counts.missing) == (len(there), n - len(there))


def test_a_named_production_policy_is_a_policy_like_the_others() -> None:
    stream = random_stream(20, 500)
    batch = EventBatch.from_arrays(
        reward=stream.reward,
        propensity=stream.propensity,
        policies={CANDIDATE: stream.target, "champion": stream.target[::-1]},
    )
    evaluator = Evaluator([CANDIDATE], production="champion", **EVERYTHING)
    evaluator.update(batch)
    report = evaluator.report()
    assert [(p.policy, p.production) for p in report.policies] == [("champion", True), (CANDIDATE, False)]
    value = np.mean(stream.target[::-1] / stream.propensity * stream.reward)
    assert report.get("champion", "ips", "cumulative").value == pytest.approx(value, rel=1e-12)


def test_the_logging_policy_has_weight_one_and_the_mean_reward() -> None:
    stream = random_stream(21, 333, downsampled=True)
    estimate = evaluated(stream, **EVERYTHING).report().get(LOGGING, "ips", "cumulative")
    assert estimate.value == pytest.approx(np.average(stream.reward, weights=1 / stream.sampling), rel=1e-12)
    assert (estimate.importance_weight_mean, estimate.importance_weight_max) == (pytest.approx(1.0), 1.0)
    n_eff = (1 / stream.sampling).sum() ** 2 / (1 / stream.sampling**2).sum()
    assert estimate.effective_sample_size == pytest.approx(n_eff, rel=1e-12)


def test_the_effective_number_of_rewarded_events_counts_clicks_if_weights_are_equal() -> None:
    """Weigh the candidate's rewards by 4, 1 and 0, which gives (4 + 1)^2 / (4^2 + 1^2)."""
    evaluator = Evaluator([CANDIDATE], ["ips"], ["cumulative"])
    weights = EventBatch.from_arrays(reward=[1, 1, 0], propensity=[0.25, 0.5, 0.5], policies={CANDIDATE: [1, 0.5, 1]})
    evaluator.update(weights)
    report = evaluator.report()
    details = {
        name: report.get(name, "ips", "cumulative").details["reward_effective_sample_size"]
        for name in (LOGGING, CANDIDATE)
    }
    assert details == {LOGGING: 2.0, CANDIDATE: pytest.approx(25 / 17)}


def test_the_unsupported_probability_is_the_mass_on_actions_that_are_never_logged() -> None:
    n = 50
    batch = EventBatch.from_arrays(
        reward=np.ones(n),
        action=np.arange(n) % 2,
        propensities=np.tile([0.5, 0.5, 0.0], (n, 1)),
        policies={CANDIDATE: np.tile([0.3, 0.3, 0.4], (n, 1))},
    )
    evaluator = Evaluator([CANDIDATE], **EVERYTHING)
    evaluator.update(batch)
    report = evaluator.report()
    for average in AVERAGES:
        estimate = report.get(CANDIDATE, "ips", average.label)
        assert estimate.details["unsupported_probability"] == pytest.approx(0.4, rel=1e-12)
        assert estimate.value == pytest.approx(0.6, rel=1e-12)
        assert report.get(LOGGING, "ips", average.label).details["unsupported_probability"] == 0.0


# Extremes.


def assert_finite(evaluator: Evaluator) -> None:
    """Require that every sum in the state and every number of the Report is finite."""
    state = evaluator.state()
    actual = list(arrays(from_plain({name: field for name, field in state.items() if name != "pending"})))
    assert actual
    for name, array in actual:
        assert not np.isinf(array).any(), name
        assert name in MAY_BE_UNKNOWN or not np.isnan(array).any(), name
    for policy in evaluator.policies:
        assert all(math.isfinite(number) for number in known_numbers(evaluator.report(), policy).values())


def test_a_weight_that_overflows_makes_the_event_missing_for_that_candidate_alone() -> None:
    calm = random_stream(22, 1_200)
    mad = calm.with_(propensity=calm.propensity.copy())
    mad.propensity[700] = 5e-324
    batch = mad.batch()
    evaluator = Evaluator([CANDIDATE, "calm"], **EVERYTHING)
    targets = np.stack([calm.target, np.where(np.arange(1_200) == 700, 0.0, calm.target)])
    evaluator.update(replace(batch, policies=(CANDIDATE, "calm"), probabilities=targets.T))
    report = evaluator.report()
    assert {p.policy: p.missing for p in report.policies} == {LOGGING: 0, CANDIDATE: 1, "calm": 0}
    assert_finite(evaluator)
    skipped = calm.with_(target=np.where(np.arange(1_200) == 700, np.nan, calm.target))
    expected = evaluated(skipped, **EVERYTHING).report()
    for average in AVERAGES:
        for estimator in ("ips", "snips"):
            one, other = (r.get(CANDIDATE, estimator, average.label) for r in (report, expected))
            assert one.value == pytest.approx(other.value, rel=1e-9)


@pytest.mark.parametrize("weight", [1e10, 1e49])
def test_a_large_weight_is_kept_and_everything_stays_finite(weight: float) -> None:
    stream = random_stream(23, 1_200)
    stream.propensity[5], stream.target[5], stream.reward[5] = 1 / weight, 1.0, 1.0
    evaluator = evaluated(stream, **EVERYTHING)
    assert_finite(evaluator)
    report = evaluator.report()
    counts = {p.policy: p.missing for p in report.policies}
    assert counts[CANDIDATE] == 0
    estimate = report.get(CANDIDATE, "ips", "cumulative")
    assert estimate.value == pytest.approx(weight / 1_200, rel=1e-6)
    assert estimate.importance_weight_max == pytest.approx(weight, rel=1e-12)
    assert estimate.effective_sample_size == pytest.approx(1.0, rel=1e-6)
    assert estimate.details["largest_term_share"] == pytest.approx(1.0, rel=1e-6)
    assert_same(evaluated(stream, every=333, **EVERYTHING).report(), report, rel=1e-6)


@examples(60)
@given(
    rows=st.lists(
        st.tuples(
            st.one_of(st.floats(5e-324, 1.0), st.sampled_from([1e-300, 1e-50, 1.0])),
            st.one_of(st.floats(0.0, 1.0), st.sampled_from([0.0, 1e-300, 1.0, math.nan])),
            st.one_of(st.floats(5e-324, 1.0), st.just(1.0)),
            st.floats(-5.0, 5.0),
        ),
        max_size=70,
    ),
    repeat=st.integers(1, 12),
)
@example(rows=[(1e-300, 0.5, 1.0, 1.0), (0.5, 0.5, 1.0, 5.0)], repeat=20)
@example(rows=[(1e-50, 1.0, 1e-50, -5.0), (0.5, 0.5, 1.0, 5.0)], repeat=20)
def test_no_valid_event_can_bring_anything_that_is_not_finite(
    rows: list[tuple[float, float, float, float]], repeat: int
) -> None:
    columns = np.array(rows * repeat, dtype=float).reshape(-1, 4).T
    stream = Stream(propensity=columns[0], target=columns[1], sampling=columns[2], reward=columns[3])
    evaluator = evaluated(stream, **EVERYTHING, reward_range=(-5.0, 5.0))
    assert_finite(evaluator)
    assert b"NaN" not in evaluator.report().to_json()


@pytest.mark.parametrize("end", [-5.0, 5.0])
def test_rewards_at_the_ends_of_a_range_below_zero(end: float) -> None:
    stream = random_stream(24, 1_000, range_=(-5.0, 5.0))
    extreme = stream.with_(reward=np.full(1_000, end))
    report = evaluated(extreme, **EVERYTHING, reward_range=(-5.0, 5.0)).report()
    for average in AVERAGES:
        estimate = report.get(CANDIDATE, "snips", average.label)
        assert estimate.value == pytest.approx(end, rel=1e-12)
        assert estimate.lower is None or -5.0 <= estimate.lower <= estimate.upper <= 5.0


def test_a_reward_range_below_zero_only_moves_snips() -> None:
    stream = random_stream(25, 1_000, missing=0.1)
    moved = stream.with_(reward=10 * stream.reward - 5)
    report, signed = (
        evaluated(s, **EVERYTHING, reward_range=range_).report()
        for s, range_ in ((stream, (0.0, 1.0)), (moved, (-5.0, 5.0)))
    )
    for average in AVERAGES:
        one, other = (r.get(CANDIDATE, "snips", average.label) for r in (report, signed))
        if average.kind in ("cumulative", "window", "decay"):
            assert other.value == pytest.approx(10 * one.value - 5, rel=1e-9)
            assert other.lower == pytest.approx(10 * one.lower - 5, rel=1e-9)


def test_weights_of_zero_alone_leave_snips_unknown_and_ips_zero() -> None:
    stream = from_weights(np.zeros(300), np.ones(300))
    evaluator = evaluated(stream, **EVERYTHING)
    report = evaluator.report()
    for average in AVERAGES:
        assert report.get(CANDIDATE, "ips", average.label).value == 0.0
        assert report.get(CANDIDATE, "snips", average.label).value is None
    assert_finite(evaluator)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reward_range": (1.0, 1.0)}, "reward_range"),
        ({"reward_range": (0.0, math.inf)}, "reward_range"),
        ({"confidence": 1.0}, "confidence"),
        ({"confidence": 0.0}, "confidence"),
        ({"block": 0}, "block"),
        ({"estimators": []}, "estimator"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Evaluator(**{"candidates": [CANDIDATE]} | wrong)


def test_report_get_names_the_rows_that_exist() -> None:
    report = Evaluator([CANDIDATE], estimators=[IPS()], averages=[Cumulative()]).report()
    with pytest.raises(KeyError, match="challenger/ips/cumulative"):
        report.get(CANDIDATE, "ips", "wndow")


@pytest.mark.parametrize("averages", [None, [Mixture()], [Cumulative(), Window(tau=100), AdaptiveDecay(), Mixture()]])
def test_memory_of_a_fold_is_freed_without_the_garbage_collector(averages: list[AnyAverage] | None) -> None:
    """Avoid reference cycles. Their arrays would stay until a collection, and add up to hundreds of megabytes."""
    evaluator = Evaluator([CANDIDATE], ESTIMATORS, averages, block=BLOCK)
    first, second = pieces(random_stream(1, 20 * BLOCK), [0.5])
    evaluator.update(first.batch())
    evaluator.report()
    gc.collect()
    gc.disable()
    try:
        evaluator.update(second.batch())
        evaluator.report()
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_page_counts_for_candidates_if_its_gain_overflows_only_for_the_shown_order() -> None:
    clicks = np.zeros((250, 3), dtype=int)
    clicks[::3, 0] = clicks[7, 1] = 1
    ranks = np.tile([1, 3, 2], (250, 1))
    examination = {"kind": "table", "values": [1.0, 1e-60, 0.5]}
    ranking = {"metric": {"kind": "dcg", "at": 2}, "examination": examination}
    evaluator = Evaluator(["new"], ranking=ranking)
    evaluator.update(EventBatch.from_rankings(clicks=clicks.tolist(), ranks={"new": ranks.tolist()}))
    report = evaluator.report()
    assert [(policy.policy, policy.events, policy.missing) for policy in report.policies] == [
        ("logging", 249, 1),
        ("new", 250, 0),
    ]
    assert report.get("new", "click_ips", "cumulative").value == pytest.approx(84 / 250)
    assert report.get("new", "click_ips", "cumulative").lift == 0.0
