"""Make a random log of two candidates."""

from __future__ import annotations

import numpy as np

from streameval import EventBatch
from support.reference.brute_force import Terms, terms

BLOCK, CAP = 50, 2.5


class Log:
    """Draw a log of two candidates, independently missing in a share `missing` of the events."""

    def __init__(self, seed: int, count: int, missing: float = 0.0, downsampled: bool = False) -> None:
        rng = np.random.default_rng(seed)
        self.propensity = rng.uniform(0.05, 0.5, count)
        self.reward = (rng.random(count) < 0.3).astype(float)
        self.sampling = rng.choice([0.25, 1.0], count) if downsampled else np.ones(count)
        self.target = {name: rng.random(count) * 2 * self.propensity for name in ("a", "b")}
        for column in self.target.values():
            column[rng.random(count) < missing] = np.nan

    def __len__(self) -> int:
        return len(self.reward)

    def batch(self, first: int = 0, last: int | None = None) -> EventBatch:
        part = slice(first, last)
        return EventBatch.from_arrays(
            reward=self.reward[part],
            propensity=self.propensity[part],
            sampling_probability=self.sampling[part],
            policies={name: column[part] for name, column in self.target.items()},
        )

    def terms(self, estimator: str, policy: str) -> Terms:
        target = self.propensity if policy == "logging" else self.target[policy]
        q = np.where(np.isnan(target), 0.0, 1 / self.sampling)
        return terms(estimator, q, np.nan_to_num(target / self.propensity), self.reward, cap=CAP, block=BLOCK)
