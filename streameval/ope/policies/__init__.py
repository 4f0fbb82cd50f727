"""Policies: where `pi(a|x)` comes from.

`logged`: the probabilities that events carry. `coded`: policies that are code, `python` those of the user; `filling`
asks them when events arrive, so that everything after finds their answers where logged probabilities would be.
"""

from streameval.ope.policies.apply import FAILURES, CodedPolicies, Faults
from streameval.ope.policies.builtin import (
    AnyPolicy,
    EpsilonGreedy,
    First,
    Logged,
    PythonPolicy,
    Softmax,
    Uniform,
    fields_read,
    named_policies,
)
from streameval.ope.policies.logged import (
    LOGGING,
    has_support_information,
    target_probabilities,
    unsupported_probability,
)
from streameval.ope.policies.python import Decisions

__all__ = [
    "FAILURES",
    "LOGGING",
    "AnyPolicy",
    "CodedPolicies",
    "Decisions",
    "EpsilonGreedy",
    "Faults",
    "First",
    "Logged",
    "PythonPolicy",
    "Softmax",
    "Uniform",
    "fields_read",
    "has_support_information",
    "named_policies",
    "target_probabilities",
    "unsupported_probability",
]
