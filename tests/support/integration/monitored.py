"""Run a real Prometheus that scrapes daemons. Together they have everything that dashboards show."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import yaml

from support.deployed import Panel, filled_in, panels, without_fallback
from support.integration.monitoring import prometheus, query
from support.integration.running import daemon
from support.ramps import DECIDED, messages

CONFIG = {
    # Action sets give a reward model and estimates by it.
    "source": {"kind": "simulated", "rate": 1000, "candidates": 2, "action_sets": True},
    "policies": {"candidates": ["candidate-1", "candidate-2"]},
    # a candidate is soon promotable, as the first panel shows
    "promotion": {"rule": "paired", "min_events": 2000, "margin": -0.5},
}
RANKINGS = {
    # Swaps give a learned examination.
    "source": {"kind": "simulated", "world": "rankings", "rate": 2000, "candidates": 1, "exploration": 0.5},
    "policies": {"candidates": ["candidate-1"]},
    "ranking": {"metric": {"kind": "dcg", "at": 6}, "examination": {"kind": "swaps", "ranks": 6}},
    # Whole periods are soon known.
    "promotion": {"rule": "periodic", "period": "10s"},
}
ADAPTIVE = [{"kind": kind, "drift_span": 2000} for kind in ("adaptive_window", "adaptive_decay")]
ESTIMATED = {
    "policies": {"candidates": ["candidate-1", "candidate-2"]},
    "propensity": {"kind": "estimated", "model": {"kind": "tabular", "by": ["context.country"]}},
    "reward": {"field": "click", "max": "auto", "quantile": 0.999, "quantiles": [0.85]},
}
UNUSED = {
    "Alerts",
    "Backfill",
    "Held back",
    "Rewards that come later",
    "Scores that come later",
    "Decision messages",
    "Batch on the engine",
    "Events of a batch",
    "Age of the estimates",
    "Executors lost",
    "Events not learned from",
    "Regret of candidates that learn",
    "Steps of candidates that learn",
    "Newest frozen copy",
    "Rewards per unit",
}
"""Titles of panels about features that no daemon uses."""
AVERAGES = ["cumulative", *ADAPTIVE, "mixture"]
"""Averages of all daemons. With the default span, the drift rate would be known after 50,000 events."""
CHOSEN = {
    "name": "decisions",
    "policy": "candidate-1",
    "reward": "reward",
    "estimator": "stratified_dr",
    "average": "mixture",
    "period": "10s",
}
PATIENCE = 120.0
EVENTS = 30_000
"""Events in the log of the ramp."""


@contextmanager
def monitored_daemons(folder: Path) -> Iterator[httpx.Client]:
    """Start Prometheus and four daemons that ask for a token, and wait for an answer to every query.

    One daemon evaluates decisions with action sets, one rankings, one a ramp with several rewards and segments, and one
    the log of the ramp without its propensities. The first one is scraped by another job.
    """
    token = folder / "token"
    token.write_text(secrets.token_hex(32) + "\n")
    token.chmod(0o600)
    log = folder / "log.ndjson"
    with log.open("wb") as lines:
        lines.writelines(messages(1, EVENTS, started=time.time() - 300.0))
    log_source = {"source": {"kind": "file", "path": str(log), "follow": True}}
    named = {
        "decisions": CONFIG,
        "rankings": RANKINGS,
        "ramp": DECIDED | log_source,
        "estimated": ESTIMATED | log_source,
    }
    with ExitStack() as running:
        addresses = []
        for name, settings in named.items():
            common = {
                "name": name,
                "averages": AVERAGES,
                "http": {"port": 0, "token_file": str(token)},
                "dead_letters": {"kind": "file", "path": str(folder / f"rejected {name}.ndjson")},
                "state": {"dir": str(folder / f"state of {name}"), "interval": "2s"},
            }
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings | common))
            served = running.enter_context(daemon(folder / f"{name}.yaml", folder / f"log of {name}"))
            addresses.append(f"{served.base_url.host}:{served.base_url.port}")
        one, *apart = addresses
        client = running.enter_context(prometheus([one], folder / "prometheus", apart=apart, token=token))
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and unanswered(client):
            time.sleep(1.0)
        yield client


def needed(panel: Panel) -> list[str]:
    """Return the queries of a panel that must have an answer, without the fallback of features that a daemon has."""
    queries = panel.queries if panel.title in UNUSED else map(without_fallback, panel.queries)
    return [filled_in(expression, CHOSEN) for expression in queries]


def unanswered(client: httpx.Client) -> list[str]:
    """Return the queries of panels that give nothing (yet)."""
    expressions = {expression for panel in panels() for expression in needed(panel)}
    return sorted(expression for expression in expressions if not is_answered(client, expression))


def is_answered(client: httpx.Client, expression: str) -> bool:
    """Return whether there is a number. Panels write `not known` for NaN."""
    return any(not math.isnan(value) for _, value in query(client, expression))
