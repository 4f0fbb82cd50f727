"""Compare how often actions were chosen with their logged propensities, for a whole log or a stream."""

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
from streameval.events.origin import mix64
from streameval.events.validation import PROPENSITY_TOLERANCE

ERROR = 0.01
"""Probability that a correct log has any finding."""
MIN_CHOSEN = 20
"""Choices of an action, expected or logged, before it is judged."""
BUCKET_EDGES = np.array([0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
"""Bounds of the buckets of propensities. The lower bound belongs to the bucket below, also after rounding."""
BUCKET_COUNT = len(BUCKET_EDGES) - 1

SPAN = 200_000
"""Events of a stream after which the comparison starts from zero, so that it ends once the propensities are right."""
MAX_ACTIONS = 1000
"""Number of actions of a stream that are judged in a span, the first ones that occur."""
MAX_NAME = 100
"""Characters of an action's name that are kept."""
STAKES = np.array([0.5, 0.2, 0.08, 0.03, 0.01, 0.003])
"""Shares of its wealth that a bet risks on each event."""
LIKELY_ERROR = 0.1
"""Relative error of propensities that bets on buckets expect."""
LEAST_SAMPLING = 0.001
"""Events of a stream that were sampled more thinly count as sampled with this probability, so that enough remain."""


class Frequencies:
    """Count choices and propensities of a log by action, and by bucket if events list all propensities.

    There are two cases. If events list all propensities, their sum per action is compared with the number of choices.
    If events carry only the chosen action's propensity p, the sum of `1 / p` over the choices of an action is compared
    with the number of events that offered it: events that list it, and events without a list.

    A downsampled event counts for the inverse q of its sampling probability, in all sums. The selection may depend on
    the choice, so the variance of a difference of such events is the sum of the squares that they have: of
    `q (1 / p - 1)` if an action was chosen and of q if not, or of `q (chosen - p)`.

    >>> frequencies = Frequencies()
    >>> frequencies.add_single(["a", "b"] * 500, np.full(1000, 0.5))
    >>> frequencies.findings()
    ([], 2)
    """

    def __init__(self) -> None:
        self._names: dict[object, int] = {}
        # choices, sum of q / p, its variance, and what the choices add to the sum of squares
        self._single = np.zeros((0, 4))
        # sums of q and q^2 over events with a single propensity that list the action
        self._available = np.zeros((0, 2))
        # choices, sums of q choices and q p, the variance of the difference, and the sum of its squares
        self._listed = np.zeros((0, 5))
        self._buckets = np.zeros((BUCKET_COUNT, 5))
        self._without_list = np.zeros(2)
        self._events, self._is_downsampled = 0, False

    def add_single(
        self,
        actions: Sequence[object],
        propensity: Array,
        lists: Sequence[Sequence[object] | None] = (),
        weight: Array | float = 1.0,
    ) -> None:
        """Add events by their chosen actions and propensities.

        Args:
            actions: the chosen actions
            propensity: the propensities of these actions [n]
            lists: the available actions of each event, None if unknown
            weight: inverse sampling probabilities [n]
        """
        inverse, weight = 1.0 / propensity, np.broadcast_to(weight, propensity.shape)
        excess = weight**2 * ((inverse - 1.0) ** 2 - 1.0)
        columns = [np.ones_like(inverse), weight * inverse, weight**2 * inverse * (inverse - 1.0), excess]
        self._single = _add_rows(self._single, self._codes(actions), np.stack(columns, axis=1))
        powers = np.stack([weight, weight**2], axis=1)
        sizes = np.array([len(listed or ()) for listed in lists] or np.zeros(len(inverse)), dtype=np.int64)
        names = [name for listed in lists for name in listed or ()]
        self._available = _add_rows(self._available, self._codes(names), np.repeat(powers, sizes, axis=0))
        self._without_list += powers[sizes == 0].sum(axis=0)
        self._add_number(weight)

    def add_listed(
        self, actions: Sequence[object], chosen: Array, propensities: Array, weight: Array, owner: Index
    ) -> None:
        """Add events by all their actions.

        Args:
            actions: the actions of all events, end to end [rows]
            chosen: whether each was chosen [rows]
            propensities: [rows]
            weight: inverse sampling probabilities [events]
            owner: the event of each row [rows]
        """
        sizes = weight[owner]
        variance, squares = propensities * (1.0 - propensities), (chosen - propensities) ** 2
        sums = [chosen, sizes * chosen, sizes * propensities, sizes**2 * variance, sizes**2 * squares]
        columns = np.stack(sums, axis=1)
        self._listed = _add_rows(self._listed, self._codes(actions), columns)
        self._buckets = _add_rows(self._buckets, _bucket(propensities), columns)
        self._add_number(weight)

    def _add_number(self, weight: Array) -> None:
        self._events += len(weight)
        self._is_downsampled |= bool((weight != 1.0).any())

    def add(self, batch: EventBatch, actions: Sequence[object], lists: Sequence[Sequence[object] | None]) -> None:
        """Add the events of a batch. Slates and scored outcomes do not count."""
        has_choice = _has_one_choice(batch)
        listed, chosen, propensities = _listed(batch, has_choice)
        weight = 1.0 / batch.sampling_probability
        available = [lists[event] for event in np.flatnonzero(listed).tolist()]
        owner = np.repeat(np.arange(len(available)), [len(names or ()) for names in available])
        self.add_listed(
            [name for names in available for name in names or ()], chosen, propensities, weight[listed], owner
        )
        single = np.flatnonzero(has_choice & ~listed)
        indices = single.tolist()
        available = [lists[event] for event in indices]
        self.add_single([actions[event] for event in indices], batch.propensity[single], available, weight[single])

    @property
    def events(self) -> int:
        """Return the number of events."""
        return self._events

    def findings(self) -> tuple[list[str], int]:
        """Return actions and buckets with propensities that are too low or too high, and the number of comparisons."""
        comparisons = [*self._compare_single(), *self._compare_listed()]
        limit = NormalDist().inv_cdf(1.0 - ERROR / 2 / max(1, len(comparisons)))
        return [_finding(what, ratio) for what, ratio, deviations in comparisons if abs(deviations) > limit], len(
            comparisons
        )

    def _codes(self, names: Iterable[object]) -> Index:
        return np.array([self._names.setdefault(name, len(self._names)) for name in names], dtype=np.int64)

    def _compare_single(self) -> Iterator[tuple[str, float, float]]:
        """Yield for each action a name, logged over true propensities, and the difference in standard deviations."""
        listed = np.zeros((len(self._names), 2))
        listed[: len(self._available)] = self._available
        for name, index in self._names.items():
            chosen, inverse, variance, excess = self._single[index] if index < len(self._single) else np.zeros(4)
            if chosen >= MIN_CHOSEN:
                offered, squares = self._without_list + listed[index]
                ratio = offered / inverse
                is_different = abs(ratio - 1.0) > PROPENSITY_TOLERANCE
                variance = self._variance(variance, squares + excess)
                deviations = (ratio - 1.0) * inverse / math.sqrt(variance) if variance else math.inf
                yield f"action {name}", float(ratio), float(deviations) if is_different else 0.0

    def _compare_listed(self) -> Iterator[tuple[str, float, float]]:
        for name, row in zip(self._names, self._listed.tolist(), strict=False):
            yield from self._compared(f"action {name}", *row)
        for low, high, row in zip(BUCKET_EDGES, BUCKET_EDGES[1:], self._buckets.tolist(), strict=False):
            yield from self._compared(f"propensities from {low:g} to {high:g}", *row)

    def _compared(
        self, what: str, number: float, chosen: float, expected: float, variance: float, squares: float
    ) -> Iterator[tuple[str, float, float]]:
        if max(number, expected * number / chosen if chosen else expected) >= MIN_CHOSEN:
            spread = self._variance(variance, squares)
            deviations = (expected - chosen) / math.sqrt(spread) if spread else 0.0
            yield what, expected / chosen if chosen else math.inf, deviations

    def _variance(self, of_choices: float, squares: float) -> float:
        """Return the variance of a difference, from squares if events were downsampled, maybe by what was chosen."""
        return max(of_choices, squares) if self._is_downsampled else of_choices


def _add_rows(sums: Array, codes: Index, columns: Array) -> Array:
    """Add rows to the sums [names, 3], which grow with new names."""
    number = max(len(sums), int(codes.max(initial=-1)) + 1)
    added = np.empty((number, sums.shape[1]))
    for name, column in enumerate(columns.T):
        added[:, name] = np.bincount(codes, column, number)
    added[: len(sums)] += sums
    return added


def _finding(what: str, ratio: float) -> str:
    """Describe an action or a bucket, given logged over true propensities."""
    side = "high" if ratio > 1 else "low"
    return f"{what}: the logged propensities are {significant(100 * abs(ratio - 1))} % too {side}"


def _has_one_choice(events: EventBatch) -> Mask:
    """Tell which events have one choice and its propensity, so neither slates nor scored outcomes [n]."""
    has_propensity = ~np.isnan(events.propensity)
    return has_propensity if events.slates is None else has_propensity & (events.slates.sizes == 0)


def _listed(events: EventBatch, is_kept: Mask) -> tuple[Mask, Array, Array]:
    """Select the kept events that list all propensities.

    Returns:
        A mask of these events [n], whether each of their rows was chosen, and the propensity of each row.
    """
    sets = events.action_sets
    if sets is None:
        return np.zeros(len(events), dtype=bool), np.zeros(0), np.zeros(0)
    listed, chosen, missing = is_kept & (sets.sizes > 0), np.zeros(len(sets.propensities)), np.isnan(sets.propensities)
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
        above += propensities > edge * (1 + PROPENSITY_TOLERANCE)  # 0.3 and 1 - 0.7 are in one bucket
    return above.astype(np.int64)


class FrequencyState(Struct, frozen=True, eq=False):
    """Hold how often the actions of a stream were chosen since the start of a span.

    Attributes:
        span: the number of this span, from 1
        findings: the findings at the end of the last span
        events: the number of events of this span
        buckets: choices and sums of propensities
        names: the judged actions
        sums: by action the choices, the sum of `1 / p`, and of `ln(1 + s (1 / p - 1))` for each stake
        sampling: the smallest sampling probability so far
        seen: the number of events so far
    """

    span: int
    findings: list[str]
    events: int
    buckets: Array
    names: list[str]
    sums: Array
    sampling: float = 1.0
    seen: int = 0


def start(span: int = 1, findings: Iterable[str] = (), sampling: float = 1.0, seen: int = 0) -> FrequencyState:
    """Start before the first event of a span, with the findings at the end of the last one."""
    sums, buckets = np.zeros((0, 2 + len(STAKES))), np.zeros((BUCKET_COUNT, 2))
    return FrequencyState(span, list(findings), 0, buckets, [], sums, sampling, seen)


def fold(state: FrequencyState, events: EventBatch, error: float) -> FrequencyState:
    """Return the state after some more events.

    A stream may be sampled by what was chosen or earned. So events are sampled again, until all of them are as thin as
    the thinnest so far: those that remain are what any log of them would be. A new thinnest event starts a span.
    """
    if events.actions is None and events.action_sets is None:
        return state
    events = events.take(_has_one_choice(events))
    while len(events):
        sampling = np.maximum(events.sampling_probability, LEAST_SAMPLING)
        if sampling[0] < state.sampling:
            state = start(state.span + (state.events > 0), state.findings, float(sampling[0]), state.seen)
        alike = len(events) if (sampling >= state.sampling).all() else int((sampling < state.sampling).argmax())
        state = _fold_alike(state, events[:alike], error)
        events = events[alike:]
    return state


def _fold_alike(state: FrequencyState, events: EventBatch, error: float) -> FrequencyState:
    """Return the state after events that are not thinner than the thinnest so far."""
    if state.sampling < 1.0:
        numbers = mix64(np.arange(state.seen + 1, state.seen + 1 + len(events), dtype=np.uint64))
        draws = (numbers >> np.uint64(11)).astype(float) * 2.0**-53
        state = structs.replace(state, seen=state.seen + len(events))
        events = events.take(draws * events.sampling_probability < state.sampling)
    first = 0
    while first < len(events):
        span_events = events[first : first + SPAN - state.events]
        state, first = _add_events(state, span_events), first + len(span_events)
        if state.events == SPAN:
            state = start(state.span + 1, _findings(state, error), state.sampling, state.seen)
    return state


def _add_events(state: FrequencyState, events: EventBatch) -> FrequencyState:
    """Add events of one span."""
    _, chosen, propensities = _listed(events, np.ones(len(events), dtype=bool))
    buckets = _add_rows(state.buckets, _bucket(propensities), np.stack([chosen, propensities], axis=1))
    state = structs.replace(state, events=state.events + len(events), buckets=buckets)
    if events.actions is None:
        return state
    codes, names = events.actions.chosen, events.actions.names
    indices = {name: index for index, name in enumerate(state.names)}
    index_by_code = np.full(len(names) + 1, -1)
    for code in _first_seen(codes, len(names)):
        name = names[code][:MAX_NAME]
        if len(indices) < MAX_ACTIONS:
            indices.setdefault(name, len(indices))
        index_by_code[code] = indices.get(name, -1)
    index, propensity = index_by_code[codes], events.propensity
    is_judged = index >= 0
    if not is_judged.all():
        index, propensity = index[is_judged], propensity[is_judged]
    columns = np.empty((2 + len(STAKES), len(index)))
    columns[0] = 1.0
    np.divide(1.0, propensity, out=columns[1])
    np.log1p(np.multiply.outer(STAKES, columns[1] - 1.0), out=columns[2:])
    return structs.replace(state, names=list(indices), sums=_add_rows(state.sums, index, columns.T))


def _first_seen(codes: NDArray[np.int32], names: int) -> list[int]:
    """Return the codes that occur, in the order of their first events. An action of -1 is unknown."""
    first = np.full(names + 1, len(codes))
    first[codes[::-1]] = np.arange(len(codes))[::-1]
    occurring = np.flatnonzero(first[:-1] < len(codes))
    return [int(code) for code in occurring[np.argsort(first[occurring])]]


def judge(state: FrequencyState, error: float) -> tuple[bool, str] | None:
    """Tell whether the propensities of a stream agree with the choices, and describe the finding.

    The result is None if there is nothing to compare. A correct stream ever has a finding with probability at most
    `error`. Each comparison is the wealth of bets against it, which ever exceeds `1 / error` with this probability
    (Ville). All comparisons of a span have equal shares, and span j has the share `1 / (j (j + 1))`.

    * A bucket has the Poisson mixture `E[r^N exp(-(r - 1) P)]` of N choices and the sum P of propensities. A choice of
      probability p has the mean `1 + p (r - 1) <= exp(p (r - 1))`. `r` is gamma-distributed about 1.
    * An action has bets `1 + s (1 / p - 1)` if it is chosen and `1 - s` if not. The mean is 1 if it is available, and
      less otherwise. Only propensities that are too low can be found this way. Propensities that are too high make mean
      weights too small.

    Source: Howard, Ramdas, McAuliffe & Sekhon, Probability Surveys 2020; Waudby-Smith & Ramdas, JRSS B 2024.
    """
    findings = list(dict.fromkeys([*_findings(state, error), *state.findings]))
    if findings:
        return False, "; ".join(findings[:3])
    if state.span == 1 and not state.names and not state.buckets.any():
        return None
    return True, f"how often actions were chosen agrees with the propensities of {counted(state.events, 'event')}"


def _findings(state: FrequencyState, error: float) -> Iterator[str]:
    """Yield the findings of the current span."""
    limit = math.log((MAX_ACTIONS + BUCKET_COUNT) * state.span * (state.span + 1) / error)
    for what, ratio, wealth in _wealth(state):
        if wealth > limit:
            yield _finding(what, ratio)


def _wealth(state: FrequencyState) -> Iterator[tuple[str, float, float]]:
    """Yield for each action and bucket a name, logged over true propensities, and the logarithm of the wealth."""
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
    """Return `ln E[r^chosen exp(-(r - 1) expected)]` for r gamma-distributed with mean 1."""
    shape = LIKELY_ERROR**-2
    mixed = math.lgamma(shape + chosen) - math.lgamma(shape) - chosen * math.log(shape)
    return mixed + expected - (shape + chosen) * math.log1p(expected / shape)
