"""Try everything that `run` uses, without creating anything."""

from __future__ import annotations

import math
import socket
import ssl
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import numpy as np

from streameval.cli.configuration import configuration_table
from streameval.cli.fields import columns_hint, proposed_columns, records_of, reward_columns_hint, values_by_name
from streameval.cli.log_warnings import MULTILINE_HINT, spanning_rows
from streameval.cli.replay import hourly_means
from streameval.cli.terminal import console, say, silence_logs
from streameval.common.problems import did_you_mean
from streameval.common.text import counted, duration_text
from streameval.config.model import Config, DeadLetterFile, DeadLetterTopic, DecisionTopic
from streameval.errors import InputError, SourceError, StreamevalError
from streameval.events import EventBatch, JsonDecoder, Rejected, RewardBatch, RewardDecoder
from streameval.events.defects import FORM_HINTS, REJECTION_HINTS, remedy
from streameval.events.fields import reward_decoder
from streameval.events.origin import NO_IDENTITY, Origin
from streameval.ingest.base import Source, SourceStatus
from streameval.ingest.files.source import FileSettings
from streameval.ingest.kafka.client import ClientError
from streameval.ingest.kafka.connection import CONFLUENT, KafkaConnection
from streameval.ingest.kafka.formats import ArrowFormat, DescribedProtobuf, GlueFormat
from streameval.ingest.kafka.settings import KafkaSettings, reader_of
from streameval.ingest.stages import Deduplication
from streameval.ingest.stages.reward_store import repeated_rows
from streameval.ope.core import COMPILE_HINT, NOT_COMPILED
from streameval.ope.core.kernel import compiled
from streameval.ope.evidence.actions import REWARDED
from streameval.service.dead_letters import unwritable
from streameval.service.http.auth import Security, readable_by_others
from streameval.service.http.server import listen
from streameval.service.snapshots import read_newest, require_usable
from streameval.service.startup import resume

REACH_SECONDS = 15.0
"""Time to reach a source."""
GRACE_SECONDS = 3.0
"""Time between the first answer of a source, good or bad, and giving up."""
CONNECT_SECONDS = 3.0
"""Time for a broker to accept a connection."""
POLL_SECONDS = 0.2
SAMPLED_EVENTS = 100
"""Events that show whether the rest can be read."""
MANY_MESSAGES = 1_000_000
"""Events for which another client saves noticeable time."""
MAX_TOPICS = 10
"""Topics that a hint lists."""
UNREACHED_HINT = "check that it runs, and the address, the topic and the security options"

Level: TypeAlias = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Hold a fact about one part of the configuration.

    Args:
        part: the key in the configuration
        message: the fact
        level: an error stops `run`, and a warning costs events or estimates
        hint: what to do about it
    """

    part: str
    message: str
    level: Level = "ok"
    hint: str = ""

    @classmethod
    def from_error(cls, part: str, error: StreamevalError) -> Finding:
        """Convert an error."""
        return cls(part, error.message, "error", error.hint)

    def print(self) -> None:
        """Print a fact to stdout, or a problem to stderr."""
        if self.level == "ok":
            print(self.message)
        else:
            say(f"{self.level}: {self.message}\nhint: {self.hint}")


def run_check(path: Path, *, with_surroundings: bool, multiline: bool = False, as_json: bool) -> int:
    """Check a configuration, and print what it would run.

    Args:
        path: the configuration
        with_surroundings: also try the source, the port, directories and topics
        multiline: rows of CSV may take several lines, also if the source does not say so
        as_json: print the findings as JSON instead

    Returns:
        The exit code: 1 if `run` would fail, 2 if the configuration is invalid, else 0.

    Raises:
        InputError: The configuration is invalid, and JSON is not wanted.
    """
    silence_logs()
    try:
        config = Config.load(path)
        if multiline and isinstance(config.source, FileSettings):
            config = config.model_copy(update={"source": config.source.model_copy(update={"multiline": True})})
        findings = list(check_configuration(config))
    except InputError as error:
        if not as_json:
            raise
        print(to_json([Finding.from_error("configuration", error)]))
        return error.exit_code
    if not as_json:
        for finding in findings:
            finding.print()
        console().print(configuration_table(config))
    for finding in check_surroundings(config) if with_surroundings and config.source is not None else ():
        findings.append(finding)
        if not as_json:
            finding.print()
    if as_json:
        print(to_json(findings))
    return exit_code(findings)


def to_json(findings: Sequence[Finding]) -> str:
    """Encode findings as JSON, with `ok` false if one is an error."""
    ok = all(finding.level != "error" for finding in findings)
    values = {"ok": ok, "findings": [asdict(finding) for finding in findings]}
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode()


def check_configuration(config: Config) -> Iterator[Finding]:
    """Yield warnings that follow from the configuration and its files alone.

    Raises:
        ConfigError: A certificate or a login cannot be used.
    """
    if not compiled():
        yield Finding("kernels", NOT_COMPILED, "warning", COMPILE_HINT)
    Security(config.http)
    for path in readable_by_others(config.http):
        yield Finding("http", f"every user of this machine can read {path}", "warning", f"chmod o-r {path}")
    for problem in (*config.memory_warnings(), *config.doubts()):
        yield Finding("configuration", problem.text(), "warning", problem.hint)


def check_surroundings(config: Config) -> Iterator[Finding]:
    """Try everything that `run` would use on this machine and in the cluster."""
    source = config.required_source()
    yield from _tried("http.port", _port(config))
    yield from _tried("state.dir", _state(config))
    if isinstance(config.dead_letters, DeadLetterFile) and (error := unwritable(config.dead_letters.path)):
        yield Finding.from_error("dead_letters.path", error)
    findings: list[Finding] = []
    if isinstance(source, KafkaSettings):
        findings += _tried("source", _cluster(config, source))
        findings += _tried("source.format", schema_findings(config, source))
    yield from findings
    if not exit_code(findings):
        yield from _tried(
            "source", chain(check_events(config), check_rewards(config), check_scores(config), _cycle(config))
        )


def _tried(part: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """Yield findings, the last one about the error that stops them."""
    try:
        yield from findings
    except StreamevalError as error:
        yield Finding.from_error(part, error)


def _port(config: Config) -> Iterator[Finding]:
    host, port = config.http.host, config.http.port
    listen(host, port).close()
    yield Finding("http.port", f"the port {port} of {host} is free" if port else "any free port is used")


def _state(config: Config) -> Iterator[Finding]:
    """Raise the error that `run` would raise for the directory of snapshots or the newest one."""
    state = config.kept_state()
    if state is not None and state.dir is not None:
        require_usable(state.dir)
        read_newest(state.dir, partial(resume, config))
        yield Finding("state.dir", f"{state.dir} can be used for snapshots")


# --- Kafka ---


def _cluster(config: Config, source: KafkaSettings) -> Iterator[Finding]:
    """Yield problems of the names of topics.

    Raises:
        SourceError: The cluster cannot be reached.
    """
    from streameval.ingest.kafka.producer import list_topics

    _try_certificates(source)
    _try_connections(source)
    try:
        topics = list_topics(source)
    except ClientError as error:
        detail = f"the source cannot be reached: cannot read from {source.address}: {error}"
        raise SourceError(detail, hint=UNREACHED_HINT) from None
    joined = [f"source.{name}.topic" for name in ("rewards", "candidates") if getattr(source, name) is not None]
    for option, topic in zip(("source.topic", *joined), source.topics, strict=True):
        if topic not in topics:
            shown = ", ".join(sorted(topics)[:MAX_TOPICS])
            listed = f"this user sees {shown}" if shown else "this user sees no topic"
            hint = did_you_mean(topic, topics) or f"create it, or correct {option}; {listed}"
            yield Finding(option, f"{option}: the topic '{topic}' does not exist", "error", hint)
    for part, sink in (("dead_letters", config.dead_letters), ("decisions", config.decisions)):
        if isinstance(sink, DeadLetterTopic | DecisionTopic) and sink.topic not in topics:
            message = f"{part}.topic: the topic '{sink.topic}' does not exist; `run` creates it"
            near = did_you_mean(sink.topic, topics)
            yield Finding(f"{part}.topic", message, "warning" if near else "ok", near or "")


def schema_findings(config: Config, source: KafkaSettings) -> Iterator[Finding]:
    """Check that the registry answers, and that the newest schema of the topic has the fields of events.

    Raises:
        StreamevalError: The registry does not answer, or the schema cannot be read.
    """
    if isinstance(source.format, str | ArrowFormat | GlueFormat):
        return
    paths = reader_of(source.format).paths(source.topic)
    if isinstance(source.format, DescribedProtobuf):
        yield from _column_findings(config, source, f"of {source.format.message}", paths or ())
        return
    subject = f"'{source.topic}-value'"
    if paths is None:
        hint = "without the usual name, only the schemas of messages are used: look at the first events below"
        yield Finding("source.format", f"the schema registry has no schema {subject}", "warning", hint)
        return
    yield Finding("source.format", f"the schema registry has a schema {subject}")
    yield from _column_findings(config, source, subject, paths)


def _column_findings(config: Config, source: KafkaSettings, subject: str, paths: Sequence[str]) -> Iterator[Finding]:
    """Yield the fields of events that are not among the paths of a schema."""
    columns, primary = config.columns, config.reward_field
    needed = {"event_id": columns.event_id or "event_id", "timestamp": columns.timestamp, "action": columns.action}
    needed |= {f"policies.{policy}": path for policy, path in columns.policies.items()}
    if source.rewards is None:
        needed["reward"] = columns.reward or primary
    if columns.propensities not in paths and config.propensity is None:
        needed["propensity"] = columns.propensity
    for field, path in needed.items():
        if path not in paths:
            message = f"the schema {subject} has no field '{path}' for {field}"
            hint = did_you_mean(path, paths) or f"name it in `columns`; the schema has {', '.join(paths)}"
            yield Finding("columns", message, "error", hint)


def _try_connections(connection: KafkaConnection) -> None:
    """Raise SourceError if no broker accepts a connection: the client would try again for seconds."""
    refused = []
    for server in connection.bootstrap_servers:
        host, _, port = server.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
        except (OSError, ValueError) as error:
            refused.append(f"cannot connect to {server}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise SourceError(f"the source cannot be reached: {'; '.join(refused)}", hint=UNREACHED_HINT)


def _try_certificates(connection: KafkaConnection) -> None:
    """Raise SourceError for files that are not certificates or keys."""
    password = connection.ssl_password.get_secret_value() if connection.ssl_password else None
    option = "ssl_cafile"
    try:
        context = ssl.create_default_context(cafile=connection.ssl_cafile)
        option = "ssl_certfile"
        if connection.ssl_certfile is not None:
            context.load_cert_chain(connection.ssl_certfile, connection.ssl_keyfile, password or "")
    except OSError as error:  # SSLError is one
        reason = getattr(error, "reason", None) or error.strerror or error
        hint = "it must be a PEM file that this user may read; the key must belong to the certificate"
        raise SourceError(
            f"source.{option}: {getattr(connection, option)} cannot be used: {reason}", hint=hint
        ) from None


# --- The first events and rewards ---


@dataclass(frozen=True)
class Probe:
    """Hold the first messages of a source.

    Args:
        status: the status of the source
        held: how many messages it holds, None if unknown
        values: the messages
        written: when each was written, in epoch seconds, or NaN if unknown
    """

    status: SourceStatus
    held: int | None
    values: list[bytes | None]
    written: list[float]


def probe(source: Source) -> Probe:
    """Read the first messages of a source, and close it.

    Wait `REACH_SECONDS` for the source to answer or to fail, then `GRACE_SECONDS` for messages or recovery.

    Raises:
        SourceError: The source was not reached.
    """
    values: list[bytes | None] = []
    written: list[float] = []
    untried, patience, answered = source.status().detail, time.monotonic() + REACH_SECONDS, False
    with closing(source):
        while time.monotonic() < patience:
            for records in source.poll(POLL_SECONDS):
                values += records.values
                times = [math.nan] * len(records) if records.timestamps is None else records.timestamps
                written += [time / 1000.0 for time in times]
            status = source.status()
            if status.exhausted or (status.lag is not None and (values or not status.lag)):
                break
            if not answered and (status.reached or status.detail != untried):
                patience, answered = time.monotonic() + GRACE_SECONDS, True
        status = source.status()
    if not status.reached:
        raise SourceError(f"the source cannot be reached: {status.detail}", hint=UNREACHED_HINT)
    return Probe(
        status,
        None if status.lag is None else status.lag + len(values),
        values[:SAMPLED_EVENTS],
        written[:SAMPLED_EVENTS],
    )


def check_events(config: Config) -> Iterator[Finding]:
    """Yield the number of events, and the defects of the first ones."""
    source = config.required_source()
    sample = probe(source.for_check().open())
    number = "an unknown number of events" if sample.held is None else counted(sample.held, "event")
    yield Finding("source", f"reached: {number} in {counted(len(sample.status.partitions), 'partition')}")
    if isinstance(source, KafkaSettings) and source.client != "confluent" and (sample.held or 0) >= MANY_MESSAGES:
        message = f"source.client: kafka-python needs a long time to read {number}"
        yield Finding(
            "source.client", message, "warning", f"source.client: confluent is several times faster ({CONFLUENT})"
        )
    origin = Origin.from_parts("", [(0, range(len(sample.values)))])
    decoder = config.event_format()
    decoder.identified = True
    events = decoder.decode_batch(sample.values, origin)
    yield from _usable("source", "event", len(events), events.rejected)
    if sample.status.spanning_rows:
        finding, hint = spanning_rows(sample.status.spanning_rows), MULTILINE_HINT.format("source.multiline: true")
        yield Finding("source.multiline", finding, "warning", hint)
    yield from _names(config, sample.values, bool(len(events)))
    if not len(events):
        return
    repeated = len(events) - len(Deduplication(SAMPLED_EVENTS).take(events))
    if repeated and not source.dedupe_window:
        message = f"{repeated} of the first {counted(len(events), 'event')} repeat the event_id of another one"
        yield Finding("source.duplicates", message, "warning", REJECTION_HINTS["duplicate"])
    order = source.event_order(len(sample.status.partitions))
    written = np.array(sample.written)[events.origin.offset] if events.origin else np.zeros(0)
    delay = float(np.nanmax(written - events.timestamp, initial=0.0))
    if order is not None and delay > order.max_lateness:
        message = f"events are written up to {duration_text(delay)} after their timestamp; some may count out of order"
        hint = f"increase source.max_lateness to {math.ceil(delay)}s to keep the order"
        yield Finding("source.max_lateness", message, "warning", hint)
    yield from _lacking(config, events, sample.values)


def _names(config: Config, messages: Sequence[bytes | None], are_usable: bool) -> Iterator[Finding]:
    """Yield the form of the events, or the fields that they have and the `columns` that would read them."""
    records = records_of(messages, are_cells=config.written == "csv")
    if config.written not in ("json", "csv") or config.ranking is not None or not records:
        return
    needs = {need for estimator in config.evaluator_config().estimators.values() for need in estimator.needs}
    if all("scored" in record for record in records):
        if "scored" not in needs:
            message = "the first events are scored outcomes, which none of the estimators reads"
            yield Finding("estimators", message, "error", FORM_HINTS["scored"])
    elif all("slots" in record for record in records):
        if not needs & {"slots", *REWARDED}:
            message = "the first events are slates, and the estimators read each as one action"
            yield Finding("estimators", message, "warning", FORM_HINTS["slots"])
    elif not any(field in record for record in records for field in ("ranking", "_label_probability")):
        missing, columns = proposed_columns(config, records)
        if missing and (columns or any(not field.startswith("policies.") for field in missing)):
            message = (
                f"most of the first events lack {', '.join(missing)}; they have {', '.join(values_by_name(records))}"
            )
            hint = columns_hint(config, missing, columns)
            yield Finding("columns", message, "warning" if are_usable else "error", hint)


def names_hint(messages: Iterable[bytes | None]) -> str:
    """Return the names of policies that messages in JSON have."""
    names = JsonDecoder().decode_batch(messages).policies
    return f"the events name {', '.join(names)}" if names else "check its name"


def _lacking(config: Config, events: EventBatch, messages: Sequence[bytes | None]) -> Iterator[Finding]:
    """Yield policies and fields that the events lack."""
    has_values = np.isfinite(events.probabilities)
    if events.scored is not None:
        has_values[events.scored.owner] = np.isfinite(events.scored.outcomes) | ~events.scored.revealed[:, None]
    policies = zip(events.policies, has_values.T, strict=True)
    for policy, present in policies if config.candidates_topic is None else ():  # else they may come later
        if not present.any():
            message = f"none of these events has a probability of the policy '{policy}'"
            yield Finding("policies", message, "warning", names_hint(messages))
        elif not present.all():
            lacking = counted(int(np.count_nonzero(~present)), "event")
            message = f"{lacking} of {len(present):,} have no probability of the policy '{policy}'"
            yield Finding("policies", message, "warning", "log the probability of every candidate with every event")
    for name, segment in config.segments.items():
        if events.segments is None or not events.segments.column(name).any():
            message = f"none of these events has the field '{segment.field or name}' of the segment '{name}'"
            hint = "name the field as in the events, e.g. context.country for a key of `context`"
            yield Finding("segments", message, "warning", hint)
    for missing in config.evaluator().missing_fields(events):
        yield Finding("estimators", str(missing), "error" if missing.is_lost else "warning", missing.hint)


def _first_joined(
    source: KafkaSettings, part: Literal["rewards", "candidates"], topic: str, decoder: RewardDecoder
) -> Generator[Finding, None, tuple[Probe, RewardBatch]]:
    """Read and return the first messages of a topic that is joined to decisions, and yield how many can be used."""
    noun = "reward" if part == "rewards" else "score"
    sample = probe(source.for_check().model_copy(update={"topic": topic}).open())
    number = f"an unknown number of {noun}s" if sample.held is None else counted(sample.held, noun)
    yield Finding(f"source.{part}", f"reached: {number} in {topic}")
    batch = decoder.decode_batch(sample.values, Origin.from_parts(topic, [(0, range(len(sample.values)))]))
    yield from _usable(f"source.{part}", noun, len(batch), batch.rejected)
    return sample, batch


def check_rewards(config: Config) -> Iterator[Finding]:
    """Yield the number of rewards that arrive separately, and the defects of the first ones."""
    source, rewards = config.required_source(), config.reward_topic
    if rewards is None or not isinstance(source, KafkaSettings):
        return
    primary, *further = config.reward_fields
    decoder = reward_decoder(primary.field, further, dict(rewards.columns))
    sample, batch = yield from _first_joined(source, "rewards", rewards.topic, decoder)
    if batch.rejected and (hint := reward_columns_hint(config, records_of(sample.values))):
        yield Finding("source.rewards.columns", "most of the first rewards lack fields", "warning", hint)
    assert batch.origin.identity is not None
    has_id = np.zeros(len(batch), dtype=bool) if batch.reward_id is None else batch.reward_id != NO_IDENTITY
    alike = repeated_rows(batch.reward, batch.timestamp, has_id, batch.origin.identity) & ~has_id
    if rewards.combine == "sum" and alike.any():
        message = f"{np.count_nonzero(alike)} of the first rewards have the event_id, time and value of another one"
        hint = "log a reward_id with each reward: of several messages with the same one, one counts"
        yield Finding("source.rewards", message, "warning", hint)


def check_scores(config: Config) -> Iterator[Finding]:
    """Yield the number of scores of candidates that arrive separately, and the defects of the first ones."""
    source, topic = config.required_source(), config.candidates_topic
    if topic is None or not isinstance(source, KafkaSettings):
        return
    policies = config.evaluator_config().logged_policies
    decoder = reward_decoder(columns=dict(topic.columns), policies=policies)
    _, batch = yield from _first_joined(source, "candidates", topic.topic, decoder)
    if len(batch) and batch.further is not None and np.isnan(batch.further.values).all():
        message = f"none of the first scores has a probability of {', '.join(policies)}"
        yield Finding("source.candidates", message, "warning", "check the names in `policies` of the messages")


def _cycle(config: Config) -> Iterator[Finding]:
    """Yield the cycles in files, which are read as a whole."""
    source, evaluated = config.required_source(), config.evaluator_config()
    means = hourly_means(evaluated)
    if means is None or not isinstance(source, FileSettings) or "-" in source.path:
        return
    events = config.event_format()
    with closing(source.model_copy(update={"follow": False}).open()) as log:
        while not log.status().exhausted:
            for records in log.poll(POLL_SECONDS):
                means.update(evaluated.resolved(events.decode_batch(records.values))[0])
    for message in means.findings():
        yield Finding("promotion", message)


def _usable(part: str, noun: str, usable: int, rejected: tuple[Rejected, ...]) -> Iterator[Finding]:
    """Yield how many of the first messages can be used, and why others cannot."""
    if usable or rejected:
        yield Finding(part, f"of the first {counted(usable + len(rejected), noun)} {usable} can be used")
    if rejected:
        first = rejected[0]
        level: Level = "warning" if usable else "error"
        some = f"{len(rejected)} of the first {noun}s cannot" if usable else f"none of the first {noun}s can"
        message = f"{some} be used, e.g. {first.reason}: {first.detail}"
        yield Finding(part, message, level, remedy(first))


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if `run` would refuse the configuration, else 0."""
    return int(any(finding.level == "error" for finding in findings))
