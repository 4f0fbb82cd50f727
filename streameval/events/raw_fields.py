"""What events say that columns do not hold, for policies and reward models that are code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from streameval.events.schema import Event, Identifier


@dataclass(frozen=True, slots=True, eq=False)
class RawFields:
    """Lists of n events.

    contexts: what was known at decision time, as Python values; None where an event does not say
    actions: what could be chosen, in the order of the event's action set; empty where it has none
    scores: by field, what the events have there, which may be anything; None where they have nothing
    """

    contexts: Sequence[Any]
    actions: Sequence[Sequence[Identifier]]
    scores: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, events: Sequence[Event], fields: Mapping[str, str]) -> RawFields:
        """Those of decoded events; `fields`: the attribute that holds each field of scores."""
        return cls(
            contexts=[event.context for event in events],
            actions=[event.actions or [] for event in events],
            scores={field: [getattr(event, name) for event in events] for field, name in fields.items()},
        )

    def take(self, events: Sequence[int]) -> RawFields:
        """Those of these events, in this order."""
        return RawFields(
            contexts=[self.contexts[event] for event in events],
            actions=[self.actions[event] for event in events],
            scores={field: [values[event] for event in events] for field, values in self.scores.items()},
        )

    @classmethod
    def none(cls, events: int) -> RawFields:
        """So many events that say nothing."""
        return cls([None] * events, [[]] * events, {})

    def to_state(self) -> str:
        """As JSON, which knows integers of any size."""
        return json.dumps({field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def from_state(cls, state: str) -> RawFields:
        """The inverse of `to_state`."""
        return cls(**json.loads(state))

    @classmethod
    def concat(cls, parts: Sequence[RawFields]) -> RawFields:
        """Those of all events, one part after the other; a field that a part does not know has nothing there."""
        fields = dict.fromkeys(field for part in parts for field in part.scores)
        return cls(
            contexts=[context for part in parts for context in part.contexts],
            actions=[actions for part in parts for actions in part.actions],
            scores={
                field: [value for part in parts for value in part.scores.get(field, [None] * len(part.actions))]
                for field in fields
            },
        )
