"""The evaluator of partial results: the same Report, in whatever processes its sums were computed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import cast

import numpy as np

from streameval.common.arrays import Array, Integers, State, from_plain, to_plain
from streameval.common.text import counted
from streameval.errors import StateError
from streameval.ope.averages import Lift, variance
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import TAIL_ROWS
from streameval.ope.averages.variance import FADING, LONGER
from streameval.ope.evaluator import learning, segments
from streameval.ope.evaluator.merging.buckets import ALIKE, NO_TIME, Buckets, SummedBlocks, TimeKernel
from streameval.ope.evaluator.merging.coverage import NEVER, Coverage, Partition, place_of
from streameval.ope.evaluator.merging.grid import Pair
from streameval.ope.evaluator.merging.mergeable import MergedGrid, MergePlan, compared_of, spread_of
from streameval.ope.evaluator.merging.partial import SEGMENTS, Partial
from streameval.ope.evaluator.plan import STATE_SCHEMA, Candidates, Plan, require_schema
from streameval.ope.evaluator.report_rows import report_rows, with_signs
from streameval.ope.evidence.evidence import start_slates
from streameval.ope.promotion import decide, fold_arrivals, fold_trust, monitor_state, start_arrivals
from streameval.ope.report import (
    Decision,
    Estimate,
    EventCounts,
    Failure,
    PolicyCounts,
    Report,
    SegmentEstimate,
    Transition,
    TrustCheck,
)
from streameval.ope.reward_models import online

LATENESS = 60
"""Buckets for which late events are waited for before a bucket is compared with its neighbours."""
MOST_OPEN = 600
"""Buckets that wait at most, and buckets after the clock."""


class MergedEvaluator:
    """Estimates of a plan from partial results, in the place of an `Evaluator`.

    Each partial result counts once: its ranges follow those before them in their partition, in any order of
    partitions. The numbers do not depend on how the stream was cut.

    Args:
        plan: whose numbers do not depend on the order of all events
        start: the partitions and their first offsets; of others, the first range starts where it starts, and no bucket
            of time waits for their events

    Raises:
        ConfigError: The numbers of the plan depend on the order of all events; the hint names what to take instead.

    >>> from streameval.events import EventBatch
    >>> from streameval.ope.evaluator.evaluator import Evaluator
    >>> plan = Evaluator(["new"], ["ips"], ["cumulative"], drift=None, promotion=None).plan
    >>> batch = EventBatch.from_arrays(reward=[1, 0], propensity=[0.25, 0.5], policies={"new": [0.5, 0.5]})
    >>> evaluator = MergedEvaluator(plan)
    >>> evaluator.fold(Partial.of(plan, batch, {("clicks", 0): (0, 2)})), evaluator.offsets
    (True, {('clicks', 0): 2})
    >>> evaluator.fold(Partial.of(plan, batch, {("clicks", 0): (0, 2)}))  # it has been seen
    False
    >>> evaluator.report().get("new", "ips", "cumulative").value
    1.0
    """

    def __init__(self, plan: Plan, start: Mapping[Partition, int] | None = None) -> None:
        self._plan = MergePlan.of(plan)
        self._known, self._lagged = Partial.nothing(self._plan), self._plan.start_lagged()
        self._arrivals = start_arrivals()
        self._closed = [_start(grid, self._plan) for grid in self._plan.grids]
        self._blocks = _start_blocks(self._plan)
        self._last = NO_TIME
        self._offsets: dict[Partition, int] = dict(start or {})
        self._known = replace(self._known, coverage=Coverage(reached=dict.fromkeys(self._offsets, NEVER)))

    @property
    def plan(self) -> Plan:
        return self._plan.plan

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies with rows in the Report: production first, then the candidates."""
        return self.plan.policies

    @property
    def accepted(self) -> int:
        """The number of accepted events."""
        return int(self._known.events["accepted"])

    @property
    def newest(self) -> float | None:
        """The time of the newest accepted event, in epoch seconds; None if none has a time."""
        time: float | None = self._known.events["newest"]
        return time

    @property
    def offsets(self) -> dict[Partition, int]:
        """The next offset of each partition."""
        return dict(self._offsets)

    @property
    def covered(self) -> int:
        """The number of offsets that count."""
        return sum(stop - first for parts in self._known.coverage.ranges.values() for first, stop in parts)

    @property
    def learns(self) -> bool:
        """Whether estimators have coefficients, or a reward model, that learn from the log."""
        return self._plan.learns

    @property
    def lagged(self) -> bytes | None:
        """The knowledge of estimators and reward models, for `Partial.of` of later events; None if nothing learns."""
        return self._plan.lagged_to_bytes(self._lagged) if self.learns else None

    def fold(self, partial: Partial) -> bool:
        """Add a partial result; False where it has been seen, and changes nothing.

        Raises:
            StateError: It is of another plan, leaves out offsets, or counts only some that have been seen.
        """
        self._known.require_plan(partial)
        if not self._is_next(partial.coverage):
            return False
        known = self._known.merge(partial)
        reasons, accepted = partial.events["rejected"], partial.events["accepted"]
        self._arrivals = fold_arrivals(self._arrivals, accepted, reasons)
        self._offsets |= {partition: parts[-1][1] for partition, parts in partial.coverage.ranges.items()}
        for events, lesson in partial.lessons:
            taught = self._plan.lagged_from_bytes(lesson)
            self._lagged = self._plan.lagged_with(self._lagged, taught, events)
        buckets = _bounded(known.buckets, self._bucket(known.coverage.now))
        self._known = replace(known, buckets=buckets, lessons=())
        self._close()
        return True

    def _is_next(self, coverage: Coverage) -> bool:
        """Whether all ranges follow what has been seen; False if all have been seen."""
        seen = []
        for partition, parts in coverage.ranges.items():
            expected, (first, stop) = self._offsets.get(partition, parts[0][0]), (parts[0][0], parts[-1][1])
            if len(parts) > 1:
                raise StateError(
                    f"the partial result leaves out {place_of(partition, parts[0][1])}",
                    hint="add up the results of neighbouring ranges only",
                )
            seen.append(stop <= expected)
            if not seen[-1] and first > expected:
                raise StateError(
                    f"the partial result starts at {place_of(partition, first)}; {expected:,} is the next one",
                    hint="add the ranges of a partition in order, and compute the missing one again",
                )
            if not seen[-1] and first < expected:
                raise StateError(
                    f"the partial result starts at {place_of(partition, first)}, and ends after {expected - 1:,}, "
                    "the last one that has been seen",
                    hint=f"compute the range from {expected} to {stop} again",
                )
        if any(seen) and not all(seen):
            raise StateError(
                "the partial result has ranges that have been seen, and others that have not",
                hint="compute results of the same ranges again, or of one partition each",
            )
        return not any(seen)

    def _bucket(self, time: float) -> int:
        return math.floor(time / self._plan.width) if math.isfinite(time) else NO_TIME

    def _close(self) -> None:
        """Average the buckets that no more events are waited for."""
        coverage, buckets = self._known.coverage, self._known.buckets
        behind, now = self._bucket(coverage.behind), self._bucket(coverage.now)
        before = NO_TIME + 1 if behind == NO_TIME else behind - LATENESS
        until_now = buckets.numbers[buckets.numbers <= now]
        if len(until_now) > MOST_OPEN:
            before = max(before, int(until_now[-MOST_OPEN]))
        done = buckets.numbers < before
        if done.any():
            self._closed, self._last = self._averaged(buckets.where(done))
            self._blocks = _with_blocks(self._blocks, buckets.where(done), self._plan)
            self._known = replace(self._known, buckets=buckets.where(~done))

    def _averaged(self, buckets: Buckets) -> tuple[list[State], int]:
        """The averages of all grids, and the number of the last bucket in them, with some complete buckets."""
        last, late = self._last, buckets.numbers <= self._last
        on_time, pieces, closed = buckets.where(~late), buckets.where(late), []
        newest = int(on_time.numbers[-1]) if len(on_time) else last
        for place, of_grid in enumerate(self._closed):
            after = {}
            for label, state in of_grid.items():
                kernel = self._plan.kernels[label]
                complete = _with_complete(state, on_time, place, kernel, last)
                after[label] = _with_late(complete, pieces, place, kernel, newest)
            closed.append(after)
        return closed, newest

    def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
        """Everything known now; the evaluator does not change. The arguments are those of `Evaluator.report`."""
        states, blocks = self._present()
        plan, events, estimates = self.plan, self._known.events, list(self._rows(states))
        predicts = any("prediction" in each.needs for each in plan.estimators.values())
        decisions, checks, transitions = self._decisions(estimates, blocks["promotion"], now, unmatched_share)
        return Report(
            confidence=plan.confidence,
            production=self.policies[0],
            events=EventCounts(events["accepted"], dict(events["rejected"]), events["newest"], events["oldest"]),
            policies=tuple(self._policy_counts()),
            estimates=with_signs(plan, estimates),
            segments=self._segments(estimates),
            promotion=decisions,
            trust=checks,
            transitions=transitions,
            reward_model=online.read(plan.reward_model, self._lagged["predictions"][0]) if predicts else None,
        )

    def _segments(self, estimates: Sequence[Estimate]) -> tuple[SegmentEstimate, ...]:
        """The rows of segments; none before the first event."""
        plan, counts = self.plan, self._known.counts
        state = segments.start(plan)
        if SEGMENTS in counts:
            state["moments"] = counts[SEGMENTS]
        of_goal = [row for row in estimates if row.reward == plan.rewards[0].name]
        return segments.segment_rows(plan, state, None, counts, self._known.weights, of_goal)

    def _decisions(
        self, estimates: Sequence[Estimate], judged: State, now: float | None, unmatched_share: float | None
    ) -> tuple[tuple[Decision, ...], tuple[TrustCheck, ...], tuple[Transition, ...]]:
        """The decisions on all candidates, the trust checks and the transitions; `judged`: the state of the rules."""
        monitor, newest = self._plan.monitor, self._known.events["newest"]
        if monitor is None:
            return (), (), ()
        of_goal = [row for row in estimates if row.reward == self.plan.rewards[0].name]
        state, pairs = monitor_state(monitor, judged, self._known.counts), self._plan.promotion_lifts
        return decide(monitor, state, of_goal, self._arrivals, newest, now, unmatched_share, pairs)

    def estimates(self, pairs: Collection[Pair]) -> tuple[Estimate, ...]:
        """The rows of a Report for these pairs of an estimator and an average."""
        return tuple(
            row
            for row in with_signs(self.plan, self._rows(self._present()[0]))
            if (row.estimator, row.average) in pairs
        )

    def _rows(self, states: Sequence[State]) -> Iterator[Estimate]:
        plan, learned = self.plan, learning.start(self.plan)
        for place in range(len(plan.rewards)):
            known = {**learned, "weights": self._known.weights, "slates": self._slots(place)}
            for grid, whole in zip(self._plan.grids, states, strict=True):
                part, state = grid.of_reward(whole, place)
                yield from report_rows(plan.for_reward(place), part, state, None, self._known.counts, known)

    def _slots(self, place: int) -> State:
        """The sums of the slots of slates for the reward at this place, of all events."""
        counts, policies = self._known.counts, len(self.policies)
        fresh = start_slates(policies)
        lifts = {name: counts.get(f"{name} {place}", start) for name, start in fresh["lifts"].items()}
        return {"ratios": counts.get(f"ratios {place}", fresh["ratios"]), "lifts": lifts}

    def _present(self) -> tuple[list[State], State]:
        """The state of each grid as of now, from the averages of closed buckets and the open ones; and the blocks.

        Averages that fold blocks show those of all buckets; rules decide by complete buckets alone, which are final.
        """
        coverage, open_ones = self._known.coverage, self._known.buckets
        clock = coverage.now
        now, behind = self._bucket(clock), self._bucket(coverage.behind)
        complete = (open_ones.numbers > NO_TIME) & (open_ones.numbers < behind)
        closed, last = self._averaged(open_ones.where(complete))
        # averages that adapt change the arrays of a state that they are given
        before = deepcopy(self._blocks) if self._plan.adapts else self._blocks
        blocks = _with_blocks(before, open_ones.where(complete), self._plan)
        rest = open_ones.where(~complete)
        rest = rest.numbered(np.minimum(rest.numbers, now))  # events after the clock count as of now
        shown = _with_blocks(blocks, rest, self._plan)
        ahead = 0.0 if now == NO_TIME else now + 1.0 - clock / self._plan.width
        states = [
            {
                "seen": seen,
                "drift": shown["grids"][place].get("drift", {}),
                "averages": {
                    label: _read(of_average, rest, place, self._plan.kernels[label], last, now, ahead)
                    for label, of_average in of_grid.items()
                }
                | shown["grids"][place].get("averages", {}),
            }
            for place, (of_grid, seen) in enumerate(zip(closed, self._known.seen, strict=True))
        ]
        return states, blocks

    def _policy_counts(self) -> Iterator[PolicyCounts]:
        for place, policy in enumerate(self.policies):
            present = int(self._known.counts["present"][place])
            failures = self._known.events["failures"].get(policy, {}).items()
            yield PolicyCounts(
                policy,
                policy == self.policies[0],
                present,
                self.accepted - present,
                tuple(Failure(reason, *counted) for reason, counted in failures),
                None,
            )

    def fold_pending(self) -> bool:
        """Do nothing: no events wait to be folded. An `Evaluator` has such events."""
        return False

    def take_transitions(self) -> list[Transition]:
        """The transitions of candidates since the last call, of blocks that no more events are waited for."""
        monitor = self._plan.monitor
        return [] if monitor is None else monitor.take_transitions(self._blocks["promotion"])

    def state(self) -> State:
        """Everything needed to continue, as a plain value that msgpack can hold."""
        return {
            "schema": STATE_SCHEMA,
            "settings": self.plan.settings(),
            "offsets": [[*partition, offset] for partition, offset in self._offsets.items()],
            "last": self._last,
            "lagged": self._plan.lagged_to_state(self._lagged),
            **to_plain({"known": self._known.to_state(), "arrivals": self._arrivals, "closed": self._closed}),
            "blocks": to_plain({**self._blocks, "open": self._blocks["open"].to_state()}),
        }

    @classmethod
    def from_state(cls, state: State, candidates: Candidates = ()) -> MergedEvaluator:
        """Continue from a state, to the last bit.

        Raises:
            StateError: The state is of another version, or has policies in code that `candidates` do not name.
        """
        require_schema(state)
        evaluator = cls(Plan.from_settings(state["settings"], candidates))
        evaluator._offsets = {(topic, number): offset for topic, number, offset in state["offsets"]}
        evaluator._last, evaluator._arrivals = state["last"], state["arrivals"]
        known = Partial.from_state(from_plain(state["known"]))
        evaluator._known = replace(known, fingerprint=evaluator._plan.fingerprint)
        evaluator._closed = from_plain(state["closed"])
        blocks = from_plain(state["blocks"])
        evaluator._blocks = {**blocks, "open": Buckets.from_state(blocks["open"])}
        evaluator._lagged = evaluator._plan.lagged_from_state(state["lagged"])
        return evaluator

    def __repr__(self) -> str:
        return f"MergedEvaluator({counted(self.accepted, 'event')}, policies={list(self.policies)})"


def _start_blocks(plan: MergePlan) -> State:
    """The averages that fold blocks of buckets before the first event; `open`: the buckets of the unfinished block."""
    return {
        "open": Buckets(),
        "grids": [grid.start_blocks(plan.plan.block) for grid in plan.grids],
        "promotion": {} if plan.monitor is None else plan.monitor.start(),
        "trust": {},
    }


def _with_blocks(state: State, buckets: Buckets, plan: MergePlan) -> State:
    """These averages with some more buckets, in whole blocks.

    A block ends with the first bucket at whose end it has the events of a block. Events that come after their bucket
    was counted belong to the unfinished block; those without a time, to none.
    """
    buckets = buckets.where(buckets.numbers > NO_TIME)
    if not (plan.mixes or plan.adapts) or not len(buckets):
        return state
    waiting = state["open"]
    if len(waiting):
        buckets = waiting.merge(buckets.numbered(np.maximum(buckets.numbers, waiting.numbers[-1])))
    blocks = _blocks_of(buckets.sums[ALIKE], plan.plan.block)
    ends = np.flatnonzero(np.diff(blocks))  # the last buckets of whole blocks
    done = blocks < blocks[-1]
    rest = buckets.where(~done[:-1])
    after = {**state, "open": rest.numbered(np.full(len(rest), buckets.numbers[-1]))}
    if not len(ends):
        return after
    whole, grids = buckets.where(done[:-1]).numbered(blocks[:-1][done[:-1]]), []
    found: dict[Pair, list[Lift]] = {}
    for place, (grid, before) in enumerate(zip(plan.grids, state["grids"], strict=True)):
        folded, lifts = grid.fold_blocks(before, whole, place, plan.promotion_lifts)
        grids.append(folded)
        found |= lifts
    promotion = state["promotion"]
    if plan.monitor is not None and plan.mixes:
        of_rewards = [
            [found[pair][reward] for pair in plan.promotion_lifts] for reward in range(len(plan.plan.rewards))
        ]
        sizes, times = whole.sums[ALIKE].astype(np.int64), np.multiply(buckets.numbers[ends] + 1.0, plan.width)
        sums = {name: rows for name, rows in whole.sums.items() if name.startswith(("trust ", "largest "))}
        trustworthy, differs, trust = fold_trust(plan.monitor, state["trust"], sums)
        promotion = plan.monitor.fold_lifts(promotion, of_rewards, sizes, times, trustworthy, differs)
        after["trust"] = trust
    return {**after, "grids": grids, "promotion": promotion}


def _blocks_of(counts: Array, least: int) -> Integers:
    """The number of the block of each bucket, and that of the next one; blocks have at least this many events."""
    blocks, events = [0], 0.0
    for count in counts.tolist():
        events += count
        blocks.append(blocks[-1] + (events >= least))
        if events >= least:
            events = 0.0
    return np.array(blocks)


def _start(grid: MergedGrid, plan: MergePlan) -> State:
    """The averages of a grid before the first event."""
    columns = len(grid.candidates) * len(grid.columns) * grid.rewards
    return {
        average.label: {"kernel": plan.kernels[average.label].start(columns), "spread": variance.start(columns)}
        for average in grid.averages
        if average.label in plan.kernels
    }


def _alike(buckets: Buckets, place: int) -> Array:
    moments: Array = buckets.moments[f"{place} {ALIKE}"]
    return moments


def _spread(buckets: Buckets, place: int) -> Array:
    """The rows that each bucket adds to a variance, [buckets, columns, rows]."""
    return spread_of(_alike(buckets, place), buckets.sums[f"{place} nonzero"])


def _with_complete(state: State, buckets: Buckets, place: int, kernel: TimeKernel, last: int) -> State:
    """An average with complete buckets after the last one."""
    if not len(buckets):
        return state
    spread = _spread(buckets, place)
    compared = compared_of(spread, buckets.sums.get(f"{place} signed"))
    seconds = SummedBlocks(np.ones(len(buckets), dtype=np.int64), _alike(buckets, place), spread, compared)
    gaps = np.diff(buckets.numbers, prepend=buckets.numbers[0] if last == NO_TIME else last).astype(float)
    with np.errstate(divide="ignore"):
        horizons = LONGER * kernel.memory / gaps
    return {
        "kernel": _with_kernel(state["kernel"], buckets, place, kernel),
        "spread": variance.fold(state["spread"], cast(Blocks, seconds), horizons),
    }


def _with_late(state: State, buckets: Buckets, place: int, kernel: TimeKernel, last: int) -> State:
    """An average with events of buckets that have been compared already, or without a time."""
    if not len(buckets):
        return state
    spread = dict(state["spread"])
    spread["sums"] = spread["sums"] + _late_rows(buckets, place, kernel, last)
    return {"kernel": _with_kernel(state["kernel"], buckets, place, kernel), "spread": spread}


def _with_kernel(state: State, buckets: Buckets, place: int, kernel: TimeKernel) -> State:
    return kernel.add(state, buckets.numbers, buckets.moments[f"{place} {kernel.name}"], buckets.sums[kernel.name])


def _late_rows(buckets: Buckets, place: int, kernel: TimeKernel, now: int) -> Array:
    """The rows of a variance, without numbers of buckets, seen from the end of bucket `now`."""
    rows = _spread(buckets, place)
    factors = np.ones(len(buckets))
    if math.isfinite(kernel.memory):
        known = buckets.numbers != NO_TIME
        ages = np.where(known, now - np.where(known, buckets.numbers, now), 0.0)
        factors = known * np.exp(-ages / (LONGER * kernel.memory))
    added = np.zeros(rows.shape[1:])
    added[..., TAIL_ROWS] = np.tensordot(factors, rows[..., TAIL_ROWS], axes=1)
    return added


def _read(state: State, rest: Buckets, place: int, kernel: TimeKernel, last: int, now: int, ahead: float) -> State:
    """The moments, details and variance of an average when the clock is in bucket `now`; `rest`: of open buckets."""
    spread = state["spread"]
    if now > last > NO_TIME:
        factor = math.exp(-(now - last) / (LONGER * kernel.memory))
        spread = {**spread, **{name: spread[name] * factor**power for name, power in FADING.items() if name in spread}}
    own, added = state["kernel"], np.zeros_like(spread["sums"])
    if len(rest):
        own, added = _with_kernel(own, rest, place, kernel), _late_rows(rest, place, kernel, now)
    moments, details = kernel.read(own, now, ahead)
    return {"moments": moments, "details": details, "spread": spread, "open": added}


def _bounded(buckets: Buckets, now: int) -> Buckets:
    """The same with at most `MOST_OPEN` buckets after the clock: those that are further ahead count in the last one."""
    after = buckets.numbers[buckets.numbers > now]
    if len(after) <= MOST_OPEN:
        return buckets
    numbers = np.minimum(buckets.numbers, after[MOST_OPEN - 1])
    return Buckets.of_blocks(numbers, buckets.moments, buckets.sums)
