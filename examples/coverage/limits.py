"""Compare `max_weight: auto`, no limit and the right limit, on logs with propensities that reveal the limit or hide it.

Events of one kind (a context and an action) are counted instead of drawn one by one. The counts give the sums that an
interval needs for hundreds of runs at once. Time passes in blocks of 100 events.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from worlds import DEPLOYED, DRAWS, LOGGING, PERIOD, SEED, SWING, WORLDS, Floats, World

from streameval.ope.estimators import IPS, Estimator, PseudoInverse, TermRange
from streameval.ope.evidence.largest_weights import NEARLY_SURE, WEIGHTS_KEPT, Kind, LargestState, limits
from streameval.ope.intervals.empirical_likelihood import Means, extra_events, heaviest_likely, likely, reach

CANDIDATE = "new"
STEP = 100
WINDOW = 2_000
LOOKS = (300, 500, 1_000, 2_000, 5_000, 10_000)
AFTER = (*LOOKS[:-1], 5_500, 6_000, 7_000, LOOKS[-1])
"""Adds looks after a change in the middle of the run."""
FEWEST_NONZERO = 10
Z = NormalDist().inv_cdf(0.975)
KINDS = ("normal", "none", "auto", "right")
QUANTITIES = ("value", f"lift over {LOGGING}", f"lift over {DEPLOYED}")
CONTEXTS, VARIED = 100, 10
"""Number of contexts, and the number in logs with contexts that are all different."""


class Cells(NamedTuple):
    """Describe the kinds of events, one cell for each kind.

    Args:
        share: Frequency, [cells] or [runs, cells].
        propensity: Probability under the logging policy, [cells] or [runs, cells]. It is 1 for slates slot by slot.
        candidate: Probability under the candidate, [cells]. For slates slot by slot, its importance weight.
        deployed: Probability under the deployed policy, [cells]. For slates slot by slot, its importance weight.
        reward: Mean reward, [cells].
        whole: Largest weight of the candidate in the context, if full distributions are logged.
        slots: Largest weight that the slot propensities of a slate allow for any policy.
    """

    share: Floats
    propensity: Floats
    candidate: Floats
    deployed: Floats
    reward: Floats
    whole: Floats | None = None
    slots: Floats | None = None

    @classmethod
    def from_contexts(
        cls, logging: Floats, candidate: Floats, deployed: Floats, reward: Floats, whole: bool = False
    ) -> Cells:
        """Build the cells of equally likely contexts [contexts, actions], and merge equal ones."""
        heaviest = np.repeat((candidate / logging).max(axis=1, keepdims=True), logging.shape[1], axis=1)
        columns = np.stack([array.ravel() for array in (logging, candidate, deployed, reward, heaviest)])
        distinct, index = np.unique(columns, axis=1, return_inverse=True)
        share = np.bincount(index.ravel(), columns[0]) / len(logging)
        propensity, candidate, deployed, reward, largest = distinct
        return cls(share, propensity, candidate, deployed, reward, largest if whole else None)

    def values(self) -> tuple[Floats | float, ...]:
        """Return the present value of the candidate, and its lifts over both other policies."""
        value, deployed = (
            (self.share * policy / self.propensity * self.reward).sum(axis=-1)
            for policy in (self.candidate, self.deployed)
        )
        return value, value - (self.share * self.reward).sum(axis=-1), value - deployed


Phases = Generator[Cells, Floats, None]
"""Yields the kinds of events of each step, and receives how many events were counted and rewarded, [2, runs, cells]."""


class Log(NamedTuple):
    """Describe a kind of log.

    Args:
        title: Name in tables.
        phases: Yields the kinds of events step by step, for a number of runs.
        largest_weight: Largest importance weight of the candidate.
        largest_deployed: Largest importance weight of the deployed policy.
        looks: Numbers of events after which intervals are read.
        estimator: Estimator of the values.
    """

    title: str
    phases: Callable[[int, np.random.Generator], Phases]
    largest_weight: float
    largest_deployed: float
    looks: Sequence[int] = LOOKS
    estimator: Estimator = IPS()


def _still(cells: Cells, runs: int, rng: np.random.Generator) -> Phases:
    while True:
        yield cells


def _log(title: str, cells: Cells, looks: Sequence[int] = LOOKS) -> Log:
    """Return a log with policies and rewards that do not change."""
    candidate, deployed = (float((policy / cells.propensity).max()) for policy in (cells.candidate, cells.deployed))
    return Log(title, partial(_still, cells), candidate, deployed, looks)


def greedy(best: Sequence[int], actions: int, exploration: float) -> Floats:
    """Return a policy that takes the best action of each context, and explores uniformly with this probability."""
    return (1 - exploration) * np.eye(actions)[list(best)] + exploration / actions


def rare_action(actions: int, exploration: float, rate: float) -> tuple[Floats, Floats, Floats, Floats]:
    """Return a logging policy, a candidate that favours a rarely shown action, a deployed policy, and mean rewards."""
    reward = np.full((CONTEXTS, actions), rate)
    reward[:, 1] *= 1.4
    third = [2 if context % 5 == 0 else 0 for context in range(CONTEXTS)]
    logging, candidate = greedy([0] * CONTEXTS, actions, exploration), greedy([1] * CONTEXTS, actions, 0.1)
    return logging, candidate, greedy(third, actions, exploration), reward


def evenly(actions: int, rate: float, rare: bool = False) -> Cells:
    """Return the cells of a candidate that takes all actions evenly.

    Args:
        actions: Number of actions.
        rate: Mean reward of most actions.
        rare: Whether the candidate takes a single action in every tenth context, with rewards three times as large.
    """
    logging, _, deployed, reward = rare_action(actions, 0.2, rate)
    candidate = np.full_like(logging, 1 / actions)
    if rare:
        candidate[::10] = np.eye(actions)[1]
        reward[::10] = 3 * rate
    return Cells.from_contexts(logging, candidate, deployed, reward)


def slates(rate: float, is_slotwise: bool) -> Cells:
    """Return the cells of slates with three slots and five actions each, filled independently.

    The mean reward is a sum over the slots.

    Args:
        rate: Mean reward of a slate without the favourite action of the candidate.
        is_slotwise: Whether slates are evaluated by the pseudo-inverse, otherwise as one action.
    """
    logging, candidate, deployed = (greedy([best], 5, spread)[0] for best, spread in ((0, 0.5), (1, 0.1), (2, 0.5)))
    slate = np.indices((5, 5, 5)).reshape(3, -1)
    propensity, share = logging[slate], logging[slate].prod(axis=0)
    reward = rate * (1 + 0.4 * (slate == 1)).mean(axis=0)
    if not is_slotwise:
        return Cells(share, share, candidate[slate].prod(axis=0), deployed[slate].prod(axis=0), reward)
    one, other, largest = ((policy[slate] / propensity).sum(axis=0) - 2 for policy in (candidate, deployed, np.ones(5)))
    return Cells(share, np.ones_like(share), one, other, reward, slots=largest)


def log_uniform(rate: float) -> Cells:
    """Return cells with log-uniform propensities between 1e-4 and 1.

    Rarely shown actions are worth three times as much.
    """
    rng = np.random.default_rng(5)
    logging = np.exp(rng.uniform(np.log(1e-4), 0, (VARIED, 10)))
    logging[:, 0] = 1.0
    logging /= logging.sum(axis=1, keepdims=True)
    reward = rate * rng.uniform(0.3, 1.7, logging.shape) * np.where(logging < 0.01, 3, 1)
    candidate = 0.5 * np.eye(10)[rng.integers(10, size=VARIED)] + 0.05
    return Cells.from_contexts(logging, candidate, greedy([0] * VARIED, 10, 0.1), np.minimum(reward, 1.0))


def rare_contexts(rate: float, whole: bool = False) -> Cells:
    """Return cells with small propensities and larger rewards in every twentieth context.

    There, all actions but one have a propensity of 1e-4 instead of .02, and all rewards are three times as large.
    """
    logging, _, deployed, reward = rare_action(5, 0.1, rate)
    logging[::20], reward[::20] = greedy([0], 5, 5e-4), 3 * rate
    return Cells.from_contexts(logging, greedy([1] * CONTEXTS, 5, 0.0), deployed, reward, whole)


def _falling(rate: float, runs: int, rng: np.random.Generator) -> Phases:
    """Yield events with an exploration of .2 that falls to .02 after half of 10,000 events."""
    for exploration, steps in ((0.2, 50), (0.02, 50)):
        logging = greedy([0] * CONTEXTS, 10, exploration)
        cells = Cells.from_contexts(logging, *rare_action(10, 0.2, rate)[1:])
        for _ in range(steps):
            yield cells


def _sharpening(rate: float, runs: int, rng: np.random.Generator) -> Phases:
    """Yield events of a softmax of beliefs that grow more certain, with exploration that decreases to .01."""
    _, candidate, deployed, reward = (policy[:VARIED] for policy in rare_action(10, 0.2, rate))
    rng = np.random.default_rng(7)
    worth = rng.normal(size=candidate.shape)
    for step in range(100):
        belief = worth + rng.normal(size=worth.shape) / np.sqrt(1 + step / 5)
        sharp = np.exp(min(step / 10, 6.0) * belief)
        floor = max(0.01, 0.5 / np.sqrt(1 + step))
        yield Cells.from_contexts(
            (1 - floor) * sharp / sharp.sum(axis=1, keepdims=True) + floor / 10, candidate, deployed, reward
        )


def _world_phases(world: World, runs: int, rng: np.random.Generator) -> Phases:
    """Yield events of another world of the study, without clusters."""
    stage = world.stage
    logging, candidate, deployed = (stage.policies[name] for name in (LOGGING, "one", DEPLOYED))
    won, lost = np.ones((runs, logging.shape[1])), np.ones((runs, logging.shape[1]))
    for step in range(LOOKS[-1] // STEP):
        time = 2 * np.pi / PERIOD * (step + 0.5) * STEP
        wave = 1 + SWING * np.sin(time + np.arange(logging.shape[1]) * np.pi / 4) * (world.shape == "drifting")
        cells = Cells.from_contexts(logging, candidate, deployed, world.level * stage.effect * wave)
        if world.shape != "learning":
            yield cells
            continue
        best = rng.beta(won[:, None], lost[:, None], size=(runs, DRAWS, won.shape[1])).argmax(axis=2)
        wins = (best[..., None] == np.arange(won.shape[1])).mean(axis=1)
        shares = (1 - stage.floor) * wins + stage.floor / won.shape[1]
        columns = (candidate[0], deployed[0], world.level * stage.effect[0])
        counted, rewarded = yield Cells(shares, shares, *columns)
        won, lost = won + rewarded, lost + counted - rewarded


def _logs() -> Mapping[str, Log]:
    """Return all logs by title."""
    logs = []
    for actions, exploration, rate, looks in (
        (10, 0.2, 0.03, LOOKS),
        (25, 0.2, 0.3, LOOKS),
        (25, 0.2, 0.03, (*LOOKS, 50_000)),
        (50, 0.1, 0.03, (*LOOKS, 50_000)),
    ):
        title = f"{actions} actions, exploration {exploration:g}, values near {rate:g}"
        logs.append(_log(title, Cells.from_contexts(*rare_action(actions, exploration, rate)), looks))
    for rate in (0.3, 0.03):
        logs += [
            _log(f"candidate takes 50 actions evenly, {rate:g}", evenly(50, rate)),
            _log(f"the same, but one of them in every tenth context, {rate:g}", evenly(50, rate, rare=True)),
            _log(f"propensities log-uniform to 1e-4, {rate:g}", log_uniform(rate)),
            _log(f"rare contexts with propensities of 1e-4, {rate:g}", rare_contexts(rate)),
            _log(f"the same, full distributions logged, {rate:g}", rare_contexts(rate, whole=True)),
            Log(f"exploration falls from 0.2 to 0.02, {rate:g}", partial(_falling, rate), 455.0, 410.0, AFTER),
            Log(f"softmax that grows certain, {rate:g}", partial(_sharpening, rate), 910.0, 820.0),
        ]
    for world in WORLDS.values():
        if world.shape not in ("sessions", "crowd"):
            candidate, deployed = (_largest(world, policy) for policy in ("one", DEPLOYED))
            title = f"{world.shape}, {world.weights}, {world.level:g}"
            logs.append(Log(title, partial(_world_phases, world), candidate, deployed))
    for rate in (0.3, 0.03):
        whole, slotwise = slates(rate, is_slotwise=False), slates(rate, is_slotwise=True)
        logs.append(_log(f"slates of three slots as one action, {rate:g}", whole))
        logs.append(
            _log(f"slates of three slots, slot by slot, {rate:g}", slotwise)._replace(estimator=PseudoInverse())
        )
    for rate in (0.3, 0.03):
        for rare, name in ((False, ""), (True, ", but one of them in every tenth context")):
            cells = evenly(50, rate, rare)
            exchanged = cells._replace(candidate=cells.deployed, deployed=cells.candidate)
            logs.append(_log(f"production takes 50 actions evenly{name}, {rate:g}", exchanged))
    return {log.title: log for log in logs}


def _largest(world: World, policy: str) -> float:
    """Return the largest weight of a policy in another world of the study."""
    least = world.stage.policies[LOGGING] if world.shape != "learning" else np.array(world.stage.floor / 4)
    return float((world.stage.policies[policy] / least).max())


LOGS = _logs()


class Step(NamedTuple):
    """Hold the evidence of some events.

    Args:
        events: Number of events.
        sums: Sums over the events, [quantities, sums, runs].
        values: True values, times the number of events.
        deployed: Sums of the weights of the deployed policy, and of their squares, [2, runs].
    """

    events: int
    sums: Floats
    values: Floats
    deployed: Floats

    @classmethod
    def from_counts(cls, cells: Cells, counted: Floats, rewarded: Floats) -> Step:
        """Sum w, w^2, u, u w, u^2 and the rewards of events with a positive weight, for each quantity."""
        runs = len(counted)
        weight = cells.candidate / cells.propensity
        deployed = cells.deployed / cells.propensity
        sums = []
        for term in (weight, weight - 1.0, weight - deployed):
            columns = [counted * weight, counted * weight**2, rewarded * term, rewarded * term * weight]
            columns += [rewarded * term**2, rewarded * (weight > 0)]
            sums.append([np.broadcast_to(column, counted.shape).sum(axis=1) for column in columns])
        values = np.stack([np.broadcast_to(value, runs) for value in cells.values()])
        return cls(
            STEP, np.array(sums), values * STEP, np.stack([counted * deployed, counted * deployed**2]).sum(axis=2)
        )

    def __add__(self, other: Step) -> Step:  # type: ignore[override]
        return Step(
            self.events + other.events,
            self.sums + other.sums,
            self.values + other.values,
            self.deployed + other.deployed,
        )


def add_largest(kept: Floats, cells: Cells, policy: Floats, counted: Floats) -> None:
    """Update the ten largest numbers of each kind in place, as the evaluator does.

    Args:
        kept: Largest numbers so far, [runs, kinds, 10].
        cells: Kinds of events.
        policy: Probabilities of the policy in the cells.
        counted: Events of each cell, [runs, cells].
    """
    propensity, probability = (np.broadcast_to(array, counted.shape) for array in (cells.propensity, policy))
    sure = (propensity > NEARLY_SURE) & (propensity < 1)
    others = np.where(sure, (1 - probability) / np.where(sure, 1 - propensity, 1.0), 0.0)
    numbers = {Kind.RARITY: 1 / propensity, Kind.PROBABILITY: probability, Kind.OTHERS: others}
    if cells.whole is not None and policy is cells.candidate:
        numbers = {Kind.WHOLE: np.broadcast_to(cells.whole, counted.shape)}
    if cells.slots is not None:
        numbers = {Kind.SLOTS: np.broadcast_to(cells.slots, counted.shape)}
    for kind, values in numbers.items():
        occurring = np.where(counted > 0, values, 0.0)
        new = np.flatnonzero(occurring.max(axis=1) > kept[:, kind, 0])
        if len(new):
            best = np.argsort(-occurring[new], axis=1)[:, :WEIGHTS_KEPT]
            value, count = (np.take_along_axis(array[new], best, axis=1) for array in (occurring, counted))
            repeated = [np.where(count >= rank, value, 0.0) for rank in range(1, WEIGHTS_KEPT + 1)]
            kept[new, kind] = np.sort(np.concatenate([kept[new, kind], *repeated], axis=1), axis=1)[:, -WEIGHTS_KEPT:]


class Rate(NamedTuple):
    """Hold the share of intervals that miss, over all runs, and the mean width of the intervals that are shown."""

    log: str
    quantity: str
    average: str
    kind: str
    events: int
    runs: int
    miss: float
    width: float


def rates(log: Log, runs: int) -> Iterator[Rate]:
    """Yield the rates of a log over this number of runs."""
    rng = np.random.default_rng([SEED, 1_000 + list(LOGS).index(log.title)])
    phases = log.phases(runs, rng)
    cells, largest, seen = next(phases), np.zeros((2 * runs, 1, len(Kind), WEIGHTS_KEPT)), np.ones(runs)
    total, steps = None, list[Step]()
    for last in range(STEP, log.looks[-1] + 1, STEP):
        share = np.broadcast_to(cells.share / cells.share.sum(axis=-1, keepdims=True), (runs, cells.share.shape[-1]))
        drawn = rng.multinomial(STEP, share)
        counted, rewarded = drawn.astype(float), rng.binomial(drawn, np.clip(cells.reward, 0, 1)).astype(float)
        step = Step.from_counts(cells, counted, rewarded)
        add_largest(largest[:runs, 0], cells, cells.candidate, counted)
        add_largest(largest[runs:, 0], cells, cells.deployed, counted)
        seen = np.maximum(seen, np.where(counted > 0, cells.deployed / cells.propensity, 0.0).max(axis=1))
        total, steps = step if total is None else total + step, [*steps[1 - WINDOW // STEP :], step]
        if last in log.looks:
            limit_values = limits(LargestState(0, largest), [CANDIDATE] * 2 * runs, by_slot=cells.slots is not None)
            recent = steps[0]
            for later in steps[1:]:
                recent = recent + later
            for average, average_step in {"cumulative": total, "window": recent}.items():
                yield from _rates(log, average, average_step, limit_values, seen, last)
        if last < log.looks[-1]:
            cells = phases.send(np.stack([counted, rewarded]))


def _rates(log: Log, average: str, step: Step, limits: Floats, seen: Floats, last: int) -> Iterator[Rate]:
    for index, quantity in enumerate(QUANTITIES):
        for kind in KINDS:
            bounds = interval(kind, quantity, log, step, limits, seen)
            lower, upper = np.clip(bounds, -1.0 if index else 0.0, 1.0)
            truth = step.values[index] / step.events
            missed = (lower > truth + 1e-9) | (upper < truth - 1e-9)
            shown = ~np.isnan(lower)
            width = float((upper - lower)[shown].mean()) if shown.any() else np.nan
            rate = float(f"{missed.sum() / max(1, shown.sum()):.4g}")
            yield Rate(log.title, quantity, average, kind, last, len(lower), rate, float(f"{width:.4g}"))


def table_of_limits(rows: Sequence[Rate]) -> str:
    """Return widths, and misses in percent, of intervals of values at the last look, and the worst misses of `auto`."""
    lines = [["log", "events", *KINDS, "`auto`, the worst of all looks"], ["---"] * (3 + len(KINDS))]
    for title, log in LOGS.items():
        own = [row for row in rows if row.log == title]
        last = {
            row.kind: f"{row.width:.3f} ({100 * row.miss:.1f})"
            for row in own
            if (row.quantity, row.average, row.events) == ("value", "cumulative", log.looks[-1])
        }
        worst = max((row for row in own if row.kind == "auto"), key=lambda row: row.miss)
        worst_case = f"{worst.quantity}, {worst.average}, {worst.events:,} events"
        widths = [last[kind] for kind in KINDS]
        lines.append([title, f"{log.looks[-1]:,}", *widths, f"{100 * worst.miss:.1f} ({worst_case})"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def interval(kind: str, quantity: str, log: Log, step: Step, log_limits: Floats, seen: Floats) -> tuple[Floats, Floats]:
    """Return the bounds of one kind of interval, [runs] each.

    Args:
        kind: One of KINDS.
        quantity: One of QUANTITIES.
        log: Its log.
        part: Evidence of the events that the average covers.
        known: Largest weights that the log shows to be possible, for the candidate and the deployed policy.
        seen: Largest weight of the deployed policy so far, [runs].
    """
    *columns, rewarded = step.sums[QUANTITIES.index(quantity)] / step.events
    means = Means(np.full(len(rewarded), float(step.events)), *columns)
    if kind == "normal":
        width = Z * np.sqrt((means.term_square - means.term**2) / (step.events - 1))
        width = np.where(rewarded * step.events >= FEWEST_NONZERO, width, np.nan)
        return means.term - width, means.term + width
    own, others = log_limits.reshape(2, 2, -1).swapaxes(0, 1)
    both = np.stack([others, own], axis=1)
    terms = TermRange.by_column([log.estimator], (0.0, 1.0), np.stack([seen, seen]), both)
    if quantity != "value":
        production = np.ones_like(seen)
        if quantity == QUANTITIES[2]:
            limits: dict[str, Floats | float] = {
                "none": np.inf,
                "auto": _likely(step, terms),
                "right": log.largest_deployed,
            }
            production = np.maximum(seen, np.minimum(limits[kind], np.maximum(step.events - step.deployed[0], 0.0)))
        terms = terms.over_production(1, production, terms.width)
    terms = TermRange._make(column[-1] for column in terms)
    heaviest = {
        "none": np.full_like(seen, np.inf),
        "auto": heaviest_likely(means, terms),
        "right": np.full_like(seen, log.largest_weight),
    }
    extra = extra_events(terms, heaviest[kind])
    return reach(means, extra, likely(means, extra, Z**2))


def _likely(step: Step, terms: TermRange) -> Floats:
    """Return the largest likely weight of the deployed policy under its limits from the log.

    These limits are in the first column of `terms`.
    """
    weight, square = step.deployed / step.events
    means = Means(np.full_like(weight, step.events), weight, square, weight, square, square)
    return heaviest_likely(means, TermRange._make(column[0] for column in terms))
