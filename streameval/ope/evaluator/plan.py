"""The plan: what an evaluator is asked for, checked, and as the grids of estimators and averages that do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from pydantic import TypeAdapter

from streameval.common.arrays import Array, State
from streameval.errors import StateError
from streameval.ope.averages import (
    AdaptiveDecay,
    AdaptiveWindow,
    AnyAverage,
    Cumulative,
    Decay,
    Mixture,
    Window,
)
from streameval.ope.estimators import IPS, SNIPS, AnyEstimator, StratifiedDR, StratifiedIPS
from streameval.ope.evaluator.drift_detection import DriftDetector
from streameval.ope.evaluator.grid import Grid
from streameval.ope.evidence.evidence import LARGEST_WEIGHT
from streameval.ope.evidence.requirements import Requirement, Requirements
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences import error_shares
from streameval.ope.policies import LOGGING, AnyPolicy, Logged, PythonPolicy, named_policies
from streameval.ope.promotion import Promotion
from streameval.ope.reward_models import AnyRewardModel, Ridge

PUBLISHED_ESTIMATORS: tuple[AnyEstimator, ...] = (IPS(), SNIPS())
BEST_ESTIMATORS: tuple[AnyEstimator, ...] = (StratifiedIPS(), StratifiedDR())
PUBLISHED_AVERAGES: tuple[AnyAverage, ...] = (Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay())
BEST_AVERAGE = Mixture()

Candidates: TypeAlias = Sequence[str] | Mapping[str, AnyPolicy | str]
"""Names under which events carry probabilities, or by name what else a policy is."""


Products: TypeAlias = Sequence[tuple[tuple[AnyEstimator, ...], tuple[AnyAverage, ...]]]
"""What is estimated on what: each of some estimators on each of some averages."""


@dataclass(frozen=True)
class Plan:
    """What is evaluated. `estimators` and `averages` are None where the default is asked for.

    `implied`: the estimators were not configured, so that one of them without evidence has no rows in the Report.

    `left`: in their place, what others have left of them when they are not each on each any more.

    `policies`: production first, then the candidates. `coded`: those of the candidates that are code. `intervals`: the
    bound for each label of an average. `promotion`: None when nothing is to be decided. `ranks`: by name, the how
    many-th candidate each is that was ever added.
    """

    policies: tuple[str, ...]
    coded: Mapping[str, AnyPolicy]
    estimators: tuple[AnyEstimator, ...] | None
    averages: tuple[AnyAverage, ...] | None
    intervals: Mapping[str, AnyInterval]
    reward_range: tuple[float, float]
    confidence: float
    block: int
    reward_model: AnyRewardModel
    drift: DriftDetector | None
    promotion: Promotion | None
    ranks: Mapping[str, int]
    left: Products | None = None
    implied: bool = False

    @classmethod
    def of(
        cls,
        candidates: Candidates,
        estimators: Sequence[AnyEstimator] | None,
        averages: Sequence[AnyAverage] | None,
        reward_range: tuple[float, float],
        production: str,
        intervals: Mapping[str, AnyInterval | str] | None,
        confidence: float,
        block: int,
        reward_model: AnyRewardModel | None,
        drift: DriftDetector | Mapping[str, Any] | str | None,
        promotion: Promotion | Mapping[str, Any] | Sequence[str] | str | None,
        ranks: Mapping[str, int] | None = None,
        left: Products | None = None,
        implied: bool | None = None,
    ) -> Plan:
        """The plan for these wishes; ValueError says which of them cannot be had."""
        plan = cls(
            policies=_policies(production, candidates),
            coded={name: each for name, each in named_policies(candidates).items() if not isinstance(each, Logged)},
            estimators=None if estimators is None else tuple(estimators),
            averages=None if averages is None else tuple(averages),
            intervals=_intervals(intervals or {}),
            reward_range=_ordered(reward_range),
            confidence=_inside("confidence", confidence, 0, 1),
            block=_whole("block", block),
            reward_model=reward_model or Ridge(),
            drift=DriftDetector.of(drift),
            promotion=Promotion.of(promotion),
            ranks=ranks or {name: place for place, name in enumerate(candidates, start=1)},
            left=left,
            implied=estimators is None if implied is None else implied,
        )
        plan._check()
        return plan

    def _check(self) -> None:
        for estimators, averages in self.products():
            _distinct("estimator", [estimator.label for estimator in estimators])
            _distinct("average", [average.label for average in averages])
        known = {average.label: average for _, averages in self.products() for average in averages}
        unknown = sorted(set(self.intervals) - set(known))
        if unknown:
            raise ValueError(
                f"intervals name averages that are not there: {', '.join(unknown)}; there are {', '.join(known)}"
            )
        for label, bound in self.intervals.items():
            bound.check(known[label], self.block)
        for average in known.values():
            average.check(self.block)
        if self.promotion is not None:
            self.promotion.check(self.block)

    def products(self) -> Products:
        """The estimators, and the averages of each."""
        if self.left is not None:
            return self.left
        if self.estimators is not None or self.averages is not None:
            estimators = (*PUBLISHED_ESTIMATORS, *BEST_ESTIMATORS) if self.estimators is None else self.estimators
            averages = (*PUBLISHED_AVERAGES, BEST_AVERAGE) if self.averages is None else self.averages
            return [(estimators, averages)]
        return [(PUBLISHED_ESTIMATORS, PUBLISHED_AVERAGES), (BEST_ESTIMATORS, (BEST_AVERAGE,))]

    def with_products(self, products: Products) -> Plan:
        """The plan with these products of its estimators and averages only."""
        labels = {average.label for _, averages in products for average in averages}
        intervals = {label: bound for label, bound in self.intervals.items() if label in labels}
        if len(products) == 1:
            (estimators, averages), left = products[0], None
        else:
            estimators, averages, left = None, None, tuple(products)
        return replace(self, estimators=estimators, averages=averages, left=left, intervals=intervals)

    def grids(self) -> tuple[Grid, ...]:
        """The grids to fold events into."""
        grids = []
        for estimators, averages in self.products():
            for needs in sorted({self.needs_of(estimator) for estimator in estimators}, key=sorted):
                some = tuple(estimator for estimator in estimators if self.needs_of(estimator) == needs)
                grids.append(self._grid(some, averages, needs))
        return tuple(grids)

    def _grid(
        self, estimators: tuple[AnyEstimator, ...], averages: tuple[AnyAverage, ...], needs: Requirements
    ) -> Grid:
        bounds = tuple(map(self.bound, averages))
        watches = tuple(
            bound.tracker(average, estimators, self.reward_range, self.block, self.policies[0] == LOGGING)
            for average, bound in zip(averages, bounds, strict=True)
        )
        candidates = tuple(policy != LOGGING for policy in self.policies)
        return Grid(estimators, averages, bounds, candidates, needs, watches, optional=self.implied and bool(needs))

    @property
    def errors(self) -> Array:
        """The chance that an interval which may be watched ever misses, of production and of each candidate.

        Candidates share it with all that were ever added, or with as many as promotion is told of.
        """
        error, ranks = 1.0 - self.confidence, [self.ranks[name] for name in self.policies[1:]]
        family = None if self.promotion is None else self.promotion.family_size
        return np.concatenate([[error], error_shares(error, ranks, family)])

    def needs_of(self, estimator: AnyEstimator) -> frozenset[Requirement]:
        """What events must tell for an estimator, those of the reward model included if it uses that."""
        return frozenset(
            estimator.needs | (self.reward_model.needs if Requirement.PREDICTION in estimator.needs else set())
        )

    def bound(self, average: AnyAverage) -> AnyInterval:
        """The kind of interval on an average: the one that was asked for, or what the coverage study recommends."""
        return self.intervals.get(average.label) or _BOUND.validate_python({"kind": average.default_interval})

    def settings(self) -> State:
        """The plan as a plain value."""
        return {
            "candidates": self._candidates(),
            "production": self.policies[0],
            "estimators": None if self.estimators is None else _ESTIMATORS.dump_python(self.estimators),
            "averages": None if self.averages is None else _AVERAGES.dump_python(self.averages),
            "intervals": {label: _BOUND.dump_python(bound) for label, bound in self.intervals.items()},
            "reward_range": list(self.reward_range),
            "confidence": self.confidence,
            "block": self.block,
            "reward_model": _REWARD_MODEL.dump_python(self.reward_model),
            "drift": None if self.drift is None else self.drift.settings(),
            "promotion": None if self.promotion is None else self.promotion.settings(),
            "ranks": {name: self.ranks[name] for name in self.policies[1:]},
            "left": None if self.left is None else _LEFT.dump_python(self.left),
            "implied": self.implied,
        }

    def _candidates(self) -> list[str] | State:
        names = self.policies[1:]
        if not self.coded:
            return list(names)
        return {name: _POLICY.dump_python(self.coded.get(name, Logged()), mode="json") for name in names}

    @classmethod
    def from_settings(cls, settings: State, trusted: Candidates = ()) -> Plan:
        """The plan that gave these settings; StateError when it names code that `trusted` does not name too."""
        given = {"promotion": Promotion(), **settings}
        _refuse_strange_code(named_policies(given["candidates"]), named_policies(trusted))
        for key, adapter in _ADAPTERS.items():
            given[key] = None if given.get(key) is None else adapter.validate_python(given[key])
        return cls.of(**{**given, "reward_range": tuple(given["reward_range"])})


_ESTIMATORS: TypeAdapter[Any] = TypeAdapter(tuple[AnyEstimator, ...])
_AVERAGES: TypeAdapter[Any] = TypeAdapter(tuple[AnyAverage, ...])
_BOUND: TypeAdapter[AnyInterval] = TypeAdapter(AnyInterval)
_POLICY: TypeAdapter[AnyPolicy] = TypeAdapter(AnyPolicy)
_REWARD_MODEL: TypeAdapter[Any] = TypeAdapter(AnyRewardModel)
_LEFT: TypeAdapter[Any] = TypeAdapter(tuple[tuple[tuple[AnyEstimator, ...], tuple[AnyAverage, ...]], ...])
_ADAPTERS = {"estimators": _ESTIMATORS, "averages": _AVERAGES, "reward_model": _REWARD_MODEL, "left": _LEFT}


def _refuse_strange_code(named: Mapping[str, AnyPolicy], trusted: Mapping[str, AnyPolicy]) -> None:
    """A state may come from anywhere, and what it calls for is run: that takes a caller who calls for the same."""
    for name, policy in named.items():
        if isinstance(policy, PythonPolicy) and trusted.get(name) != policy:
            raise StateError(
                f"the state holds the policy {name!r}, which is code: it is run only for who names it",
                hint="give from_state the candidates that the configuration names",
            )


def _policies(production: str, candidates: Candidates) -> tuple[str, ...]:
    if isinstance(candidates, str):
        raise ValueError(f"candidates must be a list of names, found the string {candidates!r}")
    policies = (production, *candidates)
    repeated = sorted({policy for policy in policies if policies.count(policy) > 1})
    if repeated or LOGGING in candidates:
        raise ValueError(f"policies must differ and none may be called {LOGGING!r}: {', '.join(repeated or [LOGGING])}")
    return policies


def _intervals(intervals: Mapping[str, Any]) -> dict[str, AnyInterval]:
    spelled = {label: {"kind": bound} if isinstance(bound, str) else bound for label, bound in intervals.items()}
    return {label: _BOUND.validate_python(bound) for label, bound in spelled.items()}


def _ordered(reward_range: tuple[float, float]) -> tuple[float, float]:
    low, high = map(float, reward_range)
    if not -LARGEST_WEIGHT <= low < high <= LARGEST_WEIGHT:
        raise ValueError(f"reward_range must be two numbers, the smaller first, within 1e50; found {reward_range}")
    return low, high


def _inside(name: str, value: float, low: float, high: float) -> float:
    if not low < value < high:
        raise ValueError(f"{name} must lie between {low} and {high}, found {value}")
    return value


def _whole(name: str, value: int) -> int:
    if value != int(value) or value < 1:
        raise ValueError(f"{name} must be a whole number of events, 1 or more; found {value}")
    return int(value)


def _distinct(what: str, labels: Sequence[str]) -> None:
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated or not labels:
        problem = f"{', '.join(repeated)} is there twice; give one a name" if repeated else "there is none"
        raise ValueError(f"{what}s: {problem}")
