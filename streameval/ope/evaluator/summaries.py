"""Evaluate in several processes: half 1 of ranges of offsets anywhere, half 2 in one place.

A `Summariser` is an evaluator that stops after half 1. Its `summary` has the sums of the whole blocks of a range, and
the events of the unfinished block, with which the next range of the partition begins. A `PartitionedEvaluator` folds
summaries. Blocks are cut inside of a partition, and folded by the time of their last event, then by partition and
offset. A block waits while a partition of the same batch has not reached its time.

Coefficients and reward models predict from what the driver had learned before the batch, and from the blocks before in
the same range.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import msgspec
import numpy as np

from streameval.common.arrays import Array, Integers, Mask, State, to_plain
from streameval.errors import ConfigError, StateError
from streameval.events import EventBatch
from streameval.ope.core.past import UnitState
from streameval.ope.core.state import STATE_SCHEMA, decode
from streameval.ope.core.summary import View
from streameval.ope.evaluator import halves, rooms, weighing
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.estimated_propensity import EstimatedPropensity
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.grid import GridSums, Pair
from streameval.ope.evaluator.report_rows import LARGEST
from streameval.ope.evidence import largest_weights
from streameval.ope.evidence.largest_weights import LargestNumbers
from streameval.ope.policies.base import Ask
from streameval.ope.report import Estimate, Report
from streameval.ope.reward_models import AnyRewardModel, online
from streameval.ope.reward_models.online import ModelState

T = TypeVar("T")
MAX_HELD = 20_000
"""Blocks times policies that wait for other partitions, at most; each takes about 1.6 kB with the default settings."""
PARTITION_NUMBERS = 2**40
"""Events without a unit are numbered apart in each partition, which has fewer of them than this."""


def refusals(config: EvaluatorConfig) -> Iterator[tuple[str, str]]:
    """Yield what needs all events in order before half 1, each with a hint."""
    for average in config.averages.values():
        if config.interval(average).anytime:
            hint = f"take intervals: {{{average.label}: empirical_likelihood}}"
            yield f"the interval {config.interval(average).kind} on {average.label} follows single events", hint
    monitor = config.monitor()
    if monitor is not None:
        bets = [label for label, rule in monitor.rules.items() if rule.lift_test(monitor.context) is not None]
        yield from ((f"the rule {label} bets on single events", "take promotion: paired") for label in bets)
    predicted = [label for label, estimator in config.estimators.items() if "prediction" in estimator.needs]
    curve, ramp = weighing.examination(config), config.logging
    others: dict[str, tuple[object, str]] = {
        f"the reward model of {', '.join(predicted)} is code": (
            predicted and config.reward_model.is_external,
            "take reward_model: ridge or tabular",
        ),
        f"{', '.join(config.learned_policies)} learns from one event after the other": (
            config.learned_policies,
            "evaluate frozen versions of it",
        ),
        "the examination of ranks is learned in order": (curve, "give examination: {kind: power, eta: 1.0}"),
        "the shares of a ramp are measured in order": (
            ramp is not None and ramp.shares is None,
            "give the shares, such as logging: {arms: {production: 0.9, challenger: 0.1}}",
        ),
        "reward.max: auto clips each block at a quantile of all blocks before it, and executors lack the ones of other "
        "ranges": (
            any(reward.quantile is not None for reward in config.rewards),
            "give max a number, such as {max: 200, above: clip}: `replay` without an engine prints the present limit",
        ),
        "propensities are estimated from the events before": (config.propensity, "log the propensities"),
    }
    yield from ((problem, hint) for problem, (is_used, hint) in others.items() if is_used)


def require_halves(config: EvaluatorConfig) -> None:
    """Require a config with a half 1 that needs only the events of its blocks.

    Raises:
        ConfigError: Something needs all events in order. The hint names what to take instead.
    """
    for problem, hint in refusals(config):
        raise ConfigError(f"events cannot be summed up apart: {problem}", hint=hint)


class Knowledge(msgspec.Struct, frozen=True, eq=False):
    """Hold what half 1 needs to know of the events before.

    Attributes:
        predictions: reward model for each reward, as a plain value
        units: whether an event has had a unit
        rooms: states of the rooms
        seen: for each grid, whether a policy has had an event with all fields
        estimators: what estimators have learned, for each grid and reward, by label
    """

    predictions: list[ModelState]
    units: bool
    rooms: dict[str, Any]
    seen: list[Mask]
    estimators: list[list[dict[str, Any]]]


class Ordered(msgspec.Struct, frozen=True, eq=False):
    """Hold whole blocks, and the keys that order them.

    Attributes:
        times: [blocks]. Time of the last event of each block, or of an earlier event, minus infinity if unknown.
        partitions: [blocks]. Partition of each block.
        places: [blocks]. Ascending in each partition.
        sums: sums of half 1
    """

    times: Array
    partitions: Integers
    places: Integers
    sums: halves.Sums


class Summary(msgspec.Struct, frozen=True, eq=False):
    """Hold half 1 of the offsets of a partition from `start` up to, but not including, `end`.

    Attributes:
        fingerprint: fingerprint of the config
        events: numbers of events
        failures: failures of policies in code
        counts: numbers of events of each policy, by `COUNTS`
        largest: largest weights, see `LargestNumbers`
        blocks: the whole blocks, None without any
        units: whether an event has had a unit
        lesson: what the events of whole blocks teach reward models, for each reward
        rest: the events after the last whole block, as a plain value
    """

    fingerprint: str
    partition: int
    start: int
    end: int
    events: halves.EventSums
    failures: dict[str, dict[str, tuple[int, str]]]
    counts: dict[str, Array]
    largest: Array
    blocks: Ordered | None
    units: bool
    lesson: list[ModelState]
    rest: State | None

    def to_bytes(self) -> bytes:
        """Return the summary as msgpack, without pickled objects."""
        return msgspec.msgpack.encode(self, enc_hook=to_plain)

    @classmethod
    def from_bytes(cls, data: bytes) -> Summary:
        """Return the inverse of `to_bytes`.

        Raises:
            StateError: This is not the result of `to_bytes` of this version.
        """
        return _decoded(data, cls)


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind, dec_hook=rooms.decoded)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        hint = "run the same version of streameval everywhere"
        raise StateError(f"this is not the {kind.__name__} of this version: {error!r}", hint=hint) from error


def fingerprint(config: EvaluatorConfig) -> str:
    """Return the BLAKE2b of the settings, as 16 hexadecimal digits."""
    settings = msgspec.json.encode([STATE_SCHEMA, config.settings()], order="deterministic")
    return blake2b(settings, digest_size=8).hexdigest()


class Summariser(Evaluator):
    """Compute half 1 of a range of offsets: an evaluator that returns the sums of blocks, and folds none.

    Args:
        config: a config that passes `require_halves`
        partition: partition of the range
        start: offset of the next message
        knowledge: knowledge of the evaluator that folds the summary, nothing by default
        rest: events of the unfinished block before, as msgpack
    """

    def __init__(
        self,
        config: EvaluatorConfig,
        partition: int,
        start: int,
        knowledge: bytes | None = None,
        rest: bytes | None = None,
    ) -> None:
        self.config = config
        self._start()
        self._position, self._blocks, self._count = (partition, start), list[Ordered](), 0
        if knowledge is not None:
            self._know(_decoded(knowledge, Knowledge))
        if rest is not None:
            self._pending = [EventBatch.from_state(msgspec.msgpack.decode(rest)).with_policies(config.columns)]
            self._pending_events = len(self._pending[0])
        before = partition * PARTITION_NUMBERS + start - self._pending_events
        self._state.units = msgspec.structs.replace(self._state.units, events=before)
        self._before = self._state.predictions

    def _know(self, knowledge: Knowledge) -> None:
        model = self.config.reward_model
        own = self._state
        own.predictions = [online.from_state(model, prediction, model) for prediction in knowledge.predictions]
        own.units = msgspec.structs.replace(own.units, seen=knowledge.units)
        own.rooms = decode(knowledge.rooms, rooms.fresh(self.config, knowledge.rooms))
        for state, seen, rewards in zip(own.grids, knowledge.seen, knowledge.estimators, strict=True):
            state.seen = seen
            for reward, estimators in zip(state.rewards, rewards, strict=True):
                reward.estimators = decode(estimators, reward.estimators)

    def _fold(self, events: EventBatch) -> None:
        _, _, sums, self._state = self._summarise(events)
        self._state.rooms = rooms.fold(self.config, self._state.rooms, sums.rooms)
        for grid, state, added in zip(self._grids, self._state.grids, sums.grids, strict=True):
            grid.learn(state, added)
        times = np.nan_to_num(events.timestamp[self.config.block - 1 :: self.config.block], nan=-np.inf)
        partition, start = self._position
        indices = start + self._count + np.arange(len(times))
        self._blocks.append(Ordered(times, np.full(len(times), partition), indices, sums))
        self._count += len(times)

    def summary(self, end: int) -> Summary:
        """Return the summary of all messages up to this offset. The summariser must get no more of them."""
        self.fold_pending()
        config, state, blocks = self.config, self._state, joined(self._blocks) if self._blocks else None
        if blocks is not None:
            blocks = msgspec.structs.replace(blocks, times=np.maximum.accumulate(blocks.times))
        events, items, lesson = state.events, self._count * config.block * _items(config), []
        if blocks is not None and weighing.predicts(config, self._grids):
            pairs = zip(self._before, state.predictions, strict=True)
            taught = [online.delta(config.reward_model, *pair, items) for pair in pairs]
            lesson = [online.to_state(config.reward_model, prediction) for prediction in taught]
        newest, oldest = (np.nan if time is None else time for time in (events.newest, events.oldest))
        return Summary(
            fingerprint(config),
            self._position[0],
            self._position[1],
            end,
            halves.EventSums(events.accepted, events.rejected, newest, oldest, events.clipped),
            state.failures,
            state.counts,
            state.weights.largest[:, 0],
            blocks,
            state.units.seen,
            lesson,
            EventBatch.concat(self._pending).to_state() if self._pending_events else None,
        )


def _items(config: EvaluatorConfig) -> int:
    """Return the number of examples that a reward model learns from, for each event."""
    slots = online.SLOTS if weighing.models_slates(config) else 1
    return slots if config.ranking is None else online.ITEMS


class PartitionState(msgspec.Struct):
    """Hold the next offset of a partition, and the events of its unfinished block as a plain value."""

    offset: int
    rest: State | None = None


class PartitionedEvaluator(Evaluator):
    """Fold summaries in place of events: half 2 of a stream, after half 1 was computed elsewhere.

    Each range counts once. The ranges of a partition must come in order. The numbers depend neither on which process
    summed up a range, nor on the order of the summaries that are folded together.

    >>> config = Evaluator(["new"], ["ips"], ["cumulative"]).config
    >>> log = EventBatch.from_arrays(reward=[1, 0], propensity=[0.25, 0.5], policies={"new": [0.5, 0.5]})
    >>> summariser = Summariser(config, partition=0, start=0)
    >>> summariser.update(log)
    >>> summary, evaluator = summariser.summary(end=2), PartitionedEvaluator.from_config(config)
    >>> evaluator.fold([summary])
    >>> evaluator.fold([summary])  # it has been counted
    >>> evaluator.report().get("new", "ips", "cumulative").value, evaluator.offset(0)
    (1.0, 2)
    """

    def _start(self, computed: Mapping[str, Ask] | None = None) -> None:
        require_halves(self.config)
        super()._start(computed)
        self._partitions: dict[int, PartitionState] = {}
        self._held: Ordered | None = None

    def _use_config(self, computed: Mapping[str, Ask] | None = None) -> None:
        super()._use_config(computed)
        self._fingerprint = fingerprint(self.config)

    def change_candidates(self, config: EvaluatorConfig) -> Evaluator | None:
        """Change candidates between two batches, see `Evaluator.change_candidates`. New ones start from zero."""
        require_halves(config)
        self._release([], np.inf)
        late = super().change_candidates(config)
        if late is not None:
            self.activate(late)
        return late

    def offset(self, partition: int) -> int | None:
        """Return the next offset of a partition, or None if none of its ranges has come."""
        state = self._partitions.get(partition)
        return None if state is None else state.offset

    def rests(self) -> dict[int, bytes]:
        """Return the events of unfinished blocks by partition, for `Summariser`."""
        return {
            number: msgspec.msgpack.encode(partition.rest)
            for number, partition in self._partitions.items()
            if partition.rest
        }

    def skip(self, partition: int, end: int) -> None:
        """Pass over the offsets up to `end`, which the log has lost."""
        state = self._partitions.get(partition)
        if state is not None and state.offset < end:
            state.offset = end

    def knowledge(self) -> bytes:
        """Return what half 1 of the next ranges needs to know, for `Summariser`."""
        state, model = self._state, self.config.reward_model
        knowledge = Knowledge(
            [online.to_state(model, prediction) for prediction in state.predictions],
            state.units.seen,
            state.rooms,
            [grid.seen for grid in state.grids],
            [[reward.estimators for reward in grid.rewards] for grid in state.grids],
        )
        return msgspec.msgpack.encode(knowledge, enc_hook=to_plain)

    def fold(self, summaries: Sequence[Summary]) -> None:
        """Fold the summaries of a batch, in any order. Summaries that were counted before change nothing.

        Raises:
            StateError: A summary is of another config, leaves out offsets, or was counted in part.
        """
        ordered = sorted(summaries, key=lambda summary: (summary.partition, summary.start))
        reached = {number: partition.offset for number, partition in self._partitions.items()}
        new = []
        for summary in ordered:
            if self._is_next(summary, reached.get(summary.partition, summary.start)):
                reached[summary.partition] = summary.end
                new.append(summary)
        for summary in new:
            self._count(summary)
        if new:
            newest = [summary.events.newest for summary in new if not np.isnan(summary.events.newest)]
            self._release(
                [summary.blocks for summary in new if summary.blocks is not None], min(newest, default=np.inf)
            )

    def _is_next(self, summary: Summary, expected: int) -> bool:
        """Return whether a range follows what has been counted, or False if it has been counted."""
        if summary.fingerprint != self._fingerprint:
            raise StateError(
                f"the summary is of config {summary.fingerprint}, and this evaluator of {self._fingerprint}",
                hint="compute both with the same configuration and version of streameval",
            )
        if summary.end <= expected:
            return False
        if summary.start != expected:
            raise StateError(
                f"the summary of partition {summary.partition} starts at offset {summary.start:,}; {expected:,} is the "
                "next one",
                hint=f"sum up the range from {expected} to {summary.end} again",
            )
        return True

    def _count(self, summary: Summary) -> None:
        """Fold what does not depend on the order of blocks."""
        state, model = self._state, self.config.reward_model
        blocks = 0 if summary.blocks is None else len(summary.blocks.times)
        state.events = summary.events.fold(state.events)
        for policy, reasons in summary.failures.items():
            failures = state.failures.setdefault(policy, {})
            for reason, (number, example) in reasons.items():
                before, first = failures.get(reason, (0, example))
                failures[reason] = (before + number, first)
        for name, added in summary.counts.items():
            total = state.counts[name]
            state.counts[name] = np.maximum(total, added) if name in LARGEST.values() else total + added
        events = blocks * self.config.block
        if events:
            state.weights = largest_weights.fold(state.weights, LargestNumbers([events], summary.largest[None]))
        state.units = UnitState(state.units.events + events, state.units.seen or summary.units)
        if summary.lesson:
            taught = [online.from_state(model, prediction, model) for prediction in summary.lesson]
            pairs = zip(state.predictions, taught, strict=True)
            state.predictions = [online.apply_delta(model, *pair, events * _items(self.config)) for pair in pairs]
        self._partitions[summary.partition] = PartitionState(summary.end, summary.rest)

    def _release(self, blocks: Sequence[Ordered], until: float) -> None:
        """Fold the blocks up to this time, with the blocks that were held, and hold the others."""
        every = [*([] if self._held is None else [self._held]), *blocks]
        if not every:
            return
        whole = joined(every)
        order = np.lexsort((whole.places, whole.partitions, whole.times))
        count = int(np.searchsorted(whole.times[order], until, side="right"))
        count = max(count, len(order) - MAX_HELD // len(self.policies))
        chunk_size = self._batch_events // self.config.block
        for first in range(0, count, chunk_size):
            self._fold_sums(taken(whole.sums, order[first : min(first + chunk_size, count)]))
        self._held = taken(whole, order[count:]) if count < len(order) else None

    def _present_evaluator(self) -> Evaluator:
        """Return a copy in which all blocks are folded, and the rests of all partitions are pending."""
        if self._held is None and not self._partitions:
            return self
        evaluator, state = copy(self), deepcopy(self._state) if self._held is not None else self._state
        evaluator._state, evaluator._partitions = state, {}
        evaluator._release([], np.inf)
        rests = [self._partitions[number].rest for number in sorted(self._partitions)]
        columns = self.config.columns
        evaluator._pending = [EventBatch.from_state(rest).with_policies(columns) for rest in rests if rest is not None]
        evaluator._pending_events = sum(map(len, evaluator._pending))
        return evaluator

    def report(self, now: float | None = None, unmatched_share: float | None = None) -> Report:
        """Return the Report, the waiting and the unfinished blocks included."""
        return Evaluator.report(self._present_evaluator(), now, unmatched_share)

    def estimates(self, pairs: Collection[Pair]) -> tuple[Estimate, ...]:
        """Return the rows of a Report for these pairs of an estimator and an average."""
        return Evaluator.estimates(self._present_evaluator(), pairs)

    def state(self) -> State:
        """Return everything that is needed to continue, as a plain value that msgpack can hold."""
        partitions = [[number, partition.offset, partition.rest] for number, partition in self._partitions.items()]
        held = None if self._held is None else msgspec.msgpack.encode(self._held, enc_hook=to_plain)
        return {**super().state(), "partitions": partitions, "held": held}

    def _continue(
        self, state: State, reward_model: AnyRewardModel | None, propensity: EstimatedPropensity | None
    ) -> None:
        super()._continue(state, reward_model, propensity)
        self._partitions = {number: PartitionState(offset, rest) for number, offset, rest in state["partitions"]}
        self._held = None if state["held"] is None else _decoded(state["held"], Ordered)

    def _restrict(self, config: EvaluatorConfig) -> None:
        if config != self.config:
            self._release([], np.inf)
        super()._restrict(config)


def joined(parts: Sequence[Ordered]) -> Ordered:
    """Concatenate blocks. An array that some parts lack is 0 there."""
    merged: Ordered = _joined(parts, [len(blocks.times) for blocks in parts])
    return merged


def _joined(parts: Sequence[Any], counts: Sequence[int]) -> Any:
    """Concatenate values of one type in which axis 0 of arrays counts blocks.

    Args:
        parts: values to concatenate
        counts: number of blocks of each
    """
    values = [part for part in parts if part is not None]
    if not values or len(parts) == 1:
        return values[0] if values else None
    first = values[0]
    if isinstance(first, np.ndarray):
        gaps = (np.zeros((count, *first.shape[1:]), first.dtype) for count in counts)
        return np.concatenate([gap if part is None else part for part, gap in zip(parts, gaps, strict=True)])
    if isinstance(first, View):
        starts = np.cumsum([0, *counts[:-1]])
        pairs = zip(parts, starts.tolist(), strict=True)
        moved = (msgspec.structs.replace(part, block=part.block + start) for part, start in pairs)
        return _joined_fields(list(moved), [len(part.block) for part in parts])
    if isinstance(first, GridSums):
        filled = [part for part in parts if part.rewards]
        rewards = _joined([part.rewards for part in filled], [len(part.seen) for part in filled]) if filled else ()
        kept, seen = (np.concatenate([getattr(part, name) for part in parts]) for name in ("kept", "seen"))
        return GridSums(kept, seen, rewards)
    return any(values) if isinstance(first, bool) else _joined_fields(parts, counts)


def _joined_fields(parts: Sequence[Any], counts: Sequence[int]) -> Any:
    first = next(part for part in parts if part is not None)
    return _rebuilt(first, lambda get: _joined([None if part is None else get(part) for part in parts], counts))


def taken(value: T, order: Integers) -> T:
    """Return some of the blocks, in this order."""
    selected: T = _taken(value, order)
    return selected


def _taken(value: Any, order: Integers) -> Any:
    if isinstance(value, np.ndarray):
        return value[order]
    if isinstance(value, View):
        first, last = (np.searchsorted(value.block, order, side=side) for side in ("left", "right"))
        counts = last - first
        rows = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        selected = _rebuilt(value, lambda get: get(value)[rows])
        return msgspec.structs.replace(selected, block=np.repeat(np.arange(len(order)), counts))
    if isinstance(value, GridSums):
        kept = value.kept[order]
        some = (np.cumsum(value.kept) - 1)[order][kept]
        return GridSums(kept, value.seen[some], _taken(value.rewards, some) if len(some) else ())
    return _rebuilt(value, lambda get: _taken(get(value), order))


def _rebuilt(value: Any, change: Callable[[Callable[[Any], Any]], Any]) -> Any:
    """Return a copy with changed fields. `change` gets a function that returns one of them."""
    if isinstance(value, Mapping):
        return {name: change(itemgetter(name)) for name in value}
    if isinstance(value, msgspec.Struct):
        return type(value)(*(change(attrgetter(name)) for name in value.__struct_fields__))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{field.name: change(attrgetter(field.name)) for field in fields(value)})
    if isinstance(value, tuple):
        parts = [change(itemgetter(index)) for index in range(len(value))]
        return value._make(parts) if hasattr(value, "_make") else tuple(parts)
    return value
