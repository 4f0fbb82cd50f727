"""The long memory that variances come from: block sums that fade ten times slower than the estimate's."""

from __future__ import annotations

import numpy as np

from streameval.arrays import Array, State
from streameval.averages.blocks import Blocks
from streameval.averages.moments import (
    CLUSTER_ROWS,
    ClusterRow,
    Moments,
    Row,
    design_effect,
    fade,
    fold,
    fold_sums,
    merge,
    nothing,
)

LONGER = 10
"""How many times longer the variance's horizon is than the estimate's."""


def start(columns: int) -> State:
    """The memory of nothing."""
    return {"moments": nothing(columns), "clusters": np.zeros((columns, CLUSTER_ROWS))}


def push(state: State, blocks: Blocks, horizon: Array | float) -> State:
    """Add whole blocks; `horizon` in events, one number or [blocks, columns], infinite = never fading."""
    factors = np.broadcast_to(
        np.exp(-blocks.size / np.asarray(horizon, dtype=float)), np.shape(horizon) or (len(blocks),)
    )
    return {
        "moments": fold(state["moments"], blocks.moments, factors),
        "clusters": fold_sums(state["clusters"], blocks.clusters, factors),
    }


def combine(earlier: State, later: State, events: int, horizon: float) -> State:
    """The memory of two parts of a stream, the later one `events` long."""
    factor = np.exp(-events / horizon)
    return {
        "moments": merge(fade(earlier["moments"], factor), later["moments"]),
        "clusters": earlier["clusters"] * factor + later["clusters"],
    }


def read(state: State, tail: Blocks | None) -> tuple[Moments, Array, Array]:
    """Moments, number of non-zero terms, and design effect (from finished blocks only)."""
    moments, clusters = state["moments"], state["clusters"]
    effect = design_effect(Moments(moments), clusters)
    nonzero = clusters[..., ClusterRow.NONZERO]
    if tail is not None:
        moments = merge(moments, tail.moments[0])
        nonzero = nonzero + np.count_nonzero(tail.features[0, :, Row.U], axis=-1)
    return Moments(moments), nonzero, effect
