"""Policies: where `pi(a|x)` comes from.

`logged`: the probabilities that events carry. `coded`: policies that compute them when events arrive; `python`: those
in the user's code.
"""

from streameval.ope.policies.coded import (
    FAILURES,
    AnyPolicy,
    CodedPolicies,
    EpsilonGreedy,
    Faults,
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
