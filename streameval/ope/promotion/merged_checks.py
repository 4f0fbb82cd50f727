"""The trust checks of weights from sums that can be merged: of all events, whatever their order.

They read what those of one process read, from all events in place of the last 200,000 to 400,000. Bets against a mean
weight of 1 cannot follow the events before, so several fixed stakes share the wealth: with correct propensities the
mean of `prod (1 + stake q (w - 1))` over stakes ever exceeds `1 / error` with probability at most `error`, as any mean
of non-negative martingales does. See `mean_weight.fold`, also for stakes that a weight beyond `1 / stake` ruins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from streameval.common.arrays import Array, Mask, State, running_max, running_sum
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.promotion import clusters, mean_weight
from streameval.ope.promotion.block_sums import BlockSums, differing
from streameval.ope.promotion.mean_weight import Bets
from streameval.ope.promotion.monitor import PromotionMonitor
from streameval.ope.promotion.trust_checks import PEAKS, TOTALS, WeightFigures


def trust_sums(evidence: Evidence, block: int) -> dict[str, Array]:
    """The sums of each block of this many events, by name, [blocks, policies, ...]; see `merged_sums`.

    >>> sums = trust_sums(Evidence.of(importance_weight=[[1.0, 2.0], [1.0, 1.0]], reward=[1.0, 0.0]), block=2)
    >>> sums["trust weight"][0], sums["largest difference"][0], sums["trust gain"][0, 1].round(2)
    (array([2., 3.]), array([1.]), array([ 0.18,  0.03,  0.  , -0.  , -0.03, -0.22]))
    """
    deciding = replace(evidence.deciding, block=block)
    sums, bets = BlockSums.of(deciding), Bets.of(deciding, np.ones(len(deciding.reward)), fixed_stakes=True)
    found: dict[str, Array] = {f"trust {name}": getattr(sums, name) for name in TOTALS}
    found |= {f"largest {name}": getattr(sums, name) for name in PEAKS}
    found["largest difference"] = differing(deciding, sums).astype(float)
    for name, rows in (("gain", bets.gains), ("signed", bets.signed), ("square", bets.signed_square)):
        if rows is not None:
            found[f"trust {name}"] = rows
    return found


def merged_sums(sums: Mapping[str, Array]) -> dict[str, Array]:
    """Sums of all blocks together; of those called `largest` the larger one counts."""
    return {name: (rows.max if name.startswith("largest") else rows.sum)(axis=0) for name, rows in sums.items()}


def fold_trust(monitor: PromotionMonitor, before: State, sums: Mapping[str, Array]) -> tuple[Mask, Mask, State]:
    """Whether the weights of each policy pass after each block, [blocks, policies]; whether each candidate differs from
    production, [blocks, candidates]; and the sums of all blocks.

    `sums`: see `trust_sums`. `before`: of the blocks before, nothing at first.
    """
    paths = {}
    for name, rows in sums.items():
        known = before.get(name, np.zeros(rows.shape[1:]))
        paths[name] = (running_max if name.startswith("largest") else running_sum)(known, rows)
    totals, peaks, effects = _figures(monitor, paths)
    figures = WeightFigures.of(totals, peaks, effects, 0)
    sound = figures.sound(monitor.promotion.trust).all(axis=0)
    after = {**before, **{name: path[-1] for name, path in paths.items()}}
    return np.asarray(sound), paths["largest difference"] > 0, after


def _figures(monitor: PromotionMonitor, sums: Mapping[str, Array]) -> tuple[Array, Array, Array]:
    """The sums and the maxima behind trust checks, [..., runs, numbers, policies], and the design effects."""
    gain = mean_weight.together(sums["trust gain"].swapaxes(-1, -2))
    if not monitor.context.weights_average_1:
        gain = np.zeros_like(gain)
    totals = np.stack([*(sums[f"trust {name}"] for name in TOTALS), gain], axis=-2)
    peaks = np.stack([sums[f"largest {name}"] for name in PEAKS], axis=-2)
    effects = np.ones_like(gain)
    if "trust signed" in sums:
        effects = mean_weight.design_effect({"signed": sums["trust signed"], "square": sums["trust square"]})
    return np.stack([totals, totals], axis=-3), np.stack([peaks, peaks], axis=-3), effects


def monitor_state(monitor: PromotionMonitor, state: State, sums: Mapping[str, Array]) -> State:
    """The state of a monitor whose rules have judged lifts alone; `sums`: of all events, see `trust_sums`."""
    policies = len(monitor.policies)
    if "trust gain" not in sums:
        return state
    totals, peaks, _ = _figures(monitor, sums)
    units = mean_weight.start(policies)["units"]
    if "trust signed" in sums:
        units = {"signed": sums["trust signed"], "square": sums["trust square"]}
    trust = {
        **state["trust"],
        "weights": {**state["trust"]["weights"], "units": units},
        "totals": np.moveaxis(totals, -1, 0),
        "peaks": np.moveaxis(peaks, -1, 0),
    }
    known = clusters.without_order("trust signed" in sums)
    return {**state, "trust": trust, "differs": sums["largest difference"] > 0, "clusters": known}
