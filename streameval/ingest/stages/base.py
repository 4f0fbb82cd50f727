"""Define the protocol that all stages share."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from streameval.events import EventBatch


class Stage(Protocol):
    """Take events on their way from the decoder to the evaluator.

    Attributes:
        needs_origin: events must be decoded with their origin
    """

    needs_origin: ClassVar[bool]

    def pass_on(self, batch: EventBatch) -> EventBatch:
        """Take the next events, and return the events that the next stage gets now, with all that are rejected."""

    def state(self) -> Any:
        """Return all that is remembered and buffered, as a plain value."""

    def restore(self, state: Any) -> None:
        """Continue from a state, which may have been saved with other settings."""
