"""Learn a linear model of rewards, and explore by its uncertainty: LinUCB, Thompson sampling, epsilon-greedy."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State
from streameval.common.component import strict
from streameval.events import ActionSets
from streameval.events.action_sets import Index
from streameval.ope.learning.learned import NO_SCORES
from streameval.ope.learning.of_reward_model import are_highest
from streameval.ope.policies.base import Answer, LearningPolicy, Log
from streameval.ope.policies.own_choices import LearnsFrom, OwnLimit

DRAWS = 100
"""Samples of the coefficients. The choice by one of them, at random, is Thompson sampling exactly."""


@dataclass(frozen=True, config=strict)
class LinearBandit(LearningPolicy):
    """Regress rewards r on features x of actions, and explore by how uncertain the regression is.

    With `A = l2 I + sum of x x'` and `b = sum of r x` over the events that it has learned, `theta = A^-1 b` and
    `s(x)^2 = x' A^-1 x`, the score of an action is

    * `linucb`: `theta . x + width s(x)`
    * `thompson`: `t . x`, with t drawn from the Gaussian with mean theta and covariance `width^2 A^-1`
    * `epsilon_greedy`: `theta . x`

    The distribution over K actions is `epsilon / K + (1 - epsilon) b(a)`. `b(a)` is shared equally by the best actions.
    With `thompson` it is the share of 100 draws in which a is best, and draws change when the policy learns.

    Events need features for each action. The first event with features decides their number. With `learns_from: own`
    the distribution of an event is from before the event. With `all` it is from before its block.

    Args:
        algorithm: how it explores
        width: the multiple of `s(x)`
        epsilon: the probability of a random action
        l2: the penalty on the squares of coefficients
        per_action: whether each position in the list of actions has its own coefficients (disjoint LinUCB). Lists must
            then be equally long in all events.
        learns_from: `all` logged events, or `own` choices alone, as it would have made them: see `own_choices.fold`
        own_limit: with `own`, importance weights up to this one are replayed exactly

    Source: Li, Chu, Langford & Schapire, WWW 2010, Algorithm 1, for `linucb`; Agrawal & Goyal, ICML 2013, for
    `thompson`.
    """

    algorithm: Annotated[Literal["linucb", "thompson", "epsilon_greedy"], Field(description="how it explores")] = (
        "linucb"
    )
    width: Annotated[NonNegativeFloat, Field(description="the multiple of the standard error of a score")] = 1.0
    epsilon: Annotated[float, Field(ge=0, le=1, description="the probability of a random action")] = 0.0
    l2: Annotated[PositiveFloat, Field(description="the penalty on the squares of coefficients")] = 1.0
    per_action: Annotated[bool, Field(description="coefficients for each position in the list of actions")] = False
    learns_from: LearnsFrom = "all"
    own_limit: OwnLimit = 10.0
    kind: Literal["linear_bandit"] = field(default="linear_bandit", kw_only=True, repr=False)

    @property
    def learns_each_event(self) -> bool:
        return True

    def start(self) -> State:
        """Return the state before the first event: `precision` A [1 or positions, d, d] and `moment` b."""
        return {"steps": 0, "precision": np.zeros((0, 0, 0)), "moment": np.zeros((0, 0))}

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        state = self._opened(state, log.sets)
        chosen, features = self._features(log.sets, *state["moment"].shape)
        sizes = np.where(chosen, log.sets.sizes, 0)
        ends = np.append(0, np.cumsum(sizes))
        shares = [np.empty(0)]
        for first in range(0, len(chosen), log.block):
            last = min(first + log.block, len(chosen))
            rows = features[ends[first] : ends[last]]
            shares.append(self._distributions(state, rows, sizes[first:last]))
            if first + log.block <= len(chosen):
                learned = np.flatnonzero(chosen[first:last] & ~np.isnan(log.reward[first:last])) + first
                state = self._learn(state, log, features[ends[learned] + log.sets.index[learned]], learned)
        answer = np.full(len(log.sets.propensities), np.nan)
        answer[np.repeat(chosen, log.sets.sizes)] = np.concatenate(shares)
        return (answer, dict.fromkeys(np.flatnonzero(~chosen).tolist(), NO_SCORES)), state

    def _opened(self, state: State, sets: ActionSets) -> State:
        """Return the state with a prior for this many features, if it has none."""
        width = sets.first_width
        if len(state["moment"]) or not width:
            return state
        positions = int(sets.sizes[np.flatnonzero(sets.widths)[0]]) if self.per_action else 1
        prior = np.tile(self.l2 * np.eye(width), (positions, 1, 1))
        return {**state, "precision": prior, "moment": np.zeros((positions, width))}

    def _features(self, sets: ActionSets, positions: int, width: int) -> tuple[Mask, Array]:
        """Return a mask of the events that can be predicted [events], and their features [rows, d]."""
        chosen = sets.of_width(width) & (sets.index >= 0)
        if self.per_action:
            chosen &= sets.sizes == positions
        return chosen, sets.features_of(chosen, width)

    def _distributions(self, state: State, features: Array, sizes: Index) -> Array:
        """Return the distributions of events with these numbers of actions, 0 for events to leave out [rows]."""
        sizes = sizes[sizes > 0]
        if not len(sizes):
            return np.empty(0)
        scores, starts = self._scores(state, features), np.cumsum(sizes) - sizes
        highest = np.repeat(np.maximum.reduceat(scores, starts), sizes, axis=0)
        best = are_highest(scores, highest).astype(float)
        share = (best / np.repeat(np.add.reduceat(best, starts), sizes, axis=0)).mean(axis=1)
        return np.asarray(self.epsilon / np.repeat(sizes, sizes) + (1 - self.epsilon) * share)

    def _scores(self, state: State, features: Array) -> Array:
        """Return the scores [rows, 1 or draws]."""
        eigenvalues, vectors = np.linalg.eigh(state["precision"])
        eigenvalues = np.maximum(eigenvalues, self.l2)[:, None]  # rounding, if features depend on each other
        inverse = np.matmul(vectors / eigenvalues, vectors.swapaxes(1, 2))
        theta = np.matmul(inverse, state["moment"][..., None])
        if self.algorithm == "thompson":
            normal = np.random.default_rng(state["steps"]).standard_normal((*state["moment"].shape, DRAWS))
            root = np.matmul(vectors / np.sqrt(eigenvalues), vectors.swapaxes(1, 2))
            theta = theta + self.width * np.matmul(root, normal)
        by_position = features.reshape(-1, *state["moment"].shape).swapaxes(0, 1)  # [positions, .., d]
        scores = np.matmul(by_position, theta)
        if self.algorithm == "linucb":
            squares = (np.matmul(by_position, inverse) * by_position).sum(axis=2, keepdims=True)
            scores = scores + self.width * np.sqrt(np.maximum(squares, 0.0))
        return np.asarray(scores.swapaxes(0, 1).reshape(len(features), -1))

    def _learn(self, state: State, log: Log, features: Array, events: Index) -> State:
        """Return the state after the logged actions of these events."""
        if not len(events):
            return state
        positions = len(state["moment"])
        weighted = np.zeros((positions, len(events), features.shape[1]))
        weighted[log.sets.index[events] if positions > 1 else 0, np.arange(len(events))] = (
            features * log.weight[events, None]
        )
        return {
            **state,
            "steps": state["steps"] + 1,
            "precision": state["precision"] + np.matmul(weighted.swapaxes(1, 2), features),
            "moment": state["moment"] + np.matmul(log.reward[events], weighted),
        }
