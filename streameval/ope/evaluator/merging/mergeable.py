"""Plans whose numbers are the same however a stream is cut, and in whatever order its parts are added up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
from pydantic import TypeAdapter

from streameval.common.arrays import Array, Integers, Mask, State, decayed_path, from_plain, take_columns, to_plain
from streameval.errors import ConfigError, StateError
from streameval.ope import core
from streameval.ope.averages import AnyAverage, Lift, Reading, variance
from streameval.ope.averages.adaptive import Adaptive
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.drift_rate import UNKNOWN_DRIFT_RATE
from streameval.ope.averages.moments import BOTH_TOTALS, NONZERO, MomentRow
from streameval.ope.averages.variance import LONGER, SIGNS
from streameval.ope.evaluator import learning
from streameval.ope.evaluator.merging.buckets import (
    ALIKE,
    Buckets,
    Kernels,
    SummedBlocks,
    evenly,
    folds_blocks,
    kernels_of,
    start_rest,
    width_of,
)
from streameval.ope.evaluator.merging.grid import Grid, Pair
from streameval.ope.evaluator.plan import STATE_SCHEMA, Plan
from streameval.ope.evidence.actions import FORMS
from streameval.ope.evidence.evidence import Evidence, RecentMoments, RecentSums, fading_of, start_recent
from streameval.ope.intervals import AnyInterval
from streameval.ope.intervals.sequences.tracker import TrackedBounds
from streameval.ope.policies.base import Ask
from streameval.ope.policies.coded import prepared
from streameval.ope.promotion import PromotionMonitor
from streameval.ope.reward_models import online

_AVERAGE: TypeAdapter[AnyAverage] = TypeAdapter(AnyAverage)
_NEW: TypeAdapter[Any] = TypeAdapter(core.AnyAverage)


class OpenBuckets(NamedTuple):
    """The addition of incomplete buckets to a variance, [1, columns, rows], as `variance` reads an unfinished block."""

    spread: Array


class MergedGrid(Grid):
    """A grid whose averages are read from sums over buckets of time."""

    def sums(
        self,
        evidence: Sequence[Evidence],
        numbers: Integers,
        learned: Sequence[State],
        kernels: Kernels,
        seconds: Array,
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """The moments and the plain sums of each block of events by name, [blocks, columns, ...].

        `evidence`: of each reward, all events in one block. `numbers` [blocks]: the bucket of each block, in ascending
        order. `learned`: the states of the estimators, for each reward. `seconds` [blocks, events]: until the end of
        the bucket, NaN if unknown.
        """
        size = seconds.shape[1]
        visible = [each.restricted_to(self.needs) for each in evidence]
        terms = [
            column.terms(seen, states[column.label])[0]
            for seen, states in zip(visible, learned, strict=True)
            for column in self.columns
        ]
        visible = [replace(seen, block=size) for seen in visible]
        blocks = Blocks.of([seen for seen in visible for _ in self.columns], terms)
        moments = {ALIKE: blocks.moments}
        for kernel in kernels.values():
            if kernel.name not in moments:
                weights = np.nan_to_num(kernel.weights(seconds))
                moments[kernel.name] = blocks.weighed(weights)
        sums = {"nonzero": blocks.spread[..., NONZERO]}
        signed = blocks.compared.get("signed")
        if signed is not None:
            sums["signed"] = _widened(signed)
        if self.mixing:
            known = [replace(each.restricted_to(self.needs & set(FORMS)), block=size) for each in evidence]
            moments["parts"] = blocks.paired_components.moments
            sums |= self._sums_for_lifts(blocks) | self._recent_sums(known, visible, numbers)
        return moments, sums

    def _sums_for_lifts(self, blocks: Blocks) -> dict[str, Array]:
        """The sums, besides moments, by which `SummedBlocks` compares policies with production."""
        if len(self.candidates) < 2:
            return {}
        sums = {"both": blocks.events_of_both, "differ": blocks.events_that_differ}
        ones = blocks.signed_weights
        return sums if ones is None else {**sums, "ones": ones}

    def _recent_sums(
        self, known: Sequence[Evidence], visible: Sequence[Evidence], numbers: Integers
    ) -> dict[str, Array]:
        """The sums behind recent means, of all events and of what the initial values of components need.

        `numbers` [blocks]: of buckets. Sums that an estimator learns are known after all events only, so they come from
        the events of one bucket after the other, as those of its first block.
        """
        sums: dict[str, Array] = {}
        for place, (every, seen) in enumerate(zip(known, visible, strict=True)):
            sums[f"logged {place}"], sums[f"weighed {place}"] = every.recent_steps()
            starts, parted = np.unique(numbers, return_index=True)[1], seen.parted(numbers)
            for column in (column for column in self.columns if column.parts > 1):
                fresh = column.start(len(self.candidates))
                for name in fresh:
                    sums[f"learned {place} {column.label} {name}"] = np.zeros((len(numbers), *fresh[name].shape))
                for start, part in zip(starts.tolist(), parted, strict=True):
                    for name, rows in column.terms(part, fresh)[1].items():
                        sums[f"learned {place} {column.label} {name}"][start] = rows
        return sums

    @property
    def mixing(self) -> tuple[AnyAverage, ...]:
        """The averages that mix components, by blocks of merged buckets."""
        return tuple(average for average in self.averages if average.mixes_components)

    @property
    def adapting(self) -> tuple[Adaptive, ...]:
        """The averages that adapt to the drift rate, by blocks of merged buckets."""
        return tuple(average for average in self.averages if isinstance(average, Adaptive))

    def start_blocks(self, block: int) -> State:
        """The state of the averages that fold blocks, and of what they start from; empty without such an average."""
        policies, components = len(self.candidates), [column.parts for column in self.columns] * self.rewards
        columns = policies * len(components)
        if not self.mixing and not self.adapting:
            return {}
        return {
            "recent": [start_recent(policies) for _ in range(self.rewards)],
            "learned": [
                {column.label: column.start(policies) for column in self.columns if column.parts > 1}
                for _ in range(self.rewards)
            ],
            "averages": {
                average.label: average.start(components, self.candidates, block, self.rewards)
                for average in (*self.mixing, *self.adapting)
            },
            "drift": {name: drift.start(columns, block) for name, drift in self._drift_estimators.items()},
            "rest": start_rest(columns, block) if self.adapting else {},
        }

    def fold_blocks(
        self, state: State, buckets: Buckets, place: int, lifts: Sequence[Pair]
    ) -> tuple[State, dict[Pair, list[Lift]]]:
        """The state after whole blocks, and of these lifts those that belong to this grid, for each reward.

        A bucket is a block. `place`: of this grid among those of the plan.
        """
        own = [pair for pair in lifts if pair in self.pairs]
        kept: Mask = np.ones(len(buckets), dtype=bool)
        if self.optional and len(self.mixing) == len(self.averages):
            weight = buckets.moments[f"{place} {ALIKE}"][..., MomentRow.WEIGHT]
            kept = np.asarray((weight > 0).any(axis=1))
        if not kept.any():
            return state, {pair: self._lifts(pair, kept, {}) for pair in own}
        buckets = buckets.where(kept)
        blocks, recent, learned = self._summed_blocks(state, buckets, place)
        after = {**state, "recent": recent, "learned": learned, "averages": dict(state["averages"])}
        found = {}
        for average in self.mixing:
            after["averages"][average.label], found[average.label] = average.fold(
                state["averages"][average.label], cast(Blocks, blocks), UNKNOWN_DRIFT_RATE
            )
        if self.adapting:
            self._adapt(after, blocks)
        return after, {pair: self._lifts(pair, kept, found) for pair in own}

    def _adapt(self, state: State, blocks: SummedBlocks) -> None:
        """Put the averages that adapt to the drift rate after these blocks into the state.

        They choose their memory by blocks of one size; a variance compares the blocks that the buckets make.
        """
        averages, drift = state["averages"], dict(state["drift"])
        horizons: dict[str, list[Array]] = {average.label: [] for average in self.adapting}
        ends = (state["rest"]["events"] + np.cumsum(blocks.events)) // state["rest"]["block"] - 1
        parts, rest = evenly(state["rest"], blocks)
        for even in parts:
            rates = {}
            for name, estimator in self._drift_estimators.items():
                rates[name], drift[name] = estimator.fold(drift[name], cast(Blocks, even))
            for average in self.adapting:
                before, rate = averages[average.label], rates[average.drift.name]
                kernel, horizon = average.fold_kernel(before["kernel"], cast(Blocks, even), rate)
                averages[average.label] = {**before, "kernel": kernel}
                horizons[average.label].append(np.asarray(horizon))
        for label, parts_of in horizons.items():
            horizon = LONGER * np.concatenate(parts_of)[ends]
            spread = variance.fold(averages[label]["spread"], cast(Blocks, blocks), horizon)
            averages[label] = {**averages[label], "spread": spread}
        state |= {"drift": drift, "rest": rest}

    def _summed_blocks(
        self, state: State, buckets: Buckets, place: int
    ) -> tuple[SummedBlocks, list[State], list[State]]:
        """The blocks, and the states of recent means and of estimators after them."""
        own = {name: rows for name, rows in buckets.sums.items() if name.split(" ", 1)[0] == str(place)}
        sums = {name.split(" ", 1)[1]: rows for name, rows in own.items()}
        moments = buckets.moments[f"{place} {ALIKE}"]
        spread, events = spread_of(moments, sums["nonzero"]), buckets.sums[ALIKE].astype(np.int64)
        blocks = SummedBlocks(events, moments, spread, compared_of(spread, sums.get("signed")))
        if not self.mixing:
            return blocks, state["recent"], state["learned"]
        components, recent, learned = self._components(state, events, buckets.moments[f"{place} parts"], sums)
        none = np.zeros((0, 0))
        both, differ, ones = sums.get("both", none), sums.get("differ", none), sums.get("ones")
        return replace(blocks, parts=components, events_of_both=both, differ=differ, ones=ones), recent, learned

    def _components(
        self, state: State, events: Integers, parts: Array, sums: Mapping[str, Array]
    ) -> tuple[SummedBlocks, list[State], list[State]]:
        """The components of all terms of blocks, and the states of recent means and of estimators after them."""
        fading = np.array([fading_of(count) for count in events.tolist()])
        shape, recent, learned = (len(events), len(self.candidates)), [], []
        priors, squares, distances = [], [], []
        for reward in range(self.rewards):
            means, after = RecentMoments.folded(
                state["recent"][reward], RecentSums(sums[f"logged {reward}"], sums[f"weighed {reward}"]), fading
            )
            recent.append(after)
            known: State = {}
            for column in self.columns:
                paths = {
                    name: decayed_path(before, sums[f"learned {reward} {column.label} {name}"], fading)
                    for name, before in state["learned"][reward].get(column.label, {}).items()
                }
                if paths:
                    known[column.label] = {name: path[-1] for name, path in paths.items()}
                for prior in column.priors(means.reward[:, None], paths):
                    priors.append(np.broadcast_to(np.nan if prior is None else prior, shape))
                    squares.append(means.weight_square * means.reward_square[:, None])
                    distances.append(means.distance_square[:, 1:] * means.reward_square[:, None])
            learned.append(known)
        prior, prior_square, distance = (
            np.stack(each, axis=-1).reshape(len(events), -1) for each in (priors, squares, distances)
        )
        ratios = [(column.ratio, column.parts) for column in self.columns] * self.rewards
        components = SummedBlocks(
            events,
            parts,
            np.zeros((0, 0, 0)),
            {},
            ratio=np.repeat(*np.array(ratios).T).astype(bool),
            prior=prior,
            prior_square=prior_square,
            distance_square=distance,
        )
        return components, recent, learned

    def taught(self, evidence: Sequence[Evidence]) -> list[State]:
        """The states of the estimators from these events alone, for each reward."""
        policies = len(self.candidates)
        return [
            {
                column.label: column.terms(each.restricted_to(self.needs), start)[1]
                for column in self.columns
                if (start := column.start(policies))
            }
            for each in evidence
        ]

    def of_reward(self, state: State, place: int) -> tuple[Grid, State]:
        if self.rewards == 1:
            return self, state
        policies, columns = len(self.candidates), len(self.columns)
        kept = range(place * columns, (place + 1) * columns)
        return replace(self, rewards=1), {
            **state,
            "drift": take_columns(state["drift"], policies, range(policies), kept),
            "averages": {
                average.label: (average.select if folds_blocks(average) else take_columns)(
                    state["averages"][average.label], policies, range(policies), kept
                )
                for average in self.averages
            },
        }

    def read(
        self, state: State, tail: Evidence | None, errors: Array, wanted: object = None
    ) -> Iterator[tuple[AnyAverage, AnyInterval, Reading, TrackedBounds | None]]:
        """Each average with its interval and its moments now; `state`: see `MergedEvaluator`."""
        for average, bound in zip(self.averages, self.bounds, strict=True):
            known = state["averages"][average.label]
            if folds_blocks(average):
                drift = average.drift
                rate = UNKNOWN_DRIFT_RATE if drift is None else drift.read(state["drift"][drift.name])
                yield average, bound, average.read(known, None, rate), None
                continue
            unfinished = cast(Blocks, OpenBuckets(known["open"][None]))
            reading = Reading(known["moments"], known["spread"], unfinished, details=known["details"])
            yield average, bound, reading, None


def spread_of(moments: Array, nonzero: Array) -> Array:
    """The rows that each block adds to a variance, [blocks, columns, rows]; `nonzero` [blocks, columns]."""
    rows = variance.of_moments(moments.reshape(-1, moments.shape[-1]))["sums"].reshape(*moments.shape[:2], -1)
    rows[..., NONZERO] = nonzero
    return np.asarray(rows)


def compared_of(spread: Array, signed: Array | None) -> dict[str, Array]:
    """The sums in which blocks are compared: see `Blocks.compared`."""
    return {"totals": spread[..., BOTH_TOTALS]} | ({} if signed is None else {"signed": signed})


def _widened(signed: Array) -> Array:
    """Signed sums with those of u and v apart from the pair's, which are left out where production has all events."""
    return signed if signed.shape[-1] > 2 + 4 * SIGNS else np.concatenate([signed, signed[..., 2 : 2 + 2 * SIGNS]], -1)


@dataclass(frozen=True)
class MergePlan:
    """A plan, with what follows from it for sums that can be merged."""

    plan: Plan

    @classmethod
    def of(cls, plan: Plan) -> MergePlan:
        """From a plan.

        Raises:
            ConfigError: Some of its numbers depend on the order of all events; the hint names what to take instead.
        """
        for problem, hint in _problems(plan):
            raise ConfigError(f"results of parts of a stream cannot be merged: {problem}", hint=hint)
        return cls(plan)

    @cached_property
    def fingerprint(self) -> str:
        """The BLAKE2b of the settings, as 16 hexadecimal digits."""
        settings = msgspec.json.encode([STATE_SCHEMA, self.plan.settings()], order="deterministic")
        return blake2b(settings, digest_size=8).hexdigest()

    @cached_property
    def grids(self) -> tuple[MergedGrid, ...]:
        names = [field.name for field in fields(MergedGrid)]
        return tuple(
            replace(
                MergedGrid(**{name: getattr(grid, name) for name in names}),
                averages=tuple(_AVERAGE.validate_python(_NEW.dump_python(average)) for average in grid.averages),
            )
            for grid in self.plan.grids()
        )

    @cached_property
    def kernels(self) -> Kernels:
        """The kernel of each average, by its label."""
        return kernels_of(list(self.plan.averages.values()))

    @cached_property
    def mixes(self) -> bool:
        """Whether an average mixes components."""
        return any(grid.mixing for grid in self.grids)

    @cached_property
    def adapts(self) -> bool:
        """Whether an average adapts to the drift rate."""
        return any(grid.adapting for grid in self.grids)

    @cached_property
    def width(self) -> float:
        """Seconds of a bucket of time."""
        return width_of(list(self.plan.averages.values()))

    @cached_property
    def asks(self) -> Mapping[str, Ask]:
        """The functions of the policies in code."""
        return prepared(self.plan.computed_policies)

    @cached_property
    def promotion_lifts(self) -> tuple[Pair, ...]:
        """The lifts that promotion may decide by: those of averages that fold blocks."""
        return self.plan.promotion_lifts(self.grids)

    @cached_property
    def monitor(self) -> PromotionMonitor | None:
        """Of promotion."""
        return self.plan.monitor(self.promotion_lifts)

    @cached_property
    def learns(self) -> bool:
        """Whether estimators have coefficients, or a reward model, that learn from the log."""
        estimators = self.plan.estimators.values()
        return any(bool(each.start(1)) or "prediction" in each.needs for each in estimators)

    def start_lagged(self) -> State:
        """The knowledge of estimators and the reward model before the first event.

        It comes from earlier batches alone, as the events of a batch have no order: it goes to every process that
        evaluates events of the next batch, and each result has the lesson of its events. So no reward touches the
        prediction of its own event. `estimators`: the states for each grid and reward; `predictions`: those of the
        reward model for each reward.
        """
        policies, rewards = len(self.plan.policies), range(len(self.plan.rewards))
        return {
            "estimators": [
                [{column.label: column.start(policies) for column in grid.columns} for _ in rewards]
                for grid in self.grids
            ],
            "predictions": [online.start(self.plan.reward_model) for _ in rewards],
        }

    def lagged_with(self, lagged: State, lesson: State, events: int) -> State:
        """The knowledge after some more events; `lesson`: that of these events alone."""
        items = events * (1 if self.plan.ranking is None else online.ITEMS)
        predictions = zip(lagged["predictions"], lesson["predictions"], strict=True)
        return {
            "estimators": _summed(lagged["estimators"], lesson["estimators"], fading_of(events)),
            "predictions": [online.with_taught(self.plan.reward_model, *each, items) for each in predictions],
        }

    def lagged_to_state(self, lagged: State) -> State:
        """The knowledge, or a lesson, as a plain value."""
        models = [online.to_state(self.plan.reward_model, each) for each in lagged["predictions"]]
        return {"estimators": to_plain(lagged["estimators"]), "predictions": models}

    def lagged_from_state(self, saved: State) -> State:
        """The inverse of `lagged_to_state`."""
        model = self.plan.reward_model
        models = [online.from_state(model, each, model) for each in saved["predictions"]]
        return {"estimators": from_plain(saved["estimators"]), "predictions": models}

    def lagged_to_bytes(self, lagged: State) -> bytes:
        """The knowledge, or a lesson, as msgpack."""
        known = self.lagged_to_state(lagged)
        return msgspec.msgpack.encode({"fingerprint": self.fingerprint, "lagged": known})

    def lagged_from_bytes(self, data: bytes | None) -> State:
        """The inverse of `lagged_to_bytes`; None for the state before the first event.

        Raises:
            StateError: It is of another plan.
        """
        if data is None:
            return self.start_lagged()
        state = msgspec.msgpack.decode(data)
        if state["fingerprint"] != self.fingerprint:
            raise StateError(
                f"what was learned is of plan {state['fingerprint']}, and this one is {self.fingerprint}",
                hint="use the same configuration and version of streameval everywhere",
            )
        return self.lagged_from_state(state["lagged"])

    def with_block(self, block: int) -> Plan:
        """The plan for blocks of another size: that of the arrays inside of a partial result."""
        return replace(self.plan, block=block)


def _summed(old: Any, new: Any, fading: float) -> Any:
    """Nested sums, of which the old ones have faded."""
    if isinstance(old, dict):
        return {name: _summed(part, new.get(name, {}), fading) for name, part in old.items()}
    if isinstance(old, list):
        return [_summed(*parts, fading) for parts in zip(old, new, strict=True)]
    return fading * old + new


def _problems(plan: Plan) -> Iterator[tuple[str, str]]:
    """The settings whose numbers depend on the order of all events, each with its replacement."""
    for average in plan.averages.values():
        yield from _problems_of_average(average)
        yield from _problems_of_interval(average, plan.interval(average))
    for rule in () if plan.promotion is None else plan.promotion.rules:
        mixes = any(average.mixes_components for average in plan.averages.values())
        if not rule.needs_lift or (mixes and not rule.judges_by_lift):
            hint = "take promotion: off, or paired, which shows the trust checks, and decides by a mixture"
            yield f"the rule {rule.label} judges blocks of events in order", hint
    predicted = [label for label, each in plan.estimators.items() if "prediction" in each.needs]
    learned = ", ".join(plan.learned_policies)
    others: dict[str, tuple[object, str]] = {
        f"the reward model of {', '.join(predicted)} is code": (
            predicted and plan.reward_model.is_external,
            "take reward_model: ridge or tabular",
        ),
        "a drift detector reads one value after the other": (plan.drift, "take drift: off"),
        f"{learned} learns from one event after the other": (learned, "evaluate frozen versions of it"),
        "the examination of ranks is learned in order": (
            learning.examination(plan),
            "give examination: {kind: power, eta: 1.0}",
        ),
        "the weights of a ramp are balanced in order": (plan.logging, "leave out logging"),
        "propensities are estimated from the events before": (plan.propensity, "log the propensities"),
    }
    yield from ((problem, hint) for problem, (found, hint) in others.items() if found)


def _problems_of_average(average: AnyAverage) -> Iterator[tuple[str, str]]:
    label = average.label
    if folds_blocks(average):
        return
    if average.last_events == math.inf or average.time_span is not None or average.time_half_life is not None:
        return
    if average.last_events is not None:
        yield f"{label} counts events", f"give {label} a span, such as {{kind: window, span: 10m}}"
    elif average.factor is not None:
        yield f"{label} decays by the event", f"give {label} a time, such as {{kind: decay, half_life: 30m}}"
    else:
        hint = "take mixture, cumulative, a window with a span, or a decay by time"
        yield f"{label} depends on the order of events", hint


def _problems_of_interval(average: AnyAverage, interval: AnyInterval) -> Iterator[tuple[str, str]]:
    label = average.label
    if interval.anytime:
        hint = f"take intervals: {{{label}: empirical_likelihood}}"
        yield f"the interval {interval.kind} on {label} follows single events", hint
    if interval.drift == "include" and not isinstance(average, Adaptive):
        yield f"the bound on drift on {label} compares blocks of events", "take drift: export"
