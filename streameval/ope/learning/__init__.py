"""Provide candidates that learn. Only `candidates` and the evaluator's module for learning import this package."""

from __future__ import annotations

from streameval.ope.learning.learned import Learned
from streameval.ope.learning.learned_ranker import LearnedRanker
from streameval.ope.learning.linear_bandit import LinearBandit
from streameval.ope.learning.of_reward_model import OfRewardModel
from streameval.ope.learning.of_slot_rewards import OfSlotRewards
from streameval.ope.policies.base import LearningPolicy

KINDS: tuple[type[LearningPolicy], ...] = (Learned, OfRewardModel, LearnedRanker, LinearBandit, OfSlotRewards)
