"""What to average: each estimator turns events into terms."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.estimators.base import Estimator, Terms
from streameval.estimators.importance import IPS, SNIPS, ClippedIPS, ControlVariate

AnyEstimator = Annotated[IPS | SNIPS | ClippedIPS | ControlVariate, Field(discriminator="kind")]

__all__ = ["IPS", "SNIPS", "AnyEstimator", "ClippedIPS", "ControlVariate", "Estimator", "Terms"]
