"""Balance the weights of the arms of a ramp, and check whether each arm has its share of the events."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from msgspec import Struct, structs

from streameval.common.arrays import Array, ratio
from streameval.common.text import counted
from streameval.events import EventBatch
from streameval.ope.core import past
from streameval.ope.core.past import RatioPast
from streameval.ope.core.summary import BlockSums
from streameval.ope.estimators import Terms
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.room import Blocks, Room
from streameval.ope.evidence import arms
from streameval.ope.evidence.arms import ArmState
from streameval.ope.evidence.evidence import Evidence, event_weight
from streameval.ope.report import TrustCheck


class RampState(Struct, eq=False):
    """Hold the decayed number of events of each arm, and sums of the number of events of each arm."""

    balance: ArmState
    drawn: RatioPast


def start(config: EvaluatorConfig) -> RampState | None:
    """Start before the first event, with None without a ramp."""
    if config.logging is None:
        return None
    return RampState(arms.start(config.logging), past.start_ratio(len(config.logging.names), has_denominator=False))


def resume(config: EvaluatorConfig, before: EvaluatorConfig, state: RampState | None) -> RampState | None:
    """Return the state of the config `before` under another one. Arms or shares that differ are counted from zero."""
    if config.logging is None or before.logging is None or state is None:
        return start(config)
    is_same = (config.logging.names, config.logging.arms) == (before.logging.names, before.logging.arms)
    kept = state.drawn if is_same else past.start_ratio(len(config.logging.names), has_denominator=False)
    return RampState(arms.resume(config.logging, before.logging, state.balance), kept)


def prepare(config: EvaluatorConfig, state: RampState, events: EventBatch) -> tuple[EventBatch, RampState]:
    """Return whole blocks with propensities of all arms together, and the state after them except for `drawn`."""
    assert config.logging is not None
    weighed, balance = arms.fold(config.logging, state.balance, events, config.block)
    return weighed, structs.replace(state, balance=balance)


def summarise(config: EvaluatorConfig, _state: RampState, blocks: Blocks) -> BlockSums | None:
    """Return the sums of whole blocks (half 1)."""
    if config.logging is None or config.logging.shares is None:
        return None
    drawn = np.asfortranarray(config.logging.choices(blocks.logged))
    ones = np.ones_like(drawn)
    weight = event_weight(blocks.logged)[:, None]
    named = np.where(drawn.any(axis=1, keepdims=True), weight * ones, 0.0)
    evidence = replace(Evidence.from_numbers(ones, np.ones(len(drawn)), config.block, named), signs=blocks.goal.signs)
    return past.sum_ratio(evidence, Terms(drawn))


def fold(_config: EvaluatorConfig, state: RampState, sums: BlockSums) -> RampState:
    """Return the state after whole blocks (half 2)."""
    past.fold_ratio(state.drawn, sums, has_denominator=False)
    return state


def checks(config: EvaluatorConfig, state: RampState, _policy_checks: Sequence[TrustCheck]) -> Iterator[TrustCheck]:
    """Yield the trust check `arm_shares` of all policies."""
    if config.logging is None or config.logging.shares is None or config.promotion is None:
        return
    reading, sums = past.read_ratio(state.drawn, has_denominator=False)
    # as many events of weight 1 as have the variance of the downsampled ones
    counts = ratio(sums[:, 1] * sums[:, 0], sums[:, 6])
    if sums[:, 1].any():
        effect = float(np.nanmax(reading["design_effect"], initial=1.0))
        error = config.promotion.trust.error
        ok, finding = shares_check(config.logging.names, config.logging.shares, counts, effect, error)
        yield from (TrustCheck(policy, "arm_shares", ok, finding) for policy in config.policies)


def shares_check(names: Sequence[str], shares: Array, counts: Array, effect: float, error: float) -> tuple[bool, str]:
    """Check whether the arms have their configured shares of the events (a sample ratio mismatch), and say what was
    found.

    The wealth of a bet against the shares is the ratio of a Dirichlet mixture of multinomial likelihoods to the
    likelihood of the shares. It ever exceeds `1 / error` with at most this probability. Its logarithm is divided by the
    design effect, for users rather than events that are assigned.

    Args:
        names: arms
        shares: [arms]. Configured shares.
        counts: [arms]. Numbers of events.
        effect: variance of `counts` over their variance for independent draws
        error: probability of a false alarm, ever

    >>> shares_check(["a", "b"], np.array([0.9, 0.1]), np.array([9500.0, 500.0]), effect=1.0, error=0.01)
    (False, 'the arms have shares of 95.0 % (a) and 5.0 % (b) of 10,000 events, configured 90.0 % and 10.0 %')

    Source: Lindon & Malek, Anytime-valid inference for multinomial count data, NeurIPS 2022.
    """
    total, prior = float(counts.sum()), len(shares) * shares
    wealth = math.lgamma(prior.sum()) - math.lgamma(prior.sum() + total)
    wealth += sum(math.lgamma(a + n) - math.lgamma(a) for a, n in zip(prior.tolist(), counts.tolist(), strict=True))
    wealth -= float(counts @ np.log(shares))
    ok = wealth / effect < math.log(1 / error)
    seen = " and ".join(f"{100 * share:.1f} % ({name})" for share, name in zip(counts / total, names, strict=True))
    events = counted(total, "event")
    if ok:
        return True, f"the arms have shares of {seen} of {events}"
    wanted = " and ".join(f"{100 * share:.1f} %" for share in shares)
    return False, f"the arms have shares of {seen} of {events}, configured {wanted}"


ROOM = Room("ramp", start, resume, prepare=prepare, summarise=summarise, sums=BlockSums, fold=fold, checks=checks)
