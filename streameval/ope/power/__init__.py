"""Statistical power: the events needed to detect a lift, given the exploration in the log."""

from __future__ import annotations

from streameval.ope.power.exploration import Exploration, ExplorationAdvice
from streameval.ope.power.forecast import (
    CandidatePower,
    EventsNeeded,
    Limit,
    LogSpan,
    PowerReport,
    TargetLift,
    events_needed,
    forecast_power,
    smallest_lift,
)

__all__ = [
    "Exploration",
    "Limit",
    "EventsNeeded",
    "PowerReport",
    "CandidatePower",
    "ExplorationAdvice",
    "LogSpan",
    "TargetLift",
    "events_needed",
    "forecast_power",
    "smallest_lift",
]
