"""The plan: the checked configuration of an evaluator, and the grids of estimators and averages that it takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from streameval.ope.evidence.actions import Requirement
from streameval.ope.evidence.evidence import LARGEST_WEIGHT
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences.tracker import error_shares
from streameval.ope.policies import LOGGING, AnyPolicy, Logged, PythonPolicy, named_policies
from streameval.ope.promotion import Promotion
from streameval.ope.reward_models import AnyRewardModel, Ridge

PUBLISHED_ESTIMATORS: tuple[AnyEstimator, ...] = (IPS(), SNIPS())
BEST_ESTIMATORS: tuple[AnyEstimator, ...] = (StratifiedIPS(), StratifiedDR())
PUBLISHED_AVERAGES: tuple[AnyAverage, ...] = (Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay())
BEST_AVERAGE = Mixture()

Candidates: TypeAlias = Sequence[str] | Mapping[str, AnyPolicy | str]
"""Names under which events carry probabilities; or policies by name."""

Products: TypeAlias = Sequence[tuple[tuple[AnyEstimator, ...], tuple[AnyAverage, ...]]]
"""Groups of estimators and averages: every estimator of a group is evaluated on every average of the group."""

Pair: TypeAlias = tuple[str, str]
"""The labels of an estimator and an average."""


@dataclass(frozen=True)
class Plan:
    """The checked choice of policies, estimators and averages.

    `policies`: production first, then the candidates. `computed_policies`: the candidates whose probabilities are
    computed here, by name. `candidate_order`: the number of each candidate among all that were ever added, from 1.
    `default_estimators`: the estimators were not configured, so that one without evidence has no rows in the Report.
    `intervals`: by the label of an average, where the configuration asks for one. `promotion`: None for no decisions.
    """

    policies: tuple[str, ...]
    computed_policies: Mapping[str, AnyPolicy]
    products: Products
    default_estimators: bool
    intervals: Mapping[str, AnyInterval]
    reward_range: tuple[float, float]
    confidence: float
    block: int
    reward_model: AnyRewardModel
    drift: DriftDetector | None
    promotion: Promotion | None
    candidate_order: Mapping[str, int]

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
    ) -> Plan:
        """The plan for the arguments of an `Evaluator`; ValueError names the argument that is wrong."""
        if block != int(block) or block < 1:
            raise ValueError(f"block must be a whole number of events, 1 or more; found {block}")
        plan = cls(
            policies=_policies(production, candidates),
            computed_policies={
                name: policy for name, policy in named_policies(candidates).items() if not isinstance(policy, Logged)
            },
            products=_products(estimators, averages),
            default_estimators=estimators is None,
            intervals=_intervals(intervals or {}),
            reward_range=_ordered(reward_range),
            confidence=confidence,
            block=int(block),
            reward_model=reward_model or Ridge(),
            drift=DriftDetector.of(drift),
            promotion=Promotion.of(promotion),
            candidate_order={name: number for number, name in enumerate(candidates, start=1)},
        )
        plan._check()
        return plan

    def _check(self) -> None:
        if not 0 < self.confidence < 1:
            raise ValueError(f"confidence must lie between 0 and 1, found {self.confidence}")
        for estimators, averages in self.products:
            _require_distinct("estimators", [estimator.label for estimator in estimators])
            _require_distinct("averages", [average.label for average in averages])
        known = self.averages
        unknown = sorted(set(self.intervals) - set(known))
        if unknown:
            raise ValueError(
                f"intervals names averages that are not configured: {', '.join(unknown)}; there are {', '.join(known)}"
            )
        for label, interval in self.intervals.items():
            interval.check(known[label], self.block)
        for average in known.values():
            average.check(self.block)
        if self.promotion is not None:
            self.promotion.check(self.block)

    @property
    def estimators(self) -> dict[str, AnyEstimator]:
        """All estimators, by label."""
        return {estimator.label: estimator for estimators, _ in self.products for estimator in estimators}

    @property
    def averages(self) -> dict[str, AnyAverage]:
        """All averages, by label."""
        return {average.label: average for _, averages in self.products for average in averages}

    @property
    def pairs(self) -> dict[Pair, tuple[AnyEstimator, AnyAverage, AnyRewardModel | None]]:
        """Every estimator on each of its averages, with everything besides the policies that decides its numbers."""
        return {
            (estimator.label, average.label): (estimator, average, self._model_of(estimator))
            for estimators, averages in self.products
            for estimator in estimators
            for average in averages
        }

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """Policies, estimators and averages by name, each with everything that decides its numbers."""
        return {
            "policies": {name: self.computed_policies.get(name) for name in self.policies},
            "estimators": {label: (each, self._model_of(each)) for label, each in self.estimators.items()},
            "averages": dict(self.averages),
        }

    def _model_of(self, estimator: AnyEstimator) -> AnyRewardModel | None:
        return self.reward_model if Requirement.PREDICTION in estimator.needs else None

    def for_policies(self, names: Collection[str]) -> Plan:
        """The plan for production and those candidates that are among `names`."""
        production, *candidates = self.policies
        kept = [name for name in candidates if name in names]
        return replace(
            self,
            policies=(production, *kept),
            computed_policies={name: each for name, each in self.computed_policies.items() if name in kept},
            candidate_order={name: self.candidate_order[name] for name in kept},
        )

    def for_pairs(self, pairs: Collection[Pair]) -> Plan:
        """The plan for these pairs of an estimator and an average only."""
        products: list[tuple[tuple[AnyEstimator, ...], tuple[AnyAverage, ...]]] = []
        for estimators, averages in self.products:
            groups: dict[tuple[AnyAverage, ...], list[AnyEstimator]] = {}
            for estimator in estimators:
                kept = tuple(average for average in averages if (estimator.label, average.label) in pairs)
                if kept:
                    groups.setdefault(kept, []).append(estimator)
            products += [(tuple(group), kept) for kept, group in groups.items()]
        return self.with_products(products)

    def with_products(self, products: Products) -> Plan:
        """The same plan for other estimators and averages; intervals on other averages are left out."""
        labels = {average.label for _, averages in products for average in averages}
        intervals = {label: interval for label, interval in self.intervals.items() if label in labels}
        return replace(self, products=tuple(products), intervals=intervals)

    def grids(self) -> tuple[Grid, ...]:
        """The grids to fold events into: for each product, one for all estimators that need the same of events."""
        candidates = tuple(policy != LOGGING for policy in self.policies)
        grids = []
        for estimators, averages in self.products:
            intervals = tuple(self.interval(average) for average in averages)
            for needs in sorted({self.needs_of(estimator) for estimator in estimators}, key=sorted):
                group = tuple(estimator for estimator in estimators if self.needs_of(estimator) == needs)
                trackers = tuple(
                    interval.tracker(average, group, self.reward_range, self.block, self.policies[0] == LOGGING)
                    for average, interval in zip(averages, intervals, strict=True)
                )
                optional = self.default_estimators and bool(needs)
                grids.append(Grid(group, averages, intervals, candidates, needs, trackers, optional))
        return tuple(grids)

    @property
    def errors(self) -> Array:
        """The probability that a confidence sequence ever misses, [policies].

        Candidates share one probability: all that were ever added, or as many as promotion's `family_size`.
        """
        error, order = 1.0 - self.confidence, [self.candidate_order[name] for name in self.policies[1:]]
        family = None if self.promotion is None else self.promotion.family_size
        return np.concatenate([[error], error_shares(error, order, family)])

    def needs_of(self, estimator: AnyEstimator) -> frozenset[Requirement]:
        """The fields that an estimator needs events to have, with those of the reward model if it uses one."""
        model = self._model_of(estimator)
        return frozenset(estimator.needs if model is None else estimator.needs | model.needs)

    def interval(self, average: AnyAverage) -> AnyInterval:
        """The kind of interval on an average: the configured one, or the one that the coverage study recommends."""
        default = average.default_interval
        return self.intervals.get(average.label) or _INTERVAL.validate_python({"kind": default})

    def settings(self) -> State:
        """The plan as a plain value."""
        settings: State = {
            "candidates": list(self.policies[1:]),
            "production": self.policies[0],
            "products": _PRODUCTS.dump_python(self.products),
            "default_estimators": self.default_estimators,
            "intervals": {label: _INTERVAL.dump_python(interval) for label, interval in self.intervals.items()},
            "reward_range": list(self.reward_range),
            "confidence": self.confidence,
            "block": self.block,
            "reward_model": _REWARD_MODEL.dump_python(self.reward_model),
            "drift": None if self.drift is None else self.drift.settings(),
            "promotion": None if self.promotion is None else self.promotion.settings(),
            "candidate_order": dict(self.candidate_order),
        }
        if self.computed_policies:
            policies = {name: self.computed_policies.get(name, Logged()) for name in self.policies[1:]}
            settings["candidates"] = {name: _POLICY.dump_python(each, mode="json") for name, each in policies.items()}
        return settings

    @classmethod
    def from_settings(cls, settings: State, trusted: Candidates = ()) -> Plan:
        """The inverse of `settings`; StateError when they name a policy in code that `trusted` does not name."""
        _refuse_untrusted_code(named_policies(settings["candidates"]), named_policies(trusted))
        given = dict(settings)
        products = _PRODUCTS.validate_python(given.pop("products"))
        kept = {name: given.pop(name) for name in ("default_estimators", "candidate_order")}
        given["reward_model"] = _REWARD_MODEL.validate_python(given["reward_model"])
        given["reward_range"] = tuple(given["reward_range"])
        plan = cls.of(estimators=None, averages=None, **{**given, "intervals": {}})
        plan = replace(plan, products=products, intervals=_intervals(settings["intervals"]), **kept)
        plan._check()
        return plan


_INTERVAL: TypeAdapter[AnyInterval] = TypeAdapter(AnyInterval)
_POLICY: TypeAdapter[AnyPolicy] = TypeAdapter(AnyPolicy)
_REWARD_MODEL: TypeAdapter[Any] = TypeAdapter(AnyRewardModel)
_PRODUCTS: TypeAdapter[Any] = TypeAdapter(tuple[tuple[tuple[AnyEstimator, ...], tuple[AnyAverage, ...]], ...])


def _products(estimators: Sequence[AnyEstimator] | None, averages: Sequence[AnyAverage] | None) -> Products:
    if estimators is None and averages is None:
        return ((PUBLISHED_ESTIMATORS, PUBLISHED_AVERAGES), (BEST_ESTIMATORS, (BEST_AVERAGE,)))
    every = (*PUBLISHED_ESTIMATORS, *BEST_ESTIMATORS) if estimators is None else tuple(estimators)
    return ((every, (*PUBLISHED_AVERAGES, BEST_AVERAGE) if averages is None else tuple(averages)),)


def _refuse_untrusted_code(named: Mapping[str, AnyPolicy], trusted: Mapping[str, AnyPolicy]) -> None:
    """A state may come from anywhere, and reading it would run its code: the caller must name the same code."""
    for name, policy in named.items():
        if isinstance(policy, PythonPolicy) and trusted.get(name) != policy:
            raise StateError(
                f"the state holds the policy {name!r}, which is code: it runs only if the caller names it",
                hint="give from_state the candidates of the configuration",
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
    return {
        label: _INTERVAL.validate_python({"kind": interval} if isinstance(interval, str) else interval)
        for label, interval in intervals.items()
    }


def _ordered(reward_range: tuple[float, float]) -> tuple[float, float]:
    low, high = map(float, reward_range)
    if not -LARGEST_WEIGHT <= low < high <= LARGEST_WEIGHT:
        raise ValueError(f"reward_range must be two numbers, the smaller first, within 1e50; found {reward_range}")
    return low, high


def _require_distinct(option: str, labels: Sequence[str]) -> None:
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated or not labels:
        problem = f"{', '.join(repeated)} is there twice; give one a name" if repeated else "there is none"
        raise ValueError(f"{option}: {problem}")
