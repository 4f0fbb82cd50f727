"""Events as columns: what everything after decoding works on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from streameval.common.arrays import Array, State, from_plain, to_plain
from streameval.common.text import counted
from streameval.events.action_sets import ActionSets, Index, named_columns
from streameval.events.from_arrays import choice_columns, column, unit_column
from streameval.events.origin import NOBODY, Identity, Origin
from streameval.events.raw_fields import RawFields
from streameval.events.rejection import Rejected
from streameval.events.schema import Identifier
from streameval.events.slates import SlateColumns
from streameval.events.tolerances import at_most_one
from streameval.events.validation import Mask, faults

_PER_EVENT = ("propensity", "reward", "timestamp", "sampling_probability")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EventBatch:
    """n accepted events as columns, and what was rejected while they were read.

    policies: names of the P columns of `probabilities`
    probabilities: [n, P] the policies' probabilities of the logged action, contiguous over events; NaN = missing
    propensity: [n] in (0, 1], the logging policy's probability of the logged action
    reward: [n]
    timestamp: [n] seconds since 1970; NaN = not known (only from arrays)
    sampling_probability: [n] in (0, 1], 1 where the log was not downsampled
    action_sets: what the events could choose from; None when no event says so
    slates: the slots of events that are slates, whose other columns are of the slate as one action; None without any
    choices: what columns do not hold, where policies or reward models in code look at it
    unit: [n] fingerprint of the user or session it belongs to, 0 where an event does not say; None when none does
    origin: where the events come from, and what identifies them, where somebody asks for it
    rejected: messages read together with these events that are none
    """

    policies: tuple[str, ...]
    probabilities: Array
    propensity: Array
    reward: Array
    timestamp: Array
    sampling_probability: Array
    action_sets: ActionSets | None = None
    slates: SlateColumns | None = None
    choices: RawFields | None = None
    unit: Identity | None = None
    origin: Origin | None = None
    rejected: tuple[Rejected, ...] = ()

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        return (
            f"EventBatch({counted(len(self), 'event')}, policies={list(self.policies)}, {len(self.rejected)} rejected)"
        )

    def __getitem__(self, part: slice) -> EventBatch:
        """Consecutive events; nothing is copied. What was rejected stays with the part from 0: it counts once."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"a batch is cut into consecutive events, not by steps of {step}")
        stop = max(start, stop)
        sets = self.action_sets and self.action_sets.part(start, stop)
        slates = self.slates and self.slates.part(start, stop)
        return self._rows(slice(start, stop), sets, slates, self.rejected if start == 0 else ())

    def take(self, events: Mask | Index) -> EventBatch:
        """The events where the mask [n] is true, or of these rows in this order; what was rejected stays."""
        rows = np.arange(len(self))[events]
        sets = self.action_sets and self.action_sets.take(rows)
        return self._rows(rows, sets, self.slates and self.slates.take(rows), self.rejected)

    def reject(self, events: Mask | Index, reason: str, detail: Callable[[int], str]) -> EventBatch:
        """The batch without these events, rejected for this reason; `detail` says what is wrong with a row."""
        rows = np.arange(len(self))[events]
        if not len(rows):
            return self
        place = (lambda row: None) if self.origin is None else self.origin.place
        rejected = [Rejected(reason, detail(row), b"", origin=place(row)) for row in rows.tolist()]
        kept = self.take(np.delete(np.arange(len(self)), rows))
        return replace(kept, rejected=(*self.rejected, *rejected))

    @property
    def nbytes(self) -> int:
        """Memory that the columns take; what code looks at is counted as 1000 bytes an event."""
        columns: int = sum(getattr(self, name).nbytes for name in _PER_EVENT)
        told = sum(part.nbytes for part in (self.action_sets, self.slates, self.origin) if part is not None)
        told += 0 if self.unit is None else self.unit.nbytes
        return columns + self.probabilities.nbytes + told + (0 if self.choices is None else 1000 * len(self))

    def _rows(
        self,
        rows: slice | Index,
        sets: ActionSets | None,
        slates: SlateColumns | None,
        rejected: tuple[Rejected, ...],
    ) -> EventBatch:
        per_event = {name: getattr(self, name)[rows] for name in _PER_EVENT}
        probabilities = self.probabilities.T[:, rows].T
        choices = self.choices and self.choices.take(np.arange(len(self))[rows].tolist())
        return EventBatch(
            self.policies,
            probabilities,
            **per_event,
            action_sets=sets,
            slates=slates,
            choices=choices,
            unit=None if self.unit is None else self.unit[rows],
            origin=self.origin and self.origin.take(rows),
            rejected=rejected,
        )

    @classmethod
    def concat(cls, batches: Iterable[EventBatch]) -> EventBatch:
        """All events in order, with every policy that one of the batches has (missing in the others).

        >>> one = EventBatch.from_arrays(reward=[1], propensity=[0.5], policies={"a": [0.25]})
        >>> EventBatch.concat([one, one]), EventBatch.concat([])
        (EventBatch(2 events, policies=['a'], 0 rejected), EventBatch(0 events, policies=[], 0 rejected))
        """
        given = list(batches) or [cls.from_arrays(reward=[], propensity=[])]
        if len(given) == 1:
            return given[0]
        policies = tuple(dict.fromkeys(name for batch in given for name in batch.policies))
        parts = [batch.with_policies(policies) for batch in given]
        return cls(
            policies,
            np.concatenate([part.probabilities.T for part in parts], axis=1).T,
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _PER_EVENT},
            action_sets=_all_sets(parts),
            slates=_all_slates(parts),
            choices=_all_choices(parts),
            unit=_all_units(parts),
            origin=_all_origins(parts),
            rejected=tuple(rejected for part in parts for rejected in part.rejected),
        )

    def with_policies(self, policies: Iterable[str]) -> EventBatch:
        """The batch with just these policies, in this order; one that it does not know is missing (NaN)."""
        wanted = tuple(policies)
        if wanted == self.policies:
            return self
        sets, slates, present = self.action_sets, self.slates, self.policies
        return replace(
            self,
            policies=wanted,
            probabilities=named_columns(self.probabilities, present, wanted),
            action_sets=sets and replace(sets, probabilities=named_columns(sets.probabilities, present, wanted)),
            slates=slates and slates.with_policies(present, wanted),
        )

    @classmethod
    def from_arrays(
        cls,
        *,
        reward: ArrayLike,
        propensity: ArrayLike | None = None,
        policies: Mapping[str, ArrayLike] | None = None,
        action: ArrayLike | None = None,
        propensities: ArrayLike | None = None,
        features: ArrayLike | None = None,
        timestamp: ArrayLike | None = None,
        sampling_probability: ArrayLike | None = None,
        unit: Sequence[Identifier | None] | ArrayLike | None = None,
        slate_logging: Literal["factored", "uniform_ranking"] = "factored",
    ) -> EventBatch:
        """Events that are arrays already; all values are copied.

        Compact: `propensity` [n] and `policies` {name: [n]}, probabilities of the logged action. With action sets:
        `propensities` [n, A], `action` [n] (positions, from 0), `policies` {name: [n, A] or [n]}, `features` [n, A, d].
        NaN in a policy, or in all features of an event: it lacks them. Slates of l slots: `propensity` and policies
        [n, l], or `propensities` and policies [n, l, A] with `action` [n, l]; `slate_logging` says how they were made.
        `unit` [n]: strings or integers, the user or session of each event; None or "" is one of its own.

        ValueError for a wrong shape, and for the first row that breaks a rule that events must keep:

        >>> EventBatch.from_arrays(reward=[1, 0], propensity=[0.5, 0.0])
        Traceback (most recent call last):
        ValueError: row 1: propensity_range: propensity: 0 is not in (0, 1]
        """
        earned = column("reward", reward, None)
        n = len(earned)
        logged, probabilities, sets, slates = choice_columns(
            n, propensity, policies or {}, action, propensities, features, slate_logging == "uniform_ranking"
        )
        batch = cls(
            policies=tuple(policies or {}),
            probabilities=probabilities,
            propensity=logged,
            reward=earned,
            timestamp=np.full(n, np.nan) if timestamp is None else column("timestamp", timestamp, n),
            sampling_probability=np.ones(n)
            if sampling_probability is None
            else at_most_one(column("sampling_probability", sampling_probability, n)),
            action_sets=sets,
            slates=slates,
            unit=None if unit is None else unit_column(unit, n),
        )
        for row, fault in sorted(faults(batch).items()):
            raise ValueError(f"row {row}: {fault.reason}: {fault.detail}")
        return batch

    def to_state(self) -> State:
        """The columns as a plain value, arrays as bytes; what was rejected is not part of it.

        Large arrays are not copied: nobody ever writes to those of a batch.
        """
        sets, slates, choices = self.action_sets, self.slates, self.choices
        columns: State = {name: getattr(self, name) for name in _PER_EVENT}
        columns |= {"policies": self.policies, "probabilities": self.probabilities.T}
        columns |= {"action_sets": sets and sets.to_state(), "slates": slates and slates.to_state()}
        columns |= {"choices": choices and choices.to_state(), "origin": self.origin and self.origin.to_state()}
        columns["unit"] = self.unit
        state: State = to_plain(columns, lasting=True)
        return state

    @classmethod
    def from_state(cls, state: State) -> EventBatch:
        """The batch that gave this state, bit for bit."""
        columns = from_plain(state)
        columns |= {"policies": tuple(columns["policies"]), "probabilities": columns["probabilities"].T}
        sets, slates, choices = columns["action_sets"], columns["slates"], columns["choices"]
        origin = columns.get("origin")
        ragged = {
            "action_sets": sets and ActionSets.from_state(sets),
            "slates": slates and SlateColumns.from_state(slates),
            "choices": choices and RawFields.from_state(choices),
            "unit": columns.get("unit"),
            "origin": origin and Origin.from_state(origin),
        }
        return cls(**columns | ragged)


def _all_sets(parts: list[EventBatch]) -> ActionSets | None:
    if all(part.action_sets is None for part in parts):
        return None
    return ActionSets.concat([part.action_sets or ActionSets.none(len(part), len(part.policies)) for part in parts])


def _all_choices(parts: list[EventBatch]) -> RawFields | None:
    if all(part.choices is None for part in parts):
        return None
    return RawFields.concat([part.choices or RawFields.none(len(part)) for part in parts])


def _all_units(parts: list[EventBatch]) -> Identity | None:
    if all(part.unit is None for part in parts):
        return None
    return np.concatenate([np.full(len(part), NOBODY) if part.unit is None else part.unit for part in parts])


def _all_origins(parts: list[EventBatch]) -> Origin | None:
    origins = [part.origin for part in parts if len(part)]
    known = [origin for origin in origins if origin is not None]
    return Origin.concat(known) if known and len(known) == len(origins) else None


def _all_slates(parts: list[EventBatch]) -> SlateColumns | None:
    if all(part.slates is None for part in parts):
        return None
    return SlateColumns.concat([part.slates or SlateColumns.none(len(part), len(part.policies)) for part in parts])
