"""Add a policy: the first action listed, mixed with the action of the highest score."""

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.component import strict
from streameval.events import ActionSets, RawFields
from streameval.ope.policies.base import Answer, ComputedPolicy
from streameval.ope.policies.coded import EpsilonGreedy, First, ScoresField


@dataclass(frozen=True, config=strict)
class FirstOrBest(ComputedPolicy):
    """Take the first action listed with probability `share`, else the action with the highest score."""

    share: Annotated[float, Field(ge=0, le=1, description="the probability of the first action listed")]
    scores: ScoresField = "scores"
    kind: Literal["first_or_best"] = field(default="first_or_best", kw_only=True, repr=False)

    def ask(self, sets: ActionSets, raw_fields: RawFields) -> Answer:
        first, failed = First().ask(sets, raw_fields)
        best, faults = EpsilonGreedy(epsilon=0.0, scores=self.scores).ask(sets, raw_fields)
        return self.share * first + (1 - self.share) * best, {**failed, **faults}
