"""Compute the intervals of a run: every kind, on every average that it supports, at every look."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from adapting import Kernel, decay_kernel, window_kernel
from numpy.typing import NDArray
from readings import BLOCK, MIXED, PLAIN, REWARDS, Averaging, Readings, evidence_of, watched
from scipy.signal import lfilter
from worlds import CANDIDATES, DEPLOYED, LOGGING, Floats, Stream, World

from streameval.events import EventBatch
from streameval.ope.core import AdaptiveDecay, AdaptiveWindow, AnyAverage, Cumulative, Decay, Mixture, Reading, Window
from streameval.ope.estimators import AnyEstimator, Estimator, TermRange
from streameval.ope.evidence import Evidence, largest_weights
from streameval.ope.intervals import (
    AnyInterval,
    ConfidenceSequence,
    DriftAware,
    EmpiricalBernstein,
    EmpiricalLikelihood,
    Normal,
    extended_to,
)
from streameval.ope.intervals.sequences import TrackedBounds, error_shares

CONFIDENCE = 0.95
EVENTS, LOOKS = 12_000, 60
TAU = 2_000
AVERAGES: tuple[Cumulative | Window | Decay, ...] = (Cumulative(), Window(tau=TAU), Decay(alpha=1 - 1 / TAU))
WATCHED: tuple[Cumulative | Window, ...] = (Cumulative(), Window(tau=TAU))
ADAPTIVE = (AdaptiveWindow(drift_span=TAU), AdaptiveDecay(drift_span=TAU))
LIMITED, AUTO = "empirical_likelihood, max_weight", "empirical_likelihood, auto"
"""Kinds with the right limit of the weights, and with the default, which takes the limit from the log."""
OF_WINDOW = "confidence_sequence, of the window"
"""The confidence sequence on a window, compared with the mean over the window instead of over its own events."""


class Cell(NamedTuple):
    """Identify an interval and its quantity: a `value`, or the lift over a policy."""

    estimator: str
    average: str
    kind: str
    quantity: str


class Answer(NamedTuple):
    """Hold the intervals of both candidates and the true values that they claim to cover, [candidates, looks] each."""

    lower: Floats
    upper: Floats
    truth: Floats


class Target(NamedTuple):
    """Hold true values of the columns at each look: of values, and of lifts over the first policy."""

    value: Floats
    lift: Floats

    @classmethod
    def from_kernel(cls, truth: Floats, kernel: Kernel, estimators: int) -> Target:
        """Average the true values [policies, events] over a kernel."""
        value = np.repeat(truth, estimators, axis=0)
        return cls(kernel(value), kernel(np.repeat(truth[1:] - truth[0], estimators, axis=0)))


class Run(NamedTuple):
    """Hold the data of a run.

    Args:
        world: Its world.
        evidence: Evidence about the policies.
        policies: Names of the policies, production first.
        truth: True values, [policies, events].
        looks: Number of looks.
        limits: Largest weights that the log shows to be possible, [2, policies, looks].
    """

    world: World
    evidence: Evidence
    policies: Sequence[str]
    truth: Floats
    looks: int
    limits: Floats

    @classmethod
    def from_stream(cls, world: World, stream: Stream, production: str, looks: int) -> Run:
        """Build the run that compares both candidates with the production policy."""
        policies = (production, *CANDIDATES)
        truth = np.stack([stream.truth[policy] for policy in policies])
        limits = logged_limits(stream.batch, policies, looks)
        return cls(world, evidence_of(stream.batch, policies), policies, truth, looks, limits)

    @property
    def every(self) -> int:
        """Return the number of blocks between two looks."""
        return self.evidence.blocks // self.looks

    @property
    def look_indices(self) -> slice:
        """Return the indices of the last events before the looks."""
        return slice(self.every * BLOCK - 1, None, self.every * BLOCK)

    @property
    def heaviest(self) -> Floats:
        """Return the largest weight of each policy so far, [policies, looks]."""
        return np.asarray(np.maximum.accumulate(self.evidence.importance_weight, axis=0).T[:, self.look_indices])


Ends = tuple[Floats, Floats]
Stated = tuple[Sequence[str], str, str, Target, Ends, Ends]
"""Estimators, average, kind, true values, and the bounds of values and of lifts."""


def _fixed_intervals(run: Run) -> Iterator[Stated]:
    """Yield intervals on averages with a fixed kernel."""
    for average in AVERAGES:
        readings = _read(average, run)
        target = Target.from_kernel(run.truth, partial(_averaged, average, run.look_indices), len(PLAIN))
        for kind, bound in kinds(run.world).items():
            yield _labels(PLAIN), average.kind, kind, target, *_ends(bound, readings, PLAIN, run)


def _tracked_intervals(run: Run) -> Iterator[Stated]:
    """Yield the confidence sequences, which are valid under continuous monitoring."""
    labels, every = _labels(PLAIN), run.every
    errors = np.concatenate([[1 - CONFIDENCE], error_shares(1 - CONFIDENCE, [1, 2])])
    for average in WATCHED:
        kept = watched(average, run.evidence, run.policies[0] == LOGGING, errors, every)
        ends = _ends(ConfidenceSequence(), _read(average, run), PLAIN, run, kept)
        own = Target.from_kernel(run.truth, partial(_recent_mean, kept.details["interval_events"], every), len(PLAIN))
        yield labels, average.kind, "confidence_sequence", own, *ends
        if isinstance(average, Window):
            target = Target.from_kernel(run.truth, partial(_averaged, average, run.look_indices), len(PLAIN))
            yield labels, average.kind, OF_WINDOW, target, *ends


def _adaptive_intervals(run: Run) -> Iterator[Stated]:
    for average in ADAPTIVE:
        averaging = Averaging(average, run.policies)
        block_readings = list(averaging.read(run.evidence, every=1))
        look_readings = block_readings[run.every - 1 :: run.every]
        has_window = isinstance(average, AdaptiveWindow)
        kernel = window_kernel(look_readings, run.every) if has_window else decay_kernel(block_readings, run.every)
        readings, target = averaging.join(look_readings), Target.from_kernel(run.truth, kernel, len(PLAIN))
        for kind, bound in kinds(run.world).items():
            yield _labels(PLAIN), average.kind, kind, target, *_ends(bound, readings, PLAIN, run)


def _mixture_intervals(run: Run) -> Iterator[Stated]:
    """Yield intervals on the mixture, all compared with the current value."""
    readings = _read(Mixture(), run, MIXED)
    now = Target.from_kernel(run.truth, partial(_current, run.look_indices), len(MIXED))
    for kind, bound in mixture_kinds(run.world).items():
        yield _labels(MIXED), "mixture", kind, now, *_ends(bound, readings, MIXED, run)


def _read(average: AnyAverage, run: Run, estimators: tuple[AnyEstimator, ...] = PLAIN) -> Readings:
    averaging = Averaging(average, run.policies, estimators)
    return averaging.join(list(averaging.read(run.evidence, run.every)))


PARTS: Mapping[str, Callable[[Run], Iterator[Stated]]] = {
    "fixed": _fixed_intervals,
    "watched": _tracked_intervals,
    "mixture": _mixture_intervals,
    "adaptive": _adaptive_intervals,
}
"""The parts of a run, each computed and stored separately."""


def answers(
    world: World, stream: Stream, looks: int = LOOKS, parts: Iterable[str] = tuple(PARTS)
) -> Iterator[tuple[Cell, Answer]]:
    """Yield all intervals of a run for some of PARTS, with lifts over the logging policy and over the deployed one."""
    for production in (LOGGING, DEPLOYED):
        run = Run.from_stream(world, stream, production, looks)
        for estimators, average, kind, target, value, lift in chain(*(PARTS[part](run) for part in parts)):
            for index, estimator in enumerate(estimators):
                columns = slice(index, None, len(estimators))
                if production == LOGGING:
                    cell = Cell(estimator, average, kind, "value")
                    lower, upper = (np.clip(end[columns][1:], *REWARDS) for end in value)
                    yield cell, Answer(lower, upper, target.value[columns][1:])
                cell = Cell(estimator, average, kind, production)
                lower, upper = (np.clip(end[columns], -1, 1) for end in lift)
                yield cell, Answer(lower, upper, target.lift[columns])


def _labels(estimators: Sequence[Estimator]) -> list[str]:
    return [estimator.label for estimator in estimators]


def kinds(world: World) -> Mapping[str, AnyInterval]:
    """Return the intervals that any average supports."""
    return {
        "normal": Normal(),
        "empirical_bernstein": EmpiricalBernstein(),
        "empirical_likelihood": EmpiricalLikelihood(max_weight="none"),
        AUTO: EmpiricalLikelihood(),
        LIMITED: EmpiricalLikelihood(max_weight=world.largest_weight),
    }


def mixture_kinds(world: World) -> Mapping[str, AnyInterval]:
    """Return the intervals that a mixture supports."""
    return {"drift_aware": DriftAware()} | {
        kind: bound for kind, bound in kinds(world).items() if not isinstance(bound, EmpiricalBernstein)
    }


def logged_limits(batch: EventBatch, policies: Sequence[str], looks: int) -> Floats:
    """Return the largest weights that the log shows to be possible at each look, [2, policies, looks]."""
    state, limits, every = largest_weights.start(len(policies)), [], len(batch) // looks
    for first in range(0, len(batch), every):
        events = batch[first : first + every]
        state = largest_weights.fold(
            state, largest_weights.summarise(Evidence.from_batch(events, policies, BLOCK), events)
        )
        limits.append(largest_weights.limits(state, policies))
    return np.stack(limits, axis=-1)


def _ends(
    bound: AnyInterval, readings: Readings, estimators: Sequence[Estimator], run: Run, kept: TrackedBounds | None = None
) -> tuple[Ends, Ends]:
    """Return the intervals of values and lifts, as in Reports."""
    count, policy_columns = len(estimators), run.looks * len(estimators)
    heaviest, limits = run.heaviest, run.limits if bound.limited_by_log else None
    columns = TermRange.by_column(estimators, REWARDS, bound.largest_weight(heaviest), limits)
    terms = TermRange._make(_join_looks(column, count) for column in columns)
    denominator = readings.value.mean_denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(denominator != 0, terms.width / denominator, np.nan)
    production = np.repeat(heaviest[0], count)
    if (limit := bound.heaviest(readings.value, terms)) is not None:
        production = np.maximum(production, np.minimum(limit, _lacking_weight(readings.value))[:policy_columns])
    differences = terms.over_production(policy_columns, np.resize(production, scaled.shape), scaled)
    tracked = None if kept is None else [_join_looks(end, count) for end in (*kept.value, *kept.lift)]
    tracked_value, tracked_lift = (None, None) if tracked is None else (np.stack(tracked[:4]), np.stack(tracked[4:]))
    value = bound.bounds(readings.value, terms, CONFIDENCE, tracked_value)
    lift = bound.bounds(
        readings.lift, differences, CONFIDENCE, None if tracked_lift is None else tracked_lift[:, policy_columns:]
    )
    value, lift = extended_to(readings.value.value, *value), extended_to(readings.lift.value, *lift)
    return _split_columns(value, count, run.looks), _split_columns(lift, count, run.looks)


def _join_looks(columns: NDArray[Any], estimators: int) -> NDArray[Any]:
    """Reorder numbers [columns, looks] as in a reading of all looks, [policies, looks, estimators]."""
    return columns.reshape(-1, estimators, columns.shape[-1]).swapaxes(1, 2).ravel()


def _split_columns(ends: Ends, estimators: int, looks: int) -> Ends:
    """Reorder the numbers of a reading of all looks to [columns, looks]."""
    lower, upper = (end.reshape(-1, looks, estimators).swapaxes(1, 2).reshape(-1, looks) for end in ends)
    return lower, upper


def _lacking_weight(reading: Reading) -> Floats:
    """Return the weight that would bring the mean weight up to 1."""
    return np.asarray(reading.count * np.maximum(1.0 - reading.importance_weight_mean, 0.0))


def _current(looks: slice, values: Floats) -> Floats:
    return values[:, looks]


def _averaged(average: Cumulative | Window | Decay, looks: slice, values: Floats) -> Floats:
    """Average values [columns, events] over the kernel of the average, at the looks."""
    if isinstance(average, Decay):
        recursion = ([1.0], [1.0, -average.decay])
        return np.asarray(lfilter(*recursion, values) / lfilter(*recursion, np.ones_like(values)))[:, looks]
    events = np.arange(1, values.shape[1] + 1)
    total = np.cumsum(values, axis=1)
    if isinstance(average, Window):
        total[:, average.tau :] -= total[:, : -average.tau].copy()
        events = np.minimum(events, average.tau)
    return np.asarray(total / events)[:, looks]


def _recent_mean(events: Floats, every: int, values: Floats) -> Floats:
    """Average values [columns, events] over the last `events` [columns, looks] before each look."""
    counts = events[-len(values) :]
    total = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    end = np.arange(1, counts.shape[1] + 1) * every * BLOCK
    first = (end - counts).astype(np.int64)
    return np.asarray((total[:, end] - np.take_along_axis(total, first, axis=1)) / counts)
