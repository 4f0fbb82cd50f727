"""Promotion: decisions on whether a candidate beats production, ready to be wired to a pager.

`settings`: the configuration. `rules`: the tests. `trust_checks` and `mean_weight_test`: whether the numbers can be
believed. `hold`: a rule must pass for some time. `monitor` folds all of them over blocks, and `decisions` turns its
state into decisions with reasons.
"""

from streameval.ope.promotion.decisions import decide
from streameval.ope.promotion.lift import LiftSeries
from streameval.ope.promotion.monitor import PromotionMonitor
from streameval.ope.promotion.settings import Promotion, Trust
from streameval.ope.promotion.trust_checks import Arrivals, TrustFigures

__all__ = ["Arrivals", "LiftSeries", "Promotion", "PromotionMonitor", "Trust", "TrustFigures", "decide"]
