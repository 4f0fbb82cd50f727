"""Test observations of a confidence sequence: which are light, and which are withheld."""

from __future__ import annotations

import numpy as np

from streameval.ope.evidence import Evidence
from streameval.ope.intervals.sequences.observations import (
    LIGHT,
    RANGE_ROUNDING,
    ObservationScale,
    observe_terms,
    observe_weights,
)


def test_an_observation_is_light_up_to_and_with_the_limit() -> None:
    weight = np.column_stack([np.ones(4), [1.0, LIGHT, np.nextafter(LIGHT, 9.0), 50.0]])
    seen = observe_weights(Evidence.from_numbers(weight, np.ones(4), 4), ObservationScale(0.0, 1.0))
    assert seen.light is not None
    assert seen.light[0, 0].all()
    assert seen.light[0, 1].tolist() == [[True, True, False, False]] * 4


def test_terms_outside_their_range_are_unknown_unless_rounding_explains_it() -> None:
    term = np.column_stack([np.full(6, 0.5), [0.0, 1.0, 1.0 + RANGE_ROUNDING / 2, -RANGE_ROUNDING / 2, 1.1, -0.1]])
    seen = observe_terms(Evidence.from_numbers(np.ones((6, 2)), np.ones(6), 6), term, ObservationScale(0.0, 1.0))
    assert np.isnan(seen.values[0, 1, 0]).tolist() == [False, False, False, False, True, True]
    assert not np.isnan(seen.values[0, 0]).any()
