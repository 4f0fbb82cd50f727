"""Reports taken along a stream, evenly, without knowing beforehand how long it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streameval.events import EventBatch
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.report import Estimate, Report

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Values and intervals of one policy at successive moments; NaN where nothing is known."""

    policy: str
    values: Floats
    lower: Floats
    upper: Floats


@dataclass
class Trace:
    """Between `points` and `2 * points` Reports of a long stream, all the same number of events apart.

    The first ones are `every` events apart; whenever the trace is full, every second one is dropped.
    """

    points: int = 200
    every: int = 50
    reports: list[Report] = field(default_factory=list)
    taken: int = 0

    def update(self, evaluator: Evaluator, batch: EventBatch) -> None:
        """Give a batch to the evaluator, in parts where Reports fall due within it."""
        while len(batch) >= (missing := self.every - self.taken % self.every):
            self._give(evaluator, batch[:missing])
            self._keep(evaluator.report())
            batch = batch[missing:]
        self._give(evaluator, batch)

    def finish(self, evaluator: Evaluator) -> Report:
        """The Report at the end of the stream, which is kept whatever its distance."""
        report = evaluator.report()
        if self.taken % self.every:
            self.reports.append(report)
        return report

    def _give(self, evaluator: Evaluator, batch: EventBatch) -> None:
        evaluator.update(batch)
        self.taken += len(batch)

    def _keep(self, report: Report) -> None:
        self.reports.append(report)
        if len(self.reports) >= 2 * self.points:
            self.every *= 2
            self.reports = self.reports[1::2]

    def curves(self, estimator: str, average: str) -> list[Curve]:
        """One curve for each policy, production first."""
        rows = [_rows(report, estimator, average) for report in self.reports]
        return [
            Curve(policy, *(_column(rows, policy, name) for name in ("value", "lower", "upper")))
            for policy in (rows[-1] if rows else ())
        ]


def _rows(report: Report, estimator: str, average: str) -> dict[str, Estimate]:
    wanted = (estimator, average)
    return {
        estimate.policy: estimate for estimate in report.estimates if (estimate.estimator, estimate.average) == wanted
    }


def _column(rows: Sequence[Mapping[str, Estimate]], policy: str, name: str) -> Floats:
    return np.array([getattr(row[policy], name) for row in rows], dtype=np.float64)
