"""The trust checks of weights from sums that can be merged: of all events, whatever their order.

They read what those of one process read, from all events in place of the last 200,000 to 400,000. Bets against a mean
weight of 1 cannot follow the events before, so several fixed stakes share the wealth: with correct propensities the
mean of `prod (1 + stake q (w - 1))` over stakes ever exceeds `1 / error` with probability at most `error`, as any mean
of non-negative martingales does. See `mean_weight.fold`, also for stakes that a weight beyond `1 / stake` ruins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from streameval.common.arrays import Array, State
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.promotion import mean_weight
from streameval.ope.promotion.mean_weight import RUINED
from streameval.ope.promotion.monitor import PromotionMonitor, block_sums, differing
from streameval.ope.promotion.trust_checks import PEAKS, TOTALS

FIXED_STAKES = np.array([0.2, 0.03, 0.004, -0.004, -0.03, -0.2])
"""The shares of the wealth that a bet risks on each event, against mean weights above 1 and below."""


def trust_sums(evidence: Evidence) -> dict[str, Array]:
    """The sums of some events in one block, by name, [policies, ...]; of those called `largest` the larger one counts.

    >>> sums = trust_sums(Evidence.of(importance_weight=[[1.0, 2.0], [1.0, 1.0]], reward=[1.0, 0.0], block=2))
    >>> sums["trust weight"], sums["largest difference"], sums["trust gain"][1].round(2)
    (array([2., 3.]), array([1.]), array([ 0.18,  0.03,  0.  , -0.  , -0.03, -0.22]))
    """
    deciding = evidence.deciding
    sums = block_sums(deciding)
    surprise = deciding.sample_weight * (deciding.importance_weight - 1.0)
    wealth = (np.log(np.maximum(1.0 + stake * surprise, RUINED)).sum(axis=0) for stake in FIXED_STAKES.tolist())
    found = {f"trust {name}": sums[name][0] for name in TOTALS} | {f"largest {name}": sums[name][0] for name in PEAKS}
    found["trust gain"] = np.stack(list(wealth), axis=-1)
    candidates = deciding.sample_weight.shape[1] - 1
    found["largest difference"] = differing(deciding, np.zeros(candidates, dtype=bool))[-1].astype(float)
    if deciding.signs is not None:
        found["trust signed"] = surprise.T @ deciding.signs
        found["trust square"] = np.square(surprise * np.abs(deciding.signs[:, :1])).sum(axis=0)
    return found


def monitor_state(monitor: PromotionMonitor, sums: Mapping[str, Array]) -> State:
    """The state of a monitor that has made no decision; `sums`: of all events, see `trust_sums`."""
    state, policies = monitor.start(), len(monitor.policies)
    if "trust gain" not in sums:
        return state
    gain = np.logaddexp.reduce(sums["trust gain"], axis=-1) - math.log(len(FIXED_STAKES))
    totals = np.stack([*(sums[f"trust {name}"] for name in TOTALS), gain], axis=-1)
    peaks = np.stack([sums[f"largest {name}"] for name in PEAKS], axis=-1)
    units = mean_weight.start(policies)["units"]
    if "trust signed" in sums:
        units = {"signed": sums["trust signed"], "square": sums["trust square"]}
    trust = {
        **state["trust"],
        "weights": {**state["trust"]["weights"], "units": units},
        "totals": np.repeat(totals[:, None], 2, axis=1),
        "peaks": np.repeat(peaks[:, None], 2, axis=1),
    }
    return {**state, "trust": trust, "differs": sums["largest difference"] > 0}
