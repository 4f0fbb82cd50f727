"""Test errors of estimates against the truth: `simulate --errors` and `replay --truth`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import streameval as se
from streameval.cli.accuracy import Score, error_rows, score
from streameval.cli.trace import Trace, TracePoint
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings
from support.commands import Run
from support.factories import make_estimate

PAIR = ("ips", "cumulative")
EVENTS = 600


@pytest.fixture
def run(run: Run, tmp_path: Path) -> Run:
    (tmp_path / "c.yaml").write_text(
        "policies: {candidates: [candidate-1, candidate-2, candidate-3]}\nestimators: [ips]\naverages: [cumulative]\n"
    )
    return run


def test_a_score_compares_candidates_with_their_truth_after_the_first_tenth() -> None:
    def point(events: int, production: float, candidate: float) -> TracePoint:
        rows = [make_estimate("logging", *PAIR, value=production, lower=None, upper=None)]
        rows += [make_estimate("a", *PAIR, value=candidate, lower=candidate - 0.15, upper=candidate + 0.15)]
        return TracePoint(events, None, rows)

    trace = Trace([PAIR], kept=[point(100, 9.0, 9.0), point(1_000, 0.5, 0.6), point(2_000, 0.5, 0.9)])
    truth = {"logging": np.array([[0.0, 2_000.0], [0.4, 0.4]]), "a": np.array([[0.0, 2_000.0], [0.5, 0.7]])}
    found = score(trace, truth, PAIR)
    assert found.value == pytest.approx((0.0**2 + 0.2**2) / 2)
    assert found.lift == pytest.approx(((0.0 - 0.1) ** 2 + (0.2 - 0.1) ** 2) / 2)
    assert (found.bias, found.covered) == (pytest.approx(0.1), 0.5)


def test_standard_errors_are_over_logs() -> None:
    of_logs = [[Score(value, value, value - 1.0, 1.0)] for value in (0.01, 0.04, 0.09, math.nan)]
    (row,) = error_rows([PAIR], of_logs)
    mean, deviation = np.mean([0.01, 0.04, 0.09]), np.std([0.01, 0.04, 0.09], ddof=1)
    assert row.value == row.lift == pytest.approx(mean**0.5)
    assert row.value_se == pytest.approx(deviation / 3**0.5 / (2 * mean**0.5))
    assert (row.bias, row.bias_se) == (pytest.approx(mean - 1), pytest.approx(deviation / 3**0.5))
    (alone,) = error_rows([PAIR], of_logs[:1])
    assert (alone.value, alone.value_se, alone.covered_se) == (pytest.approx(0.1), None, None)


def test_several_logs_are_simulated_and_compared_in_one_command(run: Run) -> None:
    outcome = run("simulate", "--events", str(EVENTS), "--seed", "5", "--errors", "2", "--config", "c.yaml", "--json")
    assert outcome.code == 0, outcome.err
    row = json.loads(outcome.out)
    errors = [_mean_error(seed) for seed in (5, 6)]
    assert (row["estimator"], row["average"]) == PAIR
    assert row["bias"] == pytest.approx(np.mean(errors), rel=1e-9)
    assert row["bias_se"] == pytest.approx(abs(errors[0] - errors[1]) / 2, rel=1e-9)
    assert "ips" in run("simulate", "--events", str(EVENTS), "--errors", "1").out


def _mean_error(seed: int) -> float:
    recommender = SimulatedRecommender(SimulatedSettings(events=EVENTS, seed=seed, rate=10.0))
    evaluator, errors = se.Evaluator(recommender.settings.candidates, ["ips"], ["cumulative"]), []
    for number, line in enumerate(recommender.lines(), start=1):
        evaluator.update_one(json.loads(line))
        if number % 100 == 0 and number > EVENTS / 10:
            report, truth = evaluator.report(), recommender.truth(number)
            errors += [report.get(name, *PAIR).value - truth[name] for name in recommender.settings.candidates]
    return float(np.mean(errors))


def test_a_replay_with_its_truth_prints_errors(run: Run) -> None:
    assert run("simulate", "log.ndjson", "--events", str(EVENTS), "--truth", "truth.ndjson").code == 0
    outcome = run("replay", "c.yaml", "log.ndjson", "--truth", "truth.ndjson")
    assert outcome.code == 0, outcome.err
    assert "Errors against the truth, log.ndjson:" in outcome.out
    for content, problem in [("", "is empty"), (Path("truth.ndjson").read_text()[:200], "and the log has 600")]:
        Path("wrong.ndjson").write_text(content.rpartition("\n")[0])
        outcome = run("replay", "c.yaml", "log.ndjson", "--truth", "wrong.ndjson")
        assert (outcome.code, problem in outcome.err) == (2, True), outcome.err
    Path("other.yaml").write_text("policies: {candidates: [other]}\n")
    outcome = run("replay", "other.yaml", "log.ndjson", "--truth", "truth.ndjson")
    assert outcome.code == 2
    assert "error: the truth has no policy 'other'\nhint: it names logging, candidate-1," in outcome.err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("log.ndjson", "--errors", "2"), "--errors writes no events"),
        (("log.ndjson", "--truth", "log.ndjson"), "events and true values cannot both be in log.ndjson"),
        (("--json",), "--config and --json have no effect without --errors"),
    ],
)
def test_options_that_do_not_go_together_are_refused(run: Run, options: tuple[str, ...], complaint: str) -> None:
    outcome = run("simulate", *options)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {complaint}\nhint: ")
