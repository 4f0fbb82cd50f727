"""Readings of a mixture at every look of a run, all looks at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from readings import BLOCK, Known, reading_of, spreads_of
from worlds import LOGGING, Floats

from streameval.ope.averages import Reading
from streameval.ope.averages.base import ColumnLayout, MixturePath
from streameval.ope.averages.blocks import Blocks, ComponentBlocks
from streameval.ope.averages.mixture import MEMORY, DecayBank, Mixture, lift_blocks, lift_layout
from streameval.ope.estimators import Estimator, StratifiedIPS
from streameval.ope.evidence.evidence import Evidence

MIXED: tuple[Estimator, ...] = (StratifiedIPS(),)


def on_mixture(evidence: Evidence, policies: Sequence[str], every: int) -> Known:
    """The readings of the mixture by number of blocks."""
    mixture, count = Mixture(), len(policies)
    layout = ColumnLayout((StratifiedIPS.parts,), tuple(policy != LOGGING for policy in policies))
    blocks = Blocks.of(evidence, [estimator.terms(evidence, estimator.start(count))[0] for estimator in MIXED])
    start = mixture.start(layout, BLOCK)
    _, values = mixture.fold_columns(start["values"], blocks, blocks.components, layout)
    differences, compared = lift_blocks(blocks, values, layout), lift_layout(layout)
    _, lifts = mixture.fold_columns(start["lifts"], *differences, compared)
    return Known(
        _at_looks(start["values"], values, blocks, blocks.components, layout, every),
        _at_looks(start["lifts"], lifts, *differences, compared, every),
    )


def _at_looks(
    start: dict[str, Floats],
    course: MixturePath,
    blocks: Blocks,
    parts: ComponentBlocks,
    layout: ColumnLayout,
    every: int,
) -> Reading:
    """The reading of a mixture for some terms, by number of blocks."""
    bank = DecayBank.after(start, blocks, parts, slice(None), layout, rate=None)
    spread = spreads_of(start["spread"], blocks, MEMORY, every)
    variances = {"se": course.sampling_variance, "spread": course.memory_spread, "drift": course.drift_variance}
    deviations = {name: np.sqrt(values[every - 1 :: every].T) for name, values in variances.items()}
    return reading_of(bank.moments[every::every], spread, deviations)
