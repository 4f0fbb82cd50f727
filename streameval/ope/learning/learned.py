"""Learn policies from the stream: each block is predicted first, and then learned from."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State, ratio
from streameval.common.component import strict
from streameval.events import Fault
from streameval.events.action_sets import Index
from streameval.ope.learning.adam import LinearPolicy, drawn
from streameval.ope.policies.base import Answer, Log
from streameval.ope.policies.own_choices import LearnsFrom, OwnLimit

BASELINE_HORIZON = 5_000.0
"""Horizon in events of the baseline of rewards under `snips`."""
NO_SCORES = Fault("missing_field", "features: missing, or another number of them; or the logged distribution")
Objective: TypeAlias = Literal["ips", "snips", "dr", "cab"]
MODEL_OBJECTIVES = ("dr", "cab")
"""Objectives that need the reward model's predictions."""


class ScoredEvents(NamedTuple):
    """Hold events with scored actions, with the actions row by row.

    Attributes:
        features: [rows, d]
        start: the score before learning, `-inf` for an action that is never taken [rows]
        starts: the first row of each event [events]
        sizes: the number of rows of each event [events]
        logged: the row of the logged action [events]
        propensity: as in `Log` [events]
        reward: as in `Log` [events]
        weight: as in `Log` [events]
        prediction: as in `Log` [rows]
        propensities: the logged distribution, NaN if it is not logged [rows]
    """

    features: Array
    start: Array
    starts: Index
    sizes: Index
    logged: Index
    propensity: Array
    reward: Array
    weight: Array
    prediction: Array
    propensities: Array

    def select(self, first: int, last: int) -> ScoredEvents:
        """Return the events from `first` to before `last`, one or more."""
        events, start = slice(first, last), self.starts[first]
        rows = slice(start, self.starts[last - 1] + self.sizes[last - 1])
        return ScoredEvents(
            self.features[rows],
            self.start[rows],
            self.starts[events] - start,
            self.sizes[events],
            self.logged[events] - start,
            *(self.propensity[events], self.reward[events], self.weight[events]),
            *(self.prediction[rows], self.propensities[rows]),
        )

    def probabilities(self, weights: Array, temperature: float = 1.0) -> Array:
        """Return the softmax of the scores within each event [rows], for `weights` [1 or positions, d]."""
        scores = np.matmul(self._by_position(weights), weights[..., None])[..., 0].T.ravel() + self.start
        lead = scores - self.spread(np.maximum.reduceat(scores, self.starts))
        if temperature != 1:
            with np.errstate(over="ignore"):
                lead = lead / temperature
        powers = np.exp(lead)
        return np.asarray(powers / self.spread(self.sums(powers)))

    def sums(self, values: Array) -> Array:
        """Return the sum over the actions of each event."""
        return np.asarray(np.add.reduceat(values, self.starts))

    def gradient(self, weights: Array, by_score: Array) -> Array:
        """Return the derivative by the weights, from the derivatives by the scores [rows]."""
        by_position = by_score.reshape(-1, len(weights)).T[:, None]
        return np.asarray(np.matmul(by_position, self._by_position(weights))[:, 0])

    def spread(self, values: Array) -> Array:
        """Repeat the number of each event at each of its rows."""
        return np.repeat(values, self.sizes)

    def _by_position(self, weights: Array) -> Array:
        """Return the features by position in the list of actions, or all at the only position [positions, .., d]."""
        return self.features.reshape(-1, *weights.shape).swapaxes(0, 1)


@dataclass(frozen=True, config=strict)
class Learned(LinearPolicy):
    """Learn a softmax of linear scores, `exp(w . features)`, by ascending an estimate of its own value block by block.

    Each block is predicted with the weights from before it. Then one step of Adam on the objective follows. It uses
    importance weights `W(a) = pi_w(a|x) / p(a)`, `W` for the logged action, and the reward model's predictions `q(a)`
    from before the block. Rewards r and predictions count from the lowest possible reward: otherwise `ips` and `cab`
    would seek or avoid any logged action, whatever it earns. The objective of a block of n events is

    * `ips`: `mean(W r)`
    * `snips`: `mean(W (r - l))`, with the policy's recent self-normalised value l, which has an equal optimum
    * `dr`: `mean(sum over a of pi_w(a|x) q(a) + W (r - q(logged action)))`
    * `cab`: `mean(sum over a of max(pi_w(a|x) - clip p(a), 0) q(a) + min(W, clip) r)`. The model stands in for what
      `clip` cuts off. Events must have the logged distribution.

    Events need features for each action. Without `weights` the first event with features decides their number.

    Args:
        objective: the estimate that it ascends
        variance: lambda of the penalty `lambda sqrt(var(term) / n)` on the terms of the objective, with `ips` POEM, and
            with `snips` Norm-POEM
        variance_events: the n of the penalty, by default the events of a block. A penalty that was chosen for a whole
            log of n events needs this: per block of 100 it would be sqrt(n / 100) times as large
        l2: mu of the penalty `mu |w|^2` on the weights
        clip: larger importance weights count as this one, required for `cab`
        step: the learning rate, in [0, 1]. With 0 the policy stays as it is.
        start_from: `uniform`, or `logging` for the logged distributions times the softmax, which events must then have
        per_action: whether each position in the list of actions has its own weights. Lists must then be equally long in
            all events.
        counter_sample: whether steps use n events drawn with probability proportional to `1 / p`, all with equal
            weight, so that no single event makes a long step
        horizon: weights fade by `exp(-events / horizon)` before each step, so that the policy forgets a world that has
            changed and stays unsure enough to learn
        weights: the weights to start from, as a policy file has them [1 or positions, features]
        learns_from: `all` logged events, or `own` choices alone, as it would have made them: see `own_choices.fold`
        own_limit: with `own`, importance weights up to this one are replayed exactly
        average: whether the policy has the mean of the weights after each step, see `LinearPolicy`
        temperature: divides the scores of the policy that is evaluated, and the logarithms of the logged distribution
            that it starts from. Below 1 it takes its best action more often. Steps do not depend on it.

    Source: Swaminathan & Joachims, JMLR 2015 (POEM), for the penalty and clipping, and NIPS 2015 for Norm-POEM;
    Joachims, Swaminathan & de Rijke, ICLR
    2018, for the baseline; Dudik, Langford & Li, ICML 2011, for `dr`; Su et al., ICML 2019, for `cab`; Jagerman & de
    Rijke, SIGIR 2020, for the sampling.
    """

    objective: Annotated[Objective, Field(description="the estimate that it ascends")] = "ips"
    variance: Annotated[NonNegativeFloat, Field(description="the penalty on the variance of the objective")] = 0.0
    variance_events: Annotated[
        PositiveFloat | None, Field(description="the events of the penalty's n; null: the events of a block")
    ] = None
    l2: Annotated[NonNegativeFloat, Field(description="the penalty on the squares of the weights")] = 0.0
    clip: Annotated[PositiveFloat | None, Field(description="the largest importance weight, required for cab")] = None
    step: Annotated[float, Field(ge=0, le=1, description="the learning rate; 0 stays as it is")] = 0.02
    start_from: Annotated[
        Literal["uniform", "logging"],
        Field(description="what the softmax multiplies: nothing, or the logged distribution"),
    ] = "uniform"
    per_action: Annotated[bool, Field(description="weights for each position in the list of actions")] = False
    counter_sample: Annotated[bool, Field(description="steps use sampled events in place of weighted ones")] = False
    horizon: Annotated[
        Annotated[float, Field(ge=100)] | None, Field(description="events after which weights have faded; null: never")
    ] = None
    weights: Annotated[
        tuple[tuple[float, ...], ...], Field(description="the weights to start from; `file` reads them")
    ] = field(default=(), repr=False)
    learns_from: LearnsFrom = "all"
    own_limit: OwnLimit = 10.0
    average: Annotated[bool, Field(description="the mean of the weights after each step")] = False
    temperature: Annotated[PositiveFloat, Field(description="divides the scores that it is evaluated with")] = 1.0
    kind: Literal["learned"] = field(default="learned", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if len(set(map(len, self.weights))) > 1 or self.weights == ((),):
            raise ValueError("weights must be rows of equally many features, one or more")
        if len(self.weights) > 1 and not self.per_action:
            raise ValueError(f"weights have {len(self.weights)} rows: only a policy with per_action has several")
        if self.objective == "cab" and self.clip is None:
            raise ValueError("the objective cab needs a clip: without one it is ips")

    @property
    def needs_prediction(self) -> bool:
        return self.objective in MODEL_OBJECTIVES

    def start(self) -> State:
        """Return the state before the first event. `sums` are recent sums of `W r` and `W`."""
        return {**super().start(), "sums": np.zeros(2)}

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        """Return the distributions, each with the weights before its block, and the state after the whole blocks."""
        width = log.sets.first_width
        positions = int(log.sets.sizes[np.flatnonzero(log.sets.widths)[0]]) if self.per_action and width else 1
        state = self.opened(state, positions, width)
        chosen, events = self._scored(log, state["weights"])
        places, probabilities = np.append(0, np.cumsum(chosen)), [np.empty(0)]
        for first in range(0, len(chosen), log.block):
            start, end = places[first], places[min(first + log.block, len(chosen))]
            if start < end:
                block_events = events.select(start, end)
                probabilities.append(block_events.probabilities(self.weights_of(state), self.temperature))
                if first + log.block <= len(chosen) and self.step:
                    is_moved = self.average or self.temperature != 1
                    own = block_events.probabilities(state["weights"]) if is_moved else probabilities[-1]
                    state = self._learn(state, block_events, own, log.reward_range)
        rows = np.full(len(log.sets.propensities), np.nan)
        rows[np.repeat(chosen, log.sets.sizes)] = np.concatenate(probabilities)
        return (rows, dict.fromkeys(np.flatnonzero(~chosen).tolist(), NO_SCORES)), state

    def _scored(self, log: Log, weights: Array) -> tuple[Mask, ScoredEvents]:
        """Return a mask of the events that can be predicted [events], and these events."""
        sets = log.sets
        with np.errstate(divide="ignore"):
            start = np.log(sets.propensities) if self.start_from == "logging" else np.zeros(len(sets.propensities))
        prediction = start if log.prediction is None or not self.needs_prediction else log.prediction
        bad = np.isnan(start) | np.isnan(prediction)
        if self.objective == "cab":
            bad |= np.isnan(sets.propensities)
        chosen = sets.of_width(weights.shape[1]) & (sets.index >= 0)
        if bad.any():
            chosen &= np.bincount(sets.owner, weights=bad, minlength=len(sets.index)) == 0
        if self.per_action:
            chosen &= sets.sizes == len(weights)
        sizes = sets.sizes[chosen]
        starts = np.cumsum(sizes) - sizes
        rows: slice | Mask = slice(None) if chosen.all() else np.repeat(chosen, sets.sizes)
        return chosen, ScoredEvents(
            sets.features_of(chosen, weights.shape[1]),
            start[rows],
            starts,
            sizes,
            starts + sets.index[chosen],
            *(log.propensity[chosen], log.reward[chosen] - log.reward_range[0], log.weight[chosen]),
            *(prediction[rows] - log.reward_range[0], sets.propensities[rows]),
        )

    def _learn(
        self, state: State, events: ScoredEvents, probabilities: Array, reward_range: tuple[float, float]
    ) -> State:
        """Return the state after one step of Adam on these events, from the probabilities by its weights."""
        if self.counter_sample:
            events = events._replace(weight=events.weight * drawn(state["steps"] + 1, 1 / events.propensity))
        _, by_score = self.objective_of(events, probabilities, self.baseline(state, reward_range[0]))
        gradient = events.gradient(state["weights"], by_score) - 2.0 * self.l2 * state["weights"]
        is_known, importance = ~np.isnan(events.reward), probabilities[events.logged] / events.propensity
        earned = events.reward[is_known] + reward_range[0]
        sums = np.array([importance[is_known] @ earned, importance[is_known].sum()])
        after = self.climbed(state, gradient, len(is_known), reward_range)
        return after | {"sums": state["sums"] * np.exp(-len(is_known) / BASELINE_HORIZON) + sums}

    def objective_of(self, events: ScoredEvents, probabilities: Array, baseline: float) -> tuple[float, Array]:
        """Return the objective of a policy with these probabilities, and its derivative by the scores [rows]."""
        importance, is_known = probabilities[events.logged] / events.propensity, ~np.isnan(events.reward)
        limit = np.inf if self.clip is None else self.clip
        is_clipped, importance = importance > limit, np.minimum(importance, limit)
        weight = np.where(is_known, events.weight, 0.0)
        subtracted = events.prediction[events.logged] if self.objective == "dr" else baseline
        corrected = np.where(is_known, importance * (events.reward - subtracted), 0.0)
        term, by_logarithm = corrected, np.zeros_like(probabilities)  # by the logarithms of probabilities
        if self.needs_prediction:
            modelled, by_logarithm = self._modelled(events, probabilities)
            term = term + events.sums(modelled)
        total = float(weight.sum()) or 1.0
        mean = float(weight @ term) / total
        spread = float(np.sqrt(weight @ (term - mean) ** 2)) / total  # sqrt(var / n)
        penalty = self.variance * (1.0 if self.variance_events is None else math.sqrt(total / self.variance_events))
        by_term = weight / total
        if penalty and spread > 0:
            by_term = by_term * (1 - penalty * (term - mean) / (total * spread))
        by_logarithm *= events.spread(by_term)
        by_logarithm[events.logged] += np.where(is_clipped, 0.0, by_term * corrected)
        by_score = by_logarithm - probabilities * events.spread(events.sums(by_logarithm))
        return mean - penalty * spread, by_score

    def _modelled(self, events: ScoredEvents, probabilities: Array) -> tuple[Array, Array]:
        """Return each action's part in the model's terms, and its derivative by the logarithm of the probability."""
        whole = probabilities * events.prediction
        if self.objective == "dr" or self.clip is None:
            return whole, whole
        beyond = probabilities - self.clip * events.propensities
        return np.maximum(beyond, 0.0) * events.prediction, np.where(beyond > 0, whole, 0.0)

    def baseline(self, state: State, lowest: float = 0.0) -> float:
        """Return the value that is subtracted from rewards, which count from the lowest one. It is 0 for `ips`."""
        return float(np.nan_to_num(ratio(*state["sums"]) - lowest)) if self.objective == "snips" else 0.0
