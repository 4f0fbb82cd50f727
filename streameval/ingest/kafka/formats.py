"""Configure messages in Arrow, Avro and Protobuf."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, model_validator

from streameval.ingest.base import ExistingFile, StrictModel


class RegistryFormat(StrictModel):
    """Locate a schema registry, and log in to it."""

    registry: str = Field(
        pattern="^https?://", description="The URL of the schema registry, e.g. http://localhost:8081."
    )
    username: str | None = Field(None, description="User name for the registry.")
    password: SecretStr | None = Field(None, description="Password for the registry.")
    ssl_cafile: ExistingFile | None = Field(None, description="PEM file of the certificate authority of the registry.")
    on_missing_schema: Literal["reject", "wait"] = Field(
        "reject",
        description="If the registry does not have or repeatedly refuses the schema of a message: reject the message, "
        "or read no further, and be not ready, until it has it.",
    )

    @model_validator(mode="after")
    def _has_a_whole_login(self) -> RegistryFormat:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password belong together")
        return self


class ArrowFormat(StrictModel):
    """Read Arrow IPC streams of many events each, next to JSON messages of one."""

    kind: Literal["arrow"]


class AvroFormat(RegistryFormat):
    """Read Avro with the schemas of a registry."""

    kind: Literal["avro"]


class ProtobufFormat(RegistryFormat):
    """Read Protobuf with the schemas of a registry."""

    kind: Literal["protobuf"]


class DescribedProtobuf(StrictModel):
    """Read Protobuf with a schema in a file: messages are of one type, without the id of a schema."""

    kind: Literal["protobuf"]
    descriptor: ExistingFile = Field(
        description="Schemas in one file, with those that they refer to: protoc --include_imports --descriptor_set_out."
    )
    message: str = Field(min_length=1, description="The full name of the type of the messages, e.g. shop.Decision.")
