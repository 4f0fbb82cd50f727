"""What a person configures of a source, as pydantic models; pure data, read by the sources and by the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    model_validator,
)

from streameval.common.text import Seconds

MEBIBYTE = 1024 * 1024


def _servers(value: object) -> object:
    servers = [server.strip() for server in value.split(",") if server.strip()] if isinstance(value, str) else value
    if "@" in str(servers):  # logged and shown wherever the brokers are named
        raise ValueError("the addresses of brokers hold no user and password; use sasl_username and sasl_password")
    return servers


def _version(value: object) -> object:
    return tuple(str(value).split(".")) if isinstance(value, str | float) else value


def _file(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError("expected a file that exists")
    return value


Written = Literal["json", "dsjson"]
"""How the events of a source are written: streameval's own JSON, or the decision logs of Vowpal Wabbit."""

ExistingFile = Annotated[str, AfterValidator(_file)]
"""A pydantic type: the path of a file that is there."""

Servers = Annotated[list[str], BeforeValidator(_servers), Field(min_length=1)]
"""A pydantic type: `host:port`, several separated by commas, or a list of them."""

Version = Annotated[tuple[int, ...], BeforeValidator(_version), Field(min_length=1, max_length=3)]
"""A pydantic type: `2.3` or `[2, 3]`."""


class SourceSettings(BaseModel):
    """Base of the settings: unknown keys are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaConnection(SourceSettings):
    """How to reach a Kafka cluster; shared by everything that talks to one."""

    bootstrap_servers: Servers = Field(
        default=["localhost:9092"], description="Brokers to ask first, `host:port`; one that answers is enough."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        default="PLAINTEXT", description="Encryption (SSL) and authentication (SASL) of the connection."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        default=None, description="How to log in; required by the SASL protocols."
    )
    sasl_username: str | None = Field(default=None, description="User name for SASL.")
    sasl_password: SecretStr | None = Field(default=None, description="Password for SASL.")
    ssl_cafile: ExistingFile | None = Field(
        default=None, description="PEM file of the authority that signed the brokers' keys."
    )
    ssl_certfile: ExistingFile | None = Field(default=None, description="PEM file of this client's certificate.")
    ssl_keyfile: ExistingFile | None = Field(default=None, description="PEM file of this client's private key.")
    ssl_password: SecretStr | None = Field(default=None, description="Password of the private key.")
    ssl_check_hostname: bool = Field(default=True, description="Whether the broker's certificate must name its host.")
    api_version: Version | None = Field(
        default=None, description="Protocol version to speak, such as `2.3`; asked from the broker when absent."
    )
    request_timeout: Seconds = Field(default=30.0, description="Give up on an unanswered request after this time.")

    @model_validator(mode="after")
    def _login_is_complete(self) -> KafkaConnection:
        login = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        if self.security_protocol.startswith("SASL") and None in login:
            raise ValueError(
                f"security_protocol {self.security_protocol} needs sasl_mechanism, sasl_username and sasl_password"
            )
        if not self.security_protocol.startswith("SASL") and login != (None, None, None):
            raise ValueError("sasl_* settings have no effect unless security_protocol is SASL_PLAINTEXT or SASL_SSL")
        return self

    @model_validator(mode="after")
    def _encryption_is_complete(self) -> KafkaConnection:
        files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, self.ssl_password)
        if self.security_protocol in ("PLAINTEXT", "SASL_PLAINTEXT") and files != (None, None, None, None):
            raise ValueError("ssl_* settings have no effect unless security_protocol is SSL or SASL_SSL")
        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_password is not None):
            raise ValueError("ssl_keyfile and ssl_password belong to a certificate, and ssl_certfile names none")
        return self

    @property
    def address(self) -> str:
        """The bootstrap servers as people write them.

        >>> KafkaConnection(bootstrap_servers="a:9092, b:9092").address
        'a:9092,b:9092'
        """
        return ",".join(self.bootstrap_servers)


def _off(value: object) -> object:
    return 0 if value is False or value == "off" or value is None else value


Remembered = Annotated[int, BeforeValidator(_off), Field(ge=0, le=100_000_000)]
"""A pydantic type: a number of events, or `off`."""

DUPLICATES = "Drop events whose event_id is among those of the last so many; off where producers do not repeat any."


class RewardTopic(SourceSettings):
    """A topic of rewards that come apart from their decisions.

    >>> RewardTopic(topic="clicks", window="30m").window
    1800.0
    """

    topic: str = Field(min_length=1, description="The topic whose messages are rewards, in the same cluster.")
    window: Seconds = Field(default=600.0, description="How long after a decision its rewards count.")
    default: float = Field(default=0.0, allow_inf_nan=False, description="The reward of a decision that got none.")
    combine: Literal["first", "sum", "last"] = Field(
        default="first",
        description="Which of several rewards of a decision counts, or their sum (then, one sent twice counts twice).",
    )


class KafkaSettings(KafkaConnection):
    """A Kafka topic as the source of events.

    `on_lost_offsets` is `continue` by default: what deletes messages goes on deleting while nobody reads, so a stop
    costs more of them, and averages over the events that are left are still estimates of what they were before. The gap
    is logged, counted, and an alert. `fail` is for who would rather have no number than one with a gap.

    >>> KafkaSettings(topic="interactions", stall_timeout="1m").stall_timeout
    60.0
    """

    kind: Literal["kafka"] = "kafka"
    topic: str = Field(min_length=1, description="The topic whose messages are events.")
    format: Written = Field(default="json", description="How events are written: json, or dsjson (Vowpal Wabbit).")
    start: Literal["earliest", "latest"] | AwareDatetime = Field(
        default="earliest",
        description="Where the very first start begins: `earliest`, `latest`, or a time such as 2026-01-31T00:00:00Z.",
    )
    on_lost_offsets: Literal["continue", "fail"] = Field(
        default="continue",
        description="When messages were deleted before they were read: count them and go on, or stop.",
    )
    group_id: str | None = Field(
        default=None,
        min_length=1,
        description="A consumer group that gets our positions, for tools that show lag; they are never read back.",
    )
    client: Literal["kafka-python"] = Field(default="kafka-python", description="The client library.")
    max_poll_records: PositiveInt = Field(default=2000, description="Most events taken from the client at once.")
    fetch_max_bytes: PositiveInt = Field(
        default=16 * MEBIBYTE, description="Most bytes that one broker sends at once; bounds the memory."
    )
    stall_timeout: Seconds = Field(
        default=30.0, description="Connect anew when events wait but none has come for this time."
    )
    discovery_interval: Seconds = Field(default=60.0, description="Look for new partitions this often.")
    duplicates: Remembered = Field(default=0, description=DUPLICATES)
    order: Literal["event_time", "arrival"] | None = Field(
        default=None,
        description="Merge partitions by the time of their events, or take events as they come; without it, event_time "
        "where the topic has several partitions when it is first read.",
    )
    max_lateness: Seconds = Field(
        default=5.0, description="How far an event may be behind others of its partition; later ones are rejected."
    )
    idle_timeout: Seconds = Field(
        default=10.0, description="How much longer the others wait for a partition in which nothing is left to read."
    )
    held_max_bytes: PositiveInt = Field(
        default=128 * MEBIBYTE,
        description="Memory for events that wait for their turn; with more, partitions that are ahead are not read.",
    )
    rewards: RewardTopic | None = Field(
        default=None, description="A topic of rewards that come later, joined to their decisions by event_id."
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


class FileSettings(SourceSettings):
    """Files of events as the source.

    >>> FileSettings(path="log.ndjson.gz").path
    ['log.ndjson.gz']
    """

    kind: Literal["file"] = "file"
    path: Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)] = Field(
        min_length=1, description="The files, read one after another; `-` is standard input."
    )
    format: Written = Field(default="json", description="How events are written: json, or dsjson (Vowpal Wabbit).")
    follow: bool = Field(default=False, description="Wait for more lines at the end of the last file.")
    on_lost_offsets: Literal["continue", "fail"] = Field(
        default="continue",
        description="When a file is not the one that was read before: count that and read it whole, or stop.",
    )
    duplicates: Remembered = Field(default=0, description=DUPLICATES)

    @model_validator(mode="after")
    def _each_file_once(self) -> FileSettings:
        twice = [path for place, path in enumerate(self.path) if path in self.path[:place]]
        if twice:
            raise ValueError(f"expected each file once, and {twice[0]} is listed twice")
        return self


class ColumnNames(SourceSettings):
    """Which columns of a table hold what, for Parquet and CSV. Columns with the name of their field may be absent."""

    event_id: str | None = Field(default=None, description="What identifies an event; without it, rows are numbered.")
    timestamp: str = Field(
        default="timestamp", description="When it was decided: a time (UTC if it has no zone), or seconds since 1970."
    )
    action: str = Field(default="action", description="The chosen action.")
    propensity: str = Field(default="propensity", description="The logging policy's probability of the action.")
    reward: str | None = Field(default=None, description="What was earned; without it, the field of the reward.")
    sampling_probability: str = Field(
        default="sampling_probability", description="The probability with which a downsampled log kept the event."
    )
    unit: str = Field(default="unit", description="The user or session that the event belongs to.")
    actions: str = Field(default="actions", description="The list of actions to choose from.")
    propensities: str = Field(default="propensities", description="The list of the logging policy's probabilities.")
    features: str = Field(default="features", description="The list of the features of each action.")
    context: str = Field(default="context", description="What was known at decision time.")
    policies: dict[str, str] = Field(
        default={}, description="By policy the column of its probability, or list of them; without it, its own name."
    )


def _candidates(value: object) -> object:
    return [f"candidate-{number}" for number in range(1, value + 1)] if isinstance(value, int) else value


class SimulatedSettings(SourceSettings):
    """A simulated recommender with a drifting world and known truth as the source of events.

    >>> SimulatedSettings(candidates=2).candidates
    ['candidate-1', 'candidate-2']
    """

    kind: Literal["simulated"] = "simulated"
    events: PositiveInt | None = Field(default=None, description="Stop after this many events; without it, never.")
    rate: NonNegativeFloat = Field(
        default=1000.0, allow_inf_nan=False, description="Events per second; 0 is as fast as possible."
    )
    seed: NonNegativeInt = Field(default=1, description="Equal seeds make equal events.")
    drift: Literal["smooth", "abrupt", "stationary"] = Field(
        default="smooth", description="How the users change: from cluster to cluster slowly, in jumps, or not at all."
    )
    span: PositiveInt = Field(default=100_000, description="Events between one cluster of users and the next.")
    candidates: Annotated[list[str], BeforeValidator(_candidates)] = Field(
        default=3,
        validate_default=True,
        min_length=1,
        max_length=100,
        description="How many candidates, or their names; each is the best for one cluster of users.",
    )
    exploration: float = Field(
        default=0.2, gt=0, le=1, description="How often the logging policy takes any of the 25 actions, not its best."
    )
    action_sets: bool = Field(default=False, description="Write all 25 actions with features, not just the chosen one.")
    world: str | None = Field(default=None, description="A prepared world (.npz) in place of a synthetic one.")
    start_time: AwareDatetime | None = Field(
        default=None, description="Timestamp of the first event; without it, the time when it is made."
    )

    @model_validator(mode="after")
    def _names_differ(self) -> SimulatedSettings:
        if len(set(self.candidates)) < len(self.candidates) or "logging" in self.candidates:
            raise ValueError("candidates must have different names, and none may be called logging")
        return self
