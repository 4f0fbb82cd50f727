"""Define the state of an evaluator."""

from __future__ import annotations

from typing import Any

import msgspec

from streameval.common.arrays import Array
from streameval.ope.core.past import UnitState
from streameval.ope.evaluator.drift_detection import DriftState
from streameval.ope.evaluator.grid import GridState
from streameval.ope.evaluator.rewards import ClippedSums
from streameval.ope.evidence.evidence import RecentState, SlateState
from streameval.ope.evidence.examination import ExaminationState
from streameval.ope.evidence.largest_weights import LargestState
from streameval.ope.promotion import ArrivalState, MonitorState
from streameval.ope.report import NewVersion, Transition
from streameval.ope.reward_models.online import ModelState


class EventState(msgspec.Struct, frozen=True):
    """Count events.

    Attributes:
        accepted: number of accepted events
        rejected: number of rejected events by reason
        newest: time of the newest accepted event, None if none has a time
        oldest: time of the oldest accepted event
        arrivals: decayed numbers of accepted and rejected events
        clipped: what clipping did, by reward
    """

    accepted: int = 0
    rejected: dict[str, int] = {}
    newest: float | None = None
    oldest: float | None = None
    arrivals: ArrivalState = ArrivalState()
    clipped: dict[str, ClippedSums] = {}


class EvaluatorState(msgspec.Struct, kw_only=True, eq=False):
    """Hold everything that an evaluator knows, apart from pending events. Axis 0 of arrays counts policies.

    Attributes:
        events: numbers of events
        failures: failures of policies in code: number of events and an example, by policy and reason
        counts: numbers of events of each policy, by name, see `evaluator.COUNTS`
        recent: sums behind recent means, for each reward
        slates: sums behind the weights of slates slot by slot, for each reward
        units: whether events have units
        weights: largest weights
        predictions: state of the reward model, for each reward
        examination: state of a learned examination curve, None without one
        by_rank: recent sums of clicks at each rank
        drift: state of the drift detector, None without one
        promotion: state of promotion, None without promotion
        rooms: states of rooms by name, see `evaluator.rooms`
        grids: state of each grid
        added: number of candidates that were ever added
        waiting: transitions of removed policies that were not taken yet
        copies: frozen copies that were not taken yet
    """

    events: EventState
    failures: dict[str, dict[str, tuple[int, str]]]
    counts: dict[str, Array]
    recent: list[RecentState]
    slates: list[SlateState]
    units: UnitState
    weights: LargestState
    predictions: list[ModelState]
    examination: ExaminationState | None
    by_rank: Array
    drift: DriftState | None
    promotion: MonitorState | None
    rooms: dict[str, Any]
    grids: list[GridState]
    added: int
    waiting: list[Transition]
    copies: list[NewVersion]
