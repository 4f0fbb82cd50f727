"""Cost of confidence sequences and decisions: the main loop with each of them against the one without.

    make bench                              # 4 estimators, 5 averages, 10 policies
    python tests/benchmarks/intervals.py --rounds 9

All kinds are timed in turns, and compared round by round, because a machine's speed drifts. The interval of an average
is `normal`, which costs least, unless another is said; there is no decision where no rule is.
"""

from __future__ import annotations

import argparse
import logging
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from throughput import POLICIES, messages, run_daemon, seconds

from streameval import Evaluator
from streameval.ope.averages import AdaptiveDecay, AdaptiveWindow, Cumulative, Decay, Window
from streameval.ope.estimators import IPS, SNIPS, ClippedIPS, ControlVariate

MOST = 1.20
"""How many times as long the main loop may take with all intervals together."""
AVERAGES = (Cumulative(), Window(), Decay(), AdaptiveWindow(), AdaptiveDecay())
NORMAL = {average.label: "normal" for average in AVERAGES}
LIKELY = dict.fromkeys(NORMAL, "empirical_likelihood")
WATCHED = dict.fromkeys(("cumulative", "window"), "confidence_sequence")


def making(intervals: Mapping[str, str], promotion: str | None = None) -> Callable[[], Evaluator]:
    """Makes evaluators of the main benchmark, with these intervals and this rule."""

    def make() -> Evaluator:
        given: dict[str, Any] = {"intervals": dict(intervals), "promotion": promotion}
        return Evaluator(
            candidates=POLICIES,
            estimators=[IPS(), SNIPS(), ClippedIPS(cap=10), ControlVariate()],
            averages=AVERAGES,
            drift=None,
            **given,
        )

    return make


KINDS = {
    "normal": making(NORMAL),
    "empirical_likelihood": making(LIKELY),
    "confidence_sequence on cumulative": making({**NORMAL, "cumulative": "confidence_sequence"}),
    "confidence_sequence on cumulative and window": making({**NORMAL, **WATCHED}),
    "these two, and empirical_likelihood on the others": making({**LIKELY, **WATCHED}),
    "promotion by paired": making(NORMAL, "paired"),
    "promotion by anytime": making(NORMAL, "anytime"),
}


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    values = messages(min(options.events, 50_000))
    learners = {name: make() for name, make in KINDS.items()}
    for learner in learners.values():  # warm-up
        run_daemon(values, options.events // 4, learner)
    rounds = [
        {name: seconds(run_daemon, values, options.events, learner) for name, learner in learners.items()}
        for _ in range(options.rounds)
    ]
    print(f"{options.events:,} events, {len(POLICIES)} policies, 4 estimators, 5 averages, {options.rounds} rounds")
    for name in KINDS:
        ratio = statistics.median(each[name] / each["normal"] for each in rounds)
        each_event = statistics.median(each[name] for each in rounds) / options.events
        print(f"{name:50} {each_event * 1e6:6.2f} us an event, {ratio:5.3f} times as long")
    print(f"(wanted: all intervals together at most {MOST:.2f} times)")


if __name__ == "__main__":
    main()
