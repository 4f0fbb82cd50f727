"""Promotion: "the candidate beats production" as decisions that one can wire to a pager.

`settings`: what is configured. `rules`: the tests. `trust` and `weights`: whether numbers can be believed at all.
`holding`: a test must pass for some time. `contest` folds all of them over blocks, `reading` makes decisions of them,
with `reasons`.
"""

from streameval.ope.promotion.arrivals import Arrivals
from streameval.ope.promotion.decisions import NOTHING_FOUND, Findings, read
from streameval.ope.promotion.lift import LiftPath
from streameval.ope.promotion.monitor import Contest
from streameval.ope.promotion.settings import NEEDS_LIFT, Promotion, RuleName, Trust
from streameval.ope.promotion.trust_reasons import Seen

__all__ = [
    "NEEDS_LIFT",
    "NOTHING_FOUND",
    "Arrivals",
    "Contest",
    "Findings",
    "LiftPath",
    "Promotion",
    "RuleName",
    "Seen",
    "Trust",
    "read",
]
