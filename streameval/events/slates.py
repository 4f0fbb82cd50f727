"""The slots of slates, as ragged columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array
from streameval.events.action_sets import ActionSets, Columns, Index, Ragged, owned_rows, reconcile

FACTORED, UNIFORM_RANKING, LISTED = 0, 1, 2
"""How the slots of an event were filled: independently; by a uniformly drawn ranking; by one of a list of slates."""

_MIN_PROPENSITY = 1e-300  # lower bound of a slate's propensity, so that a product of very small ones does not become 0


@dataclass(frozen=True, slots=True, eq=False)
class ListedSlates(Ragged):
    """The T slates that the logging policy could have shown; events that do not list them have no rows.

    logged: [n] which of the event's slates was shown; -1 = none of them
    probability: [T] the logging policy's distribution
    place_offsets: [n + 1] event i owns the entries `place_offsets[i]:place_offsets[i + 1]` of `place`
    place: [T x slots] for each slot of each slate, the position of its action in the slot's set
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"logged": -1}
    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {"offsets": ("probability",), "place_offsets": ("place",)}

    logged: Index
    probability: Array
    place_offsets: Index
    place: Index

    @classmethod
    def none(cls, events: int) -> ListedSlates:
        """Return the lists of `events` events without any."""
        none = np.zeros(events + 1, dtype=np.int64)
        return cls(none, np.full(events, -1), np.empty(0), none, np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class SlateColumns(Ragged):
    """The S slots of n events; an event without slots is not a slate.

    propensity: [S] the logging policy's marginal probability of the action in the slot
    probabilities: [S, P] the policies' probabilities of it, contiguous over slots; NaN = missing
    actions: the action sets of the slots; slots take the part of events
    logging: [n] `FACTORED`, `UNIFORM_RANKING` or `LISTED`
    listed: the slates of the events that are `LISTED`
    """

    EVENTS: ClassVar[Mapping[str, Any]] = {"logging": np.int8(FACTORED), "listed": ...}
    ROWS: ClassVar[Mapping[str, tuple[str, ...]]] = {"offsets": ("propensity", "probabilities", "actions")}
    PARTS: ClassVar[Mapping[str, type[Columns]]] = {"actions": ActionSets, "listed": ListedSlates}

    propensity: Array
    probabilities: Array
    actions: ActionSets
    logging: NDArray[np.int8]
    listed: ListedSlates

    @property
    def position(self) -> Index:
        """[S] the position of each slot in its slate, from 0."""
        return np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.sizes)

    def listed_rows(self) -> tuple[Index, Index]:
        """Return the rows of `actions` that the listed slates show, slot by slot, and the slate of each."""
        slates = np.repeat(np.arange(len(self.listed.probability)), self.sizes[self.listed.owner])
        slots, _ = owned_rows(self.offsets, self.listed.owner)
        return self.actions.offsets[slots] + self.listed.place, slates

    @property
    def marginals(self) -> Array:
        """[rows of `actions`] the logging policy's probability of each action in its slot; NaN for `FACTORED`."""
        logging = self.logging[self.owner][self.actions.owner]
        rows, slates = self.listed_rows()
        listed = np.bincount(rows, self.listed.probability[slates], len(logging))
        ranked = 1.0 / self.actions.sizes[self.actions.owner]
        return np.select([logging == UNIFORM_RANKING, logging == LISTED], [ranked, listed], np.nan)

    def per_event(self, values: Array) -> Array:
        """Sum over the slots of each event, [S, P] to [n, P]."""
        return self._reduced(np.add, values, 0.0)

    def product(self, values: Array) -> Array:
        """Multiply over the slots of each event, [S, P] to [n, P]; 1 without slots."""
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
    """Return the probability of each slate as a whole: by the logging policy [n], and by the policies [n, P].

    The product over the slots; for a ranking, the probability of drawing it without replacement; for a listed slate,
    its listed propensity. NaN for events that are not slates. For a policy, the product is exact if the policy fills
    its slots independently or always shows the same slate.
    """
    is_slate = slates.sizes > 0
    targets = np.where(is_slate[:, None], slates.product(slates.probabilities), np.nan)
    logging = np.maximum(slates.product(slates.propensity[:, None])[:, 0], _MIN_PROPENSITY)
    rankings = np.flatnonzero(slates.logging == UNIFORM_RANKING)
    if len(rankings):
        actions = slates.actions.sizes[slates.offsets[rankings]]
        logging[rankings] = np.maximum(_ranking_probability(actions, slates.sizes[rankings]), _MIN_PROPENSITY)
    listed = slates.listed
    shown = np.flatnonzero(listed.logged >= 0)
    logging[shown] = listed.probability[listed.offsets[shown] + listed.logged[shown]]
    return np.where(is_slate, logging, np.nan), targets


def _ranking_probability(actions: Index, slots: Index) -> Array:
    """`1 / (m (m - 1) ... (m - l + 1))`, the probability of a ranking of l of m actions."""
    steps = np.arange(slots.max())
    remaining = np.where(steps < slots[:, None], actions[:, None] - steps, 1)
    return np.asarray(1.0 / np.prod(remaining.astype(float), axis=1))
