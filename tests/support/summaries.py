"""Summarise ranges of many kinds of logs, for evaluators of several processes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

import streameval as se
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.summaries import PartitionedEvaluator, Summariser, Summary
from streameval.ope.report import Report
from support import recorded_logs as logs
from support.recorded_cases import EVERY_AVERAGE, FAMILY, PLAIN, REWARDS, SEGMENTS

EVENTS = 1_030
RULES = se.Promotion(("paired", "sea", "bsea"), min_events=500, hold=2, trust=se.Trust(stale_after=None))


def batch(columns: logs.Columns) -> se.EventBatch:
    return se.EventBatch.from_arrays(**columns)


def case(candidates: list[str], estimators: list[Any], **options: Any) -> EvaluatorConfig:
    actual = {"averages": EVERY_AVERAGE, "promotion": RULES, **options}
    return se.Evaluator(candidates, estimators, **actual).config


CASES: dict[str, tuple[EvaluatorConfig, se.EventBatch]] = {
    "defaults": (se.Evaluator(["now", "new"], reward_range=(-0.125, 1.125)).config, batch(logs.plain(1, EVENTS))),
    "defaults of full events": (se.Evaluator(["good", "partial"]).config, batch(logs.described(2, EVENTS))),
    "plain": (case(["now", "new"], PLAIN, reward_range=(-0.125, 1.125)), batch(logs.plain(3, EVENTS))),
    "family": (case(["good", "partial"], [*PLAIN, *FAMILY]), batch(logs.described(4, EVENTS))),
    "late units and named production": (
        case(["good"], [*PLAIN, *FAMILY], production="partial"),
        batch(logs.with_units(logs.with_gaps(logs.described(5, EVENTS), {"partial": (300, 600)}), 6, first=450)),
    ),
    "rewards": (
        case(["new", "other"], PLAIN, production="now", rewards=REWARDS),
        batch(logs.with_rewards(logs.with_gaps(logs.plain(7, EVENTS), {"now": (500, 800)}), 8)),
    ),
    "clipped and derived rewards": (
        case(
            ["new", "other"],
            PLAIN,
            production="now",
            rewards={
                "score": {"of": {"revenue": 0.5, "stay": -1}},
                "revenue": {"max": 20, "above": "clip", "quantiles": [0.5, 0.9], "per_unit": "1m"},
                "stay": {"above": 0.5},
            },
        ),
        batch(logs.with_units(logs.with_rewards(logs.plain(17, EVENTS), 18), 19)),
    ),
    "ratios that decide": (
        case(
            ["new", "other"],
            PLAIN,
            production="now",
            rewards={
                "per_stay": {"of": ["revenue", "stay"]},
                "revenue": {"max": 20, "above": "clip"},
                "stay": {},
                "per_revenue": {"of": ["stay", "revenue"], "guardrail": {"max_loss": 1}},
            },
            promotion=se.Promotion("paired", min_events=500, hold=2),
        ),
        batch(logs.with_rewards(logs.plain(19, EVENTS), 20)),
    ),
    "segments": (
        case(
            ["now", "new"], [se.SNIPS(), se.IPS(), se.StratifiedIPS()], reward_range=(-0.125, 1.125), segments=SEGMENTS
        ),
        batch(logs.with_segments(logs.plain(9, EVENTS), 10)),
    ),
    "slates": (
        case(["tilted", "any"], [se.PseudoInverse(), se.DRPI(), se.IPS()], reward_model=se.Tabular()),
        batch(logs.slots(11, EVENTS)),
    ),
    "slots": (
        case(["tilted", "any"], [se.IIPS(), se.RIPS(), se.IPS()]),
        batch(logs.with_units(logs.rewarded_slots(12, EVENTS), 13)),
    ),
    "clicks": (
        case(
            ["new", "other"],
            [se.ClickIPS(), se.ClickSNIPS(), se.ClickCAB(cap=2), se.ClickSwitch(cap="auto"), se.ClickInterpol()],
            ranking={"metric": "dcg", "examination": {"kind": "power", "noise": [0.5, 0.25]}},
        ),
        se.EventBatch.from_rankings(**logs.pages(14, EVENTS), rank_probabilities=np.full((EVENTS, 5, 5), 0.2)),
    ),
    "ramp": (
        case(["new", "other"], PLAIN, production="now", logging={"arms": {"now": 0.8, "new": 0.2}}),
        batch(logs.ramp(15, EVENTS)),
    ),
    "code": (
        se.Evaluator({"even": "uniform", "partial": se.Logged()}, [se.SNIPS()], ["cumulative"], drift=None).config,
        batch(logs.described(16, EVENTS)),
    ),
}


def summarised(
    evaluator: PartitionedEvaluator, events: se.EventBatch, start: int, partition: int = 0, pieces: int = 1
) -> Summary:
    """Summarise a range with one event at each offset, and return the summary decoded from bytes."""
    summariser = Summariser(evaluator.config, partition, start, evaluator.knowledge(), evaluator.rests().get(partition))
    for piece in np.array_split(np.arange(len(events)), pieces):
        summariser.update(events[piece[0] : piece[-1] + 1])
    return Summary.from_bytes(summariser.summary(start + len(events)).to_bytes())


def reported(report: Report) -> Any:
    """Return the fields of a Report that an engine knows: no calibration, and no check that compares propensities."""
    trust = [check for check in report.trust if check.check not in ("propensities", "calibration")]
    return msgspec.to_builtins(msgspec.structs.replace(report, calibration=(), trust=tuple(trust)))


def one_process(config: EvaluatorConfig, events: se.EventBatch) -> Any:
    evaluator = se.Evaluator.from_config(config)
    evaluator.update(events)
    return reported(evaluator.report(now=logs.START))


def differences(one: Any, other: Any, tolerance: float, path: str = "") -> Iterator[str]:
    if isinstance(one, dict | list | tuple) and type(one) is type(other) and len(one) == len(other):
        for key in one if isinstance(one, dict) else range(len(one)):
            yield from differences(one[key], other[key], tolerance, f"{path}.{key}")
    elif isinstance(one, float) and isinstance(other, float) and one == pytest.approx(other, rel=tolerance, abs=1e-12):
        return
    elif one != other and not isinstance(one, str):
        yield f"{path}: {one}, and {other}"
