"""Means over seeds, as JSON, as tables of a world, and as the tables of README.md."""

from __future__ import annotations

import re
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
PUBLISHED = {
    "ips, cumulative": ("ips / cumulative",),
    "ips, window 10,000": ("ips / window",),
    "ips, decay .9999": ("ips / decay",),
    "ips, adaptive window, published": ("ips / adaptive_window, published",),
    "ips, adaptive decay, published": ("ips / adaptive_decay, published",),
    "ips, adaptive window, mse, bias weight .5 / 1": ("ips / adaptive_window, mse .5", "ips / adaptive_window, mse 1"),
    "ips, adaptive decay, mse, bias weight .5 / 1": ("ips / adaptive_decay, mse .5", "ips / adaptive_decay, mse 1"),
    "ips, adaptive window, immediate growth, published / mse .5": (
        "ips / adaptive_window, published, immediate",
        "ips / adaptive_window, mse .5, immediate",
    ),
}
"""Rows of the table of errors, with one or two contestants each."""
DEFAULT = "stratified_dr / mixture"
ERRORS = PUBLISHED | {
    "ips, mixture": ("ips / mixture",),
    "snips, mixture": ("snips / mixture",),
    "stratified_ips, mixture": ("stratified_ips / mixture",),
    "**stratified_dr, mixture** (the default)": (DEFAULT,),
    "an A/B test of each candidate on as many events, window 10,000": ("A/B test",),
}
FORGETTING = [name for row, names in PUBLISHED.items() if row != "ips, cumulative" for name in names]
SHOWN_EARLY = (DEFAULT, "stratified_ips / mixture", "ips / window", "ips / window, Bernstein")
SYNTHETIC = ("softmax-slow", "softmax-fast")
Means = Mapping[str, Sequence["Mean"]]
"""The means of each world, by its name."""
ONLY_INTERVALS = {contestant.name for contestant in IN_TABLE if contestant.bound is not None}
"""Their estimates equal those of the same average without its own interval."""


class Mean(msgspec.Struct, frozen=True):
    """A contestant in one setting, averaged over seeds; `*_se` are standard errors (None for one seed)."""

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
    published_mse: float | None = None
    published_mse_se: float | None = None


def means(scores: Iterable[Score]) -> list[Mean]:
    """One row per setting and contestant, in order of first appearance."""
    order: dict[tuple[str, str, str, int], list[Score]] = {}
    for score in sorted(scores, key=lambda each: SETTINGS.index(each.setting)):
        order.setdefault((score.world, score.setting, score.contestant, score.events), []).append(score)
    return [_mean_of(*key, some) for key, some in order.items()]


def _mean_of(world: str, setting: str, contestant: str, events: int, some: Sequence[Score]) -> Mean:
    mse, spread = _mean_and_error([score.mse for score in some])
    published = [score.published_mse for score in some if score.published_mse is not None]
    published_mse, published_spread = _mean_and_error(published) if published else (None, None)
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
        mse,
        spread,
        _known_mean([score.coverage for score in some]),
        _known_mean([score.half_width for score in some]),
        **columns,
        published_mse=published_mse,
        published_mse_se=published_spread,
    )


def _mean_and_error(errors: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and its standard error."""
    spread = _short(float(np.std(errors, ddof=1) / len(errors) ** 0.5)) if len(errors) > 1 else None
    return _short(float(np.mean(errors))), spread


def _known_mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _short(float(np.mean(known))) if known else None


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def write(scores: Sequence[Score], path: Path) -> None:
    """`path` with the suffixes .md and .json, in which rows of contestants that were not run again stay."""
    found = means(scores)
    kept = {_key(each): each for each in stored(path.with_suffix(".json"))} | {_key(each): each for each in found}
    merged = sorted(kept.values(), key=lambda each: SETTINGS.index(each.setting))
    path.with_suffix(".md").write_text(markdown(merged))
    path.with_suffix(".json").write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, merged)) + b"\n]\n")


def _key(mean: Mean) -> tuple[str, str, int]:
    return mean.setting, mean.contestant, mean.events


def stored(path: Path) -> list[Mean]:
    """The means of a world that `write` wrote; none if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Mean]) if path.exists() else []


def read(results: Path) -> dict[str, list[Mean]]:
    """The means of all worlds that `write` wrote."""
    return {world: stored(results / f"{world}.json") for world in ("lastfm", *SYNTHETIC)}


def fill_in(document: str, worlds: Means, variants: Mapping[str, list[list[str]]]) -> str:
    """Replace tables, each after a line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""
    settings = list(SETTINGS)
    tables = {
        "errors": _table(["", *settings], _errors(worlds["lastfm"])),
        "intervals": _table(["", "interval", *settings], _covered(worlds["lastfm"])),
        "early": _early(worlds["lastfm"], SHOWN_EARLY),
        "synthetic": _table(["", "", *settings], [row for each in SYNTHETIC for row in _synthetic(each, worlds[each])]),
        "published": _table(["", "", *settings], _published(worlds["lastfm"], variants["published"])),
        "variants": _table(["idea", *settings, ""], variants["ideas"]),
        "ridges": _table(["", "", *settings], variants["ridges"]),
        "merged": _table(["", "", *settings], variants["merged"]),
        "losses": _table(["mixture", *settings], variants["losses"]),
        "tried": _table(["", "idea", *settings], variants["tried"]),
    }
    pattern = r"(<!-- table: (\w+) -->\n)(?:\|[^\n]*\n)*"
    document = re.sub(pattern, lambda found: f"{found[1]}{tables[found[2]]}\n", document)
    known = figures(worlds, variants)
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda found: f"{known[found[1]]}<!-- ={found[1]} -->", document)


def figures(worlds: Means, variants: Mapping[str, list[list[str]]]) -> dict[str, str]:
    """The figures of the text by name, most of them errors in thousandths."""
    by = {(each.contestant, each.setting): each for each in worlds["lastfm"]}
    fast = {(each.contestant, each.setting): each for each in worlds["softmax-fast"]}
    known = {
        f"coverage_fast_{setting}": f"{100 * (fast[DEFAULT, setting].coverage or 0.0):.1f}" for setting in SETTINGS
    }
    for setting in SETTINGS:
        cumulative, default = by["ips / cumulative", setting], by[DEFAULT, setting]
        best = min((by[name, setting] for name in FORGETTING), key=lambda each: each.mse)
        known[f"default_{setting}"] = _ratio(default.mse / best.mse)
        for name in ("cumulative", "window", "decay", "mixture", "adaptive_decay, published"):
            known[f"{name.partition(',')[0]}_{setting}"] = _without_zero(by[f"ips / {name}", setting], False)
        for name in ("window", "decay"):
            known[f"{name}_over_cumulative_{setting}"] = _ratio(by[f"ips / {name}", setting].mse / cumulative.mse)
            shown = [each for each in worlds["lastfm"] if each.contestant.startswith(f"ips / {name} ")]
            least = min((each for each in shown if each.setting == setting), key=lambda each: each.mse)
            known[f"best_{name}_{setting}"] = f"{_horizon(least.contestant):,}"
    for alpha in ("0.9995", "0.9999", "0.99998"):
        name = f"ips / decay {alpha}"
        known[f"decay_of_{_horizon(name)}"] = _without_zero(by[name, "smooth"], False)
    cumulative = by["ips / cumulative", "stationary"]
    known["spread_stationary"] = _without_zero(cumulative, True).partition("± ")[2]
    known["default_over_cumulative"] = f"{by[DEFAULT, 'stationary'].mse / cumulative.mse:.1f}"
    known["coverage_after_jump"] = f"{100 * (by[DEFAULT, 'abrupt'].phase_coverage[0] or 0.0):.0f}"
    notes = {f"{name}_{place}": figure for name, row in variants["notes"] for place, figure in enumerate(row)}
    return known | notes


def _horizon(contestant: str) -> int:
    """The events of `ips / window 500`, or 1 over 1 - alpha of `ips / decay 0.998`."""
    number = float(contestant.rpartition(" ")[2])
    return round(number if number > 1 else 1 / (1 - number))


def _ratio(share: float) -> str:
    return f"{share:.2f}".removeprefix("0")


def _errors(found: Sequence[Mean]) -> Iterable[list[str]]:
    by = {(each.contestant, each.setting): each for each in found}
    for row, names in ERRORS.items():
        cells = [
            " / ".join(_without_zero(by[name, setting], len(names) == 1) for name in names) for setting in SETTINGS
        ]
        yield [row, *(f"**{cell}**" if names == (DEFAULT,) else cell for cell in cells)]


def _published(found: Sequence[Mean], reported: Sequence[Sequence[str]]) -> Iterable[list[str]]:
    """The errors that the authors report, if any, and those of the same estimators here on the grid of the authors."""
    by = {(each.contestant, each.setting): each for each in found}
    for name, *errors in reported:
        if errors:
            yield [name, "thesis", *errors]
        yield ["" if errors else name, "here", *(_on_published_grid(by[name, setting]) for setting in SETTINGS)]


def _on_published_grid(mean: Mean) -> str:
    if mean.published_mse is None:
        return NONE
    return _without_zero(msgspec.structs.replace(mean, mse=mean.published_mse, mse_se=mean.published_mse_se), True)


def _covered(found: Sequence[Mean]) -> Iterable[list[str]]:
    by = {(each.contestant, each.setting): each for each in found}
    for name, kind in INTERVALS.items():
        if name != "ips / mixture":
            yield [name, f"`{kind}`", *(_interval(by[name, setting]) for setting in SETTINGS)]


def _synthetic(world: str, found: Sequence[Mean]) -> Iterable[list[str]]:
    """The best published form of each setting, and the mixtures."""
    by = {(each.contestant, each.setting): each for each in found}
    best = [min((by[name, setting] for name in FORGETTING), key=lambda each: each.mse) for setting in SETTINGS]
    forms = [f"{_without_zero(each, False)} ({each.contestant.removeprefix('ips / ')})" for each in best]
    yield [world, "best published", *forms]
    for name in ("stratified_ips / mixture", DEFAULT):
        yield ["", name, *(_without_zero(by[name, setting], True) for setting in SETTINGS)]
    yield ["", f"coverage and half-width of {DEFAULT}", *(_interval(by[DEFAULT, setting]) for setting in SETTINGS)]


def _without_zero(mean: Mean, spread: bool) -> str:
    """An error in thousandths as `.133 ± .003`."""
    return re.sub(r"\b0\.", ".", _error(mean) if spread else _error(msgspec.structs.replace(mean, mse_se=None)))


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
        parts.append(_early(found, INTERVALS))
    return "\n\n".join(parts) + "\n"


def _rows(found: Iterable[Mean]) -> list[str]:
    return list(dict.fromkeys(each.contestant for each in found))


def _by_setting(note: str, found: Sequence[Mean], cell: Callable[[Mean], str], rows: Mapping[str, str]) -> str:
    """One line per contestant, with a note (no such column without a heading), and one column per setting."""
    by = {(each.contestant, each.setting): each for each in found}
    notes = {row: [text] if note else [] for row, text in rows.items()}
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


def _early(found: Sequence[Mean], rows: Iterable[str]) -> str:
    head = ["events", *(f"{count:,}" for count in EARLY_MOMENTS), *(f"{count} to {EARLY:,}" for count in EARLY_FROM)]
    body = []
    for row in rows:
        some = [(*each.early_coverage, *each.coverage_from) for each in found if each.contestant == row]
        if some:
            known = map(_known_mean, zip(*some, strict=True))
            body.append([row, *(NONE if share is None else f"{share:.3f}" for share in known)])
    return _table(head, body)
