"""Tables, figures and the picture of objectives.md from the stored results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from objectives import CANDIDATES, COPIED, EVERY, KEEP, LOOK, MOVING, PHASE, Comparison, Copy, Course, Outcome

STANDARD_ERRORS = 3
"""An estimate is as good as the truth within this many of them."""
WANTED = 0.92
"""The accuracy that every run should end with."""


def fill_in(
    document: str,
    digits: Sequence[Outcome],
    heavy: Sequence[Comparison],
    moving: Sequence[Course],
    copies: Sequence[Copy],
    longer: Sequence[Outcome],
    more: Sequence[Outcome],
) -> str:
    """Replace tables, each after a line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""
    tables = {"objectives": _objectives(digits), "moving": _moving(moving)}
    pattern = r"(<!-- table: (\w+) -->\n)(?:\|[^\n]*\n)*"
    document = re.sub(pattern, lambda match: f"{match[1]}{tables[match[2]]}\n", document)
    texts = figures(digits, heavy, moving) | of_copies(copies) | of_longer_steps(longer)
    texts |= {"more": short(min(each.accuracy for each in more), 3), "more_events": f"{more[0].events:,}"}
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda match: f"{texts[match[1]]}<!-- ={match[1]} -->", document)


def figures(digits: Sequence[Outcome], heavy: Sequence[Comparison], moving: Sequence[Course]) -> dict[str, str]:
    """The figures of the text by name."""
    return {
        "production": short(float(np.mean([each.production for each in digits]))),
        "reached": f"{sum(each.accuracy >= WANTED for each in digits)}",
        "runs": f"{len(digits)}",
        "worst": short(min(each.accuracy for each in digits), 3),
        "heavy_seeds": f"{len(heavy)}",
        "poem_wins": f"{sum(each.poem > each.ips for each in heavy)}",
        "poem": short(float(np.mean([each.poem for each in heavy]))),
        "ips": short(float(np.mean([each.ips for each in heavy]))),
        "logger": short(float(np.mean([each.logger for each in heavy]))),
        "moving_seeds": f"{len({each.seed for each in moving})}",
        "follows": f"{sum(ends(moving, 'dr, forgets') > ends(moving, 'dr'))}",
        "follows_ips": f"{sum(ends(moving, 'ips, forgets') > ends(moving, 'ips'))}",
    }


def of_longer_steps(longer: Sequence[Outcome]) -> dict[str, str]:
    """How many runs with longer steps end below the accuracy that is wanted, of how many, and the lowest accuracy."""
    accuracies = [each.accuracy for each in longer]
    below = sum(accuracy < WANTED for accuracy in accuracies)
    return {"longer_low": f"{below}", "longer_runs": f"{len(longer)}", "longer_worst": short(min(accuracies), 3)}


def of_copies(copies: Sequence[Copy]) -> dict[str, str]:
    """How many copies were made and retired, and their mean values at first and when they were retired."""
    retired = [each for each in copies if len(each.values) > KEEP * EVERY // LOOK]
    return {
        "copies": f"{len(copies)}",
        "retired": f"{len(retired)}",
        "copy_first": short(float(np.mean([each.values[0] for each in retired]))),
        "copy_last": short(float(np.mean([each.values[-1] for each in retired]))),
    }


def ends(moving: Iterable[Course], candidate: str) -> np.ndarray:
    """Of each run by seed, the mean value at the ends of the phases after the first change."""
    some = sorted((each for each in moving if each.candidate == candidate), key=lambda each: each.seed)
    return np.array([np.mean(each.values[2 * PHASE // LOOK - 1 :: PHASE // LOOK]) for each in some])


def _objectives(digits: Sequence[Outcome]) -> str:
    head = ["objective", "runs", "accuracy at the end: mean", "lowest", "value: mean", "lowest"]
    head += [f"estimate within {STANDARD_ERRORS} standard errors", "truth inside the confidence sequence throughout"]
    head += ["mean weight"]
    body = []
    for name in CANDIDATES:
        some = [each for each in digits if each.candidate == name]
        weights = [each.weight for each in some]
        body.append(
            [
                f"`{name}`",
                f"{len(some)}",
                of_mean([each.accuracy for each in some]),
                short(min(each.accuracy for each in some), 3),
                of_mean([each.value for each in some]),
                short(min(each.value for each in some), 3),
                f"{sum(each.errors <= STANDARD_ERRORS for each in some)} of {len(some)}",
                f"{sum(each.covered for each in some)} of {len(some)}",
                f"{min(weights):.3f} to {max(weights):.3f}",
            ]
        )
    return table(head, body)


def _moving(moving: Sequence[Course]) -> str:
    phases = len(moving[0].values) * LOOK // PHASE
    head = ["", *(f"end of phase {number}" for number in range(1, phases + 1))]
    body = []
    for name in dict.fromkeys(each.candidate for each in moving):
        values = np.array([each.values for each in moving if each.candidate == name])
        at_ends = values[:, PHASE // LOOK - 1 :: PHASE // LOOK]
        body.append([name, *(of_mean(column.tolist()) for column in at_ends.T)])
    return table(head, body)


OF_CANDIDATE = {"ips": "#0072b2", "dr": "#009e73", "ips, forgets": "#d55e00", "dr, forgets": "#cc79a7"}
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
INK, FAINT, GRIDS = "#222222", "#6f6f6f", "#e6e6e6"


def draw(moving: Sequence[Course], copies: Sequence[Copy], path: Path) -> None:
    """Above, the mean true value over seeds against events; below, a candidate and its frozen copies in one run."""
    figure = Figure(figsize=(10.5, 8.0), dpi=150, facecolor="white")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.5, 1))
    _candidates(above, moving)
    _copies(below, moving, copies)
    for axes in (above, below):
        for change in range(PHASE, len(moving[0].values) * LOOK, PHASE):
            axes.axvline(change, color=GRIDS, linewidth=1.2, zorder=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="y", color=GRIDS, linewidth=0.8)
        axes.tick_params(colors=FAINT, labelsize=9, length=0)
        axes.legend(loc="lower left", ncols=3, frameon=False, fontsize=9)
        axes.set_ylim(0, 1)
    below.xaxis.set_major_formatter(lambda count, _: f"{count / 1000:g}k" if count else "0")
    text = "events; digits exchange their meanings at each vertical line"
    below.set_xlabel(text, loc="left", color=FAINT, fontsize=9)
    above.set_ylabel("true value, mean of all seeds", color=FAINT, fontsize=9)
    below.set_ylabel("true value, one run", color=FAINT, fontsize=9)
    figure.text(0.06, 0.95, "Which challenger follows a world that moves?", fontsize=14, fontweight="bold", color=INK)
    figure.subplots_adjust(left=0.08, right=0.97, top=0.93, bottom=0.08, hspace=0.08)
    results = f"{crc32(repr((moving, copies)).encode()):08x}"
    figure.savefig(path, metadata={"Software": None, "Results": results})


def _candidates(axes: Axes, moving: Sequence[Course]) -> None:
    for name in (*MOVING, "frozen", "production"):
        values = np.array([each.values for each in moving if each.candidate == name]).mean(axis=0)
        events = LOOK * np.arange(1, len(values) + 1)
        dashes = "--" if name == "frozen" else ":" if name == "production" else "-"
        axes.plot(events, values, dashes, color=OF_CANDIDATE.get(name, FAINT), linewidth=1.8, label=name)


def _copies(axes: Axes, moving: Sequence[Course], copies: Sequence[Copy]) -> None:
    """The candidate that learns, and each copy until it is retired, which a cross marks."""
    seed = copies[0].seed
    (course,) = (each for each in moving if (each.candidate, each.seed) == (COPIED, seed))
    events = LOOK * np.arange(1, len(course.values) + 1)
    axes.plot(events, course.values, color=OF_CANDIDATE[COPIED], linewidth=1.8, label=COPIED)
    for copy in copies:
        places = EVERY * copy.number + LOOK * np.arange(len(copy.values))
        label = "its frozen copies (versions_of)" if copy.number == 1 else None
        axes.plot(places, copy.values, color=INK, linewidth=0.9, label=label)
        if places[-1] == EVERY * (copy.number + KEEP):
            label = "retired" if copy.number == 1 else None
            axes.plot(places[-1:], copy.values[-1:], "x", color=INK, markersize=6, label=label)


def of_mean(values: Sequence[float]) -> str:
    """The mean over runs with its standard error."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
    return f"{short(float(np.mean(values)), 3)} ± {short(error, 3)}"


def short(number: float, digits: int = 2) -> str:
    return f"{number:.{digits}f}".removeprefix("0")


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
