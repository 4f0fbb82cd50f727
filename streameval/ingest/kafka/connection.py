"""Configure a connection to Kafka, and a topic that is read through it."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Field,
    PositiveInt,
    SecretStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from streameval.common.problems import Problem, refuse, shown
from streameval.events.diagnosis import MAX_MESSAGE_BYTES
from streameval.ingest.base import ExistingFile, OnLostOffsets, StrictModel

Start: TypeAlias = Literal["earliest", "latest"] | AwareDatetime
"""Start at the first message of a partition, at the next one, or at the first since a time."""


def _servers(value: object) -> object:
    servers = [server.strip() for server in value.split(",") if server.strip()] if isinstance(value, str) else value
    if "@" in str(servers):  # the addresses are logged and shown
        raise ValueError("broker addresses contain no user and password; use sasl_username and sasl_password")
    return servers


Servers = Annotated[list[str], Field(min_length=1), BeforeValidator(_servers)]
"""Parse `host:port`, several separated by commas, or a list of them."""

ApiVersion = Annotated[
    tuple[int, ...],
    BeforeValidator(lambda value: tuple(str(value).split(".")) if isinstance(value, str | float) else value),
    Field(min_length=1, max_length=3),
]
"""Parse `2.3` or `[2, 3]`."""


CONFLUENT = "pip install 'streameval[confluent]'"
MSK = "pip install 'streameval[msk]'"
CONFLUENT_MOST = 10**6
"""Messages that librdkafka returns at once."""


class KafkaConnection(StrictModel):
    """Connect to a Kafka cluster. Everything that does so shares these settings."""

    bootstrap_servers: Servers = Field(
        ["localhost:9092"], description="Bootstrap servers, `host:port`; one reachable broker is enough."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Encryption (SSL) and authentication (SASL) of the connection."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"] | None = Field(
        None,
        description="How to log in; required by the SASL protocols. AWS_MSK_IAM (the extra `streameval[msk]`) takes "
        "the credentials of AWS from the environment.",
    )
    sasl_username: str | None = Field(None, description="User name for SASL; with OAUTHBEARER the client id.")
    sasl_password: SecretStr | None = Field(None, description="Password for SASL; with OAUTHBEARER the client secret.")
    sasl_oauth_url: str | None = Field(
        None,
        pattern=r"^https?://[^@\s]+$",
        description="Token endpoint of the identity provider (OpenID Connect, client credentials); for OAUTHBEARER.",
    )
    sasl_oauth_scope: str | None = Field(None, description="Scope of the requested token; for OAUTHBEARER.")
    sasl_oauth_provider: str | None = Field(
        None,
        pattern=r"^[\w.]+:[\w.]+$",
        description="A function without arguments, `package.module:function`, in place of `sasl_oauth_url`. It returns "
        "a token, or a token and when it expires (seconds since 1970).",
    )
    ssl_cafile: ExistingFile | None = Field(
        None, description="PEM file of the authority that signed the brokers' certificates."
    )
    ssl_certfile: ExistingFile | None = Field(None, description="PEM file of this client's certificate.")
    ssl_keyfile: ExistingFile | None = Field(None, description="PEM file of this client's private key.")
    ssl_password: SecretStr | None = Field(None, description="Password of the private key.")
    api_version: ApiVersion | None = Field(
        None, description="Protocol version such as `2.3` for kafka-python; by default it asks the broker."
    )
    client: Literal["kafka-python", "confluent"] = Field(
        "kafka-python",
        description="The client library; `confluent` (the extra `streameval[confluent]`) reads several times faster.",
    )
    client_options: dict[str, bool | int | float | str] = Field(
        {},
        description="More options of the client library, by its own names, which replace what streameval sets.",
    )

    @model_validator(mode="after")
    def _security_is_complete(self) -> KafkaConnection:
        protocol = self.security_protocol
        login = (self.sasl_mechanism, self.sasl_username, self.sasl_password)
        has_provider = self.sasl_mechanism == "AWS_MSK_IAM" or self.sasl_oauth_provider is not None
        if protocol.startswith("SASL") and not has_provider and None in login:
            raise ValueError(f"security_protocol {protocol} needs sasl_mechanism, sasl_username and sasl_password")
        if has_provider:
            self._provider_is_alone()
        if not protocol.startswith("SASL") and login != (None, None, None):
            raise ValueError("sasl_* settings have no effect unless security_protocol is SASL_PLAINTEXT or SASL_SSL")
        if not has_provider and (self.sasl_mechanism == "OAUTHBEARER") != (self.sasl_oauth_url is not None):
            raise ValueError("sasl_mechanism OAUTHBEARER and sasl_oauth_url need each other")
        if self.sasl_oauth_scope is not None and self.sasl_oauth_url is None:
            raise ValueError("sasl_oauth_scope has no effect without sasl_oauth_url")
        files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, self.ssl_password)
        if not protocol.endswith("SSL") and files != (None, None, None, None):
            raise ValueError("ssl_* settings have no effect unless security_protocol is SSL or SASL_SSL")
        if self.ssl_certfile is None and (self.ssl_keyfile is not None or self.ssl_password is not None):
            raise ValueError("ssl_keyfile and ssl_password require ssl_certfile")
        return self

    def _provider_is_alone(self) -> None:
        """Require that nothing else gives a login."""
        given = (self.sasl_username, self.sasl_password, self.sasl_oauth_url, self.sasl_oauth_scope)
        if given != (None, None, None, None):
            option = "sasl_oauth_provider" if self.sasl_oauth_provider else "sasl_mechanism AWS_MSK_IAM"
            raise ValueError(f"{option} gives the login: leave out the user, password, sasl_oauth_url and scope")
        if self.sasl_oauth_provider is not None and self.sasl_mechanism != "OAUTHBEARER":
            raise ValueError("sasl_oauth_provider needs sasl_mechanism OAUTHBEARER")
        if self.sasl_mechanism == "AWS_MSK_IAM" and self.security_protocol != "SASL_SSL":
            raise ValueError("sasl_mechanism AWS_MSK_IAM needs security_protocol SASL_SSL")
        if self.sasl_mechanism == "AWS_MSK_IAM" and find_spec("aws_msk_iam_sasl_signer") is None:
            raise ValueError(f"sasl_mechanism AWS_MSK_IAM requires a package that is not installed: {MSK}")

    @model_validator(mode="after")
    def _client_is_usable(self) -> KafkaConnection:
        if self.client == "confluent" and find_spec("confluent_kafka") is None:
            raise ValueError(f"client: confluent requires a package that is not installed: {CONFLUENT}")
        if self.client == "confluent" and getattr(self, "max_poll_records", 1) > CONFLUENT_MOST:
            raise ValueError(f"client confluent needs a max_poll_records from 1 to {CONFLUENT_MOST}")
        return self

    @field_validator("client_options")
    @classmethod
    def _options_are_usable(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        if options and "client" in info.data:
            require_usable(info.data["client"], options)
        return options

    @property
    def address(self) -> str:
        """Return the bootstrap servers as people write them."""
        return ",".join(self.bootstrap_servers)


def _one_topic(value: object) -> object:
    topics = value.split(",") if isinstance(value, str) else value
    if isinstance(topics, list) and len(topics) > 1:
        hint = "start a second one for the other topic, with a `name` of its own: deploy/README.md, Several surfaces"
        refuse([Problem((), f"one daemon evaluates one topic, found {shown(value)}", hint)])
    return value


class KafkaTopic(KafkaConnection):
    """Read a topic.

    `on_lost_offsets` is `continue` by default: retention continues to delete messages while the daemon is stopped, so
    a stop loses more of them, and estimates from the remaining events stay valid. The gap is logged and counted, and
    raises an alert. `fail` suits users who prefer no estimate to one with a gap.
    """

    topic: Annotated[str, Field(min_length=1), BeforeValidator(_one_topic)] = Field(
        description="The topic whose messages are events."
    )
    start: Start = Field(
        "earliest",
        description="Where the first run starts to read: `earliest`, `latest`, or a time such as 2026-01-31T00:00:00Z.",
    )
    on_lost_offsets: OnLostOffsets = Field(
        "continue", description="When messages were deleted before they were read: count them and continue, or stop."
    )
    group_id: str | None = Field(
        None,
        min_length=1,
        description="A consumer group to which positions are committed, for tools that show lag; never read back.",
    )
    max_poll_records: PositiveInt = Field(2000, description="Maximum number of messages per poll.")
    fetch_max_bytes: PositiveInt = Field(
        16 * 2**20, description="Maximum bytes per fetch from one broker; limits memory."
    )
    max_message_bytes: int = Field(
        MAX_MESSAGE_BYTES,
        ge=1024,
        le=MAX_MESSAGE_BYTES,
        description="Maximum bytes of a message when it is unpacked; a longer one is rejected as malformed.",
    )

    @property
    def reads_schema_ids(self) -> bool:
        """Return whether messages may have the id of their schema in a header, which then stands before the value."""
        return False


# --- Options of a client library that a configuration passes through by the library's own names ---

ClientOptions: TypeAlias = Mapping[str, bool | int | float | str]

SHARED_NAMES = {
    "security_protocol": ("security_protocol", "security.protocol"),
    "sasl_mechanism": ("sasl_mechanism", "sasl.mechanism"),
    "sasl_username": ("sasl_plain_username", "sasl.username"),
    "sasl_password": ("sasl_plain_password", "sasl.password"),
    "ssl_cafile": ("ssl_cafile", "ssl.ca.location"),
    "ssl_certfile": ("ssl_certfile", "ssl.certificate.location"),
    "ssl_keyfile": ("ssl_keyfile", "ssl.key.location"),
    "ssl_password": ("ssl_password", "ssl.key.password"),
}
"""Settings that kafka-python and librdkafka take as they are, by these names."""

NAMED = SHARED_NAMES | {
    "bootstrap_servers": ("bootstrap_servers", "bootstrap.servers", "metadata.broker.list"),
    "sasl_mechanism": ("sasl_mechanism", "sasl.mechanism", "sasl.mechanisms"),
    "sasl_oauth_url": ("sasl.oauthbearer.token.endpoint.url",),
    "sasl_oauth_scope": ("sasl.oauthbearer.scope",),
    "sasl_oauth_provider": ("oauth_cb",),
    "api_version": ("api_version",),
    "group_id": ("group_id", "group.id"),
    "max_poll_records": ("max_poll_records",),
}
"""Options behind each named setting, in both libraries."""

REQUIRED = {
    *("enable_auto_commit", "auto_offset_reset", "isolation_level", "check_crcs", "key_deserializer"),
    *("value_deserializer", "group_instance_id", "partition_assignment_strategy", "default_offset_commit_callback"),
    *("consumer_timeout_ms", "bootstrap_timeout_ms", "delivery_timeout_ms", "max_block_ms", "key_serializer"),
    *("value_serializer", "acks", "enable_idempotence", "transactional_id", "allow_auto_create_topics"),
    *("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store", "auto.offset.reset", "isolation.level"),
    *("check.crcs", "group.instance.id", "group.protocol", "partition.assignment.strategy", "enable.partition.eof"),
    *("message.timeout.ms", "delivery.timeout.ms", "acks", "request.required.acks", "enable.idempotence"),
    *("transactional.id", "allow.auto.create.topics", "plugin.library.paths", "logger", "error_cb"),
}
"""Options that decide whether each event counts once, whether messages are lost, and whether calls end in time."""

OBJECTS = {"kafka_client", "selector", "metric_reporters", "partitioner", "socket_options", "ssl_context"}
OBJECTS |= {"sasl_oauth_token_provider"}
"""Options of kafka-python that take Python objects, which a configuration cannot hold."""


class Password(str):
    """Hide a password in logs: kafka-python logs its options at level debug."""

    def __repr__(self) -> str:
        return "'***'"


def shared_options(connection: KafkaConnection, library: Literal["kafka-python", "confluent"]) -> dict[str, Any]:
    """Return the settings that a library takes as they are, by its own names."""
    values = {names[library == "confluent"]: getattr(connection, name) for name, names in SHARED_NAMES.items()}
    if connection.sasl_mechanism == "AWS_MSK_IAM":  # its brokers take the token by this mechanism, too
        values[SHARED_NAMES["sasl_mechanism"][library == "confluent"]] = "OAUTHBEARER"
    return {
        name: Password(value.get_secret_value()) if isinstance(value, SecretStr) else value
        for name, value in values.items()
        if value is not None
    }


def require_usable(client: str, options: ClientOptions) -> None:
    """Check that a client library has these options, and that none changes what streameval relies on.

    Raises:
        ValueError: Names the first option that cannot be used, and why.
    """
    for name in options:
        setting = next((setting for setting, names in NAMED.items() if name in names), None)
        if setting is not None:
            raise ValueError(f"'{name}' has its own option: set {setting} instead")
        if name in REQUIRED:
            raise ValueError(f"'{name}' cannot be changed: the guarantees of streameval depend on it")
    for problem in (_kafka_python_problems if client == "kafka-python" else _confluent_problems)(options):
        raise ValueError(problem)


def _kafka_python_problems(options: ClientOptions) -> Iterator[str]:
    from kafka import KafkaConsumer, KafkaProducer  # only imported if options are set

    defaults = {**KafkaConsumer.DEFAULT_CONFIG, **KafkaProducer.DEFAULT_CONFIG}
    for name, value in options.items():
        if name not in defaults or name in OBJECTS:
            yield f"the client kafka-python has no option '{name}' that a configuration can set{_like(name, defaults)}"
        default = defaults.get(name)
        if isinstance(default, bool | int | float | str) and isinstance(value, bool) != isinstance(default, bool):
            yield f"'{name}' is by default {default!r}, and cannot be {value!r}"
        if isinstance(default, int | float) and isinstance(value, str):
            yield f"'{name}' is by default {default!r}, and cannot be {value!r}"


def _like(name: str, defaults: Mapping[str, Any]) -> str:
    usable = defaults.keys() - OBJECTS - REQUIRED
    similar = difflib.get_close_matches(name.lower().replace(".", "_"), usable, n=1)
    return f"; did you mean '{similar[0]}'?" if similar else ""


def _confluent_problems(options: ClientOptions) -> Iterator[str]:
    from confluent_kafka import KafkaException, Producer  # an extra

    try:
        Producer({**options, "logger": logging.getLogger("confluent_kafka")})  # connects to nothing
    except KafkaException as error:
        yield f"the client confluent refuses them: {error.args[0].str()}"
