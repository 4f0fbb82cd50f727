"""The slots of slates, as ragged columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array
from streameval.events.action_sets import (
    ActionSets,
    Columns,
    Index,
    cumulative_offsets,
    owned_rows,
    reconcile,
    select_policies,
)

Codes = NDArray[np.int8]

FACTORED, UNIFORM_RANKING, LISTED = 0, 1, 2
"""How the slots of an event were filled: independently; by a uniformly drawn ranking; by one of a list of slates."""

_MIN_PROPENSITY = 1e-300
"""Lower bound of a slate's propensity, so that a product of very small ones does not become 0."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedSlates(Columns):
    """The T slates that the logging policy could have shown, laid end to end event by event.

    offsets: [n + 1] event i owns the slates `offsets[i]:offsets[i + 1]`; none where it does not list them
    probability: [T] the logging policy's distribution
    place: [T x slots] for each slot of each slate, the position of its action in the slot's set; -1 = not in it
    logged: [n] which of the event's slates was shown; -1 = none of them
    """

    offsets: Index
    probability: Array
    place: Index
    logged: Index


@dataclass(frozen=True, slots=True, eq=False)
class SlateColumns(Columns):
    """The S slots of n events, laid end to end.

    offsets: [n + 1] event i owns the slots `offsets[i]:offsets[i + 1]`; none: the event is not a slate
    propensity: [S] the logging policy's marginal probability of the action in the slot
    probabilities: [S, P] the policies' probabilities of it, contiguous over slots; NaN = missing
    actions: the action sets of the slots; slots take the part of events
    items: [rows of `actions`] equal numbers within an event are the same action in several slots
    logging: [n] `FACTORED`, `UNIFORM_RANKING` or `LISTED`
    listed: the slates of the events that are `LISTED`; None without any
    """

    PARTS: ClassVar[Mapping[str, type[Columns]]] = {"actions": ActionSets, "listed": ListedSlates}

    offsets: Index
    propensity: Array
    probabilities: Array
    actions: ActionSets
    items: Index
    logging: Codes
    listed: ListedSlates | None = None

    @property
    def sizes(self) -> Index:
        """[n] number of slots of each event, 0 if it is not a slate."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Index:
        """[S] the event that owns each slot."""
        return np.repeat(np.arange(len(self.logging)), self.sizes)

    @property
    def position(self) -> Index:
        """[S] the position of each slot in its slate, from 0."""
        return np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.sizes)

    def listed_rows(self) -> tuple[Index, Index]:
        """Return the rows of `actions` shown by the listed slates, slot by slot (-1 = none), and the slate of each."""
        listed = self.listed or _empty_lists(len(self.logging))
        events = np.repeat(np.arange(len(self.logging)), np.diff(listed.offsets))
        slots, starts = owned_rows(self.offsets, events)
        rows = np.where(listed.place < 0, -1, self.actions.offsets[slots] + listed.place)
        return rows, np.repeat(np.arange(len(events)), np.diff(starts))

    @property
    def marginals(self) -> Array:
        """[rows of `actions`] the logging policy's probability of each action in its slot, as far as it follows from
        the way of logging; NaN for `FACTORED`.
        """
        logging = self.logging[self.owner][self.actions.owner]
        marginals = np.where(logging == UNIFORM_RANKING, 1.0 / self.actions.sizes[self.actions.owner], np.nan)
        if self.listed is not None:
            rows, slates = self.listed_rows()
            summed = np.bincount(rows[rows >= 0], self.listed.probability[slates[rows >= 0]], len(logging))
            marginals = np.where(logging == LISTED, summed, marginals)
        return marginals

    def per_event(self, values: Array) -> Array:
        """Sum over the slots of each event, [S, P] to [n, P]."""
        sums = np.zeros((values.shape[1], len(self.logging)))
        filled = np.flatnonzero(self.sizes)
        if len(filled):
            sums[:, filled] = np.add.reduceat(np.ascontiguousarray(values.T), self.offsets[filled], axis=1)
        return sums.T

    def take(self, events: Index) -> SlateColumns:
        """Return the slots of these events, in this order."""
        slots, offsets = owned_rows(self.offsets, events)
        rows, _ = owned_rows(self.actions.offsets, slots)
        return SlateColumns(
            offsets,
            self.propensity[slots],
            self.probabilities.T[:, slots].T,
            self.actions.take(slots),
            self.items[rows],
            self.logging[events],
            self._lists_of(events),
        )

    def _lists_of(self, events: Index) -> ListedSlates | None:
        if self.listed is None:
            return None
        slates, offsets = owned_rows(self.listed.offsets, events)
        places, _ = owned_rows(cumulative_offsets(np.repeat(self.sizes, np.diff(self.listed.offsets))), slates)
        return ListedSlates(
            offsets, self.listed.probability[slates], self.listed.place[places], self.listed.logged[events]
        )

    def trimmed(self) -> SlateColumns:
        """Return the slates without features or lists that no event has."""
        listed = self.listed if self.listed is not None and len(self.listed.probability) else None
        return replace(self, actions=self.actions.trimmed(), listed=listed)

    def with_policies(self, present: tuple[str, ...], wanted: tuple[str, ...]) -> SlateColumns:
        """Return the slates with the columns of the wanted policies; NaN for those that are not present."""
        return replace(
            self,
            probabilities=select_policies(self.probabilities, present, wanted),
            actions=self.actions.with_policies(present, wanted),
        )

    @classmethod
    def none(cls, events: int, policies: int) -> SlateColumns:
        """Return the columns of `events` events that are not slates."""
        return cls(
            np.zeros(events + 1, dtype=np.int64),
            np.empty(0),
            np.empty((policies, 0)).T,
            ActionSets.none(0, policies),
            np.empty(0, dtype=np.int64),
            np.zeros(events, dtype=np.int8),
        )

    @classmethod
    def concat(cls, parts: Sequence[SlateColumns]) -> SlateColumns:
        """Concatenate parts that have the same policies."""
        return cls(
            cumulative_offsets(np.concatenate([part.sizes for part in parts])),
            np.concatenate([part.propensity for part in parts]),
            np.concatenate([part.probabilities.T for part in parts], axis=1).T,
            ActionSets.concat([part.actions for part in parts]),
            np.concatenate([part.items for part in parts]),
            np.concatenate([part.logging for part in parts]),
            _concat_listed(parts),
        )


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
    targets = np.where(is_slate[:, None], _product(slates, slates.probabilities), np.nan)
    logging = np.maximum(_product(slates, slates.propensity[:, None])[:, 0], _MIN_PROPENSITY)
    rankings = np.flatnonzero(slates.logging == UNIFORM_RANKING)
    if len(rankings):
        actions = slates.actions.sizes[slates.offsets[rankings]]
        logging[rankings] = np.maximum(_ranking_probability(actions, slates.sizes[rankings]), _MIN_PROPENSITY)
    if slates.listed is not None:
        shown = np.flatnonzero((slates.logging == LISTED) & (slates.listed.logged >= 0))
        logging[shown] = slates.listed.probability[slates.listed.offsets[shown] + slates.listed.logged[shown]]
    return np.where(is_slate, logging, np.nan), targets


def _ranking_probability(actions: Index, slots: Index) -> Array:
    """`1 / (m (m - 1) ... (m - l + 1))`, the probability of a ranking of l of m actions."""
    steps = np.arange(slots.max())
    remaining = np.where(steps < slots[:, None], actions[:, None] - steps, 1)
    return np.asarray(1.0 / np.prod(remaining.astype(float), axis=1))


def _product(slates: SlateColumns, values: Array) -> Array:
    """Multiply over the slots of each event, [S, P] to [n, P]; 1 without slots."""
    products = np.ones((values.shape[1], len(slates.logging)))
    filled = np.flatnonzero(slates.sizes)
    if len(filled):
        columns = np.ascontiguousarray(values.T)
        with np.errstate(over="ignore", invalid="ignore"):  # the rules reject such numbers later
            products[:, filled] = np.multiply.reduceat(columns, slates.offsets[filled], axis=1)
    return products.T


def _concat_listed(parts: Sequence[SlateColumns]) -> ListedSlates | None:
    if all(part.listed is None for part in parts):
        return None
    lists = [part.listed or _empty_lists(len(part.logging)) for part in parts]
    return ListedSlates(
        cumulative_offsets(np.concatenate([np.diff(each.offsets) for each in lists])),
        np.concatenate([each.probability for each in lists]),
        np.concatenate([each.place for each in lists]),
        np.concatenate([each.logged for each in lists]),
    )


def _empty_lists(events: int) -> ListedSlates:
    nothing = np.empty(0, dtype=np.int64)
    return ListedSlates(np.zeros(events + 1, dtype=np.int64), np.empty(0), nothing, np.full(events, -1))
