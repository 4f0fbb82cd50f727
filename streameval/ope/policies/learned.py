"""Policies that learn from the stream: each block is predicted first, and then learned from."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State, ratio
from streameval.common.component import Configurable, strict
from streameval.events import ActionSets, Fault
from streameval.events.action_sets import LARGEST_FEATURE, Index
from streameval.ope.policies.base import Answer

BASELINE_HORIZON = 5_000.0
"""Horizon in events of the baseline of rewards under `snips`."""
FADING_GRADIENT, FADING_SQUARE = 0.9, 0.999
"""The fading factors of Adam, for the mean gradient and for its mean square."""
SMALLEST_SCALE = 1e-8
NO_SCORES = Fault("missing_field", "features: missing, or another number of them; or the logged distribution")


class Log(NamedTuple):
    """Consecutive events to predict, and to learn from where they are whole blocks.

    `propensity`, `reward`, `weight` [n]: of the logged actions, with the inverse sampling probability of the event; a
    reward is NaN where the event lacks it.
    """

    sets: ActionSets
    propensity: Array
    reward: Array
    weight: Array
    block: int

    def part(self, first: int) -> Log:
        """The block that starts with this event."""
        events = slice(first, first + self.block)
        propensity, reward, weight = self.propensity[events], self.reward[events], self.weight[events]
        return Log(self.sets.take(events), propensity, reward, weight, self.block)


class ScoredEvents(NamedTuple):
    """Events whose actions have scores, with the actions row by row.

    Attributes:
        features: [rows, d]
        start: [rows] score before learning; `-inf` for an action that is never taken
        starts: [events] the first row of each event
        logged: [events] the row of the logged action
        propensity, reward, weight: [events] as in `Log`
    """

    features: Array
    start: Array
    starts: Index
    logged: Index
    propensity: Array
    reward: Array
    weight: Array

    def probabilities(self, weights: Array) -> Array:
        """The softmax of the scores within each event, [rows]; `weights` [1 or positions, d]."""
        scores = np.einsum("epd,pd->ep", self._by_position(weights), weights).ravel() + self.start
        powers = np.exp(scores - self.spread(np.maximum.reduceat(scores, self.starts)))
        return np.asarray(powers / self.spread(np.add.reduceat(powers, self.starts)))

    def gradient(self, weights: Array, by_score: Array) -> Array:
        """The derivative by the weights, from the derivatives by the scores, [rows]."""
        by_position = self._by_position(weights)
        return np.asarray(np.einsum("ep,epd->pd", by_score.reshape(by_position.shape[:2]), by_position))

    def spread(self, of_events: Array) -> Array:
        """A number of each event, at each of its rows."""
        return np.repeat(of_events, np.diff(self.starts, append=len(self.start)))

    def _by_position(self, weights: Array) -> Array:
        """The features [.., positions, d]: the actions of an event by position, or all actions at the only position."""
        return self.features.reshape(-1, *weights.shape)


@dataclass(frozen=True, config=strict)
class Learned(metaclass=Configurable):
    """A softmax of linear scores, `exp(w . features)`, that ascends an estimate of its own value, block by block.

    Each block is predicted with the weights from before it; then one step of Adam on its objective follows, with
    importance weights `W = pi_w(a|x) / p` of its n events:

    * `ips`: `mean(W r)`
    * `snips`: `mean(W (r - l))`, where the baseline l is the policy's recent self-normalised value. At the optimum of
      the self-normalised value the gradients of both are 0

    `variance`: lambda of the penalty `lambda sqrt(var(term) / n)` on the terms of the objective. `clip`: larger
    importance weights count as this one. `step`: the learning rate. `start_from`: `uniform`, or `logging` for the
    logged distributions times the softmax, which events must then have. `per_action`: weights for each position in the
    list of actions, which must be equally long in all events; otherwise all actions share the weights.
    `counter_sample`: steps from n events drawn with probability proportional to `1 / p`, each with the same weight,
    so that no single event makes a long step.

    Events need features for each action; the first event with features decides their number.

    Source: Swaminathan & Joachims, JMLR 2015, for the penalty and clipping; Joachims, Swaminathan & de Rijke, ICLR
    2018, for the baseline; Jagerman & de Rijke, SIGIR 2020, for the sampling; Kingma & Ba, ICLR 2015, for Adam.
    """

    objective: Annotated[Literal["ips", "snips"], Field(description="the estimate that it ascends")] = "ips"
    variance: NonNegativeFloat = 0.0
    clip: PositiveFloat | None = None
    step: Annotated[float, Field(gt=0, le=1)] = 0.02
    start_from: Literal["uniform", "logging"] = "uniform"
    per_action: bool = False
    counter_sample: bool = False
    kind: Literal["learned"] = field(default="learned", kw_only=True, repr=False)

    def start(self) -> State:
        """The state before the first event; the number of features is unknown.

        `weights`: [1 or positions, features]. `mean`, `square`: of gradients. `sums`: recent sums of `W r` and `W`.
        """
        none = np.zeros((0, 0))
        return {"steps": 0, "weights": none, "mean": none, "square": none, "sums": np.zeros(2)}

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        """The distributions, each with the weights from before its block, and the state after the whole blocks."""
        rows, faults = np.full(len(log.sets.propensities), np.nan), dict[int, Fault]()
        for first in range(0, len(log.reward), log.block):
            part = log.part(first)
            state = self._opened(state, part.sets)
            chosen, scored = self._scored(part, state["weights"])
            faults |= dict.fromkeys((first + np.flatnonzero(~chosen)).tolist(), NO_SCORES)
            if chosen.any():
                probabilities = scored.probabilities(state["weights"])
                rows[log.sets.offsets[first] + np.flatnonzero(np.repeat(chosen, part.sets.sizes))] = probabilities
                if len(chosen) == log.block:
                    state = self._learn(state, scored, probabilities)
        return (rows, faults), state

    def _opened(self, state: State, sets: ActionSets) -> State:
        """The state with weights of 0, once an event has features."""
        width = sets.first_width
        if len(state["weights"]) or not width:
            return state
        positions = int(sets.sizes[np.flatnonzero(sets.widths)[0]]) if self.per_action else 1
        return state | {name: np.zeros((positions, width)) for name in ("weights", "mean", "square")}

    def _scored(self, log: Log, weights: Array) -> tuple[Mask, ScoredEvents]:
        """Which events can be predicted, [events], and these events."""
        sets = log.sets
        usable, features = sets.features_of_width(weights.shape[1])
        moderate = (np.abs(features) <= LARGEST_FEATURE).all(axis=1)
        with np.errstate(divide="ignore"):
            start = np.log(sets.propensities) if self.start_from == "logging" else np.zeros(len(sets.propensities))
        bad = ~usable | np.isnan(start)
        bad[usable] |= ~moderate
        chosen = (sets.index >= 0) & (np.bincount(sets.owner, weights=bad, minlength=len(sets.index)) == 0)
        if self.per_action:
            chosen &= sets.sizes == len(weights)
        rows, sizes = np.repeat(chosen, sets.sizes), sets.sizes[chosen]
        starts = np.cumsum(sizes) - sizes
        kept = features if rows.all() else features[rows[usable]]
        logged = (column[chosen] for column in (log.propensity, log.reward, log.weight))
        return chosen, ScoredEvents(kept, start[rows], starts, starts + sets.index[chosen], *logged)

    def _learn(self, state: State, events: ScoredEvents, probabilities: Array) -> State:
        """The state after one step of Adam on these events."""
        steps = state["steps"] + 1
        if self.counter_sample:
            events = events._replace(weight=events.weight * self._drawn(steps, events.propensity))
        _, by_score = self.objective_of(events, probabilities, self.baseline(state))
        gradient = events.gradient(state["weights"], by_score)
        mean = FADING_GRADIENT * state["mean"] + (1 - FADING_GRADIENT) * gradient
        square = FADING_SQUARE * state["square"] + (1 - FADING_SQUARE) * gradient**2
        scale = np.sqrt(square / (1 - FADING_SQUARE**steps)) + SMALLEST_SCALE
        move = self.step * mean / (1 - FADING_GRADIENT**steps) / scale
        known, importance = ~np.isnan(events.reward), probabilities[events.logged] / events.propensity
        sums = np.array([importance[known] @ events.reward[known], importance[known].sum()])
        return {
            "steps": steps,
            "weights": state["weights"] + move,
            "mean": mean,
            "square": square,
            "sums": state["sums"] * np.exp(-len(known) / BASELINE_HORIZON) + sums,
        }

    def objective_of(self, events: ScoredEvents, probabilities: Array, baseline: float) -> tuple[float, Array]:
        """The objective of a policy with these probabilities, and its derivative by the scores of actions, [rows]."""
        importance, known = probabilities[events.logged] / events.propensity, ~np.isnan(events.reward)
        limit = np.inf if self.clip is None else self.clip
        is_clipped, importance = importance > limit, np.minimum(importance, limit)
        term = np.where(known, importance * (np.nan_to_num(events.reward) - baseline), 0.0)
        weight = np.where(known, events.weight, 0.0)
        total = float(weight.sum()) or 1.0
        mean = float(weight @ term) / total
        spread = float(np.sqrt(weight @ (term - mean) ** 2)) / total  # sqrt(var / n)
        by_term = weight / total
        if self.variance and spread > 0:
            by_term = by_term * (1 - self.variance * (term - mean) / (total * spread))
        by_logarithm = np.where(is_clipped, 0.0, by_term * term)  # of the probability of the logged action
        by_score = -probabilities * events.spread(by_logarithm)
        by_score[events.logged] += by_logarithm
        return mean - self.variance * spread, by_score

    def baseline(self, state: State) -> float:
        """The value that is subtracted from rewards: 0 for `ips`."""
        return float(np.nan_to_num(ratio(*state["sums"]))) if self.objective == "snips" else 0.0

    @staticmethod
    def _drawn(step: int, propensity: Array) -> Array:
        """How often each event is drawn with probability proportional to `1 / p`, over how often that is expected."""
        share = 1 / propensity
        share /= share.sum()
        return np.asarray(np.random.default_rng(step).multinomial(len(share), share) / (len(share) * share))
