"""Make tables and figures of README.md from the stored results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from loop import NEVER, RULES, Run

NONE = "–"
ORDER = (
    *(("bsea", "sea"), ("anytime", "sea"), ("paired", "sea")),
    *(("anytime", "bsea"), ("bsea", "paired"), ("anytime", "paired")),
)
"""The first rule of each pair should deploy earlier than the second."""
SAFE = ("sea", "bsea", "anytime", "paired")


def fill_in(document: str, runs: Sequence[Run], warm: Sequence[Run], overfitting: Mapping[str, Any]) -> str:
    """Replace tables, each after a line `<!-- table: name -->`, and figures, each before `<!-- =name -->`."""
    tables = {
        "rules": _rules(runs),
        "warm": _rules(warm),
        "order": _order(runs),
        "targets": _targets(runs),
        "overfitting": _fits(overfitting),
    }
    pattern = r"(<!-- table: (\w+) -->\n)(?:\|[^\n]*\n)*"
    document = re.sub(pattern, lambda match: f"{match[1]}{tables[match[2]]}\n", document)
    texts = figures(runs, warm, overfitting)
    return re.sub(r"[^\s(]+<!-- =(\w+) -->", lambda match: f"{texts[match[1]]}<!-- ={match[1]} -->", document)


def figures(runs: Sequence[Run], warm: Sequence[Run], overfitting: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of the text by name."""
    baseline = [run.baseline for run in select_runs(runs, NEVER)]
    worst = max(
        (deployment.replaced - deployment.value for run in (*runs, *warm) for deployment in run.deployments),
        default=np.nan,
    )
    return {
        **{f"lift_of_{rule}": short(_first_lift(runs, rule), 3) for rule in SAFE},
        **{f"warm_lift_of_{rule}": short(_first_lift(warm, rule), 3) for rule in SAFE},
        "baseline": short(float(np.mean(baseline))),
        "baseline_low": short(min(baseline)),
        "baseline_high": short(max(baseline)),
        "worst_step": short(worst, 3),
        **{f"overfitting_{name}": short(number) for name, number in overfitting["whole"].items()},
        **{f"stopped_{name}": short(number) for name, number in overfitting["stopped"].items()},
    }


def _first_lift(runs: Sequence[Run], rule: str) -> float:
    """Return the median of the true lift at the first deployment."""
    return float(np.median([run.deployments[0].lift for run in select_runs(runs, rule) if run.deployments]))


def select_runs(runs: Iterable[Run], rule: str) -> list[Run]:
    """Return the runs of a rule, sorted by seed."""
    return sorted((run for run in runs if run.rule == rule), key=lambda run: run.seed)


def first(run: Run) -> float:
    """Return after how many events the challenger was first deployed, infinite for never."""
    return run.deployments[0].event if run.deployments else np.inf


def _rules(runs: Sequence[Run]) -> str:
    head = ["rule", "first deployment, median", "earliest to latest", "deployments per run"]
    head += ["worse than the baseline", "worse than the policy replaced", "served at the end", "learned at the end"]
    head += ["reward per event"]
    body = []
    for rule in RULES:
        rule_runs = select_runs(runs, rule)
        firsts = [first(run) for run in rule_runs]
        deployments = [deployment for run in rule_runs for deployment in run.deployments]
        worse_than_baseline = sum(
            deployment.value < run.baseline for run in rule_runs for deployment in run.deployments
        )
        worse_than_replaced = sum(deployment.value < deployment.replaced for deployment in deployments)
        body.append(
            [
                f"`{rule}`" if rule != NEVER else "never: the baseline's log alone",
                NONE if rule == NEVER else events_text(float(np.median(firsts))),
                NONE if rule == NEVER else f"{events_text(min(firsts))} to {events_text(max(firsts))}",
                NONE if rule == NEVER else f"{len(deployments) / len(rule_runs):.1f}",
                NONE if rule == NEVER else f"{worse_than_baseline} of {len(deployments)}",
                NONE if rule == NEVER else f"{worse_than_replaced} of {len(deployments)}",
                *(mean_text([measure(run) for run in rule_runs]) for measure in MEASURES),
            ]
        )
    return table(head, body)


MEASURES: tuple[Callable[[Run], float], ...] = (
    lambda run: run.served,
    lambda run: run.learned,
    lambda run: run.reward,
)


def _order(runs: Sequence[Run]) -> str:
    head = ["", "earlier", "at the same look", "later", "median difference in events"]
    body = []
    for one, other in ORDER:
        first_events = ([first(run) for run in select_runs(runs, rule)] for rule in (one, other))
        pairs = list(zip(*first_events, strict=True))
        differences = [late - early for early, late in pairs if np.isfinite(early) and np.isfinite(late)]
        counts = (sum(a < b for a, b in pairs), sum(a == b for a, b in pairs), sum(a > b for a, b in pairs))
        body.append([f"`{one}` before `{other}`", *map(str, counts), events_text(float(np.median(differences)))])
    return table(head, body)


def _targets(runs: Sequence[Run]) -> str:
    """Count the seeds in which a rule ends above the policy learned from the baseline's log alone."""
    head = ["rule", "policy served at the end is better", "policy learned by the end is better"]
    alone, body = [run.learned for run in select_runs(runs, NEVER)], []
    for rule in SAFE:
        rule_runs = select_runs(runs, rule)
        counts = (
            sum(measure(run) > other for run, other in zip(rule_runs, alone, strict=True))
            for measure in (lambda run: run.served, lambda run: run.learned)
        )
        body.append([f"`{rule}`", *(f"{count} of {len(rule_runs)}" for count in counts)])
    return table(head, body)


def _fits(overfitting: Mapping[str, Any]) -> str:
    head = ["passes", "SNIPS on the events learned from", "their mean weight", "SNIPS on later events", "true value"]
    body = [
        [str(row["passes"]), *(short(row[name]) for name in ("training", "weight", "validation", "truth"))]
        for row in overfitting["passes"]
    ]
    return table(head, body)


def mean_text(values: Sequence[float]) -> str:
    """Format the mean over runs with its standard error."""
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{short(float(np.mean(values)), 3)} ± {short(float(error), 3)}"


def short(number: float, digits: int = 2) -> str:
    return f"{number:.{digits}f}".removeprefix("0")


def events_text(count: float) -> str:
    return "never" if np.isinf(count) else f"{count:,.0f}"


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
