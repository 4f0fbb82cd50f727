"""Make the rows of the Report: the reading of an average, as one estimate for each policy under each estimator."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from statistics import NormalDist

import numpy as np
from msgspec import structs

from streameval.common.arrays import Array, Integers, Mask, ratio, select_part, side_by_side
from streameval.events import EventBatch
from streameval.ope.core import AnyAverage, Reading
from streameval.ope.core.reading import Comparison
from streameval.ope.estimators import AnyEstimator, TermRange
from streameval.ope.evaluator import slope
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.grid import Grid, GridState
from streameval.ope.evaluator.state import EvaluatorState
from streameval.ope.evidence import largest_weights
from streameval.ope.evidence.actions import FORMS, Form
from streameval.ope.evidence.evidence import Evidence, SlateState, slot_lifts, slot_ratio_means
from streameval.ope.evidence.examination import LearnedCurve, variances
from streameval.ope.evidence.largest_weights import LargestState
from streameval.ope.intervals import AnyInterval, extended_to
from streameval.ope.intervals.base import ratio_bounds
from streameval.ope.intervals.sequences.tracker import TrackedBounds
from streameval.ope.policies.logged import has_support_information
from streameval.ope.report import Decision, Estimate, Examined, Failure, Forecast, PolicyCounts

LARGEST: dict[Form | None, str] = {None: "largest_weight"} | {form: f"largest_weight_{form}" for form in FORMS}
"""The names of the counts of the largest weight: of an event as a whole, and of slates slot by slot in each form."""
COUNTS = ("since", "present", "supported", *LARGEST.values(), "clicks", "clicks_below_cut")
"""The names of the counts of each policy: `since` is the number of accepted events before it was added."""

STILL_LEARNS = (
    "; but it still learns, and this is about its past versions: `versions_of` makes copies that do not change"
)


def report_rows(
    config: EvaluatorConfig,
    grid: Grid,
    state: GridState,
    tail: Evidence | None,
    learned: EvaluatorState,
    slates: SlateState,
    curve: LearnedCurve | None = None,
    wanted: Collection[str] | None = None,
) -> Iterator[Estimate]:
    """Yield the estimates of one grid with their intervals. Estimators vary fastest, averages slowest.

    Args:
        config: a config with one reward
        grid: a grid with one reward
        state: the state of the grid
        tail: events of the unfinished block
        learned: the state of the evaluator after these events
        slates: what it knows about slates for this reward
        curve: learned examination probabilities at ranks
        wanted: labels of the averages to read, by default all
    """
    shown = grid.shown(state, tail)
    if not shown.any():
        return
    counts = learned.counts
    (below_cut,) = known_numbers({"clicks": ratio(counts["clicks_below_cut"], counts["clicks"])}).values()
    pairs = [(index, estimator) for index in range(len(config.policies)) for estimator in grid.estimators]
    form, choosing = grid.form, {estimator for estimator in grid.estimators if len(estimator.alternatives) > 1}
    origin, reward = config.origin_of_propensities, config.rewards[0].name
    read = grid.read(state, tail, config.errors, wanted)
    for average, interval, shared, columns, *by_name in _by_average(config, grid, read, learned, curve):
        numbers, details = map(known_numbers, by_name)
        caps, forecast = details.pop("cap"), numbers.pop("forecast", None)
        detail_rows, number_rows = (list(zip(*table.values(), strict=True)) for table in (details, numbers))
        label = average.label
        for column, (index, estimator) in zip(columns.tolist(), pairs, strict=True):
            if not shown[index]:
                continue
            row = dict(zip(details, detail_rows[column], strict=True)) | shared
            if form:
                row |= known_numbers(_slot_details(slates, index, estimator, average))
            if choosing and estimator in choosing:
                row[estimator.choice] = caps[column]
            if config.ranking is not None:
                row["clicks_below_cut"] = below_cut[index]
            yield Estimate(
                policy=config.policies[index],
                estimator=estimator.label,
                average=label,
                kind=interval.kind,
                anytime=interval.anytime,
                covers="estimand" if estimator.is_biased_by_design else interval.covers,
                details=row,
                **dict(zip(numbers, number_rows[column], strict=True)),
                reward=reward,
                propensity=origin,
                forecast=_forecasts(forecast[column]) if forecast else (),
            )


def _forecasts(rows: Sequence[Sequence[float | None]]) -> tuple[Forecast, ...]:
    """Return the forecasts of the next hours from values and bounds [hours, 3], none if no value is known."""
    return tuple(
        Forecast(f"{hour}h", value, lower, upper)
        for hour, (value, lower, upper) in enumerate(rows, start=1)
        if value is not None
    )


def _by_average(
    config: EvaluatorConfig,
    grid: Grid,
    read: Iterable[tuple[AnyAverage, AnyInterval, Reading, TrackedBounds | None]],
    learned: EvaluatorState,
    curve: LearnedCurve | None,
) -> Iterator[tuple[AnyAverage, AnyInterval, dict[str, str], Integers, dict[str, Array], dict[str, Array]]]:
    """Yield each average with its interval, shared details, chosen columns, and numbers and details of all columns.

    Averages with the same interval are computed at once, their columns side by side within a policy.
    """
    policies, columns = len(config.policies), len(grid.columns)
    counts = learned.counts
    largest = counts[LARGEST[grid.form]]
    supported = (counts["supported"] == counts["present"]) & (counts["present"] > 0)
    errors = _errors_of_curve(config, grid, curve, learned.by_rank)
    for (interval, *_), alike in groupby(read, lambda entry: (entry[1], entry[0].mixes_components, entry[3] is None)):
        averages, _, readings, tracked = zip(*alike, strict=True)
        limits = [log_limits(config, interval, average, learned.weights, grid.form) for average in averages]
        whole = term_range(config, grid, interval, largest, None)
        ranges = [whole.limited(limit, columns) for limit in limits]

        several = len(averages)
        reading = Reading.side_by_side(readings, policies)
        lift = reading.lift(columns * several)
        terms = TermRange._make(side_by_side(column, policies) for column in zip(*ranges, strict=True))
        choice = slope.choose(reading, grid.estimators * several, config.reward_range[1] - config.reward_range[0])
        curve_errors = side_by_side([errors.T] * several, policies).T
        bounds = TrackedBounds.side_by_side(tracked, policies)
        numbers = numbers_of(config, interval, reading, lift, bounds, largest, terms, choice.half_width, curve_errors)
        if config.ranking is None:  # start-up values of a mixture count as events, and are none
            events = np.repeat(counts["present"], len(reading.value) // policies)
            numbers["effective_sample_size"] = np.minimum(numbers["effective_sample_size"], events)
        if reading.ahead is not None:
            linear = terms.linearised(reading.mean_denominator)
            forecasts = [
                (hour.value, *_bounds_of_values(config, interval, hour, linear, None, choice.half_width, curve_errors))
                for hour in reading.in_hours()
            ]
            numbers["forecast"] = np.moveaxis(np.array(forecasts), -1, 0)
            if interval.covers != "current":  # other intervals are about the past
                numbers["forecast"][..., 1:] = np.nan
        late = np.repeat(counts["since"] > 0, len(reading.value) // policies)
        details = _details(interval, reading, lift, supported, terms, late) | {"cap": choice.caps}
        shared = {**interval.details(), **({"design_effect_of": "units"} if reading.knows_units else {})}

        chosen = choice.columns.reshape(policies, several, -1)
        for index, (average, alone, own) in enumerate(zip(averages, readings, tracked, strict=True)):
            others = columns * (
                index + (several - 1) * np.arange(policies)
            )  # columns before the columns of each policy
            yield (
                average,
                interval,
                shared,
                (chosen[:, index] - others[:, None]).ravel(),
                {name: select_part(values, policies, several, index) for name, values in numbers.items()},
                {
                    **alone.details,
                    **(own.details if own else {}),
                    **{name: select_part(values, policies, several, index) for name, values in details.items()},
                },
            )


def log_limits(
    config: EvaluatorConfig, interval: AnyInterval, average: AnyAverage, weights: LargestState, form: Form | None
) -> Array | None:
    """Return the largest weights that the log allows, [2, policies], or None if the interval does not use them."""
    if not interval.limited_by_log or config.ranking is not None:
        return None
    return largest_weights.limits(weights, config.policies, average.effective_events, form == "slots")


def _slot_details(slates: SlateState, index: int, estimator: AnyEstimator, average: AnyAverage) -> dict[str, Array]:
    """Return the details about the slots of slates. Their lifts cover all events since the start."""
    details = {"slot_ratio_means": np.array(slot_ratio_means(slates, index))}
    if "slots" in estimator.needs:
        count, square, _ = slates.recent["slots"].weighed[index]
        details["sigma_squared"] = ratio(square, count)
    if index and estimator.sums_over_slots and average.last_events == math.inf:
        details["slot_lifts"] = np.array(slot_lifts(slates, index))
    return details


def term_range(
    config: EvaluatorConfig, grid: Grid, interval: AnyInterval, largest_weight: Array, limits: Array | None
) -> TermRange:
    """Return the range of the terms of all columns, without a width if a policy was never logged."""
    limit = interval.largest_weight(largest_weight)
    terms = TermRange.by_column(grid.columns, config.reward_range, limit, limits)
    return terms._replace(width=np.where(np.repeat(limit > 0, len(grid.columns)), terms.width, np.nan))


def numbers_of(
    config: EvaluatorConfig,
    interval: AnyInterval,
    reading: Reading,
    lift: Reading,
    tracked: TrackedBounds | None,
    largest_weight: Array,
    terms: TermRange,
    wider: Array,
    errors: Array,
) -> dict[str, Array]:
    """Return the numbers of all columns by field. Lifts are within plus and minus the width of the reward range.

    Args:
        config: what is evaluated
        interval: kind of interval
        reading: values of the columns
        lift: lifts of the columns
        tracked: bounds of a confidence sequence
        largest_weight: largest importance weights
        terms: range of the terms
        wider: [columns]. Amount added to both sides of an interval.
        errors: [2, columns]. Half-widths of values and lifts from a learned curve, independent of the other errors.
    """
    estimators, (low, high) = len(reading.value) - len(lift.value), config.reward_range
    scaled = ratio(terms.width, reading.mean_denominator)
    scaled = np.where(scaled < 0, np.nan, scaled)  # a mean weight below 0 limits no term
    heaviest = np.full_like(scaled, largest_weight[0])
    terms = terms.linearised(reading.mean_denominator)
    limit = interval.heaviest(reading, terms)
    if limit is not None and config.ranking is None:
        heaviest = np.fmax(heaviest, np.minimum(limit, _lacking_weight(reading)))
    differences = terms.over_production(estimators, np.resize(heaviest[:estimators], scaled.shape), scaled)
    own, paired = (None, None) if tracked is None else (tracked.value, tracked.lift[:, estimators:])
    lower, upper = _bounds_of_values(config, interval, reading, terms, own, wider, errors)
    below, above = interval.bounds(lift, differences, config.confidence, paired)
    below, above = _with_error(lift.value, below, above, errors[1, estimators:])
    below, above = extended_to(lift.value, below - wider[estimators:], above + wider[estimators:])
    below, above = _clipped(below, above, low - high, high - low)
    weighed = (reading.count > 0) & (config.ranking is None)  # clicks have other weights
    numbers = {
        "value": reading.value,
        "lower": lower,
        "upper": upper,
        "effective_sample_size": reading.effective_sample_size,
        "importance_weight_mean": np.where(
            weighed & ~(terms.ratio & ~terms.controlled), reading.importance_weight_mean, np.nan
        ),
        "importance_weight_max": np.where(weighed, reading.importance_weight_max, np.nan),
        "lift": _after_production(estimators, lift.value),
        "lift_lower": _after_production(estimators, below),
        "lift_upper": _after_production(estimators, above),
    }
    return numbers | _relative(numbers, reading, lift, estimators)


def _bounds_of_values(
    config: EvaluatorConfig,
    interval: AnyInterval,
    reading: Reading,
    terms: TermRange,
    tracked: Array | None,
    wider: Array,
    errors: Array,
) -> tuple[Array, Array]:
    """Return the bounds of values within the reward range, see `numbers_of`."""
    lower, upper = interval.bounds(reading, terms, config.confidence, tracked)
    lower, upper = _with_error(reading.value, lower, upper, errors[0])
    return _clipped(*extended_to(reading.value, lower - wider, upper + wider), *config.reward_range)


def _relative(numbers: Mapping[str, Array], reading: Reading, lift: Reading, estimators: int) -> dict[str, Array]:
    """Return lifts over the size of production's value, unknown unless the interval of that value excludes 0.

    The value is of the events that both policies have, with the weights of the lift. Its interval is the one of
    production's own value, as wide as its standard error says.

    The covariance of a lift and production follows from the variances of both values and of their difference.
    """
    own, paired = reading.spread["variance"], _after_production(estimators, lift.spread["variance"])
    every = np.resize(own[:estimators], own.shape)
    both = lift.spread.get("production_variance")
    production = every if both is None else _after_production(estimators, both)
    correlation = np.clip(np.nan_to_num(ratio(own - production - paired, 2 * np.sqrt(paired * production))), -1, 1)
    all_events, lower, upper = (
        np.resize(numbers[name][:estimators], own.shape) for name in ("value", "lower", "upper")
    )
    count = np.resize(reading.count[:estimators], own.shape)
    error = ratio(production * count, every * _after_production(estimators, lift.count))
    wider = np.sqrt(np.where(np.isnan(error), 1.0, error))
    value = _of_lifts(lift, estimators).production
    lower, upper = value + wider * (lower - all_events), value + wider * (upper - all_events)
    is_loss = value < 0
    base = np.abs(value), np.where(is_loss, -upper, lower), np.where(is_loss, -lower, upper)
    lifts = numbers["lift"], numbers["lift_lower"], numbers["lift_upper"]
    below, above = ratio_bounds(lifts, base, np.where(is_loss, -correlation, correlation))
    return {
        "lift_ratio": np.where(base[1] > 0, ratio(lifts[0], base[0]), np.nan),
        "lift_ratio_lower": below,
        "lift_ratio_upper": above,
    }


def _of_lifts(lift: Reading, estimators: int) -> Comparison:
    """Return what lifts say about production, for all columns."""
    assert lift.compared is not None
    return Comparison._make(_after_production(estimators, numbers) for numbers in lift.compared)


def _errors_of_curve(config: EvaluatorConfig, grid: Grid, curve: LearnedCurve | None, by_rank: Array) -> Array:
    """Return the half-widths of values and lifts from a learned curve, [2, columns]."""
    policies, columns = len(config.policies), grid.columns
    if curve is None:
        return np.zeros((2, policies * len(columns)))
    z = NormalDist().inv_cdf(0.5 + config.confidence / 2)
    curve_variances = [
        [variance[0] for variance in variances(curve, by_rank[None], column.ratio)] for column in columns
    ]
    return z * np.sqrt(np.array(curve_variances).transpose(1, 2, 0).reshape(2, -1))


def _with_error(value: Array, lower: Array, upper: Array, error: Array) -> tuple[Array, Array]:
    """Add an independent error to an interval."""
    below, above = np.maximum(value - lower, 0.0), np.maximum(upper - value, 0.0)
    wider = value - np.hypot(below, error), value + np.hypot(above, error)
    return np.where(error > 0, wider[0], lower), np.where(error > 0, wider[1], upper)


def examination_rows(curve: LearnedCurve | None, confidence: float) -> tuple[Examined, ...]:
    """Return the learned examination probabilities at each rank relative to rank 1, with their intervals."""
    if curve is None:
        return ()
    z, (error,), (logarithm,) = NormalDist().inv_cdf(0.5 + confidence / 2), curve.error_now, curve.logarithm
    bounds = np.exp([logarithm, logarithm - z * error, logarithm + z * error])
    return tuple(
        Examined(rank, *numbers)
        for rank, numbers in enumerate(bounds.T.tolist(), start=1)
        if np.isfinite(numbers).all()
    )


def _lacking_weight(reading: Reading) -> Array:
    """Return the weight that would bring the mean weight up to 1. Some event may yet have it."""
    return np.asarray(reading.count * np.maximum(1.0 - reading.importance_weight_mean, 0.0))


def _details(
    interval: AnyInterval, reading: Reading, lift: Reading, supported: Mask, terms: TermRange, late: Mask
) -> dict[str, Array]:
    heaviest, estimators = interval.heaviest(reading, terms), len(reading.value) - len(lift.value)
    unsupported = np.where(np.repeat(supported, estimators), reading.unsupported_probability, np.nan)
    production, missing = _of_lifts(lift, estimators)
    return {
        **reading.parts,
        **{f"lift_{name}": _after_production(estimators, part) for name, part in lift.parts.items()},
        "bias_bound": reading.bias,
        "design_effect": reading.design_effect,
        "largest_term_share": reading.largest_term_share,
        "reward_effective_sample_size": reading.reward_effective_sample_size,
        # of the events that both have, with the weights of the lift
        "lift_value": production + _after_production(estimators, lift.value),
        "lift_production_value": production,
        # a late policy lacks what came before it
        "missing_share": np.where(late | ~(reading.count > 0), np.nan, missing),
        "lift_deviation": _after_production(estimators, np.sqrt(lift.spread["variance"])),
        "lift_design_effect": _after_production(estimators, lift.design_effect),
        "unsupported_probability": unsupported,
        **({} if heaviest is None else {"max_weight": np.where(reading.count > 0, heaviest, np.nan)}),
    }


def _after_production(estimators: int, lifts: Array) -> Array:
    """Return the numbers of lifts, preceded by unknown ones for production."""
    return np.concatenate([np.full(estimators, np.nan), lifts])


def known_numbers(columns: Mapping[str, Array]) -> dict[str, list[float | None]]:
    """Return the finite numbers of each column, and None for the others."""
    lists = {}
    for name, column in columns.items():
        numbers = column.astype(object)
        numbers[~np.isfinite(column)] = None
        lists[name] = numbers.tolist()
    return lists


def _clipped(lower: Array, upper: Array, low: float, high: float) -> tuple[Array, Array]:
    """Clip an interval to the reward range. An interval that does not overlap the range is unchanged."""
    rounding = 1e-9 * (high - low)
    overlaps = (lower <= high + rounding) & (upper >= low - rounding)
    return np.where(overlaps, np.clip(lower, low, high), lower), np.where(overlaps, np.clip(upper, low, high), upper)


def with_signs(config: EvaluatorConfig, rows: Iterable[Estimate]) -> tuple[Estimate, ...]:
    """Flip the sign back for metrics for which lower is better."""
    ranking = config.ranking
    return tuple(map(_without_sign, rows) if ranking is not None and ranking.metric.less_is_better else rows)


def with_notes(config: EvaluatorConfig, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """Add notes to decisions: the origin of the propensities, and that a policy with a bound still learns.

    A bound promises what such a policy was, on average.
    """
    learning = {name for name, policy in config.learned_policies.items() if policy.keeps_learning}
    return tuple(
        structs.replace(
            decision,
            reason=decision.reason + STILL_LEARNS
            if states_bound(decision) and decision.policy in learning
            else decision.reason,
            propensity=config.origin_of_propensities,
        )
        for decision in decisions
    )


def states_bound(decision: Decision) -> bool:
    """Return whether a decision rests on a bound, or states one."""
    return decision.promotable or decision.lower is not None


def _without_sign(row: Estimate) -> Estimate:
    """Flip the sign of a value for which lower is better. Its lift stays positive if the policy beats production."""
    value, lower, upper = map(_negative, (row.value, row.upper, row.lower))
    flipped = {name: _negative(row.details[name]) for name in ("lift_value", "lift_production_value")}
    forecast = tuple(
        structs.replace(one, value=-one.value, lower=_negative(one.upper), upper=_negative(one.lower))
        for one in row.forecast
    )
    return structs.replace(
        row, value=value, lower=lower, upper=upper, details={**row.details, **flipped}, forecast=forecast
    )


def _negative(number: float | None) -> float | None:
    return None if number is None else -number


def policy_counts(
    config: EvaluatorConfig,
    accepted: int,
    counts: Mapping[str, Array],
    failures: Mapping[str, Mapping[str, tuple[int, str]]],
    detections: Integers | None,
) -> Iterator[PolicyCounts]:
    """Yield the numbers of events of each policy.

    Args:
        config: what is evaluated
        accepted: number of accepted events
        counts: [policies] each, by `COUNTS`.
        failures: failures of policies in code, by policy and reason
        detections: numbers of drift detections
    """
    present, missing = (
        count.astype(int) for count in (counts["present"], accepted - counts["since"] - counts["present"])
    )
    for index, policy in enumerate(config.policies):
        own = failures.get(policy, {}).items()
        yield PolicyCounts(
            policy,
            policy == config.policies[0],
            int(present[index]),
            int(missing[index]),
            tuple(Failure(reason, *counted) for reason, counted in own),
            None if detections is None else int(detections[index]),
        )


def support_known(evidence: Evidence, events: EventBatch) -> Mask:
    """Return whether an event shows what production supports of each policy, [n, P] or [n, 1]."""
    if evidence.clicks is not None:
        return ~np.isnan(evidence.clicks.unsupported)
    return np.asarray(has_support_information(events)[:, None] > 0)


def policy_totals(counts: Mapping[str, Array], evidence: Evidence, supported: Mask) -> dict[str, Array]:
    """Return the counts of policies after some more events, by `COUNTS`.

    Args:
        counts: the counts before
        evidence: the events
        supported: what `support_known` returned
    """
    clicks, shape = evidence.clicks, evidence.sample_weight.shape
    if evidence.counts_once:
        added = {"present": np.full(shape[1], shape[0]), "supported": np.count_nonzero(supported, axis=0)}
    else:
        present = evidence.sample_weight > 0
        if "scored" in evidence.forms:
            present = present | (evidence.forms["scored"].sample_weight > 0)
        rows = {"present": present, "supported": present & supported}
        added = {name: np.count_nonzero(row, axis=0) for name, row in rows.items()}
    if clicks is not None:
        shown = {"clicks": clicks.clicked, "clicks_below_cut": clicks.below}
        added |= {name: clicks.counts(items, evidence.sample_weight) for name, items in shown.items()}
    weighed = {LARGEST[None]: evidence} | {LARGEST[form]: seen for form, seen in evidence.forms.items()}
    largest = {name: np.maximum(counts[name], seen.largest_weight) for name, seen in weighed.items()}
    return {**counts, **{name: counts[name] + number for name, number in added.items()}, **largest}
