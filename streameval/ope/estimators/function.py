"""Take a plain function of importance weights and rewards as an estimator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.errors import InputError
from streameval.ope.estimators.base import Estimator, Range, TermRange, Terms
from streameval.ope.estimators.interpolated import WEIGHTS
from streameval.ope.evidence.evidence import Evidence

TermFunction: TypeAlias = Callable[[Array, Array], Array | tuple[Array, Array]]
"""Return numerators [n, P], or numerators and denominators, for weights [n, P] and rewards [n, 1]."""


@dataclass(frozen=True, config=strict)
class FunctionEstimator(Estimator):
    """Average what a function returns for each event: `mean(f(w, r))`, or a ratio of two means.

    The function takes importance weights [n, P] and rewards [n, 1]. It returns numerators [n, P], or a tuple of
    numerators and denominators. Each event must have a term of its own. Intervals are about the expectation of the
    estimator, and presume that no later weight is larger than the largest one so far.

    >>> def clipped(weight, reward):
    ...     return np.minimum(weight, 5.0) * reward
    >>> estimator = FunctionEstimator.from_function(clipped)
    >>> evidence = Evidence.from_numbers(importance_weight=[[2.0], [9.0]], reward=[1.0, 1.0])
    >>> estimator.label, estimator.terms(evidence, None)[0].numerator.ravel()
    ('clipped', array([2., 5.]))
    """

    is_biased_by_design: ClassVar[bool] = True
    kind: Literal["function"] = field(default="function", kw_only=True, repr=False)
    function: TermFunction = field(kw_only=True, repr=False)

    @staticmethod
    def from_function(function: TermFunction) -> FunctionEstimator:
        """Return an estimator under the name of the function.

        Raises:
            ValueError: The function fails, changes its arguments, or returns arrays of another shape, other values than
                finite numbers, or negative denominators.
        """
        name = getattr(function, "__name__", type(function).__name__)
        weights, rewards = np.array([[0.0, 1.0], [0.5, 2.0], [10.0, 1000.0]]), np.array([[0.0], [1.0], [0.5]])
        try:
            parts = _parts(function(_unchanging(weights), _unchanging(rewards)))
        except Exception as error:
            hint = "; copy weights and rewards before you change them" if "read-only" in str(error) else ""
            if isinstance(error, TypeError) and "argument" in str(error):
                hint = "; a function takes importance weights [n, P] and rewards [n, 1]"
            raise ValueError(f"{name}: {type(error).__name__}: {error}{hint}") from error
        shapes = [part.shape for part in parts]
        if set(shapes) != {(3, 2)} or len(shapes) > 2:
            raise ValueError(
                f"{name}: expected numerators, or numerators and denominators, of the shape (3, 2) for weights of that "
                f"shape and rewards (3, 1), found {' and '.join(map(str, shapes))}"
            )
        if not all(np.isfinite(part).all() for part in parts):
            raise ValueError(f"{name}: expected finite numbers for weights from 0, found nan or infinite ones")
        if len(parts) > 1 and (parts[1].min() < 0 or not parts[1].any()):
            raise ValueError(f"{name}: expected denominators that are not negative, and not all 0")
        kind = RatioFunctionEstimator if len(shapes) == 2 else FunctionEstimator
        return kind(name=name, function=function)

    def terms(self, evidence: Evidence, state: Any) -> tuple[Terms, Any]:
        parts = _parts(self.function(_unchanging(evidence.importance_weight), _unchanging(evidence.reward[:, None])))
        self._require_numbers(parts, evidence)
        return Terms(parts[0], parts[1] if len(parts) > 1 else None), state

    def _require_numbers(self, parts: Sequence[Array], evidence: Evidence) -> None:
        """Check what the function returns for events that count.

        Raises:
            InputError: A number is not finite, or a denominator is negative.
        """
        for index, part in enumerate(parts):
            wrong = ~np.isfinite(part) | (part < 0 if index else False)
            wrong &= evidence.sample_weight > 0
            if wrong.any():
                row, policy = np.argwhere(wrong)[0]
                weight, reward = evidence.importance_weight[row, policy], evidence.reward[row]
                wanted = "a finite denominator that is not negative" if index else "a finite numerator"
                raise InputError(
                    f"the estimator '{self.label}' returned {part[row, policy]:g} for the weight {weight:.6g} "
                    f"and the reward {reward:.6g}; expected {wanted}",
                    hint="correct the function; it takes weights from 0 to infinity, and all rewards in the range",
                )

    def term_range(self, reward_range: Range, max_weight: Array) -> TermRange:
        """Return the smallest and the largest term that the ends of the reward range have up to the largest weight."""
        weights = np.minimum.outer(WEIGHTS, max_weight.ravel())
        numerators = [self._numerator(weights, reward) for reward in (*reward_range, 0.0)]
        least, most = (
            bound(numerators, axis=(0, 1)).reshape(max_weight.shape).astype(float) for bound in (np.min, np.max)
        )
        lines = TermRange.between((0.0, 0.0), (0.0, 0.0), max_weight, most - least, controlled=False)
        return lines._replace(low_offset=least, high_offset=most)

    def _numerator(self, weights: Array, reward: float) -> Array:
        return _parts(self.function(weights, np.full((len(weights), 1), reward)))[0]


def _parts(found: object) -> list[Array]:
    """Return what a function gave as arrays of real numbers.

    Raises:
        TypeError: It is something else.
    """
    parts = [np.asarray(part) for part in (found if isinstance(found, tuple) else (found,))]
    for part in parts:
        if part.dtype.kind not in "fiub":
            raise TypeError(f"expected an array of numbers, found {part.dtype} values")
    return [part.astype(float, copy=False) for part in parts]


def _unchanging(values: Array) -> Array:
    """Return a view that cannot be written, as all estimators share weights and rewards."""
    view = values.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, config=strict)
class RatioFunctionEstimator(FunctionEstimator):
    """Divide the mean numerator of a function by its mean denominator."""

    ratio: ClassVar[bool] = True
