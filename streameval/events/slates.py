"""The slots of slates, as ragged columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array
from streameval.events.action_sets import ActionSets, Index, named_columns, offsets_of, reconcile

Codes = NDArray[np.int8]

FACTORED, UNIFORM_RANKING, LISTED = 0, 1, 2
"""How the slots of an event were filled: each on its own; a ranking drawn uniformly; one of the slates of a list."""

_LEAST = 1e-300
"""The probability of a slate is at least this, so that a product of very small ones is still a propensity."""


@dataclass(frozen=True, slots=True, eq=False)
class ListedSlates:
    """The slates that the logging policy could have shown, T of them, laid end to end event by event.

    offsets: [n + 1] event i owns the slates `offsets[i]:offsets[i + 1]`; none where it does not list them
    probability: [T] the logging policy's distribution
    place: [T x slots] for each slot of each slate, which of the slot's actions it shows; -1 = none of them
    logged: [n] which of the event's slates was shown; -1 = none of them
    """

    offsets: Index
    probability: Array
    place: Index
    logged: Index


@dataclass(frozen=True, slots=True, eq=False)
class SlateColumns:
    """The S slots of n events, laid end to end.

    offsets: [n + 1] event i owns the slots `offsets[i]:offsets[i + 1]`; none: the event is no slate
    propensity: [S] the logging policy's probability of the action in the slot, whatever the other slots show
    probabilities: [S, P] the policies' probabilities of it, contiguous over slots; NaN = missing
    actions: what each slot could choose from; to these columns the slots are the events
    items: [rows of `actions`] equal numbers within an event are the same action, in several slots
    logging: [n] `FACTORED`, `UNIFORM_RANKING` or `LISTED`
    listed: the slates of the events that are `LISTED`; None when there is none
    """

    offsets: Index
    propensity: Array
    probabilities: Array
    actions: ActionSets
    items: Index
    logging: Codes
    listed: ListedSlates | None = None

    @property
    def sizes(self) -> Index:
        """[n] number of slots of each event, 0 when it is no slate."""
        return np.diff(self.offsets)

    @property
    def owner(self) -> Index:
        """[S] the event that owns each slot."""
        return np.repeat(np.arange(len(self.logging)), self.sizes)

    @property
    def position(self) -> Index:
        """[S] the place of each slot in its slate, from 0."""
        return np.arange(self.offsets[-1]) - np.repeat(self.offsets[:-1], self.sizes)

    @property
    def nbytes(self) -> int:
        """Memory that the columns take."""
        columns: list[Any] = [self.offsets, self.propensity, self.probabilities, self.items, self.logging, self.actions]
        listed = self.listed
        columns += [] if listed is None else [listed.offsets, listed.probability, listed.place, listed.logged]
        return sum(int(column.nbytes) for column in columns)

    def listed_rows(self) -> tuple[Index, Index]:
        """The rows of `actions` that the listed slates show, slot by slot, and the slate that each belongs to."""
        listed = self.listed or _nothing_listed(len(self.logging))
        slates = np.repeat(np.arange(len(self.logging)), np.diff(listed.offsets))
        slots, begin = _owned(self.offsets, slates)
        rows = np.where(listed.place < 0, -1, self.actions.offsets[slots] + listed.place)
        return rows, np.repeat(np.arange(len(slates)), np.diff(begin))

    @property
    def marginals(self) -> Array:
        """[rows of `actions`] the logging policy's probability of each action in its slot, where that follows from how
        slates were made; NaN where slots were filled each on its own.
        """
        kind = self.logging[self.owner][self.actions.owner]
        marginals = np.where(kind == UNIFORM_RANKING, 1.0 / self.actions.sizes[self.actions.owner], np.nan)
        if self.listed is not None:
            rows, slates = self.listed_rows()
            summed = np.bincount(rows[rows >= 0], self.listed.probability[slates[rows >= 0]], len(kind))
            marginals = np.where(kind == LISTED, summed, marginals)
        return marginals

    def per_event(self, values: Array) -> Array:
        """Sums over the slots of each event, [S, P] to [n, P]."""
        sums = np.zeros((values.shape[1], len(self.logging)))
        filled = np.flatnonzero(self.sizes)
        if len(filled):
            sums[:, filled] = np.add.reduceat(np.ascontiguousarray(values.T), self.offsets[filled], axis=1)
        return sums.T

    def part(self, start: int, stop: int) -> SlateColumns:
        """The slots of the events start to stop."""
        return self.take(np.arange(start, stop))

    def take(self, events: Index) -> SlateColumns:
        """The slots of these events, in this order."""
        slots, offsets = _owned(self.offsets, events)
        rows, _ = _owned(self.actions.offsets, slots)
        return SlateColumns(
            offsets,
            self.propensity[slots],
            self.probabilities.T[:, slots].T,
            self.actions.take(slots),
            self.items[rows],
            self.logging[events],
            self._listed_of(events),
        )

    def _listed_of(self, events: Index) -> ListedSlates | None:
        if self.listed is None:
            return None
        slates, offsets = _owned(self.listed.offsets, events)
        places, _ = _owned(offsets_of(np.repeat(self.sizes, np.diff(self.listed.offsets))), slates)
        return ListedSlates(
            offsets, self.listed.probability[slates], self.listed.place[places], self.listed.logged[events]
        )

    def with_policies(self, present: tuple[str, ...], wanted: tuple[str, ...]) -> SlateColumns:
        """The same slates with the columns of the wanted policies; NaN for those that are not present."""
        of_actions = named_columns(self.actions.probabilities, present, wanted)
        return replace(
            self,
            probabilities=named_columns(self.probabilities, present, wanted),
            actions=replace(self.actions, probabilities=of_actions),
        )

    @classmethod
    def none(cls, events: int, policies: int) -> SlateColumns:
        """So many events that are no slates."""
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
        """The slates of all events, one part after the other; all parts have the same policies."""
        return cls(
            offsets_of(np.concatenate([part.sizes for part in parts])),
            np.concatenate([part.propensity for part in parts]),
            np.concatenate([part.probabilities.T for part in parts], axis=1).T,
            ActionSets.concat([part.actions for part in parts]),
            np.concatenate([part.items for part in parts]),
            np.concatenate([part.logging for part in parts]),
            _concat_listed(parts),
        )

    def to_state(self) -> dict[str, Any]:
        """The columns by name."""
        listed = self.listed
        return {
            "offsets": self.offsets,
            "propensity": self.propensity,
            "probabilities": self.probabilities.T,
            "actions": self.actions.to_state(),
            "items": self.items,
            "logging": self.logging,
            "listed": listed and {name: getattr(listed, name) for name in ListedSlates.__dataclass_fields__},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> SlateColumns:
        """The slates that gave this state."""
        listed = state["listed"]
        changed = {
            "probabilities": state["probabilities"].T,
            "actions": ActionSets.from_state(state["actions"]),
            "listed": listed and ListedSlates(**listed),
        }
        return cls(**{**state, **changed})


def complete(slates: SlateColumns) -> None:
    """Fill in the propensities that follow from how a slate was made, where its slots do not give them (in place)."""
    propensities, marginals = slates.actions.propensities, slates.marginals
    unknown = np.isnan(propensities)
    propensities[unknown] = marginals[unknown]
    reconcile(slates.actions, slates.propensity, propensities)


def as_one_action(slates: SlateColumns) -> tuple[Array, Array]:
    """The probability of a slate as a whole: by the logging policy [n], and by the policies [n, P]; else NaN.

    Slots multiply, except that a ranking never shows an action twice, and that a slate of a list has its probability
    there. For the policies the product is exact where they fill each slot on its own, or know one slate only.
    """
    is_slate = slates.sizes > 0
    targets = np.where(is_slate[:, None], _product(slates, slates.probabilities), np.nan)
    logging = np.maximum(_product(slates, slates.propensity[:, None])[:, 0], _LEAST)
    rankings = np.flatnonzero(slates.logging == UNIFORM_RANKING)
    if len(rankings):
        first = slates.actions.sizes[slates.offsets[rankings]]
        logging[rankings] = np.maximum(_uniform(first, slates.sizes[rankings]), _LEAST)
    if slates.listed is not None:
        shown = np.flatnonzero((slates.logging == LISTED) & (slates.listed.logged >= 0))
        logging[shown] = slates.listed.probability[slates.listed.offsets[shown] + slates.listed.logged[shown]]
    return np.where(is_slate, logging, np.nan), targets


def _uniform(actions: Index, slots: Index) -> Array:
    """`1 / (m (m - 1) ... (m - l + 1))`, the probability of a ranking of l of m actions."""
    steps = np.arange(slots.max())
    left = np.where(steps < slots[:, None], actions[:, None] - steps, 1)
    return np.asarray(1.0 / np.prod(left.astype(float), axis=1))


def _product(slates: SlateColumns, values: Array) -> Array:
    """Products over the slots of each event, [S, P] to [n, P]; 1 without slots."""
    products = np.ones((values.shape[1], len(slates.logging)))
    filled = np.flatnonzero(slates.sizes)
    if len(filled):
        columns = np.ascontiguousarray(values.T)
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that rules refuse only later
            products[:, filled] = np.multiply.reduceat(columns, slates.offsets[filled], axis=1)
    return products.T


def _owned(offsets: Index, owners: Index) -> tuple[Index, Index]:
    """The rows that these owners have, in their order, and where those of each begin among them."""
    sizes = np.diff(offsets)[owners]
    begin = offsets_of(sizes)
    return np.arange(begin[-1]) + np.repeat(offsets[owners] - begin[:-1], sizes), begin


def _concat_listed(parts: Sequence[SlateColumns]) -> ListedSlates | None:
    if all(part.listed is None for part in parts):
        return None
    listed = [part.listed or _nothing_listed(len(part.logging)) for part in parts]
    return ListedSlates(
        offsets_of(np.concatenate([np.diff(each.offsets) for each in listed])),
        np.concatenate([each.probability for each in listed]),
        np.concatenate([each.place for each in listed]),
        np.concatenate([each.logged for each in listed]),
    )


def _nothing_listed(events: int) -> ListedSlates:
    nothing = np.empty(0, dtype=np.int64)
    return ListedSlates(np.zeros(events + 1, dtype=np.int64), np.empty(0), nothing, np.full(events, -1))
