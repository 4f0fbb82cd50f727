"""How often actions were chosen, and what their logged propensities expect: of a whole log, or of a stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import NormalDist

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask
from streameval.common.text import counted, significant
from streameval.events import EventBatch
from streameval.events.action_sets import Index
from streameval.events.validation import PROPENSITY_TOLERANCE

ERROR = 0.01
"""The probability that a correct log has any finding."""
FEWEST_CHOSEN = 20
"""Choices of an action, expected or logged, before it is judged."""
BUCKET_EDGES = np.array([0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
"""Bounds of the buckets of propensities; the lower one belongs to the bucket below."""
BUCKET_COUNT = len(BUCKET_EDGES) - 1

SPAN = 200_000
"""Events of a stream after which the comparison starts from zero, so that it ends once the propensities are right."""
JUDGED_ACTIONS = 1000
"""Actions of a stream that are judged in a span: the first ones that occur."""
LONGEST_NAME = 100
"""Characters of an action's name that are kept."""
STAKES = np.array([0.5, 0.2, 0.08, 0.03, 0.01, 0.003])
"""The shares of its wealth that a bet risks on each event."""
LIKELY_ERROR = 0.1
"""The relative error of propensities that bets on buckets expect."""


class Frequencies:
    """Choices and propensities of a log, by action, and by bucket where events list all propensities.

    Of listed actions, the sum of the propensities is compared with the number of choices. An event with a single
    propensity has that of the chosen action: the sum of `1 / p` over the choices of an action is then compared with
    the number of events in which the action was available: those that list it, and those without a list.

    >>> frequencies = Frequencies()
    >>> frequencies.add_single(["a", "b"] * 500, np.full(1000, 0.5))
    >>> frequencies.findings()
    ([], 2)
    """

    def __init__(self) -> None:
        self._names: dict[object, int] = {}
        self._single = np.zeros((0, 3))  # choices, sum of 1 / p, and the variance of that sum
        self._available = np.zeros((0, 1))  # events with a single propensity that list the action
        self._listed = np.zeros((0, 3))  # choices, sum of p, and the variance of the choices
        self._buckets = np.zeros((BUCKET_COUNT, 3))
        self._events = self._without_list = 0

    def add_single(
        self, actions: Sequence[object], propensity: Array, lists: Sequence[Sequence[object] | None] = ()
    ) -> None:
        """Add events by their chosen actions and propensities; `lists`: the available actions of each, if known."""
        inverse = 1.0 / propensity
        columns = np.stack([np.ones_like(inverse), inverse, inverse * (inverse - 1.0)], axis=1)
        self._single = _added(self._single, self._codes(actions), columns)
        names = [name for listed in lists for name in listed or ()]
        self._available = _added(self._available, self._codes(names), np.ones((len(names), 1)))
        self._without_list += len(propensity) - sum(bool(listed) for listed in lists)
        self._events += len(propensity)

    def add_listed(self, actions: Sequence[object], chosen: Array, propensities: Array, events: int) -> None:
        """Add events by all their actions, end to end, whether each was chosen, and their propensities."""
        columns = np.stack([chosen, propensities, propensities * (1.0 - propensities)], axis=1)
        self._listed = _added(self._listed, self._codes(actions), columns)
        self._buckets = _added(self._buckets, _bucket(propensities), columns)
        self._events += events

    def add(self, batch: EventBatch, actions: Sequence[object], lists: Sequence[Sequence[object] | None]) -> None:
        """Add the events of a batch; slates and scored outcomes do not count."""
        known = _of_one_choice(batch)
        listed, chosen, propensities = _listed(batch, known)
        names = [name for event in np.flatnonzero(listed).tolist() for name in lists[event] or ()]
        self.add_listed(names, chosen, propensities, int(listed.sum()))
        single = np.flatnonzero(known & ~listed)
        places = single.tolist()
        available = [lists[event] for event in places]
        self.add_single([actions[event] for event in places], batch.propensity[single], available)

    @property
    def events(self) -> int:
        """The number of events."""
        return self._events

    def findings(self) -> tuple[list[str], int]:
        """The actions and buckets whose propensities are too low or too high, and the number of comparisons."""
        found = [*self._of_single(), *self._of_listed()]
        limit = NormalDist().inv_cdf(1.0 - ERROR / 2 / max(1, len(found)))
        return [_finding(what, ratio) for what, ratio, deviations in found if abs(deviations) > limit], len(found)

    def _codes(self, names: Iterable[object]) -> Index:
        return np.array([self._names.setdefault(name, len(self._names)) for name in names], dtype=np.int64)

    def _of_single(self) -> Iterator[tuple[str, float, float]]:
        """Of each action: a name, logged over true propensities, and by how many deviations they differ."""
        listed = np.zeros(len(self._names))
        listed[: len(self._available)] = self._available[:, 0]
        for name, place in self._names.items():
            chosen, inverse, variance = self._single[place] if place < len(self._single) else (0.0, 0.0, 0.0)
            if chosen >= FEWEST_CHOSEN:
                ratio = (self._without_list + listed[place]) / inverse
                apart = abs(ratio - 1.0) > PROPENSITY_TOLERANCE
                deviations = (ratio - 1.0) * inverse / math.sqrt(variance) if variance else math.inf
                yield f"action {name}", float(ratio), float(deviations) if apart else 0.0

    def _of_listed(self) -> Iterator[tuple[str, float, float]]:
        for name, row in zip(self._names, self._listed.tolist(), strict=False):
            yield from _compared(f"action {name}", *row)
        for low, high, row in zip(BUCKET_EDGES, BUCKET_EDGES[1:], self._buckets.tolist(), strict=False):
            yield from _compared(f"propensities from {low:g} to {high:g}", *row)


def _compared(what: str, chosen: float, expected: float, variance: float) -> Iterator[tuple[str, float, float]]:
    if max(chosen, expected) >= FEWEST_CHOSEN:
        difference = expected - chosen
        deviations = difference / math.sqrt(variance) if variance else 0.0
        yield what, expected / chosen if chosen else math.inf, deviations


def _added(sums: Array, places: Index, columns: Array) -> Array:
    """The sums [names, 3] with these rows added, longer where there are new names."""
    number = max(len(sums), int(places.max(initial=-1)) + 1)
    added = np.empty((number, sums.shape[1]))
    for name, column in enumerate(columns.T):
        added[:, name] = np.bincount(places, column, number)
    added[: len(sums)] += sums
    return added


def _finding(what: str, ratio: float) -> str:
    """The finding about an action or a bucket; `ratio`: logged over true propensities."""
    side = "high" if ratio > 1 else "low"
    return f"{what}: the logged propensities are {significant(100 * abs(ratio - 1))} % too {side}"


def _of_one_choice(events: EventBatch) -> Mask:
    """The events with one choice and its propensity, neither slates nor scored outcomes, [n]."""
    known = ~np.isnan(events.propensity)
    return known if events.slates is None else known & (events.slates.sizes == 0)


def _listed(events: EventBatch, kept: Mask) -> tuple[Mask, Array, Array]:
    """Which kept events list all propensities, [n]; and of their rows whether each was chosen, and its propensity."""
    sets = events.action_sets
    if sets is None:
        return np.zeros(len(events), dtype=bool), np.zeros(0), np.zeros(0)
    listed, chosen, missing = kept & (sets.sizes > 0), np.zeros(len(sets.propensities)), np.isnan(sets.propensities)
    chosen[sets.logged[1]] = 1.0
    if missing.any():
        listed &= np.bincount(sets.owner[missing], minlength=len(events)) == 0
    if listed.all():
        return listed, chosen, sets.propensities
    rows = listed[sets.owner]
    return listed, chosen[rows], sets.propensities[rows]


def _bucket(propensities: Array) -> Index:
    above = np.zeros(len(propensities), dtype=np.int8)
    for edge in BUCKET_EDGES[1:-1]:
        above += propensities > edge
    return above.astype(np.int64)


# --- A stream, judged at any time ---


class FrequencyState(Struct, frozen=True, eq=False):
    """Hold how often the actions of a stream were chosen, since the start of a span.

    Attributes:
        span: the number of this span, from 1
        findings: the findings at the end of the last span
        events: the number of events of this span
        buckets: choices and sums of propensities
        names: the judged actions
        sums: by action the choices, the sum of `1 / p`, and of `ln(1 + s (1 / p - 1))` for each stake
    """

    span: int
    findings: list[str]
    events: int
    buckets: Array
    names: list[str]
    sums: Array


def start(span: int = 1, findings: Iterable[str] = ()) -> FrequencyState:
    """Start before the first event of a span; `findings`: at the end of the last one."""
    return FrequencyState(span, list(findings), 0, np.zeros((BUCKET_COUNT, 2)), [], np.zeros((0, 2 + len(STAKES))))


def fold(state: FrequencyState, events: EventBatch, error: float) -> FrequencyState:
    """The state after some more events. Downsampled events do not count: which are kept may depend on the choice."""
    if events.actions is None and events.action_sets is None:
        return state
    kept = _of_one_choice(events) & (events.sampling_probability == 1.0)
    events = events if kept.all() else events.take(kept)
    first = 0
    while first < len(events):
        part = events[first : first + SPAN - state.events]
        state, first = _with(state, part), first + len(part)
        if state.events == SPAN:
            state = start(state.span + 1, _findings(state, error))
    return state


def _with(state: FrequencyState, events: EventBatch) -> FrequencyState:
    """The state with these events, which are of one span."""
    _, chosen, propensities = _listed(events, np.ones(len(events), dtype=bool))
    buckets = _added(state.buckets, _bucket(propensities), np.stack([chosen, propensities], axis=1))
    state = structs.replace(state, events=state.events + len(events), buckets=buckets)
    if events.actions is None:
        return state
    codes, names = events.actions.chosen, events.actions.names
    places = {name: place for place, name in enumerate(state.names)}
    of_name = np.full(len(names) + 1, -1)
    for code in _by_first_event(codes, len(names)):
        name = names[code][:LONGEST_NAME]
        if len(places) < JUDGED_ACTIONS:
            places.setdefault(name, len(places))
        of_name[code] = places.get(name, -1)
    place, propensity = of_name[codes], events.propensity
    judged = place >= 0
    if not judged.all():
        place, propensity = place[judged], propensity[judged]
    columns = np.empty((2 + len(STAKES), len(place)))
    columns[0] = 1.0
    np.divide(1.0, propensity, out=columns[1])
    np.log1p(np.multiply.outer(STAKES, columns[1] - 1.0), out=columns[2:])
    return structs.replace(state, names=list(places), sums=_added(state.sums, place, columns.T))


def _by_first_event(codes: NDArray[np.int32], names: int) -> list[int]:
    """Return the codes that occur, in the order of their first events. An action of -1 is unknown."""
    first = np.full(names + 1, len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    occurring = np.flatnonzero(first[:-1] < len(codes))
    return [int(code) for code in occurring[np.argsort(first[occurring])]]


def judge(state: FrequencyState, error: float) -> tuple[bool, str] | None:
    """Whether the propensities of a stream agree with the choices, and the finding; None without any to compare.

    A correct stream ever has a finding with at most the probability `error`. Each comparison is the wealth of bets
    against it, which ever exceeds `1 / error` with this probability (Ville), with equal shares for the comparisons of a
    span and `1 / (j (j + 1))` for span j.

    * A bucket has the Poisson mixture `E[r^N exp(-(r - 1) P)]` of N choices and the sum P of propensities: a choice of
      probability p has the mean `1 + p (r - 1) <= exp(p (r - 1))`. `r` is gamma-distributed about 1.
    * An action has bets `1 + s (1 / p - 1)` where it is chosen and `1 - s` where not: the mean is 1 where it is
      available, less elsewhere. Only propensities that are too low can so be found; those that are too high make mean
      weights too small.

    Source: Howard, Ramdas, McAuliffe & Sekhon, Probability Surveys 2020; Waudby-Smith & Ramdas, JRSS B 2024.
    """
    found = list(dict.fromkeys([*_findings(state, error), *state.findings]))
    if found:
        return False, "; ".join(found[:3])
    if state.span == 1 and not state.names and not state.buckets.any():
        return None
    return True, f"how often actions were chosen agrees with the propensities of {counted(state.events, 'event')}"


def _findings(state: FrequencyState, error: float) -> Iterator[str]:
    """The findings of the present span."""
    limit = math.log((JUDGED_ACTIONS + BUCKET_COUNT) * state.span * (state.span + 1) / error)
    for what, ratio, wealth in _wealth(state):
        if wealth > limit:
            yield _finding(what, ratio)


def _wealth(state: FrequencyState) -> Iterator[tuple[str, float, float]]:
    """Of each action and bucket: a name, logged over true propensities, and the logarithm of the wealth."""
    number, inverse = state.sums[:, 0], state.sums[:, 1]
    gains = (state.events - number)[:, None] * np.log1p(-STAKES) + state.sums[:, 2:]
    wealth = np.logaddexp.reduce(gains, axis=1) - math.log(len(STAKES))
    for name, total, gain in zip(state.names, inverse.tolist(), wealth.tolist(), strict=True):
        yield f"action {name}", state.events / total, gain
    edges = zip(BUCKET_EDGES, BUCKET_EDGES[1:], state.buckets.tolist(), strict=False)
    for low, high, (chosen, expected) in edges:
        ratio = expected / chosen if chosen else math.inf
        yield f"propensities from {low:g} to {high:g}", ratio, _wealth_of_bucket(chosen, expected)


def _wealth_of_bucket(chosen: float, expected: float) -> float:
    """`ln E[r^chosen exp(-(r - 1) expected)]`, r gamma-distributed with mean 1."""
    shape = LIKELY_ERROR**-2
    mixed = math.lgamma(shape + chosen) - math.lgamma(shape) - chosen * math.log(shape)
    return mixed + expected - (shape + chosen) * math.log1p(expected / shape)
