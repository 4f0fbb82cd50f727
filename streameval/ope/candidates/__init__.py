"""Define candidates: policies of every kind, and frozen copies of policies that learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import isclass
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union

from pydantic import Field, TypeAdapter

from streameval.common.component import kind_as_mapping
from streameval.ope.candidates.kinds import LEARNERS
from streameval.ope.candidates.versions import FrozenPolicy, VersionsOf
from streameval.ope.policies.base import ComputedPolicy, LearningPolicy
from streameval.ope.policies.coded import EpsilonGreedy, First, Logged, Softmax, Uniform
from streameval.ope.policies.external import FunctionPolicy

if TYPE_CHECKING:
    AnyPolicy: TypeAlias = Logged | ComputedPolicy | LearningPolicy | VersionsOf
    EvaluatedPolicy: TypeAlias = ComputedPolicy | LearningPolicy
else:
    _CODED = (Uniform, First, EpsilonGreedy, Softmax, *LEARNERS)
    AnyPolicy = Annotated[Union[(Logged, *_CODED, VersionsOf)], Field(discriminator="kind")]
    EvaluatedPolicy = Annotated[Union[(*_CODED, FrozenPolicy)], Field(discriminator="kind")]
    """A candidate that is not logged. Frozen copies are made, and not configured."""
_POLICY: TypeAdapter[Any] = TypeAdapter(AnyPolicy)


def named_policies(candidates: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Return candidates by name.

    A list names logged candidates, and a mapping gives policies, their kinds or settings, or functions.

    >>> named_policies({"even": "uniform", "shadow": Logged()})
    {'even': Uniform(), 'shadow': Logged()}
    """
    if isinstance(candidates, Mapping):
        return {name: _POLICY.validate_python(policy_or_options(candidate)) for name, candidate in candidates.items()}
    return dict.fromkeys(candidates, Logged())


def is_logged(candidate: object) -> bool:
    """Tell whether events carry the probabilities of a candidate that is given as a policy, its kind or settings."""
    options = policy_or_options(candidate)
    return options.get("kind") == "logged" if isinstance(options, Mapping) else isinstance(options, Logged)


def policy_or_options(candidate: object) -> object:
    """Return the policy of a function, the options of a kind by its name or of None (logged), and other values."""
    if callable(candidate) and not isclass(candidate):
        return FunctionPolicy.from_function(candidate)
    return {"kind": "logged"} if candidate is None else kind_as_mapping(candidate)
