"""What to average: each estimator turns events into terms."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.ope.estimators.base import Estimator, TermRange, Terms
from streameval.ope.estimators.importance import SNIPS, ControlVariate, PseudoInverse, WeightedPseudoInverse
from streameval.ope.estimators.interpolated import CAB, CABDR, DM, DR, IPS, ClippedIPS, StaticBlend, Switch
from streameval.ope.estimators.stratified import StratifiedDR, StratifiedIPS

AnyEstimator = Annotated[
    IPS
    | SNIPS
    | ClippedIPS
    | ControlVariate
    | DM
    | DR
    | StaticBlend
    | Switch
    | CAB
    | CABDR
    | StratifiedIPS
    | StratifiedDR
    | PseudoInverse
    | WeightedPseudoInverse,
    Field(discriminator="kind"),
]

__all__ = [
    "CAB",
    "CABDR",
    "DM",
    "DR",
    "IPS",
    "SNIPS",
    "AnyEstimator",
    "ClippedIPS",
    "ControlVariate",
    "Estimator",
    "PseudoInverse",
    "StaticBlend",
    "StratifiedDR",
    "StratifiedIPS",
    "Switch",
    "TermRange",
    "Terms",
    "WeightedPseudoInverse",
]
