"""Test the table of segments, and the answer that names segments with a worse candidate."""

from __future__ import annotations

from pathlib import Path

import pytest

from streameval.cli.configuration import configuration_table
from streameval.cli.replay import Replay
from streameval.cli.tables import answer_lines, segments_table
from streameval.config.model import Config
from support.factories import make_report, with_segments


def test_the_lowest_lift_over_its_error_is_the_first_row_and_a_part_of_the_answer() -> None:
    report = with_segments(make_report(candidates=1))
    table = segments_table(report)
    assert [str(cell) for cell in table.columns[1].cells] == ["country fr", "country de"]
    assert list(table.columns[2].cells) == ["20.0%", "80.0%"]
    answer, _ = answer_lines(report, everything=False)
    assert answer.endswith("; it earns less in country fr")


def test_a_segment_without_an_event_of_its_values_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, settings = tmp_path / "log.csv", tmp_path / "x.yaml"
    log.write_text("timestamp,action,propensity,reward,a,country,place\n1,x,0.5,1,0.5,DE,2\n2,x,0.5,1,0.5,FR,3\n")
    settings.write_text(
        "policies: {candidates: [a]}\n"
        "segments:\n"
        "  country: {field: context.country, values: [de], other: true}\n"
        "  place: {field: context.country, values: [fr]}\n"
        "  rank: {field: place, most: 3}\n"
        "columns: {context: [country]}\n"
    )
    config = Config.load(settings, {})
    names, values = configuration_table(config).columns
    index = list(names.cells).index("segments")
    assert str(list(values.cells)[index]) == "country: de, other\nplace: fr\nrank: 1, 2, 3"
    report = Replay(config).read([str(log)])
    warnings = capsys.readouterr().err
    assert "no event has one of the values of the segment 'country'" in warnings
    assert "the segment has the values of the field context.country" in warnings
    assert "'rank'" not in warnings
    shares = {(row.segment, row.segment_value): row.share for row in report.segments if row.policy == "a"}
    assert shares["country", "other"] == 1.0
    assert shares["rank", "2"] == shares["rank", "3"] == 0.5
