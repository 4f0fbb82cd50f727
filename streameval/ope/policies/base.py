"""The base of policies that compute their distributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from streameval.common.arrays import Array
from streameval.common.component import Configurable
from streameval.events import ActionSets, Fault, RawFields

Answer: TypeAlias = tuple[Array, dict[int, Fault]]
"""A distribution over the rows of action sets, and the events for which there is none, with the reason."""

Ask: TypeAlias = Callable[[ActionSets, RawFields], Answer]


class ComputedPolicy(metaclass=Configurable):
    """Base of policies that compute their distributions. Those with `scores` read this field of the events."""

    def prepare(self) -> Ask:
        """The function that computes the distributions of this policy."""
        return self.ask

    def ask(self, sets: ActionSets, raw_fields: RawFields) -> Answer:
        """The distributions of this policy over the rows of `sets`."""
        raise NotImplementedError
