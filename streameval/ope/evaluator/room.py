"""Define the interface of rooms, the features of an evaluator that a user can do without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.core.state import Company
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.rewards import Clips
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.largest_weights import LargestState
from streameval.ope.policies.coded import Faults
from streameval.ope.report import Estimate, TrustCheck


class Incomplete(NamedTuple):
    """Hold events before their log is completed with propensities, or with distributions of policies that learn.

    Args:
        prediction: [rows]. Reward that the model expected of each action before its block, None if no policy needs it.
        faults: events for which a policy has no distribution
        looks: [rows of pages]. Probability of a look at each item, NaN if it is unknown, None if no policy ranks pages.
        signal: [rows of pages]. 1 for a click and 0 without one, minus the noise, None if no policy ranks pages.
    """

    events: EventBatch
    prediction: Array | None
    faults: Faults
    looks: Array | None = None
    signal: Array | None = None


class Blocks(NamedTuple):
    """Hold whole blocks, or an unfinished one: the events as logged and as weighed, and the goal."""

    logged: EventBatch
    events: EventBatch
    goal: Evidence


class Present(NamedTuple):
    """Hold what a Report is made of.

    Args:
        tail: the unfinished block
        counts: see `evaluator.COUNTS`
        estimates: rows of the goal
    """

    tail: Blocks | None
    counts: Mapping[str, Array]
    weights: LargestState
    estimates: Sequence[Estimate]


class Owned(NamedTuple):
    """Hold the state of a room, None if the config does without it."""

    config: EvaluatorConfig
    state: Any


class Room(NamedTuple):
    """Hold what a room does, as functions of the config and of its state (None if the config does without the room).

    Attributes:
        name: name of its state and of its rows in a Report
        start: return the state before the first event
        resume: return the state under another config, from the config and the state before
        join: return the state of a config that joins two others, each with its state. The second one has new policies
            last.
        fresh: return a template that decodes a state, if `start` returns None
        derive: return events with rewards that are learned from the blocks before their own, the state after the whole
            blocks, and what clipping did by name of the reward
        ranged: return the config with the ranges that rewards have had until now
        complete: return events with what the log lacks, learned from the blocks before their own, and the state after
            the whole blocks
        prepare: return complete events with other propensities, before they are weighed, and the state after them
        observe: return the state after whole blocks in order. Not called for events that are summed up in another
            process.
        summarise: return the sums of whole blocks (half 1)
        sums: type of these sums
        fold: return the state after these sums (half 2)
        rows: return fields of a Report, by name
        checks: return trust checks, from the checks of the policies with events
        save: return the state as structs of arrays and plain values, and add policies that cannot be saved to the
            faults. By default, return the state itself.
        load: return the inverse of `save`, and add policies that cannot be loaded to the faults. The third argument is
            the setting `propensity` that the caller trusts.
        without_code: return a plain state without the code that this setting does not name
    """

    name: str
    start: Callable[[EvaluatorConfig], Any]
    resume: Callable[[EvaluatorConfig, EvaluatorConfig, Any], Any]
    join: Callable[[EvaluatorConfig, Owned, Owned, Company], Any] | None = None
    fresh: Callable[[EvaluatorConfig], Any] | None = None
    derive: Callable[[EvaluatorConfig, Any, EventBatch], tuple[EventBatch, Any, Mapping[str, list[Clips]]]] | None = (
        None
    )
    ranged: Callable[[EvaluatorConfig, Any], EvaluatorConfig] | None = None
    complete: Callable[[EvaluatorConfig, Any, Incomplete], tuple[Incomplete, Any]] | None = None
    prepare: Callable[[EvaluatorConfig, Any, EventBatch], tuple[EventBatch, Any]] | None = None
    observe: Callable[[EvaluatorConfig, Any, Blocks], Any] | None = None
    summarise: Callable[[EvaluatorConfig, Any, Blocks], Any] | None = None
    sums: Any = None
    fold: Callable[[EvaluatorConfig, Any, Any], Any] | None = None
    rows: Callable[[EvaluatorConfig, Any, Present], Mapping[str, Any]] | None = None
    checks: Callable[[EvaluatorConfig, Any, Sequence[TrustCheck]], Iterable[TrustCheck]] | None = None
    save: Callable[[EvaluatorConfig, Any, Faults], Any] | None = None
    load: Callable[[EvaluatorConfig, Any, Any, Faults], Any] | None = None
    without_code: Callable[[EvaluatorConfig, Any, Any], Any] | None = None
