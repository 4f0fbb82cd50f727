"""Run the recipes in other languages: each logs accepted events and the probabilities of its draws."""

from __future__ import annotations

import csv
import runpy
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import streameval as se
from streameval.cli.arrow_schema import arrow_schema
from streameval.config.model import Config
from streameval.events import EventBatch, JsonDecoder
from streameval.events.arrow_messages import ArrowDecoder
from streameval.events.tables import ColumnNames
from support.go_toolchain import built
from support.paths import ROOT
from support.programs import output, program

RECIPES = ROOT / "examples" / "recommender" / "recipes"
EVENTS = 2_000
LIBRARIES = Path(__file__).parent / "arrow_recipes"


def java(directory: Path) -> list[str]:
    program("javac", "default-jdk-headless")
    return [program("java", "default-jdk-headless"), str(RECIPES / "Decisions.java")]


def go(directory: Path) -> list[str]:
    module = directory / "decisions"
    module.mkdir()
    shutil.copy(RECIPES / "decisions.go", module)
    (module / "go.mod").write_text("module decisions\n\ngo 1.22\n")
    binaries = directory / "bin"
    binaries.mkdir()
    return [str(built(module, binaries))]


def node(directory: Path) -> list[str]:
    return [program("node", "nodejs"), str(RECIPES / "decisions.mjs")]


@pytest.mark.slow
@pytest.mark.parametrize("command_in", [java, go, node])
def test_every_decision_of_a_recipe_is_accepted_and_drawn_from_the_logged_probabilities(
    command_in: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    command = [*command_in(tmp_path), str(EVENTS)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout.splitlines()
    batch = JsonDecoder(["challenger"], reward_range=(0, 1)).decode_batch(lines)
    assert batch.rejected == ()
    assert len(batch) == EVENTS
    sets = batch.action_sets
    assert sets is not None
    logged = sets.propensities.reshape(EVENTS, 3)
    powers = np.exp([1.2, 0.4, 0.0])
    np.testing.assert_allclose(logged, np.tile(0.8 * powers / powers.sum() + 0.2 / 3, (EVENTS, 1)))
    shown = np.bincount(sets.index, minlength=3) / EVENTS
    assert np.all(np.abs(shown - logged[0]) < 5 * np.sqrt(logged[0] * (1 - logged[0]) / EVENTS))


def java_with_arrow(directory: Path) -> list[str]:
    program("javac", "default-jdk-headless")
    maven, jars = program("mvn", "maven"), directory / "jars"
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    output(maven, "-B", "-q", "-f", str(LIBRARIES / "pom.xml"), *goal, seconds=300)
    options = ["-cp", f"{jars}/*", "--add-opens=java.base/java.nio=ALL-UNNAMED"]
    return [program("java", "default-jdk-headless"), *options, str(RECIPES / "Batches.java")]


def go_with_arrow(directory: Path) -> list[str]:
    module, binaries = directory / "batches", directory / "bin"
    module.mkdir()
    binaries.mkdir()
    for file in (RECIPES / "batches.go", LIBRARIES / "go.mod", LIBRARIES / "go.sum"):
        shutil.copy(file, module)
    return [str(built(module, binaries))]


def node_with_arrow(directory: Path) -> list[str]:
    for file in (RECIPES / "batches.mjs", LIBRARIES / "package.json", LIBRARIES / "package-lock.json"):
        shutil.copy(file, directory)
    output(program("npm", "npm"), "--prefix", str(directory), "ci", "--ignore-scripts", "--no-audit", seconds=300)
    return [program("node", "nodejs"), str(directory / "batches.mjs")]


def streams(log: bytes) -> Iterator[bytes]:
    """Yield the Arrow streams of a log."""
    source = pa.BufferReader(log)
    while (start := source.tell()) < len(log):
        pa.ipc.open_stream(source).read_all()
        yield log[start : source.tell()]


@pytest.mark.slow
@pytest.mark.parametrize("command_in", [java_with_arrow, go_with_arrow, node_with_arrow])
def test_every_batch_of_a_recipe_is_accepted_and_has_the_columns_of_the_schema(
    command_in: Callable[[Path], list[str]], tmp_path: Path
) -> None:
    command = [*command_in(tmp_path), str(EVENTS + 1)]
    log = tmp_path / "log.arrows"
    log.write_bytes(subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout)
    schema = arrow_schema(Config.model_validate({"policies": {"candidates": ["challenger"]}}), "action")
    columns = set(pa.ipc.open_stream(log.read_bytes()).schema.names)
    assert {field.name for field in schema if not field.nullable} <= columns <= set(schema.names)
    messages = list(streams(log.read_bytes()))
    read = ArrowDecoder(JsonDecoder(["challenger"]), ColumnNames()).decode_batch(messages)
    assert (len(messages), len(read), read.rejected) == (1 + EVENTS // 500, EVENTS + 1, ())
    batch = EventBatch.concat(list(se.read_events(log, policies=["challenger"], reward_range=(0, 1))))
    assert (len(batch), batch.rejected) == (EVENTS + 1, ())
    production, challenger = (np.exp(scores) for scores in ([1.2, 0.4, 0.0], [0.2, 1.4, 0.3]))
    pairs = zip(*(0.8 * powers / powers.sum() + 0.2 / 3 for powers in (production, challenger)), strict=True)
    found = np.column_stack([batch.propensity, batch.probabilities[:, 0]])
    for chance, own in pairs:
        shown = np.isclose(found, [chance, own]).all(axis=1).sum() / len(batch)
        assert abs(shown - chance) < 5 * np.sqrt(chance * (1 - chance) / len(batch))
    assert np.isclose(batch.reward, 0).sum() + np.isclose(batch.reward, 1).sum() == len(batch)


def test_the_rows_and_batches_of_a_warehouse_are_events_with_the_rewards_of_their_clicks(tmp_path: Path) -> None:
    with sqlite3.connect(":memory:") as warehouse:
        warehouse.executescript(
            """
            CREATE TABLE impressions (event_id TEXT, shown_at REAL, item_id TEXT, probability REAL, user_id INTEGER);
            CREATE TABLE candidate_scores (event_id TEXT, probability REAL);
            CREATE TABLE clicks (event_id TEXT, clicked_at REAL);
            INSERT INTO impressions VALUES ('c', 300, 'x', .25, 8), ('a', 100, 'x', .25, 7), ('b', 200, 'y', .75, 7);
            INSERT INTO candidate_scores VALUES ('a', .5), ('c', .125);
            INSERT INTO clicks VALUES ('a', 150), ('a', 160), ('b', 199), ('c', 2101), ('c', 2099), ('d', 100);
            """
        )
        cursor = warehouse.execute((RECIPES / "decisions.sql").read_text())
        with (tmp_path / "decisions.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            names, rows = [name for name, *_ in cursor.description], list(cursor)
            writer.writerow(names)
            writer.writerows(rows)
    warehouse.close()
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    messages = runpy.run_path(str(RECIPES / "batches.py"))["messages"]([pa.record_batch(columns)])
    (tmp_path / "decisions.arrows").write_bytes(b"".join(messages))
    for ending in ("csv", "arrows"):
        (batch,) = se.read_events(tmp_path / f"decisions.{ending}", policies=["challenger"])
        assert batch.rejected == ()
        assert batch.timestamp.tolist() == [100.0, 200.0, 300.0]
        assert batch.reward.tolist() == [1.0, 0.0, 1.0]
        assert batch.propensity.tolist() == [0.25, 0.75, 0.25]
        np.testing.assert_array_equal(batch.probabilities[:, 0], [0.5, np.nan, 0.125])
