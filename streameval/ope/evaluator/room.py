"""The interface of rooms, the features of an evaluator that a user can do without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.core.state import Company
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.largest_weights import LargestState
from streameval.ope.policies.coded import Faults
from streameval.ope.report import Estimate, TrustCheck


class Incomplete(NamedTuple):
    """Events whose log may lack propensities, and the distributions of policies that learn.

    `prediction` [rows]: the goal that the reward model expected of each action before its block; None if no policy
    needs it. `faults`: the events for which a policy has no distribution.
    """

    events: EventBatch
    prediction: Array | None
    faults: Faults


class Blocks(NamedTuple):
    """Whole blocks, or an unfinished one: the events with their logged propensities and as weighed, and the goal."""

    logged: EventBatch
    events: EventBatch
    goal: Evidence


class Present(NamedTuple):
    """What a Report is made of.

    `tail`: the unfinished block. `counts`: see `evaluator.COUNTS`. `estimates`: the rows of the goal.
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
    """Hold what a room does, as functions of the config and of its state, which is None if the config does without it.

    Attributes:
        name: of its state and of its rows in a Report
        start: return the state before the first event
        resume: return the state under another config, from the config and the state before
        join: return the state of a config of two, each with its state: the second one has new policies last
        fresh: return what a state that is not None is decoded by, if `start` returns None
        complete: return events with what the log lacks, each from the blocks before its own, and the state after the
            whole blocks
        prepare: return complete events with other propensities, before they are weighed, and the state after them
        observe: return the state after whole blocks, which come in order; not called for events summed up apart
        summarise: half 1, the sums of whole blocks
        sums: the type of these sums
        fold: half 2, the state after these sums
        rows: return fields of a Report, by name
        checks: return trust checks, given those of the policies with events
        save: return the state as structs of arrays and plain values, the state itself by default
        load: return the inverse of `save`; the last argument is the setting `propensity` that the caller trusts
        without_code: return a plain state without the code that this setting does not name
    """

    name: str
    start: Callable[[EvaluatorConfig], Any]
    resume: Callable[[EvaluatorConfig, EvaluatorConfig, Any], Any]
    join: Callable[[EvaluatorConfig, Owned, Owned, Company], Any] | None = None
    fresh: Callable[[EvaluatorConfig], Any] | None = None
    complete: Callable[[EvaluatorConfig, Any, Incomplete], tuple[Incomplete, Any]] | None = None
    prepare: Callable[[EvaluatorConfig, Any, EventBatch], tuple[EventBatch, Any]] | None = None
    observe: Callable[[EvaluatorConfig, Any, Blocks], Any] | None = None
    summarise: Callable[[EvaluatorConfig, Any, Blocks], Any] | None = None
    sums: Any = None
    fold: Callable[[EvaluatorConfig, Any, Any], Any] | None = None
    rows: Callable[[EvaluatorConfig, Any, Present], Mapping[str, Any]] | None = None
    checks: Callable[[EvaluatorConfig, Any, Sequence[TrustCheck]], Iterable[TrustCheck]] | None = None
    save: Callable[[EvaluatorConfig, Any], Any] | None = None
    load: Callable[[EvaluatorConfig, Any, Any], Any] | None = None
    without_code: Callable[[EvaluatorConfig, Any, Any], Any] | None = None
