"""How to average over time: each average folds terms into moments."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.averages.adaptive import AdaptiveDecay, AdaptiveWindow
from streameval.averages.base import Average
from streameval.averages.fixed import Cumulative, Decay, Window
from streameval.averages.mixture import Mixture
from streameval.averages.reading import Reading

AnyAverage = Annotated[
    Cumulative | Window | Decay | AdaptiveWindow | AdaptiveDecay | Mixture, Field(discriminator="kind")
]

__all__ = [
    "AdaptiveDecay",
    "AdaptiveWindow",
    "AnyAverage",
    "Average",
    "Cumulative",
    "Decay",
    "Mixture",
    "Reading",
    "Window",
]
