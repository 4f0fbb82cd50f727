"""Add an estimator: IPS without the events with too large importance weights."""

from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.evidence.evidence import Evidence


@dataclass(frozen=True, config=strict)
class TrimmedIPS(Estimator):
    """Average `w r` if `w <= cap`, else 0."""

    is_biased_by_design: ClassVar[bool] = True
    cap: PositiveFloat = 10.0
    kind: Literal["trimmed_ips"] = field(default="trimmed_ips", kw_only=True, repr=False)

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        return Terms(np.where(evidence.importance_weight <= self.cap, evidence.weighted_reward, 0.0)), state

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        slopes = min(reward_range[0], 0.0), max(reward_range[1], 0.0)
        width = np.minimum(max_weight, self.cap) * (slopes[1] - slopes[0])
        return TermRange.between((0.0, 0.0), slopes, np.full_like(max_weight, self.cap), width, controlled=False)
