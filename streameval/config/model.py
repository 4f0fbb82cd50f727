"""Represent streameval.yaml: every section with its options and defaults, and what follows from them."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from streameval.common.component import StrictModel
from streameval.common.problems import Problem, ProblemsError, expecting, objections, one_of, problems_of, refuse
from streameval.common.text import WRITTEN, Seconds
from streameval.config.engine import SparkSettings, engine_as_mapping, engine_problems
from streameval.config.loading import read_yaml, with_environment
from streameval.config.memory import usable_memory
from streameval.config.otlp import OtlpSettings
from streameval.config.policies import Policies
from streameval.config.removed import removed_options
from streameval.errors import ConfigError
from streameval.events import DsjsonDecoder, JsonDecoder, RankingDecoder
from streameval.events.dsjson import COSTS
from streameval.events.fields import json_decoder
from streameval.events.further_rewards import RewardField
from streameval.events.schema import event_type
from streameval.events.segments import SegmentField
from streameval.events.tables import ColumnNames
from streameval.ingest.base import CandidatesTopic, ExistingFile, LogSettings, RewardTopic
from streameval.ingest.files.source import FileSettings
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.python_source import PythonSettings
from streameval.ingest.simulated import LIST_WORLD, SimulatedSettings
from streameval.ope.evaluator import rooms
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evaluator.options import EvaluatorOptions, Name, NamedReward, RewardRange, rewards_of
from streameval.ope.evidence.actions import REWARDED
from streameval.ope.evidence.examination import GivenExamination

AnySource = Annotated[KafkaSettings | FileSettings | SimulatedSettings | PythonSettings, Field(discriminator="kind")]


class Http(StrictModel):
    """Configure address, TLS and token of the HTTP server for metrics, report and status page."""

    host: str = Field("127.0.0.1", description="the address to listen on; 0.0.0.0 opens it to the network")
    port: int = Field(9108, ge=0, le=65535, description="0 takes any free port")
    tls_certfile: ExistingFile | None = Field(
        None, description="PEM file of the certificate and its chain; serves https"
    )
    tls_keyfile: ExistingFile | None = Field(None, description="PEM file of the private key, not encrypted")
    token_file: ExistingFile | None = Field(None, description="a file of bearer tokens, one per line")
    allowed_hosts: list[str] = Field(
        [],
        description="host names that requests may use without a token, besides localhost and IP addresses; if any are "
        "given, all other names are refused",
    )
    insecure: bool = Field(False, description="true allows a network address without a token")

    @model_validator(mode="after")
    def _require_protection(self) -> Self:
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            missing = "tls_certfile" if self.tls_certfile is None else "tls_keyfile"
            hint = "https needs both the certificate and its private key"
            refuse([Problem((missing,), expecting("a PEM file", "nothing"), hint)])
        if not (self.token_file or self.insecure or _is_loopback(self.host)):
            message = expecting("a loopback address, because no token is configured", f"'{self.host}'")
            hint = "set http.token_file, or http.insecure: true to let everyone read"
            refuse([Problem(("host",), message, hint)])
        return self

    @property
    def checks_host(self) -> bool:
        """Return whether a request must name a known host.

        Without a token, a page from the internet could otherwise read the answers when its own name resolves to
        127.0.0.1.
        """
        return bool(self.allowed_hosts) or (_is_loopback(self.host) and self.token_file is None)


def _is_loopback(host: str) -> bool:
    """Return whether only programs on this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RewardSettings(RewardRange):
    """Configure the field of an event that holds the reward, and its range."""

    field: Name = Field("reward", description="the key of the reward in an event")


class StateSettings(StrictModel):
    """Configure the snapshots that a restart resumes from."""

    dir: Path | None = Field(
        Path("streameval-state"), description="a writable directory that no other daemon uses, or null for none"
    )
    interval: Seconds = Field(30.0, description="time between two snapshots, e.g. 30s")


class DeadLetterFile(StrictModel):
    """Write rejected messages to a file, one per line."""

    kind: Literal["file"] = "file"
    path: Path = Field(description="the file; its directory must exist")


class DeadLetterTopic(StrictModel):
    """Write rejected messages to a topic, with reason and origin in their headers."""

    kind: Literal["kafka"]
    topic: str = Field(min_length=1, description="the topic, in the cluster of the source")


class DecisionTopic(StrictModel):
    """Write a message to a topic for each transition of a promotion rule and each frozen copy of a policy."""

    kind: Literal["kafka"] = "kafka"
    topic: str = Field(min_length=1, description="the topic, in the cluster of the source; created if absent")


AnyDeadLetters: TypeAlias = DeadLetterFile | DeadLetterTopic


BLOCK = 100
"""Number of events after which adaptive parts may change."""
COSTS_HINT = "in dsjson the reward is the negative cost; omit reward.field for the default"


class Config(EvaluatorOptions):
    """Hold the whole of streameval.yaml. Only `policies.candidates` and the topic or path have no default."""

    name: Name | None = Field(
        None, description="the name of this daemon on its page, in metrics, alerts and decisions; default: the topic"
    )
    policies: Policies = Field(description="write policies: {candidates: [NAME]}")
    source: Annotated[
        AnySource | None, BeforeValidator(lambda value: {"kind": "kafka"} | value if isinstance(value, dict) else value)
    ] = Field(None, description="write source: {kind: kafka, topic: NAME}")
    reward: RewardSettings = RewardSettings()
    rewards: dict[Name, NamedReward] = Field(
        {},
        description="several rewards in place of `reward`, the goal first, e.g. {click: {}, revenue: {max: 200}}",
    )
    columns: ColumnNames = ColumnNames()
    http: Http = Http()
    otlp: OtlpSettings | None = Field(
        None, description="a receiver of OpenTelemetry that gets the metrics, e.g. {endpoint: 'http://localhost:4318'}"
    )
    state: Annotated[
        StateSettings, BeforeValidator(lambda value: {"dir": None} if value is False or value == "off" else value)
    ] = StateSettings()
    dead_letters: Annotated[AnyDeadLetters, Field(discriminator="kind")] | None = Field(
        None, description="destination of rejected messages, e.g. {kind: file, path: rejected.ndjson}"
    )
    decisions: DecisionTopic | None = Field(
        None,
        description="topic of a message for each transition of a promotion rule, and each frozen copy of a policy, "
        "e.g. {topic: decisions}",
    )
    engine: Annotated[SparkSettings | None, BeforeValidator(engine_as_mapping)] = Field(
        None, description="where events are evaluated if one process is too slow, e.g. {kind: spark, master: local[4]}"
    )

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Self:
        refuse(self._problems())
        return self

    def _problems(self) -> Iterator[Problem]:
        evaluator_config = None
        try:
            evaluator_config = self._evaluator_config()
            problems = list(evaluator_config.code_problems())
        except ProblemsError as error:
            problems = list(error.problems)
        for problem in problems:  # a section holds what are arguments of an evaluator
            yield problem.below("policies") if problem.path[0] in Policies.model_fields else problem
        yield from _reward_problems(self)
        yield from _reward_topic_problems(self)
        yield from _ranking_problems(self)
        yield from _topic_problems(self)
        if self.engine is not None:
            yield from engine_problems(self.source, evaluator_config, decides=self.decisions is not None)

    @classmethod
    def load(cls, path: Path | str, environment: Mapping[str, str] | None = None) -> Config:
        """Read a file, apply the STREAMEVAL_* variables, and validate.

        Every command and every reload goes through here, so that they accept the same configurations.

        Raises:
            ConfigError: The configuration is wrong. The message lists every problem.
        """
        variables = os.environ if environment is None else environment
        document = with_environment(read_yaml(Path(path)), variables, cls.model_fields)
        removed = list(removed_options(document.values))
        try:
            config = cls.model_validate(document.values, context=WRITTEN)
        except ValidationError as error:
            paths = {problem.path for problem in removed}
            problems = [*removed, *(problem for problem in problems_of(error, cls) if problem.path not in paths)]
        else:
            problems = removed or list(objections(partial(list, config.memory_warnings())))
            if not problems:
                return config
        raise ProblemsError(problems, str(path), document.origin)

    def required_source(self) -> AnySource:
        """Return the source.

        Raises:
            ConfigError: None is configured.
        """
        if self.source is None:
            raise ConfigError(
                "source: expected a mapping of options, found nothing",
                hint="write source: {kind: kafka, bootstrap_servers: HOST:PORT, topic: NAME}",
            )
        return self.source

    @property
    def daemon_name(self) -> str:
        """Return the name of the daemon, by default the topic.

        Raises:
            ConfigError: Neither a name nor a source is configured.
        """
        return self.name or self.required_source().name

    def kept_state(self) -> StateSettings | None:
        """Return the settings of the state if it is kept.

        The default is to keep the state of a topic only, as other sources can be read again.
        """
        kept = "state" in self.model_fields_set or (self.source is not None and self.source.keeps_position)
        return self.state if kept and self.state.dir is not None else None

    @property
    def written(self) -> str:
        """Return the format of the events of the source."""
        return "json" if self.source is None else self.source.wire_format

    @property
    def written_to_files(self) -> str:
        """Return the format of files with names that do not show it."""
        return "json" if self.written in ("avro", "protobuf") else self.written

    @property
    def reward_topic(self) -> RewardTopic | None:
        """Return the topic of rewards that come separately from their decisions."""
        return None if self.source is None else self.source.reward_topic

    @property
    def candidates_topic(self) -> CandidatesTopic | None:
        """Return the topic of probabilities of candidates that come separately from the decisions."""
        return None if self.source is None else self.source.candidates_topic

    @property
    def reward_fields(self) -> list[RewardField]:
        """Return the fields of all rewards and the ranges that the log may have, the goal first."""
        if not self.rewards:
            return [RewardField("reward", self.reward.field, *self.reward.reward("reward").accepted)]
        rewards = self.rewards.items()
        return [RewardField(name, reward.field or name, *reward.reward(name).accepted) for name, reward in rewards]

    @property
    def reward_field(self) -> str:
        """Return the field of the goal in events, or of the first part if the goal is a weighted sum."""
        fields = {name: field for name, field, _, _ in self.reward_fields}
        goal = next(iter(fields))
        return fields[next(iter(self.rewards[goal].of), goal)] if self.rewards else fields[goal]

    def event_format(self, written: str | None = None, *, is_log: bool = False) -> JsonDecoder:
        """Return the decoder of the events.

        Args:
            written: their format if they do not come from the source. They then hold their rewards
            is_log: whether events keep identities and rewards of any size, so that warnings about a log can count them

        Raises:
            ConfigError: The events cannot carry the configured reward.
        """
        config = self.evaluator_config()
        if config.ranking is not None:
            logs_looks = isinstance(config.ranking.examination, GivenExamination)
            has_scores, identified = config.scores is not None, self._identified(is_log)
            most = config.ranking.max_items
            pages = RankingDecoder(config.logged_policies, logs_looks, has_scores, identified, most)
            return self._of_batches(pages, written)
        kind, joined = written or self.written, self.reward_topic is not None and written is None
        form: Callable[..., JsonDecoder] = partial(json_decoder, self.columns)
        form = DsjsonDecoder if kind == "dsjson" else form
        if written is None and self.source is not None:
            form = self.source.record_decoder(self.columns) or form
        goal, *further = self.reward_fields
        headers = self.source.policies_of if kind == "json" and isinstance(self.source, LogSettings) else None
        try:
            decoder = form(
                policies=config.logged_policies,
                reward_field=goal.field,
                reward_range=None if is_log else (goal.low, goal.high),
                scores=config.scores,
                rewarded=not joined,
                identified=joined or self.candidates_topic is not None or self._identified(is_log),
                further=further,
                segments=config.fields,
                named=config.names_actions,
                estimated=config.propensity is not None,
                unlogged=[reward.field or name for name, reward in self.rewards.items() if reward.of],
                headers=headers,
            )
        except ValueError as error:
            hint = COSTS_HINT if kind == "dsjson" else "the reward of an event needs its own field"
            raise ConfigError(f"reward.field: {error}", hint=hint) from None
        return self._of_batches(decoder, written)

    def _of_batches(self, decoder: JsonDecoder, written: str | None) -> JsonDecoder:
        """Return a decoder also of messages with many events, if the events come from a source that may have such."""
        source = self.source if written is None else None
        return decoder if source is None else source.of_batches(decoder, self.columns)

    def _identified(self, is_log: bool) -> bool:
        return is_log or (self.source is not None and self.source.dedupe_window > 0)

    def evaluator_config(self) -> EvaluatorConfig:
        """Return the configuration of the evaluator. Events that wait for rewards or scores do not count as stale.

        Raises:
            ConfigError: It needs a room of the evaluator that was removed.
        """
        evaluator_config = self._evaluator_config()
        rooms.require(evaluator_config)
        return evaluator_config

    def _evaluator_config(self) -> EvaluatorConfig:
        options, promotion = self, self.promotion
        windows = [topic.window for topic in (self.reward_topic, self.candidates_topic) if topic is not None]
        if promotion is not None and windows and promotion.trust.stale_after is not None:
            trust = replace(promotion.trust, stale_after=promotion.trust.stale_after + max(windows))
            options = self.model_copy(update={"promotion": replace(promotion, trust=trust)})
        return EvaluatorConfig.from_options(
            options,
            self.policies.candidates,
            self.policies.production,
            rewards_of(self.rewards) or [self.reward.reward("reward")],
            BLOCK,
        )

    def evaluator(self) -> Evaluator:
        """Return a new evaluator."""
        return Evaluator.from_config(self.evaluator_config())

    def full_bytes(self) -> int:
        """Return the bytes of the estimates once all windows are full, with all frozen copies."""
        evaluator = self.evaluator()
        copies = sum(versions.keep for versions in evaluator.config.versions.values())
        return round(evaluator.full_bytes * (1 + copies / len(evaluator.policies)))

    def memory_warnings(self) -> Iterator[Problem]:
        """Warn of a state that takes a quarter of the usable memory.

        Raises:
            ConfigError: The state takes more than all of the memory.
        """
        needed, memory = self.full_bytes(), usable_memory()
        problem = Problem(
            ("policies", "candidates"),
            f"the estimates take {needed / 2**30:,.1f} GiB once all windows are full, "
            f"and this process may use {memory / 2**30:,.1f} GiB",
            "use fewer candidates, estimators or averages, or windows of a coarser resolution",
        )
        if needed > memory:
            refuse([problem])
        if needed > memory / 4:
            yield problem

    def doubts(self) -> Iterator[Problem]:
        """Yield warnings about options that have no effect, or are probably meant otherwise."""
        yield from super().doubts()
        if "promotion" in self.model_fields_set and (idle := self.idle_rules()):
            rules = f"{'rules' if len(idle) > 1 else 'rule'} {' and '.join(idle)}"
            message = f"the {rules} cannot promote: no unbiased estimator is on a mixture"
            yield Problem(("promotion",), message, "add mixture to averages, or stratified_ips to estimators")
        if "drift" in self.model_fields_set and self.drift is not None:
            goal = self.evaluator_config().rewards[0]
            if not goal.has_fixed_range:
                what = "is a ratio" if goal.is_ratio else "has max: auto"
                hint = "write drift: off, or take a goal with a number as max, e.g. {max: 200, above: clip}"
                yield Problem(("drift",), f"it needs a fixed range of {goal.name}, which {what}", hint)
        if self.ranking is not None and "columns" in self.model_fields_set:
            hint = "remove it: pages with clicks have the names that `streameval schema ranking` prints"
            yield Problem(("columns",), "it does not apply to rankings", hint)
        if self.ranking is not None and isinstance(self.source, LogSettings) and self.source.policies_of:
            hint = "remove it: the policies of a page are lists of items, or ranks by item"
            yield Problem(("source", "policies_of"), "it does not apply to rankings", hint)

    def idle_rules(self) -> list[str]:
        """Return the promotion rules that cannot decide, because no unbiased estimator is on a mixture."""
        rules = () if self.promotion is None else self.promotion.rules
        wanting = [rule.label for rule in rules if rule.needs_lift]
        return wanting if wanting and not self.evaluator().promotion_lifts else []


# --- What an evaluator does not know: the source and other sections fit together ---


def _reward_problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of rewards and their fields in events."""
    if config.rewards and "reward" in config.model_fields_set:
        hint = "remove it, and make it the first of `rewards`"
        yield Problem(("reward",), expecting("nothing next to `rewards`", "a reward"), hint)
    if config.ranking is not None and "reward" in config.model_fields_set:
        hint = "remove it: the clicks are the reward, and the metric limits it"
        yield Problem(("reward",), expecting("nothing next to `ranking`", "a reward"), hint)
    goal, *further = config.reward_fields
    if config.columns.reward not in (None, goal.field) and (
        config.rewards or "field" in config.reward.model_fields_set
    ):
        message = expecting(f"nothing next to the field '{goal.field}' of the reward", f"'{config.columns.reward}'")
        yield Problem(("columns", "reward"), message, "name the reward once")
    if config.written == "dsjson" and config.reward_topic is None:
        if further or goal.field in COSTS:
            hint = "each reward is a cost, or a field of your own with a number"
            yield from objections(
                partial(DsjsonDecoder, reward_field=goal.field, further=further), "rewards", hint=hint
            )
        else:
            path = ("rewards", goal.name, "field") if config.rewards else ("reward", "field")
            yield Problem(path, expecting(one_of(COSTS), f"'{goal.field}'"), COSTS_HINT)
    if config.rewards:
        fields = tuple(reward.field for reward in further)
        yield from objections(partial(event_type, None, goal.field, further_fields=fields), "rewards")
    yield from _known_too_late(config)


def _known_too_late(config: Config) -> Iterator[Problem]:
    """Yield the fields of rewards that split estimates, or that estimated propensities depend on."""
    # An evaluator refuses the fields `reward` and `action` themselves.
    late = {reward.field: "a reward" for reward in config.reward_fields if reward.field != "reward"}
    if config.columns.action != "action":
        late[config.columns.action] = "the action"
    if config.columns.reward not in (None, "reward"):
        late[config.columns.reward] = "a reward"
    segments = {
        ("segments", name, "field"): SegmentField(name, by.field or name) for name, by in config.segments.items()
    }
    models = enumerate([] if config.propensity is None else config.propensity.fields)
    for path, field in (segments | {("propensity", "model", "by", index): field for index, field in models}).items():
        if found := late.get(field.root, late.get(field.field)):
            message = expecting("a field that is known before the decision", found)
            yield Problem(path, message, "name a field that the decision could depend on, e.g. context.country")


def _reward_topic_problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of rewards that come separately from their decisions."""
    rewards = config.reward_topic
    if rewards is None:
        return
    for name, _, low, high in config.reward_fields:
        if not low <= rewards.default <= high:
            key = f"rewards.{name}" if config.rewards else "reward"
            message = expecting(f"a number from {key}.min ({low:g}) to {key}.max ({high:g})", f"{rewards.default:g}")
            hint = "it is the reward of a decision without a reward message"
            yield Problem(("source", "rewards", "default"), message, hint)
    for index, estimator in enumerate(config.estimators):
        if estimator.needs & {*REWARDED}:
            message = expecting("an estimator of whole rewards", f"'{estimator.label}', which needs rewards of slots")
            hint = "take pseudo_inverse: messages of `source.rewards` have rewards of whole slates"
            yield Problem(("estimators", index), message, hint)


def _ranking_problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of rankings and the events of the source."""
    if config.ranking is None:
        if isinstance(config.source, SimulatedSettings) and config.source.world == LIST_WORLD:
            hint = "write ranking: {metric: dcg, examination: swaps}"
            yield Problem(("ranking",), expecting("a metric of the simulated rankings", "nothing"), hint)
    elif config.written != "json" or config.reward_topic or config.candidates_topic:
        joined = "a topic of rewards" if config.reward_topic else "a topic of candidates"
        actual = f"the format {config.written}" if config.written != "json" else joined
        hint = "write each page with its clicks as one event"
        yield Problem(("ranking",), expecting("events in JSON that have their clicks", actual), hint)


def _topic_problems(config: Config) -> Iterator[Problem]:
    """Yield the problems of the topics that are written to."""
    read = () if config.source is None else config.source.topics
    rejected = config.dead_letters.topic if isinstance(config.dead_letters, DeadLetterTopic) else None
    if rejected is not None and not read:
        hint = "write dead_letters: {kind: file, path: FILE}"
        message = expecting("'file', because the source is not a topic", "'kafka'")
        yield Problem(("dead_letters", "kind"), message, hint)
    elif rejected in read:
        hint = "the dead-letter topic must differ from the topics of the source, or rejected messages are read again"
        yield Problem(("dead_letters", "topic"), expecting("a topic that is not read", f"'{rejected}'"), hint)
    if config.decisions is None:
        return
    if not read:
        message = expecting("a source that is a topic", "another one")
        yield Problem(("decisions",), message, "leave decisions out")
        return
    if config.decisions.topic in (*read, rejected):
        hint = "decisions, events and rejected messages need different topics"
        yield Problem(("decisions", "topic"), expecting("its own topic", f"'{config.decisions.topic}'"), hint)
    if config.kept_state() is None:
        hint = "write state: {dir: DIRECTORY}: a decision is sent once a snapshot holds it"
        yield Problem(("decisions",), expecting("a state", "state: off"), hint)
    if config.promotion is None and not config.policies.versions:
        expected = "promotion rules, or frozen copies of a policy (versions_of)"
        yield Problem(("decisions",), expecting(expected, "promotion: off"), "leave decisions out")
