"""Signs: to each unit, a user or a session, 64 random signs of its own, by which clusters of events are known again.

They are the bits of its fingerprint: the same in every process and in every part of a stream, with nothing to remember.
"""

from __future__ import annotations

import numpy as np

from streameval.common.arrays import Array, State
from streameval.events.origin import NO_IDENTITY, Identity, mix64

SIGNS = 64
"""The noise of a variance from so many signs is `sqrt(2 / 64)` of it, 9 % of a standard error: 95 % become 94.6."""
STEP = np.uint64(0x9E3779B97F4A7C15)


def start() -> State:
    """Before the first event; no unit has been seen."""
    return {"events": 0, "seen": False}


def follow(state: State, units: Identity | None, events: int, block: int) -> tuple[Array | None, State]:
    """The signs of the next events [events, 64] and the memory after them.

    `units` [events]: fingerprints, `NO_IDENTITY` for an event without a unit, which is then a unit of its own. All is 0
    before the first block in which an event has a unit; None until there is such a block.
    """
    after = {"events": state["events"] + events, "seen": state["seen"] or bool(units is not None and units.any())}
    if not after["seen"]:
        return None, after
    named = np.full(events, NO_IDENTITY) if units is None else units
    places = np.arange(state["events"], state["events"] + events, dtype=np.uint64)
    signs = signs_of(np.where(named == NO_IDENTITY, mix64(places * STEP + STEP), named))
    if not state["seen"]:
        signs[: int(np.argmax(named != NO_IDENTITY)) // block * block] = 0.0
    return signs, after


def signs_of(units: Identity) -> Array:
    """The signs of these fingerprints, [units, 64].

    >>> signs_of(np.array([0, 3], dtype=np.uint64))[:, :8]
    array([[-1., -1., -1., -1., -1., -1., -1., -1.],
           [-1., -1., -1., -1., -1., -1.,  1.,  1.]])
    """
    bits = np.unpackbits(units.astype("<u8").view(np.uint8).reshape(len(units), -1), axis=1)
    return np.asarray(bits * 2.0 - 1.0)
