"""Promotion: "the candidate beats production" as decisions that one can wire to a pager.

`settings`: what is configured. `rules`: the tests. `trust` and `weights`: whether numbers can be believed at all.
`holding`: a test must pass for some time. `contest` folds all of them over blocks, `reading` makes decisions of them,
with `reasons`.
"""

from streameval.promotion.arrivals import Arrivals
from streameval.promotion.checks import Seen
from streameval.promotion.contest import Contest
from streameval.promotion.path import LiftPath
from streameval.promotion.reading import NOTHING_FOUND, Findings, read
from streameval.promotion.settings import NEEDS_LIFT, Promotion, RuleName, Trust

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
