"""Read the options of an evaluator, as Python or YAML writes them: names of kinds, mappings of options, or values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from inspect import isclass
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from streameval.common.component import Component, StrictModel, kind_as_mapping
from streameval.common.problems import Problem, expecting, refuse, shown
from streameval.common.text import parse_duration
from streameval.events.segments import Segment
from streameval.ope.candidates import AnyPolicy, policy_or_options
from streameval.ope.core import AnyAverage
from streameval.ope.core.base import Average
from streameval.ope.estimators import AnyEstimator
from streameval.ope.estimators.base import Estimator
from streameval.ope.estimators.function import FunctionEstimator
from streameval.ope.evaluator.drift_detection import DriftDetector
from streameval.ope.evaluator.estimated_propensity import EstimatedPropensity
from streameval.ope.evidence.arms import Arms
from streameval.ope.evidence.clicks import Ranking
from streameval.ope.evidence.evidence import LARGEST_WEIGHT
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.base import IntervalMethod
from streameval.ope.policies.logged import LOGGING
from streameval.ope.policies.python import Policy
from streameval.ope.promotion import Promotion
from streameval.ope.promotion.guardrails import Beyond, Reward
from streameval.ope.reward_models import AnyRewardModel, Ridge
from streameval.ope.reward_models.base import RewardModel

KindOrOptions: TypeAlias = Mapping[str, Any] | str
"""The name of a kind; or a mapping with the kind and its options."""

Candidates: TypeAlias = Sequence[str] | Mapping[str, AnyPolicy | str | Policy]
"""Names under which events carry probabilities; or policies, or functions, by name."""

Name = Annotated[str, Field(min_length=1)]


def _by_kind(base: type[Component]) -> WrapValidator:
    """Take the name of a kind, a mapping of its options, or a value of any class that derives from `base`."""

    def checked(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        if isclass(value) and issubclass(value, base):
            raise ValueError(f"expected a value, found the class {value.__name__}: write {value.__name__}()")
        return value if isinstance(value, base) else check(kind_as_mapping(value))

    return WrapValidator(checked)


# --- Policies ---


def _without_functions(value: object) -> object:
    functions = [item for item in (value if isinstance(value, list) else [value]) if callable(item)]
    if functions:
        hint = "give each function a name, e.g. candidates={'mine': f}"
        refuse([Problem((), expecting("names, or a mapping", shown(functions[0])), hint)])
    return value


NamesOrPolicies = Annotated[
    Annotated[list[Name], BeforeValidator(_without_functions), Tag("list")]
    | Annotated[dict[Name, Annotated[AnyPolicy, BeforeValidator(policy_or_options)]], Tag("mapping")],
    Discriminator(lambda value: "mapping" if isinstance(value, Mapping) else "list"),
    Field(
        description="the candidates by their names in the events, e.g. [challenger], or a mapping from name to policy, "
        "e.g. {challenger: logged, even: uniform}"
    ),
]


# --- Rewards ---


def _window_of_units(value: object) -> object:
    """Require a duration, as units are counted once in windows of event time that do not overlap."""
    try:
        if value is None or (isinstance(value, str) and parse_duration(value) > 0):
            return value
    except ValueError:
        pass
    hint = "write a duration: averages and windows of events would need all times of all units to count units once"
    refuse([Problem((), expecting("the length of windows of time, such as 24h", shown(value)), hint)])
    return None


class RewardRange(StrictModel):
    """Limit a reward to a range."""

    min: float = Field(
        0.0,
        ge=-LARGEST_WEIGHT,
        description="the smallest possible reward; events below are rejected",
    )
    max: Annotated[float, Field(le=LARGEST_WEIGHT)] | Literal["auto"] = Field(
        1.0,
        description="the largest possible reward; events above are rejected; with auto, rewards are clipped at the "
        "`quantile` of the rewards before them",
    )
    quantile: float | None = Field(
        None, ge=0.5, lt=1, description="for max: auto, the quantile that rewards are clipped at, e.g. 0.999"
    )
    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        (), description="quantiles of the reward to estimate for each policy, e.g. [0.5, 0.95]"
    )
    per_unit: Annotated[str | None, BeforeValidator(_window_of_units)] = Field(
        None, description="length of the windows in which to estimate the reward per `unit` of events, e.g. 24h"
    )
    below: Beyond = Field(
        "reject",
        description="clip lets rewards below min count as min, reject drops their events; with a number, the reward "
        "is the share of events below it",
    )
    above: Beyond = Field(
        "reject",
        description="clip lets rewards above max count as max, reject drops their events; with a number, the reward "
        "is the share of events above it, e.g. 500",
    )

    @model_validator(mode="before")
    @classmethod
    def _is_per_event(cls, options: object) -> object:
        if isinstance(options, Mapping) and "per" in options:
            message = (
                "a log does not tell how often users come back under a candidate, and for the logged visits the reward "
                "per user is the reward per event times a number that all policies share"
            )
            hint = "write per_unit: 24h for the reward per unit at the visits in the log, in windows of 24 hours"
            refuse([Problem(("per",), message, hint)])
        return options

    @model_validator(mode="after")
    def _is_not_empty(self) -> Self:
        refuse(self._share_problems())
        if (self.max == "auto") != (self.quantile is not None):
            message = expecting("a quantile next to max: auto, and only there", shown(self.quantile))
            refuse([Problem(("quantile",), message, "write both, e.g. {max: auto, quantile: 0.999}, or neither")])
        if self.max != "auto" and not self.min < self.max:
            message = expecting(f"a number greater than min ({self.min:g})", f"{self.max:g}")
            refuse([Problem(("max",), message, "give the range in which every reward lies, e.g. {min: 0, max: 1}")])
        return self

    def reward(self, name: str) -> Reward:
        """Return the reward under this name."""
        high, above = (LARGEST_WEIGHT, "clip") if self.max == "auto" else (self.max, self.above)
        return Reward(
            name,
            self.min,
            high,
            below=self.below,
            above=above,
            quantile=self.quantile,
            quantiles=self.quantiles,
            per_unit=self.per_unit,
        )

    def _share_problems(self) -> Iterator[Problem]:
        """Yield what does not fit to the share of events beyond a threshold, which is from 0 to 1."""
        ends = {"below": self.below, "above": self.above}
        thresholds = [end for end, value in ends.items() if isinstance(value, float)]
        for threshold in thresholds[:1]:
            others = {"min", "max", "quantile", *ends} - {threshold}
            for option in sorted(others & self.model_fields_set):
                message = expecting(f"nothing next to a threshold ({threshold}: {ends[threshold]:g})", f"{option}")
                hint = f"remove it: the reward is the share of events {threshold} the threshold, from 0 to 1"
                yield Problem((option,), message, hint)


class GuardrailSettings(StrictModel):
    """Limit the loss of a reward: a candidate with a larger loss is not promotable."""

    max_loss: float = Field(ge=0, description="by how much a candidate may be worse than production, e.g. 0.001")


class NamedReward(RewardRange):
    """Configure one of several rewards: its field, its range, and whether it guards promotion."""

    field: Name | None = Field(None, description="the key of the reward in an event; by default the name of the reward")
    guardrail: GuardrailSettings | None = Field(
        None, description="what a promotable candidate may lose of this reward, e.g. {max_loss: 0.001}"
    )
    of: dict[Name, float] | tuple[Name, ...] = Field(
        {},
        min_length=1,
        description="weights of other rewards, with this reward as their sum, e.g. {click: 1, purchase: 10, hide: -5}; "
        "or two other rewards, with this reward as their ratio, e.g. [revenue, click]",
    )

    def reward(self, name: str) -> Reward:
        """Return the reward under this name."""
        max_loss = None if self.guardrail is None else self.guardrail.max_loss
        parts = self.of if isinstance(self.of, dict) else dict.fromkeys(self.of, 1.0)
        return replace(super().reward(name), max_loss=max_loss, of=parts, is_ratio=isinstance(self.of, tuple))


def rewards_of(named: Mapping[str, NamedReward]) -> tuple[Reward, ...]:
    """Return the rewards by these settings. The range of a weighted sum follows from its parts.

    Raises:
        ProblemsError: A weighted sum or a ratio is not of other rewards in the log, or has options of its own.
    """
    refuse(problem for name in named for problem in _sum_problems(name, named))
    refuse(problem for name in named for problem in _ratio_problems(name, named))
    rewards = {name: settings.reward(name) for name, settings in named.items()}
    for name, reward in rewards.items():
        if reward.of:
            if reward.is_ratio:
                above, below = (rewards[part] for part in reward.of)
                weight = (above.high - above.low) / (below.high - below.low)
                reward = replace(reward, of={above.name: 1.0, below.name: weight})
            parts = [(weight, rewards[part]) for part, weight in reward.of.items()]
            ends = [sorted((weight * part.low, weight * part.high)) for weight, part in parts]
            low, high = (sum(end) for end in zip(*ends, strict=True))
            rewards[name] = replace(reward, low=low, high=high)
    return tuple(rewards.values())


def _sum_problems(name: str, named: Mapping[str, NamedReward]) -> Iterator[Problem]:
    settings = named[name]
    if not settings.of:
        return
    for option in sorted({"field", "min", "max", "quantile", "below", "above"} & settings.model_fields_set):
        hint = "remove it, or write it for the parts: the range of a weighted sum follows from its parts"
        yield Problem(("rewards", name, option), expecting("nothing next to `of`", option), hint)
    is_sum = isinstance(settings.of, dict)
    for index, part in enumerate(settings.of):
        path = ("rewards", name, "of", part if is_sum else index)
        if part not in named or named[part].of:
            kind = "a weighted sum" if is_sum else "a ratio"
            hint = f"add it to `rewards`, e.g. {part}: {{max: 1}}: {kind} is of other rewards in the log"
            yield Problem(path, expecting("the name of a reward in the log", f"'{part}'"), hint)
        elif named[part].max == "auto":
            hint = (
                "give the part a number as max, e.g. {max: 200, above: clip}: the range of a sum follows from its parts"
            )
            yield Problem(path, expecting("a reward with a fixed range", f"'{part}' with max: auto"), hint)
        elif isinstance(settings.of, dict) and settings.of[part] == 0:
            yield Problem(path, expecting("a weight that is not 0", "0"), "leave the reward out")


def _ratio_problems(name: str, named: Mapping[str, NamedReward]) -> Iterator[Problem]:
    """Yield what does not fit to a ratio, if its parts exist."""
    settings = named[name]
    if not isinstance(settings.of, tuple):
        return
    if len(set(settings.of)) != 2 or len(settings.of) != 2:
        hint = "name the numerator, then the denominator, e.g. [revenue, click]"
        yield Problem(("rewards", name, "of"), expecting("two different rewards", shown(list(settings.of))), hint)
        return
    _, below = settings.of
    if named[below].min < 0:
        hint = f"give it a min of at least 0: the ratio is unknown if the mean of {below} may be 0"
        yield Problem(("rewards", below, "min"), expecting("at least 0", f"{named[below].min:g}"), hint)
    for option in ("quantiles", "per_unit"):
        if getattr(settings, option):
            what = expecting(f"no {option} of a ratio", option)
            yield Problem(("rewards", name, option), what, "write them for its parts: single events have no ratio")


# --- All options ---


def _rules_as_mapping(value: object) -> object:
    if value is False or value == "off":
        return None
    return {"rule": value} if isinstance(value, str | list | tuple) else value


def _estimated_or_none(value: object) -> object:
    mapping = kind_as_mapping(value)
    return None if mapping == {"kind": "logged"} else mapping


def _function_as_estimator(value: object) -> object:
    return FunctionEstimator.from_function(value) if callable(value) and not isclass(value) else value


class EvaluatorOptions(StrictModel):
    """Hold the options of an evaluator that Python and YAML write alike. An empty list stands for the default."""

    ranking: Ranking | None = Field(
        None,
        description="for rankings with clicks, e.g. {metric: {kind: dcg, at: 10}, examination: {kind: power, eta: 1}}",
    )
    logging: Arms | None = Field(
        None, description="the arms of a ramp, e.g. {arms: {production: 0.9, challenger: 0.1}}, for balanced weights"
    )
    segments: dict[Name, Segment] = Field(
        {}, description="closed lists of values that split estimates, e.g. {country: {values: [de, fr], other: true}}"
    )
    propensity: Annotated[EstimatedPropensity | None, BeforeValidator(_estimated_or_none)] = Field(
        None, description="for logs without propensities, e.g. {kind: estimated, model: {kind: tabular, by: [hour]}}"
    )
    estimators: tuple[Annotated[AnyEstimator, _by_kind(Estimator), BeforeValidator(_function_as_estimator)], ...] = (
        Field((), min_length=1, description="a list of names and mappings, e.g. [ips, {kind: clipped_ips, cap: 10}]")
    )
    averages: tuple[Annotated[AnyAverage, _by_kind(Average)], ...] = Field(
        (), min_length=1, description="a list of names and mappings, e.g. [cumulative, {kind: window, tau: 10000}]"
    )
    reward_model: Annotated[AnyRewardModel, _by_kind(RewardModel)] = Field(
        Ridge(), description="the reward model of dr, cab and others that need one, e.g. {kind: ridge, horizon: 10000}"
    )
    drift: Annotated[DriftDetector | None, BeforeValidator(DriftDetector.from_option)] = Field(
        DriftDetector(), description="a drift detector of river, e.g. {detector: ADWIN}, or off"
    )
    intervals: dict[str, Annotated[AnyInterval, _by_kind(IntervalMethod)]] = Field(
        {}, description="one kind of interval per average, e.g. {cumulative: confidence_sequence}"
    )
    confidence: float = Field(0.95, gt=0, lt=1 - 1e-12, description="confidence level of the intervals, e.g. 0.95")
    promotion: Annotated[Promotion | None, BeforeValidator(_rules_as_mapping)] = Field(
        Promotion(), description="a rule, a list of rules or a mapping of options, e.g. {rule: paired}, or off"
    )

    def doubts(self) -> Iterator[Problem]:
        """Yield warnings about options that are probably meant otherwise."""
        if self.confidence < 0.5:
            message = f"intervals miss the true value in {100 * (1 - self.confidence):g} % of all cases"
            yield Problem(("confidence",), message, f"did you mean {1 - self.confidence:g}?")


def _range_as_mapping(value: object) -> object:
    return {"min": value[0], "max": value[1]} if isinstance(value, tuple | list) and len(value) == 2 else value


class EvaluatorArguments(EvaluatorOptions):
    """Hold the arguments of `Evaluator`: the options, and what YAML writes in sections of its own."""

    candidates: NamesOrPolicies
    production: Name = LOGGING
    reward_range: Annotated[RewardRange, BeforeValidator(_range_as_mapping)] = Field(
        RewardRange(), description="the smallest and the largest possible reward, e.g. (0, 1)"
    )
    rewards: dict[Name, NamedReward] = Field(
        {}, min_length=1, description="several rewards in place of `reward_range`, the goal first"
    )
    block: int = Field(100, ge=1, description="the number of events in a block")

    @property
    def all_rewards(self) -> tuple[Reward, ...]:
        """Return the rewards, the goal first."""
        if self.rewards:
            return rewards_of(self.rewards)
        return (self.reward_range.reward("reward"),)
