"""Compute sums over blocks of events, and the averages, variances and mixtures made of them.

`kernel.py` has the loops, which the build compiles.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.ope.core.adaptive import AdaptiveDecay, AdaptiveWindow
from streameval.ope.core.base import Average
from streameval.ope.core.fixed import Cumulative, Decay, Window
from streameval.ope.core.mixture import Mixture
from streameval.ope.core.reading import BlockLift, Lift, Reading

AnyAverage = Annotated[
    Cumulative | Window | Decay | AdaptiveWindow | AdaptiveDecay | Mixture, Field(discriminator="kind")
]

UNCOMPILED_SLOWDOWN = 100
"""How many times as long events take if kernels are not compiled, measured with 10 candidates by default."""
NOT_COMPILED = f"the kernels are not compiled: events take about {UNCOMPILED_SLOWDOWN} times as long"
COMPILE_HINT = "install a C compiler and the headers of Python (Debian: gcc, python3-dev), and install streameval again"

__all__ = ["COMPILE_HINT", "NOT_COMPILED", "AnyAverage", "Average", "BlockLift", "Lift", "Reading"]
__all__ += ["AdaptiveDecay", "AdaptiveWindow", "Cumulative", "Decay", "Mixture", "Window"]
