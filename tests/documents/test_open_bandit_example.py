"""The example with real logs gives the numbers that the dataset's own software gives."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from support.commands import command
from support.paths import ROOT

EXAMPLE = ROOT / "examples" / "open_bandit"
POLICIES, CAMPAIGNS = ("random", "bts"), ("all", "men")


def rewards(log: str) -> list[float]:
    """The rewards of a log."""
    with gzip.open(EXAMPLE / "data" / f"{log}.ndjson.gz") as lines:
        return [json.loads(line)["reward"] for line in lines]


def replayed(config: str, log: str, capfd: pytest.CaptureFixture[str]) -> dict[str, float]:
    """The candidate's cumulative value by each estimator, as `replay --json` prints it."""
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
    row = f"| `{log}` → `{config.removesuffix('.yaml')}` | {ips[1:]} | {snips[1:]} | {sum(rewards(log)):.0f} |"
    assert row in (EXAMPLE / "README.md").read_text()


def test_clicks_of_the_limitations_are_those_of_the_logs() -> None:
    clicks = {f"{policy}_{campaign}": rewards(f"{policy}_{campaign}") for policy in POLICIES for campaign in CAMPAIGNS}
    rate = {log: f"{sum(each) / len(each):.4f}".removeprefix("0") for log, each in clicks.items()}
    text = " ".join((EXAMPLE / "README.md").read_text().split())
    assert f"With {min(map(sum, clicks.values())):.0f} to {max(map(sum, clicks.values())):.0f} clicks" in text
    assert f"({rate['bts_all']} on `all`, {rate['bts_men']} on `men` in these files)" in text
    assert f"({rate['random_all']} and {rate['random_men']} in these files)" in text


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
    found = [f"{row[name]:.4f}".removeprefix("0") for name in ("lower", "upper")]
    assert " to ".join(found) == bounds
    mean, largest = row["importance_weight_mean"], row["importance_weight_max"]
    figures = [bounds, f"average {mean:.3f}".replace(" 0", " "), f"missing {1 - mean:.3f}".replace(" 0", " ")]
    text = (EXAMPLE / "README.md").read_text()
    assert [each for each in (*figures, f"One click of weight {largest:.1f}") if each not in text] == []


def test_the_licence_of_the_data_is_there_with_its_text() -> None:
    licence = (EXAMPLE / "data" / "LICENCE.txt").read_text()
    assert "Saito" in licence
    assert "Apache License" in licence
    assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in licence
