"""The state of an evaluator."""

from __future__ import annotations

from typing import Any

import msgspec

from streameval.common.arrays import Array
from streameval.ope.core.past import UnitState
from streameval.ope.evaluator.drift_detection import DriftState
from streameval.ope.evaluator.grid import GridState
from streameval.ope.evidence.evidence import RecentState, SlateState
from streameval.ope.evidence.examination import ExaminationState
from streameval.ope.evidence.largest_weights import LargestState
from streameval.ope.promotion import ArrivalState, MonitorState
from streameval.ope.report import NewVersion, Transition
from streameval.ope.reward_models.online import ModelState


class EventState(msgspec.Struct, frozen=True):
    """Hold the numbers of events.

    Attributes:
        accepted: the number of accepted events
        rejected: the number of rejected events by reason
        newest: the time of the newest accepted event, None if none has a time
        oldest: the time of the oldest one
        arrivals: the decayed numbers of accepted and rejected events
    """

    accepted: int = 0
    rejected: dict[str, int] = {}
    newest: float | None = None
    oldest: float | None = None
    arrivals: ArrivalState = ArrivalState()


class EvaluatorState(msgspec.Struct, kw_only=True, eq=False):
    """Hold everything that an evaluator knows, apart from pending events; axis 0 of arrays counts policies.

    Attributes:
        events: the numbers of events
        failures: of policies in code: by policy and reason, the number of events and an example
        counts: the numbers of events of each policy, by name: see `evaluator.COUNTS`
        recent: the sums behind recent means, for each reward
        slates: what is behind the weights of slates slot by slot, for each reward
        units: whether events have units
        weights: the largest weights
        predictions: the state of the reward model, for each reward
        examination: what a learned curve comes from, None without one
        by_rank: recent sums of clicks at each rank
        drift: None without a drift detector
        promotion: None without promotion
        rooms: the states of rooms by name, see `evaluator.rooms`
        grids: the state of each grid
        added: the number of candidates that were ever added
        waiting: transitions of policies that are gone, until they are taken
        copies: frozen copies that were made, until they are taken
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
