"""Let policies learn from their own choices: replay a log by rejection, and show a policy the accepted events alone."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from streameval.common.arrays import Array, Mask, State, ratio
from streameval.events import Fault
from streameval.events.origin import mix64
from streameval.ope.policies.base import Answer, LearningPolicy, Log

LearnsFrom: TypeAlias = Annotated[
    Literal["all", "own"], Field(description="all logged events, or own: only choices that it would have made itself")
]
OwnLimit: TypeAlias = Annotated[
    float, Field(ge=1, le=1e6, description="with own: importance weights up to this one are replayed exactly")
]
SEED = 1


def start() -> State:
    """Return the state before the first event. `weight`, `square` and `earned` are sums over the accepted events."""
    return {"seed": SEED, "seen": 0, "usable": 0, "accepted": 0, "weight": 0.0, "square": 0.0, "earned": 0.0}


def fold(policy: LearningPolicy, state: State, log: Log) -> tuple[Answer, State]:
    """Return the distributions, and the state after the whole blocks, as `LearningPolicy.fold` does.

    An event with the logged action a, its propensity p, and the policy's probability `pi(a|x)` is accepted if

    `u < pi(a|x) / (c p)`, that is, with probability `min(1, pi(a|x) / (c p))`

    with the `own_limit` c and a draw u, uniform on [0, 1). The policy learns accepted events alone, and is told the
    propensity `min(pi(a|x), c p)`. The choices among accepted events are then distributed as the policy's own choices,
    except that events with weights beyond c are too few, which their weight `v = max(1, pi(a|x) / (c p))` repairs. The
    value while learning from n own choices is `sum of v r / sum of v`, over the n accepted events, which are worth
    `(sum of v)^2 / sum of v^2` choices of the policy itself.

    The draw of an event follows from its number and a seed in the state, so that it does not depend on where the stream
    is cut.

    Args:
        policy: the policy
        state: its state, and in `own` the state of the replay
        log: the events

    Source: Li, Chu, Langford & Wang, WSDM 2011, for the replay of logs of random choices; Dudik, Erhan, Langford & Li,
    UAI 2012, for acceptance by importance weights.
    """
    own, state = state["own"], {name: value for name, value in state.items() if name != "own"}
    rows, faults, unlearned = [np.empty(0)], dict[int, Fault](), list[str]()
    for first in range(0, len(log.reward), log.block):
        block = log.take(slice(first, first + log.block))
        draws = _draws(own, len(block.reward))
        is_whole = len(block.reward) == log.block
        answer, after, own_after = _replayed(policy, state, own, block, draws, is_whole)
        rows.append(answer[0])
        faults |= {first + event: fault for event, fault in answer[1].items()}
        if is_whole:
            unlearned.extend(after.pop("unlearned", ()))
            state, own = after, own_after
    extra = {"unlearned": unlearned} if policy.is_external else {}
    return (np.concatenate(rows), faults), {**state, **extra, "own": own}


def _replayed(
    policy: LearningPolicy, state: State, own: State, block: Log, draws: Array, is_whole: bool
) -> tuple[Answer, State, State]:
    """Return the distributions in a block, and both states after it.

    A policy that learns event by event is asked again after each accepted event, also in an unfinished block.
    """
    rows, faults = np.full(len(block.sets.propensities), np.nan), dict[int, Fault]()
    offsets, events, first = block.sets.offsets, len(block.reward), 0
    while first < events:
        rest = block.take(slice(first, events))
        answer, own_faults = policy.predict(state, rest)
        accepted, propensity, importance = _accepted(policy.own_limit, rest, answer, draws[first:])
        taken = events - first
        if policy.learns_each_event and accepted.any():
            taken = int(np.argmax(accepted)) + 1
        span = slice(0, taken)
        rows[offsets[first] : offsets[first + taken]] = answer[: offsets[first + taken] - offsets[first]]
        faults |= {first + event: fault for event, fault in own_faults.items() if event < taken}
        own = _counted(own, rest, accepted[span], importance[span])
        if accepted[span].any() and (is_whole or policy.learns_each_event):
            reward = np.where(accepted, rest.reward, np.nan)
            shown = rest._replace(reward=reward, propensity=propensity, weight=np.ones(len(reward))).take(span)
            state = policy.fold(state, shown._replace(block=taken))[1]
        first += taken
    return (rows, faults), dict(state), {**own, "seen": own["seen"] + events}


def _accepted(limit: float, log: Log, answer: Array, draws: Array) -> tuple[Mask, Array, Array]:
    """Return which events are accepted, the propensities that the policy is told, and the weights v [n]."""
    index, starts = log.sets.index, log.sets.offsets[:-1]
    probability = np.full(len(index), np.nan)
    known = (index >= 0) & ~np.isnan(log.reward)
    probability[known] = answer[(starts + index)[known]]
    relative = probability * log.weight / (limit * log.propensity)
    importance = np.maximum(relative, 1.0)
    return draws < relative, np.where(relative > 0, probability / importance, log.propensity), importance


def _counted(own: State, log: Log, accepted: Mask, importance: Array) -> State:
    """Return the state with these events added."""
    weight, reward = importance[accepted], log.reward[: len(accepted)][accepted]
    return {
        **own,
        "usable": own["usable"] + int(np.count_nonzero(~np.isnan(importance))),
        "accepted": own["accepted"] + len(weight),
        "weight": own["weight"] + float(weight.sum()),
        "square": own["square"] + float(weight @ weight),
        "earned": own["earned"] + float(weight @ reward),
    }


def _draws(own: State, events: int) -> Array:
    """Return the draws of the next events [n]."""
    numbers = mix64(np.arange(own["seen"] + 1, own["seen"] + 1 + events, dtype=np.uint64))
    mixed = mix64(numbers + mix64(np.array([own["seed"]], np.uint64)))
    return np.asarray((mixed >> np.uint64(11)).astype(float) * 2.0**-53)


def reported(own: State) -> dict[str, float | None]:
    """Return the fields of a Report, None if they are not known yet."""
    numbers = {
        "accepted_share": ratio(own["accepted"], own["usable"]),
        "accepted_effective": ratio(own["weight"] ** 2, own["square"]),
        "accepted_value": ratio(own["earned"], own["weight"]),
    }
    return {name: None if np.isnan(number) else float(number) for name, number in numbers.items()}
