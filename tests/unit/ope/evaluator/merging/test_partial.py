"""Partial results: any cutting of a stream into ranges, merged in any order, gives the same Report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from streameval.errors import ConfigError, StateError
from streameval.events import EventBatch
from streameval.events.origin import Origin
from streameval.events.segments import Segment, SegmentColumns
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.merging.buckets import width_of
from streameval.ope.evaluator.merging.mergeable import MergePlan
from streameval.ope.evaluator.merging.merged import LATENESS, MOST_OPEN, MergedEvaluator
from streameval.ope.evaluator.merging.partial import Partial
from streameval.ope.evaluator.plan import Plan
from streameval.ope.promotion import Promotion
from streameval.ope.report import Report
from support.ranking_worlds import pages
from support.strategies import examples

ESTIMATORS: list[Any] = ["ips", "snips", {"kind": "clipped_ips", "cap": 3.0}]
TIMED: list[Any] = [{"kind": "window", "span": "200s"}, {"kind": "decay", "half_life": "30s"}]
ADAPTIVE: list[Any] = [
    {"kind": kind, "drift_span": 200, **options}
    for kind, options in (("adaptive_window", {}), ("adaptive_decay", {"bias": "exact"}))
]
OFF = {"drift": None, "promotion": None}
START = 1.6e9


def make_plan(
    estimators: Sequence[Any] = ESTIMATORS, averages: Sequence[Any] = ("cumulative", *TIMED, "mixture")
) -> Plan:
    return Evaluator(["a", "b"], estimators, averages, **OFF).plan


def make_log(events: int, seed: int = 0, seconds: Any = None, units: bool = True, **columns: Any) -> EventBatch:
    """Events of policies `a`, which some lack, and `b`; by default a second for each hundred of them."""
    random = np.random.default_rng(seed)
    given: dict[str, Any] = {
        "reward": random.binomial(1, 0.3, events),
        "propensity": random.uniform(0.05, 0.9, events),
        "policies": {
            "a": np.where(random.random(events) < 0.1, np.nan, random.random(events)),
            "b": random.random(events),
        },
        "timestamp": START + (np.arange(events) // 100 if seconds is None else np.asarray(seconds)),
        "unit": [f"u{number}" for number in random.integers(0, 40, events)] if units else None,
        "sampling_probability": random.choice([1.0, 0.5], events),
    }
    return EventBatch.from_arrays(**(given | columns))


def in_partitions(batch: EventBatch, partitions: Any = 0) -> EventBatch:
    """The events with their places: each is the next one of its partition."""
    numbers = np.broadcast_to(np.asarray(partitions, dtype=np.int64), len(batch)).copy()
    offsets = np.zeros(len(batch), dtype=np.int64)
    for number in np.unique(numbers):
        offsets[numbers == number] = np.arange((numbers == number).sum())
    return replace(batch, origin=Origin("log", numbers, offsets))


def partials(
    plan: Plan, batch: EventBatch, cuts: Mapping[int, Sequence[int]], lagged: bytes | None = None
) -> list[Partial]:
    """Partial results of all ranges, partition by partition; `cuts`: offsets inside of each partition."""
    assert batch.origin is not None
    found, known = [], MergePlan.of(plan)
    for number in np.unique(batch.origin.partition).tolist():
        own = batch.take(np.flatnonzero(batch.origin.partition == number))
        ends = sorted({0, *(cut for cut in cuts.get(number, ()) if cut < len(own)), len(own)})
        for first, stop in pairwise(ends):
            found.append(Partial.of(known, own[first:stop], {("log", number): (first, stop)}, lagged))
    return found


def merged(plan: Plan, parts: Sequence[Partial]) -> MergedEvaluator:
    evaluator = MergedEvaluator(plan, {partition: 0 for part in parts for partition in part.coverage.ranges})
    assert all(evaluator.fold(part) for part in parts)
    return evaluator


def numbers(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(each, f"{place}.{key}")
    else:
        yield place, value


def differences(one: Report, other: Report, ignored: Sequence[str] = (), tolerance: float = 1e-9) -> dict[str, Any]:
    """The fields of the rows of two Reports that differ, without fields whose name has one of the `ignored` words."""
    first, second = (
        dict(numbers({f"{row.policy} {row.estimator} {row.average}": to_builtins(row) for row in report.estimates}))
        | dict(numbers(to_builtins([report.events, report.policies])))
        for report in (one, other)
    )
    assert first.keys() == second.keys()
    return {
        place: (first[place], second[place])
        for place in first
        if not any(word in place for word in ignored)
        and first[place] != second[place]
        and not (
            isinstance(first[place], float)
            and isinstance(second[place], float)
            and math.isclose(first[place], second[place], rel_tol=tolerance, abs_tol=1e-12)
        )
    }


def unordered_log(seed: int) -> EventBatch:
    """A log of three partitions, with times that are not in order or unknown, and with units or without."""
    random = np.random.default_rng(seed)
    events = int(random.integers(1, 700))
    seconds = np.sort(random.uniform(0, random.choice([1, 20, 300]), events))
    seconds += random.uniform(0, random.choice([0, 3]), events)
    seconds[random.random(events) < random.choice([0.0, 0.05])] = np.nan
    batch = make_log(events, seed, seconds, units=bool(random.random() < 0.5))
    return in_partitions(batch, random.integers(0, 3, events))


@given(
    st.integers(0, 2**16),
    st.fixed_dictionaries({number: st.lists(st.integers(1, 400), max_size=5) for number in range(3)}),
    st.permutations(range(3)),
)
@examples(12)
def test_any_cutting_in_any_order_gives_the_same_report(
    seed: int, cuts: dict[int, list[int]], order: Sequence[int]
) -> None:
    plan, batch = make_plan(averages=("cumulative", *TIMED, "mixture", *ADAPTIVE)), unordered_log(seed)
    whole = merged(plan, partials(plan, batch, {})).report()
    parts = partials(plan, batch, cuts)
    parts.sort(key=lambda part: order[next(iter(part.coverage.ranges))[1]])
    assert not differences(whole, merged(plan, parts).report())
    for each in (parts, parts[::-1]):
        assert not differences(whole, merged(plan, [reduce(Partial.merge, each)]).report())


@given(st.integers(0, 2**16), st.integers(1, 1500), st.booleans())
@examples(12)
def test_without_drift_in_time_they_equal_the_evaluator(seed: int, events: int, units: bool) -> None:
    """Where every block of 100 events is one second, buckets of time are blocks, and variances are the same too."""
    plan, batch = make_plan(), make_log(events // 100 * 100 + 50, seed, units=units)
    evaluator = Evaluator.from_plan(plan)
    evaluator.update(batch)
    found = merged(plan, partials(plan, in_partitions(batch), {0: [1, 130, 777]}))
    later = ("window", "decay")  # of the unfinished block, one process does not fade the variance of those before
    assert not differences(
        evaluator.report(),
        found.report(),
        [
            f"{each}.{field}"
            for each in later
            for field in (
                "lower",
                "upper",
                "lift_lower",
                "lift_upper",
                "lift_ratio_lower",
                "lift_ratio_upper",
                "details.lift_deviation",
                "details.design_effect",
                "details.lift_design_effect",
            )
        ],
    )
    assert not differences(evaluator.report(), found.report(), tolerance=1e-3)


@given(st.integers(0, 2**16), st.integers(1, 15), st.booleans())
@examples(6)
def test_adaptive_averages_of_buckets_that_are_blocks_equal_those_of_the_evaluator(
    seed: int, blocks: int, units: bool
) -> None:
    plan, batch = make_plan(averages=ADAPTIVE), make_log(100 * blocks, seed, units=units)
    evaluator, found = Evaluator.from_plan(plan), merged(plan, partials(plan, in_partitions(batch), {0: [130, 777]}))
    evaluator.update(batch)
    assert not differences(evaluator.report(), found.report())


def test_adaptive_averages_spread_large_buckets_over_blocks_of_one_size() -> None:
    """Of 370 events in a bucket, blocks of 100 have a share each: until the drift is known, a window has them all."""
    plan = make_plan(averages=["adaptive_window", "adaptive_decay"])
    batch = make_log(7_400, seconds=np.arange(7_400) // 370)
    evaluator, found = Evaluator.from_plan(plan), MergedEvaluator(plan, {("log", 0): 0})
    evaluator.update(batch)
    for part in partials(plan, in_partitions(batch), {0: range(0, 7_400, 1_000)}):
        found.fold(part)
        found.report()  # leaves the evaluator as it is
    assert not differences(found.report(), merged(plan, partials(plan, in_partitions(batch), {})).report())
    for row in evaluator.report().estimates:
        precision = 1e-9 if row.average == "adaptive_window" else 1e-2
        mine = found.report().get(row.policy, row.estimator, row.average)
        assert mine.value == pytest.approx(row.value, rel=precision)


def cut_in(parts: Sequence[tuple[int, int]], plan: Plan, batch: EventBatch) -> list[Partial]:
    return [Partial.of(plan, batch[first:stop], {("log", 0): (first, stop)}) for first, stop in parts]


@given(
    st.integers(0, 2**16),
    st.fixed_dictionaries({number: st.lists(st.integers(1, 400), max_size=5) for number in range(3)}),
)
@examples(12)
def test_segments_are_those_of_one_process_however_the_stream_is_cut(seed: int, cuts: dict[int, list[int]]) -> None:
    batch = unordered_log(seed)
    countries = np.random.default_rng(seed).choice(np.array(["de", "fr", "jp", None], dtype=object), len(batch))
    batch = replace(batch, segments=SegmentColumns.of({"country": countries.tolist()}, len(batch)))
    split = {"country": Segment(values=("de", "fr"), other=True)}
    evaluator = Evaluator(["a", "b"], ["ips", "snips"], ["cumulative", *TIMED], segments=split, **OFF)
    evaluator.update(batch)
    parts = merged(evaluator.plan, partials(evaluator.plan, batch, cuts))
    rows = {(row.policy, row.segment_value): row for row in parts.report().segments}
    whole = merged(evaluator.plan, partials(evaluator.plan, batch, {})).report().segments
    assert len(rows) == 9
    for row in evaluator.report().segments:
        mine = rows[row.policy, row.segment_value]
        for name in ("estimator", "average", "kind"):
            assert getattr(mine, name) == getattr(row, name)
        for name in ("value", "lift", "share", "events"):
            assert getattr(mine, name) == about(getattr(row, name)), (row, name)
    for row in whole:
        mine = rows[row.policy, row.segment_value]
        for name in ("lower", "upper", "lift_lower", "lift_upper"):
            assert getattr(mine, name) == about(getattr(row, name)), (row, name)


def about(value: float | None) -> Any:
    """Equal but for rounding."""
    return None if value is None else pytest.approx(value, rel=1e-9, abs=1e-12)


def test_partial_results_that_were_seen_change_nothing() -> None:
    plan, batch = make_plan(), in_partitions(make_log(300))
    first, second, inside = cut_in([(0, 200), (200, 300), (50, 100)], plan, batch)
    evaluator = merged(plan, [first, second])
    before = evaluator.report()
    assert not any(evaluator.fold(part) for part in (first, second, inside, first.merge(second)))
    assert evaluator.report() == before
    assert evaluator.offsets == {("log", 0): 300}


def test_gaps_overlaps_and_other_plans_are_refused() -> None:
    plan, batch = make_plan(), in_partitions(make_log(300))
    evaluator = merged(plan, cut_in([(0, 100)], plan, batch))
    with pytest.raises(StateError, match="starts at offset 150 of log-0; 100 is the next one"):
        evaluator.fold(*cut_in([(150, 200)], plan, batch))
    with pytest.raises(StateError, match="starts at offset 50 of log-0, and ends after 99") as overlap:
        evaluator.fold(*cut_in([(50, 150)], plan, batch))
    assert overlap.value.hint == "compute the range from 100 to 150 again"
    with pytest.raises(StateError, match="leaves out offset 150 of log-0"):
        evaluator.fold(reduce(Partial.merge, cut_in([(100, 150), (200, 250)], plan, batch)))
    with pytest.raises(StateError, match="is of plan"):
        evaluator.fold(*cut_in([(100, 200)], make_plan(["ips"]), batch))
    one, other = cut_in([(0, 100), (99, 200)], plan, batch)
    with pytest.raises(StateError, match="two partial results count offset 99 of log-0"):
        one.merge(other)
    assert evaluator.accepted == 100


def test_some_seen_and_some_new_partitions_are_refused() -> None:
    plan, batch = make_plan(), in_partitions(make_log(200), np.arange(200) % 2)
    one, other = partials(plan, batch, {})
    evaluator = merged(plan, [one])
    with pytest.raises(StateError, match="ranges that have been seen, and others that have not"):
        evaluator.fold(one.merge(other))
    assert evaluator.fold(other)


def test_offsets_without_events_count_as_seen() -> None:
    plan, batch = make_plan(), make_log(4)
    places = Origin("log", np.zeros(4, dtype=np.int64), np.array([0, 1, 5, 8]))
    evaluator = MergedEvaluator(plan)
    assert evaluator.fold(Partial.of(plan, replace(batch, origin=places), {("log", 0): (0, 12)}))
    assert evaluator.fold(Partial.of(plan, batch[:0], {("log", 0): (12, 15)}))
    assert (evaluator.offsets, evaluator.accepted) == ({("log", 0): 15}, 4)


def test_rejected_events_are_counted() -> None:
    plan, batch = make_plan(), make_log(100, reward=np.arange(100.0) / 50)
    evaluator = merged(plan, partials(plan, in_partitions(batch), {0: [30, 80]}))
    assert dict(evaluator.report().events.rejected) == {"reward_range": 49}
    assert evaluator.accepted == 51


def test_partial_results_survive_their_bytes_and_states_resume_to_the_last_bit() -> None:
    plan, batch = make_plan(averages=("cumulative", *TIMED, "mixture", *ADAPTIVE)), in_partitions(make_log(900))
    parts = cut_in([(0, 450), (450, 900)], plan, batch)
    first, second = (Partial.from_bytes(part.to_bytes()) for part in parts)
    resumed = MergedEvaluator.from_state(merged(plan, [first]).state())
    assert resumed.fold(second)
    assert resumed.report() == merged(plan, parts).report()
    for damaged in (b"", b"\x81", parts[0].to_bytes()[:-9]):
        with pytest.raises(StateError, match="not a partial result"):
            Partial.from_bytes(damaged)


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        ({"averages": ["window"]}, "window counts events", "span"),
        ({"averages": ["decay"]}, "decay decays by the event", "half_life"),
        ({"promotion": "sea"}, "the rule sea judges", "promotion: off"),
        ({"averages": ["mixture"], "promotion": "anytime"}, "the rule anytime judges", "paired"),
        ({"drift": "ADWIN"}, "a drift detector", "drift: off"),
        ({"intervals": {"cumulative": "confidence_sequence"}}, "follows single events", "empirical_likelihood"),
    ],
)
def test_plans_that_depend_on_the_order_are_refused(arguments: dict[str, Any], problem: str, hint: str) -> None:
    given = {"estimators": ["ips"], "averages": ["cumulative"], **OFF, **arguments}
    with pytest.raises(ConfigError, match=problem) as refused:
        MergePlan.of(Evaluator(["a"], **given).plan)
    assert refused.value.hint is not None
    assert hint in refused.value.hint


def test_late_events_count_in_every_average() -> None:
    """An event that is so late that its bucket was compared with others already counts all the same."""
    plan, seconds = make_plan(["ips"]), np.concatenate([np.arange(300), [10.0]]).repeat(10)
    batch = in_partitions(make_log(len(seconds), seconds=seconds))
    at_once, one_by_one = (merged(plan, partials(plan, batch, {0: cuts})) for cuts in ([], range(0, 3010, 70)))
    assert LATENESS < 200 < MOST_OPEN
    ignored = ("design_effect", "lower", "upper", "mixture")  # a mixture has a late event in its unfinished block
    assert not differences(at_once.report(), one_by_one.report(), ignored)


def test_buckets_of_time_divide_all_windows() -> None:
    averages = list(make_plan(averages=[{"kind": "window", "span": "1m"}]).averages.values())
    assert width_of(averages) == 0.6


def with_times(batch: EventBatch) -> EventBatch:
    """The events, each hundred of them in its own second."""
    return in_partitions(replace(batch, timestamp=START + np.arange(len(batch)) // 100))


def of_action_sets(events: int) -> tuple[EventBatch, dict[str, Any]]:
    random = np.random.default_rng(5)
    logging, target = random.dirichlet(np.full(4, 0.6), (2, events))
    action = np.array([random.choice(4, p=row) for row in logging])
    features = random.random((events, 4, 2))
    capped: list[Any] = [{"kind": kind, "cap": 3.0} for kind in ("switch", "cab", "cab_dr")]
    estimators = ["dm", "dr", {"kind": "static_blend", "tau": 0.5}, *capped, "control_variate", "stratified_ips"]
    reward = random.binomial(1, 0.2 + 0.6 * features[np.arange(events), action, 0])
    batch = EventBatch.from_arrays(
        reward=reward, action=action, propensities=logging, policies={"a": target, "b": logging}, features=features
    )
    return batch, {"estimators": [*estimators, "stratified_dr", {"kind": "cab", "cap": "auto", "name": "slope"}]}


def of_slates(events: int) -> tuple[EventBatch, dict[str, Any]]:
    random = np.random.default_rng(5)
    propensity, of_a, of_b = random.uniform(0.2, 0.9, (3, events, 3))
    policies = {"a": of_a, "b": of_b}
    batch = EventBatch.from_arrays(reward=random.random((events, 3)) / 3, propensity=propensity, policies=policies)
    return batch, {"estimators": ["pseudo_inverse", "weighted_pseudo_inverse", "iips", "rips"]}


def of_pages(events: int) -> tuple[EventBatch, dict[str, Any]]:
    batch, _ = pages(events, seed=5)
    batch = batch.with_policies(["new", "b"])
    ranking = {"metric": {"kind": "dcg", "at": 6}, "examination": {"kind": "power", "eta": 1.0}}
    return replace(batch, policies=("a", "b")), {
        "estimators": ["click_ips", {"kind": "clipped_click_ips", "cap": 3.0}, "click_snips"],
        "ranking": ranking,
    }


def of_several_rewards(events: int) -> tuple[EventBatch, dict[str, Any]]:
    random = np.random.default_rng(5)
    lacking = np.where(random.random(events) < 0.2, np.nan, random.random(events))
    return make_log(events, rewards={"hide": lacking}), {
        "estimators": ["ips", "snips"],
        "rewards": {"click": {"max": 1}, "hide": {"max": 1}},
    }


@pytest.mark.parametrize("world", [of_action_sets, of_slates, of_pages, of_several_rewards])
def test_all_estimators_give_the_same_however_the_stream_is_cut(world: Any) -> None:
    batch, options = world(850)
    plan = Evaluator(["a", "b"], averages=["cumulative", *TIMED, "mixture", *ADAPTIVE], **OFF, **options).plan
    evaluator = Evaluator.from_plan(plan)
    evaluator.update(with_times(batch))
    teacher = merged(plan, partials(plan, with_times(batch), {}))
    for lagged in (None, teacher.lagged):
        one, several = (
            merged(plan, partials(plan, with_times(batch), {0: cuts}, lagged)).report() for cuts in ([], [1, 130, 777])
        )
        assert not differences(one, several)
    others = (
        "adaptive",  # it shows whole blocks alone
        "dm",
        "dr",
        "static_blend",
        "switch",
        "cab",
        "slope",
        "control_variate",
        "stratified",
        "slot_ratio_means",
    )
    assert not differences(evaluator.report(), one, others, tolerance=1e-3)
    assert not differences(evaluator.report(), one, (*others, "window", "decay"))


@pytest.mark.parametrize("model", ["ridge", {"kind": "ridge", "per_action": True}])
def test_lessons_of_any_cutting_teach_the_same(model: Any) -> None:
    batch, options = of_action_sets(850)
    plan = Evaluator(["a", "b"], averages=["cumulative"], reward_model=model, **OFF, **options).plan
    first = merged(plan, partials(plan, with_times(batch), {})).lagged
    known = [merged(plan, partials(plan, with_times(batch), {0: cuts}, first)) for cuts in ([], [300, 310])]
    one, several = (MergePlan.of(plan).lagged_from_bytes(each.lagged) for each in known)
    for place in ("square", "product"):  # of the regression that forgets nothing
        states = [each["predictions"][0]["model"] for each in (one, several)]
        found = [each.get("positions", [each])[0][place][-1] for each in states]
        np.testing.assert_allclose(*found, rtol=1e-9)
    accuracy = known[1].report().reward_model
    assert accuracy is not None
    assert accuracy.squared_error is not None
    assert accuracy.baseline_squared_error is not None
    assert accuracy.squared_error < accuracy.baseline_squared_error
    slopes = [each["estimators"][0][0]["control_variate"]["slope"] for each in (one, several)]
    np.testing.assert_allclose(*slopes, rtol=0.02)


@pytest.mark.parametrize("estimators", [["ips"], ["ips", "snips"]])
def test_paired_decides_as_in_one_process(estimators: list[Any]) -> None:
    """Where every block is one second: once a candidate is better, and never while its weights fail a trust check."""
    random = np.random.default_rng(1)
    propensity, reward = random.uniform(0.3, 0.7, 9_050), random.binomial(1, 0.3, 9_050)
    policies = {"a": propensity * np.where(reward, 1.35, 0.85), "b": propensity * 1.2}
    columns: dict[str, Any] = {"propensity": propensity, "reward": reward, "policies": policies}
    batch = in_partitions(make_log(9_050, units=False, sampling_probability=None, **columns))
    evaluator = Evaluator(["a", "b"], estimators, ["mixture"], drift=None, promotion=Promotion(min_events=3_000))
    evaluator.update(batch)
    expected = evaluator.report()
    reports = [
        merged(evaluator.plan, partials(evaluator.plan, batch, {0: cuts})).report() for cuts in ([], [1, 4000, 8000])
    ]
    for found in reports:
        assert not differences(expected, found)
        for mine, other in zip(found.promotion, expected.promotion, strict=True):
            assert (mine.policy, mine.promotable, mine.held, mine.since_event, mine.times) == (
                other.policy,
                other.promotable,
                other.held,
                other.since_event,
                other.times,
            )
            assert mine.lower == pytest.approx(other.lower, rel=1e-9)
        assert [(each.policy, each.event) for each in found.transitions] == [
            (each.policy, each.event) for each in expected.transitions
        ]
    assert [each.promotable for each in expected.promotion] == [True, False]


@pytest.mark.parametrize("factor", [1.0, 0.8])
def test_trust_checks_are_those_of_one_process(factor: float) -> None:
    """The default rule decides nothing without a mixture, here as in one process."""
    random = np.random.default_rng(3)
    propensity = random.uniform(0.3, 0.7, 4_000)
    policies = {name: np.minimum(propensity * factor, 1.0) for name in ("a", "b")}
    columns: dict[str, Any] = {"propensity": propensity, "policies": policies, "sampling_probability": None}
    batch = in_partitions(make_log(4_000, units=False, **columns))
    evaluator = Evaluator(["a", "b"], ESTIMATORS, ["cumulative"], drift=None)
    evaluator.update(batch)
    found = merged(evaluator.plan, partials(evaluator.plan, batch, {0: [1, 1234, 2000]})).report(now=START)
    expected = evaluator.report(now=START)
    left_out = ("clusters", "propensities")
    mine, theirs = ([each for each in report.trust if each.check not in left_out] for report in (found, expected))
    assert mine == theirs
    assert {each.check: each.ok for each in found.trust if each.policy == "a"}["mean_weight"] == (factor == 1)
    assert found.promotion == expected.promotion


@pytest.mark.parametrize("units", [True, False])
def test_the_check_of_clusters_says_that_it_needs_a_unit(units: bool) -> None:
    plan = Evaluator(["a", "b"], ESTIMATORS, ["cumulative"], drift=None).plan
    batch = in_partitions(make_log(4_000, units=units))
    found = {each.reason for each in merged(plan, partials(plan, batch, {})).report().trust if each.check == "clusters"}
    log_it = "not known past one process, where blocks have no order: log a `unit`"
    assert found == {"events log their `unit`" if units else log_it}


def test_a_table_of_actions_learns_from_any_cutting() -> None:
    batch, _ = of_action_sets(600)
    plan = Evaluator(["a", "b"], ["dr"], ["cumulative"], reward_model={"kind": "tabular", "horizon": 1e9}, **OFF).plan
    one, several = (
        MergePlan.of(plan).lagged_from_bytes(merged(plan, partials(plan, with_times(batch), {0: cuts})).lagged)
        for cuts in ([], [100, 310])
    )
    tables = [each["predictions"][0]["model"] for each in (one, several)]
    by_name = [{name: table["sums"][row] for name, row in table["names"].items()} for table in tables]
    for name, sums in by_name[0].items():
        np.testing.assert_allclose(sums, by_name[1][name], rtol=1e-6)
    np.testing.assert_allclose(tables[0]["total"], [600, batch.reward.sum()], rtol=1e-5)


def test_timestamps_far_in_the_future_do_not_move_the_clock_nor_fill_the_memory() -> None:
    plan, seconds = make_plan(["ips"]), (np.arange(40_000) // 100).astype(float)
    seconds[::20] += np.random.default_rng(1).uniform(1e6, 1e9, 2_000)  # a twentieth of each stretch
    batch = in_partitions(make_log(40_000, seconds=seconds))
    evaluator = merged(plan, partials(plan, batch, {0: range(0, 40_000, 5_000)}))
    report = evaluator.report()
    row = report.get("b", "ips", "window")
    assert 18_000 < row.details["window_events"] < 22_000  # 200 seconds of 100 events, and those of the future
    assert len(evaluator.state()["known"]["buckets"]["numbers"]["data"]) < 8 * 2 * (LATENESS + MOST_OPEN)
