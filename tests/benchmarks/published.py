"""List the events per second of a core that the makers of other software have published, and where."""

from __future__ import annotations

from typing import NamedTuple

FLINK = "https://github.com/nexmark/nexmark/blob/0c6d9cf08c9c86485b062d6565cdc06024368558/README.md"
FELDERA = "https://github.com/feldera/feldera/blob/1eb7bb0a126737532cf03f5357a44c8142bfa456/benchmark/README.md"
FELDERA_CORES = 16


class Published(NamedTuple):
    """Hold one published result.

    Args:
        name: Software and job.
        per_core: Events per second of a core.
        place: Page with the table that it comes from.
    """

    name: str
    per_core: float
    place: str

    @property
    def microseconds(self) -> float:
        """Return the processor time of an event."""
        return 1e6 / self.per_core


# Query 0 of Nexmark passes events on, and query 17 aggregates the bids of each auction and day.
RESULTS = (
    Published("Flink 1.13, Nexmark query 0", 155_020, FLINK),
    Published("Flink 1.13, Nexmark query 17", 116_800, FLINK),
    Published("Feldera, Nexmark query 0", 6_973_987 / FELDERA_CORES, FELDERA),
    Published("Feldera, Nexmark query 17", 3_870_269 / FELDERA_CORES, FELDERA),
)
