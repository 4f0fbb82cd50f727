"""Define candidates: policies of every kind, and frozen copies of policies that learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, Union

from pydantic import Field, TypeAdapter

from streameval.ope.candidates.kinds import LEARNERS
from streameval.ope.candidates.versions import FrozenPolicy, VersionsOf
from streameval.ope.policies.base import ComputedPolicy, LearningPolicy
from streameval.ope.policies.coded import EpsilonGreedy, First, Logged, Softmax, Uniform

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
    """Return candidates by name. A list names logged candidates, and a mapping gives policies, their kinds or settings.

    >>> named_policies({"even": "uniform", "shadow": Logged()})
    {'even': Uniform(), 'shadow': Logged()}
    """
    if isinstance(candidates, Mapping):
        spelled = {
            name: {"kind": candidate} if isinstance(candidate, str) else candidate
            for name, candidate in candidates.items()
        }
        return {name: _POLICY.validate_python(candidate) for name, candidate in spelled.items()}
    return dict.fromkeys(candidates, Logged())
