"""The settings of everything that connects to Kafka, and of a topic as the source of events."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AwareDatetime, BeforeValidator, Field, PositiveInt, SecretStr, TypeAdapter, model_validator

from streameval.common.text import Seconds
from streameval.errors import InputError
from streameval.ingest.base import (
    BackfillReader,
    BackfillStart,
    ExistingFile,
    LogSettings,
    Offsets,
    RewardTopic,
    Source,
    SourceOffsets,
    StrictModel,
    TopicPartition,
)
from streameval.ingest.stages import EventOrder, RewardStore

Beginning: TypeAlias = Literal["earliest", "latest"] | AwareDatetime
"""The first message of a partition, the next one, or the first since a time."""


def _servers(value: object) -> object:
    servers = [server.strip() for server in value.split(",") if server.strip()] if isinstance(value, str) else value
    if "@" in str(servers):  # the addresses are logged and shown
        raise ValueError("broker addresses contain no user and password; use sasl_username and sasl_password")
    return servers


Servers = Annotated[list[str], BeforeValidator(_servers), Field(min_length=1)]
"""A pydantic type: `host:port`, several separated by commas, or a list of them."""

Version = Annotated[
    tuple[int, ...],
    BeforeValidator(lambda value: tuple(str(value).split(".")) if isinstance(value, str | float) else value),
    Field(min_length=1, max_length=3),
]
"""A pydantic type: `2.3` or `[2, 3]`."""


CONFLUENT = "pip install 'streameval[confluent]'"
CONFLUENT_LIMITS = {"request_timeout": (0.01, 300), "fetch_max_bytes": (1000, 2**30), "max_poll_records": (1, 10**6)}
"""The values that librdkafka accepts, in seconds, bytes and messages."""


class KafkaConnection(StrictModel):
    """How to reach a Kafka cluster; shared by everything that connects to one."""

    bootstrap_servers: Servers = Field(
        ["localhost:9092"], description="Bootstrap servers, `host:port`; one reachable broker is enough."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Encryption (SSL) and authentication (SASL) of the connection."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="How to log in; required by the SASL protocols."
    )
    sasl_username: str | None = Field(None, description="User name for SASL.")
    sasl_password: SecretStr | None = Field(None, description="Password for SASL.")
    ssl_cafile: ExistingFile | None = Field(
        None, description="PEM file of the authority that signed the brokers' certificates."
    )
    ssl_certfile: ExistingFile | None = Field(None, description="PEM file of this client's certificate.")
    ssl_keyfile: ExistingFile | None = Field(None, description="PEM file of this client's private key.")
    ssl_password: SecretStr | None = Field(None, description="Password of the private key.")
    ssl_check_hostname: bool = Field(True, description="Whether the broker's certificate must name its host.")
    api_version: Version | None = Field(
        None, description="Protocol version such as `2.3`; by default the client asks the broker."
    )
    client: Literal["kafka-python", "confluent"] = Field(
        "kafka-python",
        description="The client library; `confluent` (the extra `streameval[confluent]`) reads several times faster.",
    )
    request_timeout: Seconds = Field(30.0, description="Give up on an unanswered request after this time.")

    @model_validator(mode="after")
    def _security_is_complete(self) -> KafkaConnection:
        protocol = self.security_protocol
        login = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if protocol.startswith("SASL") and None in login:
            raise ValueError(f"security_protocol {protocol} needs sasl_mechanism, sasl_username and sasl_password")
        if not protocol.startswith("SASL") and login != (None, None, None):
            raise ValueError("sasl_* settings have no effect unless security_protocol is SASL_PLAINTEXT or SASL_SSL")
        files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, self.ssl_password)
        if not protocol.endswith("SSL") and files != (None, None, None, None):
            raise ValueError("ssl_* settings have no effect unless security_protocol is SSL or SASL_SSL")
        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_password is not None):
            raise ValueError("ssl_keyfile and ssl_password belong to a certificate, and ssl_certfile names none")
        return self

    @model_validator(mode="after")
    def _client_is_usable(self) -> KafkaConnection:
        if self.client == "confluent" and find_spec("confluent_kafka") is None:
            raise ValueError(f"client confluent needs another library: {CONFLUENT}")
        for name, (least, most) in CONFLUENT_LIMITS.items():
            if self.client == "confluent" and not least <= getattr(self, name, least) <= most:
                raise ValueError(f"client confluent needs a {name} from {least} to {most}")
        return self

    @property
    def address(self) -> str:
        """The bootstrap servers as people write them."""
        return ",".join(self.bootstrap_servers)


class KafkaSettings(KafkaConnection, LogSettings):
    """A Kafka topic as the source of events.

    `on_lost_offsets` is `continue` by default: retention continues to delete messages while the daemon is stopped, so
    a stop loses more of them, and estimates from the remaining events stay valid. The gap is logged, counted, and an
    alert. `fail` suits users who prefer no estimate to one with a gap.
    """

    keeps_position: ClassVar[bool] = True

    kind: Literal["kafka"] = "kafka"
    topic: str = Field(min_length=1, description="The topic whose messages are events.")
    start: Beginning = Field(
        "earliest",
        description="Where the first run starts to read: `earliest`, `latest`, or a time such as 2026-01-31T00:00:00Z.",
    )
    on_lost_offsets: Literal["continue", "fail"] = Field(
        "continue", description="When messages were deleted before they were read: count them and continue, or stop."
    )
    group_id: str | None = Field(
        None,
        min_length=1,
        description="A consumer group to which positions are committed, for tools that show lag; never read back.",
    )
    max_poll_records: PositiveInt = Field(2000, description="Most events taken from the client at once.")
    fetch_max_bytes: PositiveInt = Field(
        16 * 2**20, description="Most bytes that one broker sends at once; bounds the memory."
    )
    stall_timeout: Seconds = Field(
        30.0, description="Reconnect when unread events exist but none has come for this time."
    )
    discovery_interval: Seconds = Field(60.0, description="Look for new partitions this often.")
    order: Literal["event_time", "arrival"] | None = Field(
        None,
        description="Merge partitions by event time, or take events as they arrive; the default is event_time where "
        "the topic has several partitions when it is first read.",
    )
    max_lateness: Seconds = Field(
        5.0,
        description="How long events wait for others of their partition that come late; those that come later count "
        "at once, out of order.",
    )
    idle_timeout: Seconds = Field(
        10.0, description="How much longer the others wait for a partition in which nothing is left to read."
    )
    max_ahead: Seconds = Field(
        300.0,
        description="How far an event may be dated ahead of this machine's clock; later ones count as events of now.",
    )
    held_max_bytes: PositiveInt = Field(
        128 * 2**20, description="Memory for buffered events; beyond it, partitions that are ahead are not read."
    )
    rewards: RewardTopic | None = Field(
        None, description="A topic of rewards that come later, joined to their decisions by event_id."
    )

    @model_validator(mode="after")
    def _rewards_can_be_joined(self) -> KafkaSettings:
        if self.rewards is not None and self.rewards.topic == self.topic:
            raise ValueError("rewards must be in another topic than the decisions")
        if self.rewards is not None and self.format == "dsjson":
            raise ValueError("rewards cannot be joined to dsjson, which has them in its decisions")
        if self.rewards is not None and self.order == "arrival":
            raise ValueError("rewards are joined in event time: order cannot be arrival")
        return self

    @property
    def description(self) -> str:
        return f"kafka, topic {self.topic} at {self.address}, from {self.start}"

    def identity(self) -> dict[str, Any]:
        rewards = {} if self.rewards is None else self.rewards.model_dump(mode="json")
        options = {"kind": self.kind, "topic": self.topic, "format": self.format}
        return options | {f"rewards.{key}": value for key, value in rewards.items()}

    def open(self, offsets: SourceOffsets | None = None) -> Source:
        from streameval.ingest.kafka.source import KafkaSource, MultiSource

        known = offsets or {}
        sources = [KafkaSource(self.model_copy(update={"topic": topic}), known.get(topic)) for topic in self.topics]
        return MultiSource(sources) if len(sources) > 1 else sources[0]

    @property
    def clock_tolerance(self) -> float:
        return self.max_ahead

    @property
    def reward_topic(self) -> RewardTopic | None:
        return self.rewards

    @property
    def topics(self) -> tuple[str, ...]:
        return (self.topic,) if self.rewards is None else (self.topic, self.rewards.topic)

    @property
    def connection(self) -> KafkaConnection:
        return self

    def event_order(self, partitions: int) -> EventOrder | None:
        limits: dict[str, Any] = {"max_lateness": self.max_lateness, "max_bytes": self.held_max_bytes}
        rewards = None if self.rewards is None else RewardStore(**self.rewards.model_dump(), **limits)
        if rewards is None and (self.order == "arrival" or (self.order is None and partitions == 1)):
            return None
        return EventOrder(self.topic, idle_timeout=self.idle_timeout, rewards=rewards, **limits)

    def for_check(self) -> KafkaSettings:
        return self.model_copy(update={"start": "earliest", "rewards": None})

    def backfill_start(self, text: str) -> BackfillStart:
        if text == "earliest" or text.isdecimal():
            return super().backfill_start(text)
        try:
            return TypeAdapter(AwareDatetime).validate_python(text)
        except ValueError:
            hint = "write earliest, an offset such as 120000, or a time such as 2026-01-31T00:00:00Z"
            raise InputError(f"--backfill: found '{text}'", hint=hint) from None

    def open_backfill(self, start: BackfillStart, live: Mapping[TopicPartition, int]) -> BackfillReader:
        """A second reader from `start` to `live`; an offset applies to decisions, rewards are read from the first."""
        if not isinstance(start, int):
            return BackfillReader(self.model_copy(update={"start": start}).open(), first_of=self.topic)
        here = {partition: position for (topic, partition), position in live.items() if topic == self.topic}
        decisions = Offsets({partition: min(start, position) for partition, position in here.items()})
        source = self.model_copy(update={"start": "earliest"}).open({self.topic: decisions})
        return BackfillReader(source, start, first_of=self.topic)
