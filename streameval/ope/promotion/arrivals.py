"""Arrivals: how many of the latest events were rejected."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

MEMORY = 100_000.0
"""Horizon in events; before there are so many, nearly all of them count."""
SEEN_BEFORE = "duplicate"
"""Rejected events that have been counted once already: their share says nothing."""


class Arrivals(NamedTuple):
    """Decayed numbers of events that were accepted and rejected, duplicates not among them.

    A burst of rejects blocks promotion while it lasts and some time after, neither drowned in years of sound events
    nor remembered for as long.
    """

    accepted: float = 0.0
    rejected: float = 0.0

    def after(self, accepted: int, reasons: Mapping[str, int]) -> Arrivals:
        """What they are after some more, which count as evenly mixed: nobody knows in which order they came.

        >>> early = Arrivals().after(90, {"malformed": 10, "duplicate": 500})
        >>> burst = {"malformed": 10_000}
        >>> now, long_ago = early.after(5_000_000, {}).after(0, burst), early.after(0, burst).after(500_000, {})
        >>> [f"{each.share:.2%}" for each in (early, now, long_ago)]
        ['10.00%', '9.52%', '0.06%']
        """
        rejected = sum(count for reason, count in reasons.items() if reason != SEEN_BEFORE)
        if not accepted + rejected:
            return self
        fading = math.exp(-(accepted + rejected) / MEMORY)
        kept = MEMORY * (1.0 - fading) / (accepted + rejected)
        return Arrivals(self.accepted * fading + kept * accepted, self.rejected * fading + kept * rejected)

    @property
    def share(self) -> float:
        """The share that was rejected; 0 before anything came."""
        return self.rejected / (self.accepted + self.rejected) if self.rejected else 0.0
