"""Declare the commands: data on stdout, logs and progress on stderr."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from streameval.cli.arguments import (
    DEFAULT_CONFIG,
    AsJson,
    Candidates,
    ConfigAndFiles,
    ConfigPath,
    EventsFormat,
    Multiline,
    Seed,
)
from streameval.cli.terminal import Commands, run_app
from streameval.errors import InputError
from streameval.service.process import set_up_process

# Each command imports what it needs, so that `--help` and completion start at once.
app = typer.Typer(
    name="streameval",
    cls=Commands,
    help="Streaming off-policy evaluation: estimates what candidate policies would earn from events of production.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    everything: Annotated[bool, typer.Option("--all", help="Show every option with its default.")] = False,
) -> None:
    """Write a configuration to start from: source, policies, reward and state.

    Examples: `streameval init`, `streameval init --all reference.yaml`.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(_packaged(DEFAULT_CONFIG.name if everything else "starter.yaml"))
    except FileExistsError:
        raise InputError(f"{path} exists already", hint="name another file, as in `streameval init my.yaml`") from None
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}", hint="check the directory") from error
    print(f"{path} is written: set source and policies.candidates, and run `streameval check {path}`")


@app.command()
def run(
    config: ConfigPath = DEFAULT_CONFIG,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="Lowest level that is logged.")
    ] = "info",
    log_format: Annotated[
        Literal["auto", "console", "json"],
        typer.Option(help="Log format: console, json, or auto (console on a terminal)."),
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
            help="Reset the estimates of a retrained policy; for production, of all policies. Repeatable.",
        ),
    ] = [],  # noqa: B006 - typer copies the list
    watch_config: Annotated[
        bool, typer.Option("--watch-config", help="Reload CONFIG whenever its content changes, as SIGHUP does.")
    ] = False,
) -> None:
    """Run the daemon until it is stopped.

    Reads events from the source, estimates the value of each policy, and serves metrics, the report and a status page.
    Snapshots in state.dir save the state. After a restart the daemon resumes from the newest one and counts each event
    once.

    SIGHUP or `POST /-/reload` reloads CONFIG: candidates can be added and removed. A new candidate starts with the
    next event. With --backfill, it first gets the events since FROM, each once.

    Examples: `streameval run`, `streameval run my.yaml --backfill 2026-01-31`.
    """
    from streameval.cli.run import run_daemon

    run_daemon(config, engine, backfill, reset, reset_policy, (log_level, log_format), watch_config)


@app.command()
def demo(
    context: typer.Context,
    events: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many events and compare the estimates with the truth.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the status page; 0 takes any free port.")] = 9108,
    seed: Seed = 1,
    rate: Annotated[float, typer.Option(min=0, help="Events per second; 0 is as fast as possible.")] = 2000.0,
    world: Annotated[
        Literal["actions", "rankings"], typer.Option(help="A recommender of single items, or of lists with clicks.")
    ] = "actions",
    broker_only: Annotated[
        bool, typer.Option("--broker-only", help="Run the embedded broker alone, for your own trials.")
    ] = False,
) -> None:
    """Run a complete demonstration on this machine, until Ctrl-C.

    Starts an embedded Kafka broker, a simulated recommender with changing users, and the daemon.

    With --broker-only, starts the broker alone and prints the source for a configuration. The broker takes a free port
    of 127.0.0.1, keeps about 5 MB per partition in memory, and loses all messages when it ends. `streameval produce`
    creates topics.

    Examples: `streameval demo`, `streameval demo --events 200000 --port 0`.
    """
    from streameval.cli.demo import run_broker, run_demo

    if not broker_only:
        run_demo(events=events, port=port, seed=seed, rate=rate, world=world)
        return
    for name in ("events", "port", "seed", "rate", "world"):
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise InputError(f"--{name} has no effect with --broker-only", hint="leave one of them out")
    run_broker()


@app.command()
def replay(
    arguments: ConfigAndFiles,
    candidates: Candidates = None,
    events_format: EventsFormat = None,
    multiline: Multiline = False,
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
    scores: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Probabilities that the log lacks: NDJSON as in `schema candidates`, or a table with event_id.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Plot values, lifts, promotions and lifts by hour."),
    ] = None,
    plot_estimator: Annotated[str | None, typer.Option(metavar="NAME", help="Estimator to plot.")] = None,
    plot_average: Annotated[str | None, typer.Option(metavar="NAME", help="Average to plot.")] = None,
    plot_title: Annotated[str | None, typer.Option(metavar="TEXT", help="Title of the plot.")] = None,
    truth: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Print errors against true values that `simulate --truth` wrote; --plot draws them."
        ),
    ] = None,
) -> None:
    """Estimate from files of events.

    Uses the same evaluator as the daemon. The configuration needs no source. The answer names daily cycles in a log of
    four days or more, and weekly cycles in a log of four weeks.

    `replay log.csv --candidates challenger` needs no configuration: columns are named like the fields of an event, and
    a candidate's probability is in the column of its name.

    Examples: `streameval replay log.csv --candidates challenger --plot answer.png`,
    `streameval replay streameval.yaml monday.ndjson.gz tuesday.ndjson.gz --decisions`.
    """
    from streameval.cli.replay import PlotOptions, run_replay

    run_replay(
        arguments,
        candidates,
        events_format,
        PlotOptions(plot, plot_estimator, plot_average, plot_title) if plot else None,
        truth,
        multiline=multiline,
        as_json=as_json,
        everything=everything,
        decisions=decisions,
        strict=strict,
        scores=scores,
    )


@app.command()
def plan(
    arguments: ConfigAndFiles,
    candidates: Candidates = None,
    lift: Annotated[
        list[str] | None,
        typer.Option(metavar="LIFT", help="A lift to detect: 0.01, or 5% of the value of production. Repeatable."),
    ] = None,
    power: Annotated[float, typer.Option(min=0, max=1, help="Probability of detecting a lift of that size.")] = 0.8,
    estimator: Annotated[str | None, typer.Option(metavar="NAME", help="Estimator to plan with.")] = None,
    explore: Annotated[
        bool, typer.Option("--explore", help="Plan the exploration that halves the events, from lists of actions.")
    ] = False,
    events_format: EventsFormat = None,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Plot the detectable lift against the number of events.")
    ] = None,
) -> None:
    """Estimate how many events are needed to detect a lift.

    For each candidate, from the exploration in the log: the number of events until the lower bound of the normal
    interval of its lift over production is above 0, and how long that takes at the event rate of the log. Wider
    intervals need more events. All events have equal weight.

    Examples: `streameval plan log.csv --candidates challenger --lift 5%`, `streameval plan streameval.yaml log.ndjson`.
    """
    from streameval.cli.plan import run_plan

    run_plan(arguments, candidates, lift or (), power, estimator, events_format, plot, explore=explore, as_json=as_json)


@app.command()
def check(
    config: ConfigPath = DEFAULT_CONFIG,
    broker: Annotated[
        bool, typer.Option(help="Also try the source, its topics, the port, the state directory and dead letters.")
    ] = True,
    propensities: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Only compare the propensities of a log with its choices of actions."),
    ] = None,
    candidates: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="With --propensities: also check the weights of these candidates."),
    ] = None,
    multiline: Multiline = False,
    as_json: AsJson = False,
) -> None:
    """Validate a configuration and try everything that `run` uses.

    Prints what would run, and cycles in files of events: a day's cycle needs four days of events, and a week's cycle
    four weeks. Creates nothing. Exits with 1 if `run` would not work and with 2 if the configuration is invalid. With
    --propensities, checks that log only, and exits with 1 if an action is off.

    Examples: `streameval check`, `streameval check --propensities log.csv --candidates challenger`.
    """
    if propensities is None:
        if candidates is not None:
            raise InputError(
                "--candidates has no effect without --propensities", hint="name the log: --propensities FILE"
            )
        from streameval.cli.check import run_check

        raise typer.Exit(run_check(config, with_surroundings=broker, multiline=multiline, as_json=as_json))
    from streameval.cli.propensities import run_check_propensities

    raise typer.Exit(run_check_propensities(propensities, candidates, multiline=multiline, as_json=as_json))


@app.command()
def simulate(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File to write; .gz compresses. Default: stdout.")
    ] = None,
    events: Annotated[int, typer.Option(min=1, help="Number of events.")] = 10_000,
    seed: Seed = 1,
    drift: Annotated[
        Literal["smooth", "abrupt", "stationary"], typer.Option(help="How user preferences change.")
    ] = "smooth",
    span: Annotated[int, typer.Option(min=1, help="Events between one user cluster and the next.")] = 100_000,
    candidates: Annotated[int, typer.Option(min=1, max=100, help="Number of candidates.")] = 3,
    rate: Annotated[float, typer.Option(min=0.001, help="Events per second, by their timestamps.")] = 10.0,
    start: Annotated[datetime, typer.Option(help="Timestamp of the first event, UTC.")] = datetime(2026, 1, 1),  # noqa: DTZ001
    exploration: Annotated[float, typer.Option(min=0.0001, max=1, help="Probability of a random action.")] = 0.2,
    cycle: Annotated[
        float,
        typer.Option(min=0, max=0.99, help="Amplitude of a daily cycle of rewards and traffic, with a peak at 20:00."),
    ] = 0.0,
    action_sets: Annotated[bool, typer.Option("--action-sets", help="Write all actions, with their features.")] = False,
    truth: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the true values.")] = None,
    errors: Annotated[
        int | None,
        typer.Option(
            metavar="LOGS", min=1, help="Write no events: evaluate this many logs, and print errors against the truth."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG", help="With --errors: what to estimate, else the defaults.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With --errors: print JSON instead of a table.")] = False,
) -> None:
    """Write simulated events with known true values, or the errors of estimates from such events.

    They come from a simulated recommender with changing users. With --errors 20, twenty logs with the seeds from --seed
    on are evaluated. The table has the errors of each estimator on each average, with standard errors over the logs.

    Examples: `streameval simulate log.ndjson --truth truth.ndjson`, `streameval simulate --drift abrupt | head`,
    `streameval simulate --events 100000 --errors 20 --config streameval.yaml`.
    """
    from streameval.ingest.files.lines import write_lines
    from streameval.ingest.simulated import CycleSettings, SimulatedRecommender, SimulatedSettings

    settings = SimulatedSettings(
        events=events,
        seed=seed,
        drift=drift,
        span=span,
        candidates=candidates,
        exploration=exploration,
        cycle=CycleSettings(amplitude=cycle) if cycle else None,
        action_sets=action_sets,
        rate=rate,
        start_time=start.replace(tzinfo=UTC),
    )
    if errors is not None:
        from streameval.cli.accuracy import simulate_errors

        if file or truth:
            raise InputError("--errors writes no events", hint="leave FILE and --truth out")
        simulate_errors(settings, errors, config, as_json=as_json)
        return
    if config or as_json:
        raise InputError("--config and --json have no effect without --errors", hint="add --errors LOGS")
    if truth and file and truth.resolve() == Path(file).resolve():
        raise InputError(f"events and true values cannot both be in {truth}", hint="give --truth another file")
    recommender = SimulatedRecommender(settings)
    if truth:
        write_lines(truth, recommender.truth_lines())
    write_lines(file, recommender.lines())


@app.command()
def learn(
    arguments: ConfigAndFiles,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Directory of the policy files NAME.npz.")] = Path(),
    passes: Annotated[int, typer.Option(min=1, max=10_000, help="Passes over the events, at most.")] = 20,
    validation: Annotated[
        float, typer.Option(metavar="SHARE", min=0.01, max=0.9, help="Share of the events, the latest, for validation.")
    ] = 0.2,
    patience: Annotated[
        int,
        typer.Option(min=0, help="Stop after this many passes without a higher lower bound; 0: take the last pass."),
    ] = 3,
    estimator: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Estimator of the bound. Default: the first one configured."),
    ] = None,
    events_format: EventsFormat = None,
    as_json: AsJson = False,
) -> None:
    """Learn policies from files of events, in several passes.

    Each candidate of kind `learned` or `learned_ranker` learns from the earlier events. After each pass it is
    evaluated, unchanged, on the later ones, and the weights with the highest lower bound are written to NAME.npz (the
    option `file`).

    The bounds of all passes hold together. Values on the events that a policy learned from have no such bound: they
    show how far it overfits.

    Example: `streameval learn streameval.yaml log.ndjson.gz --to policies`.
    """
    from streameval.cli.learn import run_learn

    run_learn(arguments, to, passes, validation, patience, estimator, events_format, as_json=as_json)


@app.command()
def produce(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="NDJSON or CSV (plain, .gz or .zst), Parquet or Arrow; - is stdin.", show_default=False
        ),
    ],
    topic: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC", help="Topic (created if missing). Default: the topic in --config.", show_default=False
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG", help="Take brokers, TLS, login, columns and reward from it.")
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Columns of candidates in a table, separated by commas.")
    ] = None,
    events_format: EventsFormat = None,
    validate: Annotated[bool, typer.Option(help="Leave out events that would be rejected.")] = True,
    bootstrap_servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Bootstrap servers, separated by commas [localhost:9092].")
    ] = None,
    partitions: Annotated[int, typer.Option(min=1, help="Number of partitions if the topic is created.")] = 1,
    batch: Annotated[
        int, typer.Option(min=1, metavar="N", help="Events in a message of Arrow [1: messages of JSON].")
    ] = 1,
    client: Annotated[
        Literal["kafka-python", "confluent"] | None, typer.Option(help="The client library, as in source.client.")
    ] = None,
) -> None:
    """Send a file of events to a Kafka topic.

    Each line, or each row of a table as JSON, becomes a message. Partitions take turns. Events that would be rejected
    are not sent, and the exit code is then 1. With `--batch`, up to so many events become one message in Arrow, for a
    source with `format: {kind: arrow}`. Events that are no table stay JSON.

    Examples: `streameval produce log.ndjson.gz interactions --batch 500`, `streameval produce log.csv --config
    streameval.yaml`.
    """
    from streameval.cli.produce import run_produce

    connection = {"bootstrap_servers": bootstrap_servers, "client": client}
    run_produce(
        file,
        topic,
        config,
        candidates,
        events_format,
        connection,
        partitions=partitions,
        validate=validate,
        batch=batch,
    )


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

    Includes its time and version, the offsets at which it resumes, buffered events, and the estimates.

    Example: `streameval show streameval-state`.
    """
    from streameval.cli.show import run_show

    run_show(snapshot, as_json=as_json)


@app.command()
def schema(
    name: Annotated[
        Literal["event", "ranking", "reward", "candidates", "report", "decisions", "versions", "arrow"],
        typer.Argument(
            help="event, ranking, reward or candidates (which arrive later), report, decisions or versions; or arrow."
        ),
    ] = "event",
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="With arrow: the configuration.", show_default=False)
    ] = None,
    form: Annotated[
        Literal["action", "actions", "slots"],
        typer.Option(help="With arrow: single actions, lists of actions with distributions, or slates of such lists."),
    ] = "action",
) -> None:
    """Print a JSON Schema: of an event, a ranking with clicks, what arrives later, a Report or a decision.

    The package has them as files, in streameval/config/schemas. `arrow` prints the columns of events in Arrow, as the
    configuration reads them.

    Examples: `streameval schema reward`, `streameval schema arrow streameval.yaml`.
    """
    if name == "arrow":
        from streameval.cli.arrow_schema import print_arrow_schema

        print_arrow_schema(config, form)
    else:
        print(_packaged("schemas", f"{name}.json"), end="")


def _packaged(*path: str) -> str:
    """Return the text of a file below `streameval/config`."""
    from importlib.resources import files

    return files("streameval.config").joinpath(*path).read_text(encoding="utf-8")


def main() -> NoReturn:
    """Run the command line."""
    set_up_process()
    run_app(app)
