"""`check --propensities`: whether logged propensities agree with how often actions were chosen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import NormalDist

import numpy as np

from streameval.cli.check import Finding, exit_code
from streameval.cli.check import as_json as in_json
from streameval.common.arrays import Array
from streameval.common.text import counted, significant
from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder
from streameval.events.action_sets import Index
from streameval.events.validation import PROPENSITY_TOLERANCE
from streameval.ingest.files.lines import table_format
from streameval.ingest.files.reading import read_events
from streameval.ingest.files.source import read_lines

ERROR = 0.01
"""The probability that a correct log has any finding."""
FEWEST_CHOSEN = 20
"""Choices of an action, expected or logged, before it is judged."""
BUCKET_EDGES = np.array([0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0])
"""Bounds of the buckets of propensities; the lower one belongs to the bucket below."""
HINT = (
    "log the probability that was used in the draw, after every filter; examples/recommender/README.md has a checklist"
)


class Frequencies:
    """Choices and propensities of a log, by action, and by bucket where events list all propensities.

    Of listed actions, the sum of the propensities is compared with the number of choices. An event with a single
    propensity has that of the chosen action: the sum of `1 / p` over the choices of an action is then compared with
    the number of events in which the action was available: those that list it, and those without a list.

    >>> frequencies = Frequencies()
    >>> frequencies.add_single(["a", "b"] * 500, np.full(1000, 0.5))
    >>> [finding.level for finding in frequencies.findings()]
    ['ok']
    """

    def __init__(self) -> None:
        self._names: dict[object, int] = {}
        self._single = np.zeros((0, 3))  # choices, sum of 1 / p, and the variance of that sum
        self._available = np.zeros((0, 1))  # events with a single propensity that list the action
        self._listed = np.zeros((0, 3))  # choices, sum of p, and the variance of the choices
        self._buckets = np.zeros((len(BUCKET_EDGES) - 1, 3))
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
        bucket = np.clip(np.searchsorted(BUCKET_EDGES, propensities, side="left") - 1, 0, len(self._buckets) - 1)
        self._buckets = _added(self._buckets, bucket, columns)
        self._events += events

    def add(self, batch: EventBatch, actions: Sequence[object], lists: Sequence[Sequence[object] | None]) -> None:
        """Add the events of a batch; slates and scored outcomes do not count."""
        known = ~np.isnan(batch.propensity)
        if batch.slates is not None:
            known &= batch.slates.sizes == 0
        sets, listed = batch.action_sets, np.zeros(len(batch), dtype=bool)
        if sets is not None:
            unknown = np.bincount(sets.owner[np.isnan(sets.propensities)], minlength=len(batch)) > 0
            listed = known & (sets.sizes > 0) & ~unknown
            rows = listed[sets.owner]
            names = [name for event in np.flatnonzero(listed).tolist() for name in lists[event] or ()]
            chosen = np.zeros(len(sets.owner))
            chosen[sets.logged[1]] = 1.0
            self.add_listed(names, chosen[rows], sets.propensities[rows], int(listed.sum()))
        single = np.flatnonzero(known & ~listed)
        places = single.tolist()
        available = [lists[event] for event in places]
        self.add_single([actions[event] for event in places], batch.propensity[single], available)

    def findings(self) -> Iterator[Finding]:
        """The actions and buckets that are off; one fact where none is."""
        found = [*self._of_single(), *self._of_listed()]
        limit = NormalDist().inv_cdf(1.0 - ERROR / 2 / max(1, len(found)))
        off = [(what, ratio) for what, ratio, deviations in found if abs(deviations) > limit]
        for what, ratio in off:
            side = "high" if ratio > 1 else "low"
            size = f"{significant(100 * abs(ratio - 1))} % too {side}"
            yield Finding("propensities", f"{what}: the logged propensities are {size}", "error", HINT)
        if not off:
            judged = f"how often actions were chosen ({counted(len(found), 'comparison')})"
            yield Finding("propensities", f"the propensities of {counted(self._events, 'event')} agree with {judged}")

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
    longer = np.zeros((max(len(sums), int(places.max(initial=-1)) + 1), sums.shape[1]))
    longer[: len(sums)] = sums
    np.add.at(longer, places, columns)
    return longer


def of_file(path: Path) -> list[Finding]:
    """The findings about the propensities of a log: NDJSON, CSV or Parquet.

    Raises:
        InputError: The file is missing or damaged, or has no event.
    """
    frequencies, events, rejected = Frequencies(), 0, 0
    for batch in _batches(path):
        fields = [] if batch.raw_fields is None else batch.raw_fields.values
        frequencies.add(batch, [each.get("action") for each in fields], [each.get("actions") for each in fields])
        events, rejected = events + len(batch), rejected + len(batch.rejected)
    if not events:
        raise InputError(f"{path} has no event, and {rejected:,} rejected lines", hint="`replay` gives the reasons")
    return list(frequencies.findings())


def _batches(path: Path) -> Iterator[EventBatch]:
    if table_format(str(path)) is not None:
        return read_events(path, policies=[], scores=["action"])
    decoder = JsonDecoder([], scores=["action"], rewarded=False)
    return map(decoder.decode_batch, read_lines(str(path), batch=2000))


def print_findings(path: Path, as_json: bool) -> int:
    """Print the findings about a log; the exit code is 1 where an action or a bucket is off."""
    findings = of_file(path)
    if as_json:
        print(in_json(findings))
    else:
        for finding in findings:
            finding.print()
    return exit_code(findings)
