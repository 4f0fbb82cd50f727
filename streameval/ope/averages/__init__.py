"""How to average over time: each average folds terms into moments."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.ope.averages.adaptive import AdaptiveDecay, AdaptiveWindow
from streameval.ope.averages.base import Average, Reading
from streameval.ope.averages.fixed import Cumulative, Decay, Window
from streameval.ope.averages.mixture import Mixture

AnyAverage = Annotated[
    Cumulative | Window | Decay | AdaptiveWindow | AdaptiveDecay | Mixture, Field(discriminator="kind")
]

__all__ = ["AnyAverage", "Average", "Reading"]
__all__ += ["AdaptiveDecay", "AdaptiveWindow", "Cumulative", "Decay", "Mixture", "Window"]
