"""Average scores over seeds, and write them as JSON, as tables of a world, and as tables of README.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
from baselines import BASELINES
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
    "regression-assisted dr": "normal",
}
"""Kind of interval of the contestants with intervals in the tables."""
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
TAGGED = "lastfm-tagged"
BASELINE_WORLDS = ("lastfm", "softmax-fast")
Means = Mapping[str, Sequence["Mean"]]
"""Means of each world by its name."""
ONLY_INTERVALS = {contestant.name for contestant in IN_TABLE if contestant.bound is not None}
"""Contestants that differ from another one only in their interval, so their estimates are not shown again."""


class Mean(msgspec.Struct, frozen=True):
    """Hold the scores of a contestant in one setting, averaged over seeds.

    Names that end in `_se` are standard errors, None for a single seed. The other numbers are described in `Score`.
    """

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
    """Return one row per setting and contestant, in order of first appearance."""
    order: dict[tuple[str, str, str, int], list[Score]] = {}
    for score in sorted(scores, key=lambda score: SETTINGS.index(score.setting)):
        order.setdefault((score.world, score.setting, score.contestant, score.events), []).append(score)
    return [_mean_of(*key, group) for key, group in order.items()]


def _mean_of(world: str, setting: str, contestant: str, events: int, scores: Sequence[Score]) -> Mean:
    mse, spread = _mean_and_error([score.mse for score in scores])
    published = [score.published_mse for score in scores if score.published_mse is not None]
    published_mse, published_spread = _mean_and_error(published) if published else (None, None)
    columns = {
        name: tuple(
            _mean_of_present(column) for column in zip(*(getattr(score, name) for score in scores), strict=True)
        )
        for name in ("early_coverage", "early_half_width", "coverage_from", "phase_mse", "phase_coverage")
    }
    return Mean(
        world,
        setting,
        contestant,
        len(scores),
        events,
        mse,
        spread,
        _mean_of_present([score.coverage for score in scores]),
        _mean_of_present([score.half_width for score in scores]),
        **columns,
        published_mse=published_mse,
        published_mse_se=published_spread,
    )


def _mean_and_error(errors: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean and its standard error."""
    spread = _short(float(np.std(errors, ddof=1) / len(errors) ** 0.5)) if len(errors) > 1 else None
    return _short(float(np.mean(errors))), spread


def _mean_of_present(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return _short(float(np.mean(present))) if present else None


def _short(number: float) -> float:
    return float(f"{number:.4g}")


def write(scores: Sequence[Score], path: Path) -> None:
    """Write the means to `path` with the suffixes .md and .json.

    Rows of contestants that were not run again, or on fewer seeds, are kept.
    """
    lookup = {_key(mean): mean for mean in stored(path.with_suffix(".json"))}
    lookup |= {_key(mean): mean for mean in means(scores) if mean.seeds >= lookup.get(_key(mean), mean).seeds}
    merged = sorted(lookup.values(), key=lambda mean: SETTINGS.index(mean.setting))
    path.with_suffix(".md").write_text(markdown(merged))
    path.with_suffix(".json").write_bytes(b"[\n" + b",\n".join(map(msgspec.json.encode, merged)) + b"\n]\n")


def _key(mean: Mean) -> tuple[str, str, int]:
    return mean.setting, mean.contestant, mean.events


def stored(path: Path) -> list[Mean]:
    """Return the means of a world that `write` wrote, or none if there is no such file."""
    return msgspec.json.decode(path.read_bytes(), type=list[Mean]) if path.exists() else []


def read(results: Path) -> dict[str, list[Mean]]:
    """Return the means of all worlds that `write` wrote."""
    return {world: stored(results / f"{world}.json") for world in ("lastfm", TAGGED, *SYNTHETIC)}


def fill_in(document: str, worlds: Means, variants: Mapping[str, list[list[str]]], cycles: str) -> str:
    """Replace tables, each after a line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""
    settings = list(SETTINGS)
    tables = {
        "errors": _table(["", *settings], _errors(worlds["lastfm"])),
        "intervals": _table(["", "interval", *settings], _covered(worlds["lastfm"])),
        "early": _early(worlds["lastfm"], SHOWN_EARLY),
        "baselines": _table(
            ["", "", *settings], [row for name in BASELINE_WORLDS for row in _baselines(name, worlds[name])]
        ),
        "synthetic": _table(
            ["", "", *settings], [row for name in SYNTHETIC for row in _best_and_mixtures(name, worlds[name])]
        ),
        "tagged": _table(["", "", *settings], _best_and_mixtures(TAGGED, worlds[TAGGED])),
        "published": _table(["", "", *settings], _published(worlds["lastfm"], variants["published"])),
        "variants": _table(["idea", *settings, ""], variants["ideas"]),
        "ridges": _table(["", "", *settings], variants["ridges"]),
        "merged": _table(["", "", *settings], variants["merged"]),
        "losses": _table(["mixture", *settings], variants["losses"]),
        "tried": _table(["", "idea", *settings], variants["tried"]),
        "cycles": cycles,
    }
    pattern = r"(<!-- table: (\w+) -->\n)(?:\|[^\n]*\n)*"
    document = re.sub(pattern, lambda match: f"{match[1]}{tables[match[2]]}\n", document)
    texts = figures(worlds, variants)
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda match: f"{texts[match[1]]}<!-- ={match[1]} -->", document)


def figures(worlds: Means, variants: Mapping[str, list[list[str]]]) -> dict[str, str]:
    """Return the figures of the text by name. Most of them are errors in thousandths."""
    lookup = {(mean.contestant, mean.setting): mean for mean in worlds["lastfm"]}
    fast = {(mean.contestant, mean.setting): mean for mean in worlds["softmax-fast"]}
    texts = {
        f"coverage_fast_{setting}": f"{100 * (fast[DEFAULT, setting].coverage or 0.0):.1f}" for setting in SETTINGS
    }
    for setting in SETTINGS:
        cumulative, default = lookup["ips / cumulative", setting], lookup[DEFAULT, setting]
        best = min((lookup[name, setting] for name in FORGETTING), key=lambda mean: mean.mse)
        texts[f"default_{setting}"] = _ratio(default.mse / best.mse)
        for name in ("cumulative", "window", "decay", "mixture", "adaptive_decay, published"):
            texts[f"{name.partition(',')[0]}_{setting}"] = _error_text(lookup[f"ips / {name}", setting], False)
        for name in ("window", "decay"):
            texts[f"{name}_over_cumulative_{setting}"] = _ratio(lookup[f"ips / {name}", setting].mse / cumulative.mse)
            shown = [mean for mean in worlds["lastfm"] if mean.contestant.startswith(f"ips / {name} ")]
            least = min((mean for mean in shown if mean.setting == setting), key=lambda mean: mean.mse)
            texts[f"best_{name}_{setting}"] = f"{_horizon(least.contestant):,}"
    for alpha in ("0.9995", "0.9999", "0.99998"):
        name = f"ips / decay {alpha}"
        texts[f"decay_of_{_horizon(name)}"] = _error_text(lookup[name, "smooth"], False)
    cumulative = lookup["ips / cumulative", "stationary"]
    texts["spread_stationary"] = _error_text(cumulative, True).partition("± ")[2]
    texts["default_over_cumulative"] = f"{lookup[DEFAULT, 'stationary'].mse / cumulative.mse:.1f}"
    texts["coverage_after_jump"] = f"{100 * (lookup[DEFAULT, 'abrupt'].phase_coverage[0] or 0.0):.0f}"
    shares = [
        mean.coverage or 0.0
        for name in BASELINE_WORLDS
        for mean in worlds[name]
        if mean.contestant == "regression-assisted dr"
    ]
    texts |= {"assisted_low": f"{100 * min(shares):.0f}", "assisted_high": f"{100 * max(shares):.0f}"}
    notes = {f"{name}_{index}": figure for name, row in variants["notes"] for index, figure in enumerate(row)}
    return texts | notes


def _horizon(contestant: str) -> int:
    """Return the events of `ips / window 500`, or `1 / (1 - alpha)` of `ips / decay 0.998`."""
    number = float(contestant.rpartition(" ")[2])
    return round(number if number > 1 else 1 / (1 - number))


def _ratio(share: float) -> str:
    return f"{share:.2f}".removeprefix("0")


def _errors(means: Sequence[Mean]) -> Iterable[list[str]]:
    lookup = {(mean.contestant, mean.setting): mean for mean in means}
    for row, names in ERRORS.items():
        cells = [
            " / ".join(_error_text(lookup[name, setting], len(names) == 1) for name in names) for setting in SETTINGS
        ]
        yield [row, *(f"**{cell}**" if names == (DEFAULT,) else cell for cell in cells)]


def _published(means: Sequence[Mean], reported: Sequence[Sequence[str]]) -> Iterable[list[str]]:
    """Yield the errors that the authors report, if any, and the errors of the same estimators here on their grid."""
    lookup = {(mean.contestant, mean.setting): mean for mean in means}
    for name, *errors in reported:
        if errors:
            yield [name, "thesis", *errors]
        yield ["" if errors else name, "here", *(_published_error(lookup[name, setting]) for setting in SETTINGS)]


def _published_error(mean: Mean) -> str:
    if mean.published_mse is None:
        return NONE
    return _error_text(msgspec.structs.replace(mean, mse=mean.published_mse, mse_se=mean.published_mse_se), True)


def _covered(means: Sequence[Mean]) -> Iterable[list[str]]:
    lookup = {(mean.contestant, mean.setting): mean for mean in means}
    for name, kind in INTERVALS.items():
        if name != "ips / mixture":
            yield [name, f"`{kind}`", *(_interval(lookup[name, setting]) for setting in SETTINGS)]


def _best_and_mixtures(world: str, means: Sequence[Mean]) -> Iterable[list[str]]:
    """Yield the best published form in each setting, and the mixtures."""
    lookup = {(mean.contestant, mean.setting): mean for mean in means}
    best = [min((lookup[name, setting] for name in FORGETTING), key=lambda mean: mean.mse) for setting in SETTINGS]
    forms = [f"{_error_text(mean, False)} ({mean.contestant.removeprefix('ips / ')})" for mean in best]
    yield [world, "best published", *forms]
    for name in ("stratified_ips / mixture", DEFAULT):
        yield ["", name, *(_error_text(lookup[name, setting], True) for setting in SETTINGS)]
    yield ["", f"coverage and half-width of {DEFAULT}", *(_interval(lookup[DEFAULT, setting]) for setting in SETTINGS)]


def _baselines(world: str, means: Sequence[Mean]) -> Iterable[list[str]]:
    """Yield the errors of the baselines of after 2019, between the window and the default."""
    lookup = {(mean.contestant, mean.setting): mean for mean in means}
    names = ["ips / window", *(baseline.name for baseline in BASELINES), DEFAULT]
    for name in names:
        yield [
            "" if name != names[0] else world,
            name,
            *(_error_text(lookup[name, setting], True) for setting in SETTINGS),
        ]


def _error_text(mean: Mean, spread: bool) -> str:
    """Format an error in thousandths, such as `.133 ± .003`."""
    return re.sub(r"\b0\.", ".", _error(mean) if spread else _error(msgspec.structs.replace(mean, mse_se=None)))


def markdown(means: Sequence[Mean]) -> str:
    """Return the tables of one world."""
    parts = [f"# {means[0].world}: {means[0].events:,} events a run"]
    seeds_of = {row: max(mean.seeds for mean in means if mean.contestant == row) for row in _rows(means)}
    for seeds in sorted(set(seeds_of.values()), reverse=True):
        rows = {row: "" for row, its_seeds in seeds_of.items() if its_seeds == seeds and row not in ONLY_INTERVALS}
        parts.append(f"## Mean squared error, thousandths (± standard error), seeds 0 to {seeds - 1}")
        parts.append(_setting_table("", means, _error, rows))
    if any(mean.contestant in INTERVALS for mean in means):
        parts.append("## Coverage of the value now, and half-width of the 95% interval")
        parts.append(_setting_table("interval", means, _interval, INTERVALS))
        parts.append("## Coverage early, all settings together")
        parts.append(_early(means, INTERVALS))
    return "\n\n".join(parts) + "\n"


def _rows(means: Iterable[Mean]) -> list[str]:
    return list(dict.fromkeys(mean.contestant for mean in means))


def _setting_table(note: str, means: Sequence[Mean], cell: Callable[[Mean], str], rows: Mapping[str, str]) -> str:
    """Return a table with one line per contestant and one column per setting.

    Args:
        note: Heading of the notes. Empty leaves out their column.
        means: Means of one world.
        cell: Formats a mean.
        rows: Notes by contestant.
    """
    lookup = {(mean.contestant, mean.setting): mean for mean in means}
    notes = {row: [text] if note else [] for row, text in rows.items()}
    head = ["", *([note] if note else []), *SETTINGS]
    body = [
        [row, *notes[row], *(cell(lookup[row, setting]) if (row, setting) in lookup else NONE for setting in SETTINGS)]
        for row in rows
        if any((row, setting) in lookup for setting in SETTINGS)
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
    shown = mean.coverage is not None and mean.half_width is not None
    return f"{mean.coverage:.3f}, ± {mean.half_width:.4f}" if shown else NONE


def _early(means: Sequence[Mean], rows: Iterable[str]) -> str:
    head = ["events", *(f"{count:,}" for count in EARLY_MOMENTS), *(f"{count} to {EARLY:,}" for count in EARLY_FROM)]
    body = []
    for row in rows:
        coverages = [(*mean.early_coverage, *mean.coverage_from) for mean in means if mean.contestant == row]
        if coverages:
            shares = map(_mean_of_present, zip(*coverages, strict=True))
            body.append([row, *(NONE if share is None else f"{share:.3f}" for share in shares)])
    return _table(head, body)
