"""What is counted of events and policies besides what averages keep."""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array
from streameval.ope.evidence.evidence import Evidence

COUNTS = ("present", "supported", "largest_weight", "largest_slate_weight")


def start(policies: int) -> dict[str, Array]:
    """The counts before the first event."""
    return {name: np.zeros(policies) for name in COUNTS}


def counted(counts: dict[str, Array], evidence: Evidence, supported: Array) -> dict[str, Array]:
    """The counts after these events; `supported` [n]: which of them told the whole logging distribution."""
    present = evidence.sample_weight > 0
    return {
        "present": counts["present"] + np.count_nonzero(present, axis=0),
        "supported": counts["supported"] + np.count_nonzero(present & (supported[:, None] > 0), axis=0),
        "largest_weight": np.maximum(counts["largest_weight"], evidence.importance_weight.max(axis=0, initial=0.0)),
        "largest_slate_weight": np.maximum(counts["largest_slate_weight"], _largest(evidence.slates)),
    }


def _largest(slates: Evidence | None) -> Array | float:
    return 0.0 if slates is None else np.abs(slates.importance_weight).max(axis=0, initial=0.0)


def newest(before: float | None, timestamps: Array) -> float | None:
    """The newest time of events, as far as it is known."""
    known = timestamps[~np.isnan(timestamps)]
    if not len(known):
        return before
    latest = float(known.max())
    return latest if before is None else max(before, latest)
