"""Test that numbers at the ends of ranges count, are clipped and counted, whatever rounding does to them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from streameval.events import DsjsonDecoder, EventBatch, JsonDecoder, RankingDecoder
from streameval.events.further_rewards import RewardField
from streameval.events.segments import label_of

BEST = 0.05 + 0.55 + 0.3 + 0.1  # 1.0000000000000002
SINGLE = float(np.nextafter(np.float32(1), np.float32(2)))  # the next number of float32 after 1
EVENT: dict[str, Any] = {"event_id": 1, "timestamp": 0, "action": "a", "propensity": 0.5, "reward": 1}
NEW = {"new": 0.5}


def encoded(**changes: Any) -> bytes:
    return json.dumps({name: value for name, value in (EVENT | changes).items() if value is not None}).encode()


def slots(reward: float) -> list[dict[str, Any]]:
    return [{"action": "a", "propensity": 0.5, "reward": reward}, {"action": "b", "propensity": 0.5, "reward": 0}]


@pytest.mark.parametrize("most", [BEST, SINGLE, 1.0])
def test_a_reward_beyond_its_range_by_rounding_is_the_end_of_the_range(most: float) -> None:
    decoder = JsonDecoder([], reward_range=(0, 1))
    batch = decoder.decode_batch([encoded(reward=reward) for reward in (most, 1 - most, 0.5)])
    assert (batch.rejected, batch.reward.tolist()) == ((), [1.0, 0.0, 0.5])
    assert decoder.clipped_events == (0 if most == 1 else 2)
    assert EventBatch.from_arrays(reward=[most], propensity=[1]).with_rewards_in(0, 1).reward.tolist() == [1.0]


@pytest.mark.parametrize(
    ("reward", "low", "high"),
    [(1 + 1e-9, 0, 1), (1.0000001, 0, 1), (-1e-9, 0, 1), (1e-12, -1, 0), (100.001, -1, 100), (2.0, 0, 1)],
)
def test_a_reward_beyond_its_range_by_more_than_rounding_is_rejected(reward: float, low: float, high: float) -> None:
    decoder = JsonDecoder([], reward_range=(low, high))
    (rejected,) = decoder.decode_batch([encoded(reward=reward)]).rejected
    assert (rejected.reason, decoder.clipped_events) == ("reward_range", 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"cost": BEST, "reward": None},
        {"scored": {"propensity": 0.5, "values": {"new": BEST}}, "action": None, "propensity": None, "reward": None},
        {"slots": slots(BEST), "reward": BEST, "action": None, "propensity": None},
        {"propensity": BEST},
        {"propensity": SINGLE},
        {"sampling_probability": BEST},
        {"policies": {"new": 0.1 + 0.2 - 0.3 - 1e-16}},
        {"actions": ["a", "b"], "propensities": [BEST, 1 - BEST], "propensity": None, "policies": {"new": [-1e-17, 1]}},
    ],
)
def test_every_number_with_a_range_is_clipped_and_its_event_counted_once(changes: dict[str, Any]) -> None:
    further = [RewardField("cost", "cost", 0.0, 1.0)] if "cost" in changes else []
    decoder = JsonDecoder(["new"], reward_range=(0, 1), further=further)
    batch = decoder.decode_batch([encoded(**changes), encoded(policies=NEW)])
    assert (len(batch), batch.rejected) == (2, ())
    assert decoder.clipped_events == 1
    assert np.nanmax(batch.propensity) <= 1
    assert np.nanmin(batch.probabilities) >= 0


def test_ranks_and_dropped_shares_at_their_ends_are_accepted() -> None:
    page = {"shown": ["a", "b"], "clicked": ["a"], "propensities": [BEST], "marginals": [[BEST, 0], [0.5, BEST]]}
    pages = RankingDecoder().decode_batch(
        [encoded(ranking=page, policies={"new": {"ranks": {"a": 1}, "support": BEST}})]
    )
    assert pages.rejected == ()
    assert pages.rankings is not None
    assert (pages.rankings.propensity.max(), pages.rankings.support.max()) == (1.0, 1.0)
    line = b'{"_label_cost":0,"_label_probability":1,"_label_Action":1,"a":[1],"p":[1],"pdrop":-2.3e-16}'
    assert DsjsonDecoder().decode_batch([line]).sampling_probability.tolist() == [1.0]


def test_a_whole_number_of_a_segment_may_be_computed() -> None:
    assert [label_of(value) for value in (3 * 1.1 - 0.3, 1e-17, 3.0000001, float("inf"))] == ["3", "0", "", ""]
