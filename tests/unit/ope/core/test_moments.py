"""Test moments of terms against arithmetic on the terms themselves."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from streameval.ope.core.moments import effective_denominators


@pytest.mark.parametrize("policies", [1, 2])
def test_effective_denominators_come_from_the_policy_with_fewer_events(policies: int) -> None:
    terms = np.random.default_rng(7).uniform(0.1, [1.0, 1.0, 2.0, 9.0][: 2 * policies], (50, 2 * policies)) ** 2
    products = [terms[:, one] @ terms[:, other] for one, other in combinations_with_replacement(range(2 * policies), 2)]
    denominators = terms[:, 1::2]
    expected = (denominators.sum(axis=0) ** 2 / (denominators**2).sum(axis=0)).min()
    sums = np.array([len(terms), *terms.sum(axis=0), *products])
    assert effective_denominators(sums, 2 * policies) == pytest.approx(expected, rel=1e-12)
