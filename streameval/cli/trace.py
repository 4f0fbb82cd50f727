"""Record estimates over the events of a log, and read true values, for figures."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from streameval.common.arrays import Array
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Estimate, Report, Transition

SECONDS_PER_DAY = 86_400
Quantity: TypeAlias = Literal["value", "lift"]
BOUNDS: dict[Quantity, tuple[str, str]] = {"value": ("lower", "upper"), "lift": ("lift_lower", "lift_upper")}
"""Attributes of a row with the bounds of a quantity."""


class TracePoint(NamedTuple):
    """Hold the estimates after a number of events.

    Args:
        events: the number of events so far
        newest: epoch seconds of the newest event, or None without times
        estimates: rows of the traced pairs
    """

    events: int
    newest: float | None
    estimates: Sequence[Estimate]


@dataclass
class Trace:
    """Record the estimates of some pairs of an estimator and an average at evenly spaced points.

    A full trace drops every second point.

    Args:
        pairs: labels of estimators and averages
        points: the smallest number of points of a long log. Twice as many are the most
        every: events between points, more for a log that is known to be long
        kept: the points
        transitions: changes of decisions so far
        taken: events so far
        last: the Report at the end
    """

    pairs: Collection[tuple[str, str]]
    points: int = 60
    every: int = 50
    kept: list[TracePoint] = field(default_factory=list)
    transitions: set[Transition] = field(default_factory=set)
    taken: int = 0
    last: Report | None = None

    def update(self, evaluator: Evaluator, batch: EventBatch, share: float | None = None) -> None:
        """Update the evaluator with a batch, and record estimates whenever they are due.

        Args:
            evaluator: what estimates
            batch: the next events
            share: share of the log read by now, if known
        """
        if not self.taken and share:
            # Estimates inside a block take longer than at its end.
            between, block = len(batch) / share / (1.5 * self.points), evaluator.config.block
            self.every = max(self.every, int(between // block) * block)
        while len(batch) >= (missing := self.every - self.taken % self.every):
            self._take(evaluator, batch[:missing])
            batch = batch[missing:]
            evaluator.fold_pending()
            self.kept.append(TracePoint(evaluator.accepted, evaluator.newest, evaluator.estimates(self.pairs)))
            self.transitions.update(evaluator.take_transitions())
            if len(self.kept) >= 2 * self.points:
                self.every *= 2
                self.kept = self.kept[1::2]
        self._take(evaluator, batch)

    def _take(self, evaluator: Evaluator, batch: EventBatch) -> None:
        evaluator.update(batch)
        self.taken += len(batch)

    def finish(self, report: Report) -> None:
        """Keep the Report at the end of the log."""
        self.last = report
        self.transitions.update(report.transitions)
        if self.taken % self.every:
            estimates = report.of_goal().estimates
            self.kept.append(TracePoint(report.events.accepted, report.events.last_timestamp, estimates))

    def curves(self, estimator: str, average: str, quantity: Quantity = "value") -> dict[str, Array]:
        """Return the estimates of each policy over time, production first.

        Returns:
            By policy, an array [3, points] of the quantity and its lower and upper bound, or NaN if unknown.
        """
        rows = [
            {row.policy: row for row in point.estimates if (row.estimator, row.average) == (estimator, average)}
            for point in self.kept
        ]
        policies = dict.fromkeys(policy for row in reversed(rows) for policy in row)
        return {
            policy: np.array(
                [[getattr(row.get(policy), name, None) for row in rows] for name in (quantity, *BOUNDS[quantity])],
                float,
            )
            for policy in policies
        }

    @property
    def counts(self) -> Array:
        """Return the number of events at each point."""
        return np.array([point.events for point in self.kept], dtype=np.float64)

    @property
    def is_timed(self) -> bool:
        """Tell whether the x axis shows event time rather than the number of events."""
        times = [point.newest for point in self.kept]
        return None not in times and times[0] != times[-1]

    @property
    def moments(self) -> Array:
        """Return the position of each point on the x axis, in days since 1970 or in events."""
        if not self.is_timed:
            return self.counts
        return np.array([point.newest for point in self.kept], dtype=np.float64) / SECONDS_PER_DAY

    def promotable(self, policy: str, rule: str) -> Iterator[tuple[float, float]]:
        """Yield the start and the length, on the x axis, of each time for which a rule would have promoted a policy."""
        transitions = {
            change.event: change.promotable
            for change in self.transitions
            if (change.policy, change.rule) == (policy, rule) and change.worse is None
        }
        end = self.kept[-1].events
        for (first, is_promotable), (last, _) in pairwise([*sorted(transitions.items()), (end, False)]):
            if is_promotable:
                start, stop = np.interp([first, last], self.counts, self.moments).tolist()
                yield start, stop - start


class _TrueValues(msgspec.Struct):
    events: int
    truth: dict[str, float]


def require_truth_of(events: int, truth: Mapping[str, Array], path: Path) -> None:
    """Check that true values belong to a log of so many events.

    Raises:
        InputError: They end before the log, or go on after it.
    """
    times = next(iter(truth.values()))[0]
    last, step = float(times[-1]), float(times[-1] - times[-2] if len(times) > 1 else times[0])
    if not last <= events < last + max(step, 1.0):
        hint = "name the file that `simulate LOG --truth FILE` wrote with this log"
        raise InputError(f"the truth {path} ends at event {last:,.0f}, and the log has {events:,}", hint=hint)


def read_truth(path: Path) -> dict[str, Array]:
    """Read true values, from lines such as `{"events": 100, "truth": {"logging": 0.2}}`.

    Returns:
        By policy, an array [2, lines] of numbers of events and true values.

    Raises:
        InputError: The file cannot be read, or is empty.
    """
    try:
        lines = msgspec.json.decode(b"[" + b",".join(path.read_bytes().splitlines()) + b"]", type=list[_TrueValues])
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"the truth {path} cannot be read: {error}", hint="write it with `simulate --truth`"
        ) from error
    if not lines:
        raise InputError(f"the truth {path} is empty", hint="write it with `simulate --truth`")
    events = [float(line.events) for line in lines]
    return {policy: np.array([events, [line.truth[policy] for line in lines]]) for policy in lines[0].truth}
