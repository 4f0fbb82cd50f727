"""From readings to intervals: each kind of interval is a frozen value with one pure method."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.ope.intervals.base import Bounds, Interval, IntervalMethod, IntervalRequest
from streameval.ope.intervals.confidence_sequence import ConfidenceSequence
from streameval.ope.intervals.drift_aware import DriftAware
from streameval.ope.intervals.empirical_bernstein import EmpiricalBernstein
from streameval.ope.intervals.empirical_likelihood import EmpiricalLikelihood
from streameval.ope.intervals.normal import Normal

AnyInterval = Annotated[
    Normal | EmpiricalBernstein | EmpiricalLikelihood | DriftAware | ConfidenceSequence, Field(discriminator="kind")
]

__all__ = [
    "AnyInterval",
    "IntervalMethod",
    "IntervalRequest",
    "ConfidenceSequence",
    "DriftAware",
    "EmpiricalBernstein",
    "EmpiricalLikelihood",
    "Bounds",
    "Interval",
    "Normal",
]
