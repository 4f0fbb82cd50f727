"""The protocol that all stages share."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from streameval.events import EventBatch


class Stage(Protocol):
    """A station on the road from the decoder to the evaluator.

    `needs_origin`: whether events must be decoded with their origin.
    """

    needs_origin: ClassVar[bool]

    def pass_on(self, batch: EventBatch) -> EventBatch:
        """Take the next events; return those that the next stage gets now, with all that are rejected."""

    def state(self) -> Any:
        """All that is remembered and buffered, as a plain value."""

    def restore(self, state: Any) -> None:
        """Continue from a state, which may be that of other settings."""
