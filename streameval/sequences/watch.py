"""The watch of one grid and one average: confidence sequences of all values and lifts in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streameval.arrays import Array, Mask, State, ratio
from streameval.sequences.base import Watched
from streameval.sequences.engine import COUNT, TOTAL
from streameval.sequences.looking import Group, Look
from streameval.sequences.measuring import measure
from streameval.sequences.observations import LIFT_LOWER, SIDES, VALUE_LOWER, fold_sampling, start_sampling
from streameval.sequences.spans import Span


@dataclass(frozen=True)
class SequenceWatch:
    """Confidence sequences for every policy under `estimators` estimators, some of which share theirs.

    Of an estimator that is in no group nothing is known beforehand, and its intervals are withheld.
    """

    groups: tuple[Group, ...]
    span: Span
    estimators: int

    def start(self, policies: int, block: int) -> State:
        return {
            "block": block,
            "sampling": start_sampling(policies),
            "centres": [np.zeros((SIDES, policies, 2)) for _ in self.groups],
            "spans": [self.span.start(np.zeros((SIDES, policies, group.engine.width))) for group in self.groups],
        }

    def fold(self, state: State, look: Look) -> State:
        block, centres, spans, evidence = state["block"], [], [], look.evidence
        for group, centre, span in zip(self.groups, state["centres"], state["spans"], strict=True):
            parts = list(self.span.parts(span, evidence.blocks))
            sums, after = _measure(group, look, centre, parts)
            for part, added in zip(parts, sums, strict=True):
                span = self.span.add(span, added, part)
            centres.append(after)
            spans.append(span)
        sampling = fold_sampling(state["sampling"], evidence.averaging_weight)
        return {"block": block, "sampling": sampling, "centres": centres, "spans": spans}

    def without_lifts(self, state: State) -> State:
        return {**state, "centres": _values_only(state["centres"]), "spans": _values_only(state["spans"])}

    def of_some(self, state: State, whole: SequenceWatch, kept: Sequence[int]) -> State:
        groups = [
            next(place for place, other in enumerate(whole.groups) if _observes(group, other, kept))
            for group in self.groups
        ]
        return {**state, **{name: [state[name][place] for place in groups] for name in ("centres", "spans")}}

    def read(self, state: State, tail: Look | None, error: Array) -> Watched:
        policies = len(error)
        bounds, estimates = (np.full((SIDES, policies, self.estimators), np.nan) for _ in range(2))
        counts = np.full((policies, self.estimators), np.nan)
        for group, sums, share in self._current(state, tail):
            each = np.broadcast_to(error / 2 * share, (SIDES, policies))
            means = group.engine.lower(sums.reshape(-1, group.engine.width), each.ravel()).reshape(SIDES, policies)
            bounds[:, :, group.estimators] = group.scale.bounds(means)[..., None]
            averages = ratio(sums[..., TOTAL], sums[..., COUNT])
            estimates[:, :, group.estimators] = group.scale.bounds(averages)[..., None]
            counts[:, group.estimators] = sums[VALUE_LOWER, :, COUNT, None]
        sampling = (
            state["sampling"] if tail is None else fold_sampling(state["sampling"], tail.evidence.averaging_weight)
        )
        uneven = sampling["uneven"]
        bounds[:, uneven] = np.nan
        bounds[LIFT_LOWER:, uneven | uneven[0]] = np.nan
        bounds[LIFT_LOWER:, 0] = np.nan
        details = {"interval_events": counts.ravel()}
        if uneven.any():
            details["uneven_sampling"] = np.repeat(np.where(uneven, 1.0, np.nan), self.estimators)
        lower, upper, lift_lower, lift_upper = bounds.reshape(SIDES, -1)
        return Watched(lower, upper, lift_lower, lift_upper, details, estimates.reshape(SIDES, -1))

    def _current(self, state: State, tail: Look | None) -> Iterator[tuple[Group, Array, float]]:
        """Of each group the sums over its stretch, [4, policies, width], and the share of the error that is left."""
        for group, centre, span in zip(self.groups, state["centres"], state["spans"], strict=True):
            sums = self.span.sums(span)
            if tail is not None:
                sums = sums + _measure(group, tail, centre, [1])[0][0]
            yield group, sums, self.span.share(span)


def _observes(group: Group, other: Group, kept: Sequence[int]) -> bool:
    """Whether it is the same as another group, when these of the estimators are left."""
    return other.of == (None if group.of is None else kept[group.of])


def _values_only(memory: Any) -> Any:
    """The same, [4, ...] arrays with nothing in the rows of lifts."""
    if isinstance(memory, list):
        return [_values_only(each) for each in memory]
    if isinstance(memory, dict):
        return {key: _values_only(each) for key, each in memory.items()}
    if not isinstance(memory, np.ndarray):
        return memory
    kept = memory.copy()
    kept[LIFT_LOWER:] = 0.0
    return kept


def _measure(group: Group, look: Look, before: Array, parts: Sequence[int]) -> tuple[Array, Array]:
    """The sums of parts of so many blocks each, [parts, 4, policies, width], and the centres' state after them."""

    def one_by_one(block: int) -> Iterator[tuple[Array, Mask | None]]:
        return look.one_by_one(group, block)

    return measure(group.engine, look.powers(group), before, parts, one_by_one)
