"""Why an event is not counted: the closed list of reasons, and the rejected message with its own."""

from __future__ import annotations

import msgspec

REASONS: tuple[str, ...] = (
    "malformed",
    "missing_field",
    "propensity_range",
    "probability_range",
    "distribution_sum",
    "reward_range",
    "not_finite",
    "unknown_action",
    "inconsistent_propensity",
    "duplicate",
    "too_late",
    "too_early",
)


class Rejected(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """A message that is not an event.

    `reason` is one of `REASONS`; `detail` says what is wrong, for people, as `field: problem`;
    `value` is the message as it came, for a dead-letter topic or file (empty for a tombstone); `place` its number among
    the messages that were decoded together, from 0, by which its origin is found; `origin` its topic, partition and
    offset, where it was told at once (its `value` may be gone by then, and empty).
    """

    reason: str
    detail: str
    value: bytes
    place: int = 0
    origin: tuple[str, int, int] | None = None
