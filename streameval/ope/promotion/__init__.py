"""Promotion: "the candidate beats production" as decisions that one can wire to a pager.

`settings`: what is configured. `rules`: the tests. `trust` and `weights`: whether numbers can be believed at all.
`holding`: a test must pass for some time. `contest` folds all of them over blocks, `reading` makes decisions of them,
with `reasons`.
"""

from streameval.ope.promotion.arrivals import Arrivals
from streameval.ope.promotion.decisions import NOTHING_FOUND, Findings, read
from streameval.ope.promotion.lift import LiftSeries
from streameval.ope.promotion.monitor import PromotionMonitor
from streameval.ope.promotion.settings import NEEDS_LIFT, Promotion, RuleName, Trust
from streameval.ope.promotion.trust_reasons import TrustFigures

__all__ = [
    "NEEDS_LIFT",
    "NOTHING_FOUND",
    "Arrivals",
    "PromotionMonitor",
    "Findings",
    "LiftSeries",
    "Promotion",
    "RuleName",
    "TrustFigures",
    "Trust",
    "read",
]
