"""Split one of the estimates of each policy by the values of fields of the events.

A segment is a set of averaging weights: the weights of the whole estimate for its events, and 0 for all others. Terms
are computed once, for all events. If every event has a value (`other: true`), the lifts of the values of a segment,
each times its share, add up to the lift of the whole estimate.

Each value of a segment keeps the 34 moments of a policy, 272 bytes, and needs the sums of products of its own events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct, structs

from streameval.common.arrays import Array, decayed_path, ratio
from streameval.ope.core import AnyAverage, Reading, kernel, past
from streameval.ope.core.layout import Layout
from streameval.ope.core.moments import ALL_ROWS, nothing, pair_weight
from streameval.ope.core.state import Company, joined, select_policies
from streameval.ope.core.summary import BlockSeries
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.config import EvaluatorConfig, segmented_estimate
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evaluator.report_rows import LARGEST, known_numbers, log_limits, numbers_of, term_range
from streameval.ope.evaluator.room import Blocks, Owned, Present, Room
from streameval.ope.evidence.evidence import fading_of
from streameval.ope.evidence.largest_weights import LargestState
from streameval.ope.intervals import AnyInterval, EmpiricalLikelihood
from streameval.ope.report import Estimate, SegmentEstimate

SHOWN = ("value", "lower", "upper", "lift", "lift_lower", "lift_upper")


def labels(config: EvaluatorConfig) -> list[tuple[str, str]]:
    """Return the names of all segments, each with one of its values."""
    return [(name, label) for name, segment in config.segments.items() for label in segment.labels]


def interval_on(config: EvaluatorConfig, average: AnyAverage) -> AnyInterval:
    """Return the interval of segments on an average: the configured one, or the usual one if it follows the stream."""
    interval = config.interval(average)
    return EmpiricalLikelihood() if interval.anytime else interval


class SegmentState(Struct, frozen=True, eq=False):
    """Hold the sums over segments.

    Attributes:
        estimator: state of the estimator
        moments: [P, values + 1, rows]. Moments of each value of each segment, and last of all events.
    """

    estimator: Any
    moments: Array


def start(config: EvaluatorConfig) -> SegmentState | None:
    """Start before the first event, with None without segments."""
    if not config.segments:
        return None
    (estimator, _), shape = segmented_estimate(config), (len(config.policies), len(labels(config)) + 1, -1)
    return SegmentState(estimator.start(shape[0]), nothing(shape[0] * shape[1]).reshape(shape))


def resume(config: EvaluatorConfig, before: EvaluatorConfig, state: SegmentState | None) -> SegmentState | None:
    """Return the state of the config `before` under another one, from zero if segments differ, None without pairs."""
    if not config.pairs:
        return None
    if state is None or not config.segments or not before.pairs:
        return start(config)
    is_same = segmented_estimate(config) == segmented_estimate(before)
    if not (is_same and list(config.segments.items()) == list(before.segments.items())):
        return start(config)
    kept: SegmentState = select_policies(state, [before.policies.index(name) for name in config.policies])
    return kept


def join(both: EvaluatorConfig, own: Owned, late: Owned, company: Company) -> SegmentState | None:
    """Return the state of a config that joins two others."""
    if own.state is None or late.state is None or segmented_estimate(both) != segmented_estimate(own.config):
        merged: SegmentState | None = late.state if len(late.config.policies) == len(both.policies) else own.state
    else:
        merged = joined(own.state, late.state, company)
    return merged


class SegmentSums(Struct, frozen=True, eq=False):
    """Hold what blocks, or the unfinished one, add to segments (half 1).

    Attributes:
        events: number of events in each block
        rows: [blocks, P, (values + 1) * rows]. Sums of each value of each segment, and last of all events, see
            `Layout`.
        lesson: what each block teaches the estimator, see `Terms`
    """

    events: int
    rows: Array
    lesson: dict[str, Array]


@lru_cache(maxsize=16)
def _layout(estimator: AnyEstimator) -> Layout:
    """Return the products that the moments of segments are made of."""
    return Layout((estimator,), paired=True, mixed=False, apart=True, unit_production=False)


def summarise(config: EvaluatorConfig, state: SegmentState, whole: Blocks) -> SegmentSums:
    """Return the sums of whole blocks, or of the unfinished one (half 1)."""
    events, evidence = whole.events, whole.goal
    assert events.segments is not None
    (estimator, average), blocks = segmented_estimate(config), evidence.blocks
    size, factor = len(events) // blocks, average.factor
    visible = evidence.restricted_to(config.needs_of(estimator))
    terms, _ = estimator.terms(visible, state.estimator)
    layout = _layout(estimator)
    series = BlockSeries(layout, visible, [terms])
    weights = None if factor in (None, 1.0) else np.tile(factor ** np.arange(size - 1.0, -1.0, -1.0), blocks)
    moments = np.empty((blocks, series.policies, len(labels(config)) + 1, layout.size))
    moments[:, :, -1] = series.rows(weights)
    block_index, first = np.repeat(np.arange(blocks), size), 0
    for name, segment in config.segments.items():
        members = np.asarray(segment.members(events.segments.column(name)), dtype=bool)
        several = len(members) + 1
        groups = block_index * several + np.where(members.any(axis=0), members.argmax(axis=0), len(members))
        order = np.argsort(groups, kind="stable")
        edges = np.searchsorted(groups[order], np.arange(blocks * several + 1)).astype(np.int64)
        rows = series.taken(order).rows(None if weights is None else weights[order], edges)
        value_rows = rows.reshape(blocks, several, *rows.shape[1:])[:, :-1]
        moments[:, :, first : first + len(members)] = value_rows.swapaxes(1, 2)
        first += len(members)
    return SegmentSums(size, moments.reshape(*moments.shape[:2], -1), dict(terms.lesson))


def fold(config: EvaluatorConfig, state: SegmentState, sums: SegmentSums) -> SegmentState:
    """Return the state after these blocks (half 2)."""
    estimator, average = segmented_estimate(config)
    layout, moments = _layout(estimator), state.moments.copy()
    factor = np.full((len(sums.rows), 1, 1), (average.factor or 1.0) ** sums.events)
    table, power = layout.moment_table[0], layout.power[layout.moment_table[0]]
    take = np.arange(moments.shape[1])[:, None] * layout.size + table
    kernel.accumulate(moments, sums.rows, take, power, factor, np.ones_like(factor), kernel.NOTHING)
    fading, before = fading_of(config.block), state.estimator
    learned = {name: decayed_path(getattr(before, name), rows, fading)[-1] for name, rows in sums.lesson.items()}
    return SegmentState(structs.replace(before, **learned) if learned else before, moments)


def segment_rows(
    config: EvaluatorConfig, state: SegmentState, present: Present
) -> dict[str, tuple[SegmentEstimate, ...]]:
    """Return the estimates of all values of all segments, policy by policy.

    Each interval has its share of the error probability, so that all intervals of a policy hold together with the
    configured confidence. Dependent events widen them by the design effect of the whole estimate.
    """
    current = state if present.tail is None else fold(config, state, summarise(config, state, present.tail))
    by_policy = current.moments
    weight = pair_weight(by_policy)
    share = ratio(weight[:, :-1], weight[:, -1:])
    reading, lift = _readings(config, by_policy[:, :-1].reshape(-1, ALL_ROWS), present.estimates)
    numbers = _numbers(config, reading, lift, present.counts, present.weights)
    return {"segments": tuple(_rows(config, numbers | {"share": share.ravel(), "events": reading.count}))}


def _numbers(
    config: EvaluatorConfig, reading: Reading, lift: Reading, counts: Mapping[str, Array], weights: LargestState
) -> dict[str, Array]:
    """Return the numbers of all columns, by field."""
    estimator, average = segmented_estimate(config)
    interval = interval_on(config, average)
    several = len(labels(config))
    grid = Grid(
        estimators=(estimator,) * several,
        averages=(average,),
        bounds=(interval,),
        candidates=(True,) * len(config.policies),
        needs=config.needs_of(estimator),
        trackers={},
        block=config.block,
    )
    largest, limits = counts[LARGEST[grid.form]], log_limits(config, interval, average, weights, grid.form)
    terms = term_range(config, grid, interval, largest, limits)
    shared = replace(config, confidence=1.0 - (1.0 - config.confidence) / several)
    none = np.zeros((2, len(config.policies) * several))
    numbers = numbers_of(shared, interval, reading, lift, None, largest, terms, none[0], none)
    return {name: numbers[name] for name in SHOWN}


def _rows(config: EvaluatorConfig, numbers: Mapping[str, Array]) -> Iterator[SegmentEstimate]:
    estimator, average = segmented_estimate(config)
    kind, columns = interval_on(config, average).kind, known_numbers(numbers)
    cells = ((policy, *label) for policy in config.policies for label in labels(config))
    for column, (policy, segment, value) in enumerate(cells):
        yield SegmentEstimate(
            policy=policy,
            segment=segment,
            segment_value=value,
            estimator=estimator.label,
            average=average.label,
            kind=kind,
            propensity=config.origin_of_propensities,
            **{name: values[column] for name, values in columns.items()},
        )


def _readings(config: EvaluatorConfig, moments: Array, estimates: Iterable[Estimate]) -> tuple[Reading, Reading]:
    """Return the readings of values and of lifts, from moments [columns, rows] of all values of all segments."""
    estimator, average = segmented_estimate(config)
    pair, several = (estimator.label, average.label), len(labels(config))
    whole = {
        estimate.policy: estimate.details for estimate in estimates if (estimate.estimator, estimate.average) == pair
    }

    def whole_column(name: str, policies: Sequence[str]) -> Array:
        """Return a number of the whole estimate for each column, NaN if it is unknown."""
        values = [whole.get(policy, {}).get(name) for policy in policies]
        return np.repeat(np.array(values, dtype=float), several)

    spread = past.variance_parts(moments)
    reading = Reading(moments, spread, None, whole_column("bias_bound", config.policies))
    lift = reading.lift(several)
    reading.design_effect = whole_column("design_effect", config.policies)
    lift.design_effect = whole_column("lift_design_effect", config.policies[1:])
    return reading, lift


ROOM = Room("segments", start, resume, join, summarise=summarise, sums=SegmentSums, fold=fold, rows=segment_rows)
