"""Add an average: polynomial decay, which forgets in proportion to the length of the stream."""

from dataclasses import field
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeFloat
from pydantic.dataclasses import dataclass

from streameval.common.component import strict
from streameval.ope.core.bank import Bank
from streameval.ope.core.base import Fading, Path, Step


@dataclass(frozen=True, config=strict)
class PolynomialDecay(Fading):
    """Update at event t by `average <- (1 - s) average + s x` with `s = (eta + 1) / (t + eta)`.

    Events of one block have equal shares of their sum.

    Source: Shamir & Zhang, Stochastic gradient descent for non-smooth optimization, ICML 2013.
    """

    eta: NonNegativeFloat = 3.0
    kind: Literal["polynomial_decay"] = field(default="polynomial_decay", kw_only=True, repr=False)

    def step(self, path: Path, state: Any, bank: Bank) -> Step:
        blocks, size = len(path.sums), path.sums.size
        event = state.events[:, None] + np.arange(1.0, blocks * size + 1).reshape(blocks, size, 1, 1)
        factor = np.prod(1 - (self.eta + 1) / (event + self.eta), axis=1)
        return Step(factor, share=(1 - factor) / size, memory=event[:, -1] / (self.eta + 1))
