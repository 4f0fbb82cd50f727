"""Provide the policy that fills each slot of a slate with the action that seems to add most to the reward."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State
from streameval.common.component import strict
from streameval.events import Fault
from streameval.events.slates import LISTED, RANKINGS, SlateColumns
from streameval.ope.policies import policy_file
from streameval.ope.policies.base import Answer, Copied, LearningPolicy, Log

SLOTS = 20
"""Number of slots with their own coefficients. Later slots have the coefficients of the last one."""
NO_FEATURES = Fault("missing_field", "features: missing in a slot, or another number of them; or slates are listed")


@dataclass(frozen=True, config=strict)
class OfSlotRewards(LearningPolicy):
    """Regress the parts of actions in the reward of slates, and fill each slot with the best action (PI-OPT).

    `r Gamma^+ 1_s` estimates the part of every action in every slot from one slate s with the reward r, without bias if
    rewards are sums over slots. Each slot has a ridge regression of these targets on the features of its actions. The
    targets use `r - R`, with the mean reward R of the blocks before, which changes no order and takes out noise.

    Slots that were filled independently take their best actions. A ranking shows no action twice: slot after slot takes
    the best action that is left. Events with a list of slates have no distribution, because the choice may not be
    listed. The first slate with features decides their number.

    The scores of actions have no constant, which would be equal for all actions of a slot. With `weights` the policy
    stays as its file has it.

    Args:
        epsilon: the probability of a slate that is filled at random
        l2: the penalty on the squares of coefficients
        weights: the coefficients of the features, as a policy file has them [up to 20 slots, features]

    Source: Swaminathan et al., Off-policy evaluation for slate recommendation, NeurIPS 2017, for the targets.
    """

    epsilon: Annotated[float, Field(ge=0, le=1, description="the probability of a random slate")] = 0.0
    l2: Annotated[PositiveFloat, Field(description="the penalty on the squares of coefficients")] = 1.0
    weights: Annotated[tuple[tuple[float, ...], ...], Field(description="fixed coefficients; `file` reads them")] = (
        field(default=(), repr=False)
    )
    kind: Literal["of_slot_rewards"] = field(default="of_slot_rewards", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if len(self.weights) > SLOTS or len(set(map(len, self.weights))) > 1 or () in self.weights:
            raise ValueError(f"weights must be up to {SLOTS} rows of equally many features, one or more")

    @property
    def fills_slots(self) -> bool:
        return True

    @property
    def keeps_learning(self) -> bool:
        return not self.weights

    def start(self) -> State:
        """Return the state before the first event: sums of products [slots, 1 + d, 1 + d], and of `1, r`."""
        moment = np.zeros((SLOTS, 0))
        if self.weights:
            rows = np.minimum(np.arange(SLOTS), len(self.weights) - 1)
            moment = np.column_stack([np.zeros(SLOTS), np.array(self.weights)[rows]])
        precision = np.tile(np.eye(moment.shape[1]), (SLOTS, 1, 1))
        return {"steps": 0, "precision": precision, "moment": moment, "rewards": np.zeros(2)}

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        slates, events = log.slates, len(log.reward)
        if slates is None:
            return (np.empty(0), {}), state
        width = slates.actions.first_width
        if not state["moment"].size and width:
            opened = np.tile(self.l2 * np.eye(1 + width), (SLOTS, 1, 1))
            state = {**state, "precision": opened, "moment": np.zeros((SLOTS, 1 + width))}
        usable = slates.actions.of_width(state["moment"].shape[1] - 1)
        whole = (np.bincount(slates.owner[~usable], minlength=events) == 0) & (slates.sizes > 0)
        whole &= slates.logging != LISTED
        answer = np.full(len(slates.actions.propensities), np.nan)
        for first in range(0, events, log.block):
            last = min(first + log.block, events)
            chosen = np.flatnonzero(whole[first:last]) + first
            if len(chosen):
                rows = np.isin(slates.events_of_rows, chosen)
                block = slates.take(chosen)
                answer[rows] = self._distributions(state, block)
                if first + log.block <= events and self.keeps_learning:
                    state = self._learn(state, block, log.reward[chosen], log.weight[chosen])
        lacking = np.flatnonzero(~whole[slates.owner]).tolist()
        return (answer, dict.fromkeys(lacking, NO_FEATURES)), state

    def _distributions(self, state: State, slates: SlateColumns) -> Array:
        """Return the distribution over the rows of these slates."""
        sets, slot = slates.actions, np.minimum(slates.position, SLOTS - 1)
        scores = (_features(slates) * _weights(state)[slot[sets.owner]]).sum(axis=1)
        shown, best = np.zeros(len(scores), dtype=bool), np.zeros(len(scores))
        item, no_item_twice = slates.keys_of_rows, np.isin(slates.logging, RANKINGS)[slates.events_of_rows]
        for position in range(int(slates.sizes.max())):
            rows = np.flatnonzero((slates.position[sets.owner] == position) & ~shown)
            order = rows[np.lexsort((-scores[rows], sets.owner[rows]))]
            _, first = np.unique(sets.owner[order], return_index=True)
            taken = order[first]
            best[taken] = 1.0
            shown |= no_item_twice & np.isin(item, item[taken])
        return np.asarray(self.epsilon / np.repeat(sets.sizes, sets.sizes) + (1 - self.epsilon) * best)

    def _learn(self, state: State, slates: SlateColumns, reward: Array, weight: Array) -> State:
        """Return the state after these slates."""
        duals = slates.actions.duals
        assert duals is not None
        known: Mask = ~np.isnan(reward)
        count, total = state["rewards"]
        centred = np.where(known, reward - (total / count if count else 0.0), 0.0)
        event = slates.events_of_rows
        features = _features(slates)
        inputs, shares = np.column_stack([np.ones(len(features)), features]), np.where(known, weight, 0.0)[event]
        slot = np.minimum(slates.position, SLOTS - 1)[slates.actions.owner]
        precision, moment = state["precision"].copy(), state["moment"].copy()
        for number in np.unique(slot):
            rows = slot == number
            weighted = inputs[rows] * shares[rows, None]
            precision[number] += weighted.T @ inputs[rows]
            moment[number] += weighted.T @ (duals[rows] * centred[event[rows]])
        added = np.array([weight[known].sum(), weight[known] @ reward[known]])
        return {
            "steps": state["steps"] + 1,
            "precision": precision,
            "moment": moment,
            "rewards": state["rewards"] + added,
        }

    def file_content(self, state: State, copied: Copied) -> bytes | None:
        return policy_file.to_bytes(self, _weights(state), copied.events) if state["moment"].size else None


def _weights(state: State) -> Array:
    """Return the coefficients of the features, without the constant [slots, d]."""
    return np.asarray(np.linalg.solve(state["precision"], state["moment"][..., None])[:, 1:, 0])


def _features(slates: SlateColumns) -> Array:
    """Return the features of all rows, which have equally many [rows, d]."""
    sets = slates.actions
    return sets.features_of(np.ones(len(sets.index), dtype=bool), sets.first_width)
