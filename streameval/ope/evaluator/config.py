"""The config: the checked configuration of an evaluator, and the grids of estimators and averages that it takes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from pydantic import TypeAdapter

from streameval.common.arrays import Array, State
from streameval.common.component import chosen, chosen_all, kind_as_mapping
from streameval.errors import StateError
from streameval.events import EventBatch, JsonDecoder, RankingDecoder
from streameval.events.further_rewards import RewardField
from streameval.events.segments import Segment, SegmentColumns, SegmentField, fields_of_segments
from streameval.ope.candidates import AnyPolicy, EvaluatedPolicy, named_policies
from streameval.ope.candidates.versions import VersionsOf, is_trusted
from streameval.ope.core import (
    AdaptiveDecay,
    AdaptiveWindow,
    AnyAverage,
    Cumulative,
    Decay,
    Mixture,
    Window,
)
from streameval.ope.estimators import DR, IPS, SNIPS, AnyEstimator, ClickIPS, ClickSNIPS, StratifiedDR, StratifiedIPS
from streameval.ope.evaluator.drift_detection import DriftDetector
from streameval.ope.evaluator.estimated_propensity import EstimatedPropensity
from streameval.ope.evaluator.grid import Grid, Pair
from streameval.ope.evidence.actions import Requirement, Requirements
from streameval.ope.evidence.arms import Arms
from streameval.ope.evidence.clicks import Ranking
from streameval.ope.evidence.evidence import LARGEST_WEIGHT
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences.tracker import SequenceTracker, error_shares
from streameval.ope.policies.base import LearningPolicy, learns
from streameval.ope.policies.coded import Logged, fields_read
from streameval.ope.policies.logged import LOGGING
from streameval.ope.promotion import Promotion, PromotionMonitor
from streameval.ope.promotion.guardrails import Reward
from streameval.ope.promotion.settings import Trust
from streameval.ope.reward_models import AnyRewardModel, Ridge

PUBLISHED_ESTIMATORS: tuple[AnyEstimator, ...] = (IPS(), SNIPS())
BEST_ESTIMATORS: tuple[AnyEstimator, ...] = (StratifiedIPS(), StratifiedDR())
PUBLISHED_AVERAGES: tuple[AnyAverage, ...] = (Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay())
BEST_AVERAGE = Mixture()
CLICK_ESTIMATORS: tuple[AnyEstimator, ...] = (ClickIPS(), ClickSNIPS())
ESTIMATED_ESTIMATORS: tuple[AnyEstimator, ...] = (SNIPS(), DR())

Candidates: TypeAlias = Sequence[str] | Mapping[str, AnyPolicy | str]
"""Names under which events carry probabilities; or policies by name."""

KindOrOptions: TypeAlias = Mapping[str, Any] | str
"""The name of a kind; or a mapping with the kind and its options."""

Product: TypeAlias = tuple[tuple[AnyEstimator, ...], tuple[AnyAverage, ...]]
"""Every one of these estimators is evaluated on every one of these averages."""


@dataclass(frozen=True)
class EvaluatorConfig:
    """The checked choice of policies, estimators and averages.

    `policies`: production first, then the candidates. `computed_policies`: the candidates whose probabilities are
    computed here, by name. `candidate_order`: the number of each candidate among all that were ever added, from 1.
    `default_estimators`: the estimators were not configured, so that one without evidence has no rows in the Report.
    `intervals`: by the label of an average, where the configuration asks for one. `rewards`: the first is the goal.
    `promotion`: None for no decisions. `logging`: the arms of a ramp, if there is one. `segments`: by name.
    `versions`: of which policies frozen copies become candidates later, by the name of the copies.
    `propensity`: None where propensities are logged.
    """

    policies: tuple[str, ...]
    computed_policies: Mapping[str, EvaluatedPolicy]
    products: tuple[Product, ...]
    default_estimators: bool
    intervals: Mapping[str, AnyInterval]
    rewards: tuple[Reward, ...]
    confidence: float
    block: int
    reward_model: AnyRewardModel
    drift: DriftDetector | None
    promotion: Promotion | None
    candidate_order: Mapping[str, int]
    ranking: Ranking | None = None
    logging: Arms | None = None
    segments: Mapping[str, Segment] = field(default_factory=dict)
    versions: Mapping[str, VersionsOf] = field(default_factory=dict)
    propensity: EstimatedPropensity | None = None

    @classmethod
    def of(
        cls,
        candidates: Candidates,
        estimators: Sequence[AnyEstimator | KindOrOptions] | None,
        averages: Sequence[AnyAverage | KindOrOptions] | None,
        reward_range: tuple[float, float],
        production: str,
        intervals: Mapping[str, AnyInterval | KindOrOptions] | None,
        confidence: float,
        block: int,
        reward_model: AnyRewardModel | KindOrOptions | None,
        drift: DriftDetector | Mapping[str, Any] | str | None,
        promotion: Promotion | Mapping[str, Any] | Sequence[str] | str | None,
        ranking: Ranking | Mapping[str, Any] | None = None,
        logging: Arms | Mapping[str, Any] | None = None,
        rewards: Sequence[Reward] | None = None,
        segments: Mapping[str, Segment | Mapping[str, Any]] | None = None,
        propensity: EstimatedPropensity | Mapping[str, Any] | str | None = None,
    ) -> EvaluatorConfig:
        """The config for the arguments of an `Evaluator`.

        Raises:
            ValueError: An argument is wrong; the message names it.
        """
        ranking = None if ranking is None else _RANKING.validate_python(ranking)
        if block != int(block) or block < 1:
            raise ValueError(f"block must be a whole number of events, 1 or more; found {block}")
        named = named_policies(candidates)
        versions = {name: policy for name, policy in named.items() if isinstance(policy, VersionsOf)}
        policies = tuple(name for name in _policies(production, candidates) if name not in versions)
        config = cls(
            policies=policies,
            computed_policies={
                name: policy for name, policy in named.items() if not isinstance(policy, Logged | VersionsOf)
            },
            products=_products(estimators, averages, ranking is not None, propensity is not None),
            default_estimators=estimators is None and ranking is None,
            intervals={
                label: chosen(f"intervals.{label}", each, _INTERVAL) for label, each in (intervals or {}).items()
            },
            rewards=_rewards(reward_range if ranking is None else ranking.metric.value_range, rewards),
            confidence=confidence,
            block=int(block),
            reward_model=chosen("reward_model", reward_model or Ridge(), _REWARD_MODEL),
            drift=DriftDetector.of(drift),
            promotion=Promotion.of(promotion),
            candidate_order={name: number for number, name in enumerate(policies[1:], start=1)},
            ranking=ranking,
            logging=None if logging is None else _ARMS.validate_python(logging),
            segments=_SEGMENTS.validate_python(segments or {}),
            versions=versions,
            propensity=None if propensity is None else _PROPENSITY.validate_python(kind_as_mapping(propensity)),
        )
        config._check()
        for name, each in versions.items():
            each.check(name, named, config.block, config.reward_model.is_external)
        return config

    def _check(self) -> None:
        scored = [label for label, each in self.estimators.items() if "scored" in each.needs]
        if scored and self.policies[0] == LOGGING:
            raise ValueError(
                f"{scored[0]} compares the values of scored outcomes: production must be a policy that has such values"
            )
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
        self._check_ranking()
        if self.logging is not None:
            self.logging.check(self.policies)
        self._check_rewards()
        self._check_segments()
        if self.propensity is not None:
            others = self.ranking is not None or self.logging is not None
            self.propensity.check_with(self.estimators, fields_of_segments(self.segments), others)

    def _check_rewards(self) -> None:
        if len(self.rewards) == 1:
            return
        _require_distinct("rewards", [reward.name for reward in self.rewards])
        for label, each in self.estimators.items():
            if "scored" in each.needs:
                raise ValueError(f"{label} estimates one metric of an outcome, and not several rewards")
        if self.ranking is not None:
            raise ValueError("rankings have clicks in place of rewards; several rewards need events with slots")

    def _check_segments(self) -> None:
        fields_of_segments(self.segments)
        if self.segments and self.ranking is not None:
            raise ValueError("segments split the estimates of decisions, and not those of rankings")

    def _check_ranking(self) -> None:
        for label, estimator in self.estimators.items():
            if estimator.of_clicks and self.ranking is None:
                raise ValueError(f"{label} estimates rankings from clicks: it needs a `ranking` with its metric")
            if not estimator.of_clicks and self.ranking is not None:
                raise ValueError(
                    f"{label} needs the probabilities of actions; rankings have click_ips, click_snips, ..."
                )
        if self.ranking is not None and self.logging is not None:
            raise ValueError("arms share the choice of actions: rankings have none")
        if self.ranking is not None and self.computed_policies:
            raise ValueError(f"{', '.join(self.computed_policies)}: policies in code cannot rank; log the ranks")

    @property
    def estimators(self) -> dict[str, AnyEstimator]:
        """All estimators, by label."""
        return {estimator.label: estimator for estimators, _ in self.products for estimator in estimators}

    @property
    def averages(self) -> dict[str, AnyAverage]:
        """All averages, by label."""
        return {average.label: average for _, averages in self.products for average in averages}

    @property
    def reward_range(self) -> tuple[float, float]:
        """The range of the goal, the first reward."""
        return self.rewards[0].range

    @property
    def further_fields(self) -> list[RewardField]:
        """The names and ranges of the rewards after the goal."""
        return [RewardField(each.name, each.name, each.low, each.high) for each in self.rewards[1:]]

    def for_reward(self, place: int) -> EvaluatorConfig:
        """The config for one of the rewards alone."""
        return replace(self, rewards=(self.rewards[place],))

    @property
    def scores(self) -> tuple[str, ...] | None:
        """The fields of events that policies in code read; None if nothing reads more than the columns."""
        read = fields_read(self.computed_policies.values())
        needed = self.reward_model.needs_raw_fields or self.propensity is not None
        return () if read is None and needed else read

    def decoder(self) -> JsonDecoder:
        """Decodes the JSON of events."""
        if self.ranking is not None:
            return RankingDecoder(self.logged_policies, named=self.scores is not None)
        return JsonDecoder(
            self.logged_policies,
            reward_range=self.reward_range,
            scores=self.scores,
            segments=self.fields,
            named=self.names_actions,
            estimated=self.propensity is not None,
        )

    @property
    def fields(self) -> list[SegmentField]:
        """The fields of segments, and those that propensities are estimated by."""
        by = [] if self.propensity is None else self.propensity.fields
        return list(dict.fromkeys((*fields_of_segments(self.segments), *by)))

    @property
    def names_actions(self) -> bool:
        """Whether the names of the logged actions are needed."""
        return self.compares_propensities or self.propensity is not None

    @property
    def origin_of_propensities(self) -> str:
        """`logged` or `estimated`, as rows of a Report show it."""
        return "logged" if self.propensity is None else self.propensity.kind

    @property
    def margin(self) -> float | None:
        """The lift that a candidate must exceed to be promotable; None without promotion."""
        return None if self.promotion is None else self.promotion.margin

    def columns_of(self, events: EventBatch) -> SegmentColumns | None:
        """The columns of `fields`, which the events may lack; None without any."""
        names = [each.name for each in self.fields]
        if not names:
            return None
        found = events.segments
        return SegmentColumns.none(names, len(events)) if found is None else found.named(names)

    @property
    def compares_propensities(self) -> bool:
        """Whether a trust check compares the logged propensities with how often actions are chosen."""
        is_compared = self.promotion is not None and len(self.policies) > 1 and self.ranking is None
        return is_compared and self.propensity is None

    @property
    def trust_error(self) -> float:
        """The probability that a trust check ever fails on a sound log."""
        return Trust().error if self.promotion is None else self.promotion.trust.error

    @property
    def logged_policies(self) -> list[str]:
        """The policies whose probabilities are in the events."""
        return [name for name in self.policies if name != LOGGING and name not in self.computed_policies]

    @property
    def learned_policies(self) -> dict[str, LearningPolicy]:
        """The policies that learn from the events, and frozen copies of them, by name."""
        return {name: each for name, each in self.computed_policies.items() if learns(each)}

    @property
    def policies_need_prediction(self) -> bool:
        """Whether a policy needs the predictions of the reward model."""
        return any(policy.needs_prediction for policy in self.learned_policies.values())

    def policy(self, name: str) -> tuple[EvaluatedPolicy | None, AnyRewardModel | None]:
        """The policy that computes probabilities, and the reward model that it needs; None for logged ones."""
        policy = self.computed_policies.get(name)
        is_modelled = learns(policy) and (policy.needs_prediction or policy.keeps_model)
        return policy, self.reward_model if is_modelled else None

    @property
    def columns(self) -> list[str]:
        """The policies whose probabilities are needed: those with rows, but for `logging`, and the arms of a ramp."""
        of_arms = () if self.logging is None else self.logging.names
        return [name for name in dict.fromkeys((*self.policies, *of_arms)) if name != LOGGING]

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
            "policies": {name: self.policy(name) for name in self.policies},
            "estimators": {label: (each, self._model_of(each)) for label, each in self.estimators.items()},
            "averages": dict(self.averages),
        }

    def _model_of(self, estimator: AnyEstimator) -> AnyRewardModel | None:
        return self.reward_model if "prediction" in estimator.needs else None

    def for_policies(self, names: Iterable[str]) -> EvaluatorConfig:
        """Return the config for production and the candidates among `names`, in their order."""
        production, *candidates = self.policies
        kept = [name for name in names if name in candidates]
        return replace(
            self,
            policies=(production, *kept),
            computed_policies={name: each for name, each in self.computed_policies.items() if name in kept},
            candidate_order={name: self.candidate_order[name] for name in kept},
        )

    def for_pairs(self, pairs: Collection[Pair]) -> EvaluatorConfig:
        """The config for these pairs of an estimator and an average only."""
        products: list[Product] = []
        for estimators, averages in self.products:
            groups: dict[tuple[AnyAverage, ...], list[AnyEstimator]] = {}
            for estimator in estimators:
                kept = tuple(average for average in averages if (estimator.label, average.label) in pairs)
                if kept:
                    groups.setdefault(kept, []).append(estimator)
            products += [(tuple(group), kept) for kept, group in groups.items()]
        return self.with_products(products)

    def with_products(self, products: Sequence[Product]) -> EvaluatorConfig:
        """The same config for other estimators and averages; intervals on other averages are left out."""
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
                fixed = [
                    one if len(each.alternatives) == 1 else None for each in group for one in each.alternatives.values()
                ]
                trackers: dict[str, list[SequenceTracker]] = {}
                for average, interval in zip(averages, intervals, strict=True):
                    logged = self.policies[0] == LOGGING
                    found = [
                        interval.tracker(average, fixed, reward.range, self.block, logged) for reward in self.rewards
                    ]
                    trackers |= {average.label: [each for each in found if each]} if any(found) else {}
                grids.append(
                    Grid(
                        group,
                        averages,
                        intervals,
                        candidates,
                        needs,
                        trackers,
                        self.block,
                        optional=self.default_estimators and bool(needs),
                        rewards=len(self.rewards),
                        logged=self.policies[0] == LOGGING,
                    )
                )
        return tuple(grids)

    def promotion_lifts(self, grids: Sequence[Grid]) -> tuple[Pair, ...]:
        """The lifts that promotion may decide by, the preferred one first; `grids` are those of the config.

        A lift is that of an estimator that is not biased by design, on an average that mixes components. It is left out
        where a preferred estimator needs no more of the events, so that it never lacks evidence that this one has.
        """
        if self.promotion is None or len(self.policies) < 2:
            return ()
        possible = [
            (estimator, average.label, grid.needs)
            for grid in grids
            for average in grid.averages
            if average.mixes_components
            for estimator in grid.estimators
            if not estimator.is_biased_by_design
        ]
        chosen: dict[Pair, Requirements] = {}
        for estimator, average, needs in sorted(possible, key=lambda lift: lift[0].preference):
            if not any(better <= needs for better in chosen.values()):
                chosen[estimator.label, average] = needs
        return tuple(chosen)

    def monitor(self, lifts: Sequence[Pair]) -> PromotionMonitor | None:
        """The monitor of promotion that decides by these lifts; None when there is nothing to decide."""
        if self.promotion is None or len(self.policies) < 2:
            return None
        return PromotionMonitor.of(
            self.promotion,
            self.policies,
            [" on ".join(pair) for pair in lifts],
            confidence=self.confidence,
            errors=self.errors[1:],
            rewards=self.rewards,
            block=self.block,
            logged=self.policies[0] == LOGGING and self.ranking is None,
            weights_average_1=self.ranking is None
            and not all("scored" in each.needs and each.ratio for each in self.estimators.values()),
            largest_loss=self._largest_loss,
        )

    @property
    def _largest_loss(self) -> float | None:
        """Of rankings, by how much a page's term of production may exceed that of a candidate; else None.

        Infinite where production is not the order that was shown.
        """
        if self.ranking is None:
            return None
        return self.ranking.largest_loss if self.policies[0] == LOGGING else math.inf

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
        """The config as a plain value."""
        settings: State = _CONFIG.dump_python(self)
        return settings

    @staticmethod
    def describe(settings: State) -> State:
        """The production policy, the products, the reward range and the confidence, as values that JSON has."""
        first = settings["rewards"][0]
        known = {name: settings[name] for name in ("products", "confidence")}
        return {"production": settings["policies"][0], **known, "reward_range": (first["low"], first["high"])}

    @classmethod
    def without_code(
        cls, settings: State, reward_model: AnyRewardModel | None, candidates: Candidates
    ) -> tuple[EvaluatorConfig, EvaluatorConfig]:
        """The config of settings, and the config without the code that the caller does not name.

        That config has logged policies in place of policies in code, and Ridge in place of a foreign reward model.
        """
        config, named = _CONFIG.validate_python(settings), named_policies(candidates)
        computed = config.computed_policies.items()
        kept = {name: each for name, each in computed if is_trusted(name, each, named)}
        is_foreign = config.reward_model.is_external and config.reward_model != reward_model
        return config, replace(
            config, computed_policies=kept, reward_model=Ridge() if is_foreign else config.reward_model
        )

    @classmethod
    def from_settings(cls, settings: State, trusted: Candidates = ()) -> EvaluatorConfig:
        """The inverse of `settings`. A state may come from anywhere: code in it runs only if `trusted` names it.

        Raises:
            StateError: The settings name a policy in code that `trusted` does not name.
        """
        config, allowed = _CONFIG.validate_python(settings), named_policies(trusted)
        for name, policy in config.computed_policies.items():
            if not is_trusted(name, policy, allowed):
                raise StateError(
                    f"the state holds the policy {name!r}, which is code: it runs only if the caller names it",
                    hint="give from_state the candidates of the configuration",
                )
        config._check()
        return config


_INTERVAL: TypeAdapter[AnyInterval] = TypeAdapter(AnyInterval)
_ESTIMATOR: TypeAdapter[AnyEstimator] = TypeAdapter(AnyEstimator)
_AVERAGE: TypeAdapter[AnyAverage] = TypeAdapter(AnyAverage)
_REWARD_MODEL: TypeAdapter[AnyRewardModel] = TypeAdapter(AnyRewardModel)
_CONFIG: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)
_RANKING: TypeAdapter[Ranking] = TypeAdapter(Ranking)
_ARMS: TypeAdapter[Arms] = TypeAdapter(Arms)
_SEGMENTS: TypeAdapter[dict[str, Segment]] = TypeAdapter(dict[str, Segment])
_PROPENSITY: TypeAdapter[EstimatedPropensity] = TypeAdapter(EstimatedPropensity)


def _products(
    estimators: Sequence[AnyEstimator | KindOrOptions] | None,
    averages: Sequence[AnyAverage | KindOrOptions] | None,
    of_clicks: bool,
    estimated: bool,
) -> tuple[Product, ...]:
    published, best = (CLICK_ESTIMATORS, CLICK_ESTIMATORS[:1]) if of_clicks else (PUBLISHED_ESTIMATORS, BEST_ESTIMATORS)
    if estimated:
        published = best = ESTIMATED_ESTIMATORS
    if estimators is None and averages is None:
        return ((published, PUBLISHED_AVERAGES), (best, (BEST_AVERAGE,)))
    every, on = tuple(dict.fromkeys((*published, *best))), (*PUBLISHED_AVERAGES, BEST_AVERAGE)
    return (
        (
            every if estimators is None else chosen_all("estimators", estimators, _ESTIMATOR),
            on if averages is None else chosen_all("averages", averages, _AVERAGE),
        ),
    )


def _policies(production: str, candidates: Candidates) -> tuple[str, ...]:
    if isinstance(candidates, str):
        raise ValueError(f"candidates must be a list of names, found the string {candidates!r}")
    policies = (production, *candidates)
    repeated = sorted({policy for policy in policies if policies.count(policy) > 1})
    if repeated or LOGGING in candidates:
        raise ValueError(f"policies must differ and none may be called {LOGGING!r}: {', '.join(repeated or [LOGGING])}")
    return policies


def _rewards(reward_range: tuple[float, float], rewards: Sequence[Reward] | None) -> tuple[Reward, ...]:
    if rewards is None:
        return (Reward("reward", *_ordered(reward_range)),)
    for reward in rewards:
        _ordered(reward.range)
        if reward.max_loss is not None and not 0 <= reward.max_loss < math.inf:
            raise ValueError(f"the largest loss of {reward.name} must be 0 or more, found {reward.max_loss}")
    if not rewards or rewards[0].max_loss is not None:
        raise ValueError("the first of the rewards is the goal, and not a guardrail")
    return tuple(rewards)


def _ordered(reward_range: tuple[float, float]) -> tuple[float, float]:
    low, high = map(float, reward_range)
    if not -LARGEST_WEIGHT <= low < high <= LARGEST_WEIGHT:
        raise ValueError(f"reward_range must be two numbers, the smaller first, within 1e50; found {reward_range}")
    return low, high


def _require_distinct(option: str, labels: Sequence[str]) -> None:
    repeated = sorted({label for label in labels if labels.count(label) > 1})
    if repeated or not labels:
        problem = f"{', '.join(repeated)} is configured twice; give one a name" if repeated else "there is none"
        raise ValueError(f"{option}: {problem}")
