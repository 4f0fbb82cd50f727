"""Define the settings for propensities that are estimated, for logs that lack them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.component import Configurable, kind_as_mapping, strict
from streameval.errors import ConfigError
from streameval.events.segments import SegmentField, label_of, require_known_before
from streameval.ope.estimators import AnyEstimator
from streameval.ope.policies.river import river_object
from streameval.ope.reward_models.external import EXAMPLE

FOR_ESTIMATES = ", ".join(kind.kind for kind in get_args(get_args(AnyEstimator)[0]) if kind.takes_estimated)
"""The kinds of estimators that take estimates."""
ROUNDED = 0.01
"""Largest difference of the sum of rounded marginals from 1."""


def _by_label(marginals: object) -> object:
    """Return the shares by the text of values, which may be numbers."""
    if not isinstance(marginals, Mapping):
        return marginals
    shares = {label_of(value): share for value, share in marginals.items()}
    if "" in shares or len(shares) < len(marginals):
        raise ValueError("expected texts, whole numbers or truth values, each of them once")
    return shares


@dataclass(frozen=True, config=strict)
class FrequencyTable(metaclass=Configurable):
    """Estimate a propensity by how often the action was chosen when it was available, in each context.

    A context is one value of each field in `by`. With `n` choices of the action in the context, `m` events of the
    context in which it was available, and the share `q` over all contexts, the estimate is `(n + k q) / (m + k)`, with
    `shrinkage` k. If events list their `actions`, estimates are divided by their sum over the list.

    If the logging policy used a context that `by` lacks, the estimate is wrong.

    A scored outcome was revealed or hidden, and its propensity is the probability that it was revealed. If this depends
    on the outcome itself, `by` names a field y that only revealed outcomes have, such as a rating, and `marginals` how
    often each of its values occurs among all outcomes, from a small random sample of them. With n revealed outcomes of
    a value, m outcomes in all, revealed or hidden, and the share q of revealed ones, the estimate is

    `(n + k q) / (m P(y) + k)`, so `P(y | revealed) P(revealed) / P(y)` without the shrinkage (Naive Bayes)

    Source: Schnabel et al., Recommendations as treatments, ICML 2016, section 5.2, for `marginals`.

    Args:
        by: fields with text, whole numbers, or true and false
        shrinkage: number of events that the share over all contexts counts for
        horizon: number of events after which old events have faded
        marginals: the share of each value of the only field in `by` among all outcomes
    """

    is_external: ClassVar[bool] = False

    by: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="the fields that the logging policy chose by, e.g. [context.country, position]"
    )
    shrinkage: PositiveFloat = Field(
        default=10.0, description="events of the share over all contexts that each context starts with"
    )
    horizon: float = Field(default=100_000.0, ge=100, description="in events, after which old choices count less")
    marginals: Annotated[Mapping[str, PositiveFloat] | None, BeforeValidator(_by_label)] = Field(
        default=None, description="of scored outcomes: the share of each value of `by`, e.g. {1: 0.5, 2: 0.3, 3: 0.2}"
    )
    kind: Literal["tabular"] = Field(default="tabular", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class RiverClassifier(metaclass=Configurable):
    """Estimate propensities by a classifier of the river library, which predicts the logged action from the `context`.

    The inputs are the numbers and texts of the context. If events list their `actions`, estimates are divided by their
    sum over the list. The classifier is called in Python for each event, and does not receive sampling probabilities.
    Its state is code: a snapshot is loaded only if the configuration names it.

    Args:
        model: name in river, e.g. `linear_model.SoftmaxRegression`
        parameters: arguments of the classifier, as for the reward model of river
        scale: scale numbers to mean 0 and variance 1
    """

    is_external: ClassVar[bool] = True
    by: ClassVar[tuple[str, ...]] = ()
    horizon: ClassVar[float] = 100_000.0

    model: Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")] = Field(
        description="the name of a classifier in river, e.g. linear_model.SoftmaxRegression"
    )
    parameters: Mapping[str, Any] = Field(default_factory=dict, description="the arguments of its constructor")
    scale: bool = Field(default=True, description="whether numbers are scaled to mean 0 and variance 1")
    kind: Literal["river"] = Field(default="river", kw_only=True, repr=False)

    def make(self) -> Any:
        """Return a new classifier.

        Raises:
            ConfigError: River has none of this name, or none with these parameters.
        """
        from river.base import Classifier  # slow to import, and rarely used

        classifier = river_object(self.model, self.parameters, EXAMPLE)
        if not (isinstance(classifier, Classifier) and classifier._multiclass):
            hint = "e.g. linear_model.SoftmaxRegression or naive_bayes.BernoulliNB"
            raise ConfigError(f"river's {self.model} is not a classifier of several classes", hint=hint)
        return classifier


@dataclass(frozen=True, config=strict)
class EstimatedPropensity(metaclass=Configurable):
    """Estimate propensities from the logged actions by a model, for logs that lack them.

    The model predicts the logged action of each event from the blocks before its own, and then learns from the block.
    Propensities in events are ignored. An event has no estimate, and is missing for all candidates, if it is among the
    first `warm_up` events, if its action was chosen less than ten times before, or if the estimate is below `floor`.
    Intervals leave out the error of the estimates. Only estimators that a wrong scale of the weights does not bias, or
    that correct a reward model, may use them.

    Source: Hirano, Imbens & Ridder, Econometrica 2003, for estimated propensities; Dudik, Langford & Li, ICML 2011, for
    why a reward model corrects their errors.
    """

    model: Annotated[
        FrequencyTable | RiverClassifier, Field(discriminator="kind"), BeforeValidator(kind_as_mapping)
    ] = Field(
        default=FrequencyTable(), description="the model that estimates, e.g. {kind: tabular, by: [context.country]}"
    )
    floor: float = Field(
        default=0.001, gt=0, lt=1, description="an event with a smaller estimate is missing for all candidates"
    )
    warm_up: NonNegativeInt = Field(default=1000, description="events before the first estimate")
    kind: Literal["estimated"] = Field(default="estimated", kw_only=True, repr=False)

    @property
    def fields(self) -> list[SegmentField]:
        """Return the fields of events that the model reads."""
        return [SegmentField(name, name) for name in self.model.by]

    def check(self) -> None:
        """Check the fields.

        Raises:
            ValueError: A field is not known before the decision, or given twice.
            ConfigError: The classifier cannot be made.
        """
        for field in self.fields:
            require_known_before(field)
        if len(set(self.model.by)) < len(self.model.by):
            raise ValueError("`by` names a field twice")
        if isinstance(self.model, FrequencyTable) and self.model.marginals is not None:
            if len(self.model.by) != 1:
                raise ValueError("marginals are shares of the values of one field: name it alone in `by`")
            if abs(sum(self.model.marginals.values()) - 1) > ROUNDED:
                raise ValueError(f"marginals must sum to 1, found {sum(self.model.marginals.values()):.4g}")
        if isinstance(self.model, RiverClassifier):
            self.model.make()
