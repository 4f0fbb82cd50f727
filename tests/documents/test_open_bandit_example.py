"""Compare the example with real logs with the numbers of the dataset's own software."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from support.commands import command
from support.paths import ROOT

EXAMPLE = ROOT / "examples" / "open_bandit"
POLICIES = ("random", "bts")


def rewards(log: str) -> list[float]:
    """Read the rewards of a log."""
    with gzip.open(EXAMPLE / "data" / f"{log}.ndjson.gz") as lines:
        return [json.loads(line)["reward"] for line in lines]


def replayed(config: str, log: str, capfd: pytest.CaptureFixture[str]) -> dict[str, float]:
    """Return the candidate's cumulative value by each estimator, as `replay --json` prints it."""
    outcome = command(capfd, "replay", str(EXAMPLE / config), str(EXAMPLE / "data" / f"{log}.ndjson.gz"), "--json")
    assert outcome.code == 0
    warnings = [line for line in outcome.err.splitlines() if not line.startswith("hint: ")]
    assert all(" fails the trust check largest_share: " in line for line in warnings)
    report = json.loads(outcome.out)
    assert report["events"]["accepted"] == 10_000
    assert report["events"]["rejected"] == {}
    return {
        row["estimator"]: row["value"]
        for row in report["estimates"]
        if row["policy"] != "logging" and row["average"] == "cumulative"
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "log", "ips", "snips"),
    [
        ("bts_prior.yaml", "random_all", "0.004553", "0.004776"),
        ("bts_prior.yaml", "random_men", "0.004534", "0.004604"),
        ("random.yaml", "bts_all", "0.002360", "0.002334"),
        ("random.yaml", "bts_men", "0.003009", "0.003189"),
    ],
)
def test_replay_agrees_with_the_open_bandit_pipeline(
    config: str, log: str, ips: str, snips: str, capfd: pytest.CaptureFixture[str]
) -> None:
    values = replayed(config, log, capfd)
    assert {estimator: f"{value:.6f}" for estimator, value in values.items()} == {"ips": ips, "snips": snips}


def test_the_reference_value_is_met_to_eight_decimals(capfd: pytest.CaptureFixture[str]) -> None:
    assert f"{replayed('bts_prior.yaml', 'random_all', capfd)['ips']:.8f}" == "0.00455288"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("interval", "bounds"),
    [("empirical_likelihood", ".0007 to .0333"), ("{kind: empirical_likelihood, max_weight: none}", ".0004 to .0938")],
)
def test_the_intervals_of_the_limitations_are_those_of_the_log(
    interval: str, bounds: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text((EXAMPLE / "bts_prior.yaml").read_text().replace("normal", interval))
    outcome = command(capfd, "replay", str(config), str(EXAMPLE / "data" / "random_all.ndjson.gz"), "--json")
    rows = [row for row in json.loads(outcome.out)["estimates"] if row["average"] == "cumulative"]
    (row,) = [row for row in rows if (row["policy"], row["estimator"]) == ("bts_prior", "snips")]
    ends = [f"{row[name]:.4f}".removeprefix("0") for name in ("lower", "upper")]
    assert " to ".join(ends) == bounds
