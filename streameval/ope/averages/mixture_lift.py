"""Lifts on a mixture: the paired difference to production as a term of its own, component by component."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streameval.common.arrays import ROUNDING, Array, State
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.mixture import Mixture, MixturePath
from streameval.ope.averages.mixture_bank import ColumnLayout, ComponentBlocks
from streameval.ope.estimators import TermPart, Terms
from streameval.ope.evidence.evidence import Evidence


def lift_layout(layout: ColumnLayout) -> ColumnLayout:
    """How the columns of lifts belong together: those of all policies but production, each compared with the others."""
    return ColumnLayout(layout.components, (True,) * (len(layout.candidates) - 1), paired=False)


def fold_lifts(
    mixture: Mixture,
    state: State,
    terms: Sequence[Terms],
    evidence: Evidence,
    course: MixturePath,
    layout: ColumnLayout,
) -> tuple[State, MixturePath]:
    """The mixture of lifts after these whole blocks, and how it fared, its sampling variance with the design effect.

    `course`: how the mixture of the values fared meanwhile.
    """
    blocks, parts = lift_blocks(terms, evidence, course, layout)
    effects = np.fmax(1.0, mixture.design_effects(state, blocks))
    after, fared = mixture.fold(state, blocks, parts, lift_layout(layout))
    return after, fared._replace(sampling=fared.sampling * effects)


def lift_blocks(
    terms: Sequence[Terms], evidence: Evidence, course: MixturePath, layout: ColumnLayout
) -> tuple[Blocks, ComponentBlocks]:
    """The differences of all terms to those of production, as blocks, and of their components.

    A component of production is taken from that of each policy, on the events that both have. A ratio is linearised
    around the estimates before the block, as the mixture does itself. What is estimated begins at 0: nobody is
    presumed to differ from production.
    """
    shared, recent = evidence.beside_production(), evidence.recent
    by_estimator = [term.parts(recent.reward) for term in terms]
    centres = _spread_over_events(course.before, evidence, layout)
    usual = _spread_over_events(course.usual, evidence, layout)
    places = iter(range(layout.parts))
    differences = [
        [
            _difference(component, centres[..., place], usual[..., place])
            for component, place in zip(some, places, strict=False)
        ]
        for some in by_estimator
    ]
    every = [difference for some in differences for difference in some]
    known = np.logical_and.reduce([np.isfinite(each) for each in every])
    present = np.where(known, shared.averaging_weight, 0.0)
    weighing = (evidence.blocks, present, shared.importance_weight, None)
    square = recent.distance_square[:, 1:] * recent.reward_square[:, None]
    parts = ComponentBlocks(
        Blocks.of(*weighing, [(np.where(known, each, 0.0), None) for each in every], paired=False),
        np.zeros((len(square), square.shape[1] * layout.parts)),
        np.repeat(square, layout.parts, axis=1),
    )
    whole = [(np.where(known, sum(some), 0.0), None) for some in differences]
    return Blocks.of(*weighing, whole, paired=False, signs=evidence.signs), parts


def _spread_over_events(values: Array, evidence: Evidence, layout: ColumnLayout) -> Array:
    """Values per block [blocks, P * parts] repeated for each of its events, [n, P, parts]."""
    by_policy = values.reshape(len(values), -1, layout.parts)
    return np.repeat(by_policy, len(evidence.reward) // evidence.blocks, axis=0)


def _difference(component: TermPart, centre: Array, usual: Array) -> Array:
    """A component of all policies less that of the first, [n, P - 1]; of a ratio, its linearised value.

    Of a ratio, what is mere rounding is 0: a reward that is always the same would else make a lift of 1e-17, on one
    side of 0 for ever, as the estimates around which both are linearised differ in their last digit.
    """
    u, v = component.u, component.v
    if v is None:
        return u[:, 1:] - u[:, :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = centre * v
        value = centre + (u - expected) / usual
        size = np.abs(centre) + (np.abs(u) + np.abs(expected)) / np.abs(usual)
    difference = value[:, 1:] - value[:, :1]
    return np.where(np.abs(difference) <= ROUNDING * (size[:, 1:] + size[:, :1]), 0.0, difference)
