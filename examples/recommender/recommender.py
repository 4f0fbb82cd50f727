"""Run a small recommender that logs the events that streameval needs, with simulated users.

    python recommender.py --events 20000 > log.ndjson           a file, as fast as possible
    python recommender.py --kafka localhost:9092 --rate 200     a topic, at this rate, until it is stopped
    python recommender.py --truth                               the true values

Your own recommender needs the upper half (policies, exploration, the event). The lower half simulates users, and their
preferences change.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

Context = dict[str, str]
Policy = Callable[[Context], list[float]]

GENRES = ("news", "sport", "music")
ITEMS = {f"{genre}-{number}": (genre, quality) for genre in GENRES for number, quality in enumerate((0.6, 0.8, 1.0))}
NAMES = list(ITEMS)
POPULARITY = {"news": 1.2, "sport": 0.4, "music": 0.0}  # learned earlier, when most people preferred news
EXPLORATION = 0.2
"""Probability of a random item. No item has a propensity below EXPLORATION / 9 = 0.022."""


def softmax(scores: Sequence[float]) -> list[float]:
    """Return probabilities that grow with the scores. None of them is 0."""
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


def exploring(probabilities: list[float], share: float) -> list[float]:
    """Mix the probabilities with uniformly random items.

    Args:
        probabilities: Probability of each item.
        share: Probability of a uniformly random item.
    """
    return [(1 - share) * probability + share / len(probabilities) for probability in probabilities]


def scores() -> list[float]:
    """Return the production model's score of each item, the same for all users."""
    return [POPULARITY[genre] + quality for genre, quality in ITEMS.values()]


def production(context: Context) -> list[float]:
    """Show popular items to all users, with exploration."""
    return exploring(softmax(scores()), EXPLORATION)


def personal(context: Context) -> list[float]:
    """Show items similar to those that this user viewed last (a candidate)."""
    liked = [2.0 * (genre == context["recent"]) for genre, _ in ITEMS.values()]
    return softmax([score + like for score, like in zip(scores(), liked, strict=True)])


def bold(context: Context) -> list[float]:
    """Show popular items with little exploration (a candidate)."""
    return softmax([3 * score for score in scores()])


CANDIDATES: dict[str, Policy] = {"personal": personal, "bold": bold}


def decide(context: Context, rng: random.Random) -> dict[str, Any]:
    """Choose an item and return its event, still without a reward.

    The item is drawn from the logged list. The candidates are evaluated at the same time, for the same items and with
    the same information, because that cannot be reconstructed later.
    """
    propensities = production(context)
    return {
        "event_id": f"{rng.getrandbits(64):016x}",
        "context": context,
        "actions": NAMES,
        "features": [[*(float(genre == name) for name in GENRES), quality] for genre, quality in ITEMS.values()],
        "propensities": propensities,
        "action": rng.choices(NAMES, propensities)[0],
        "policies": {name: policy(context) for name, policy in CANDIDATES.items()},
        "logging_policy": "popular-3",
    }


# From here on: simulated users.

PERIOD = 360.0
"""Seconds of a simulated day, in which most people move from news to sport to music and back."""
LESS_NEWS = 1.0
"""How much less people like news over the day than when POPULARITY was learned."""


def tastes(moment: float) -> list[float]:
    """Return the share of people who prefer each genre at some time."""
    phase = 2 * math.pi * moment / PERIOD
    likes = [1.5 * math.cos(phase - 2 * math.pi * number / len(GENRES)) for number in range(len(GENRES))]
    return softmax([likes[0] - LESS_NEWS, *likes[1:]])


def click_rate(taste: str, item: str) -> float:
    """Return the probability of a click on the item by a person with this taste."""
    genre, quality = ITEMS[item]
    return 0.02 + (0.15 * quality if genre == taste else 0.0)


def recent_genres(taste: str) -> list[float]:
    """Return the probability that a person with this taste viewed each genre last. It is mostly the preferred genre."""
    return [0.8 if genre == taste else 0.1 for genre in GENRES]


def value(policy: Policy, moment: float) -> float:
    """Return the true value that streameval estimates: clicks per decision if this policy made them now."""
    return sum(
        share * seen * chance * click_rate(taste, item)
        for taste, share in zip(GENRES, tastes(moment), strict=True)
        for recent, seen in zip(GENRES, recent_genres(taste), strict=True)
        for item, chance in zip(NAMES, policy({"recent": recent}), strict=True)
    )


def truth() -> Iterator[str]:
    """Yield a table of true values over a simulated day: the value of each policy, and the cost of exploration."""
    policies = {
        "production": production,
        **CANDIDATES,
        "without chance": lambda _: softmax(scores()),
        "chance alone": lambda _: exploring([0.0] * len(NAMES), 1.0),
    }
    yield "minute  " + "  ".join(policies)
    for minute in range(6):
        clicks = (f"{value(policy, 60 * minute):{len(name)}.3f}" for name, policy in policies.items())
        yield f"{minute:6}  " + "  ".join(clicks)


def visit(moment: float, rng: random.Random) -> dict[str, Any]:
    """Simulate one visit: a person is shown an item, and clicks or does not."""
    taste = rng.choices(GENRES, tastes(moment))[0]
    event = decide({"recent": rng.choices(GENRES, recent_genres(taste))[0]}, rng)
    clicked = rng.random() < click_rate(taste, event["action"])
    return {**event, "timestamp": moment, "unit": f"user-{rng.randrange(10_000)}", "reward": int(clicked)}


def visits(started: float, rate: float, seed: int | None) -> Iterator[dict[str, Any]]:
    """Simulate visits without end.

    Args:
        started: Time of the first visit in epoch seconds.
        rate: Visits per second.
        seed: Seed of the visits.
    """
    rng = random.Random(seed)
    number = 0
    while True:
        yield visit(started + number / rate, rng)
        number += 1


def send(events: Iterator[dict[str, Any]], servers: str, topic: str) -> None:
    """Write each event to Kafka at its time. The user is the key, which keeps the events of a user in order."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=servers.split(","), linger_ms=20, acks="all")
    for event in events:
        time.sleep(max(0.0, event["timestamp"] - time.time()))
        producer.send(topic, json.dumps(event).encode(), key=event["unit"].encode())
    producer.flush()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, help="stop after this number of events (without --kafka 10,000)")
    parser.add_argument("--rate", type=float, default=200.0, help="visits per second, by their timestamps")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="write to a Kafka topic instead of standard output")
    parser.add_argument("--topic", default="interactions")
    parser.add_argument("--seed", type=int, help="equal seeds give equal visits (without --kafka 1)")
    parser.add_argument("--truth", action="store_true", help="print the true values, in clicks per decision")
    chosen = parser.parse_args()
    if chosen.truth:
        print("\n".join(truth()))
    elif chosen.kafka:
        events = visits(time.time(), chosen.rate, chosen.seed)
        send(events if chosen.events is None else first(events, chosen.events), chosen.kafka, chosen.topic)
    else:
        started = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        for event in first(visits(started, chosen.rate, chosen.seed or 1), chosen.events or 10_000):
            print(json.dumps(event))


def first(events: Iterator[dict[str, Any]], count: int) -> Iterator[dict[str, Any]]:
    """Return the first `count` events."""
    return (event for event, _ in zip(events, range(count), strict=False))


if __name__ == "__main__":
    main()
