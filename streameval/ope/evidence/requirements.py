"""Requirements of an estimator beyond the logged action; events without them are missing for that estimator."""

from __future__ import annotations

from collections.abc import Set
from enum import StrEnum
from typing import TypeAlias


class Requirement(StrEnum):
    """A part of an event, or the predictions of the reward model, which have their own needs.

    `SLOTS` asks for slates slot by slot; an event that is no slate counts as one with a single slot.
    """

    TARGET = "target"
    LOGGING = "logging"
    FEATURES = "features"
    PREDICTION = "prediction"
    SLOTS = "slots"


Requirements: TypeAlias = Set[Requirement]

NOTHING: Requirements = frozenset()


def field_of(need: Requirement, policy: str) -> str:
    """The field of an event that fills the need, where it is about a policy: of this one.

    >>> field_of(Requirement.TARGET, "challenger"), field_of(Requirement.LOGGING, "challenger")
    ('`policies.challenger` as a list over `actions`', '`propensities`')
    """
    named = {Requirement.LOGGING: "`propensities`", Requirement.FEATURES: "`features`"}
    return named.get(need, f"`policies.{policy}` as a list over `actions`")
