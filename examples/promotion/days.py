"""Follow candidates in worlds with days and weeks, event by event, with rules for the days to come side by side.

A loser has a cycle of its own: it wins in the evening and loses over the day. A winner is better over the day. Beside
them there are streams of thirty days in which no candidate differs from production. The unit of a lift is the standard
error of its mean over one usual day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from aa_streams import tilted
from numpy.typing import NDArray
from scipy.stats import t as student

from streameval import Evaluator, EventBatch, Mixture, Promotion, StratifiedIPS
from streameval.ope.promotion.rules import Paired, Periodic

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

PROGRAM = (Periodic(), Periodic(name="periodic 24h", period="24h"), Paired())
"""The rules of the program: `periodic` by days and then by weeks, by days alone, and `paired`."""
BY_HAND = ("24h window", "daily t")
"""Two rules that one would compute by hand."""
RULES: tuple[str, ...] = (*(rule.label for rule in PROGRAM), *BY_HAND)
MONDAY = 1_795_996_800.0
"""The midnight at which hour 0 starts, in epoch seconds."""
DAY, WEEK = 24, 168
HOURS = np.arange(DAY)
TRAFFIC = 1.0 + 0.6 * np.sin(2 * np.pi * (HOURS - 14) / DAY)
"""Events of each hour of a usual day, relative to their mean."""
EVENING = np.where((HOURS >= 18) & (HOURS < 22), 1.0, 0.0)
SINE = np.sin(2 * np.pi * (HOURS - 12) / DAY)
ACTIONS, FAVOURITE, BASE = 10, 0.45, 0.2
"""Actions, logged evenly, the probability of a candidate's favourite one, and the usual probability of a reward."""
RUNS = 40
"""Runs of a world, and streams of each kind without differences."""
LOSER, WINNER = 0, 1
NAMES = ("loser", "winner")
QUANTILE = 1.96
"""Standard errors of the 24-hour window and, from infinitely many days, of the daily t."""


def balanced(profile: Floats) -> Floats:
    """Return a profile of the day without its mean over usual traffic."""
    return np.asarray(profile - (profile * TRAFFIC).sum() / TRAFFIC.sum())


PEAK, WAVE = balanced(EVENING), balanced(SINE)


@dataclass(frozen=True)
class World:
    """Describe a world with days, hour by hour from the start.

    Args:
        lift: Lift of the loser and of the winner, in standard errors of a day's mean, [hours, 2].
        traffic: Events relative to a usual hour, [hours].
        events: Events of a usual day.
        start: Hour of the week at which it starts.
        deviation: Standard deviation of what each day adds to a lift.
    """

    lift: Floats
    traffic: Floats
    events: int = 60_000
    start: int = 0
    deviation: float = 0.0


class Log(NamedTuple):
    """Hold what events of a run are drawn from.

    Args:
        policies: Probabilities of each candidate, [candidates, actions].
        rates: Probability of a reward, [hours, actions].
        counts: Number of events, [hours].
        start: Hour of the week at which it starts.
    """

    policies: Floats
    rates: Floats
    counts: NDArray[np.int64]
    start: int = 0


def cyclic(
    loser: float,
    winner: float,
    profile: Floats,
    events: int = 60_000,
    days: int = 30,
    start: int = 0,
    deviation: float = 0.0,
    factor: Floats | None = None,
) -> World:
    """Return a world in which the loser has a daily profile and the winner none.

    Args:
        loser: Mean lift of the loser.
        winner: Lift of the winner.
        profile: What each hour of the day adds to the lift of the loser.
        events: Events of a usual day.
        days: Length.
        start: Hour of the first day at which it starts.
        deviation: Standard deviation of what each day adds to a lift.
        factor: Factor of the traffic, [hours].
    """
    hour = (start + np.arange(DAY * days)) % DAY
    lift = np.stack([loser + profile[hour], np.full(len(hour), winner)], axis=-1)
    return World(lift, TRAFFIC[hour] * (1.0 if factor is None else factor), events, start, deviation)


def weekend(start: int) -> World:
    """Return six weeks with a loser that wins at weekends, and a winner that loses there."""
    hours = start + np.arange(6 * WEEK)
    traffic = TRAFFIC[hours % DAY]
    base = np.where(hours // DAY % 7 >= 5, 10.0, -4.0) + 16 * WAVE[hours % DAY]
    base -= (base * traffic)[:WEEK].sum() / traffic[:WEEK].sum()
    return World(np.stack([base - 3.0, 3.0 - base / 2], axis=-1), traffic, start=start)


def gaps(days: int) -> Floats:
    """Return a factor of the traffic that stops it for six hours on every second day."""
    factor = np.ones((days, DAY))
    factor[1::2, 8:14] = 0.0
    return factor.ravel()


WORLDS: Mapping[str, World] = {
    "evening peak, 60,000 events a day": cyclic(-2.7, 3.2, 27 * PEAK),
    "evening peak, 150,000": cyclic(-4.0, 5.0, 35 * PEAK, 150_000, days=20),
    "high evening peak, 60,000": cyclic(-2.7, 3.2, 40 * PEAK),
    "sine, 50,000": cyclic(-2.5, 3.2, 16 * WAVE, 50_000, days=14),
    "sine, 200,000": cyclic(-5.0, 6.4, 33 * WAVE, 200_000, days=14),
    "sine, 1,000,000": cyclic(-11.0, 14.0, 73 * WAVE, 1_000_000, days=4),
    "gaps of 6 hours": cyclic(-2.7, 3.2, 27 * PEAK, factor=gaps(30)),
    "start at 15:00": cyclic(-2.7, 3.2, 27 * PEAK, start=15),
    "tenfold traffic from day 10 on": cyclic(-2.7, 3.2, 27 * PEAK, days=15, factor=np.repeat([1.0, 10.0], [240, 120])),
    "no cycle, 200,000": cyclic(-6.4, 6.4, 0 * PEAK, 200_000, days=14),
    "random days, sd 1": cyclic(-0.7, 2.0, 27 * PEAK, deviation=1.0),
    "random days, sd 3": cyclic(-0.7, 2.0, 27 * PEAK, deviation=3.0),
    "weekends, from Monday on": weekend(0),
    "weekends, from Saturday on": weekend(5 * DAY),
}
CYCLIC, RANDOM = tuple(WORLDS)[:9], "random days, sd 3"
SAME: Mapping[str, tuple[int, float]] = {
    "1 candidate": (1, 0.0),
    "20 candidates": (20, 0.0),
    "20 correlated candidates": (20, 0.5),
}
"""Streams without differences: the number of candidates, and the correlation of what tilts their policies."""
SAME_EVENTS, SAME_DAYS = 20_000, 30


class RuleScore(msgspec.Struct, frozen=True):
    """Score one rule in one run. Looks are at the end of each hour.

    Args:
        wrong: Number of candidates that do not win and were ever promotable.
        share: Share of their looks at which they were promotable.
        first: Day on which the winner was first promotable, None if never.
        later: Share of the later looks at which the winner was promotable.
    """

    wrong: int
    share: float
    first: float | None = None
    later: float | None = None


class DayRun(msgspec.Struct, frozen=True):
    """Hold one run with the scores of all rules.

    Args:
        world: One of WORLDS or SAME.
        seed: Seed of the run.
        events: Number of events.
        worse: Number of candidates that do not lose and were ever called worse by `periodic`, as seen once a day.
        rules: Scores by rule.
    """

    world: str
    seed: int
    events: int
    worse: int
    rules: dict[str, RuleScore]


class Followed(NamedTuple):
    """Hold what the rules said.

    Args:
        looks: Whether each candidate was promotable at the end of each hour by rule, [hours, candidates].
        first: The first day by rule, infinite if never, [candidates].
        worse: Whether `periodic` ever called each candidate worse, [candidates].
    """

    looks: dict[str, Mask]
    first: dict[str, Floats]
    worse: Mask


def day_jobs(runs: int) -> list[tuple[str, int]]:
    """Return the world and the seed of all runs, all worlds of a seed in a row.

    There are twice as many runs of `RANDOM`, because its aim is a small share of them.
    """
    names = (*WORLDS, *SAME)
    return [(name, seed) for seed in range(2 * runs) for name in names if seed < runs or name == RANDOM]


def favouring() -> Floats:
    """Return policies that favour an action each, [2, actions]."""
    policies = np.full((2, ACTIONS), (1.0 - FAVOURITE) / (ACTIONS - 1))
    policies[[LOSER, WINNER], [LOSER, WINNER]] = FAVOURITE
    return policies


def rates_of(lift: Floats) -> Floats:
    """Return the probabilities of a reward, [hours, actions], that give these lifts to policies that favour an action.

    >>> rates = rates_of(np.array([[0.03, -0.01]]))
    >>> (rates @ (favouring() - 1 / ACTIONS).T).round(4).tolist()
    [[0.03, -0.01]]
    """
    rates = np.full((len(lift), ACTIONS), BASE)
    rates[:, :2] += np.linalg.solve(favouring()[:, :2] - 1 / ACTIONS, lift.T).T
    return rates


def units_of(world: World) -> Floats:
    """Return the standard error of the mean lift over a usual day, [2].

    It is the error for known means of the actions, to which stratified estimates come near. It depends on the
    probabilities of rewards, which depend on the lifts, so it is found by repetition.
    """
    squares = (ACTIONS * favouring() - 1.0) ** 2 / ACTIONS
    units = np.full(2, 0.002)
    for _ in range(50):
        rates = rates_of(world.lift * units)
        variance = np.average(rates * (1.0 - rates), axis=0, weights=world.traffic) @ squares.T
        units = np.sqrt(variance / world.events)
    return units


def log_of(name: str, random: np.random.Generator) -> Log:
    """Return the log of a run in a world, or of a stream without differences, with the random part of its days."""
    if name in SAME:
        return _same(*SAME[name], random)
    world = WORLDS[name]
    hours = world.start + np.arange(len(world.traffic))
    days = world.deviation * random.standard_normal((hours[-1] // DAY + 1, 2))
    counts = np.round(world.events / DAY * world.traffic).astype(np.int64)
    return Log(favouring(), rates_of((world.lift + days[hours // DAY]) * units_of(world)), counts, world.start)


def _same(candidates: int, correlation: float, random: np.random.Generator) -> Log:
    """Return a log in which rewards have a cycle and no action matters, with policies in proportion to `exp(g)`."""
    policies = tilted(np.ones(ACTIONS), candidates, correlation, random)
    rates = np.repeat(BASE * (1.0 + 0.5 * np.tile(SINE, SAME_DAYS))[:, None], ACTIONS, axis=1)
    return Log(policies, rates, np.round(SAME_EVENTS / DAY * np.tile(TRAFFIC, SAME_DAYS)).astype(np.int64))


def follow(log: Log, names: tuple[str, ...], random: np.random.Generator) -> Followed:
    """Run the program and the other two rules on the events of a log."""
    promotion = Promotion(rule=PROGRAM)
    evaluator = Evaluator(list(names), [StratifiedIPS()], [Mixture()], drift=None, promotion=promotion)
    changes: dict[tuple[str, str, float], bool] = {}
    worse = np.zeros(len(names), dtype=bool)
    sums = []
    for batch, hourly in _days(log, names, random):
        evaluator.update(batch)
        sums.append(hourly)
        report = evaluator.report()
        kept = [each for each in report.transitions if each.worse is None]
        changes |= {(each.rule, each.policy, each.timestamp or 0.0): each.promotable for each in kept}
        for decision in report.promotion:
            worse[names.index(decision.policy)] |= decision.rule == PROGRAM[0].label and decision.worse is True
            starts = sum(changes[key] for key in changes if key[:2] == (decision.rule, decision.policy))
            if starts != decision.times:
                raise RuntimeError(f"starts of {decision.rule} were forgotten before they were read")
    ends = (MONDAY + 3600.0 * (log.start + 1.0 + np.arange(len(log.counts)))).astype(np.float64)
    looks: dict[str, Mask] = {}
    first: dict[str, Floats] = {}
    for rule in PROGRAM:
        moments = [_moments(changes, rule.label, name) for name in names]
        looks[rule.label] = np.stack([_state(own, ends) for own in moments], axis=-1)
        earliest: Floats = np.array([min(own, default=np.inf) for own in moments], dtype=float)
        first[rule.label] = (earliest - MONDAY) / 86_400 - log.start / DAY
    terms = np.concatenate(sums)
    for name, mask in zip(BY_HAND, (window(terms), daily(terms, log.start)), strict=True):
        looks[name] = mask
        first[name] = np.where(mask.any(axis=0), (np.argmax(mask, axis=0) + 1) / DAY, np.inf)
    return Followed(looks, first, worse)


def _days(log: Log, names: tuple[str, ...], random: np.random.Generator) -> Iterator[tuple[EventBatch, Floats]]:
    """Yield the events of 24 hours at a time, with the sums of their lift terms in each hour.

    A term is `(weight - 1) (reward - BASE)`: weights have mean 1, so the constant removes noise and nothing else.

    Yields:
        Events, and the number, the sum and the sum of squares of the terms, [hours, candidates, 3].
    """
    for begin in range(0, len(log.counts), DAY):
        counts, rates = log.counts[begin : begin + DAY], log.rates[begin : begin + DAY]
        hour = np.repeat(np.arange(len(counts)), counts)
        place = np.arange(len(hour)) - np.repeat(np.cumsum(counts) - counts, counts)
        action = random.integers(0, ACTIONS, len(hour))
        reward = random.random(len(hour)) < rates[hour, action]
        batch = EventBatch.from_arrays(
            reward=reward.astype(float),
            propensity=np.full(len(hour), 1 / ACTIONS),
            policies={name: policy[action] for name, policy in zip(names, log.policies, strict=True)},
            timestamp=MONDAY + 3600.0 * (log.start + begin + hour + (place + 0.5) / counts[hour]),
        )
        cells = np.bincount((hour * ACTIONS + action) * 2 + reward, minlength=len(counts) * ACTIONS * 2)
        cells = cells.reshape(len(counts), 1, ACTIONS, 2)
        terms = (ACTIONS * log.policies - 1.0)[..., None] * np.array([-BASE, 1.0 - BASE])
        yield batch, np.stack([(cells * terms**power).sum(axis=(2, 3)) for power in range(3)], axis=-1)


def _moments(changes: Mapping[tuple[str, str, float], bool], rule: str, name: str) -> dict[float, bool]:
    own = {time: is_start for (changed, policy, time), is_start in changes.items() if (changed, policy) == (rule, name)}
    return dict(sorted(own.items()))


def _state(moments: Mapping[float, bool], looks: Floats) -> Mask:
    """Return the state at each look, given the changes in the order of time."""
    states = np.array([False, *moments.values()])
    return np.asarray(states[np.searchsorted(list(moments), looks, side="right")])


def window(terms: Floats) -> Mask:
    """Return where the mean lift of the last 24 hours is above 0 by its normal bound, [hours, candidates].

    Args:
        terms: The number, the sum and the sum of squares of lift terms, [hours, candidates, 3].
    """
    total = np.cumsum(terms, axis=0)
    total[DAY:] -= total[:-DAY].copy()
    count, mean, square = total[..., 0], total[..., 1] / total[..., 0], total[..., 2] / total[..., 0]
    above = mean > QUANTILE * np.sqrt((square - mean**2) / count)
    above[: DAY - 1] = False
    return np.asarray(above)


def daily(terms: Floats, start: int = 0) -> Mask:
    """Return where the mean of the whole days so far is above 0 by its t-interval, [hours, candidates].

    It looks at midnight, from two days on, and keeps its answer for a day.

    Args:
        terms: The number, the sum and the sum of squares of lift terms, [hours, candidates, 3].
        start: Hour of the first one.
    """
    above = np.zeros(terms.shape[:2], dtype=bool)
    begin = -start % DAY
    days = (len(terms) - begin) // DAY
    whole = terms[begin : begin + DAY * days].reshape(days, DAY, -1, 3).sum(axis=1)
    means = whole[..., 1] / whole[..., 0]
    for count in range(2, days + 1):
        known = means[:count]
        error = known.std(axis=0, ddof=1) / np.sqrt(count)
        above[begin + DAY * count - 1 :] = known.mean(axis=0) > student.ppf(0.975, count - 1) * error
    return above


def watch_days(name: str, seed: int) -> tuple[Log, Followed]:
    """Run a world once."""
    random = np.random.default_rng([20_261_127, seed, [*WORLDS, *SAME].index(name)])
    log = log_of(name, random)
    names = tuple(f"candidate {number + 1}" for number in range(len(log.policies))) if name in SAME else NAMES
    return log, follow(log, names, random)


def day_run(name: str, seed: int) -> DayRun:
    """Run a world once, and score all rules."""
    log, found = watch_days(name, seed)
    others = np.arange(len(log.policies)) if name in SAME else np.array([LOSER])
    rules = {}
    for rule in RULES:
        looks, starts = found.looks[rule], found.first[rule]
        first = np.inf if name in SAME else float(starts[WINNER])
        later = looks[int(first * DAY) :, WINNER] if np.isfinite(first) else looks[:0]
        rules[rule] = RuleScore(
            int(np.isfinite(starts[others]).sum()),
            round(float(looks[:, others].mean()), 4),
            round(first, 3) if np.isfinite(first) else None,
            round(float(later.mean()), 4) if len(later) else None,
        )
    worse = int(found.worse[others if name in SAME else WINNER].sum())
    return DayRun(name, seed, int(log.counts.sum()), worse, rules)
