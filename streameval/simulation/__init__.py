"""Simulate worlds with known values and drift: a recommender with users who change their preferences.

Users belong to clusters. In each interaction, a cluster is drawn from the current mixture, then a user from that
cluster, one item that the user likes, and 24 other items. A policy chooses one of the 25 items and earns 1 for the
liked one.

Source: Jagerman, Markov & de Rijke, When people change their mind, WSDM 2019.
"""

from __future__ import annotations

from streameval.simulation.cycle import DailyCycle
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
__all__ += ["DailyCycle", "InterventionKind", "ListWorld", "ShownPages"]
