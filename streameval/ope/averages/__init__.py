"""How to average over time: each average folds terms into moments."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.ope.averages import moments, variance
from streameval.ope.averages.adaptive import AdaptiveDecay, AdaptiveWindow
from streameval.ope.averages.base import Average, Lift, Reading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import SHORTEST
from streameval.ope.averages.fixed import DEFAULT_ALPHA, Cumulative, Decay, Window
from streameval.ope.averages.mixture import MEMORY, ColumnLayout, DecayBank, Mixture, lift_blocks, lift_layout

AnyAverage = Annotated[
    Cumulative | Window | Decay | AdaptiveWindow | AdaptiveDecay | Mixture, Field(discriminator="kind")
]

__all__ = ["AnyAverage", "Average", "Reading"]
__all__ += ["DEFAULT_ALPHA", "MEMORY", "SHORTEST", "Blocks", "ColumnLayout", "DecayBank", "Lift"]
__all__ += ["lift_blocks", "lift_layout", "moments", "variance"]
__all__ += ["AdaptiveDecay", "AdaptiveWindow", "Cumulative", "Decay", "Mixture", "Window"]
