"""Estimated propensities in the configuration: the problems of their fields, and of estimators that cannot use them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from streameval.common.component import kind_as_mapping
from streameval.config.errors import Problem, expecting, refusal
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator.estimated_propensity import FOR_ESTIMATES, EstimatedPropensity


def estimated_or_logged(value: object) -> object:
    """The settings as a mapping; None for propensities that are logged."""
    found = kind_as_mapping(value)
    return None if found == {"kind": "logged"} else found


def propensity_problems(
    propensity: EstimatedPropensity | None,
    estimators: Sequence[AnyEstimator],
    others: Mapping[str, object],
    rewards: Collection[str],
) -> Iterator[Problem]:
    """The problems of estimated propensities; `others`: keys that they exclude. `rewards`: the fields of rewards."""
    if propensity is None:
        return
    for name in (name for name, value in others.items() if value is not None):
        hint = "remove it: rankings and arms have no propensities to estimate"
        yield Problem(("propensity",), expecting(f"nothing next to `{name}`", "estimated propensities"), hint)
    for index, estimator in enumerate(estimators):
        if not estimator.takes_estimated:
            found = expecting(
                f"an estimator that takes estimated propensities: {FOR_ESTIMATES}", f"'{estimator.label}'"
            )
            hint = "take snips, and dr where events have features; their errors are corrected or divided out in part"
            yield Problem(("estimators", index), found, hint)
    hint = "name fields that the logging policy chose by, e.g. context.country"
    unusable = list[Problem]()
    for index, field in enumerate(propensity.fields):
        if field.root in rewards:
            found = expecting("a field that is known before the decision", "a reward")
            unusable.append(Problem(("propensity", "model", "by", index), found, hint))
    yield from unusable or refusal(("propensity", "model", "by"), propensity.check, hint)
