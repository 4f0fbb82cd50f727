"""List the kinds of candidates that learn.

The rest works without the folder `learning`, its import and its name here.
"""

from __future__ import annotations

from streameval.ope.learning import KINDS as LEARNING
from streameval.ope.policies.base import LearningPolicy
from streameval.ope.policies.external import PythonPolicy
from streameval.ope.policies.river import RiverPolicy

LEARNERS: tuple[type[LearningPolicy], ...] = (
    PythonPolicy,
    *LEARNING,
    RiverPolicy,
)
