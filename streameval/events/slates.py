"""Hold the slots of slates as ragged columns, and compute their probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask
from streameval.events.action_sets import ActionSets, Columns, Index, Ragged, owned_rows, reconcile
from streameval.events.plackett_luce import draws, has_few_prefixes

FACTORED, UNIFORM_RANKING, LISTED, PLACKETT_LUCE = 0, 1, 2, 3
"""Ways to fill the slots of an event: independently, by a uniformly drawn ranking, by one of a list of slates, or by a
ranking drawn by scores."""
RANKINGS = (UNIFORM_RANKING, PLACKETT_LUCE)
NAMED_LOGGING = {"factored": FACTORED, "uniform_ranking": UNIFORM_RANKING, "plackett_luce": PLACKETT_LUCE}
"""Ways that events name in `slate_logging`."""

MAX_DRAWN_NUMBERS = 4_000_000  # held in memory together for rankings drawn by scores
_MIN_PROPENSITY = 1e-300  # lower bound of a slate's propensity, so that a product of very small ones does not become 0


@dataclass(frozen=True, slots=True, eq=False)
class ListedSlates(Ragged):
    """Hold the T slates that the logging policy could have shown. Events that do not list them have no rows.

    Attributes:
        logged: [n] index of the slate shown among the event's slates, -1 = none of them
        probability: [T] the logging policy's distribution
        place_offsets: [n + 1] event i owns the entries `place_offsets[i]:place_offsets[i + 1]` of `place`
        place: [T x slots] for each slot of each slate, the index of its action in the slot's set
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"logged": -1}
    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {"offsets": ("probability",), "place_offsets": ("place",)}
    PROBABILITIES: ClassVar[Sequence[str]] = ("probability",)

    logged: Index
    probability: Array
    place_offsets: Index
    place: Index

    @classmethod
    def none(cls, events: int) -> ListedSlates:
        """Return the columns of events that list no slates."""
        none = np.zeros(events + 1, dtype=np.int64)
        return cls(none, np.full(events, -1), np.empty(0), none, np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class SlateColumns(Ragged):
    """Hold the S slots of n events. An event without slots is not a slate.

    Attributes:
        propensity: [S] the logging policy's marginal probability of the action in the slot
        reward: [S] the reward of the slot, NaN if slots have none
        further: [S, rewards] the further rewards of the slot, in the order of the events' ones, None with one reward
        probabilities: [S, P] the policies' probabilities of the action, contiguous over slots, NaN = missing
        actions: the action sets of the slots, with one entry per slot in place of one per event
        logging: [n] `FACTORED`, `UNIFORM_RANKING`, `LISTED` or `PLACKETT_LUCE`
        listed: the slates of the events that are `LISTED`
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"logging": np.int8(FACTORED), "listed": ...}
    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "offsets": ("propensity", "reward", "further", "probabilities", "actions")
    }
    PARTS: ClassVar[Mapping[str, type[Columns]]] = {"actions": ActionSets, "listed": ListedSlates}
    PROBABILITIES: ClassVar[Sequence[str]] = ("propensity", "probabilities")

    propensity: Array
    reward: Array
    probabilities: Array
    actions: ActionSets
    logging: NDArray[np.int8]
    listed: ListedSlates
    further: Array | None = None

    def select_reward(self, index: int | None) -> SlateColumns:
        """Replace the reward of the slots by the further reward with this index, by NaN if there is none."""
        if self.further is None or index is None:
            return replace(self, reward=np.full(len(self.reward), np.nan))
        return replace(self, reward=self.further[:, index])

    @property
    def position(self) -> Index:
        """Return the position of each slot in its slate, [S], from 0."""
        return np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.sizes)

    @property
    def events_of_rows(self) -> Index:
        """Return the event of each row of `actions` [rows]."""
        return self.owner[self.actions.owner]

    @property
    def keys_of_rows(self) -> Index:
        """Return a number for each row of `actions`, equal for equal actions in the slots of one event [rows]."""
        items = self.actions.items
        assert items is not None
        keys: Index = self.events_of_rows * (items.max(initial=0) + 1) + items
        return keys

    @property
    def shown(self) -> Array:
        """Return 1 for the rows of `actions` that the slates show, 0 for others."""
        shown = np.zeros(len(self.actions.propensities))
        shown[self.actions.logged[1]] = 1.0
        return shown

    @property
    def are_drawn_by_scores(self) -> Mask:
        """Return whether each slate is a ranking that was drawn by scores [n]."""
        return np.asarray(self.logging == PLACKETT_LUCE)

    def listed_rows(self) -> tuple[Index, Index]:
        """Return the rows of `actions` that the listed slates show, slot by slot, and the slate of each."""
        slates = np.repeat(np.arange(len(self.listed.probability)), self.sizes[self.listed.owner])
        slots, _ = owned_rows(self.offsets, self.listed.owner)
        return self.actions.offsets[slots] + self.listed.place, slates

    @property
    def marginals(self) -> Array:
        """Return the logging policy's probability of each row of `actions` in its slot, NaN for `FACTORED`."""
        logging = self.logging[self.owner][self.actions.owner]
        rows, slates = self.listed_rows()
        listed = np.bincount(rows, self.listed.probability[slates], len(logging))
        ranked = 1.0 / self.actions.sizes[self.actions.owner]
        marginals = np.select([logging == UNIFORM_RANKING, logging == LISTED], [ranked, listed], np.nan)
        for _, rows, weights, which, slots in self.drawn_by_scores():
            single, _ = draws(weights, slots)
            marginals[rows] = single.reshape(len(weights), -1)[which[:, None], self.canonical(rows)]
        return marginals

    def drawn_by_scores(self) -> Iterator[tuple[Index, Index, Array, Index, int]]:
        """Yield events with rankings that were drawn by scores, grouped by numbers of actions and of slots.

        Yields:
            The events, their rows of `actions` [events, rows], the different weights of actions [different, actions] in
            the order of `items`, the index of the weights of each event, and their number of slots.
        """
        drawn = np.flatnonzero(self.are_drawn_by_scores)
        starts, scores = self.actions.offsets[self.offsets[:-1]], self.actions.scores
        if not len(drawn) or scores is None:
            return
        shapes = np.stack([self.actions.sizes[self.offsets[drawn]], self.sizes[drawn]], axis=1)
        for actions, slots in np.unique(shapes, axis=0).tolist():
            same = drawn[(shapes == (actions, slots)).all(axis=1)]
            states = comb(actions, min(slots - 1, actions // 2)) if has_few_prefixes(actions, slots) else 0
            rows = starts[same][:, None] + np.arange(actions * slots)
            first = rows[:, :actions]  # the first slot has the actions in the order of their numbers
            weights = np.exp(scores[first] - scores[first].max(axis=1, keepdims=True))
            different, which = np.unique(weights, axis=0, return_inverse=True)
            chunk_size = max(1, MAX_DRAWN_NUMBERS // (actions * slots * max(states, actions * slots)))
            for start in range(0, len(different), chunk_size):
                some = np.flatnonzero(which.ravel() // chunk_size == start // chunk_size)
                chunk = different[start : start + chunk_size]
                yield same[some], rows[some], chunk, which.ravel()[some] - start, slots

    def canonical(self, rows: Index) -> Index:
        """Return `slot * actions + number of the action` for these rows of `actions`, [events, rows]."""
        assert self.actions.items is not None
        slot = self.actions.owner[rows] - self.actions.owner[rows[:, :1]]
        return np.asarray(slot * self.actions.sizes[self.actions.owner[rows]] + self.actions.items[rows])

    @property
    def conditional_propensity(self) -> Array:
        """Return the logging policy's probability of each action given the actions of the slots before it, [S]."""
        logging = self.logging[self.owner]
        left = self.actions.sizes - self.position  # a ranking shows no action twice
        ranked = 1.0 / np.where(logging == UNIFORM_RANKING, left, 1)
        steps = [ranked, self._listed_steps(), self._drawn_steps()]
        kinds = [logging == kind for kind in (UNIFORM_RANKING, LISTED, PLACKETT_LUCE)]
        return np.select(kinds, steps, self.propensity)

    def _drawn_steps(self) -> Array:
        """Return the weight of each slot's action, divided by the weights of all actions that are left for the slot."""
        steps = np.full(len(self.propensity), np.nan)
        for events, _, different, which, slots in self.drawn_by_scores():
            weights = different[which]
            indices = self.offsets[events][:, None] + np.arange(slots)
            shown = np.zeros_like(weights, dtype=bool)
            row = np.arange(len(events))
            for slot in indices.T:
                action = self._number_shown(slot)
                steps[slot] = weights[row, action] / np.where(shown, 0.0, weights).sum(axis=1)
                shown[row, action] = True
        return steps

    def _number_shown(self, slots: Index) -> Index:
        """Return the number of the action that each slot shows, of its first action if it shows an unknown one."""
        assert self.actions.items is not None
        return self.actions.items[self.actions.offsets[slots] + np.maximum(self.actions.index[slots], 0)]

    def _listed_steps(self) -> Array:
        """Return the probability of each slot's action among listed slates with equal actions before the slot."""
        listed = self.listed
        slots, starts = owned_rows(self.offsets, listed.owner)
        assert not isinstance(slots, slice)
        others = np.concatenate([[0], np.cumsum(listed.place != self.actions.index[slots])])
        alike = others[1:] == np.repeat(others[starts[:-1]], np.diff(starts))  # up to this slot
        weights = np.repeat(listed.probability, np.diff(starts))
        shares = np.bincount(slots[alike], weights[alike], len(self.propensity))
        before = np.concatenate([[1.0], shares])[:-1]
        with np.errstate(divide="ignore", invalid="ignore"):  # a slate that is not listed
            return shares / np.where(self.position == 0, 1.0, before)

    def running_product(self, values: Array) -> Array:
        """Multiply the values of each slot and of all slots before it in its slate, [S, P]."""
        product, position = values.T.copy(), self.position
        by_position = np.split(np.argsort(position, kind="stable"), np.cumsum(np.bincount(position))[:-1])
        with np.errstate(over="ignore", invalid="ignore"):  # such events are missing
            for rows in by_position[1:]:
                product[:, rows] *= product[:, rows - 1]
        return product.T

    def per_event(self, values: Array) -> Array:
        """Sum over the slots of each event, [S, P] to [n, P]."""
        return self._reduced(np.add, values, 0.0)

    def largest(self, values: Array) -> Array:
        """Return the maximum over the slots of each event, [S, P] to [n, P], 0 without slots."""
        return self._reduced(np.maximum, values, 0.0)

    @property
    def has_rewards(self) -> Mask:
        """Return whether the slots of each event have rewards, [n]."""
        return np.bincount(self.owner[~np.isnan(self.reward)], minlength=len(self.logging)) > 0

    def product(self, values: Array) -> Array:
        """Multiply over the slots of each event, [S, P] to [n, P], 1 without slots."""
        with np.errstate(over="ignore", invalid="ignore"):  # the rules reject such numbers later
            return self._reduced(np.multiply, values, 1.0)

    def _reduced(self, operation: np.ufunc, values: Array, empty: float) -> Array:
        reduced = np.full((values.shape[1], len(self.logging)), empty)
        filled = np.flatnonzero(self.sizes)
        if len(filled):
            reduced[:, filled] = operation.reduceat(np.ascontiguousarray(values.T), self.offsets[filled], axis=1)
        return reduced.T


def fill_marginals(slates: SlateColumns) -> None:
    """Fill missing propensities of slots, in place, from the way the slates were logged."""
    propensities, marginals = slates.actions.propensities, slates.marginals
    unknown = np.isnan(propensities)
    propensities[unknown] = marginals[unknown]
    reconcile(slates.actions, slates.propensity, propensities)


def as_one_action(slates: SlateColumns) -> tuple[Array, Array]:
    """Return the probability of each slate as a whole, NaN for events that are not slates.

    For the logging policy, it is the product over the slots, the probability of drawing a ranking without replacement,
    or the propensity of a listed slate. For other policies it is the product over the slots, which is exact if the
    policy fills its slots independently or always shows the same slate.

    Returns:
        [n] by the logging policy, [n, P] by the policies.
    """
    is_slate = slates.sizes > 0
    targets = np.where(is_slate[:, None], slates.product(np.minimum(slates.probabilities, 1.0)), np.nan)
    propensity = np.minimum(slates.conditional_propensity, 1.0)  # rules about slots reject what exceeds 1 by more
    logging = np.maximum(slates.product(propensity[:, None])[:, 0], _MIN_PROPENSITY)
    listed = slates.listed
    shown = np.flatnonzero(listed.logged >= 0)
    logging[shown] = listed.probability[listed.offsets[shown] + listed.logged[shown]]
    return np.where(is_slate, logging, np.nan), targets
