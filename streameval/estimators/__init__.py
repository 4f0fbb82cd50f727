"""What to average: each estimator turns events into terms."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.estimators.base import Component, Estimator, Terms
from streameval.estimators.importance import IPS, SNIPS, ClippedIPS, ControlVariate
from streameval.estimators.stratified import StratifiedDR, StratifiedIPS

AnyEstimator = Annotated[
    IPS | SNIPS | ClippedIPS | ControlVariate | StratifiedIPS | StratifiedDR, Field(discriminator="kind")
]

__all__ = [
    "IPS",
    "SNIPS",
    "AnyEstimator",
    "ClippedIPS",
    "Component",
    "ControlVariate",
    "Estimator",
    "StratifiedDR",
    "StratifiedIPS",
    "Terms",
]
