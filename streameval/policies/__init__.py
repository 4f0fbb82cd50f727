"""Policies: where `pi(a|x)` comes from. `logged`: the probabilities that events carry; `coded`: those that code gives."""

from streameval.policies.logged import LOGGING, knows_support, target_probabilities, unsupported_probability

__all__ = ["LOGGING", "knows_support", "target_probabilities", "unsupported_probability"]
