"""Define Hypothesis strategies of events as people write them, and of messages damaged on the way."""

from __future__ import annotations

import json
import math
import os
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

POLICIES = ("a", "b", "c d")
OVERFLOW = "@1e999"  # a number that JSON can say and a float cannot hold

EVERY_EXAMPLE = os.environ.get("HYPOTHESIS_PROFILE") in ("every", "random")
FEWEST, SHARE = (3, 9) if os.environ.get("HYPOTHESIS_PROFILE") == "quick" else (8, 4)


def examples(number: int) -> settings:
    """Return settings with this many examples in `make test-all`, a quarter in `make test`, a ninth in `make quick`."""
    return settings(max_examples=number if EVERY_EXAMPLE else max(FEWEST, number // SHARE))


identifiers = st.text(max_size=5) | st.integers(-(2**70), 2**70)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)
probabilities = st.floats(0.0, 1.0)
propensities = st.floats(1e-9, 1.0)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.floats(-1e11, 1e11) | st.datetimes(timezones=zones).map(datetime.isoformat)


def encode(event: Any) -> bytes:
    """Return an event as its message, with NaN and infinity as Python writes them."""
    return json.dumps(event).replace(f'"{OVERFLOW}"', "1e999").encode("utf-8", "surrogatepass")


@st.composite
def distributions(draw: st.DrawFn, size: int, least: int = 0, most: int = 100) -> list[float]:
    """Draw probabilities in proportion to integers. They sum to 1 up to rounding.

    Args:
        draw: Function of Hypothesis.
        size: Number of actions.
        least: Smallest integer. With 0, some probabilities are 0.
        most: Largest integer.
    """
    shares = draw(st.lists(st.integers(least, most), min_size=size, max_size=size).filter(any))
    return [share / sum(shares) for share in shares]


@st.composite
def factored_slates(draw: st.DrawFn) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Draw the distributions of the logging policy and of a target in each slot, both [slots, actions]."""
    slots, actions = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    logging, target = distributions(actions, 1, 20), distributions(actions, 0, 20)
    return np.array([draw(logging) for _ in range(slots)]), np.array([draw(target) for _ in range(slots)])


@st.composite
def compact_events(draw: st.DrawFn) -> dict[str, Any]:
    """Draw events with data about the logged action alone."""
    event = {
        "event_id": draw(identifiers),
        "timestamp": draw(moments),
        "action": draw(identifiers),
        "propensity": draw(propensities),
        "reward": draw(numbers | st.booleans()),
    }
    cells = probabilities | st.none() | st.text(max_size=3) | st.booleans()
    optional = {
        "policies": st.none() | st.dictionaries(st.sampled_from(POLICIES), cells),
        "sampling_probability": st.none() | propensities,
        "unit": st.none() | identifiers,
        "context": st.none() | st.text(max_size=3) | st.dictionaries(st.text(max_size=3), numbers, max_size=2),
        "of no interest": st.none() | st.lists(st.text(max_size=3), max_size=2),
    }
    return event | draw(st.fixed_dictionaries({}, optional=optional))


@st.composite
def action_set_events(draw: st.DrawFn) -> dict[str, Any]:
    """Draw events with all available actions and distributions over them."""
    event = {field: value for field, value in draw(compact_events()).items() if field != "policies"}
    actions = draw(st.lists(identifiers, min_size=1, max_size=4, unique=True))
    size = len(actions)
    logged = draw(distributions(size))
    chosen = draw(st.sampled_from([index for index, share in enumerate(logged) if share > 0]))
    logged_only = st.just(1.0) if size == 1 else probabilities
    width = draw(st.integers(0, 3))
    optional = {
        "policies": st.dictionaries(st.sampled_from(POLICIES), distributions(size) | logged_only | st.none()),
        "features": st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=size, max_size=size),
    }
    event |= {"actions": actions, "action": actions[chosen], "propensities": logged, "propensity": logged[chosen]}
    if draw(st.booleans()):
        del event[draw(st.sampled_from(["propensity", "propensities"]))]
    return event | draw(st.fixed_dictionaries({}, optional=optional))


events = compact_events() | action_set_events()

odd_values = st.sampled_from(
    [
        None,
        True,
        "x",
        "0.5",
        -1,
        0,
        1.0000005,
        2,
        10**400,
        OVERFLOW,
        math.nan,
        -math.inf,
        [],
        [0.5],
        [1, None],
        {},
        [[1]],
    ]
)


@st.composite
def damaged_events(draw: st.DrawFn) -> dict[str, Any]:
    """Draw events with some fields, or cells of policies, that are odd or missing."""
    event = draw(events)
    for field in draw(st.lists(st.sampled_from([*event, "actions", "features", "propensities"]), max_size=2)):
        event[field] = draw(odd_values)
    for field in draw(st.lists(st.sampled_from(sorted(event)), max_size=1)):
        del event[field]
    if isinstance(event.get("policies"), dict):
        event["policies"] |= draw(st.dictionaries(st.sampled_from(POLICIES), odd_values, max_size=1))
    return event


@st.composite
def torn_messages(draw: st.DrawFn) -> bytes:
    """Draw messages cut off, or with some foreign bytes in them."""
    message = encode(draw(events))
    start, stop = sorted((draw(st.integers(0, len(message))), draw(st.integers(0, len(message)))))
    return message[:start] + draw(st.binary(max_size=3)) + draw(st.sampled_from([message[start:], message[stop:]]))


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)

good_messages = events.map(encode)
messages = (
    good_messages
    | damaged_events().map(encode)
    | torn_messages()
    | json_values.map(encode)
    | st.binary(max_size=30)
    | st.none()
)
