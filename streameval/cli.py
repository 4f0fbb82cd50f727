"""The command line: one function a verb; data on stdout, logs and progress on stderr."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from streameval.config import Config
from streameval.errors import InputError, SourceError, StreamevalError
from streameval.events import EventFormat, json_schema
from streameval.logs import configure_logging
from streameval.plots import Picture, read_truth
from streameval.probing import probe
from streameval.problems import closest, expecting, one_of
from streameval.replay import Advance, Replay, read_lines
from streameval.sources.settings import FileSettings, KafkaConnection, KafkaSettings, SimulatedSettings
from streameval.tables import events_line, plan_table, report_table

INTERRUPTED = 130
PATIENCE = 15.0
"""Seconds in which `check` must reach a source."""
UNREACHED = "is it running, and are address, topic and security options right?"
WIDTH_OF_FILES = 160


class Verbs(typer.core.TyperGroup):
    """The verbs, none of which complains when its reader leaves or when it is interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has gone, as `head` does; Python must not complain about it while it shuts down.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            _say("interrupted\nhint: what was written so far is incomplete")
            raise typer.Exit(INTERRUPTED) from None
        return result


app = typer.Typer(
    name="streameval",
    cls=Verbs,
    help="Off-policy estimates over an event stream: how good would another policy have been, and how good is it now?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class LogLevel(StrEnum):
    """How much is logged."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class LogFormat(StrEnum):
    """How it is logged: `auto` is `console` on a terminal, else `json`."""

    auto = "auto"
    console = "console"
    json = "json"


class Drift(StrEnum):
    """How the users of the simulated recommender change."""

    smooth = "smooth"
    abrupt = "abrupt"
    stationary = "stationary"


class EventsFormat(StrEnum):
    """How the events in files are written."""

    json = "json"


ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration, e.g. streameval.yaml.", show_default=False)
]
Servers = Annotated[str, typer.Option(metavar="HOST:PORT", help="Brokers to ask first, separated by commas.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"streameval {version('streameval')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    configure_logging("critical")  # errors are for `main` to tell; only the daemon logs


@app.command()
def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The configuration.")] = Path("streameval.yaml"),
    log_level: Annotated[LogLevel, typer.Option(help="The least important messages to log.")] = LogLevel.info,
    log_format: Annotated[LogFormat, typer.Option(help="Lines for people or for machines.")] = LogFormat.auto,
) -> None:
    """Run the daemon until it is stopped.

    Reads the source, follows the values of the policies, and serves metrics, the report and a status page.
    """
    from streameval.daemon import Daemon
    from streameval.sinks.http import HttpServer
    from streameval.sources.opening import open_source

    settings = Config.load(config)
    source = settings.required_source()
    configure_logging(log_level, log_format)
    _warn_of_parts_without_effect(settings.without_effect())
    daemon = Daemon(open_source(source), settings.event_format(), settings.evaluator())
    with HttpServer(daemon, settings.http.host, settings.http.port):
        daemon.run()


@app.command()
def demo(
    events: Annotated[
        int | None, typer.Option(min=1, help="Stop after so many events, and compare with the truth.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Where to serve the status page; 0 is any free port.")
    ] = 9108,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds make equal events.")] = 1,
    rate: Annotated[float, typer.Option(min=0, help="Events a second; 0 is as fast as possible.")] = 2000.0,
) -> None:
    """Try everything at once on this machine.

    Starts an embedded broker, a simulated recommender whose users change their minds, and the daemon.
    """
    from streameval.demo import run_demo

    run_demo(events=events, port=port, seed=seed, rate=rate)


@app.command()
def replay(
    config: ConfigPath,
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="NDJSON, plain, .gz or .zst; - is stdin.", show_default=False)
    ],
    events_format: Annotated[
        EventsFormat, typer.Option("--format", help="How the events are written.")
    ] = EventsFormat.json,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole Report as JSON, not a table.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw the values over time.")] = None,
    plot_estimator: Annotated[str | None, typer.Option(metavar="NAME", help="The estimator to draw.")] = None,
    plot_average: Annotated[str | None, typer.Option(metavar="NAME", help="The average to draw.")] = None,
    plot_title: Annotated[str | None, typer.Option(metavar="TEXT", help="The title of the plot.")] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the truth that `simulate --truth` wrote.")
    ] = None,
) -> None:
    """Estimate from files of events.

    Uses the same evaluator as the daemon. The configuration needs no source.
    """
    settings = Config.load(config)
    _warn_of_parts_without_effect(settings.without_effect())
    picture = plot and _picture(
        settings, plot, plot_estimator, plot_average, plot_title or ", ".join(Path(file).name for file in files), truth
    )
    replayed = Replay(settings, traced=plot is not None)
    with _progress() as advance:
        report = replayed.read(files, advance)
    for line in replayed.complaints(report):
        _say(line)
    replayed.require_events(report)
    if picture:
        picture.draw(replayed.trace)
    if as_json:
        sys.stdout.write(report.to_json(indent=2).decode() + "\n")
    else:
        _console().print(report_table(report, title=events_line(report)))


@app.command()
def check(
    config: ConfigPath,
    broker: Annotated[bool, typer.Option(help="Try the source too: reachable, topic there, events readable?")] = True,
) -> None:
    """Validate a configuration and try its source.

    Shows what would run. Exits with 1 when the source cannot be used, with 2 when the configuration is wrong.
    """
    settings = Config.load(config)
    _warn_of_parts_without_effect(settings.without_effect())
    _console().print(plan_table(settings))
    if broker and settings.source is not None:
        _try_source(settings.source, settings.event_format())


@app.command()
def simulate(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to write; .gz compresses. Default: stdout.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds make equal events.")] = 1,
    drift: Annotated[Drift, typer.Option(help="How the users change.")] = Drift.smooth,
    span: Annotated[int, typer.Option(min=1, help="Events between one cluster of users and the next.")] = 100_000,
    candidates: Annotated[int, typer.Option(min=1, max=100, help="How many candidates.")] = 3,
    rate: Annotated[float, typer.Option(min=0.001, help="Events a second, by their timestamps.")] = 10.0,
    start: Annotated[datetime, typer.Option(help="Timestamp of the first event, UTC.")] = datetime(2026, 1, 1),  # noqa: DTZ001
    exploration: Annotated[float, typer.Option(max=1, help="How often the log has any action, not the best.")] = 0.2,
    action_sets: Annotated[bool, typer.Option("--action-sets", help="Write all actions with features.")] = False,
    truth: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the true values as well.")] = None,
) -> None:
    """Write events whose truth is known.

    They come from a simulated recommender whose users change their minds.
    """
    from streameval.sinks.lines import write_lines
    from streameval.sources.simulated import SimulatedRecommender

    settings = SimulatedSettings(
        events=events,
        seed=seed,
        drift=drift.value,
        span=span,
        candidates=candidates,
        exploration=exploration,
        action_sets=action_sets,
        rate=rate,
        start_time=start.replace(tzinfo=UTC),
    )
    recommender = SimulatedRecommender(settings)
    if truth:
        write_lines(truth, recommender.truth_lines())
    write_lines(file, recommender.lines())


@app.command()
def produce(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="NDJSON, plain, .gz or .zst; - is stdin.", show_default=False)
    ],
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Made if it is not there.", show_default=False)],
    bootstrap_servers: Servers = "localhost:9092",
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topic, if it has to be made.")] = 1,
) -> None:
    """Send a file of events to a Kafka topic.

    One message a line, to each partition in turn.
    """
    from streameval.sinks.producer import produce as send

    connection = KafkaConnection.model_validate({"bootstrap_servers": bootstrap_servers})
    with _progress() as advance:
        lines = (line for batch in read_lines([file], advance) for line in batch)
        sent = send(lines, topic, connection, partitions=partitions)
    _say(f"{sent:,} events sent to {topic} at {connection.address}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of an event."""
    print(json.dumps(json_schema(), indent=2))


def main() -> NoReturn:
    """The entry point: run a verb, and turn every error into words, a hint and an exit code."""
    try:
        code = app(prog_name="streameval", standalone_mode=False)
    except StreamevalError as error:
        code = _fail(error.report(), error.exit_code)
    except typer.TyperException as error:
        verb = getattr(getattr(error, "ctx", None), "command_path", "streameval")
        code = _fail(f"{error.format_message()}\nhint: `{verb} --help` shows how it is used", error.exit_code)
    except Exception:  # noqa: BLE001 - the last place that can say anything
        traceback.print_exc()
        code = _fail("this is a fault in streameval\nhint: please report it, with the lines above", 1)
    sys.exit(code or 0)


def _fail(report: str, code: int) -> int:
    _say(f"error: {report}")
    return code


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _console() -> Console:
    """Stdout; where it is no terminal, wide enough that nothing is cut."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


def _warn_of_parts_without_effect(parts: list[str]) -> None:
    for part in parts:
        _say(f"warning: `{part}` is valid, and has no effect in this version\nhint: remove it to silence this warning")


@contextmanager
def _progress() -> Iterator[Advance]:
    """A bar on stderr that counts the bytes of files; none where nobody looks at a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda read, total: progress.update(task, completed=read, total=total)


def _picture(
    settings: Config, path: Path, estimator: str | None, average: str | None, title: str, truth: Path | None
) -> Picture:
    """The picture to be drawn after a replay, checked before it."""
    estimators = [choice.label for choice in settings.estimators]
    averages = [choice.label for choice in settings.averages]
    following = [choice.label for choice in settings.averages if choice.kind.startswith("adaptive")]
    picture = Picture(
        path,
        _chosen("--plot-estimator", estimator, estimators) or ("snips" if "snips" in estimators else estimators[0]),
        _chosen("--plot-average", average, averages) or [*following, averages[-1]][0],
        title,
        read_truth(truth) if truth else {},
    )
    picture.check()
    return picture


def _chosen(option: str, label: str | None, labels: list[str]) -> str | None:
    if label is not None and label not in labels:
        meant = closest(label, labels)
        hint = f"did you mean '{meant}'?" if meant else "it must be configured to be drawn"
        raise InputError(f"{option}: {expecting(one_of(labels), repr(label))}", hint=hint)
    return label


def _try_source(settings: KafkaSettings | FileSettings | SimulatedSettings, events: EventFormat) -> None:
    """Say what the source holds; SourceError when it is not reached, or when none of its first events can be used."""
    from streameval.sources.opening import open_source

    if isinstance(settings, KafkaSettings):
        settings = settings.model_copy(update={"start": "earliest"})
    found = probe(open_source(settings), events, timeout=PATIENCE)
    if not found.status.reached:
        raise SourceError(f"the source cannot be reached: {found.status.detail}", hint=UNREACHED)
    held = "an unknown number of" if found.held is None else f"{found.held:,}"
    print(f"reached: {held} events in {len(found.status.partitions)} partitions")
    if not found.tried:
        return
    print(f"of the first {found.tried} events {len(found.events)} can be used")
    if not len(found.events):
        first = found.events.rejected[0]
        raise SourceError(
            f"none of the first events can be used, e.g. {first.reason}: {first.detail}",
            hint="`streameval schema` prints what an event looks like",
        )
    for policy in found.absent:
        _say(f"warning: none of these events has a probability of the policy '{policy}'\nhint: check its name")
