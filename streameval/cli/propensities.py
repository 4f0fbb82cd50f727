"""`check --propensities`: whether logged propensities agree with how often actions were chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from streameval.cli.check import Finding, exit_code
from streameval.cli.check import as_json as in_json
from streameval.common.text import counted
from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder
from streameval.ingest.files.lines import table_format
from streameval.ingest.files.reading import read_events
from streameval.ingest.files.source import read_lines
from streameval.ope.evidence.frequencies import Frequencies

HINT = (
    "log the probability that was used in the draw, after every filter; examples/recommender/README.md has a checklist"
)


def _findings(frequencies: Frequencies) -> Iterator[Finding]:
    """The actions and buckets whose propensities are wrong; one fact where none is."""
    wrong, comparisons = frequencies.findings()
    for each in wrong:
        yield Finding("propensities", each, "error", HINT)
    if not wrong:
        judged = f"how often actions were chosen ({counted(comparisons, 'comparison')})"
        yield Finding("propensities", f"the propensities of {counted(frequencies.events, 'event')} agree with {judged}")


def of_file(path: Path) -> list[Finding]:
    """The findings about the propensities of a log: NDJSON, CSV or Parquet.

    Raises:
        InputError: The file is missing or damaged, or has no event.
    """
    frequencies, events, rejected = Frequencies(), 0, 0
    for batch in _batches(path):
        fields = [] if batch.raw_fields is None else batch.raw_fields.values
        frequencies.add(batch, [each.get("action") for each in fields], [each.get("actions") for each in fields])
        events, rejected = events + len(batch), rejected + len(batch.rejected)
    if not events:
        raise InputError(f"{path} has no event, and {rejected:,} rejected lines", hint="`replay` gives the reasons")
    return list(_findings(frequencies))


def _batches(path: Path) -> Iterator[EventBatch]:
    if table_format(str(path)) is not None:
        return read_events(path, policies=[], scores=["action"])
    decoder = JsonDecoder([], scores=["action"], rewarded=False)
    return map(decoder.decode_batch, read_lines(str(path), batch=2000))


def print_findings(path: Path, as_json: bool) -> int:
    """Print the findings about a log; the exit code is 1 where an action or a bucket is off."""
    findings = of_file(path)
    if as_json:
        print(in_json(findings))
    else:
        for finding in findings:
            finding.print()
    return exit_code(findings)
