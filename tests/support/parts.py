"""Examples of all estimators and averages, by their unions: a new part is in the shared tests at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from pydantic import ValidationError

from streameval.ope.core import AnyAverage
from streameval.ope.estimators import (
    CAB,
    CABDR,
    AnyEstimator,
    ClickCAB,
    ClippedClickIPS,
    ClippedIPS,
    StaticBlend,
    StratifiedDR,
    StratifiedIPS,
    Switch,
)
from streameval.ope.estimators.interpolated import WEIGHED

CAP = 2.5
EXAMPLES: list[Any] = [
    ClippedIPS(cap=CAP),
    StaticBlend(tau=0.3),
    Switch(cap=CAP),
    CAB(cap=CAP),
    CABDR(cap=CAP),
    StratifiedIPS(threshold=CAP),
    StratifiedDR(threshold=CAP),
    ClippedClickIPS(cap=CAP),
    ClickCAB(cap=CAP),
]
"""The parts that have required parameters, and those that are tested with other parameters than their defaults."""


def kinds(union: Any) -> tuple[type[Any], ...]:
    """List the classes of a union."""
    return get_args(get_args(union)[0])


def example(kind: type[Any]) -> Any:
    """Return the example of a class, by default an instance without arguments.

    Raises:
        LookupError: The class has required parameters, and there is no example.
    """
    for each in EXAMPLES:
        if type(each) is kind:
            return each
    try:
        return kind()
    except ValidationError:
        raise LookupError(f"add an example of {kind.__name__} to tests/support/parts.py") from None


def estimators() -> list[AnyEstimator]:
    """Make one of each estimator."""
    return [example(kind) for kind in kinds(AnyEstimator)]


def estimators_of_weights() -> list[AnyEstimator]:
    """Make one of each estimator that needs the logged action alone."""
    return [each for each in estimators() if not each.needs and not each.uses_clicks]


def estimators_of_actions() -> list[AnyEstimator]:
    """Make one of each estimator that needs distributions over actions, or predictions for them."""
    return [each for each in estimators() if each.needs and each.needs <= WEIGHED and not each.uses_clicks]


def averages() -> list[AnyAverage]:
    """Make one of each average."""
    return [example(kind) for kind in kinds(AnyAverage)]


def further_averages(examples: Iterable[AnyAverage]) -> list[AnyAverage]:
    """Make one of each average that has none among these, which have the parameters that a test needs."""
    kinds_there = {type(each) for each in examples}
    return [each for each in averages() if type(each) not in kinds_there]
