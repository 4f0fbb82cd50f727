"""Readings of averages at every look of a run, all looks at once.

The columns of such a reading are policy by policy, then look by look: [policies, looks, estimators]. An evaluator that
reports after each look gives the same result (a test compares the two), but takes eight times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from worlds import LOGGING, Floats

from streameval.events import EventBatch
from streameval.ope.core import Average, Cumulative, Reading, Window
from streameval.ope.core.bank import Bank
from streameval.ope.core.base import Path, terms_of
from streameval.ope.core.layout import Layout
from streameval.ope.core.past import start_history, start_signs, steps_of, unit_signs
from streameval.ope.core.summary import BlockSeries
from streameval.ope.estimators import IPS, SNIPS, Estimator, StratifiedIPS
from streameval.ope.evidence import Evidence, start_recent
from streameval.ope.intervals import ConfidenceSequence
from streameval.ope.intervals.sequences import (
    COUNT,
    LIFT_LOWER,
    SIDES,
    TOTAL,
    VALUE_LOWER,
    TrackedBounds,
    measure,
)

BLOCK = 100
REWARDS = (0.0, 1.0)
PLAIN: tuple[Estimator, ...] = (IPS(), SNIPS())
MIXED: tuple[Estimator, ...] = (StratifiedIPS(),)


class Known(NamedTuple):
    """Readings of the values of all policies, and of the lifts of all except the first, production."""

    value: Reading
    lift: Reading


def evidence_of(batch: EventBatch, policies: Sequence[str]) -> Evidence:
    """The evidence of a run about these policies."""
    marks, _ = unit_signs(start_signs(), batch.unit, len(batch), BLOCK)
    plain = Evidence.from_batch(batch, policies, BLOCK)
    return replace(plain.with_recent_means(start_recent(len(policies)))[0], signs=marks)


@dataclass(frozen=True)
class Averaging:
    """An average of some estimators about policies, production first."""

    average: Average
    policies: Sequence[str]
    estimators: tuple[Estimator, ...] = PLAIN

    def read(self, evidence: Evidence, every: int) -> Iterator[Reading]:
        """Yield the reading after every so many blocks."""
        bank, average, policies = self._bank, self.average, len(self.policies)
        history, state = start_history(policies, len(bank.layout.totals)), average.start(bank)
        known = [each.start(policies) for each in self.estimators]
        drift = None if average.drift_on_request else average.drift
        moved = None if drift is None else drift.start(policies, bank.columns, BLOCK)
        of_look = np.arange(evidence.blocks) // every
        for look in range(evidence.blocks // every):
            part = evidence.of_blocks(of_look == look)
            found = [each.terms(part, before) for each, before in zip(self.estimators, known, strict=True)]
            terms, known = [list(each) for each in zip(*found, strict=True)]
            events = BlockSeries(bank.layout, part, terms)
            view = average.view(events, state)
            sums = events.sums({} if view is None else {average.label: view})
            rate = None
            if drift is not None and moved is not None:
                rate = drift.fold(moved, terms_of(sums, bank.layout), BLOCK)
            average.fold(state, Path(sums, steps_of(history, sums, bank.layout), rate), bank)
            now = deepcopy(state)  # a reading may share arrays with the state, which changes
            yield average.read(now, None, None if rate is None else rate[-1], bank)

    def known(self, readings: Sequence[Reading]) -> Known:
        """Join the readings of all looks."""
        value = Reading.side_by_side(readings, len(self.policies))
        return Known(value, value.lift(len(readings) * len(self.estimators)))

    @property
    def _bank(self) -> Bank:
        mixed, logged = self.average.mixes_components, self.policies[0] == LOGGING
        layout = Layout(self.estimators, paired=not mixed, mixed=mixed, apart=not logged, unit_production=logged)
        return Bank(layout, tuple(policy != LOGGING for policy in self.policies), BLOCK)


def watched(
    average: Cumulative | Window, evidence: Evidence, logging: bool, errors: Floats, every: int
) -> TrackedBounds:
    """The confidence sequences by number of blocks; their columns are those of the plain estimators."""
    sequences = ConfidenceSequence().tracker(average, PLAIN, REWARDS, BLOCK, logging)
    (group,) = sequences.groups
    policies = len(errors)
    before, each_block = np.zeros((policies, len(SIDES), 2)), [1] * evidence.blocks
    sums, _ = measure(group.process, group.observed(evidence, []), before, each_block)
    span, kept, shares = sequences.span, [], []
    state = span.start(np.zeros_like(sums[0]))
    for block in sums:
        state = span.add(state, block, 1)
        kept.append(span.sums(state))
        shares.append(span.share(state))
    seen = np.moveaxis(np.array(kept[every - 1 :: every]), 0, -2)  # policies, sides, looks, sums
    error = errors[:, None, None] / 2 * np.array(shares[every - 1 :: every])
    each = np.broadcast_to(error, seen.shape[:-1])
    means = group.process.lower(seen.reshape(-1, seen.shape[-1]), each.ravel()).reshape(seen.shape[:-1])
    bounds, estimates = group.scale.bounds(means), group.scale.bounds(seen[..., TOTAL] / seen[..., COUNT])
    bounds[LIFT_LOWER:, 0] = np.nan
    details = {"interval_events": np.repeat(seen[:, VALUE_LOWER, :, COUNT], len(PLAIN), axis=0)}
    bounds, estimates = (np.repeat(sides, len(PLAIN), axis=1) for sides in (bounds, estimates))
    both = np.stack([bounds, estimates])
    value, lift = (both[:, sides].reshape(4, *both.shape[2:]) for sides in (slice(0, 2), slice(2, 4)))
    return TrackedBounds(value, lift, details)
