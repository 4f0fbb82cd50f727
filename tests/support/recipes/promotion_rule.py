"""Add a promotion rule: the present lift is above the margin."""

from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.component import strict
from streameval.ope.core import Lift
from streameval.ope.promotion.rules.base import Judgement, PromotionRule, RuleContext
from streameval.ope.promotion.sums import RewardSums


@dataclass(frozen=True, kw_only=True, config=strict)
class Present(PromotionRule):
    """Compare the lift on the mixture with the margin, without a bound."""

    needs_lift: ClassVar[bool] = True
    kind: Literal["present"] = field(default="present", repr=False)

    def judge(self, memory: Any, sums: RewardSums, lift: Lift, context: RuleContext) -> tuple[Judgement, Any]:
        passes, unknown = lift.value > context.margin, np.full(len(context.errors), np.nan)
        return Judgement(lift.value, lift.value, passes, passes, lift.events, unknown), memory
