"""Compare the propensities of a log with how often actions were chosen, and check the weights of candidates."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from streameval.cli.arguments import CONFIG_SUFFIXES, candidate_names
from streameval.cli.check import SAMPLED_EVENTS, Finding, exit_code, names_hint, to_json
from streameval.cli.log_warnings import MULTILINE_HINT, LogCounts, spanning_rows
from streameval.cli.terminal import say
from streameval.common.text import counted
from streameval.errors import InputError
from streameval.events import EventBatch, JsonDecoder
from streameval.events.defects import Rejections
from streameval.events.tables import ColumnNames
from streameval.ingest.files.lines import table_format
from streameval.ingest.files.source import read_lines
from streameval.ingest.files.tables import read_table
from streameval.ope.core import Cumulative
from streameval.ope.estimators import IPS
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evidence.frequencies import Frequencies

OF_WEIGHTS = ("mean_weight", "effective_sample_size", "largest_share", "missing_share")
"""Trust checks that depend on no reward."""
HINT = (
    "log the probability that was used in the draw, after every filter; examples/recommender/README.md has a checklist"
)

WEIGHTS_HINT = "log, for the shown action, the probability with which the candidate would have shown it"


def _findings(frequencies: Frequencies) -> Iterator[Finding]:
    """Yield the actions and buckets with wrong propensities, or else one fact."""
    wrong, comparisons = frequencies.findings()
    for message in wrong:
        yield Finding("propensities", message, "error", HINT)
    if not wrong:
        choices = f"how often actions were chosen ({counted(comparisons, 'comparison')})"
        yield Finding(
            "propensities", f"the propensities of {counted(frequencies.events, 'event')} agree with {choices}"
        )


def check_propensities(
    path: str | os.PathLike[str], candidates: Sequence[str] = (), multiline: bool = False
) -> list[Finding]:
    """Check the propensities of a log in NDJSON, CSV, Parquet or Arrow.

    Args:
        path: the log
        candidates: also run the trust checks of their importance weights
        multiline: rows of CSV may take several lines

    Raises:
        InputError: The file is missing or damaged, or has no event.
    """
    path = os.fspath(path)
    if path.endswith(CONFIG_SUFFIXES):
        raise InputError(f"--propensities reads a log, and {path} is a configuration", hint="name a file of events")
    frequencies, counts, rejections, events = Frequencies(), LogCounts((-math.inf, math.inf)), Rejections(), 0
    evaluator = Evaluator.from_config(Evaluator(candidates, [IPS()], [Cumulative()]).config)
    for batch in _batches(path, candidates, counts):
        fields = [] if batch.raw_fields is None else batch.raw_fields.values
        frequencies.add(batch, [event.get("action") for event in fields], [event.get("actions") for event in fields])
        events += len(batch)
        rejections.add(batch.rejected)
        if candidates:
            evaluator.update(replace(batch, reward=np.zeros(len(batch))))
    if not events:
        for line in rejections.lines(0):
            say(line)
        cause, hint = (
            ("there is none", "check its name") if not len(rejections) else ("all were rejected", "correct them")
        )
        raise InputError(f"{path} has no event: {cause}", hint=hint)
    findings = [*_findings(frequencies), *_findings_about(path, candidates, evaluator)]
    if counts.spanning and not multiline:
        hint = MULTILINE_HINT.format("--multiline")
        findings.append(Finding("propensities", spanning_rows(counts.spanning), "warning", hint))
    return findings


def _findings_about(path: str, candidates: Sequence[str], evaluator: Evaluator) -> Iterator[Finding]:
    """Yield the candidates that no event knows, and the trust checks of the weights of the others."""
    report = evaluator.report()
    for row in report.policies:
        if row.policy in candidates and not row.events:
            hint = "its column must hold numbers"
            if table_format(path) is None:
                hint = names_hint(next(read_lines(path, batch=SAMPLED_EVENTS), ()))
            yield Finding("candidates", f"no event has a probability of the policy '{row.policy}'", "error", hint)
    for trust in report.trust if candidates else ():
        if trust.policy in candidates and trust.check in OF_WEIGHTS:
            yield Finding("candidates", f"{trust.policy}: {trust.reason}", "ok" if trust.ok else "error", WEIGHTS_HINT)


def _batches(path: str, candidates: Sequence[str], counts: LogCounts) -> Iterator[EventBatch]:
    form = table_format(path)
    if form is not None:
        columns, rows = (
            ColumnNames(policies={name: name for name in candidates}),
            JsonDecoder(candidates, scores=["action"]),
        )
        return read_table(path, form, columns, rows, lambda read, total: None, timed=False, spans=counts.add_spanning)
    decoder = JsonDecoder(candidates, scores=["action"], rewarded=False)
    return map(decoder.decode_batch, read_lines(path, batch=2000))


def run_check_propensities(path: str, names: str | None = None, *, multiline: bool = False, as_json: bool) -> int:
    """Print the findings about a log, and return 1 if an action or a bucket is off."""
    candidates = [] if names is None else candidate_names(names, "")
    findings = check_propensities(path, candidates, multiline)
    if as_json:
        print(to_json(findings))
    else:
        for finding in findings:
            finding.print()
    return exit_code(findings)
