"""The kinds of candidates that learn: without the folder `learning`, and the import and the name here, others work."""

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
