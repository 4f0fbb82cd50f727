"""Test the figures behind the trust checks."""

from __future__ import annotations

import numpy as np

from streameval.ope.evidence import Evidence
from streameval.ope.promotion import Trust, trust_checks
from support.promotion import make_monitor


def test_no_event_has_a_share_of_weights_that_add_up_to_zero() -> None:
    """Add up weights of slates, which may be negative."""
    evidence = Evidence.from_numbers(np.tile([[1.0], [-1.0]], (50, 1)), np.ones(100), 100)
    sums = make_monitor(candidates=0).summarise(evidence, np.full(100, np.nan), np.full(100, 0.5))
    *_, state = trust_checks.fold(trust_checks.start(1), sums, Trust())
    figures = trust_checks.recent(state, 100)
    assert np.isnan(figures.weight_share).all()
    assert figures.effective_sample_size == 0.0
