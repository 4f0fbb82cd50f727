"""Answer requests for the estimates and decisions of the last hours."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

import msgspec
import numpy as np

from streameval.events.tables import to_seconds
from streameval.ope.report import State
from streameval.service.status import History

__all__ = ["HistoryAnswer", "answer"]

ZONE = re.compile(r"(:\d\d(?:\.\d+)?) (?=\d\d(:?\d\d)?$)")
"""The space before a zone: a plus that the client has not encoded, as in `?from=2026-01-31T12:00:00+01:00`."""


class EstimateHistory(msgspec.Struct, frozen=True):
    """Hold one estimate over time. Unknown numbers are null.

    Args:
        policy: The policy.
        estimator: The estimator.
        average: The average.
        value: Estimated mean reward per event.
        lower: Lower bound of the value.
        upper: Upper bound of the value.
        lift: Estimated lift over production.
        lift_lower: Lower bound of the lift.
        lift_upper: Upper bound of the lift.
    """

    policy: str
    estimator: str
    average: str
    value: list[float | None]
    lower: list[float | None]
    upper: list[float | None]
    lift: list[float | None]
    lift_lower: list[float | None]
    lift_upper: list[float | None]


class DecisionHistory(msgspec.Struct, frozen=True):
    """Hold the decision about one candidate over time.

    Args:
        policy: The candidate.
        rule: The promotion rule.
        state: State of the candidate, null if there was no decision.
    """

    policy: str
    rule: str
    state: list[State | None]


class HistoryAnswer(msgspec.Struct, frozen=True):
    """Hold the estimates and decisions of the last hours, with one entry of each list for each time.

    Args:
        at: Times in epoch seconds, rising.
        estimates: Estimates of the reward that decides.
        decisions: Decisions.
    """

    at: list[float]
    estimates: list[EstimateHistory]
    decisions: list[DecisionHistory]


def answer(history: History, query: Mapping[str, str], policies: Collection[str]) -> HistoryAnswer:
    """Return the history between two moments.

    Args:
        history: The whole history.
        query: `from` and `to`, in epoch seconds or as ISO 8601.
        policies: Policies to return, all if empty.

    Raises:
        ValueError: A moment is neither a number nor ISO 8601.
    """
    part = history.since(_moment(query, "from", -math.inf), _moment(query, "to", math.inf))
    states = [{(policy, rule): state for policy, rule, state in point.decisions} for point in part.points]
    labels = dict.fromkeys(label for point in part.points for label in point.rows)
    rules = dict.fromkeys(rule for decided in states for rule in decided)
    return HistoryAnswer(
        [point.at for point in part.points],
        [
            EstimateHistory(*label, *np.hstack([part.series(label), part.series(label, is_lift=True)]).T.tolist())
            for label in labels
            if not policies or label[0] in policies
        ],
        [
            DecisionHistory(*rule, [decided.get(rule) for decided in states])
            for rule in rules
            if not policies or rule[0] in policies
        ],
    )


def _moment(query: Mapping[str, str], name: str, default: float) -> float:
    text = query.get(name)
    try:
        moment = default if text is None else float(to_seconds(ZONE.sub(r"\1+", text)))
    except ValueError:
        moment = math.nan
    if math.isnan(moment):
        raise ValueError(f"{name}: expected epoch seconds, or a time such as 2026-01-31T12:00:00Z; found {text!r}")
    return moment
