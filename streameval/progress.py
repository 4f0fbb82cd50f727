"""How far an evaluator has come: all that it remembers, as one value that another evaluator can go on from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streameval.arrays import State
from streameval.drift import DriftWatch
from streameval.events import EventBatch
from streameval.promotion import Arrivals


@dataclass(frozen=True)
class Progress:
    """What an evaluator remembers, as it lies in memory: whose evaluator folds more events into it owns the arrays.

    `described`: whether events tell all about their actions; None before the first of them. `pending`: events that do
    not fill a block. `arrivals`: what was rejected lately. `failures`: by policy and reason, how often its code failed, with an example. `counts`: of each
    policy. `learned`: of the log, of slates and of units, and the reward model. `decided`: the state of the contest.
    `grids`: the state of each grid of the plan.
    """

    accepted: int
    rejected: Mapping[str, int]
    arrivals: Arrivals
    newest: float | None
    described: bool | None
    pending: Sequence[EventBatch]
    failures: Mapping[str, Mapping[str, tuple[int, str]]]
    counts: State
    learned: State
    watch: DriftWatch | None
    decided: State | None
    grids: Sequence[State]
