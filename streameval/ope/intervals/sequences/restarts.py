"""The stretch of the stream that a sequence is about, and its share of the error probability."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from streameval.common.arrays import Array, State

LEVELS = 24
"""Lengths among which the error is shared: epochs of 1, 2, 4, .. 2^23 blocks."""


@dataclass(frozen=True)
class SinceStart:
    """All events since the start, by one sequence that has the whole error."""

    def start(self, nothing: Array) -> State:
        """The state before the first block; `nothing`: sums of no observations."""
        return {"all": nothing}

    def parts(self, state: State, blocks: int) -> Iterator[int]:
        """The lengths of the parts that the next `blocks` fall into, so that no sequence ends within a part."""
        yield blocks

    def add(self, state: State, sums: Array, blocks: int) -> State:
        """The state after a part."""
        return {"all": state["all"] + sums}

    def sums(self, state: State) -> Array:
        """The sums over the stretch."""
        return np.asarray(state["all"])

    def share(self, state: State) -> float:
        """The share of the error of the sequence that is about this stretch."""
        return 1.0


@dataclass(frozen=True)
class Restarted:
    """At most the last `2 tau` events and, once there are as many, more than the last `tau / 2`, at every time.

    A sequence that runs since the start hardly moves with the present. So at each level l = 0, 1, .. `LEVELS - 1` a new
    sequence starts every `2^l` blocks and runs for two such epochs; the k-th of its level gets the share
    `1 / (LEVELS k (k + 1))` of the error. The chance that any sequence of any level ever misses the mean of its events
    is at most the sum of these shares, which is the error (union bound; the sum over k of 1 / (k (k + 1)) is 1).
    So all of them may be looked at at all times. At any time the older of the two that run at level l has seen
    between `2^l` and `2^(l+1)` blocks: for any `tau` the level with `2^l block <= tau < 2^(l+1) block` holds a
    sequence over at most the last `2 tau` events. Only the level of `tau` is kept.

    The price is width: after k restarts the logarithm of 1 / error has grown by about `2 ln k + 3.2`.

    >>> recent = Restarted(tau=250, block=100)
    >>> recent.epoch, list(recent.parts({"blocks": 3}, 6))  # 200 events; 3 blocks are done
    (2, [1, 2, 2, 1])
    """

    tau: int
    block: int

    def __post_init__(self) -> None:
        if self.tau < self.block:
            raise ValueError(
                f"a sequence over the last {self.tau} events cannot restart within a block of {self.block}"
            )

    @property
    def epoch(self) -> int:
        """Blocks between two restarts."""
        return 1 << min((self.tau // self.block).bit_length(), LEVELS) - 1

    def start(self, nothing: Array) -> State:
        return {"blocks": 0, "older": nothing, "younger": nothing}

    def parts(self, state: State, blocks: int) -> Iterator[int]:
        done, left = state["blocks"] % self.epoch, blocks
        while left:
            part = min(left, self.epoch - done)
            yield part
            done, left = 0, left - part

    def add(self, state: State, sums: Array, blocks: int) -> State:
        done = state["blocks"] + blocks
        older, younger = state["older"] + sums, state["younger"] + sums
        if done % self.epoch == 0:
            older, younger = older if done == self.epoch else younger, np.zeros_like(younger)
        return {"blocks": done, "older": older, "younger": younger}

    def sums(self, state: State) -> Array:
        return np.asarray(state["older"])

    def share(self, state: State) -> float:
        restart = max(1, int(state["blocks"]) // self.epoch)
        return 1 / (LEVELS * restart * (restart + 1))


RestartSchedule: TypeAlias = SinceStart | Restarted


def error_shares(error: float, ranks: Sequence[int], family_size: int | None = None) -> Array:
    """The error probability of each candidate; `ranks`: its number in the order of all that were ever added, from 1.

    The i-th gets `6 error / (pi i)^2`. These add up to `error` over any number of candidates, so that one more costs
    the others nothing. With a `family_size`, each gets an equal share of so many.

    >>> error_shares(0.05, [1, 2, 3]).round(4), error_shares(0.05, [1, 2, 3], family_size=10)
    (array([0.0304, 0.0076, 0.0034]), array([0.005, 0.005, 0.005]))
    """
    if family_size is not None:
        return np.full(len(ranks), error / family_size)
    return 6.0 * error / (math.pi * np.asarray(ranks, dtype=float)) ** 2
