"""From readings to intervals: each kind of interval is a frozen value with one pure method."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.bounds.base import Bound, Claim, Ends, Interval
from streameval.bounds.bernstein import EmpiricalBernstein
from streameval.bounds.drift_aware import DriftAware
from streameval.bounds.empirical_likelihood import EmpiricalLikelihood
from streameval.bounds.normal import Normal
from streameval.bounds.sequence import ConfidenceSequence

AnyBound = Annotated[
    Normal | EmpiricalBernstein | EmpiricalLikelihood | DriftAware | ConfidenceSequence, Field(discriminator="kind")
]

__all__ = [
    "AnyBound",
    "Bound",
    "Claim",
    "ConfidenceSequence",
    "DriftAware",
    "EmpiricalBernstein",
    "EmpiricalLikelihood",
    "Ends",
    "Interval",
    "Normal",
]
