"""Worlds with known values and drift: a recommender whose users change their preferences.

Users belong to clusters. One interaction: a cluster is drawn from the mixture of the moment, a user from that cluster,
one item that the user likes, and 24 others. A policy chooses one of the 25 and earns 1 for the liked one.
The experiment is that of Jagerman, Markov and de Rijke, "When people change their mind" (WSDM 2019).
"""

from __future__ import annotations

from streameval.simulation.lists import InterventionKind, ListWorld, ShownPages
from streameval.simulation.world import (
    BATCH,
    Drift,
    DriftKind,
    Interactions,
    Moment,
    World,
    draw_block,
    simulate,
    truth_after,
)

__all__ = ["BATCH", "Drift", "DriftKind", "Interactions", "Moment", "World", "draw_block", "simulate", "truth_after"]
__all__ += ["InterventionKind", "ListWorld", "ShownPages"]
