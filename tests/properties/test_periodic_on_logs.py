"""Test that the rule `periodic` sees the whole day in every form of events, and in an engine of two partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import streameval as se
from streameval.ope.evaluator.summaries import PartitionedEvaluator
from streameval.ope.report import Decision, Report
from support.promotion import LENIENT
from support.summaries import summarised

HOUR, MIDNIGHT = 3600.0, 1_795_737_600.0  # 2026-11-27 00:00
HOURS, PER_HOUR, BLOCK, RANKS = 2 * 24 + 21, 120, 20, 4
PROMOTION = se.Promotion(rule="periodic", min_events=0, trust=LENIENT)

Form = Callable[[], tuple[se.Evaluator, se.EventBatch]]


def chances(rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.float64], dict[str, Any]]:
    """Return an action of each event, its chance of a reward, and the times.

    Action 1 earns more than action 0 in the evening, and less over the day.
    """
    hour = np.repeat(np.arange(HOURS), PER_HOUR)
    gain = -0.2 + 0.8 * np.sin(2 * np.pi * (hour - 12) / 24)
    action = rng.integers(0, 2, len(hour))
    time = MIDNIGHT + hour * HOUR + np.tile(np.arange(PER_HOUR) * 30.0, HOURS)
    return action, 0.5 + np.where(action == 1, gain, -gain) / 2, {"timestamp": time}


def batch(rng: np.random.Generator, **more: Any) -> se.EventBatch:
    """Return events with two candidates. Each prefers one action."""
    action, chance, columns = chances(rng)
    evening = np.where(action == 1, 0.9, 0.1)
    return se.EventBatch.from_arrays(
        reward=(rng.random(len(action)) < chance).astype(float),
        propensity=np.full(len(action), 0.5),
        policies={"evening": evening, "day": 1.0 - evening},
        **(columns | more),
    )


def evaluator(estimator: str = "ips", **options: Any) -> se.Evaluator:
    given = {"averages": ["mixture"], "block": BLOCK, "drift": None, "promotion": PROMOTION, **options}
    return se.Evaluator(["evening", "day"], [estimator], **given)


def ratio() -> tuple[se.Evaluator, se.EventBatch]:
    """Divide by the sum of weights. Production earns .5."""
    return evaluator("snips"), batch(np.random.default_rng(1))


def components() -> tuple[se.Evaluator, se.EventBatch]:
    """Add up the parts of strata."""
    return evaluator("stratified_ips"), batch(np.random.default_rng(2))


def units() -> tuple[se.Evaluator, se.EventBatch]:
    """Let three events in a row be of one unit."""
    events = HOURS * PER_HOUR
    return evaluator(), batch(np.random.default_rng(3), unit=np.arange(events) // 3)


def segments() -> tuple[se.Evaluator, se.EventBatch]:
    """Watch two countries."""
    rng = np.random.default_rng(4)
    countries = rng.choice(["de", "fr"], HOURS * PER_HOUR).tolist()
    averages = ["mixture", "cumulative"]
    found = evaluator(averages=averages, segments={"country": {"values": ["de", "fr"]}})
    return found, batch(rng, segments={"country": countries})


def ramp() -> tuple[se.Evaluator, se.EventBatch]:
    """Let the candidate `evening` and a uniform production choose half of the events each."""
    rng = np.random.default_rng(5)
    _, _, columns = chances(rng)
    is_arm = rng.random(HOURS * PER_HOUR) < 0.5
    action = np.where(is_arm, rng.random(len(is_arm)) < 0.9, rng.random(len(is_arm)) < 0.5).astype(int)
    gain = -0.2 + 0.8 * np.sin(2 * np.pi * (columns["timestamp"] - MIDNIGHT - 12 * HOUR) / (24 * HOUR))
    evening = np.where(action == 1, 0.9, 0.1)
    events = se.EventBatch.from_arrays(
        reward=(rng.random(len(action)) < 0.5 + np.where(action == 1, gain, -gain) / 2).astype(float),
        propensity=np.where(is_arm, evening, 0.5),
        policies={"evening": evening, "day": 1.0 - evening, "even": np.full(len(action), 0.5)},
        logging_policy=np.where(is_arm, "evening", "even").tolist(),
        **columns,
    )
    return evaluator(production="even", logging={"arms": {"even": 0.5, "evening": 0.5}}), events


def ranking() -> tuple[se.Evaluator, se.EventBatch]:
    """Show four items. The last two attract in the evening, and the candidate `evening` shows them first."""
    rng = np.random.default_rng(6)
    _, _, columns = chances(rng)
    pages = HOURS * PER_HOUR
    gain = -0.2 + 0.8 * np.sin(2 * np.pi * (columns["timestamp"] - MIDNIGHT - 12 * HOUR) / (24 * HOUR))
    attracts = 0.5 + 0.3 * np.stack([-gain, -gain, gain, gain], axis=1)
    looks = 1.0 / np.arange(1, RANKS + 1)
    own = np.tile(np.arange(1.0, RANKS + 1), (pages, 1))
    shuffled = np.argsort(rng.random((pages, RANKS)), axis=1)  # what production shows at each rank
    clicks = (rng.random((pages, RANKS)) < looks) & (
        rng.random((pages, RANKS)) < np.take_along_axis(attracts, shuffled, axis=1)
    )
    rank_of = np.take_along_axis(own, shuffled, axis=1)
    ranks = {"evening": RANKS + 1.0 - rank_of, "day": rank_of}
    found = evaluator(
        "click_ips", ranking={"metric": {"kind": "dcg", "at": RANKS}, "examination": {"kind": "power", "eta": 1}}
    )
    return found, se.EventBatch.from_rankings(clicks=clicks.astype(float), ranks=ranks, **columns)


FORMS: dict[str, Form] = {form.__name__: form for form in (ratio, components, units, segments, ramp, ranking)}


def by_policy(report: Report) -> dict[str, Decision]:
    """Return the decisions of the whole day."""
    return {row.policy: row for row in report.promotion if row.rule == "periodic"}


def require_the_day(report: Report) -> None:
    rows = by_policy(report)
    assert (rows["evening"].promotable, rows["evening"].worse, rows["evening"].times) == (False, True, 0)
    assert (rows["day"].promotable, rows["day"].worse) == (True, False)
    assert rows["day"].reason.startswith("lift of a whole day +0.")


@pytest.mark.parametrize("form", FORMS)
def test_a_candidate_that_wins_in_the_evening_alone_is_worse_in_every_form(form: str) -> None:
    found, events = FORMS[form]()
    found.update(events)
    require_the_day(found.report())


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_a_log_and_a_restart_between_them_decide_as_the_whole_log(form: str) -> None:
    whole, events = FORMS[form]()
    parts, _ = FORMS[form]()
    whole.update(events)
    for first in range(0, len(events), 1_750):
        parts = se.Evaluator.from_state(parts.state())
        parts.update(events[first : first + 1_750])
        parts.report()
    assert parts.report().promotion == whole.report().promotion


@pytest.mark.parametrize("form", ["ratio", "components", "ramp", "ranking"])
def test_an_engine_with_two_partitions_decides_about_the_whole_day(form: str) -> None:
    one, events = FORMS[form]()
    one.update(events)
    several, starts = PartitionedEvaluator.from_config(one.config), [0, 0]
    for first in range(0, len(events), 2_000):
        some = events[first : first + 2_000]
        parts = [some.take(np.arange(len(some)) % 2 == number) for number in (0, 1)]
        several.fold([summarised(several, part, starts[number], number) for number, part in enumerate(parts)])
        starts = [start + len(part) for start, part in zip(starts, parts, strict=True)]
    require_the_day(several.report())
    for policy, row in by_policy(several.report()).items():
        assert row.lift == pytest.approx(by_policy(one.report())[policy].lift, abs=0.02)
