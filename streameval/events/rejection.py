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

LONGEST_DETAIL = 500  # characters


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


def rejection(reason: str, detail: str, value: bytes) -> Rejected:
    r"""A rejected message whose detail may quote it: it is cut short, and made fit for a terminal and a log.

    >>> rejection("malformed", "\ud800: \x1b[2J", b"").detail
    '\\ud800: \\x1b[2J'
    """
    if len(detail) > LONGEST_DETAIL:
        detail = detail[:LONGEST_DETAIL] + "..."
    if not detail.isprintable():
        shown = (letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in detail)
        detail = "".join(shown)
    return Rejected(reason, detail, value)
