"""Make tables, figures and the picture of objectives.md from the stored results."""

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
    texts = figures(digits, heavy, moving) | copy_figures(copies) | longer_step_figures(longer)
    texts |= {"more": short(min(outcome.accuracy for outcome in more), 3), "more_events": f"{more[0].events:,}"}
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda match: f"{texts[match[1]]}<!-- ={match[1]} -->", document)


def figures(digits: Sequence[Outcome], heavy: Sequence[Comparison], moving: Sequence[Course]) -> dict[str, str]:
    """Return the figures of the text by name."""
    return {
        "production": short(float(np.mean([outcome.production for outcome in digits]))),
        "reached": f"{sum(outcome.accuracy >= WANTED for outcome in digits)}",
        "runs": f"{len(digits)}",
        "worst": short(min(outcome.accuracy for outcome in digits), 3),
        "heavy_seeds": f"{len(heavy)}",
        "poem_wins": f"{sum(comparison.poem > comparison.ips for comparison in heavy)}",
        "poem": short(float(np.mean([comparison.poem for comparison in heavy]))),
        "ips": short(float(np.mean([comparison.ips for comparison in heavy]))),
        "logger": short(float(np.mean([comparison.logger for comparison in heavy]))),
        "moving_seeds": f"{len({course.seed for course in moving})}",
        "follows": f"{sum(ends(moving, 'dr, forgets') > ends(moving, 'dr'))}",
        "follows_ips": f"{sum(ends(moving, 'ips, forgets') > ends(moving, 'ips'))}",
    }


def longer_step_figures(longer: Sequence[Outcome]) -> dict[str, str]:
    """Return the number of runs with longer steps, how many end below the wanted accuracy, and the lowest accuracy."""
    accuracies = [outcome.accuracy for outcome in longer]
    below = sum(accuracy < WANTED for accuracy in accuracies)
    return {"longer_low": f"{below}", "longer_runs": f"{len(longer)}", "longer_worst": short(min(accuracies), 3)}


def copy_figures(copies: Sequence[Copy]) -> dict[str, str]:
    """Return how many copies were made and retired, and the mean values of retired copies at first and at the end."""
    retired = [copy for copy in copies if len(copy.values) > KEEP * EVERY // LOOK]
    return {
        "copies": f"{len(copies)}",
        "retired": f"{len(retired)}",
        "copy_first": short(float(np.mean([copy.values[0] for copy in retired]))),
        "copy_last": short(float(np.mean([copy.values[-1] for copy in retired]))),
    }


def ends(moving: Iterable[Course], candidate: str) -> np.ndarray:
    """Return the mean value of each run at the ends of the phases after the first change, sorted by seed."""
    courses = sorted((course for course in moving if course.candidate == candidate), key=lambda course: course.seed)
    return np.array([np.mean(course.values[2 * PHASE // LOOK - 1 :: PHASE // LOOK]) for course in courses])


def _objectives(digits: Sequence[Outcome]) -> str:
    head = ["objective", "runs", "accuracy at the end: mean", "lowest", "value: mean", "lowest"]
    head += [f"estimate within {STANDARD_ERRORS} standard errors", "truth inside the confidence sequence throughout"]
    head += ["mean weight"]
    body = []
    for name in CANDIDATES:
        outcomes = [outcome for outcome in digits if outcome.candidate == name]
        weights = [outcome.weight for outcome in outcomes]
        body.append(
            [
                f"`{name}`",
                f"{len(outcomes)}",
                mean_text([outcome.accuracy for outcome in outcomes]),
                short(min(outcome.accuracy for outcome in outcomes), 3),
                mean_text([outcome.value for outcome in outcomes]),
                short(min(outcome.value for outcome in outcomes), 3),
                f"{sum(outcome.errors <= STANDARD_ERRORS for outcome in outcomes)} of {len(outcomes)}",
                f"{sum(outcome.covered for outcome in outcomes)} of {len(outcomes)}",
                f"{min(weights):.3f} to {max(weights):.3f}",
            ]
        )
    return table(head, body)


def _moving(moving: Sequence[Course]) -> str:
    phases = len(moving[0].values) * LOOK // PHASE
    head = ["", *(f"end of phase {number}" for number in range(1, phases + 1))]
    body = []
    for name in dict.fromkeys(course.candidate for course in moving):
        values = np.array([course.values for course in moving if course.candidate == name])
        phase_ends = values[:, PHASE // LOOK - 1 :: PHASE // LOOK]
        body.append([name, *(mean_text(column.tolist()) for column in phase_ends.T)])
    return table(head, body)


CANDIDATE_COLOURS = {"ips": "#0072b2", "dr": "#009e73", "ips, forgets": "#d55e00", "dr, forgets": "#cc79a7"}
"""After Okabe and Ito: distinct for colour-blind readers, and legible on white."""
INK, FAINT, GRIDS = "#222222", "#6f6f6f", "#e6e6e6"


def draw(moving: Sequence[Course], copies: Sequence[Copy], path: Path) -> None:
    """Draw the mean true value over seeds above, and a candidate and its frozen copies in one run below."""
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
        values = np.array([course.values for course in moving if course.candidate == name]).mean(axis=0)
        events = LOOK * np.arange(1, len(values) + 1)
        dashes = "--" if name == "frozen" else ":" if name == "production" else "-"
        axes.plot(events, values, dashes, color=CANDIDATE_COLOURS.get(name, FAINT), linewidth=1.8, label=name)


def _copies(axes: Axes, moving: Sequence[Course], copies: Sequence[Copy]) -> None:
    """Draw the candidate that learns, and each copy until it is retired, which a cross marks."""
    seed = copies[0].seed
    (course,) = (course for course in moving if (course.candidate, course.seed) == (COPIED, seed))
    events = LOOK * np.arange(1, len(course.values) + 1)
    axes.plot(events, course.values, color=CANDIDATE_COLOURS[COPIED], linewidth=1.8, label=COPIED)
    for copy in copies:
        events = EVERY * copy.number + LOOK * np.arange(len(copy.values))
        label = "its frozen copies (versions_of)" if copy.number == 1 else None
        axes.plot(events, copy.values, color=INK, linewidth=0.9, label=label)
        if events[-1] == EVERY * (copy.number + KEEP):
            label = "retired" if copy.number == 1 else None
            axes.plot(events[-1:], copy.values[-1:], "x", color=INK, markersize=6, label=label)


def mean_text(values: Sequence[float]) -> str:
    """Format the mean over runs with its standard error."""
    error = float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
    return f"{short(float(np.mean(values)), 3)} ± {short(error, 3)}"


def short(number: float, digits: int = 2) -> str:
    return f"{number:.{digits}f}".removeprefix("0")


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
