"""Weigh events of a ramp, in which several policies (arms) choose shares of the logged actions."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Literal

import numpy as np
from msgspec import Struct
from pydantic import Discriminator, Field, Tag
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, decayed_path
from streameval.common.component import strict
from streameval.events import EventBatch
from streameval.events.origin import Identity, fingerprints
from streameval.ope.evidence.evidence import event_weight
from streameval.ope.policies.logged import LOGGING

SHARES_HORIZON = 10_000.0
"""Horizon in events of the measured shares."""
MIN_ARM_EVENTS = 20.0
"""Decayed events of each arm before measured shares are used. Their error is then a quarter at most."""
SHARE_TOLERANCE = 1e-6
"""Tolerance for the sum of configured shares, which should be 1."""

Name = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, config=strict)
class Arms:
    """Name the policies that choose the logged actions, and say how their events are weighted.

    Events carry the probabilities of all arms as `policies`. With the shares s, an action is logged with the
    probability `p = sum_j s_j pi_j(a | x)`, whichever arm took it. The balanced weights `pi / p` of an arm are at most
    `1 / s`. An action that production hardly takes weighs little as soon as the arm that prefers it has a share. An
    event that lacks an arm, or has slots, keeps its logged propensity.

    Args:
        arms: the shares by name, or the names alone. The shares of names are measured from `logging_policy` over the
            last 10,000 events, and used as soon as each arm has about 20 of them.
        weights: `balanced`, or `logged` to keep the logged propensities of all events

    >>> arms = Arms({"production": 0.9, "challenger": 0.1})
    >>> policies = {"production": [0.5, 0.008], "challenger": [0.0, 1.0]}
    >>> batch = EventBatch.from_arrays(reward=[1, 0], propensity=[0.5, 0.008], policies=policies)
    >>> balanced, _ = fold(arms, start(arms), batch, block=2)
    >>> balanced.propensity
    array([0.45  , 0.1072])

    Source: Veach & Guibas, SIGGRAPH 1995, on the balance heuristic; Agarwal et al., KDD 2017, for bandit feedback.
    """

    arms: Annotated[
        Annotated[dict[Name, Share], Field(min_length=2), Tag("shares")]
        | Annotated[tuple[Name, ...], Field(min_length=2), Tag("names")],
        Discriminator(lambda value: "shares" if isinstance(value, dict) else "names"),
    ] = Field(
        description="the share of each arm by its name in the events, e.g. {production: 0.9, challenger: 0.1}, or a "
        "list of names, whose shares are measured"
    )
    weights: Literal["balanced", "logged"] = Field(
        default="balanced", description="the denominator of weights: the mixture of all arms, or the logged propensity"
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the arms."""
        return tuple(self.arms)

    @property
    def shares(self) -> Array | None:
        """Return the configured shares [arms], or None if they are measured."""
        return np.array(list(self.arms.values())) if isinstance(self.arms, dict) else None

    @cached_property
    def identities(self) -> Identity:
        """Return the fingerprints of the names [arms]."""
        return fingerprints(self.names)

    def check(self, policies: tuple[str, ...]) -> None:
        """Check the arms against the policies that are evaluated.

        Raises:
            ValueError: The shares do not sum to 1, an arm is neither production nor a candidate, or it is the log.
        """
        if self.shares is not None and abs(self.shares.sum() - 1.0) > SHARE_TOLERANCE:
            raise ValueError(f"the shares of the arms must sum to 1, found {self.shares.sum():g}")
        if LOGGING in self.names:
            raise ValueError("the arm logging is the log itself, which all arms have made: events do not name it")
        unknown = [name for name in self.names if name not in policies]
        if unknown:
            raise ValueError(
                f"the arm {unknown[0]} is neither production nor a candidate: its probabilities are not read"
            )

    def choices(self, events: EventBatch) -> Array:
        """Tell whether each arm chose the action of each event [n, arms]."""
        if events.logging_policy is None:
            return np.zeros((len(events), len(self.names)))
        return np.asarray(events.logging_policy[:, None] == self.identities, dtype=float)

    def shares_by_block(self, state: ArmState, path: Array) -> Array:
        """Return the shares for each block [blocks, arms], NaN while too few events have shown them.

        Args:
            state: the state before the blocks
            path: the decayed counts after each block [blocks, arms]
        """
        if self.shares is not None:
            return np.broadcast_to(self.shares, path.shape)
        before = np.concatenate([state.counts[None], path[:-1]])
        is_known = before.min(axis=1, keepdims=True) >= MIN_ARM_EVENTS
        return np.where(is_known, before / np.maximum(before.sum(axis=1, keepdims=True), 1.0), np.nan)

    def balanced(self, events: EventBatch, shares: Array) -> EventBatch:
        """Replace the logged propensities by the mixture of the arms, with `shares` [n, arms]."""
        arms = [events.policies.index(name) for name in self.names]
        mixed = (events.probabilities[:, arms] * shares).sum(axis=1)
        usable = mixed > 0
        if events.slates is not None:
            usable &= events.slates.sizes == 0
        balanced = replace(events, propensity=np.where(usable, mixed, events.propensity))
        sets = events.action_sets
        if sets is None:
            return balanced
        rows = (sets.probabilities[:, arms] * shares[sets.owner]).sum(axis=1)
        return replace(
            balanced, action_sets=replace(sets, propensities=np.where(usable[sets.owner], rows, sets.propensities))
        )


class ArmState(Struct, frozen=True, eq=False):
    """Hold the decayed number of events of each arm."""

    counts: Array


def start(arms: Arms) -> ArmState:
    """Start before the first event."""
    return ArmState(np.zeros(len(arms.names)))


def resume(arms: Arms, before: Arms, state: ArmState) -> ArmState:
    """Carry over what the state of the arms `before` knows about these arms."""
    counts = dict(zip(before.names, state.counts.tolist(), strict=True))
    return ArmState(np.array([counts.get(name, 0.0) for name in arms.names]))


def fold(arms: Arms, state: ArmState, events: EventBatch, block: int) -> tuple[EventBatch, ArmState]:
    """Balance the propensities of whole blocks or of an unfinished one, and return the state after them.

    Measured shares are taken from before each block.
    """
    blocks = max(1, len(events) // block)
    chosen = arms.choices(events) * event_weight(events)[:, None]
    counts = chosen.reshape(blocks, -1, len(arms.names)).sum(axis=1)
    path = decayed_path(state.counts, counts, float(np.exp(-block / SHARES_HORIZON)))
    if arms.weights == "balanced":
        shares = arms.shares_by_block(state, path)
        events = arms.balanced(events, np.repeat(shares, len(events) // blocks, axis=0))
    return events, ArmState(path[-1])
