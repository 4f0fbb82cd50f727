"""The command line: one function a verb; data on stdout, logs and progress on stderr."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from streameval.cli.check import probe
from streameval.cli.process import make_quick, responsive
from streameval.cli.replay import Replay, choose_picture, read_lines, require_rules, timeline_of
from streameval.cli.tables import decisions_table, events_line, plan_table, report_table
from streameval.cli.terminal import Verbs, console, progress_of_bytes, run_app, say
from streameval.common.text import counted
from streameval.config.model import Config
from streameval.errors import SourceError
from streameval.events import json_schema
from streameval.ingest.settings import KafkaConnection, KafkaSettings, SimulatedSettings
from streameval.ope.evaluator.missing_fields import MissingField
from streameval.service.logging import configure_logging

PATIENCE = 15.0
"""Seconds in which `check` must reach a source."""
UNREACHED = "is it running, and are address, topic and security options right?"


app = typer.Typer(
    name="streameval",
    cls=Verbs,
    help="Off-policy estimates over an event stream: how good would another policy have been, and how good is it now?",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]
Drift = Literal["smooth", "abrupt", "stationary"]
EventsFormat = Literal["json", "dsjson", "parquet", "csv"]
ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration, e.g. streameval.yaml.", show_default=False)
]
EventFiles = Annotated[
    list[str],
    typer.Argument(metavar="FILE", help="Lines or CSV, plain, .gz or .zst; Parquet; - is stdin.", show_default=False),
]
FormatOfEvents = Annotated[
    EventsFormat | None,
    typer.Option("--format", help="How the events are written; else by the ending, or as the source says."),
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
    log_level: Annotated[LogLevel, typer.Option(help="The least important messages to log.")] = "info",
    log_format: Annotated[LogFormat, typer.Option(help="Lines for people or for machines.")] = "auto",
    backfill: Annotated[
        str | None,
        typer.Option(metavar="FROM", help="Read the log again for candidates that come later: earliest, offset, time."),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Begin anew; old snapshots are set aside.")] = False,
    reset_policy: Annotated[
        list[str], typer.Option(metavar="NAME", help="Begin a policy anew that has been retrained; may be repeated.")
    ] = [],  # noqa: B006 - typer makes a list of its own
) -> None:
    """Run the daemon until it is stopped.

    Reads the source, follows the values of the policies, and serves metrics, the report and a status page. What it
    knows is kept in snapshots (state.dir), from which it goes on after a restart, each event counted once.

    SIGHUP makes it read CONFIG again: candidates may come and go. A new one begins with the next event; with
    --backfill, it is first given the events since FROM, each once, before it joins the others.
    """
    from streameval.ingest.factory import beginning
    from streameval.service.http.server import HttpServer
    from streameval.service.http.tls import Security
    from streameval.service.signals import early_hangups
    from streameval.service.startup import daemon as daemon_of

    with early_hangups() as hangups:
        settings = Config.load(config)
        source = settings.required_source()
        configure_logging(log_level, log_format)
        _warn_of(settings.without_effect())
        begin = None if backfill is None else beginning(backfill, source)
        daemon = daemon_of(config, settings, begin, reset=reset, reset_policies=reset_policy)
        hangups.hand_to(daemon.reload)
        with HttpServer(daemon, settings.http.host, settings.http.port, Security(settings.http)), responsive():
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
    from streameval.cli.demo import run_demo

    with responsive():
        run_demo(events=events, port=port, seed=seed, rate=rate)


@app.command()
def replay(
    config: ConfigPath,
    files: EventFiles,
    events_format: FormatOfEvents = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole Report as JSON, not a table.")] = False,
    decisions: Annotated[
        bool, typer.Option("--decisions", help="Say when each rule of promotion would have fired; --plot draws that.")
    ] = False,
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
    _warn_of(settings.without_effect())
    title = plot_title or ", ".join(Path(file).name for file in files)
    if decisions:
        require_rules(settings)
    picture = plot and choose_picture(settings, plot, plot_estimator, plot_average, title, truth)
    replayed = Replay(settings, traced=plot is not None)
    with progress_of_bytes() as advance:
        report = replayed.read(files, advance, events_format)
    for line in replayed.complaints(report):
        say(line)
    replayed.require_events(report)
    if picture:
        drawn = timeline_of(settings, picture) if decisions else picture
        drawn.draw(replayed.trace)
    if as_json:
        sys.stdout.write(report.to_json(indent=2).decode() + "\n")
        return
    console().print(report_table(report, title=events_line(report)))
    if decisions:
        console().print(decisions_table(report))


@app.command()
def plan(
    config: ConfigPath,
    files: EventFiles,
    lift: Annotated[
        list[str] | None,
        typer.Option(metavar="LIFT", help="A lift to see, e.g. 0.01, or 5% of production; may be repeated."),
    ] = None,
    power: Annotated[float, typer.Option(min=0, max=1, help="The chance that a lift of that size is seen.")] = 0.8,
    estimator: Annotated[str | None, typer.Option(metavar="NAME", help="The estimator to plan with.")] = None,
    events_format: FormatOfEvents = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON, not a table.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Draw lifts against events.")] = None,
) -> None:
    """Tell from files of events how many more it takes to see a lift.

    For each candidate, with what the log explores: how many events until the lower end of the normal interval of its
    lift over production lies above 0, and how long that is at the rate of the log; wider intervals take longer. All
    events since a start count the same.
    """
    from streameval.cli.plan import Planning
    from streameval.cli.plan_tables import outlook_table, sentences
    from streameval.cli.plots.power import PowerPicture

    planning = Planning(Config.load(config), lift or (), power, estimator)
    picture = plot and PowerPicture(plot, ", ".join(Path(file).name for file in files))
    if picture:
        picture.check()
    with progress_of_bytes() as advance:
        found, complaints = planning.read(files, advance, events_format)
    for line in complaints:
        say(line)
    if picture:
        picture.draw(found)
    if as_json:
        sys.stdout.write(found.to_json().decode() + "\n")
    else:
        console().print(outlook_table(found))
        for line in sentences(found):
            print(line)


@app.command()
def check(
    config: ConfigPath,
    broker: Annotated[bool, typer.Option(help="Try the source too: reachable, topic there, events readable?")] = True,
) -> None:
    """Validate a configuration and try its source.

    Shows what would run. Exits with 1 when the source cannot be used, with 2 when the configuration is wrong.
    """
    from streameval.service.http.tls import Security

    settings = Config.load(config)
    _warn_of(settings.without_effect())
    Security(settings.http)
    console().print(plan_table(settings))
    if broker and settings.source is not None:
        _try_source(settings)


@app.command()
def simulate(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="Where to write; .gz compresses. Default: stdout.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="How many events.")] = 10_000,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds make equal events.")] = 1,
    drift: Annotated[Drift, typer.Option(help="How the users change.")] = "smooth",
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
    from streameval.ingest.files.lines import write_lines
    from streameval.ingest.simulated import SimulatedRecommender

    settings = SimulatedSettings(
        events=events,
        seed=seed,
        drift=drift,
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
    from streameval.ingest.kafka.producer import produce as send

    connection = KafkaConnection.model_validate({"bootstrap_servers": bootstrap_servers})
    with progress_of_bytes() as advance:
        lines = (line for batch in read_lines([file], advance) for line in batch)
        sent = send(lines, topic, connection, partitions=partitions)
    say(f"{counted(sent, 'event')} sent to {topic} at {connection.address}")


@app.command()
def show(
    snapshot: Annotated[
        Path, typer.Argument(metavar="SNAPSHOT", help="A snapshot, or a state.dir: its newest.", show_default=False)
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as JSON, not tables.")] = False,
) -> None:
    """Print what is in a snapshot of the daemon.

    When it was written and by whom, where in the log it goes on, and the values that it knows.
    """
    from streameval.cli.show import contents, contents_table, load

    path, document = load(snapshot)
    if as_json:
        print(json.dumps(contents(path, document), indent=2))
    else:
        console().print(contents_table(path, document))


@app.command()
def schema() -> None:
    """Print the JSON Schema of an event."""
    print(json.dumps(json_schema(), indent=2))


@app.command()
def hash_password(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose password it is.", show_default=False)],
) -> None:
    """Print a line for `http.users_file`.

    Asks for the password, or reads it from stdin.
    """
    from streameval.service.http.auth import PasswordHash, checked_name

    checked_name(name)
    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    print(f"{name}:{PasswordHash.of(password)}")


def main() -> NoReturn:
    """The entry point."""
    make_quick()
    run_app(app)


def _warn_of(troubles: list[str]) -> None:
    for trouble in troubles:
        say(f"warning: {trouble}")


def _try_source(config: Config) -> None:
    """Say what the source holds; SourceError when it is not reached, or when none of its first events can be used."""
    from streameval.ingest.factory import open_source

    settings = config.required_source()
    if isinstance(settings, KafkaSettings):
        settings = settings.model_copy(update={"start": "earliest"})
    found = probe(open_source(settings), config.event_format(), timeout=PATIENCE)
    if not found.status.reached:
        raise SourceError(f"the source cannot be reached: {found.status.detail}", hint=UNREACHED)
    held = "an unknown number of events" if found.held is None else counted(found.held, "event")
    print(f"reached: {held} in {counted(len(found.status.partitions), 'partition')}")
    if not found.tried:
        return
    print(f"of the first {counted(found.tried, 'event')} {len(found.events)} can be used")
    if not len(found.events):
        first = found.events.rejected[0]
        raise SourceError(
            f"none of the first events can be used, e.g. {first.reason}: {first.detail}",
            hint="`streameval schema` prints what an event looks like",
        )
    for policy in found.absent:
        say(f"warning: none of these events has a probability of the policy '{policy}'\nhint: check its name")
    _require_needs(config.evaluator().shortfalls(found.events))


def _require_needs(lacking: list[MissingField]) -> None:
    """Say what the events lack; SourceError when an estimator gets none at all."""
    for shortfall in lacking:
        if shortfall.of_all:
            raise SourceError(str(shortfall), hint=shortfall.hint)
        say(f"warning: {shortfall}\nhint: {shortfall.hint}")
