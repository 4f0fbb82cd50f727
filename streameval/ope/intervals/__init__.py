"""Turn readings into intervals. Each kind is a frozen value and a member of the union below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, get_args

from pydantic import Field

from streameval.ope.intervals import empirical_likelihood
from streameval.ope.intervals.base import Interval, IntervalMethod, extended_to
from streameval.ope.intervals.centred import DriftAware, EmpiricalBernstein, Normal
from streameval.ope.intervals.confidence_sequence import ConfidenceSequence
from streameval.ope.intervals.empirical_likelihood import EmpiricalLikelihood

AnyInterval = Annotated[
    Normal | EmpiricalBernstein | EmpiricalLikelihood | DriftAware | ConfidenceSequence, Field(discriminator="kind")
]

KINDS: Mapping[str, type[IntervalMethod]] = {method.kind: method for method in get_args(get_args(AnyInterval)[0])}
"""Classes of intervals by their kinds."""

__all__ = ["KINDS", "AnyInterval", "Interval", "IntervalMethod", "empirical_likelihood", "extended_to"]
__all__ += ["ConfidenceSequence", "DriftAware", "EmpiricalBernstein", "EmpiricalLikelihood", "Normal"]
