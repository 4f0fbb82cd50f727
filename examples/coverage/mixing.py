"""Readings of a mixture at every look of a run, all looks at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from readings import BLOCK, Known, reading_of, spreads_of
from worlds import LOGGING, Floats

from streameval.ope.averages import MEMORY, Blocks, ColumnLayout, DecayBank, Mixture, Reading, lift_blocks, lift_layout
from streameval.ope.estimators import Estimator, StratifiedIPS
from streameval.ope.evidence import Evidence

MIXED: tuple[Estimator, ...] = (StratifiedIPS(),)


def on_mixture(evidence: Evidence, policies: Sequence[str], every: int) -> Known:
    """The readings of the mixture by number of blocks."""
    mixture, count = Mixture(), len(policies)
    layout = ColumnLayout((StratifiedIPS.parts,), tuple(policy != LOGGING for policy in policies))
    terms = [estimator.terms(evidence, estimator.start(count))[0] for estimator in MIXED]
    blocks = Blocks.of(evidence, terms, paired=False, components=True)
    start = mixture.start(layout.components, layout.candidates, BLOCK)
    values = DecayBank.after(start["values"], blocks, layout, mixture.rate)
    differences = lift_blocks(blocks, values)
    lifts = DecayBank.after(start["lifts"], differences, lift_layout(layout), mixture.rate)
    return Known(
        _at_looks(values, start["values"]["spread"], blocks, every),
        _at_looks(lifts, start["lifts"]["spread"], differences, every),
    )


def _at_looks(bank: DecayBank, start: dict[str, Floats], blocks: Blocks, every: int) -> Reading:
    """The reading of a mixture for some terms, by number of blocks; `start`: of its variances."""
    _, *variances = (values[every::every].T for values in bank.of_terms)
    deviations = {name: np.sqrt(values) for name, values in zip(("se", "spread", "drift"), variances, strict=True)}
    return reading_of(bank.moments[every::every], spreads_of(start, blocks, MEMORY, every), deviations)
