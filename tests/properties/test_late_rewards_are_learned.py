"""Test that a policy learns from joined rewards alike, however decisions and rewards arrive."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from streameval.config.model import Config
from streameval.ingest.pipeline import EventPipeline
from streameval.ope.evaluator.evaluator import Evaluator
from support.polling import polls, read_through

DECISIONS, REWARDS = "decisions", "clicks"
START, EVENTS, SECONDS = 1_700_000_000.0, 900, 300.0
CONFIG = Config.model_validate(
    {
        "source": {
            "topic": DECISIONS,
            "max_lateness": "4s",
            "idle_timeout": "5s",
            "rewards": {"topic": REWARDS, "window": "40s"},
        },
        "policies": {
            "candidates": {
                "apprentice": {"kind": "learned", "objective": "snips"},
                "frozen": {"kind": "versions_of", "policy": "apprentice", "every": 300},
            }
        },
        "estimators": ["ips"],
        "averages": ["cumulative"],
        "drift": "off",
    }
)


def messages() -> dict[tuple[str, int], list[tuple[float, bytes]]]:
    """Return when each message is written and its content, by partition. Clicks come up to half a minute later."""
    rng = np.random.default_rng(5)
    written: dict[tuple[str, int], list[tuple[float, bytes]]] = {(DECISIONS, 0): [], (REWARDS, 0): []}
    for number, time in enumerate(np.sort(rng.uniform(0, SECONDS, EVENTS)).tolist()):
        features = rng.normal(size=(3, 2)).round(3)
        action = int(rng.integers(3))
        event = {
            "event_id": f"e-{number}",
            "timestamp": START + time,
            "actions": ["a", "b", "c"],
            "action": "abc"[action],
        }
        event |= {"features": features.tolist(), "propensities": [1 / 3] * 3}
        written[DECISIONS, 0].append((time + rng.uniform(0, 3), msgspec.json.encode(event)))
        if rng.random() < 1 / (1 + np.exp(-2 * features[action, 0])):
            clicked = time + rng.uniform(0, 30)
            click = {"event_id": f"e-{number}", "timestamp": START + clicked, "reward": 1}
            written[REWARDS, 0].append((clicked + rng.uniform(0, 3), msgspec.json.encode(click)))
    return {partition: sorted(messages) for partition, messages in written.items()}


def weights(every: float, seed: int, restarts: bool = False) -> dict[str, bytes]:
    """Return the weights of each policy after all events.

    Args:
        every: Seconds between two polls of the reader.
    """
    form, moments = CONFIG.event_format(), np.arange(0.0, SECONDS + 100.0, every).tolist()
    polled = polls(messages(), seed, moments, START, 400)
    evaluator, often = Evaluator.from_config(CONFIG.evaluator_config()), (5, 3) if restarts else ()
    _, evaluator = read_through(lambda: EventPipeline(form, CONFIG.required_source()), evaluator, polled, often)
    evaluator.fold_pending()
    assert evaluator.accepted == EVENTS
    return {name: state["weights"]["data"] for name, state in evaluator.state()["rooms"]["learning"].items()}


@pytest.mark.parametrize(("every", "seed", "restarts"), [(7.0, 2, False), (4.3, 3, True)])
def test_weights_are_the_same_however_decisions_and_rewards_arrive(every: float, seed: int, restarts: bool) -> None:
    learned = weights(every, seed, restarts)
    assert learned.keys() == {"apprentice", "frozen-1", "frozen-2", "frozen-3"}
    assert learned == weights(5.0, 1)
