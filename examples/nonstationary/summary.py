"""Means over seeds, as tables for people and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from contest import IN_TABLE
from experiment import EARLY, EARLY_FROM, EARLY_MOMENTS, SETTINGS, Score

THOUSANDTHS = 1e3
NONE = "–"
INTERVALS = {
    "stratified_dr / mixture": "drift_aware",
    "stratified_ips / mixture": "drift_aware",
    "ips / mixture": "drift_aware",
    "ips / window": "normal",
    "ips / window, normal with drift": "normal, drift included",
    "ips / window, Bernstein": "empirical_bernstein",
}
"""Contestants whose intervals are in the tables, and the kind of interval."""
ONLY_INTERVALS = {contestant.name for contestant in IN_TABLE if contestant.bound is not None}
"""Their estimates equal those of the same average without its own interval."""


class Mean(msgspec.Struct, frozen=True):
    """A contestant in one setting, averaged over seeds; `mse_se` is the standard error of `mse` (None for one seed)."""

    world: str
    setting: str
    contestant: str
    seeds: int
    events: int
    mse: float
    mse_se: float | None
    coverage: float | None
    half_width: float | None
    early_coverage: tuple[float | None, ...]
    early_half_width: tuple[float | None, ...]
    coverage_from: tuple[float | None, ...]
    phase_mse: tuple[float | None, ...]
    phase_coverage: tuple[float | None, ...]


def means(scores: Iterable[Score]) -> list[Mean]:
    """One row per setting and contestant, in order of first appearance."""
    order: dict[tuple[str, str, str, int], list[Score]] = {}
    for score in sorted(scores, key=lambda each: SETTINGS.index(each.setting)):
        order.setdefault((score.world, score.setting, score.contestant, score.events), []).append(score)
    return [_mean_of(*key, some) for key, some in order.items()]


def _mean_of(world: str, setting: str, contestant: str, events: int, some: Sequence[Score]) -> Mean:
    errors = np.array([score.mse for score in some])
    spread = _short(float(errors.std(ddof=1) / len(errors) ** 0.5)) if len(errors) > 1 else None
    columns = {
        name: tuple(_known_mean(column) for column in zip(*(getattr(score, name) for score in some), strict=True))
        for name in ("early_coverage", "early_half_width", "coverage_from", "phase_mse", "phase_coverage")
    }
    return Mean(
        world,
        setting,
        contestant,
        len(some),
        events,
        _short(float(errors.mean())),
        spread,
        _known_mean([score.coverage for score in some]),
        _known_mean([score.half_width for score in some]),
        **columns,
    )


def _known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _short(float(np.mean(known))) if known else None


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def write(scores: Sequence[Score], path: Path) -> None:
    """`path` with the suffixes .md and .json."""
    found = means(scores)
    path.with_suffix(".md").write_text(markdown(found))
    path.with_suffix(".json").write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, found)) + b"\n]\n")


def markdown(found: Sequence[Mean]) -> str:
    """The tables of one world."""
    parts = [f"# {found[0].world}: {found[0].events:,} events a run"]
    seeds_of = {row: max(each.seeds for each in found if each.contestant == row) for row in _rows(found)}
    for seeds in sorted(set(seeds_of.values()), reverse=True):
        rows = {row: "" for row, its_seeds in seeds_of.items() if its_seeds == seeds and row not in ONLY_INTERVALS}
        parts.append(f"## Mean squared error, thousandths (± standard error), seeds 0 to {seeds - 1}")
        parts.append(_by_setting("", found, _error, rows))
    if any(each.contestant in INTERVALS for each in found):
        parts.append("## Coverage of the value now, and half-width of the 95% interval")
        parts.append(_by_setting("interval", found, _interval, INTERVALS))
        parts.append("## Coverage early, all settings together")
        parts.append(_early(found))
    return "\n\n".join(parts) + "\n"


def _rows(found: Iterable[Mean]) -> list[str]:
    return list(dict.fromkeys(each.contestant for each in found))


def _by_setting(note: str, found: Sequence[Mean], cell: Callable[[Mean], str], rows: Mapping[str, str]) -> str:
    """One line per contestant, with a note (no such column without a heading), and one column per setting."""
    by = {(each.contestant, each.setting): each for each in found}
    notes = {row: [said] if note else [] for row, said in rows.items()}
    head = ["", *([note] if note else []), *SETTINGS]
    body = [
        [row, *notes[row], *(cell(by[row, setting]) if (row, setting) in by else NONE for setting in SETTINGS)]
        for row in rows
        if any((row, setting) in by for setting in SETTINGS)
    ]
    return _table(head, body)


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _error(mean: Mean) -> str:
    decimals = 3 if mean.mse * THOUSANDTHS < 2 else 2
    error = f"{mean.mse * THOUSANDTHS:.{decimals}f}"
    return error if mean.mse_se is None else f"{error} ± {mean.mse_se * THOUSANDTHS:.{decimals}f}"


def _interval(mean: Mean) -> str:
    known = mean.coverage is not None and mean.half_width is not None
    return f"{mean.coverage:.3f}, ± {mean.half_width:.4f}" if known else NONE


def _early(found: Sequence[Mean]) -> str:
    head = ["events", *(f"{count:,}" for count in EARLY_MOMENTS), *(f"{count} to {EARLY:,}" for count in EARLY_FROM)]
    body = []
    for row in INTERVALS:
        some = [(*each.early_coverage, *each.coverage_from) for each in found if each.contestant == row]
        if some:
            known = map(_known_mean, zip(*some, strict=True))
            body.append([row, *(NONE if share is None else f"{share:.3f}" for share in known)])
    return _table(head, body)
