"""The interface of rooms, the features of an evaluator that a user can do without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streameval.common.arrays import Array
from streameval.events import EventBatch
from streameval.ope.core.state import Company
from streameval.ope.evaluator.plan import Plan
from streameval.ope.evidence.evidence import Evidence
from streameval.ope.evidence.largest_weights import LargestState
from streameval.ope.report import Estimate, TrustCheck


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
    """Hold the state of a room, None if the plan does without it."""

    plan: Plan
    state: Any


class Room(NamedTuple):
    """Hold what a room does, as functions of the plan and of its state, which is None if the plan does without it.

    Attributes:
        name: of its state and of its rows in a Report
        start: return the state before the first event
        resume: return the state under another plan, from the plan and the state before
        join: return the state of a plan of two, each with its state: the second one has new policies last
        fresh: return what a state that is not None is decoded by, if `start` returns None
        prepare: return events with other propensities, before they are weighed, and the state after them
        observe: return the state after whole blocks, which come in order; not called for events summed up apart
        summarise: half 1, the sums of whole blocks
        sums: the type of these sums
        fold: half 2, the state after these sums
        rows: return rows of a Report
        checks: return trust checks, given those of the policies with events
    """

    name: str
    start: Callable[[Plan], Any]
    resume: Callable[[Plan, Plan, Any], Any]
    join: Callable[[Plan, Owned, Owned, Company], Any] | None = None
    fresh: Callable[[Plan], Any] | None = None
    prepare: Callable[[Plan, Any, EventBatch], tuple[EventBatch, Any]] | None = None
    observe: Callable[[Plan, Any, Blocks], Any] | None = None
    summarise: Callable[[Plan, Any, Blocks], Any] | None = None
    sums: Any = None
    fold: Callable[[Plan, Any, Any], Any] | None = None
    rows: Callable[[Plan, Any, Present], tuple[Any, ...]] | None = None
    checks: Callable[[Plan, Any, Sequence[TrustCheck]], Iterable[TrustCheck]] | None = None
