"""The command line: one function a verb; data on stdout, logs and progress on stderr."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from streameval.cli.arguments import (
    CONFIG_VARIABLE,
    DEFAULT_CONFIG,
    AsJson,
    ConfigAndFiles,
    FormatOfEvents,
    config_and_files,
)
from streameval.cli.learn import learn
from streameval.cli.terminal import Verbs, console, progress_of_bytes, run_app, say, warn
from streameval.errors import InputError
from streameval.service.process import make_responsive, return_large_arrays, set_up_process

if TYPE_CHECKING:
    from streameval.config.model import Config
    from streameval.ope.report import Report

# Each verb imports what it needs, so that `--help`, completion and `schema` start at once.
app = typer.Typer(
    name="streameval",
    cls=Verbs,
    help="Streaming off-policy evaluation: estimates what candidate policies would earn from events of production.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


KafkaClient = Literal["kafka-python", "confluent"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "console", "json"]
DriftKind = Literal["smooth", "abrupt", "stationary"]
ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", envvar=CONFIG_VARIABLE, help="The configuration.")]
CandidateNames = Annotated[
    str | None,
    typer.Option(
        "--candidates", metavar="NAMES", help="Evaluate these (separated by commas) with the defaults, without CONFIG."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Random seed; equal seeds give equal events.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"streameval {version('streameval')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = DEFAULT_CONFIG,
) -> None:
    """Write a configuration that shows every option with its default."""
    from importlib.resources import files

    text = files("streameval.config").joinpath(DEFAULT_CONFIG.name).read_text(encoding="utf-8")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists already", hint="name another file, as in `streameval init my.yaml`") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="check the directory") from error
    print(f"{path} is written: set source and policies.candidates, and run `streameval check {path}`")


@app.command()
def run(
    config: ConfigPath = DEFAULT_CONFIG,
    log_level: Annotated[LogLevel, typer.Option(help="Lowest level that is logged.")] = "info",
    log_format: Annotated[
        LogFormat, typer.Option(help="Log format: console, json, or auto (console on a terminal).")
    ] = "auto",
    engine: Annotated[
        str | None,
        typer.Option(metavar="KIND:MASTER", help="Evaluate on an engine, e.g. spark:local[2], instead of here."),
    ] = None,
    backfill: Annotated[
        str | None,
        typer.Option(metavar="FROM", help="Replay history for new candidates from: earliest, an offset, or a time."),
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Start from zero events; old snapshots are set aside.")
    ] = False,
    reset_policy: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="Reset the estimates of a retrained policy; of production: of all policies. Repeatable.",
        ),
    ] = [],  # noqa: B006 - typer copies the list
) -> None:
    """Run the daemon until it is stopped.

    Reads events from the source, estimates the value of each policy, and serves metrics, the report and a status page.
    The state is saved in snapshots (state.dir). After a restart the daemon resumes from the newest one and counts each
    event once.

    SIGHUP reloads CONFIG: candidates can be added and removed. A new candidate starts with the next event. With
    --backfill, it first gets the events since FROM, each once.
    """
    from streameval.cli.run import run_daemon

    run_daemon(config, engine, backfill, reset, reset_policy, (log_level, log_format))


@app.command()
def demo(
    events: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many events and compare the estimates with the truth.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the status page; 0 takes any free port.")] = 9108,
    seed: Seed = 1,
    rate: Annotated[float, typer.Option(min=0, help="Events per second; 0 is as fast as possible.")] = 2000.0,
    world: Annotated[
        Literal["actions", "rankings"], typer.Option(help="A recommender of single items, or of lists with clicks.")
    ] = "actions",
) -> None:
    """Run a complete demonstration on this machine.

    Starts an embedded broker, a simulated recommender whose users change their preferences, and the daemon.
    """
    from streameval.cli.demo import run_demo

    return_large_arrays()
    make_responsive()
    run_demo(events=events, port=port, seed=seed, rate=rate, world=world)


@app.command()
def replay(
    arguments: ConfigAndFiles,
    candidates: CandidateNames = None,
    events_format: FormatOfEvents = None,
    as_json: AsJson = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Print the estimates by all estimators on all averages.")
    ] = False,
    decisions: Annotated[
        bool,
        typer.Option(
            "--decisions", help="Also print when each promotion rule would have fired; --plot then draws each rule."
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if an estimate fails a trust check, after the output.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Plot values, lifts and promotions over time.")
    ] = None,
    plot_estimator: Annotated[str | None, typer.Option(metavar="NAME", help="Estimator to plot.")] = None,
    plot_average: Annotated[str | None, typer.Option(metavar="NAME", help="Average to plot.")] = None,
    plot_title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the plot.")] = None,
    truth: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add the true values from a file that `simulate --truth` wrote.")
    ] = None,
) -> None:
    """Estimate from files of events.

    Uses the same evaluator as the daemon. The configuration needs no source.

    `replay log.csv --candidates challenger` needs no configuration: columns are named like the fields of an event, and
    a candidate's probability is in the column of its name.
    """
    from streameval.cli.plots import ReplayPlot, Trace, check_path, read_truth
    from streameval.cli.replay import Replay, choices, take
    from streameval.cli.tables import decisions_table

    settings, files = _settings_and_files(arguments, candidates)
    promotion, picture = settings.promotion, None
    if promotion is None and (decisions or strict):
        lost = "no rule can fire" if decisions else "its trust checks are off too"
        hint = "remove `promotion: off` from the configuration"
        raise InputError(f"promotion is off: {lost}", hint=hint)
    if plot:
        margin = promotion.margin if promotion else None
        title = plot_title or ", ".join(Path(file).name for file in files)
        true_values = read_truth(truth) if truth else {}
        chosen = choices(settings.evaluator_config(), plot_estimator, plot_average)
        picture = ReplayPlot(plot, chosen, title, true_values, margin, by_rule=decisions)
        check_path(plot)
    trace = Trace(picture.choices if picture else ())
    reader = Replay(settings, update=trace.update if picture else take, timed=candidates is None)
    report = reader.read(files, events_format)
    if picture:
        trace.finish(report)
        picture.draw(trace)
    if as_json:
        sys.stdout.write(report.to_json(indent=2).decode() + "\n")
    else:
        for line in reader.notes() if candidates else ():
            print(line)
        _print_report(report, everything)
    if decisions and not as_json:
        console().print(decisions_table(report))
    if strict and not all(check.ok for check in report.trust):
        raise typer.Exit(1)


@app.command()
def plan(
    arguments: ConfigAndFiles,
    lift: Annotated[
        list[str] | None,
        typer.Option(metavar="LIFT", help="A lift to detect: 0.01, or 5% of the value of production. Repeatable."),
    ] = None,
    power: Annotated[float, typer.Option(min=0, max=1, help="Probability of detecting a lift of that size.")] = 0.8,
    estimator: Annotated[str | None, typer.Option(metavar="NAME", help="Estimator to plan with.")] = None,
    events_format: FormatOfEvents = None,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Plot the detectable lift against the number of events.")
    ] = None,
) -> None:
    """Estimate how many events are needed to detect a lift.

    For each candidate, from the exploration in the log: the number of events until the lower bound of the normal
    interval of its lift over production is above 0, and how long that takes at the event rate of the log. Wider
    intervals need more events. All events have equal weight.
    """
    from streameval.cli.plan import plan_power, power_table, sentences
    from streameval.cli.plots import check_path, power_figure, save
    from streameval.config.model import Config

    _quieten()
    config, files = config_and_files(arguments)
    settings = Config.load(config)
    if plot:
        check_path(plot)
    found = plan_power(settings, files, lift or (), power, estimator, events_format)
    if plot:
        save(power_figure(found, ", ".join(Path(file).name for file in files)), plot)
    if as_json:
        sys.stdout.write(found.to_json().decode() + "\n")
    else:
        console().print(power_table(found))
        for line in sentences(found):
            print(line)


@app.command()
def check(
    config: ConfigPath = DEFAULT_CONFIG,
    broker: Annotated[
        bool, typer.Option(help="Also try the source, its topics, the port, the state directory and dead letters.")
    ] = True,
    propensities: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare a log's propensities with its choices, and do no more.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Validate a configuration and try everything that `run` uses.

    Prints what would run. Creates nothing. Exits with 1 if `run` would not work and with 2 if the configuration is
    invalid. With --propensities, checks that log only, and exits with 1 if an action is off.
    """
    from streameval.cli import check as checks

    if propensities is not None:
        from streameval.cli.propensities import print_findings

        raise typer.Exit(print_findings(propensities, as_json))
    from streameval.cli.tables import plan_table
    from streameval.config.model import Config

    _quieten()
    findings: list[checks.Finding] = []
    try:
        settings = Config.load(config)
        findings += checks.of_configuration(settings)
    except InputError as error:
        if not as_json:
            raise
        print(checks.as_json([checks.Finding.of("configuration", error)]))
        raise typer.Exit(error.exit_code) from None
    if not as_json:
        for finding in findings:
            finding.print()
        console().print(plan_table(settings))
    for finding in checks.of_surroundings(settings) if broker and settings.source is not None else ():
        findings.append(finding)
        if not as_json:
            finding.print()
    if as_json:
        print(checks.as_json(findings))
    if code := checks.exit_code(findings):
        raise typer.Exit(code)


@app.command()
def simulate(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to write; .gz compresses. Default: stdout.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="Number of events.")] = 10_000,
    seed: Seed = 1,
    drift: Annotated[DriftKind, typer.Option(help="How user preferences change.")] = "smooth",
    span: Annotated[int, typer.Option(min=1, help="Events between one user cluster and the next.")] = 100_000,
    candidates: Annotated[int, typer.Option(min=1, max=100, help="Number of candidates.")] = 3,
    rate: Annotated[float, typer.Option(min=0.001, help="Events per second, by their timestamps.")] = 10.0,
    start: Annotated[datetime, typer.Option(help="Timestamp of the first event, UTC.")] = datetime(2026, 1, 1),  # noqa: DTZ001
    exploration: Annotated[float, typer.Option(min=0.0001, max=1, help="Probability of a random action.")] = 0.2,
    action_sets: Annotated[bool, typer.Option("--action-sets", help="Write all actions, with their features.")] = False,
    truth: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the true values.")] = None,
) -> None:
    """Write simulated events whose true values are known.

    They come from a simulated recommender whose users change their preferences.
    """
    from streameval.ingest.files.lines import write_lines
    from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings

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
        str,
        typer.Argument(
            metavar="FILE", help="NDJSON or CSV, plain, .gz or .zst, or Parquet; - is stdin.", show_default=False
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Topic, created if it does not exist; that of --config.", show_default=False
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG", help="Take brokers, TLS, login, columns and reward from it.")
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Columns of candidates in a table, separated by commas.")
    ] = None,
    events_format: FormatOfEvents = None,
    validate: Annotated[bool, typer.Option(help="Leave out events that would be rejected.")] = True,
    bootstrap_servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Bootstrap servers, separated by commas [localhost:9092].")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions if the topic is created.")] = 1,
    client: Annotated[KafkaClient | None, typer.Option(help="The client library, as in source.client.")] = None,
) -> None:
    """Send a file of events to a Kafka topic.

    Each line, or each row of a table as JSON, becomes a message. Partitions take turns. Events that would be rejected
    are not sent; the exit code is then 1.
    """
    from streameval.cli.produce import FileMessages, connection_of
    from streameval.cli.replay import settings_for
    from streameval.common.text import counted
    from streameval.ingest.kafka.producer import produce as send

    _quieten()
    settings = _load(config) if config else settings_for(candidates, file) if candidates else None
    connection, topic = connection_of(settings, topic, {"bootstrap_servers": bootstrap_servers, "client": client})
    messages = FileMessages(file, settings, events_format, is_validated=validate)
    with progress_of_bytes() as advance:
        sent = send(messages.read(advance), topic, connection, partitions=partitions)
    for line in messages.rejections.lines(sent):
        say(line)
    say(f"{counted(sent, 'event')} sent to {topic} at {connection.address}")
    if messages.rejections:
        raise typer.Exit(1)


@app.command()
def broker(
    topic: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="A topic to create; others are created when written to. Repeatable."),
    ] = ["interactions"],  # noqa: B006 - typer copies the list
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions of each topic.")] = 1,
) -> None:
    """Run the embedded Kafka broker alone, for trials on this machine, until Ctrl-C.

    It takes a free port of 127.0.0.1, keeps about 5 MB per partition in memory, and loses all messages at its end.
    """
    from streameval.ingest.kafka.mock_broker import EmbeddedBroker
    from streameval.service.process import stop_on_signals

    stopping = Event()
    with stop_on_signals(stopping.set), EmbeddedBroker(dict.fromkeys(topic, partitions)) as embedded:
        version = ".".join(map(str, embedded.connection.api_version or ()))
        address = f'bootstrap_servers: "{embedded.bootstrap}", api_version: "{version}", topic: {topic[0]}'
        print(f"the broker listens at {embedded.bootstrap} until Ctrl-C; the section of a configuration for it:")
        print(f"source: {{kind: kafka, {address}}}", flush=True)
        stopping.wait()


@app.command()
def show(
    snapshot: Annotated[
        Path,
        typer.Argument(
            metavar="SNAPSHOT", help="A snapshot file, or a state.dir (its newest snapshot).", show_default=False
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Print a snapshot of the daemon.

    When and by which version it was written, the offsets from which it resumes, buffered events, and the estimates.
    """
    import msgspec

    from streameval.cli.show import contents_table, shown

    _quieten()
    if as_json:
        print(msgspec.json.format(shown(snapshot, msgspec.json.encode), indent=2).decode())
    else:
        console().print(shown(snapshot, contents_table))


@app.command()
def schema(
    of: Annotated[
        Literal["event", "ranking", "reward", "report", "decisions", "versions"],
        typer.Argument(help="event, ranking, reward (one that arrives later), report, decisions or versions."),
    ] = "event",
) -> None:
    """Print a JSON Schema: of an event, a ranking with clicks, a reward that arrives later, a Report or a decision.

    The package has them as files, in streameval/config/schemas.
    """
    if of == "report":
        from streameval.ope.report import Report

        found = Report.json_schema()
    elif of == "decisions" or of == "versions":
        from streameval.service.decisions import DecisionMessage, VersionMessage

        found = (DecisionMessage if of == "decisions" else VersionMessage).json_schema()
    else:
        from streameval.events import json_schema, ranking_schema, reward_schema

        found = {"event": json_schema, "ranking": ranking_schema, "reward": reward_schema}[of]()
    print(json.dumps(found, indent=2))


app.command()(learn)


def main() -> NoReturn:
    """The entry point."""
    set_up_process()
    run_app(app)


def _settings_and_files(arguments: list[str], candidates: str | None) -> tuple[Config, list[str]]:
    """The configuration and the files of a replay; with candidates, all arguments are files."""
    from streameval.cli.replay import settings_for

    if candidates is not None:
        _quieten()
        return settings_for(candidates, arguments[0]), arguments
    config, files = config_and_files(arguments)
    if files == arguments and not config.exists():
        hint = "`streameval init` writes one; `streameval replay FILE --candidates NAMES` needs none"
        raise InputError(f"the configuration {config} does not exist", hint=hint)
    return _load(config), files


def _print_report(report: Report, everything: bool) -> None:
    """The answer in sentences, and the estimates that it is based on, or all of them."""
    from streameval.cli.tables import (
        answer_lines,
        calibration_table,
        events_line,
        guardrails_table,
        recommended_rows,
        report_table,
        segments_table,
    )

    rows = list(report.estimates) if everything else recommended_rows(report) or list(report.estimates)
    for line in answer_lines(report, everything):
        print(line)
    console().print(report_table(report, events_line(report), rows))
    if any(each.guardrails for each in report.promotion):
        console().print(guardrails_table(report))
    if report.segments_by_lift():
        console().print(segments_table(report, everything))
    if report.calibration:
        console().print(calibration_table(report, everything))
    if len(rows) < len(report.estimates):
        print(f"{len(rows)} of {len(report.estimates)} estimates, those that decide; --all prints the others")


def _quieten() -> None:
    """Drop all log messages: only the daemon logs, other verbs print their errors."""
    from streameval.service.logging import configure_logging

    configure_logging("critical")


def _load(path: Path) -> Config:
    """The configuration of a verb that does not log; prints a warning for each option that has no effect."""
    from streameval.config.model import Config

    _quieten()
    config = Config.load(path)
    warn(config)
    return config
