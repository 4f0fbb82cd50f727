"""Power: how many events it takes to see a lift of so much, with what the log explores."""

from __future__ import annotations

from streameval.ope.power.exploration import Exploration, ExplorationAdvice
from streameval.ope.power.forecast import CandidatePower, EventsNeeded, Limit, LogSpan, PowerReport, TargetLift, outlook
from streameval.ope.power.sample_size import events_needed, smallest_lift

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
    "outlook",
    "smallest_lift",
]
