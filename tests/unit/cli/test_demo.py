"""Follow the worlds of the demonstration in event time, without waiting for their days."""

from datetime import UTC, datetime

import numpy as np
import pytest

from streameval.cli import demo
from streameval.ingest.simulated import SimulatedRecommender

WINNER, LOSER = "for-rock-fans", "for-metal-fans"
DAY = 120  # seconds
RATE = 200  # events per second, a tenth of the demonstration's


@pytest.mark.parametrize(("world", "days"), [("actions", 1.1), ("rankings", 1.6)])  # a curve is learned before
def test_after_one_day_a_winner_is_promotable_and_a_loser_is_not(world: demo.DemoWorld, days: float) -> None:
    start = datetime(2026, 1, 1, 0, 0, 47, tzinfo=UTC)
    settings = demo.settings_of(world, events=int(days * DAY * RATE), rate=RATE, seed=1, start_time=start)
    recommender = SimulatedRecommender(settings)
    decoder, evaluator = demo.decoder_and_evaluator(settings.world)
    lines = list(recommender.lines())
    early = DAY * RATE * 9 // 10

    evaluator.update(decoder.decode_batch(lines[:early]))
    reasons = {decision.policy: decision.reason for decision in evaluator.report().promotion if decision.decides}
    assert all(
        reason.startswith("the lift of a whole period of 2m is known at 2026-01-01") for reason in reasons.values()
    )
    evaluator.update(decoder.decode_batch(lines[early:]))
    decisions = {decision.policy: decision for decision in evaluator.report().promotion if decision.decides}
    assert decisions[WINNER].promotable
    assert not decisions[LOSER].promotable
    truths = [recommender.truth(events) for events in range(100, DAY * RATE + 1, 100)]
    lift = {policy: np.mean([truth[policy] - truth["logging"] for truth in truths]) for policy in demo.CANDIDATES}
    assert lift[LOSER] < 0 < lift[WINNER]
    assert decisions[WINNER].lower is not None
    assert decisions[WINNER].lower < lift[WINNER]
