"""Summarise stored runs as rates with standard errors, in a CSV file and in the tables of README.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from effects import SHOWN, Effect
from intervals import AUTO, LIMITED, OF_WINDOW, PARTS
from limits import LOOKS, Rate, table_of_limits
from runs import COLUMNS, Line
from worlds import DEPLOYED, LOGGING, WORLDS, World

KINDS = (
    "normal",
    "empirical_bernstein",
    "empirical_likelihood",
    LIMITED,
    "confidence_sequence",
    "drift_aware",
)
FIXED = ("cumulative", "window", "decay")
ADAPTIVE = ("adaptive_window", "adaptive_decay")
OF_ADAPTIVE = KINDS[:4]
OF_MIXTURE = ("drift_aware", "normal", "empirical_likelihood", LIMITED)
PROMISED = 0.05
SOON, LAST = 2_000, 10_000
"""Events after which `max_weight: auto` should be as narrow as the right limit, and the last look of most logs."""
NONE = "–"


class Row(NamedTuple):
    """Hold the rates of a cell in a world, over all runs and both candidates.

    Names that end in `_se` are standard errors over runs.

    Args:
        shown: Share of looks with an interval.
        above: Share of the shown intervals that lie above the truth.
        below: Share of the shown intervals that lie below the truth.
        miss: Sum of `above` and `below`.
        ever_above: Share of runs with an interval above the truth at any look.
        ever_below: Share of runs with an interval below the truth at any look.
        ever: Share of runs with a miss at any look.
        half_width: Mean half-width of the shown intervals.
    """

    world: str
    estimator: str
    average: str
    kind: str
    quantity: str
    runs: int
    shown: float
    above: float
    below: float
    miss: float
    miss_se: float
    ever_above: float
    ever_below: float
    ever: float
    ever_se: float
    half_width: float
    half_width_se: float


def rows_of(lines: Sequence[Line]) -> Iterator[Row]:
    """Yield the rows of one world from all of its lines."""
    for part in PARTS:
        if part_lines := [line for line in lines if line.part == part]:
            yield from _rows_of_part(part_lines)


def _rows_of_part(lines: Sequence[Line]) -> Iterator[Row]:
    runs = sum(line.runs for line in lines)
    for cell_sums in zip(*(line.cells for line in lines), strict=True):
        mean = np.sum([sums for _, sums, _ in cell_sums], axis=0) / runs
        square = np.sum([squares for _, _, squares in cell_sums], axis=0) / runs
        error = np.sqrt(np.maximum(square - mean**2, 0) / max(runs - 1, 1))
        means, errors = dict(zip(COLUMNS, mean, strict=True)), dict(zip(COLUMNS, error, strict=True))
        shown = means["shown"] or np.nan
        numbers = (
            means["shown"],
            means["above"] / shown,
            means["below"] / shown,
            (means["above"] + means["below"]) / shown,
            np.hypot(errors["above"], errors["below"]) / shown,
            means["ever_above"],
            means["ever_below"],
            means["ever"],
            errors["ever"],
            means["half_width"],
            errors["half_width"],
        )
        cells: list[Any] = [*cell_sums[0][0], runs, *(float(f"{number:.4g}") for number in numbers)]
        yield Row(lines[0].world, *cells)


def updated(rows: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """Replace the rows of cells that have a new row, and sort by world."""
    lookup = {row[:5]: row for row in (*rows, *new)}
    return sorted(lookup.values(), key=lambda row: list(WORLDS).index(row.world))


def fill_in(document: str, rows: Sequence[Row]) -> str:
    """Replace tables, each after a line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""
    return _replaced(document, {name: make(rows) for name, make in TABLES.items()}, figures(rows))


def figures(rows: Sequence[Row]) -> dict[str, str]:
    """Return the figures of the text by name: worst rates in percent, their range over worlds, and ratios of widths."""
    heavy = {"normal_03": "still-heavy-0.3", "normal_003": "still-heavy-0.03"}
    texts = {name: _share(_worst_of(rows, "normal", world)) for name, world in heavy.items()}
    texts["adaptive"] = _share(_worst_of(rows, LIMITED, "", ADAPTIVE))
    ranges: dict[str, list[float]] = {}
    named, single = _names("sessions", "crowd", named=True, weights="mild"), _names("still", "drifting", "learning")
    for kind in ("normal", "empirical_likelihood"):
        ranges[f"{kind}_unit"] = [_worst_of(rows, kind, world) for world in named]
        ranges[f"{kind}_ever"] = [_worst_of(rows, kind, world, ever=True) for world in single]
    crowds = {"crowd": _names("crowd", named=False), "crowd_unit": _names("crowd", named=True)}
    for name, worlds in {"sessions": _names("sessions"), **crowds}.items():
        ranges[f"sequence_{name}"] = [_worst_of(rows, "confidence_sequence", world, ever=True) for world in worlds]
    ranges["mixture_drifting"] = [
        _worst_of(rows, kind, name, ["mixture"], promise=False)
        for kind in OF_MIXTURE
        if kind != "drift_aware"
        for name in _names("drifting", weights="mild")
    ]
    world_groups = {"drifting": _names("drifting"), "others": _names("still", "sessions", "crowd", "learning")}
    for name, worlds in world_groups.items():
        ranges[f"drift_aware_{name}"] = [_worst_of(rows, "drift_aware", world, ["mixture"]) for world in worlds]
    ranges["normal_heavy"] = [
        _worst_of(rows, "normal", name) for name in _names("still", "drifting", "learning", weights="heavy")
    ]
    for name, worst in ranges.items():
        texts |= {f"{name}_low": _share(min(worst)), f"{name}_high": _share(max(worst))}
    width = {(row.world, row.average, row.quantity, row.kind): row.half_width for row in rows if row.estimator == "ips"}
    still, drifting = _names("still"), _names("drifting")
    wider = {
        "bernstein": [
            width[name, average, "value", "empirical_bernstein"] / width[name, average, "value", "normal"]
            for name in still
            for average in FIXED
        ],
        "window": [
            half / width[name, average, quantity, "normal"]
            for (name, average, quantity, kind), half in width.items()
            if name in drifting and average == "window" and kind == "confidence_sequence"
        ],
    }
    for name, ratios in wider.items():
        texts |= {f"{name}_narrowest": f"{min(ratios):.1f}", f"{name}_widest": f"{max(ratios):.1f}"}
    compared = [
        half > width[name, average, quantity, "confidence_sequence"]
        for (name, average, quantity, kind), half in width.items()
        if kind == "empirical_bernstein" and average in ("cumulative", "window") and WORLDS[name].weights == "heavy"
    ]
    texts |= {"bernstein_compared": str(len(compared)), "bernstein_wider": str(sum(compared))}
    return texts | _extra_widths(width)


def _extra_widths(width: Mapping[tuple[str, str, str, str], float]) -> dict[str, str]:
    """Return by how much percent, or how many times, `empirical_likelihood` is wider for values than `normal`."""

    def ratios(kind: str, *worlds: str) -> list[float]:
        return [
            width[world, average, "value", kind] / width[world, average, "value", "normal"]
            for world in worlds
            for average in FIXED
        ]

    near_03, mild = ["still-mild-0.3", "still-heavy-0.3"], _names("still", weights="mild")
    spans = {"plain_03": ratios("empirical_likelihood", *near_03), "right_03": ratios(LIMITED, *near_03)}
    spans["right_mild"] = ratios(LIMITED, *mild)
    texts: dict[str, str] = {}
    for name, multiples in spans.items():
        texts |= {
            f"{name}_low": f"{100 * abs(min(multiples) - 1):.0f}",
            f"{name}_high": f"{100 * (max(multiples) - 1):.0f}",
        }
    rare = ratios(LIMITED, "still-heavy-0.03")
    return texts | {"right_rare_low": f"{min(rare):.1f}", "right_rare_high": f"{max(rare):.1f}"}


def _names(*shapes: str, named: bool | None = None, weights: str | None = None) -> list[str]:
    """Return the names of worlds with these shapes.

    Args:
        shapes: Shapes of worlds.
        named: Whether events log a `unit`. None selects both.
        weights: Size of the weights. None selects all.
    """
    return [
        name
        for name, world in WORLDS.items()
        if world.shape in shapes and named in (None, world.named) and weights in (None, world.weights)
    ]


def _worst_of(
    rows: Sequence[Row],
    kind: str,
    world: str,
    averages: Sequence[str] = (*FIXED, "mixture"),
    ever: bool = False,
    promise: bool = True,
) -> float:
    """Return the worst rate of a kind of interval, as in the tables.

    Args:
        rows: All rows.
        kind: Kind of interval.
        world: Name of a world. An empty name selects all worlds without clusters.
        averages: Averages to include.
        ever: Whether misses at any look count, otherwise misses at a single look.
        promise: Whether to include only intervals that claim to cover their reference.
    """
    worlds = [world] if world else _names("still", "drifting", "learning")
    shown = [row for row in rows if row.world in worlds and row.kind == kind and row.average in averages]
    return max(row.ever if ever else row.miss for row in shown if promised(row) or not promise)


def fill_in_effects(document: str, effects: Sequence[Effect]) -> str:
    """Replace the table of design effects."""
    return _replaced(document, {"effects": _effects(effects)})


def fill_in_limits(document: str, rates: Sequence[Rate]) -> str:
    """Replace the table of limits of the weights, and their figures."""
    return _replaced(document, {"limits": table_of_limits(rates)}, figures_of_limits(rates))


def figures_of_limits(rates: Sequence[Rate]) -> dict[str, str]:
    """Return the figures about limits: percentages, and ratios of widths to the widths without a limit."""
    cumulative = [row for row in rates if row.average == "cumulative"]
    width = {(row.log, row.quantity, row.kind, row.events): row.width for row in cumulative}

    def excess(logs: str, quantity: str = "value", but: Sequence[str] = ()) -> list[float]:
        """Return widths of `auto` as multiples of the width with the right limit.

        Args:
            logs: Words in the titles of the logs.
            quantity: One of QUANTITIES.
            but: Words in the titles of logs to leave out.
        """
        selected = [row for row in cumulative if row.kind == "auto" and row.quantity == quantity and logs in row.log]
        selected = [row for row in selected if row.events >= SOON and not any(words in row.log for words in but)]
        return [row.width / width[row.log, quantity, "right", row.events] for row in selected]

    spreads, evenly, slates = "candidate takes", "takes 50 actions evenly", "slates of three slots as one"
    deployed = f"lift over {DEPLOYED}"
    over, spread = excess("actions, exploration"), excess(spreads)
    rare = [
        width[log, "value", "auto", LAST] / width[log, "value", "none", LAST]
        for log in dict.fromkeys(row.log for row in rates)
        if "actions, exploration" in log and log.endswith("0.03")
    ]
    young = {row for row in rates if row.log.startswith("production takes") and row.events == LOOKS[0]}
    return {
        "limit_excess": f"{100 * (max(over) - 1):.0f}",
        "limit_miss": _share(max(row.miss for row in rates if row.kind == "auto")),
        "young_miss": _share(max(row.miss for row in young if row.kind == "none")),
        "limit_narrower": f"{max(rare):.2f}",
        "spread_low": f"{min(spread):.1f}",
        "spread_high": f"{max(spread):.1f}",
        "spread_lift": f"{max(excess(spreads, f'lift over {LOGGING}')):.1f}",
        "limits_miss": _share(max(row.miss for row in {*rates} - young if row.kind in ("none", "right"))),
        "deployed_lift": f"{max(excess('', deployed, [evenly, slates])):.2f}",
        "deployed_spread": f"{max(excess(evenly, deployed)):.2f}",
        "deployed_slates": f"{max(excess(slates, deployed)):.2f}",
        "falling_excess": f"{100 * (max(excess('exploration falls')) - 1):.0f}",
        "slates_excess": f"{100 * (max(excess(slates)) - 1):.0f}",
        "learning_lift": f"{100 * (max(excess('learning', f'lift over {LOGGING}')) - 1):.0f}",
    }


def _replaced(document: str, tables: Mapping[str, str], figures: Mapping[str, str] | None = None) -> str:
    """Return the document with these tables and figures replaced."""

    def table(match: re.Match[str]) -> str:
        name = match[2]
        return f"{match[1]}{tables[name]}\n" if name in tables else match[0]

    def figure(match: re.Match[str]) -> str:
        return f"{(figures or {}).get(match[2], match[1])}<!-- ={match[2]} -->"

    document = re.sub(r"(<!-- table: (\w+) -->\n)(?:\|[^\n]*\n)*", table, document)
    return re.sub(r"([^\s(]+)<!-- =(\w+) -->", figure, document)


def promised(row: Row) -> bool:
    """Return whether the interval claims to cover its reference.

    On a mixture, the reference is the current value, and only `drift_aware` claims to cover it.
    """
    return row.average != "mixture" or row.kind == "drift_aware"


def _worst(
    number: Callable[[Row], float],
    error: Callable[[Row], float],
    kinds: Sequence[str] = KINDS,
    averages: Sequence[str] = (*FIXED, "mixture"),
    choose: Callable[[Row], bool] = promised,
) -> Callable[[Sequence[Row]], str]:
    """Return a function that makes a table of the worst number and its standard error.

    A cell is the worst over estimators, averages and quantities in one world for one kind of interval.

    Args:
        number: Returns the number of a row.
        error: Returns its standard error.
        kinds: Kinds of intervals, one column each.
        averages: Averages to include.
        choose: Returns whether to include a row.
    """

    def worst_of(rows: Sequence[Row]) -> str:
        if not rows:
            return NONE
        worst = max(rows, key=number)
        return f"{_share(number(worst))} ± {_share(error(worst))}"

    def table(rows: Sequence[Row]) -> str:
        head = ["world", "runs", *kinds]
        shown = [row for row in rows if row.average in averages and choose(row)]
        lookup = _grouped(shown, lambda row: (row.world, row.kind))
        body = [
            [
                _text(world),
                str(lookup[name, kinds[0]][0].runs),
                *(worst_of(lookup.get((name, kind), ())) for kind in kinds),
            ]
            for name, world in WORLDS.items()
            if (name, kinds[0]) in lookup
        ]
        return _table(head, body)

    return table


def _apart(rows: Sequence[Row]) -> str:
    """Show misses above and below in the world with the heaviest weights and the rarest rewards."""
    head = ["", "", "single look: above", "below", "any look: above", "below", "half-width"]
    body = [
        [
            f"{row.average}, `{row.kind}`",
            "value" if row.quantity == "value" else f"lift over {row.quantity}",
            _share(row.above),
            f"{_share(row.below)} ± {_share(row.miss_se)}",
            _share(row.ever_above),
            f"{_share(row.ever_below)} ± {_share(row.ever_se)}",
            f"{row.half_width:.4f} ± {row.half_width_se:.4f}",
        ]
        for row in rows
        if row.world == "still-heavy-0.03" and row.estimator != "snips" and row.average in ("cumulative", "mixture")
        if promised(row)
    ]
    return _table(head, body)


def _widths(rows: Sequence[Row]) -> str:
    """Show half-widths for values by `ips`: absolute for `normal`, and multiples of it for the others."""
    shown = [row for row in rows if row.quantity == "value" and row.estimator == "ips" and row.kind in KINDS]
    lookup = {(row.average, row.world, row.kind): row.half_width for row in shown}
    kinds = KINDS[1:-1]
    body = []
    for average in FIXED:
        for name, world in WORLDS.items():
            if world.shape == "still" and (average, name, "normal") in lookup:
                normal = lookup[average, name, "normal"]
                ratios = [lookup.get((average, name, kind)) for kind in kinds]
                widths = [NONE if ratio is None else f"{ratio / normal:.2f}" for ratio in ratios]
                body.append([average, _text(world), f"± {normal:.4f}", *widths])
    return _table(["average", "world", "normal", *kinds], body)


def _recent(rows: Sequence[Row]) -> str:
    """Compare the confidence sequence on a window with the window's own average, in drifting worlds."""
    head = [
        "",
        "",
        "its own events: any look",
        "the window: any look",
        "half-width",
        "normal, the window: any look",
        "half-width",
    ]
    drifting = [row for row in rows if row.world.startswith("drifting") and row.average == "window"]
    lookup = {(row.world, row.quantity, row.kind): row for row in drifting if row.estimator == "ips"}
    body = []
    for (world, quantity, kind), own in lookup.items():
        if kind != "confidence_sequence":
            continue
        window, normal = lookup[world, quantity, OF_WINDOW], lookup[world, quantity, "normal"]
        body.append(
            [
                _text(WORLDS[world]),
                "value" if quantity == "value" else f"lift over {quantity}",
                f"{_share(own.ever)} ± {_share(own.ever_se)}",
                f"{_share(window.ever)} ± {_share(window.ever_se)}",
                f"{own.half_width:.4f}",
                f"{_share(normal.ever)} ± {_share(normal.ever_se)}",
                f"{normal.half_width:.4f}",
            ]
        )
    return _table(head, body)


def _auto(rows: Sequence[Row]) -> str:
    """Compare the worst rates with the default limit of the weights with no limit and with the right one."""
    kinds = {"none": "empirical_likelihood", "auto": AUTO, "right": LIMITED}
    lookup = _grouped([row for row in rows if row.average in FIXED], lambda row: (row.world, row.kind))
    body = []
    for name, world in WORLDS.items():
        if (name, AUTO) in lookup:
            worst = [max(lookup[name, kind], key=lambda row: row.miss) for kind in kinds.values()]
            widths = [np.mean([row.half_width for row in lookup[name, kind]]) for kind in kinds.values()]
            ratios = [f"{width / widths[2]:.2f}" for width in widths[:2]]
            misses = [f"{_share(row.miss)} ± {_share(row.miss_se)}" for row in worst]
            body.append([_text(world), str(worst[1].runs), *misses, *ratios])
    return _table(["world", "runs of `auto`", *kinds, "width of none over right", "of `auto` over right"], body)


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "one_look": _worst(lambda row: row.miss, lambda row: row.miss_se),
    "adaptive": _worst(lambda row: row.miss, lambda row: row.miss_se, OF_ADAPTIVE, ADAPTIVE),
    "mixture": _worst(lambda row: row.miss, lambda row: row.miss_se, OF_MIXTURE, ["mixture"], lambda row: True),
    "ever": _worst(lambda row: row.ever, lambda row: row.ever_se),
    "apart": _apart,
    "widths": _widths,
    "recent": _recent,
    "auto": _auto,
}


def _grouped(rows: Sequence[Row], key: Callable[[Row], tuple[str, ...]]) -> dict[tuple[str, ...], list[Row]]:
    return {name: list(group) for name, group in groupby(sorted(rows, key=key), key=key)}


def _text(world: World) -> str:
    shape = {
        "still": "still",
        "drifting": "drifting",
        "sessions": "sessions, one after the other",
        "crowd": "sessions, 50 at a time",
        "learning": "logging policy that learns",
        "waves": "waves",
    }[world.shape]
    return f"{shape}{', `unit`' if world.named else ''}; {world.weights}, {world.level:g}"


def _effects(effects: Sequence[Effect]) -> str:
    lookup = {(effect.world, effect.policy): f"{effect.mean:.2f} ± {effect.deviation:.2f}" for effect in effects}
    asks = {effect.world: _share(effect.asks) for effect in effects}
    body = [[_text(SHOWN[world]), lookup[world, LOGGING], lookup[world, "one"], asks[world]] for world in asks]
    return _table(["world", "mean reward", "value of a candidate", "asked for a `unit`, % of runs"], body)


def _share(share: float) -> str:
    """Format a share in percent."""
    return f"{100 * share:.1f}"


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
