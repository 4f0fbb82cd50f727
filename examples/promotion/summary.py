"""Make the tables of README.md from stored runs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from aa_streams import CONFIDENCE, CORRELATIONS, KINDS, PROOF, LongOutcome, Outcome
from days import BY_HAND, CYCLIC, RANDOM, SAME, WORLDS, DayRun
from days import RULES as DAY_RULES
from errors import NAMES, ErrorScores
from experiment import RULES
from scipy.stats import binom, chi2
from scoring import EVERY, Score
from worlds import SETTINGS

from streameval.ope.intervals.sequences import error_shares

CHOSEN_ON: Mapping[str, Collection[int]] = {"smooth": (1, 2, 3, 4, 5), "abrupt": (1, 2, 3, 4), "stationary": ()}
"""Seeds inspected while the bound of `paired` was chosen. Further ones, from 100 on, are in no table."""
CANDIDATE_EVENTS = 10_000_000
SURE = 0.999
NONE = "–"
BY_RANK = f"{PROOF}, default shares"


class Row(NamedTuple):
    """Hold the results of a rule in one setting, over all runs.

    Args:
        setting: Kind of drift.
        rule: Name of the rule.
        runs: Number of runs.
        starts: Starts per run.
        false_starts: Number of starts at a lead below 0.
        false_rate: False starts per ten million candidate-events.
        false_upper: Upper bound of the one-sided 95% interval of `false_rate` (Poisson).
        checks: Number of checks.
        promotable: Checks with a promotable candidate.
        worse: Checks with a promotable candidate at a lead below 0.
        much_worse: Checks with a promotable candidate at a lead below -.01.
        lowest_lead: Lowest lead of a promotable candidate.
        within: Checks at leads that should be found.
        power: Share of these checks with a promotable candidate, all runs together.
        power_se: Standard error of `power` over runs.
        episodes: Number of leads that lasted long enough.
        unfound: Number of these leads that were never found.
        delay: Median delay over all episodes. The delay of an episode that was never found is infinite.
    """

    setting: str
    rule: str
    runs: int
    starts: float
    false_starts: int
    false_rate: float
    false_upper: float
    checks: int
    promotable: int
    worse: int
    much_worse: int
    lowest_lead: float | None
    within: int
    power: float
    power_se: float
    episodes: int
    unfound: int
    delay: float


def rows_of(scores: Sequence[Score], *, fresh: bool = False) -> list[Row]:
    """Return one row per setting and rule.

    Args:
        scores: Scores of all runs.
        fresh: Whether to leave out the seeds on which constants were chosen.
    """
    rows = []
    for setting in SETTINGS:
        for rule in RULES:
            group = [score for score in scores if (score.setting, score.rule) == (setting, rule)]
            group = [score for score in group if not fresh or score.seed not in CHOSEN_ON[setting]]
            if group:
                rows.append(_row(setting, rule, group))
    return rows


def _row(setting: str, rule: str, group: Sequence[Score]) -> Row:
    false = sum(len(score.false_starts) for score in group)
    exposure = sum(score.checks for score in group) * EVERY / CANDIDATE_EVENTS
    delays = [math.inf if delay is None else delay for score in group for delay in score.delays]
    lead_counts, found_counts = (np.array([getattr(score, name) for score in group]) for name in ("within", "found"))
    lowest = [score.lowest_lead for score in group if score.lowest_lead is not None]
    return Row(
        setting,
        rule,
        len(group),
        sum(score.starts for score in group) / len(group),
        false,
        false / exposure,
        float(chi2.ppf(0.95, 2 * (false + 1)) / 2 / exposure),
        sum(score.checks for score in group),
        sum(score.promotable for score in group),
        sum(score.worse for score in group),
        sum(score.much_worse for score in group),
        min(lowest, default=None),
        int(lead_counts.sum()),
        float(found_counts.sum() / max(1, lead_counts.sum())),
        _error_of_ratio(found_counts, lead_counts),
        len(delays),
        sum(map(math.isinf, delays)),
        float(np.median(delays)) if delays else math.nan,
    )


def _error_of_ratio(numerator: np.ndarray, denominator: np.ndarray) -> float:
    """Return the standard error of `sum found / sum within` over runs, NaN for a single run."""
    runs, total = len(numerator), denominator.sum()
    if runs < 2 or not total:
        return math.nan
    residual = numerator - numerator.sum() / total * denominator
    return float(np.sqrt(runs / (runs - 1) * (residual**2).sum()) / total)


class SameRow(NamedTuple):
    """Count candidates with the same value as production that were ever promotable.

    Args:
        weights: Kind of weights.
        rule: Name of the rule.
        candidates: Number of candidates.
        events: Events of a stream.
        ever: Number of candidates that were ever promotable.
        promised: Nominal probability, None without a guarantee.
        bound: 99.9% quantile of `ever` under the nominal probability, None without a guarantee.
    """

    weights: str
    rule: str
    candidates: int
    events: int
    ever: int
    promised: float | None
    bound: int | None


PROMISES: Collection[str] = ("anytime", PROOF)
"""`sea` promises twice the error at any one time, and nothing for all times together. `bsea` promises nothing."""


def same_rows(outcomes: Sequence[Outcome]) -> list[SameRow]:
    """Return one row per kind of weights and rule. The last row of a kind uses the default shares of the error."""
    rows = []
    for weights in dict.fromkeys(outcome.weights for outcome in outcomes):
        group = [outcome for outcome in outcomes if outcome.weights == weights]
        for rule in (*RULES[1:], PROOF):
            promised = 1 - CONFIDENCE if rule in PROMISES else None
            rows.append(_same_row(rule, group, [outcome.ever[rule] for outcome in group], promised))
        shares = error_shares(1 - CONFIDENCE, range(1, group[0].candidates + 1))
        rows.append(_same_row(BY_RANK, group, [outcome.family[PROOF] for outcome in group], float(shares.mean())))
    return rows


def _same_row(rule: str, group: Sequence[Outcome], ever: Sequence[int], promised: float | None) -> SameRow:
    """Return a row. Its binomial bound is conservative for unequal shares (Hoeffding)."""
    candidates = sum(outcome.candidates for outcome in group)
    bound = None if promised is None else int(binom.ppf(SURE, candidates, promised))
    return SameRow(group[0].weights, rule, candidates, group[0].events, sum(ever), promised, bound)


def fill_in(
    document: str,
    scores: Sequence[Score],
    outcomes: Sequence[Outcome],
    errors: Sequence[ErrorScores] = (),
    long: Sequence[LongOutcome] = (),
    days: Sequence[DayRun] = (),
) -> str:
    """Replace tables, each after a line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""
    tables = {
        "all": _rules(rows_of(scores)),
        "fresh": _rules(rows_of(scores, fresh=True)),
        "delays": _delays(rows_of(scores)),
        "targets": _targets(rows_of(scores), rows_of(scores, fresh=True)),
        "same": _same(same_rows(outcomes)),
        "errors": _errors(errors),
        "long": _long(long),
        "losers": _losers(day_rows(days)),
        "winners": _winners(day_rows(days)),
        "same_days": _same_days(days),
    }
    pattern = r"(<!-- table: (\w+) -->\n)(?:\|[^\n]*\n)*"
    document = re.sub(pattern, lambda match: f"{match[1]}{tables[match[2]]}\n", document)
    texts = {**figures(rows_of(scores)), **figures_of_streams(long), **figures_of_days(day_rows(days))}
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda match: f"{texts[match[1]]}<!-- ={match[1]} -->", document)


def figures(rows: Sequence[Row]) -> dict[str, str]:
    """Return the figures of the text by name, in percent."""
    published = [row for row in rows if row.rule in ("sea", "bsea") and row.setting != "stationary"]
    wrong = [100 * row.worse / row.promotable for row in published if row.promotable] or [math.nan]
    return {"wrong_low": f"{min(wrong):.0f}", "wrong_high": f"{max(wrong):.0f}"}


def figures_of_streams(long: Sequence[LongOutcome]) -> dict[str, str]:
    """Return the figures of the text about long streams with a promotable candidate."""
    promoting = [(each.weights, each.candidates) for each in long if each.ever]
    independent = sum(weights in KINDS for weights, _ in promoting)
    tilted = Counter(kind for kind in promoting if kind[0] in CORRELATIONS)
    return {"long_ever": f"{independent}", "tilted_ever": f"{max(tilted.values(), default=0)}"}


def figures_of_days(rows: Sequence[DayRow]) -> dict[str, str]:
    """Return the figures of the text about worlds with days: in how many runs the loser was ever promotable."""
    cycles = [row for row in rows if row.world in CYCLIC]
    wrong = {rule: sum(row.wrong for row in cycles if row.rule == rule) for rule in DAY_RULES}
    random = {row.rule: row.wrong for row in rows if row.world == RANDOM}
    return {
        "cycle_runs": f"{sum(row.runs for row in cycles) // len(DAY_RULES)}",
        "cycle_paired": f"{wrong['paired']}",
        "cycle_periodic": f"{wrong['periodic']}",
        "random_24h": f"{random.get('periodic 24h', 0)}",
        "random_auto": f"{random.get('periodic', 0)}",
    }


class DayRow(NamedTuple):
    """Hold the results of a rule in a world with days, over all runs.

    Args:
        world: Name of the world.
        rule: Name of the rule.
        runs: Number of runs.
        wrong: Number of runs in which the loser was ever promotable.
        share: Share of looks at which it was.
        first: Median day on which the winner was first promotable, infinite if never.
        latest: The day by which it was in nine of ten runs.
        later: Share of the later looks at which the winner was promotable, the mean over runs.
        least: The least such share.
    """

    world: str
    rule: str
    runs: int
    wrong: int
    share: float
    first: float
    latest: float
    later: float
    least: float


def day_rows(days: Sequence[DayRun]) -> list[DayRow]:
    """Return one row per world with a loser and a winner, and rule."""
    rows = []
    for world in WORLDS:
        runs = [run for run in days if run.world == world]
        for rule in DAY_RULES if runs else ():
            group = [run.rules[rule] for run in runs]
            first = [math.inf if score.first is None else score.first for score in group]
            later = [score.later for score in group if score.later is not None] or [math.nan]
            wrong, share = sum(score.wrong for score in group), float(np.mean([score.share for score in group]))
            latest = float(np.quantile(first, 0.9, method="higher"))
            found = (float(np.median(first)), latest, float(np.mean(later)), min(later))
            rows.append(DayRow(world, rule, len(runs), wrong, share, *found))
    return rows


def _rules(rows: Iterable[Row]) -> str:
    head = [
        "",
        "rule",
        "runs",
        "false starts per 10 million",
        "starts per run",
        "checks promotable",
        "… while worse",
        "… by .01 or more",
        "power at .02 to .05",
        "median delay",
    ]
    body = [
        [
            row.setting,
            f"`{row.rule}`",
            f"{row.runs}",
            f"{row.false_rate:.2f} ({row.false_starts}; at most {row.false_upper:.2f})",
            f"{row.starts:.1f}",
            f"{row.promotable / row.checks:.1%}",
            f"{row.worse:,}",
            f"{row.much_worse:,}",
            _power(row),
            _events(row.delay),
        ]
        for row in rows
    ]
    return _table(head, body)


def _delays(rows: Iterable[Row]) -> str:
    head = ["", "rule", "leads that lasted", "never found", "median delay", "lowest lead while promotable"]
    body = [
        [
            row.setting,
            f"`{row.rule}`",
            f"{row.episodes:,}",
            f"{row.unfound:,} ({row.unfound / row.episodes:.0%})",
            _events(row.delay),
            NONE if row.lowest_lead is None else f"{row.lowest_lead:.4f}",
        ]
        for row in rows
        if row.episodes
    ]
    return _table(head, body)


def _power(row: Row) -> str:
    if not row.within:
        return NONE
    return f"{row.power:.3f}" if math.isnan(row.power_se) else f"{row.power:.3f} ± {row.power_se:.3f}"


def _events(count: float) -> str:
    if math.isnan(count):
        return NONE
    return "never" if math.isinf(count) else f"{count:,.0f}"


class Target(NamedTuple):
    """Describe a target of `paired` in some settings.

    Args:
        text: Description of the target.
        settings: Settings in which it applies.
        claim: Formats the result of a row.
        reached: Returns whether a row reaches the target.
    """

    text: str
    settings: tuple[str, ...]
    claim: Callable[[Row], str]
    reached: Callable[[Row], bool]


TARGETS = (
    Target(
        "at most .5 false starts per 10 million candidate-events",
        SETTINGS,
        lambda row: f"{row.false_rate:.2f}",
        lambda row: row.false_rate <= 0.5,
    ),
    Target(
        "never promotable while worse by .01 or more",
        ("smooth",),
        lambda row: f"{row.much_worse:,} of {row.promotable:,} checks",
        lambda row: row.much_worse == 0,
    ),
    Target("power at leads of .02 to .05 at least .80", SETTINGS, _power, lambda row: row.power >= 0.80),
    Target(
        "median delay at most 41,000 events",
        ("smooth",),
        lambda row: _events(row.delay),
        lambda row: row.delay <= 41_000,
    ),
    Target(
        "median delay at most 12,000 events",
        ("abrupt",),
        lambda row: _events(row.delay),
        lambda row: row.delay <= 12_000,
    ),
)


def _targets(rows: Sequence[Row], fresh: Sequence[Row]) -> str:
    head = ["`paired` should", "", "all seeds", "seeds not used for choosing"]
    body = [
        [target.text, setting, *(_reached(target, setting, group) for group in (rows, fresh))]
        for target in TARGETS
        for setting in target.settings
    ]
    return _table(head, body)


def _reached(target: Target, setting: str, rows: Sequence[Row]) -> str:
    for row in rows:
        if (row.setting, row.rule) == (setting, "paired"):
            return f"{target.claim(row)}, {'reached' if target.reached(row) else '**missed**'}"
    return NONE


def _same(rows: Iterable[SameRow]) -> str:
    head = ["weights", "", "candidates", "ever promotable", "share", "promised", "with 99.9% at most"]
    body = [
        [
            row.weights,
            f"`{row.rule}`" if row.rule in RULES else row.rule,
            f"{row.candidates:,}",
            f"{row.ever:,}",
            f"{row.ever / row.candidates:.2%}",
            NONE if row.promised is None else f"{row.promised:.2%}",
            NONE if row.bound is None else f"{row.bound:,}",
        ]
        for row in rows
    ]
    return _table(head, body)


def _long(long: Sequence[LongOutcome]) -> str:
    """Show in how many long streams `paired` ever called a candidate promotable."""
    head = [
        "weights",
        "rewards",
        "candidates of a stream",
        "streams",
        "… with a promotable candidate",
        "such candidates",
    ]
    body = []
    for kind in dict.fromkeys((outcome.weights, outcome.rewards, outcome.candidates) for outcome in long):
        ever = [each.ever for each in long if (each.weights, each.rewards, each.candidates) == kind]
        weights, rewards, candidates = kind
        numbers = (candidates, len(ever), np.count_nonzero(ever), sum(ever))
        body.append([weights, rewards, *(f"{number:,}" for number in numbers)])
    return _table(head, body)


def _losers(rows: Sequence[DayRow]) -> str:
    """Show in how many runs the loser was ever promotable, and at which share of the looks."""
    return _by_world(rows, lambda row: f"{row.wrong} of {row.runs}, {row.share:.1%}")


def _winners(rows: Sequence[DayRow]) -> str:
    """Show when the winner was promotable, and for how much of the time after that."""

    def cell(row: DayRow) -> str:
        share = "" if math.isnan(row.later) else f", {row.later:.0%} ({row.least:.0%})"
        return f"{_day(row.first)} ({_day(row.latest)}){share}"

    return _by_world(rows, cell)


def _by_world(rows: Sequence[DayRow], cell: Callable[[DayRow], str]) -> str:
    body = [[world, *(cell(row) for row in rows if row.world == world)] for world in WORLDS]
    return _table(["world", *_day_heads()], [line for line in body if len(line) > 1])


def _same_days(days: Sequence[DayRun]) -> str:
    """Show in how many streams without differences a rule ever called a candidate promotable, or worse."""
    body = []
    for kind in SAME:
        runs = [run for run in days if run.world == kind]
        wrong = [sum(run.rules[rule].wrong > 0 for run in runs) for rule in DAY_RULES]
        numbers = (len(runs), *wrong, sum(run.worse > 0 for run in runs))
        body.append([kind, *(f"{number}" for number in numbers)])
    return _table(["streams of 30 days", "streams", *_day_heads(), "`worse` by `periodic`"], body)


def _day_heads() -> list[str]:
    return [rule if rule in BY_HAND else f"`{rule}`" for rule in DAY_RULES]


def _day(day: float) -> str:
    return "never" if math.isinf(day) else f"{day:.1f}"


def _errors(errors: Sequence[ErrorScores]) -> str:
    """Show means over runs, one column per world and setting."""
    columns = sorted(
        {(score.world, score.setting) for score in errors}, key=lambda column: (column[0], SETTINGS.index(column[1]))
    )
    groups = [[score for score in errors if (score.world, score.setting) == column] for column in columns]
    body = [
        [message, *(f"{np.mean([score.correlation[name] for score in group]):.2f}" for group in groups)]
        for name, message in NAMES.items()
    ]
    for name in ("paired", "drift_aware"):
        message = f"root mean square of the errors in units of the error that `{name}` assumes"
        body.append([message, *(f"{np.mean([score.size[name] for score in group]):.2f}" for group in groups)])
    return _table(["correlation with the squared error", *(f"{world}, {setting}" for world, setting in columns)], body)


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
