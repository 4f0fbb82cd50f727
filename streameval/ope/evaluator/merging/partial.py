"""Partial results: what some events of a stream add to every estimate, wherever they were computed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from streameval.common.arrays import Array, Integers, Mask, State, from_plain, to_plain
from streameval.errors import StateError
from streameval.events import EventBatch
from streameval.events.action_sets import Index
from streameval.events.further_rewards import RewardField
from streameval.events.origin import NO_IDENTITY
from streameval.ope.averages.moments import merge as merge_moments
from streameval.ope.averages.variance import signs_of
from streameval.ope.evaluator import learning, segments
from streameval.ope.evaluator.evaluator import COUNTS
from streameval.ope.evaluator.halves import EventSums
from streameval.ope.evaluator.merging.buckets import ALIKE, NO_TIME, Buckets
from streameval.ope.evaluator.merging.coverage import Coverage, OffsetSpan, Partition
from streameval.ope.evaluator.merging.mergeable import MergePlan
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evaluator.report_rows import PolicySums, support_known
from streameval.ope.evidence import largest_weights
from streameval.ope.evidence.evidence import Evidence, SlateSums
from streameval.ope.policies.coded import Faults, fill
from streameval.ope.promotion import merged_sums, trust_sums
from streameval.ope.reward_models import online

PARTIAL_SCHEMA = 1
SEGMENTS = "segments"
"""The name of the moments of segments among the counts."""
SIZES = (100, 50, 25, 10, 5, 2, 1)
"""Events of the blocks inside a partial result, the first choice first: numpy works on whole blocks."""
MOST_PADDING = 0.25
"""Empty places in these blocks per event."""
EMPTY = 1e-300
"""The sampling probability of an empty place, so small that it counts as missing."""


def no_events() -> State:
    """Numbers of events before the first one; see `EventCounts`. `failures`: of policies in code."""
    return {"accepted": 0, "rejected": {}, "newest": None, "oldest": None, "failures": {}}


@dataclass(frozen=True)
class Partial:
    """The addition of some events to the estimates of a plan, with the offsets that they come from.

    `fingerprint`: of the plan. `events`: see `no_events`. `counts` [policies, ...] by name: see `with_counts`, with the
    sums of the slots of slates, those of `trust_sums`, and the moments of segments. `seen` [policies] of each grid:
    whether an event had the required fields. `weights`: the largest weights, see `largest_weights.start`. `lessons`:
    what the events teach, as `MergePlan.lagged_to_bytes` writes it, and their number. `buckets`: sums by bucket of
    time; a number names the grid, its place in the plan.

    >>> from streameval.ope.evaluator.evaluator import Evaluator
    >>> plan = Evaluator(["new"], ["ips"], ["cumulative"], drift=None, promotion=None).plan
    >>> batch = EventBatch.from_arrays(reward=[1, 0], propensity=[0.25, 0.5], policies={"new": [0.5, 0.5]})
    >>> first, second = (Partial.of(plan, batch, {("clicks", 0): part}) for part in ((0, 2), (2, 4)))
    >>> second.merge(first).coverage.ranges
    {('clicks', 0): ((0, 4),)}
    """

    fingerprint: str
    coverage: Coverage
    events: State
    counts: Mapping[str, Array]
    seen: tuple[Mask, ...]
    weights: State
    lessons: tuple[tuple[int, bytes], ...]
    buckets: Buckets

    @classmethod
    def of(
        cls,
        plan: Plan | MergePlan,
        batch: EventBatch,
        ranges: Mapping[Partition, OffsetSpan],
        lagged: bytes | None = None,
    ) -> Partial:
        """The addition of the events of a batch, from these ranges of offsets (the first one, and that after the last).

        Every range counts as a whole: offsets without an event are those of transaction markers and compacted messages,
        or of the rejected messages of the batch. The batch has its `origin`, unless it is of one partition without
        gaps. A `MergePlan` saves the work of `MergePlan.of` for each batch. `lagged`: of a `MergedEvaluator`, what
        reward models and coefficients of estimators have learned; nothing without it.

        Raises:
            ConfigError: The numbers of the plan depend on the order of all events.
            StateError: `lagged` is of another plan.
            ValueError: An event is in none of the ranges.
        """
        known = plan if isinstance(plan, MergePlan) else MergePlan.of(plan)
        coverage = Coverage.of(ranges, batch)
        further = [RewardField(each.name, each.name, each.low, each.high) for each in known.plan.rewards[1:]]
        batch = batch.with_rewards_in(*known.plan.reward_range, further)
        seen = EventSums.of(batch)
        events = {**no_events(), "accepted": seen.accepted, "rejected": seen.rejected}
        if not len(batch):
            return cls.nothing(known, coverage, events)
        batch = replace(batch, segments=segments.columns_of(known.plan, batch))
        batch, faults = fill(batch.with_policies(known.plan.columns), known.asks)
        events["failures"] = _failures(faults)
        if not np.isnan(seen.newest):
            events |= {"newest": seen.newest, "oldest": seen.oldest}
        return _Computed.of(known, batch, known.lagged_from_bytes(lagged)).partial(coverage, events)

    @classmethod
    def nothing(cls, plan: MergePlan, coverage: Coverage | None = None, events: State | None = None) -> Partial:
        """That of no accepted events."""
        policies = len(plan.plan.policies)
        return cls(
            plan.fingerprint,
            coverage or Coverage(),
            events or no_events(),
            {name: np.zeros(policies) for name in COUNTS},
            tuple(np.zeros(policies, dtype=bool) for _ in plan.grids),
            largest_weights.start(policies),
            (),
            Buckets(),
        )

    def merge(self, other: Partial) -> Partial:
        """The addition of the events of both, in any order.

        Raises:
            StateError: The plans differ, or both count some offset.
        """
        self.require_plan(other)
        return Partial(
            self.fingerprint,
            self.coverage.merge(other.coverage),
            _merged_events(self.events, other.events),
            _merged_counts(self.counts, other.counts),
            tuple(one | another for one, another in zip(self.seen, other.seen, strict=True)),
            _merged_weights(self.weights, other.weights),
            (*self.lessons, *other.lessons),
            self.buckets.merge(other.buckets),
        )

    def require_plan(self, other: Partial) -> None:
        """Require that both are of one plan.

        Raises:
            StateError: They are not.
        """
        if self.fingerprint != other.fingerprint:
            raise StateError(
                f"the partial result is of plan {other.fingerprint}, and this one of {self.fingerprint}",
                hint="compute both with the same configuration and version of streameval",
            )

    def to_bytes(self) -> bytes:
        """The partial result as msgpack, without pickled objects."""
        return msgspec.msgpack.encode(to_plain(self.to_state()))

    @classmethod
    def from_bytes(cls, data: bytes) -> Partial:
        """The inverse of `to_bytes`.

        Raises:
            StateError: This is not the result of `to_bytes` of this version.
        """
        try:
            state = from_plain(msgspec.msgpack.decode(data))
            if state["schema"] != PARTIAL_SCHEMA:
                raise StateError(
                    f"the partial result has schema {state['schema']}, this version reads {PARTIAL_SCHEMA}",
                    hint="run the same version of streameval everywhere",
                )
            return cls.from_state(state)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise StateError(f"this is not a partial result: {error!r}", hint="pass what to_bytes returned") from error

    def to_state(self) -> State:
        """As arrays and numbers."""
        return {
            "schema": PARTIAL_SCHEMA,
            "fingerprint": self.fingerprint,
            "coverage": self.coverage.to_state(),
            "events": self.events,
            "counts": dict(self.counts),
            "seen": list(self.seen),
            "weights": self.weights,
            "lessons": list(self.lessons),
            "buckets": self.buckets.to_state(),
        }

    @classmethod
    def from_state(cls, state: State) -> Partial:
        """The inverse of `to_state`."""
        return cls(
            state["fingerprint"],
            Coverage.from_state(state["coverage"]),
            state["events"],
            state["counts"],
            tuple(state["seen"]),
            state["weights"],
            tuple((events, lesson) for events, lesson in state["lessons"]),
            Buckets.from_state(state["buckets"]),
        )


@dataclass(frozen=True)
class _Computed:
    """The evidence of the events of a batch for each reward, all in one block, so that the model does not learn inside.

    The events lie in blocks of `size` events of one bucket, whose `numbers` these are, [blocks]; `places` [blocks,
    events]: 0 for an empty one, else 1. `seconds` [blocks, events]: until the end of the bucket. `after`: the parts of
    the state that learn.
    """

    plan: MergePlan
    lagged: State
    batch: EventBatch
    size: int
    evidence: list[Evidence]
    slates: list[SlateSums | None]
    after: State
    counts: Mapping[str, Array]
    numbers: Integers
    places: Array
    seconds: Array

    @classmethod
    def of(cls, plan: MergePlan, batch: EventBatch, lagged: State) -> _Computed:
        numbers = np.full(len(batch), NO_TIME)
        known = ~np.isnan(batch.timestamp)
        numbers[known] = np.floor(batch.timestamp[known] / plan.width).astype(np.int64)
        named = np.zeros(len(batch), dtype=bool) if batch.unit is None else batch.unit != NO_IDENTITY
        index, size = _arranged(numbers, named)
        empty, index = index < 0, np.where(index < 0, -1 - index, index)
        events = batch.take(index)
        events = replace(events, sampling_probability=np.where(empty, EMPTY, events.sampling_probability))
        before = {**learning.start(plan.plan), "predictions": lagged["predictions"]}
        one_block = plan.with_block(len(events))
        weighed = learning.weighed(one_block, plan.grids, before, replace(events, unit=None))
        whole, every = weighed.whole, weighed.every
        weights = _weights_of(every[0], events, np.flatnonzero(~empty))
        if whole.clicks is not None:
            whole = replace(whole, clicks=replace(whole.clicks, present=whole.clicks.present & ~empty[:, None]))
        if named.any():
            assert events.unit is not None
            every = [_with_signs(each, signs_of(events.unit) * (named[index] & ~empty)[:, None]) for each in every]
        own = numbers[index].reshape(-1, size)
        fresh = {name: np.zeros(len(plan.plan.policies)) for name in COUNTS}
        return cls(
            plan,
            lagged,
            events,
            size,
            every,
            weighed.slates,
            {**weighed.after, "weights": weights},
            PolicySums.of(whole, support_known(whole, events) & ~empty[:, None]).fold(fresh),
            own[:, 0],
            np.where(empty, 0.0, 1.0).reshape(-1, size),
            np.where(own == NO_TIME, np.nan, (own + 1.0) * plan.width - events.timestamp.reshape(-1, size)),
        )

    def partial(self, coverage: Coverage, events: State) -> Partial:
        """The partial result of the events."""
        seen, trust = [], {} if self.plan.monitor is None else trust_sums(self.evidence[0], self.size)
        for grid in self.plan.grids:
            visible = [each.restricted_to(grid.needs) for each in self.evidence]
            seen.append(np.logical_or.reduce([(each.sample_weight != 0).any(axis=0) for each in visible]))
        return Partial(
            self.plan.fingerprint,
            coverage,
            events,
            {**self.counts, **self._slots(), **self._segments(), **merged_sums(trust)},
            tuple(seen),
            self.after["weights"],
            self._lessons(events["accepted"]),
            self._buckets(trust if self.plan.mixes else {}),
        )

    def _buckets(self, trust: Mapping[str, Array]) -> Buckets:
        moments: dict[str, Array] = {}
        sums = {
            kernel.name: (np.nan_to_num(kernel.weights(self.seconds)) * self.places).sum(axis=1)
            for kernel in self.plan.kernels.values()
        }
        sums |= {**trust, ALIKE: self.places.sum(axis=1)}
        for place, (grid, learned) in enumerate(zip(self.plan.grids, self.lagged["estimators"], strict=True)):
            of_grid, others = grid.sums(self.evidence, self.numbers, learned, self.plan.kernels, self.seconds)
            moments |= {f"{place} {name}": rows for name, rows in of_grid.items()}
            sums |= {f"{place} {name}": rows for name, rows in others.items()}
        return Buckets.of_blocks(self.numbers, moments, sums)

    def _slots(self) -> dict[str, Array]:
        """The sums of the slots of slates, for each reward."""
        found = {}
        for place, sums in enumerate(self.slates):
            if sums is not None:
                found[f"ratios {place}"] = sums.ratios.sum(axis=0)
            if sums is not None and sums.lifts is not None:
                found |= {f"{name} {place}": rows.sum(axis=0) for name, rows in sums.lifts._asdict().items()}
        return found

    def _segments(self) -> dict[str, Array]:
        """The moments of the values of segments, over all events."""
        plan = self.plan.plan
        if not plan.segments:
            return {}
        label = segments.whole_of(plan)[0].label
        learned = next(of_goal for of_goal, *_ in self.lagged["estimators"] if label in of_goal)
        moments, _ = segments.moments_of(plan, learned[label], self.evidence[0], self.batch, self.places.ravel())
        return {SEGMENTS: moments}

    def _lessons(self, events: int) -> tuple[tuple[int, bytes], ...]:
        """The lesson of the events for estimators and the reward model; nothing where none learns."""
        plan = self.plan.plan
        if not self.plan.learns:
            return ()
        items = len(self.places.ravel()) * (1 if plan.ranking is None else online.ITEMS)
        before_and_after = zip(self.lagged["predictions"], self.after["predictions"], strict=True)
        lesson = {
            "estimators": [grid.taught(self.evidence) for grid in self.plan.grids],
            "predictions": [online.taught(plan.reward_model, *each, items) for each in before_and_after],
        }
        return ((events, self.plan.lagged_to_bytes(lesson)),)


def _arranged(numbers: Integers, named: Mask) -> tuple[Index, int]:
    """The places of events in blocks of one size, end to end, and that size; -1 for an empty place.

    The events of a block are of one bucket, and either all or none of them have a unit.
    """
    order = np.lexsort((named, numbers))
    keys = np.stack([numbers[order], named[order]])
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(keys, axis=1) != 0).any(axis=0)]))
    counts = np.diff(starts, append=len(order))
    size = next(size for size in SIZES if (-counts % size).sum() <= MOST_PADDING * len(order))
    padded = counts + -counts % size
    index = np.full(padded.sum(), -1)
    ends = np.cumsum(padded)
    places = np.arange(len(order)) + np.repeat(ends - padded - starts, counts)
    index[places] = order
    first = np.repeat(order[starts], padded)  # an empty place repeats an event of its block, which counts as missing
    return np.where(index < 0, -1 - first, index), size


def _weights_of(evidence: Evidence, events: EventBatch, kept: Index) -> State:
    """The largest weights of some of the events."""
    part = replace(
        evidence,
        importance_weight=evidence.importance_weight.T[:, kept].T,
        sample_weight=evidence.sample_weight.T[:, kept].T,
        actions=evidence.actions and evidence.actions.take(kept),
    )
    found = largest_weights.summarise(part, events.take(kept))
    return largest_weights.fold(largest_weights.start(evidence.importance_weight.shape[1]), found)


def _with_signs(evidence: Evidence, signs: Array) -> Evidence:
    forms = {form: replace(seen, signs=signs) for form, seen in evidence.forms.items()}
    return replace(evidence, signs=signs, forms=forms)


def _merged_counts(one: Mapping[str, Array], other: Mapping[str, Array]) -> dict[str, Array]:
    """Counts of both, and the moments of segments; of counts that are called `largest`, the larger one."""
    counts = {**other, **one}
    for name in counts.keys() & one.keys() & other.keys():
        add = merge_moments if name == SEGMENTS else np.maximum if name.startswith("largest") else np.add
        counts[name] = add(one[name], other[name])
    return counts


def _failures(faults: Faults) -> dict[str, dict[str, list[Any]]]:
    """By policy and reason, the number of events and an example."""
    failures: dict[str, dict[str, list[Any]]] = {}
    for policy, by_event in faults.items():
        found = failures.setdefault(policy, {})
        for reason, detail in by_event.values():
            number, example = found.get(reason, (0, detail))
            found[reason] = [number + 1, min(example, detail)]
    return failures


def _merged_events(one: State, other: State) -> State:
    failures = {policy: dict(reasons) for policy, reasons in one["failures"].items()}
    for policy, reasons in other["failures"].items():
        found = failures.setdefault(policy, {})
        for reason, (number, example) in reasons.items():
            before, known = found.get(reason, (0, example))
            found[reason] = [before + number, min(known, example)]
    times = {
        name: min(known) if name == "oldest" else max(known)
        for name in ("newest", "oldest")
        if (known := [each[name] for each in (one, other) if each[name] is not None])
    }
    return {
        **no_events(),
        **times,
        "accepted": one["accepted"] + other["accepted"],
        "rejected": dict(Counter(one["rejected"]) + Counter(other["rejected"])),
        "failures": failures,
    }


def _merged_weights(one: State, other: State) -> State:
    """The largest numbers of both; averages by time have them from all events."""
    every = np.concatenate([one["largest"], other["largest"]], axis=-1)
    return {"events": 0, "largest": np.sort(every, axis=-1)[..., -one["largest"].shape[-1] :]}
