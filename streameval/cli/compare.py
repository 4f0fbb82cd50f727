"""Compare candidates with production in one call, on a frame, files or batches."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec
from pydantic import ValidationError

from streameval.cli.replay import Replay, choices, require_events, table_columns
from streameval.cli.trace import Trace
from streameval.common.problems import Problem, ProblemsError, hints_of_python, problems_of, refuse
from streameval.config.model import Config
from streameval.errors import InputError
from streameval.events import EventBatch
from streameval.events.arguments import remedy_of
from streameval.events.defects import joined_lines
from streameval.events.segments import label_of
from streameval.events.tables import value_at
from streameval.ingest.files.lines import TABLES, table_format
from streameval.ingest.files.remote import expand
from streameval.ingest.files.source import read_lines
from streameval.ingest.files.tables import column_values
from streameval.ope.candidates import is_logged
from streameval.ope.evaluator.options import Candidates
from streameval.ope.report import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Data: TypeAlias = Any
"""A frame of pandas, polars or Arrow, one path or several, or batches."""
MOST_VALUES = 20
"""Values of a segment that are found in the data. All others are one more value."""
LOOKED_AT = 20_000
"""Events of a file in which the values of a segment are looked for."""
OF_A_DAEMON = ("name", "http", "state", "dead_letters", "decisions", "engine")
"""Sections of a configuration without effect on a comparison."""


class Comparison:
    """Hold the answer about each candidate. A notebook shows it, and `print` gives its sentences.

    Attributes:
        report: all estimates, decisions and trust checks
    """

    def __init__(self, report: Report, figure: Callable[[], Figure]) -> None:
        self.report, self._figure = report, figure

    def __str__(self) -> str:
        return str(self.report)

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(row.policy for row in self.report.policies if not row.production)}>"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def plot(self) -> Figure:
        """Return a figure of the estimates and decisions over the data, which it reads again.

        Raises:
            InputError: matplotlib is not installed, or there are too few events.
        """
        return self._figure()


def compare(
    data: Data,
    candidates: Candidates,
    *,
    columns: Mapping[str, Any] | None = None,
    segments: str | Sequence[str] | Mapping[str, Any] = (),
    reward: str | Mapping[str, Any] | None = None,
    scores: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Comparison:
    """Estimate from logged events whether each candidate earns more than production.

    Warnings (`warnings.warn`) name what is wrong with the data: rejected events, a policy that no event knows, missing
    probabilities, segments without events, failed trust checks.

    Args:
        data: a frame of pandas, polars or Arrow, a path (CSV, Parquet, Arrow or NDJSON, also compressed) or several, or
            batches
        candidates: names of columns (or of `policies` of events) with the candidate's probability of the logged action.
            Or by name: policies, kinds such as `uniform`, or functions. A function takes `Decisions` of many events and
            returns, for each event, one probability for each of its actions
        columns: the column of each field, e.g. `{"propensity": "p", "policies": {"challenger": "p_new"}}`. By default
            they have the names of fields
        segments: fields that split the lift, or one, e.g. `"context.country"`. The 20 most frequent values are found
            in the data, in a file among the first 20,000 events. Or segments by name, as in the configuration
        reward: the field of the reward, or its settings, e.g. `{"field": "revenue", "max": 200}`
        scores: a file with probabilities that the data lack, joined by `event_id`: NDJSON (`streameval schema
            candidates`), or CSV, Parquet or Arrow with a column for each candidate. `columns` must name the
            `event_id` of a frame
        options: other sections of the configuration, e.g. `promotion="paired"` or `estimators=["snips"]`. From
            `source`, only `format`, `duplicates` and `multiline` count, for files

    Returns:
        The answer. Its `report` has all numbers, and `plot()` draws them.

    Raises:
        ProblemsError: An argument is wrong, or does not fit the others.
        InputError: The data cannot be read, lack a column, or have no event.

    >>> log = {"action": ["a", "b"] * 500, "propensity": [0.5] * 1000, "reward": [1, 0] * 500, "new": [0.7, 0.3] * 500}
    >>> answer = compare(log, candidates=["new"])
    >>> round(answer.report.get("new", "ips", "cumulative").lift, 4)
    0.2
    """
    known = _known(data)
    unused = [name for name in OF_A_DAEMON if options.pop(name, None) is not None]
    if unused:
        warnings.warn(f"settings of a daemon have no effect here: {', '.join(unused)}", stacklevel=2)
    if reward is not None:
        options["reward"] = {"field": reward} if isinstance(reward, str) else reward
    refuse(_contradictions(known, columns, options))
    usual = table_columns(_logged(candidates)) if known.is_table else {}
    sections = {
        **options,
        "policies": {**options.get("policies", {}), "candidates": candidates},
        "columns": {**usual, **columns} if isinstance(columns, Mapping) else usual if columns is None else columns,
        "segments": _segments(segments, known),
    }
    with hints_of_python("streameval.compare"):
        config = _config(sections)
    trace = Trace(choices(config.evaluator_config(), None, None))
    is_read_once = isinstance(known.batches, Iterator)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=__name__)  # of read_events: the report has its findings, too
        replay = _replayed(config, known, trace if is_read_once else None, scores)
    report = replay.report()
    for problem in config.doubts():
        warnings.warn(problem.report(), stacklevel=2)
    for warning in joined_lines(replay.warnings(report)):
        warnings.warn(warning, stacklevel=2)
    require_events(report)
    if is_read_once:
        trace.finish(report)

    def figure() -> Figure:
        if trace.last is None:
            _replayed(config, known, trace, scores)
            trace.finish(report)
        return _figure(trace, ", ".join(Path(file).name for file in known.files), config)

    return Comparison(report, figure)


class _Known(NamedTuple):
    """Hold one of files, batches and a frame."""

    files: Sequence[str] = ()
    batches: Iterable[EventBatch] | None = None
    frame: Any = None

    @property
    def is_table(self) -> bool:
        return self.batches is None and all(table_format(file) in TABLES for file in self.files)


def _known(data: Data) -> _Known:
    """Find out what kind of data this is.

    Raises:
        TypeError: It is none of the kinds.
    """
    if isinstance(data, Mapping) or hasattr(data, "__arrow_c_stream__"):
        return _Known(frame=data)
    items: Any = [data] if isinstance(data, str | os.PathLike | EventBatch) else data
    expected = "expected a frame of pandas or polars, an Arrow table, paths or batches"
    if not isinstance(items, Iterable) or hasattr(items, "read"):
        raise TypeError(f"{expected}, found {type(data).__name__}: {remedy_of(data)}")
    first = next(iter(items), None)
    if isinstance(items, Iterator) and first is not None:
        items = chain([first], items)
    kind = EventBatch if first is None or isinstance(first, EventBatch) else (str, os.PathLike)
    checked = _all_are(kind, items, data, expected)
    if kind is EventBatch:
        return _Known(batches=checked if isinstance(items, Iterator) else list(checked))
    return _Known(files=expand(os.fspath(path) for path in checked))


def _all_are(kind: type | tuple[type, ...], items: Iterable[Any], data: Data, expected: str) -> Iterator[Any]:
    for item in items:
        if not isinstance(item, kind):
            found = f"{type(data).__name__} of {type(item).__name__}"
            raise TypeError(f"{expected}, found {found}: {remedy_of(data, item)}")
        yield item


def _contradictions(known: _Known, columns: object, options: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield settings that something else decides already."""
    hint = "leave it out"
    if "candidates" in (options.get("policies") or {}):
        yield Problem(("policies", "candidates"), "expected nothing next to the argument `candidates`", hint)
    if known.batches is not None:
        hint = "give it to what reads the events, such as read_events, or leave it out"
        reward = options.get("reward")
        if columns:
            yield Problem(("columns",), "expected nothing next to batches, which have their fields", hint)
        if isinstance(reward, Mapping) and "field" in reward:
            yield Problem(("reward", "field"), "expected nothing next to batches, which have their rewards", hint)


def _replayed(config: Config, known: _Known, trace: Trace | None, scores: str | os.PathLike[str] | None) -> Replay:
    """Read the data, and record the estimates over them in a trace if there is one."""
    replay = Replay(config, timed=False, scores=None if scores is None else os.fspath(scores))
    if trace is not None:
        replay.update = lambda batch: trace.update(replay.evaluator, batch, replay.share)
    if known.frame is not None:
        replay.take_frame(known.frame)
    elif known.batches is not None:
        replay.take(known.batches)
    else:
        replay.take_files(known.files)
    return replay


def _figure(trace: Trace, title: str, config: Config) -> Figure:
    from streameval.cli.plots import ReplayPlot  # needs matplotlib

    margin = config.promotion.margin if config.promotion else None
    return ReplayPlot(list(trace.pairs), title, {}, margin).figure(trace)


def _logged(candidates: Candidates) -> list[str]:
    if isinstance(candidates, Mapping):
        return [name for name, policy in candidates.items() if is_logged(policy)]
    return [name for name in candidates if isinstance(name, str)] if isinstance(candidates, Sequence) else []


def _config(sections: Mapping[str, Any]) -> Config:
    """Check the sections of a configuration.

    Raises:
        ProblemsError: They are wrong, or do not fit together.
    """
    try:
        return Config.model_validate(sections)
    except ValidationError as error:
        raise ProblemsError(list(problems_of(error, Config))) from None


# --- Values of segments ---


def _segments(segments: str | Sequence[str] | Mapping[str, Any], known: _Known) -> object:
    fields = [segments] if isinstance(segments, str) else segments
    if isinstance(fields, Mapping) or not all(isinstance(field, str) for field in fields):
        return fields
    found = {}
    for field in fields:
        counts, other = Counter[str](), None
        for value in _values(known, field):
            label = label_of(value)
            counts.update([label] if label else ())
            other = value if not label and value not in (None, "") and value == value else other
        if not counts and other is not None:
            hint = "name another field in `segments`, or make bins of this one, e.g. pandas.cut(column, 5).astype(str)"
            kinds = "text, whole numbers or truth values"
            raise InputError(f"segments are split by {kinds}, and the field {field!r} has {other!r}", hint=hint)
        if not counts:
            raise InputError(f"no event has the field {field!r}", hint="name a field of the data in `segments`")
        common = [value for value, _ in counts.most_common(MOST_VALUES) if value != "other"]
        found[field.rpartition(".")[2]] = {"field": field, "values": common, "other": True}
    return found


def _values(known: _Known, field: str) -> Iterator[Any]:
    if known.batches is not None:
        hint = 'give them by name, e.g. segments={"country": {"values": ["de", "fr"]}}'
        raise InputError("batches do not have the values of segments as text", hint=hint)
    if known.frame is not None:
        from streameval.events.arrow import table_of  # needs pyarrow

        table = table_of(known.frame)
        name = field if field in table.column_names else field.rpartition(".")[2]
        yield from table.column(name).to_pylist() if name in table.column_names else ()
    for file in known.files:
        yield from _values_of_file(file, field)


def _values_of_file(file: str, field: str) -> Iterator[Any]:
    written, values = table_format(file), _values_of_lines(file, field)
    if written is not None:
        values = column_values(file, written, field.rpartition(".")[2])
    return islice(values, LOOKED_AT)


def _values_of_lines(file: str, field: str) -> Iterator[Any]:
    for line in (line for block in read_lines(file, batch=2000) for line in block if line):
        with suppress(msgspec.DecodeError):
            yield value_at(msgspec.json.decode(line, type=dict[str, Any]), field)
