"""Readings of a mixture at every look of a run, all looks at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from readings import BLOCK, Known, reading_of, whole_blocks
from worlds import LOGGING, Floats

from streameval.common.arrays import ratio
from streameval.ope.averages import Reading
from streameval.ope.averages import variance as spreads
from streameval.ope.averages.base import ColumnLayout, ComponentBlocks, MixturePath
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.mixture import (
    DIAGNOSTICS,
    HORIZONS,
    MEMORY,
    TERM_ROWS,
    BankReading,
    DecayBank,
    Mixture,
    lift_blocks,
    lift_layout,
    mix,
    moments_of,
    overlaps_of,
    path,
)
from streameval.ope.averages.moments import MomentRow
from streameval.ope.estimators import Estimator, StratifiedIPS
from streameval.ope.evidence.evidence import Evidence

MIXED: tuple[Estimator, ...] = (StratifiedIPS(),)


def on_mixture(evidence: Evidence, policies: Sequence[str], every: int) -> Known:
    """The readings of the mixture by number of blocks."""
    mixture, count = Mixture(), len(policies)
    layout = ColumnLayout((StratifiedIPS.parts,), tuple(policy != LOGGING for policy in policies))
    terms = [estimator.terms(evidence, estimator.start(count))[0] for estimator in MIXED]
    blocks = whole_blocks(evidence, [(term.numerator, term.denominator) for term in terms], paired=True)
    components = [component for term in terms for component in term.parts(evidence.recent.reward)]
    priors = [component.prior for component in components if component.prior is not None]
    parts = ComponentBlocks(
        whole_blocks(evidence, [component[:2] for component in components], paired=False),
        np.stack(priors, axis=-1).reshape(evidence.blocks, -1),
        np.repeat(evidence.recent.weight_square * evidence.recent.reward_square[:, None], len(components), axis=1),
    )
    start = mixture.start(layout, BLOCK)
    _, values = mixture.fold_columns(start["values"], blocks, parts, layout)
    differences, compared = lift_blocks(terms, evidence, values, layout), lift_layout(layout)
    _, lifts = mixture.fold_columns(start["lifts"], *differences, compared)
    return Known(
        _at_looks(mixture, start["values"], values, blocks, parts, layout, every),
        _at_looks(mixture, start["lifts"], lifts, *differences, compared, every),
    )


def _at_looks(
    mixture: Mixture,
    start: dict[str, Floats],
    course: MixturePath,
    blocks: Blocks,
    parts: ComponentBlocks,
    layout: ColumnLayout,
    every: int,
) -> Reading:
    """The reading of a mixture for some terms, by number of blocks, given its losses."""
    moments = _moments(mixture, start, blocks, parts, layout, every)
    spread = spreads.path(start["spread"], blocks, MEMORY)[every - 1 :: every]
    return reading_of(moments, spread, _deviations(course, slice(every - 1, None, every)))


def _deviations(course: MixturePath, looks: slice) -> dict[str, Floats]:
    variances = {"se": course.sampling_variance, "spread": course.memory_spread, "drift": course.drift_variance}
    return {name: np.sqrt(values[looks].T) for name, values in variances.items()}


def _moments(
    mixture: Mixture,
    start: dict[str, Floats],
    blocks: Blocks,
    parts: ComponentBlocks,
    layout: ColumnLayout,
    every: int,
) -> Floats:
    """The moments of the mixed kernel at each look."""
    component = parts.blocks.moments
    fading = np.exp(-BLOCK / HORIZONS)
    bank, mixed = _mixed(mixture, start, parts, layout)
    kept = {name: path(start[name], component[..., row, None], fading) for row, name in DIAGNOSTICS.items()}
    terms = np.stack(
        [path(start["terms"][:, place], blocks.moments[..., row, None], fading) for place, row in enumerate(TERM_ROWS)],
        axis=2,
    )
    largest = np.maximum.accumulate(component[..., MomentRow.LARGEST_IMPORTANCE], axis=0)
    looks = slice(every, None, every)
    state = {name: _side_by_side(values[looks]) for name, values in kept.items()}
    state |= {"weight": _side_by_side(bank.weight[looks]), "terms": _side_by_side(terms[looks])}
    state["largest"] = _side_by_side(largest[every - 1 :: every])
    count = len(bank.weight[looks])
    every_look = layout._replace(candidates=layout.candidates * count)
    found = moments_of(state, BankReading(*(_side_by_side(values[looks]) for values in mixed)), every_look)
    return found.reshape(count, -1, found.shape[-1])


def _side_by_side(values: Floats) -> Floats:
    """The columns of all looks as those of one."""
    return values.reshape(-1, *values.shape[2:])


def _mixed(
    mixture: Mixture, start: dict[str, Floats], parts: ComponentBlocks, layout: ColumnLayout
) -> tuple[DecayBank, BankReading]:
    """The decays and the mixture before the first block and after each."""
    component = parts.blocks.moments
    weight, mean = component[..., MomentRow.WEIGHT], ratio(component[..., MomentRow.U], component[..., MomentRow.V])
    bank = DecayBank.after(start, parts, slice(None), weight, mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        losses = (bank.estimates[:-1] - mean[..., None]) ** 2 / (2 * bank.noise[:-1] / weight)[..., None]
    charged = np.where(np.isfinite(losses), losses, 0.0)
    loss = path(start["loss"], charged, np.full(len(HORIZONS), np.exp(-BLOCK / MEMORY)))
    squares = component[..., MomentRow.WEIGHT_SQUARE].reshape(len(component), layout.policies, -1)
    overlaps = overlaps_of(start["overlap"], squares, BLOCK)
    return bank, mix(bank, mixture.shares(loss, layout), overlaps, layout)
