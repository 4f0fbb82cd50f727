"""Decide what to average: each estimator turns events into terms."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.ope.estimators.base import Estimator, TermRange, Terms
from streameval.ope.estimators.clicks import (
    ClickCAB,
    ClickEstimator,
    ClickInterpol,
    ClickIPS,
    ClickSNIPS,
    ClickStaticBlend,
    ClickSwitch,
    ClippedClickIPS,
)
from streameval.ope.estimators.importance import SNIPS, ControlVariate, StratifiedDR, StratifiedIPS
from streameval.ope.estimators.interpolated import CAB, CABDR, DM, DR, IPS, ClippedIPS, StaticBlend, Switch
from streameval.ope.estimators.scored import ScoredIPS, ScoredSNIPS
from streameval.ope.estimators.slates import (
    DRPI,
    IIPS,
    RIPS,
    PseudoInverse,
    WeightedIIPS,
    WeightedPseudoInverse,
    WeightedRIPS,
)

_Interpolated = IPS | ClippedIPS | DM | DR | StaticBlend | Switch | CAB | CABDR
_Weighted = SNIPS | ControlVariate | StratifiedIPS | StratifiedDR
_Slates = PseudoInverse | WeightedPseudoInverse | DRPI | IIPS | RIPS | WeightedIIPS | WeightedRIPS
_Outcomes = ScoredIPS | ScoredSNIPS
_Clicks = ClickIPS | ClippedClickIPS | ClickSNIPS | ClickCAB | ClickSwitch | ClickStaticBlend | ClickInterpol
_Other = _Slates | _Outcomes | _Clicks
AnyEstimator = Annotated[_Interpolated | _Weighted | _Other, Field(discriminator="kind")]

__all__ = ["AnyEstimator", "Estimator", "TermRange", "Terms"]
__all__ += ["CAB", "CABDR", "DM", "DR", "IPS", "ClippedIPS", "StaticBlend", "Switch"]
__all__ += ["ClickCAB", "ClickEstimator", "ClickIPS", "ClickSNIPS", "ClippedClickIPS"]
__all__ += ["ClickInterpol", "ClickStaticBlend", "ClickSwitch"]
__all__ += ["SNIPS", "ControlVariate", "StratifiedDR", "StratifiedIPS"]
__all__ += ["DRPI", "IIPS", "RIPS", "ScoredIPS", "ScoredSNIPS", "PseudoInverse", "WeightedPseudoInverse"]
__all__ += ["WeightedIIPS", "WeightedRIPS"]
