"""Configure messages in Arrow, Avro and Protobuf."""

from __future__ import annotations

from typing import Literal

from pydantic import DirectoryPath, Field, SecretStr, model_validator

from streameval.ingest.base import ExistingFile, StrictModel


class SchemaFormat(StrictModel):
    """Read messages with schemas. A schema is looked up by the id in the message."""

    on_missing_schema: Literal["reject", "wait"] = Field(
        "reject",
        description="If the registry or folder lacks the schema of a message, or the registry repeatedly refuses it: "
        "reject the message, or read no further, and be not ready, until it is there.",
    )


class RegistryFormat(SchemaFormat):
    """Locate a schema registry, and log in to it."""

    registry: str = Field(
        pattern="^https?://", description="The URL of the schema registry, e.g. http://localhost:8081."
    )
    username: str | None = Field(None, description="User name for the registry.")
    password: SecretStr | None = Field(None, description="Password for the registry.")
    ssl_cafile: ExistingFile | None = Field(None, description="PEM file of the certificate authority of the registry.")

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


class GlueFormat(SchemaFormat):
    """Read Avro or Protobuf in the frame of AWS Glue with the schemas of a folder."""

    kind: Literal["avro", "protobuf"]
    schemas: DirectoryPath = Field(
        description="A folder of schemas. Each file is named after the UUID of a version: UUID.avsc for Avro, UUID.pb "
        "for Protobuf (protoc --include_imports --descriptor_set_out)."
    )


class DescribedProtobuf(StrictModel):
    """Read Protobuf with a schema in a file: messages are of one type, without the id of a schema."""

    kind: Literal["protobuf"]
    descriptor: ExistingFile = Field(
        description="Schemas in one file, with those that they refer to: protoc --include_imports --descriptor_set_out."
    )
    message: str = Field(min_length=1, description="The full name of the type of the messages, e.g. shop.Decision.")
