"""Hold evidence about all available actions, and define the requirements of estimators beyond the logged action."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.events import ActionSets
from streameval.events.action_sets import Index
from streameval.ope.policies.logged import LOGGING

Form: TypeAlias = Literal["slots", "slot_rewards", "cascade", "scored"]
"""Weights of slates slot by slot.

`slots` weighs the reward as a whole, `slot_rewards` the reward of each slot by its own action, and `cascade` by its
action and the actions before it. An event that is not a slate counts as one with a single slot. `scored` holds the
weights of scored outcomes, and other events are missing.
"""
Requirement: TypeAlias = Literal["target", "logging", "features", "prediction", "window"] | Form
"""A part that an event must have to count for an estimator, or the predictions of the reward model."""
Requirements: TypeAlias = Set[Requirement]

NOTHING: Requirements = frozenset()
FORMS: tuple[Form, ...] = get_args(Form)
MODELLED_SLATES: Requirements = frozenset({"slots", "prediction"})
"""Needs of estimators with a reward model of slates."""
REWARDED: tuple[Form, ...] = ("slot_rewards", "cascade")
"""Forms that need the rewards of slots."""


def field_of(need: Requirement, policy: str) -> str:
    """Return the field of an event that fills the need, for a policy if the need is about one.

    >>> field_of("target", "challenger"), field_of("logging", "challenger")
    ('`policies.challenger` as a list over `actions`', '`propensities`')
    """
    named = {"logging": "`propensities`", "features": "`features`"} | dict.fromkeys(REWARDED, "`slots[].reward`")
    named["scored"] = f"`scored.values.{policy}`"
    return named.get(need, f"`policies.{policy}` as a list over `actions`")


@dataclass(frozen=True)
class Actions:
    """Hold the available actions of n events, as rows laid end to end.

    Attributes:
        sets: the action sets of the events
        probability: the distributions of the policies, 0 if unknown [rows, P]
        propensity: the distribution of the logging policy, 0 if unknown [rows]
        targets_known: whether an event has a policy's full distribution [n, P]
        logging_known: whether an event has the full logging distribution [n]
        prediction: the reward model's prediction before it saw the event, 0 without one [rows]
    """

    sets: ActionSets
    probability: Array
    propensity: Array
    targets_known: Mask
    logging_known: Mask
    prediction: Array

    @classmethod
    def from_sets(cls, sets: ActionSets, named: Sequence[str], policies: Sequence[str]) -> Actions:
        """Return the distributions of `policies`.

        Args:
            sets: the action sets of the events
            named: the policies of the columns of `sets`
            policies: the policies to select
        """
        columns = [
            sets.propensities if policy == LOGGING else sets.probabilities[:, named.index(policy)]
            for policy in policies
        ]
        probability = np.array(columns).reshape(len(policies), -1).T
        return cls(
            sets=sets,
            probability=np.nan_to_num(probability),
            propensity=np.nan_to_num(sets.propensities),
            targets_known=_all_known(sets, ~np.isnan(probability)),
            logging_known=_all_known(sets, ~np.isnan(sets.propensities)[:, None])[:, 0],
            prediction=np.zeros(len(sets.propensities)),
        )

    def take(self, events: Index) -> Actions:
        """Select the actions of these events, in this order."""
        rows = np.flatnonzero(np.isin(self.sets.owner, events))
        return Actions(
            sets=self.sets.take(events),
            probability=np.asarray(self.probability.T[:, rows].T),
            propensity=self.propensity[rows],
            targets_known=self.targets_known[events],
            logging_known=self.logging_known[events],
            prediction=self.prediction[rows],
        )

    @cached_property
    def importance_weight(self) -> Array:
        """Return `W(a) = pi(a|x) / pi0(a|x)` of every action [rows, P], infinite if `pi0 = 0 < pi`, 0 if `pi = 0`."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            weight = self.probability / self.propensity[:, None]
        return np.where(self.probability == 0, 0.0, weight)

    @cached_property
    def has_features(self) -> Mask:
        """Tell whether the actions of an event have features [n]."""
        return self.sets.widths > 0

    @cached_property
    def expected_reward(self) -> Array:
        """Return the reward that the model expects of each policy, the sum of `modelled` [n, P]."""
        return self.sum(self.modelled)

    @cached_property
    def modelled(self) -> Array:
        """Return each action's part in the expected reward, `pi(a|x) q(x, a)` [rows, P]."""
        return self.probability * self.prediction[:, None]

    def completeness(self, needs: Requirements) -> Mask:
        """Tell whether an event has all that is required, for each policy [n, P]."""
        is_complete = np.ones_like(self.targets_known)
        if "target" in needs:
            is_complete &= self.targets_known
        if "logging" in needs:
            is_complete &= self.logging_known[:, None]
        if "features" in needs:
            is_complete &= self.has_features[:, None]
        return is_complete

    def sum(self, values: Array) -> Array:
        """Sum over the actions of each event, [rows, P] to [n, P]."""
        return _sum_of_actions(self.sets, values)

    def logged_values(self, values: Array) -> Array:
        """Return the value of the logged action of each event, [rows] to [n]. It is 0 for an event without a set."""
        events, rows = self.sets.logged
        logged = np.zeros(len(self.sets.index))
        logged[events] = values[rows]
        return logged


def _sum_of_actions(sets: ActionSets, values: Array) -> Array:
    """Sum over the rows of each event, [rows, P] to [n, P]. Events of one size are summed as a cube."""
    sizes, columns = sets.sizes, np.ascontiguousarray(values.T)
    if len(sizes) and sizes[0] > 0 and (sizes == sizes[0]).all():
        return np.asarray(columns.reshape(len(columns), len(sizes), sizes[0]).sum(axis=-1).T)
    filled = np.flatnonzero(sizes)
    sums = np.zeros((len(columns), len(sizes)))
    if len(filled):
        sums[:, filled] = np.add.reduceat(columns, sets.offsets[filled], axis=1)
    return sums.T


def _all_known(sets: ActionSets, is_known: Mask) -> Mask:
    """Tell whether an event has rows, and all of them are known, [rows, P] to [n, P]."""
    count = _sum_of_actions(sets, is_known.astype(float))
    return np.asarray((count == sets.sizes[:, None]) & (sets.sizes > 0)[:, None])
