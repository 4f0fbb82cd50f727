"""Files through an evaluator that only plans: what `streameval plan` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from streameval.cli.replay import Advance, Replay
from streameval.config.errors import closest
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.ope.averages import AnyAverage, Cumulative, Decay, Window
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.plan import Plan
from streameval.ope.intervals import Normal
from streameval.ope.power import Exploration, LogSpan, PowerReport, TargetLift, outlook
from streameval.ope.power.forecast import USUAL

BEST = ("stratified_dr", "stratified_ips", "snips", "ips")
"""Kinds of estimators, the best to plan with first."""


class Planner(Evaluator):
    """An evaluator that looks, besides, at what is explored, and at the times of events."""

    span: LogSpan
    exploration: Exploration

    @classmethod
    def of(cls, plan: Plan) -> Planner:
        """A fresh planner of a plan."""
        planner = super().of(plan)
        assert isinstance(planner, cls)
        planner.span, planner.exploration = LogSpan(), Exploration(plan.policies, plan.coded, plan.reward_range)
        return planner

    def update(self, batch: EventBatch) -> None:
        """Take the next events of the stream."""
        super().update(batch)
        self.exploration.update(batch)
        known = batch.timestamp[~np.isnan(batch.timestamp)]
        if len(known):
            first, last, events = self.span
            self.span = LogSpan(min(first, float(known.min())), max(last, float(known.max())), events + len(known))


class Planning:
    """Works out from files how many events a lift takes, for every candidate of a configuration.

    `estimator`: the label of the one to plan with; without it the best that knows anything of a candidate.
    """

    def __init__(
        self, config: Config, lifts: Sequence[str] = (), power: float = 0.8, estimator: str | None = None
    ) -> None:
        self.wishes, self.power = _wishes(lifts) or USUAL, _power(power)
        whole = config.plan()
        self.estimators = _estimators(whole, estimator)
        self.horizons = _horizons(whole)
        every = Cumulative()
        normal = {
            every.label: Normal()
        }  # which is withheld while noise is not known, and on which the arithmetic rests
        self.planner = Planner.of(replace(whole, averages=(every,), intervals=normal, drift=None, promotion=None))
        self.replay = Replay(config)
        self.replay.evaluator = self.planner

    def read(self, files: Sequence[str], advance: Advance, written: str | None = None) -> tuple[PowerReport, list[str]]:
        """The outlook after all files, and what a person should know about their events."""
        report = self.replay.read(files, advance, written)
        complaints = list(self.replay.complaints(report))
        self.replay.require_events(report)
        planner = self.planner
        found = outlook(
            report, self.estimators, self.wishes, self.power, planner.span, planner.exploration, self.horizons
        )
        return found, complaints


def _wishes(lifts: Sequence[str]) -> list[TargetLift]:
    try:
        return [TargetLift.read(lift) for lift in lifts]
    except ValueError as error:
        raise InputError(f"--lift: {error}", hint="write --lift 0.01, or --lift 5% of what production earns") from error


def _power(power: float) -> float:
    if not 0 < power < 1:
        raise InputError(f"--power must lie between 0 and 1, found {power:g}", hint="0.8 is usual")
    return power


def _estimators(plan: Plan, wanted: str | None) -> dict[str, str]:
    """Kinds by label, the best to plan with first; InputError when the wanted one is not configured."""
    every = [estimator for estimators, _ in plan.products() for estimator in estimators]
    every.sort(key=lambda estimator: BEST.index(estimator.kind) if estimator.kind in BEST else len(BEST))
    kinds: dict[str, str] = {estimator.label: estimator.kind for estimator in every}
    if wanted is None:
        return kinds
    if wanted not in kinds:
        meant = closest(wanted, kinds)
        hint = f"did you mean '{meant}'?" if meant else f"there is {', '.join(kinds)}"
        raise InputError(f"--estimator: '{wanted}' is not configured", hint=hint)
    return {wanted: kinds[wanted]}


def _horizons(plan: Plan) -> dict[str, float]:
    """How many events, each counting the same, would tell as much as each average ever does; of those that forget."""
    averages = [average for _, averages in plan.products() for average in averages]
    known = {average.label: _worth(average) for average in averages}
    return {label: events for label, events in known.items() if events is not None}


def _worth(average: AnyAverage) -> float | None:
    match average:
        case Window(span=None):
            return float(average.tau)
        case Decay() if average.timed is None:
            return (1 + average.decay) / (1 - average.decay)
    return None
