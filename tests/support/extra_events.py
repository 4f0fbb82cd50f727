"""Extra events of the empirical likelihood interval, several at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streameval.ope.intervals.empirical_likelihood import Extra


def any_of(extras: Sequence[Extra]) -> Extra:
    """One of these extra events, whichever is the worst."""
    return Extra(*(np.stack(values) for values in zip(*extras, strict=True)))
