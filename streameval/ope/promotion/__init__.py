"""Promotion: decisions on whether a candidate beats production, ready to be wired to a pager.

`settings`: the configuration. `rules`: the tests. `trust_checks` and `mean_weight`: whether the numbers can be
believed. `monitor` folds all of them over blocks, and `decisions` turns its state into decisions with reasons.
"""

from streameval.ope.promotion.decisions import decide
from streameval.ope.promotion.lift import MOVED, SPREAD, Lift, recent_mean
from streameval.ope.promotion.monitor import PromotionMonitor
from streameval.ope.promotion.rules import RuleContext
from streameval.ope.promotion.settings import Promotion, Trust
from streameval.ope.promotion.trust_checks import Arrivals

__all__ = ["MOVED", "SPREAD", "Arrivals", "Lift", "Promotion", "PromotionMonitor", "RuleContext", "Trust", "decide"]
__all__ += ["recent_mean"]
