"""Decide whether a candidate beats production, ready to be wired to a pager.

`settings` holds the configuration, and `rules` the tests. `trust_checks` and `mean_weight` tell whether the numbers can
be believed. `monitor` folds all of them over blocks, and `decisions` turns its state into decisions with reasons.
"""

from streameval.ope.core import Lift
from streameval.ope.promotion.decisions import add_checks, decide, repeat_for_policies
from streameval.ope.promotion.lift import MOVED, SPREAD, recent_mean
from streameval.ope.promotion.monitor import MonitorState, PromotionMonitor
from streameval.ope.promotion.settings import Promotion, Trust
from streameval.ope.promotion.sums import MonitorSums
from streameval.ope.promotion.trust_checks import ArrivalState, fold_arrivals, rejected_share

__all__ = ["MOVED", "SPREAD", "Lift", "MonitorState", "MonitorSums", "Promotion", "PromotionMonitor", "Trust", "decide"]
__all__ += ["ArrivalState", "fold_arrivals", "recent_mean", "rejected_share"]
__all__ += ["repeat_for_policies", "add_checks"]
