"""Check the choice of policies, estimators and averages of an evaluator, and derive what it computes."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
from pydantic import TypeAdapter

from streameval.common.arrays import Array, State
from streameval.common.component import Component
from streameval.common.problems import KeyPath, Problem, did_you_mean, expecting, objections, one_of, refuse
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
from streameval.ope.evaluator.estimated_propensity import FOR_ESTIMATES, EstimatedPropensity
from streameval.ope.evaluator.grid import Grid, Pair
from streameval.ope.evaluator.options import Candidates, EvaluatorOptions
from streameval.ope.evaluator.rewards import Clips, resolved
from streameval.ope.evidence.actions import Requirement, Requirements
from streameval.ope.evidence.arms import Arms
from streameval.ope.evidence.clicks import Ranking
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences.tracker import SequenceTracker, error_shares
from streameval.ope.policies.base import LearningPolicy, learns
from streameval.ope.policies.coded import Logged, fields_read
from streameval.ope.policies.external import ExternalPolicy, PythonPolicy
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

UNWRITABLE = re.compile(r'["\\\x00-\x1f]')  # characters that JSON must escape in a key

Product: TypeAlias = tuple[tuple[AnyEstimator, ...], tuple[AnyAverage, ...]]
"""Every one of these estimators is evaluated on every one of these averages."""


@dataclass(frozen=True)
class EvaluatorConfig:
    """Hold the checked configuration of an evaluator.

    Attributes:
        policies: production, then the candidates
        computed_policies: candidates that are computed here and not logged, by name
        products: what is evaluated
        default_estimators: whether the estimators are the default, so that one without evidence has no rows in a Report
        intervals: by the label of an average, if not the default of that average
        rewards: the first is the goal
        block: number of events in a block
        promotion: None for no decisions
        candidate_order: number of each candidate among all that were ever added, from 1
        logging: the arms of a ramp
        segments: by name
        versions: policies that are copied into new candidates, by the prefix of the names of the copies
        propensity: None if propensities are logged
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
    def from_options(
        cls,
        options: EvaluatorOptions,
        candidates: Sequence[str] | Mapping[str, AnyPolicy],
        production: str,
        rewards: Sequence[Reward],
        block: int,
    ) -> EvaluatorConfig:
        """Return the configuration for these options.

        Args:
            options: what is evaluated, and how
            candidates: names in the events, or policies by name
            production: the policy that candidates are compared with
            rewards: the first is the goal; a ranking has the reward of its metric instead
            block: number of events in a block

        Raises:
            ProblemsError: Options do not fit together.
        """
        named = named_policies(candidates)
        versions = {name: policy for name, policy in named.items() if isinstance(policy, VersionsOf)}
        added = [name for name in named if name not in versions]
        ranking = options.ranking
        config = cls(
            policies=(production, *added),
            computed_policies={name: named[name] for name in added if not isinstance(named[name], Logged)},
            products=_products(options),
            default_estimators=not options.estimators and ranking is None,
            intervals=options.intervals,
            rewards=tuple(rewards) if ranking is None else (Reward("reward", *ranking.value_range),),
            confidence=options.confidence,
            block=block,
            reward_model=options.reward_model,
            drift=options.drift if ranking is not None or rewards[0].has_fixed_range else None,
            promotion=options.promotion,
            candidate_order={name: number for number, name in enumerate(added, start=1)},
            ranking=ranking,
            logging=options.logging,
            segments=options.segments,
            versions=versions,
            propensity=options.propensity,
        )
        refuse([*_name_problems(production, candidates), *config._problems(), *config._problems_of_new(named, rewards)])
        return config

    def _problems(self) -> Iterator[Problem]:
        """Yield what does not fit together; code that the options name does not run."""
        for estimators, averages in self.products:
            yield from _label_problems("estimators", estimators)
            for index, estimator in enumerate(estimators):
                yield from self._estimator_problems(estimator, "estimators", index)
            yield from _label_problems("averages", averages)
            for index, average in enumerate(averages):
                yield from objections(partial(average.check, self.block), "averages", index)
        yield from self._interval_problems()
        if self.promotion is not None:
            hint = "write e.g. rule: [{kind: anytime, tau: 50000}, paired]"
            yield from objections(partial(self.promotion.check, self.block), "promotion", "rule", hint=hint)
        if self.ranking is not None:
            yield from self._ranking_problems()
        for name, policy in self.computed_policies.items():
            if self.ranking is None and _ranks_pages(policy):
                actual, hint = f"'{name}', which ranks pages", "write ranking: {metric: dcg, examination: power}"
                yield Problem(("candidates", name), expecting("a policy that chooses actions", actual), hint)
        yield from self._limit_problems()
        yield from self._ratio_problems()
        if self.propensity is not None:
            yield from self._propensity_problems(self.propensity)
        hint = "name a field that is known before the decision, e.g. context.country"
        for name, segment in self.segments.items():
            yield from objections(partial(fields_of_segments, {name: segment}), "segments", name, "field", hint=hint)

    def _estimator_problems(self, estimator: AnyEstimator, *path: str | int) -> Iterator[Problem]:
        def problem(expected: str, reason: str, hint: str) -> Problem:
            return Problem(path, expecting(f"an estimator of {expected}", f"'{estimator.label}', which {reason}"), hint)

        if self.ranking is not None and self.propensity is not None:
            return  # no estimator fits both: they are a problem of their own

        if "scored" in estimator.needs and self.policies[0] == LOGGING:
            hint = "write policies: {production: NAME}, a name in scored.values"
            yield problem("logged actions", "needs values of production", hint)
        if "scored" in estimator.needs and len(self.rewards) > 1:
            hint = "take a daemon for each metric, with its values in `scored.values`"
            yield problem("several rewards", "estimates one metric of an outcome", hint)
        if estimator.uses_clicks and self.ranking is None:
            hint = "write ranking: {metric: dcg, examination: power}"
            yield problem("decisions", "estimates rankings from clicks", hint)
        if not estimator.uses_clicks and self.ranking is not None:
            yield problem("rankings", "needs the probabilities of actions", "take click_ips, click_snips, ...")
        if not estimator.takes_estimated and self.propensity is not None:
            hint = f"take one of {FOR_ESTIMATES}; their errors are corrected or divided out in part"
            yield problem("estimated propensities", "needs logged propensities", hint)

    def _interval_problems(self) -> Iterator[Problem]:
        for label, interval in self.intervals.items():
            if label in self.averages:
                yield from objections(partial(interval.check, self.averages[label], self.block), "intervals", label)
            else:
                hint = did_you_mean(label, self.averages) or "the keys are the names of the configured averages"
                yield Problem(("intervals", label), expecting(one_of(self.averages), f"'{label}'"), hint)

    def _ranking_problems(self) -> Iterator[Problem]:
        if self.logging is not None:
            hint = "remove them: rankings have no propensity that arms could share"
            yield Problem(("logging",), expecting("nothing next to `ranking`", "arms"), hint)
        if self.segments:
            hint = "remove them: segments split the estimates of decisions, and not those of rankings"
            yield Problem(("segments",), expecting("nothing next to `ranking`", "segments"), hint)
        for name, policy in self.computed_policies.items():
            if not _ranks_pages(policy):
                actual = f"'{name}', which is computed: policies in code cannot rank"
                hint = "log the ranks, or take kind: learned_ranker"
                yield Problem(("candidates", name), expecting("a logged policy next to `ranking`", actual), hint)

    def _limit_problems(self) -> Iterator[Problem]:
        """Yield what needs the range of a reward before its first event, next to a reward with `max: auto`."""
        learned = next((reward.name for reward in self.rewards if reward.quantile is not None), None)
        if learned is None:
            return
        rules = () if self.promotion is None else self.promotion.rules
        intervals, estimators = self.intervals.items(), self.estimators.values()
        users: list[tuple[KeyPath, str]] = [
            *((("intervals", label), one.kind) for label, one in intervals if one.kind == "confidence_sequence"),
            *((("promotion", "rule"), rule.kind) for rule in rules if rule.kind in ("anytime", "sea", "bsea")),
            *((("candidates", name), "a policy that learns") for name in self.learned_policies),
            *((("estimators",), one.label) for one in estimators if "scored" in one.needs),
        ]
        expected = f"nothing that needs a fixed range of {learned}, which has max: auto"
        for path, name in users:
            hint = "give max a number, e.g. {max: 200, above: clip}, or take another kind"
            yield Problem(path, expecting(expected, f"'{name}'"), hint)

    def _ratio_problems(self) -> Iterator[Problem]:
        """Yield what sums up lifts of events, which a ratio has none of, next to a ratio that decides."""
        judged = [self.rewards[index].name for index in self.judged_ratios]
        rules = () if not judged or self.promotion is None else self.promotion.rules
        for rule in rules:
            if not rule.judges_by_lift:
                message = expecting(
                    f"a rule that judges by the lift alone, for the ratio {judged[0]}", f"'{rule.label}'"
                )
                hint = "write promotion: periodic or paired, or promotion: off"
                yield Problem(("promotion", "rule"), message, hint)
        ratios = [reward.name for reward in self.rewards if reward.is_ratio]
        if ratios and all(isinstance(average, AdaptiveDecay | AdaptiveWindow) for average in self.averages.values()):
            message = f"expected an average that does not adapt, for the ratio {ratios[0]}"
            yield Problem(("averages",), message, "add cumulative or mixture: adaptive ones follow single rewards")
        if self.rewards[0].is_ratio:
            others = {"segments": self.segments, "candidates": self.learned_policies, "logging": self.logging}
            for key in (key for key, value in others.items() if value):
                message = expecting("nothing that follows the reward of single events, next to a ratio as goal", key)
                yield Problem((key,), message, "make the ratio a guardrail, and another reward the goal")

    def _propensity_problems(self, propensity: EstimatedPropensity) -> Iterator[Problem]:
        for name, other in (("ranking", self.ranking), ("logging", self.logging)):
            if other is not None:
                hint = "remove it: rankings and arms have no propensities to estimate"
                yield Problem(("propensity",), expecting(f"nothing next to `{name}`", "estimated propensities"), hint)
        path, hint = ("propensity", "model", "by"), "name fields that the logging policy chose by, e.g. context.country"
        yield from objections(propensity.check, *path, hint=hint)
        for name, segment in self.segments.items():
            if name in propensity.model.by and (segment.field or name) != name:
                message = f"`by` names the field {name}, and a segment of another field has this name"
                yield Problem(path, message, "give the segment another name")

    def _problems_of_new(self, named: Mapping[str, Any], rewards: Sequence[Reward]) -> Iterator[Problem]:
        """Yield the problems of what a state no longer has, or has under other names."""
        if rewards[0].max_loss is not None:
            message = expecting("no guardrail, as the first of the rewards is the goal", "a guardrail")
            hint = "write the reward that decides first"
            yield Problem(("rewards", rewards[0].name, "guardrail"), message, hint)
        if self.ranking is not None and [reward.name for reward in rewards] != [Reward.name]:
            hint = "remove them: clicks are the reward; for several rewards, log pages as `slots` with propensities"
            yield Problem(("rewards",), expecting("nothing next to `ranking`", "rewards"), hint)
        if self.ranking is not None and (
            rewards[0].quantile is not None or rewards[0].quantiles or rewards[0].per_unit
        ):
            hint = "remove it: clicks are the reward, and the metric limits it"
            message = expecting("a range without max: auto, quantiles and per_unit next to `ranking`", "one of them")
            yield Problem(("reward_range",), message, hint)
        fits = self.ranking is None and self.propensity is None  # else arms are a problem of their own
        if self.logging is not None and fits:  # not of a state, which lacks an arm that reads its history
            hint = "an arm is production or a candidate, and its probabilities are in the events under its own name"
            yield from objections(partial(self.logging.check, self.policies), "logging", "arms", hint=hint)
        if self.segments and self.ranking is None:
            yield from objections(
                partial(segmented_estimate, self), "segments", hint="add ips to estimators, and cumulative to averages"
            )
        for name, versions in self.versions.items():
            hint = "write e.g. frozen: {kind: versions_of, policy: apprentice, every: 200000, keep: 3}"
            check = partial(versions.check, name, named, self.block, self.reward_model.is_external)
            yield from objections(check, "candidates", name, hint=hint)

    def code_problems(self) -> Iterator[Problem]:
        """Yield the problems of the code that the options name: it is imported and run."""
        yield from objections(self.reward_model.check, "reward_model")
        for name, policy in self.computed_policies.items():
            if isinstance(policy, ExternalPolicy):
                option = "target" if isinstance(policy, PythonPolicy) else "model"
                yield from objections(policy.check, "candidates", name, option)

    @property
    def estimators(self) -> dict[str, AnyEstimator]:
        """Return all estimators, by label."""
        return {estimator.label: estimator for estimators, _ in self.products for estimator in estimators}

    @property
    def averages(self) -> dict[str, AnyAverage]:
        """Return all averages, by label."""
        return {average.label: average for _, averages in self.products for average in averages}

    @property
    def reward_range(self) -> tuple[float, float]:
        """Return the range of the goal."""
        return self.rewards[0].range

    def _limits(self, ranges: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], list[RewardField]]:
        """Return ranges of all rewards as a range of the goal, and the names and ranges of the rewards after it."""
        further = zip(self.rewards[1:], ranges[1:], strict=True)
        return ranges[0], [RewardField(reward.name, reward.name, *limits) for reward, limits in further]

    def resolved(self, batch: EventBatch) -> tuple[EventBatch, dict[str, list[Clips]]]:
        """Return events with the configured rewards, and what clipping did, see `rewards.resolved`."""
        clips: dict[str, list[Clips]] = {}
        if any(reward.is_derived for reward in self.rewards):
            ends = [reward.range if reward.clips else reward.accepted for reward in self.rewards]
            batch, _ = batch.clipped(*self._limits(ends))  # rounding alone does not count
            goal, further = self._limits([reward.accepted for reward in self.rewards])
            batch, clips = resolved(batch.with_rewards_in(*goal, further), self.rewards)
        ends = [reward.range if reward.quantile is None else reward.accepted for reward in self.rewards]
        goal, further = self._limits(ends)
        return batch.with_rewards_in(*goal, further), clips

    @property
    def judged_ratios(self) -> list[int]:
        """Return the indices of the ratios that are the goal or a guardrail."""
        rewards = enumerate(self.rewards)
        return [index for index, reward in rewards if reward.is_ratio and (not index or reward.max_loss is not None)]

    def for_reward(self, index: int) -> EvaluatorConfig:
        """Return the config for one of the rewards alone."""
        return replace(self, rewards=(self.rewards[index],))

    @property
    def scores(self) -> tuple[str, ...] | None:
        """Return the fields of events that policies in code read, or None if nothing reads more than the columns."""
        read = fields_read(self.computed_policies.values())
        needed = self.reward_model.needs_raw_fields or self.propensity is not None
        return () if read is None and needed else read

    def decoder(self) -> JsonDecoder:
        """Return a decoder of events in JSON."""
        if self.ranking is not None:
            named, most = self.scores is not None, self.ranking.max_items
            return RankingDecoder(self.logged_policies, named=named, max_items=most)
        return JsonDecoder(
            self.logged_policies,
            reward_range=self.rewards[0].accepted,
            scores=self.scores,
            segments=self.fields,
            named=self.names_actions,
            estimated=self.propensity is not None,
        )

    @property
    def fields(self) -> list[SegmentField]:
        """Return the fields of segments, and the fields that estimated propensities depend on."""
        by = [] if self.propensity is None else self.propensity.fields
        return list(dict.fromkeys((*fields_of_segments(self.segments), *by)))

    @property
    def names_actions(self) -> bool:
        """Return whether the names of the logged actions are needed."""
        return self.compares_propensities or self.propensity is not None

    @property
    def origin_of_propensities(self) -> str:
        """Return `logged` or `estimated`, as rows of a Report show it."""
        return "logged" if self.propensity is None else self.propensity.kind

    @property
    def margin(self) -> float | None:
        """Return the lift that a candidate must exceed to be promotable, or None without promotion."""
        return None if self.promotion is None else self.promotion.margin

    def columns_of(self, events: EventBatch) -> SegmentColumns | None:
        """Return the columns of `fields`, even if the events lack them, or None without fields."""
        names = [reward_field.name for reward_field in self.fields]
        if not names:
            return None
        segments = events.segments
        return SegmentColumns.none(names, len(events)) if segments is None else segments.named(names)

    @property
    def compares_propensities(self) -> bool:
        """Return whether a trust check compares logged propensities with how often actions are chosen."""
        is_compared = self.promotion is not None and len(self.policies) > 1 and self.ranking is None
        return is_compared and self.propensity is None

    @property
    def trust_error(self) -> float:
        """Return the probability that a trust check ever fails on a sound log."""
        return Trust().error if self.promotion is None else self.promotion.trust.error

    @property
    def logged_policies(self) -> list[str]:
        """Return the policies that events carry probabilities for."""
        return [name for name in self.policies if name != LOGGING and name not in self.computed_policies]

    @property
    def learned_policies(self) -> dict[str, LearningPolicy]:
        """Return the policies that learn from the events, and frozen copies of them, by name."""
        return {name: policy for name, policy in self.computed_policies.items() if learns(policy)}

    @property
    def policies_need_prediction(self) -> bool:
        """Return whether a policy needs the predictions of the reward model."""
        return any(policy.needs_prediction for policy in self.learned_policies.values())

    def policy(self, name: str) -> tuple[EvaluatedPolicy | None, AnyRewardModel | None]:
        """Return the policy that computes probabilities, and the reward model it needs, or None for logged ones."""
        policy = self.computed_policies.get(name)
        is_modelled = learns(policy) and (policy.needs_prediction or policy.keeps_model)
        return policy, self.reward_model if is_modelled else None

    @property
    def columns(self) -> list[str]:
        """Return the policies that events need probabilities for: all reported ones except `logging`, and all arms."""
        arms = () if self.logging is None else self.logging.names
        return [name for name in dict.fromkeys((*self.policies, *arms)) if name != LOGGING]

    @property
    def pairs(self) -> dict[Pair, tuple[AnyEstimator, AnyAverage, AnyRewardModel | None]]:
        """Return every estimator on each of its averages, with all that decides its numbers besides the policies."""
        return {
            (estimator.label, average.label): (estimator, average, self._model_of(estimator))
            for estimators, averages in self.products
            for estimator in estimators
            for average in averages
        }

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """Return policies, estimators and averages by name, each with all that decides its numbers."""
        return {
            "policies": {name: self.policy(name) for name in self.policies},
            "estimators": {
                label: (estimator, self._model_of(estimator)) for label, estimator in self.estimators.items()
            },
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
            computed_policies={name: policy for name, policy in self.computed_policies.items() if name in kept},
            candidate_order={name: self.candidate_order[name] for name in kept},
        )

    def for_pairs(self, pairs: Collection[Pair]) -> EvaluatorConfig:
        """Return the config for these pairs of an estimator and an average only."""
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
        """Return the config for other estimators and averages, without the intervals on averages that it lacks."""
        labels = {average.label for _, averages in products for average in averages}
        intervals = {label: interval for label, interval in self.intervals.items() if label in labels}
        return replace(self, products=tuple(products), intervals=intervals)

    def grids(self) -> tuple[Grid, ...]:
        """Return the grids to update: within a product, estimators with the same needs share one."""
        candidates = tuple(policy != LOGGING for policy in self.policies)
        grids = []
        for estimators, averages in self.products:
            intervals = tuple(self.interval(average) for average in averages)
            for needs in sorted({self.needs_of(estimator) for estimator in estimators}, key=sorted):
                group = tuple(estimator for estimator in estimators if self.needs_of(estimator) == needs)
                fixed = [
                    one if len(estimator.alternatives) == 1 else None
                    for estimator in group
                    for one in estimator.alternatives.values()
                ]
                trackers: dict[str, list[SequenceTracker]] = {}
                for average, interval in zip(averages, intervals, strict=True):
                    logged = self.policies[0] == LOGGING
                    sequences = [
                        interval.tracker(average, fixed, reward.range, self.block, logged) for reward in self.rewards
                    ]
                    trackers |= {average.label: [tracker for tracker in sequences if tracker]} if any(sequences) else {}
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

    @cached_property
    def promotion_lifts(self) -> tuple[Pair, ...]:
        """Return the lifts that promotion may decide by, the preferred one first.

        Their estimators are not biased by design, and their averages mix components. A lift is left out if a preferred
        estimator needs no more of the events, because that one never lacks evidence that the other has.
        """
        if self.promotion is None or len(self.policies) < 2:
            return ()
        possible = [
            (estimator, average.label, grid.needs)
            for grid in self.grids()
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

    def monitor(self) -> PromotionMonitor | None:
        """Return the monitor of promotion, or None if there is nothing to decide."""
        if self.promotion is None or len(self.policies) < 2:
            return None
        return PromotionMonitor.from_settings(
            self.promotion,
            self.policies,
            [" on ".join(pair) for pair in self.promotion_lifts],
            confidence=self.confidence,
            errors=self.errors[1:],
            rewards=self.rewards,
            block=self.block,
            logged=self.policies[0] == LOGGING and self.ranking is None,
            weights_average_1=self.ranking is None
            and not all("scored" in estimator.needs and estimator.ratio for estimator in self.estimators.values()),
            largest_loss=self._largest_loss,
            ever_added=max(self.candidate_order.values(), default=1),
        )

    @property
    def _largest_loss(self) -> float | None:
        """Return by how much production's term of a page may exceed a candidate's, or None unless events are rankings.

        Infinite if production is not the order that was shown.
        """
        if self.ranking is None:
            return None
        return self.ranking.largest_loss if self.policies[0] == LOGGING else math.inf

    @property
    def errors(self) -> Array:
        """Return the probability that a confidence sequence ever misses, [policies].

        Candidates share one probability: all that were ever added, or as many as promotion's `family_size`.
        """
        error, order = 1.0 - self.confidence, [self.candidate_order[name] for name in self.policies[1:]]
        family = None if self.promotion is None else self.promotion.family_size
        return np.concatenate([[error], error_shares(error, order, family)])

    def needs_of(self, estimator: AnyEstimator) -> frozenset[Requirement]:
        """Return the fields that an estimator and its reward model need events to have."""
        model = self._model_of(estimator)
        return frozenset(estimator.needs if model is None else estimator.needs | model.needs)

    def interval(self, average: AnyAverage) -> AnyInterval:
        """Return the interval on an average: the configured one, or the one that the coverage study recommends."""
        default = average.default_interval
        return self.intervals.get(average.label) or _INTERVAL.validate_python({"kind": default})

    def settings(self) -> State:
        """Return the config as a plain value."""
        settings: State = _CONFIG.dump_python(self)
        return settings

    @staticmethod
    def describe(settings: State) -> State:
        """Return the production policy, the products, the reward range and the confidence, as values that JSON has."""
        first = settings["rewards"][0]
        general = {name: settings[name] for name in ("products", "confidence")}
        return {"production": settings["policies"][0], **general, "reward_range": (first["low"], first["high"])}

    @classmethod
    def without_code(
        cls, settings: State, reward_model: AnyRewardModel | None, candidates: Candidates
    ) -> tuple[EvaluatorConfig, EvaluatorConfig]:
        """Return the config of settings, and the config without code that the caller does not name.

        The second one has logged policies in place of policies in code, and Ridge in place of a foreign reward model.
        """
        config, named = _CONFIG.validate_python(settings), named_policies(candidates)
        computed = config.computed_policies.items()
        kept = {name: policy for name, policy in computed if is_trusted(name, policy, named)}
        is_foreign = config.reward_model.is_external and config.reward_model != reward_model
        return config, replace(
            config, computed_policies=kept, reward_model=Ridge() if is_foreign else config.reward_model
        )

    @classmethod
    def from_settings(cls, settings: State, trusted: Candidates = ()) -> EvaluatorConfig:
        """Return the config of `settings()`.

        A state may come from anywhere: code in it runs only if `trusted` names it.

        Raises:
            StateError: The settings name a policy in code that `trusted` does not name.
            ProblemsError: The settings do not fit together.
        """
        config, allowed = _CONFIG.validate_python(settings), named_policies(trusted)
        for name, policy in config.computed_policies.items():
            if not is_trusted(name, policy, allowed):
                raise StateError(
                    f"the state holds the policy {name!r}, which is code: it runs only if the caller names it",
                    hint="give from_state the candidates of the configuration",
                )
        functions = {name: policy for name, policy in allowed.items() if config.computed_policies.get(name) == policy}
        config = replace(config, computed_policies={**config.computed_policies, **functions})
        refuse(config._problems())
        return config


_INTERVAL: TypeAdapter[AnyInterval] = TypeAdapter(AnyInterval)
_CONFIG: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)


def segmented_estimate(config: EvaluatorConfig) -> tuple[AnyEstimator, AnyAverage]:
    """Return the estimate that segments split.

    It is on the first average with fixed weights. Of its estimators that have no denominator and no bias by design,
    promotion's preference decides; a default estimator needs no more than the logged action.

    Raises:
        ValueError: No estimate adds up over segments.
    """
    usable = [
        (estimator, average)
        for estimator, average, _ in config.pairs.values()
        if average.factor is not None
        and not (estimator.ratio or estimator.is_biased_by_design or len(estimator.alternatives) > 1)
        and not (config.default_estimators and config.needs_of(estimator))
    ]
    if not usable:
        raise ValueError(
            "segments need an unbiased estimator without a denominator, such as ips, on cumulative or decay by events"
        )
    return min((pair for pair in usable if pair[1] == usable[0][1]), key=lambda pair: pair[0].preference)


def _products(options: EvaluatorOptions) -> tuple[Product, ...]:
    published, best = PUBLISHED_ESTIMATORS, BEST_ESTIMATORS
    if options.ranking is not None:
        published, best = CLICK_ESTIMATORS, CLICK_ESTIMATORS[:1]
    if options.propensity is not None:
        published = best = ESTIMATED_ESTIMATORS
    if not options.estimators and not options.averages:
        return ((published, PUBLISHED_AVERAGES), (best, (BEST_AVERAGE,)))
    estimators, averages = tuple(dict.fromkeys((*published, *best))), (*PUBLISHED_AVERAGES, BEST_AVERAGE)
    return ((options.estimators or estimators, options.averages or averages),)


def _ranks_pages(policy: object) -> bool:
    return isinstance(policy, LearningPolicy) and policy.ranks_pages


def _name_problems(production: str, candidates: Candidates) -> Iterator[Problem]:
    """Yield the problems of the names of policies."""
    steps = candidates if isinstance(candidates, Mapping) else range(len(candidates))
    paths: list[KeyPath] = [("production",), *(("candidates", step) for step in steps)]
    names: set[str] = set()
    for path, name in zip(paths, (production, *candidates), strict=True):
        if UNWRITABLE.search(name):
            message = expecting("a name without quotes, backslashes and control characters", repr(name))
            hint = "a policy has the same name in events, configuration and metrics: give it a plain one"
            yield Problem(path, message, hint)
        elif names and name == LOGGING:
            hint = "'logging' is reserved for the policy that made the log; it is estimated as production"
            yield Problem(path, expecting("the name of a policy", "'logging'"), hint)
        elif names and name == production:
            hint = "production is estimated anyway: remove it here"
            yield Problem(path, expecting("another policy than production", f"'{name}'"), hint)
        elif name in names:
            yield Problem(path, expecting("each policy once", f"'{name}' again"), "remove one of the two")
        names.add(name)


def _label_problems(option: str, components: Sequence[Component]) -> Iterator[Problem]:
    labels = [component.label for component in components]
    if not labels:
        yield Problem((option,), expecting("a list that is not empty", "[]"))
    for index, label in enumerate(labels):
        if label in labels[:index]:
            actual = f"'{label}', the label of {option}.{labels.index(label)}"
            hint = f"give each a name: {{kind: ..., name: {label}_2}}"
            yield Problem((option, index), expecting("its own label", actual), hint)
