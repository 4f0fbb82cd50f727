"""streameval.yaml as models: every section with its options and defaults, and checks across sections."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from streameval.common.component import Component, kind_as_mapping
from streameval.common.text import Seconds, counted
from streameval.config.engine import SparkSettings, engine_as_mapping, engine_problems
from streameval.config.errors import Problem, did_you_mean, expecting, one_of, problems_of, refusal, refuse
from streameval.config.loading import Place, read_yaml, with_environment
from streameval.config.memory import usable_memory
from streameval.config.policies import Name, Policies, policy_problems
from streameval.config.propensity import estimated_or_logged, propensity_problems
from streameval.config.rewards import NamedReward, RewardSettings, fields_of, planned_rewards, reward_problems
from streameval.config.segments import segment_problems
from streameval.errors import ConfigError
from streameval.events import DsjsonDecoder, JsonDecoder, RankingDecoder
from streameval.events.dsjson import COSTS
from streameval.events.further_rewards import RewardField
from streameval.events.segments import Segment
from streameval.events.tables import ColumnNames
from streameval.ingest.base import ExistingFile, RewardTopic, StrictModel
from streameval.ingest.files.source import FileSettings
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.simulated import LIST_WORLD, SimulatedSettings
from streameval.ope.core import AnyAverage
from streameval.ope.estimators import AnyEstimator
from streameval.ope.evaluator import rooms
from streameval.ope.evaluator.config import BEST_AVERAGE, PUBLISHED_AVERAGES, EvaluatorConfig
from streameval.ope.evaluator.drift_detection import DriftDetector
from streameval.ope.evaluator.estimated_propensity import EstimatedPropensity
from streameval.ope.evaluator.evaluator import Evaluator
from streameval.ope.evidence.actions import REWARDED
from streameval.ope.evidence.arms import Arms
from streameval.ope.evidence.clicks import Ranking
from streameval.ope.evidence.examination import GivenExamination
from streameval.ope.intervals import AnyInterval
from streameval.ope.policies.logged import LOGGING
from streameval.ope.promotion import Promotion
from streameval.ope.reward_models import AnyRewardModel, Ridge

AnySource = Annotated[KafkaSettings | FileSettings | SimulatedSettings, Field(discriminator="kind")]


class Http(StrictModel):
    """Address, TLS and token of the HTTP server for metrics, report and status page."""

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

    @model_validator(mode="before")
    @classmethod
    def _refuse_users(cls, values: Any) -> Any:
        if isinstance(values, dict) and "users_file" in values:
            found = "expected a bearer token (http.token_file); users and passwords belong to a reverse proxy"
            refuse([Problem(("http", "users_file"), found, "deploy/reverse_proxy has Caddy, nginx and oauth2-proxy")])
        return values

    @model_validator(mode="after")
    def _require_protection(self) -> Self:
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            missing = "tls_certfile" if self.tls_certfile is None else "tls_keyfile"
            hint = "https needs both the certificate and its private key"
            refuse([Problem(("http", missing), expecting("a PEM file", "nothing"), hint)])
        if not (self.token_file or self.insecure or _is_loopback(self.host)):
            message = expecting("a loopback address, because no token is configured", f"'{self.host}'")
            hint = "set http.token_file, or http.insecure: true to let everyone read"
            refuse([Problem(("http", "host"), message, hint)])
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


def _rules_as_mapping(value: object) -> object:
    if value is False or value == "off":
        return None
    return {"rule": value} if isinstance(value, str | list) else value


class StateSettings(StrictModel):
    """Snapshots, from which a restart resumes."""

    dir: Path | None = Field(
        Path("streameval-state"), description="a writable directory that no other daemon uses, or null for none"
    )
    interval: Seconds = Field(30.0, description="time between two snapshots, e.g. 30s")


class DeadLetterFile(StrictModel):
    """A file of rejected messages, one per line."""

    kind: Literal["file"] = "file"
    path: Path = Field(description="the file; its directory must exist")
    max_bytes: int = Field(
        100 * 2**20, ge=1024, description="size at which the file is renamed to NAME.1 and a new one is started"
    )
    keep: int = Field(3, ge=0, description="number of full files that are kept")


class DeadLetterTopic(StrictModel):
    """A topic of rejected messages, with reason and origin in their headers."""

    kind: Literal["kafka"]
    topic: str = Field(min_length=1, description="the topic, in the cluster of the source")


class DecisionTopic(StrictModel):
    """A topic of messages, one for each transition of a promotion rule and each frozen copy of a policy."""

    kind: Literal["kafka"] = "kafka"
    topic: str = Field(min_length=1, description="the topic, in the cluster of the source; created if absent")


AnyDeadLetters: TypeAlias = DeadLetterFile | DeadLetterTopic


BLOCK = 100  # events after which adaptive parts may change

COSTS_HINT = "in dsjson the reward is the negative cost; omit reward.field for the default"

ByName = BeforeValidator(kind_as_mapping)


class Config(StrictModel):
    """The whole of streameval.yaml; only `policies.candidates` and the topic or path have no default."""

    policies: Policies = Field(description="write policies: {candidates: [NAME]}")
    source: Annotated[
        AnySource | None, BeforeValidator(lambda value: {"kind": "kafka"} | value if isinstance(value, dict) else value)
    ] = Field(None, description="write source: {kind: kafka, topic: NAME}")
    reward: RewardSettings = RewardSettings()
    rewards: dict[Name, NamedReward] = Field(
        {},
        description="several rewards in place of `reward`, the goal first, e.g. {click: {}, revenue: {max: 200}}",
    )
    ranking: Ranking | None = Field(
        None,
        description="for rankings with clicks, e.g. {metric: {kind: dcg, at: 10}, examination: {kind: power, eta: 1}}",
    )
    logging: Arms | None = Field(
        None, description="the arms of a ramp, e.g. {arms: {production: 0.9, challenger: 0.1}}, for balanced weights"
    )
    segments: dict[Name, Segment] = Field(
        {}, description="closed lists of values that split estimates, e.g. {country: {values: [de, fr], other: true}}"
    )
    propensity: Annotated[EstimatedPropensity | None, BeforeValidator(estimated_or_logged)] = Field(
        None, description="for logs without propensities, e.g. {kind: estimated, model: {kind: tabular, by: [hour]}}"
    )
    columns: ColumnNames = ColumnNames()
    estimators: tuple[Annotated[AnyEstimator, ByName], ...] = Field(
        (), min_length=1, description="a list of names and mappings, e.g. [ips, {kind: clipped_ips, cap: 10}]"
    )
    averages: tuple[Annotated[AnyAverage, ByName], ...] = Field(
        (), min_length=1, description="a list of names and mappings, e.g. [cumulative, {kind: window, tau: 10000}]"
    )
    reward_model: Annotated[AnyRewardModel, ByName] = Field(
        Ridge(), description="the reward model of dr, cab and others that need one, e.g. {kind: ridge, horizon: 10000}"
    )
    drift: Annotated[DriftDetector | None, BeforeValidator(DriftDetector.of)] = Field(
        DriftDetector(), description="a drift detector of river, e.g. {detector: ADWIN}, or off"
    )
    intervals: dict[str, Annotated[AnyInterval, ByName]] = Field(
        {}, description="one kind of interval per average, e.g. {cumulative: confidence_sequence}"
    )
    confidence: float = Field(0.95, gt=0, lt=1, description="confidence level of the intervals, e.g. 0.95")
    http: Http = Http()
    promotion: Annotated[Promotion | None, BeforeValidator(_rules_as_mapping)] = Field(
        Promotion(), description="a rule, a list of rules or a mapping of options, e.g. {rule: paired}, or off"
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
    def _parts_fit_together(self) -> Config:
        refuse(_problems(self))
        return self

    @classmethod
    def load(cls, path: Path | str, environment: Mapping[str, str] | None = None) -> Config:
        """Read a file, apply the STREAMEVAL_* variables, and validate.

        Raises:
            ConfigError: The configuration is wrong; the message lists every problem.
        """
        variables = os.environ if environment is None else environment
        document = with_environment(read_yaml(Path(path)), variables, cls.model_fields)
        try:
            return cls.model_validate(document.values)
        except ValidationError as error:
            problems = list(problems_of(error, cls))
        parts = [f"{path}: {counted(len(problems), 'problem')}"]
        parts += [f"{problem.text(document.origin(problem.place))}\nhint: {problem.hint}" for problem in problems]
        message, _, hint = "\n\n".join(parts).rpartition("\nhint: ")
        raise ConfigError(message, hint=hint)

    def required_source(self) -> AnySource:
        """The source.

        Raises:
            ConfigError: None is configured.
        """
        if self.source is None:
            raise ConfigError(
                "source: expected a mapping of options, found nothing",
                hint="write source: {kind: kafka, bootstrap_servers: HOST:PORT, topic: NAME}",
            )
        return self.source

    def kept_state(self) -> StateSettings | None:
        """The settings of the state if it is kept: by default only for a topic, as other sources can be read again."""
        kept = "state" in self.model_fields_set or (self.source is not None and self.source.keeps_position)
        return self.state if kept and self.state.dir is not None else None

    @property
    def written(self) -> str:
        """The format of the events of the source."""
        return "json" if self.source is None else self.source.wire_format

    @property
    def written_to_files(self) -> str:
        """The format of files whose names do not show it: that of the source, or JSON if it is only for messages."""
        return "json" if self.written in ("avro", "protobuf") else self.written

    @property
    def reward_topic(self) -> RewardTopic | None:
        """The topic of rewards that come separately from their decisions."""
        return None if self.source is None else self.source.reward_topic

    @property
    def reward_fields(self) -> list[RewardField]:
        """The fields and ranges of all rewards, the goal first."""
        return fields_of(self.reward, self.rewards)

    def event_format(self, written: str | None = None, *, of_log: bool = False) -> JsonDecoder:
        """The decoder of the events.

        `written`: their format if it is not that of the source; they then hold their rewards. `of_log`: the events have
        identities and any reward, so that warnings about a log can count them.

        Raises:
            ConfigError: The events cannot carry the configured reward.
        """
        plan = self.evaluator_config()
        if plan.ranking is not None:
            given = isinstance(plan.ranking.examination, GivenExamination)
            return RankingDecoder(plan.logged_policies, given, plan.scores is not None, self._identified(of_log))
        kind, joined = written or self.written, self.reward_topic is not None and written is None
        form: Callable[..., JsonDecoder] = DsjsonDecoder if kind == "dsjson" else JsonDecoder
        if written is None and self.source is not None:
            form = self.source.record_decoder(self.columns) or form
        goal, *further = self.reward_fields
        options: dict[str, Any] = {"rewarded": False} if joined else {}
        options |= {"further": further} if further else {}
        options |= {"segments": plan.fields} if plan.fields else {}
        options |= {"estimated": True} if plan.propensity else {}
        try:
            return form(
                policies=plan.logged_policies,
                reward_field=goal.field,
                reward_range=None if of_log else (goal.low, goal.high),
                scores=plan.scores,
                identified=joined or self._identified(of_log),
                named=plan.names_actions,
                **options,
            )
        except ValueError as error:
            hint = COSTS_HINT if kind == "dsjson" else "the reward of an event needs its own field"
            raise ConfigError(f"reward.field: {error}", hint=hint) from None

    def _identified(self, of_log: bool) -> bool:
        return of_log or (self.source is not None and self.source.dedupe_window > 0)

    def evaluator_config(self) -> EvaluatorConfig:
        """The plan of the evaluator. Events that wait for their rewards do not count as stale.

        Raises:
            ConfigError: It needs a room of the evaluator that was removed.
        """
        promotion, rewards = self.promotion, self.reward_topic
        if promotion is not None and rewards is not None and promotion.trust.stale_after is not None:
            allowed = promotion.trust.stale_after + rewards.window
            promotion = replace(promotion, trust=replace(promotion.trust, stale_after=allowed))
        plan = EvaluatorConfig.of(
            candidates=self.policies.candidates,
            estimators=self.estimators or None,
            averages=self.averages or None,
            reward_range=(self.reward.min, self.reward.max),
            rewards=None if self.ranking is not None else planned_rewards(self.reward, self.rewards),
            production=self.policies.production,
            intervals=self.intervals,
            confidence=self.confidence,
            block=BLOCK,
            reward_model=self.reward_model,
            drift=self.drift,
            promotion=promotion,
            ranking=self.ranking,
            logging=self.logging,
            segments=self.segments,
            propensity=self.propensity,
        )
        rooms.require(plan)
        return plan

    def evaluator(self) -> Evaluator:
        """A new evaluator of the plan."""
        return Evaluator.from_config(self.evaluator_config())

    def full_bytes(self) -> int:
        """Bytes of the estimates once all windows are full. The first two candidates show how much each one takes."""
        candidates = self.policies.evaluated

        def of_first(count: int) -> int:
            policies = self.policies.model_copy(update={"candidates": dict(islice(candidates.items(), count))})
            return self.model_copy(update={"policies": policies}).evaluator().full_bytes

        one = of_first(1)
        copies = one * sum(each.keep for each in self.policies.versions.values())
        return copies + one + ((len(candidates) - 1) * (of_first(2) - one) if len(candidates) > 1 else 0)

    def memory_warnings(self) -> Iterator[str]:
        """Warn of a state that takes a quarter of the usable memory.

        Raises:
            ConfigError: The state takes more than all of the memory.
        """
        needed, memory = self.full_bytes(), usable_memory()
        problem = (
            f"policies.candidates, averages: the estimates take {needed / 2**30:,.1f} GiB once all windows are full, "
            f"and this process may use {memory / 2**30:,.1f} GiB"
        )
        hint = "use fewer candidates, estimators or averages, or windows of a coarser resolution"
        if needed > memory:
            raise ConfigError(problem, hint=hint)
        if needed > memory / 4:
            yield f"{problem}\nhint: {hint}"

    def without_effect(self) -> Iterator[str]:
        """Warnings about options that have no effect, each with a hint."""
        if "promotion" in self.model_fields_set and (idle := self.idle_rules()):
            rules = f"{'rules' if len(idle) > 1 else 'rule'} {' and '.join(idle)}"
            yield (
                f"the {rules} of promotion cannot promote: no unbiased estimator is on a mixture\n"
                "hint: add mixture to averages, or stratified_ips to estimators"
            )

    def idle_rules(self) -> list[str]:
        """The promotion rules that cannot decide: no unbiased estimator is on a mixture."""
        rules = () if self.promotion is None else self.promotion.rules
        wanting = [rule.label for rule in rules if rule.needs_lift]
        return wanting if wanting and not self.evaluator().promotion_lifts else []


def _problems(config: Config) -> Iterator[Problem]:
    yield from policy_problems(config.policies, BLOCK, config.reward_model.is_external)
    yield from _reward_problems(config)
    rewards = config.reward_topic
    for name, _, low, high in config.reward_fields if rewards is not None else ():
        if rewards is not None and not low <= rewards.default <= high:
            hint = "it is the reward of a decision without a reward message"
            key = "reward" if not config.rewards else f"rewards.{name}"
            expected = f"a number from {key}.min ({low:g}) to {key}.max ({high:g})"
            yield Problem(("source", "rewards", "default"), expecting(expected, f"{rewards.default:g}"), hint)
    yield from _dead_letter_problems(config)
    yield from _decision_problems(config)
    yield from _ranking_problems(config)
    yield from _arm_problems(config)
    others = {"ranking": config.ranking, "logging": config.logging}
    fields = [reward.field for reward in config.reward_fields]
    yield from propensity_problems(config.propensity, config.estimators, others, fields)
    if config.segments:
        parts = config.estimators or None, config.averages or None
        split = partial(
            Evaluator,
            ["one"],
            *parts,
            production=config.policies.production,
            segments=config.segments,
            propensity=config.propensity,
        )
        yield from segment_problems(config.segments, fields, config.ranking is not None, split)
    yield from refusal(("reward_model",), config.reward_model.check)
    promotion = config.promotion
    if promotion is not None and promotion.tau is not None and promotion.tau < BLOCK:
        expected = f"a block of {BLOCK} events or more"
        yield Problem(("promotion", "tau"), expecting(expected, str(promotion.tau)), "in events, e.g. 50000")
    elif promotion is not None:
        hint = "write e.g. rule: [{kind: anytime, tau: 50000}, paired]"
        yield from refusal(("promotion", "rule"), partial(promotion.check, BLOCK), hint)
    yield from _scored_problems(config)
    yield from _repeated_labels("estimators", config.estimators)
    yield from _repeated_labels("averages", config.averages)
    evaluator = partial(Evaluator, ["candidate"], block=BLOCK, ranking=config.ranking)
    for index, average in enumerate(config.averages):
        yield from refusal(("averages", index), partial(evaluator, averages=[average]))
    averages = {average.label: average for average in config.averages or (*PUBLISHED_AVERAGES, BEST_AVERAGE)}
    for label, bound in config.intervals.items():
        place: Place = ("intervals", label)
        if label in averages:
            yield from refusal(place, partial(evaluator, averages=[averages[label]], intervals={label: bound}))
        else:
            hint = did_you_mean(label, averages) or "the keys are the names of the configured averages"
            yield Problem(place, expecting(one_of(averages), f"'{label}'"), hint)
    yield from engine_problems(
        config.engine, config.source, config.evaluator_config, decides=config.decisions is not None
    )


def _reward_problems(config: Config) -> Iterator[Problem]:
    yield from reward_problems(config.reward, config.rewards)
    if config.written == "dsjson" and config.reward_topic is None:
        yield from _dsjson_problems(config)
    for index, estimator in enumerate(config.estimators if config.reward_topic is not None else ()):
        if estimator.needs & {*REWARDED}:
            found = expecting("an estimator of whole rewards", f"'{estimator.label}', which needs rewards of slots")
            hint = "take pseudo_inverse: messages of `source.rewards` have rewards of whole slates"
            yield Problem(("estimators", index), found, hint)
    if not config.rewards:
        return
    if "reward" in config.model_fields_set:
        found = expecting("nothing next to `rewards`", "a reward")
        yield Problem(("reward",), found, "remove it, and make it the first of `rewards`")
    if config.ranking is not None:
        found = expecting("nothing next to `ranking`", "rewards")
        hint = "remove them: clicks are the reward; for several rewards, log pages as `slots` with propensities"
        yield Problem(("rewards",), found, hint)
    elif len(config.rewards) > 1:
        two: dict[str, dict[str, object]] = {"first": {}, "second": {}}
        production, candidates = config.policies.production, config.policies.evaluated
        for index, estimator in enumerate(config.estimators):
            hint = "take a daemon for each metric, with its values in `scored.values`"
            check = partial(Evaluator, candidates, [estimator], rewards=two, production=production)
            yield from refusal(("estimators", index), check, hint)


def _dsjson_problems(config: Config) -> Iterator[Problem]:
    goal, *further = config.reward_fields
    if not further and goal.field not in COSTS:
        place: Place = ("rewards", goal.name, "field") if config.rewards else ("reward", "field")
        yield Problem(place, expecting(one_of(COSTS), f"'{goal.field}'"), COSTS_HINT)
    else:
        hint = "each reward is a cost, or a field of your own with a number"
        yield from refusal(("rewards",), partial(DsjsonDecoder, reward_field=goal.field, further=further), hint)


def _ranking_problems(config: Config) -> Iterator[Problem]:
    if config.ranking is None:
        for index, estimator in enumerate(config.estimators):
            if estimator.of_clicks:
                found = expecting(
                    "an estimator of decisions", f"'{estimator.label}', which estimates rankings from clicks"
                )
                yield Problem(("estimators", index), found, "write ranking: {metric: dcg, examination: power}")
        if isinstance(config.source, SimulatedSettings) and config.source.world == LIST_WORLD:
            found = expecting("a metric of the simulated rankings", "nothing")
            yield Problem(("ranking",), found, "write ranking: {metric: dcg, examination: swaps}")
        return
    for index, estimator in enumerate(config.estimators):
        yield from refusal(("estimators", index), partial(Evaluator, ["a"], [estimator], ranking=config.ranking))
    candidates = config.policies.evaluated
    yield from refusal(("policies", "candidates"), partial(Evaluator, candidates, ranking=config.ranking))
    if "reward" in config.model_fields_set:
        found = expecting("nothing next to `ranking`", "a reward")
        yield Problem(("reward",), found, "remove it: the clicks are the reward, and the metric limits it")
    if config.written != "json" or config.reward_topic is not None:
        written = f"the format {config.written}" if config.reward_topic is None else "a topic of rewards"
        found = expecting("events in JSON that have their clicks", written)
        yield Problem(("ranking",), found, "write each page with its clicks as one event")


def _arm_problems(config: Config) -> Iterator[Problem]:
    if config.logging is None:
        return
    known = (config.policies.production, *config.policies.evaluated)
    hint = "an arm is policies.production or a candidate, and its probabilities are in the events"
    yield from refusal(("logging", "arms"), partial(config.logging.check, known), hint)
    if config.ranking is not None:
        yield Problem(("logging",), expecting("nothing next to `ranking`", "arms"), "rankings have no propensity")


def _scored_problems(config: Config) -> Iterator[Problem]:
    for index, estimator in enumerate(config.estimators):
        if "scored" in estimator.needs and config.policies.production == LOGGING:
            found = expecting(
                "an estimator of logged actions", f"'{estimator.label}', which needs values of production"
            )
            yield Problem(("estimators", index), found, "write policies: {production: NAME}, a name in scored.values")


def _dead_letter_problems(config: Config) -> Iterator[Problem]:
    if not isinstance(config.dead_letters, DeadLetterTopic):
        return
    if config.source is None or not config.source.topics:
        found = expecting("'file', because the source is not a topic", "'kafka'")
        yield Problem(("dead_letters", "kind"), found, "write dead_letters: {kind: file, path: FILE}")
    elif config.dead_letters.topic in config.source.topics:
        found = expecting("a topic that is not read", f"'{config.dead_letters.topic}'")
        hint = "the dead-letter topic must differ from the topics of the source, or rejected messages are read again"
        yield Problem(("dead_letters", "topic"), found, hint)


def _decision_problems(config: Config) -> Iterator[Problem]:
    if config.decisions is None:
        return
    if config.source is None or not config.source.topics:
        yield Problem(("decisions",), expecting("a source that is a topic", "another one"), "leave decisions out")
        return
    rejected = config.dead_letters.topic if isinstance(config.dead_letters, DeadLetterTopic) else None
    if config.decisions.topic in (*config.source.topics, rejected):
        found = expecting("its own topic", f"'{config.decisions.topic}'")
        yield Problem(("decisions", "topic"), found, "decisions, events and rejected messages need different topics")
    if config.kept_state() is None:
        hint = "write state: {dir: DIRECTORY}: a decision is sent once a snapshot holds it"
        yield Problem(("decisions",), expecting("a state", "state: off"), hint)
    if config.promotion is None and not config.policies.versions:
        expected = "promotion rules, or frozen copies of a policy (versions_of)"
        yield Problem(("decisions",), expecting(expected, "promotion: off"), "leave decisions out")


def _repeated_labels(part: str, choices: Sequence[Component]) -> Iterator[Problem]:
    labels = [choice.label for choice in choices]
    for index, label in enumerate(labels):
        if label in labels[:index]:
            found = f"'{label}', the label of {part}.{labels.index(label)}"
            hint = f"give each a name: {{kind: ..., name: {label}_2}}"
            yield Problem((part, index), expecting("its own label", found), hint)
