"""List examples of all estimators and averages from their unions, so that shared tests include a new one at once."""

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
    ClickStaticBlend,
    ClickSwitch,
    ClippedClickIPS,
    ClippedIPS,
    StaticBlend,
    StratifiedDR,
    StratifiedIPS,
    Switch,
)

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
    ClickSwitch(cap=CAP),
    ClickStaticBlend(tau=0.3),
]
"""Instances of classes that have required parameters, or that tests use with other parameters than the defaults."""


def kinds(union: Any) -> tuple[type[Any], ...]:
    """List the classes of a union."""
    return get_args(get_args(union)[0])


def example(kind: type[Any]) -> Any:
    """Return the example of a class, by default an instance without arguments.

    Raises:
        LookupError: The class has required parameters, and there is no example.
    """
    for instance in EXAMPLES:
        if type(instance) is kind:
            return instance
    try:
        return kind()
    except ValidationError:
        raise LookupError(f"add an example of {kind.__name__} to tests/support/parts.py") from None


def estimators() -> list[AnyEstimator]:
    """Make one of each estimator."""
    return [example(kind) for kind in kinds(AnyEstimator)]


def estimators_of_weights() -> list[AnyEstimator]:
    """Make one of each estimator that needs the logged action alone."""
    return [estimator for estimator in estimators() if not estimator.needs and not estimator.uses_clicks]


def averages() -> list[AnyAverage]:
    """Make one of each average."""
    return [example(kind) for kind in kinds(AnyAverage)]


def further_averages(examples: Iterable[AnyAverage]) -> list[AnyAverage]:
    """Make one of each average without an instance among these examples."""
    kinds_there = {type(average) for average in examples}
    return [average for average in averages() if type(average) not in kinds_there]
