"""The intervals of a run: every kind on every average that it supports, at every look, and their misses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from adapting import Kernel, of_decays, of_windows
from numpy.typing import NDArray
from readings import BLOCK, MIXED, PLAIN, REWARDS, Averaging, Known, evidence_of, watched
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
"""With the right limit of the weights, and with the default, which takes it from the log."""
OF_WINDOW = "confidence_sequence, of the window"
"""The confidence sequence on a window, compared with the mean over the window instead of over its own events."""


class Cell(NamedTuple):
    """An interval and its quantity: a `value`, or the lift over a policy."""

    estimator: str
    average: str
    kind: str
    quantity: str


class Answer(NamedTuple):
    """The intervals of both candidates, and the true values that they claim to cover, [candidates, looks] each."""

    lower: Floats
    upper: Floats
    truth: Floats


class Target(NamedTuple):
    """True values of the columns at each look: of values, and of lifts over the first policy."""

    value: Floats
    lift: Floats

    @classmethod
    def of(cls, truth: Floats, kernel: Kernel, estimators: int) -> Target:
        """Means of the true values [policies, events] over a kernel."""
        value = np.repeat(truth, estimators, axis=0)
        return cls(kernel(value), kernel(np.repeat(truth[1:] - truth[0], estimators, axis=0)))


class Run(NamedTuple):
    """The data of a run: `policies`, production first; `truth` [policies, events]; `limits` [policies, looks]."""

    world: World
    evidence: Evidence
    policies: Sequence[str]
    truth: Floats
    looks: int
    limits: Floats

    @classmethod
    def of(cls, world: World, stream: Stream, production: str, looks: int) -> Run:
        """The run of both candidates against this policy."""
        policies = (production, *CANDIDATES)
        truth = np.stack([stream.truth[policy] for policy in policies])
        limits = limits_of(stream.batch, policies, looks)
        return cls(world, evidence_of(stream.batch, policies), policies, truth, looks, limits)

    @property
    def every(self) -> int:
        """Blocks between two looks."""
        return self.evidence.blocks // self.looks

    @property
    def places(self) -> slice:
        """The last event before each look."""
        return slice(self.every * BLOCK - 1, None, self.every * BLOCK)

    @property
    def heaviest(self) -> Floats:
        """The largest weight of each policy so far, [policies, looks]."""
        return np.asarray(np.maximum.accumulate(self.evidence.importance_weight, axis=0).T[:, self.places])


Ends = tuple[Floats, Floats]
Stated = tuple[Sequence[str], str, str, Target, Ends, Ends]
"""Estimators, average, kind, true values, and the bounds of values and of lifts."""


def _on_fixed(run: Run) -> Iterator[Stated]:
    """Intervals on averages with a fixed kernel."""
    for average in AVERAGES:
        known = _known(average, run)
        target = Target.of(run.truth, partial(_averaged, average, run.places), len(PLAIN))
        for kind, bound in kinds(run.world).items():
            yield _labels(PLAIN), average.kind, kind, target, *_ends(bound, known, PLAIN, run)


def _watched(run: Run) -> Iterator[Stated]:
    """The kind that is valid under continuous monitoring, if any."""
    labels, every = _labels(PLAIN), run.every
    errors = np.concatenate([[1 - CONFIDENCE], error_shares(1 - CONFIDENCE, [1, 2])])
    for average in WATCHED:
        kept = watched(average, run.evidence, run.policies[0] == LOGGING, errors, every)
        ends = _ends(ConfidenceSequence(), _known(average, run), PLAIN, run, kept)
        own = Target.of(run.truth, partial(_over_last, kept.details["interval_events"], every), len(PLAIN))
        yield labels, average.kind, "confidence_sequence", own, *ends
        if isinstance(average, Window):
            target = Target.of(run.truth, partial(_averaged, average, run.places), len(PLAIN))
            yield labels, average.kind, OF_WINDOW, target, *ends


def _on_adaptive(run: Run) -> Iterator[Stated]:
    for average in ADAPTIVE:
        averaging = Averaging(average, run.policies)
        after_blocks = list(averaging.read(run.evidence, every=1))
        at_looks = after_blocks[run.every - 1 :: run.every]
        by_window = isinstance(average, AdaptiveWindow)
        kernel = of_windows(at_looks, run.every) if by_window else of_decays(after_blocks, run.every)
        known, target = averaging.known(at_looks), Target.of(run.truth, kernel, len(PLAIN))
        for kind, bound in kinds(run.world).items():
            yield _labels(PLAIN), average.kind, kind, target, *_ends(bound, known, PLAIN, run)


def _on_mixture(run: Run) -> Iterator[Stated]:
    """All compared with the current value."""
    known = _known(Mixture(), run, MIXED)
    now = Target.of(run.truth, partial(_at, run.places), len(MIXED))
    for kind, bound in of_mixture(run.world).items():
        yield _labels(MIXED), "mixture", kind, now, *_ends(bound, known, MIXED, run)


def _known(average: AnyAverage, run: Run, estimators: tuple[AnyEstimator, ...] = PLAIN) -> Known:
    averaging = Averaging(average, run.policies, estimators)
    return averaging.known(list(averaging.read(run.evidence, run.every)))


PARTS: Mapping[str, Callable[[Run], Iterator[Stated]]] = {
    "fixed": _on_fixed,
    "watched": _watched,
    "mixture": _on_mixture,
    "adaptive": _on_adaptive,
}
"""The parts of a run, each computed and stored separately."""


def answers(
    world: World, stream: Stream, looks: int = LOOKS, parts: Iterable[str] = tuple(PARTS)
) -> Iterator[tuple[Cell, Answer]]:
    """All intervals of a run for these PARTS, with lifts over the logging policy and over a named one."""
    for production in (LOGGING, DEPLOYED):
        run = Run.of(world, stream, production, looks)
        for estimators, average, kind, target, value, lift in chain(*(PARTS[each](run) for each in parts)):
            for place, estimator in enumerate(estimators):
                columns = slice(place, None, len(estimators))
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
    """Intervals that any average supports."""
    return {
        "normal": Normal(),
        "empirical_bernstein": EmpiricalBernstein(),
        "empirical_likelihood": EmpiricalLikelihood(max_weight="none"),
        AUTO: EmpiricalLikelihood(),
        LIMITED: EmpiricalLikelihood(max_weight=world.largest_weight),
    }


def of_mixture(world: World) -> Mapping[str, AnyInterval]:
    """Intervals that a mixture supports."""
    return {"drift_aware": DriftAware()} | {
        kind: bound for kind, bound in kinds(world).items() if not isinstance(bound, EmpiricalBernstein)
    }


def limits_of(batch: EventBatch, policies: Sequence[str], looks: int) -> Floats:
    """The largest weights that the log shows to be possible at each look, [2, policies, looks]."""
    state, found, every = largest_weights.start(len(policies)), [], len(batch) // looks
    for first in range(0, len(batch), every):
        part = batch[first : first + every]
        state = largest_weights.fold(state, largest_weights.summarise(Evidence.from_batch(part, policies, BLOCK), part))
        found.append(largest_weights.limits(state, policies))
    return np.stack(found, axis=-1)


def _ends(
    bound: AnyInterval, known: Known, estimators: Sequence[Estimator], run: Run, kept: TrackedBounds | None = None
) -> tuple[Ends, Ends]:
    """The intervals of values and lifts, as in reports."""
    count, of_policy = len(estimators), run.looks * len(estimators)
    seen, limits = run.heaviest, run.limits if bound.limited_by_log else None
    columns = TermRange.by_column(estimators, REWARDS, bound.largest_weight(seen), limits)
    terms = TermRange._make(_look_by_look(each, count) for each in columns)
    denominator = known.value.mean_denominator
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = np.where(denominator != 0, terms.width / denominator, np.nan)
    production = np.repeat(seen[0], count)
    if (limit := bound.heaviest(known.value, terms)) is not None:
        production = np.maximum(production, np.minimum(limit, _lacking_weight(known.value))[:of_policy])
    differences = terms.over_production(of_policy, np.resize(production, scaled.shape), scaled)
    tracked = None if kept is None else [_look_by_look(end, count) for end in (*kept.value, *kept.lift)]
    of_value, of_lift = (None, None) if tracked is None else (np.stack(tracked[:4]), np.stack(tracked[4:]))
    value = bound.bounds(known.value, terms, CONFIDENCE, of_value)
    lift = bound.bounds(known.lift, differences, CONFIDENCE, None if of_lift is None else of_lift[:, of_policy:])
    value, lift = extended_to(known.value.value, *value), extended_to(known.lift.value, *lift)
    return _by_column(value, count, run.looks), _by_column(lift, count, run.looks)


def _look_by_look(columns: NDArray[Any], estimators: int) -> NDArray[Any]:
    """Numbers [columns, looks] in the order of a reading of all looks, [policies, looks, estimators]."""
    return columns.reshape(-1, estimators, columns.shape[-1]).swapaxes(1, 2).ravel()


def _by_column(ends: Ends, estimators: int, looks: int) -> Ends:
    """Numbers of a reading of all looks as [columns, looks]."""
    lower, upper = (end.reshape(-1, looks, estimators).swapaxes(1, 2).reshape(-1, looks) for end in ends)
    return lower, upper


def _lacking_weight(reading: Reading) -> Floats:
    """The weight that would bring the mean weight up to 1."""
    return np.asarray(reading.count * np.maximum(1.0 - reading.importance_weight_mean, 0.0))


def _at(looks: slice, values: Floats) -> Floats:
    return values[:, looks]


def _averaged(average: Cumulative | Window | Decay, looks: slice, values: Floats) -> Floats:
    """The means of values [columns, events] over the kernel of the average, at the looks."""
    if isinstance(average, Decay):
        recursion = ([1.0], [1.0, -average.decay])
        return np.asarray(lfilter(*recursion, values) / lfilter(*recursion, np.ones_like(values)))[:, looks]
    events = np.arange(1, values.shape[1] + 1)
    total = np.cumsum(values, axis=1)
    if isinstance(average, Window):
        total[:, average.tau :] -= total[:, : -average.tau].copy()
        events = np.minimum(events, average.tau)
    return np.asarray(total / events)[:, looks]


def _over_last(events: Floats, every: int, values: Floats) -> Floats:
    """The means of values [columns, events] over the last `events` [columns, looks] of each look."""
    counts = events[-len(values) :]
    total = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
    end = np.arange(1, counts.shape[1] + 1) * every * BLOCK
    first = (end - counts).astype(np.int64)
    return np.asarray((total[:, end] - np.take_along_axis(total, first, axis=1)) / counts)
