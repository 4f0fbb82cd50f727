"""Candidates that learn: a room, which only `candidates` and the room of the evaluator import."""

from __future__ import annotations

from streameval.ope.learning.learned import Learned
from streameval.ope.learning.of_reward_model import OfRewardModel
from streameval.ope.policies.base import LearningPolicy

KINDS: tuple[type[LearningPolicy], ...] = (Learned, OfRewardModel)
