"""Test that evaluators learn the truth from simulated rankings."""

from __future__ import annotations

import datetime as dt

import pytest

from streameval import Evaluator
from streameval.events import RankingDecoder
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings

MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CANDIDATES = ["candidate-1", "candidate-2", "candidate-3"]


def settings(**options: object) -> SimulatedSettings:
    return SimulatedSettings.model_validate({"events": 3_000, "rate": 0, "start_time": MIDNIGHT, **options})


@pytest.mark.parametrize(
    ("interventions", "kind", "events"), [("swaps", "swaps", 6_000), ("shuffles", "harvested", 12_000)]
)
def test_evaluators_learn_the_truth_from_simulated_rankings(interventions: str, kind: str, events: int) -> None:
    options = {"world": "rankings", "exploration": 0.5, "drift": "stationary", "interventions": interventions}
    recommender = SimulatedRecommender(settings(**options, events=events))
    batch = RankingDecoder(CANDIDATES).decode_batch(list(recommender.lines()))
    assert batch.rejected == ()
    assert len(batch) == events
    ranking = {"metric": {"kind": "dcg", "at": 6}, "examination": {"kind": kind, "ranks": 6}}
    evaluator = Evaluator(CANDIDATES, ["click_ips"], ["cumulative"], ranking=ranking, promotion=None)
    evaluator.update(batch)
    report, truth = evaluator.report(), recommender.truth(events)
    for row in report.estimates:
        assert row.lower < truth[row.policy] < row.upper
    for row in report.examination:
        assert row.value == pytest.approx(1 / row.rank, abs=0.06)
