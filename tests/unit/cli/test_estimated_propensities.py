"""Test logs without propensities in every format: configuration, `check`, `replay` and the daemon."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from streameval import Evaluator, read_events
from streameval.config.model import Config
from streameval.service.daemon import Daemon
from streameval.service.metrics import metrics_text
from streameval.service.startup import daemon as daemon_of
from support.commands import Run
from support.factories import running, wait_until

EVENTS = 1_500
BY_HOUR = {"kind": "estimated", "model": {"kind": "tabular", "by": ["hour"]}}
SETTINGS: dict[str, Any] = {"policies": {"candidates": ["challenger"]}, "propensity": BY_HOUR}


def rows() -> list[dict[str, Any]]:
    """Simulate choices between two actions by the hour, without propensities. The candidate takes the better one."""
    rng = np.random.default_rng(5)
    events = []
    for index in range(EVENTS):
        hour = int(rng.integers(2))
        first = bool(rng.random() < (0.8 if hour else 0.3))
        candidate = 0.9 if first else 0.1
        reward = float(rng.random() < (0.6 if first else 0.3))
        event = {"event_id": f"e-{index}", "timestamp": 1_700_000_000.0 + index, "action": "a" if first else "b"}
        events.append(event | {"hour": hour, "reward": reward, "challenger": candidate})
    return events


def write_json(path: Path) -> None:
    events = [{**row, "policies": {"challenger": row["challenger"]}} for row in rows()]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))


def write_csv(path: Path) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows()[0]))
        table.writeheader()
        table.writerows(rows())


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(rows()), path)


FORMATS: dict[str, Callable[[Path], None]] = {
    "log.ndjson": write_json,
    "log.csv": write_csv,
    "log.parquet": write_parquet,
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Write a configuration."""

    def write(**sections: Any) -> Path:
        path = tmp_path / "estimated.yaml"
        path.write_text(yaml.safe_dump(SETTINGS | sections))
        return path

    return write


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_may_lack_propensities(name: str, written: Callable[..., Path], tmp_path: Path, run: Run) -> None:
    FORMATS[name](tmp_path / name)
    result = run("replay", str(written()), str(tmp_path / name), "--json")
    report = json.loads(result.out)
    assert result.code == 0
    assert report["events"] == report["events"] | {"accepted": EVENTS, "rejected": {}}
    assert {row["propensity"] for row in report["estimates"]} == {"estimated"}
    (value,) = {
        row["value"]
        for row in report["estimates"]
        if (row["policy"], row["estimator"], row["average"]) == ("challenger", "snips", "cumulative")
    }
    assert value == pytest.approx(0.57, abs=0.06)  # .9 of .6 and .1 of .3
    assert report["propensity_model"]["unknown"] == 1_000


@pytest.mark.parametrize("name", FORMATS)
def test_python_reads_files_without_propensities(name: str, tmp_path: Path) -> None:
    FORMATS[name](tmp_path / name)
    evaluator = Evaluator(["challenger"], ["snips"], ["cumulative"], propensity=BY_HOUR)
    options: dict[str, Any] = {"policies": ["challenger"], "segments": {"hour": "hour"}, "estimated": True}
    for batch in read_events(tmp_path / name, **options):
        assert not batch.rejected
        evaluator.update(batch)
    report = evaluator.report()
    assert report.get("challenger", "snips", "cumulative").value == pytest.approx(0.57, abs=0.06)
    assert report.propensity_model is not None
    assert report.propensity_model.unknown == 1_000


def test_the_table_of_replay_starts_with_the_mark(written: Callable[..., Path], tmp_path: Path, run: Run) -> None:
    write_json(tmp_path / "log.ndjson")
    result = run("replay", str(written()), str(tmp_path / "log.ndjson"))
    assert "propensities are estimated (tabular): intervals leave out their error" in result.out
    assert "warning: propensity: 1,000 of 1,500 events have no estimate, and do not count for candidates" in result.err
    assert "policies.challenger" not in result.err


def test_without_the_setting_each_event_is_rejected_with_the_remedy(
    written: Callable[..., Path], tmp_path: Path, run: Run
) -> None:
    write_json(tmp_path / "log.ndjson")
    result = run("replay", str(written(propensity="logged")), str(tmp_path / "log.ndjson"))
    assert result.code == 2
    assert "propensity: missing" in result.err
    assert "hint: log it, or write propensity: {kind: estimated} if this log has none" in result.err


def test_check_names_the_model_and_reads_the_first_events(
    written: Callable[..., Path], tmp_path: Path, run: Run
) -> None:
    write_json(tmp_path / "log.ndjson")
    config = written(source={"kind": "file", "path": str(tmp_path / "log.ndjson")}, state=False, http={"port": 0})
    result = run("check", str(config))
    assert result.code == 0, result.err
    assert "estimated (tabular by hour); intervals leave out their error" in result.out
    assert "of the first 100 events 100 can be used" in result.out


def has_read_all(daemon: Daemon) -> bool:
    report = daemon.published.report
    return report is not None and report.events.accepted >= EVENTS


def test_the_daemon_marks_its_metrics_and_continues_after_a_restart(
    tmp_path: Path, written: Callable[..., Path]
) -> None:
    write_json(tmp_path / "log.ndjson")
    source = {"kind": "file", "path": str(tmp_path / "log.ndjson"), "follow": True}
    path = written(source=source, state={"dir": str(tmp_path / "state")}, http={"port": 0})
    texts = []
    for _ in range(2):
        daemon = daemon_of(path, Config.load(path, {}))
        with running(daemon):
            wait_until(partial(has_read_all, daemon))
        texts.append(metrics_text(daemon.published).decode())
    for text in texts:
        assert 'streameval_propensity_info{kind="estimated"} 1.0' in text
        assert 'streameval_propensity_unknown_total{model="tabular"} 1000.0' in text
    values = [[line for line in text.splitlines() if line.startswith("streameval_policy_value{")] for text in texts]
    assert values[0] == values[1]
    assert values[0]


def test_plan_needs_logged_propensities(written: Callable[..., Path], tmp_path: Path, run: Run) -> None:
    write_json(tmp_path / "log.ndjson")
    result = run("plan", str(written()), str(tmp_path / "log.ndjson"))
    assert result.code == 2
    assert "plan forecasts from logged propensities, and these are estimated" in result.err


def test_segments_of_estimated_propensities_split_dr(written: Callable[..., Path]) -> None:
    config = Config.load(written(estimators=["dr"], segments={"hour": {"values": [0, 1]}}), {})
    assert [field.name for field in config.evaluator_config().fields] == ["hour"]
