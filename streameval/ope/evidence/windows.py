"""Weigh clicks by how often production shows an item near the rank that a policy gives it.

Production is random, and shows item d at rank j with probability `P(d, j)`. With windows of w ranks, a click on an item
at rank k that the policy shows at rank t counts

    1[|k - t| <= w] / sum over j with |j - t| <= w of P(d, j) theta_j

Window 0 compares an item with itself at the same rank and needs no other assumption about users. This is the
item-position model. A window of all ranks is the position-based model: only `theta` tells ranks apart.

Derived: the published weight counts clicks, with `theta_t` as the numerator. Here a click at rank t is worth `lambda /
theta_t`, so that `theta_t` cancels and both models have the metric as expectation. An item that is never shown in its
window has the window of all ranks, and not the published weight of 0. Production's own clicks count `1 / theta`.

Source: Buchholz, London, Di Benedetto & Joachims, CONSEQUENCES workshop at RecSys 2022 (INTERPOL).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streameval.common.arrays import Array, Mask
from streameval.events.rankings import Rankings


@dataclass(frozen=True)
class Windows:
    """Hold where production shows the items of some pages, as rows laid end to end.

    Attributes:
        rank: the rank at which production showed the item [rows]
        ranks: the rank by each policy, NaN for the order that was shown [P, rows]
        looks: the sums of `P(d, j) theta_j` over the first ranks, from none to all [rows, ranks + 1]
        theta: the probability of a look at the shown rank [rows]
        known: whether a page has these probabilities, and none above 0 at a rank with an unknown look [n]
    """

    rank: Array
    ranks: Array
    looks: Array
    theta: Array
    known: Mask

    @classmethod
    def from_rankings(cls, rankings: Rankings, ranks: Array, theta: Array, curves: Array) -> Windows:
        """Add up looks, with the probabilities of a look at each rank of each page [n, ranks]."""
        tables, last = rankings.rank_probabilities, curves.shape[1]
        assert tables is not None
        rows, known = rankings.sizes, tables.sizes > 0
        widths = np.where(known, tables.sizes // np.maximum(rows, 1), 0)[rankings.owner]
        chances = np.zeros((len(rankings.rank), int(widths.max(initial=0))))
        chances[np.arange(chances.shape[1]) < widths[:, None]] = tables.values
        curve = curves[rankings.owner][:, np.minimum(np.arange(chances.shape[1]), last - 1)]
        unknown = ((chances > 0) & np.isnan(curve)).any(axis=1)
        known &= np.bincount(rankings.owner[unknown], minlength=len(known)) == 0
        looks = np.zeros((len(chances), chances.shape[1] + 1))
        looks[:, 1:] = chances * np.nan_to_num(curve)
        return cls(rankings.rank, ranks, np.cumsum(looks, axis=1), theta, known)

    def weight(self, window: Array | float) -> Array:
        """Return the weight of a click on each item, by the window of each row or of all [P, rows]."""
        last, window = self.looks.shape[1] - 1, np.floor(window)
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = [np.clip(np.nan_to_num(self.ranks + side, nan=0.0), 0, last) for side in (-window - 1, window)]
            before, within = (np.take_along_axis(self.looks, end.T.astype(np.int64), axis=1).T for end in ends)
            looks, total = within - before, self.looks[:, -1]
            near = np.abs(self.rank - self.ranks) <= window
            weight = np.where(looks > 0, near / looks, 1.0 / total)
            return np.where(np.isnan(self.ranks), 1.0 / self.theta, weight)

    def largest_weight(self) -> Array:
        """Return the largest weight of any window: of the smallest one with the shown rank [P, rows]."""
        return self.weight(np.abs(self.rank - self.ranks))
