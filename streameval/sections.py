"""The small sections of streameval.yaml as models: whose value, which reward, where it is served and kept."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from streameval.durations import Seconds
from streameval.policies import LOGGING, AnyPolicy
from streameval.problems import Problem, expecting, refuse
from streameval.sources.settings import ExistingFile, Settings


def spelled_out(value: object) -> object:
    """A name stands for a mapping with that kind.

    >>> spelled_out("uniform")
    {'kind': 'uniform'}
    """
    return {"kind": value} if isinstance(value, str) else value


def _logged_unless_said(value: object) -> object:
    return {"kind": "logged"} if value is None else spelled_out(value)


Name = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Name], Field(min_length=1), Tag("list")]
ByPolicy = Annotated[
    dict[Name, Annotated[AnyPolicy, BeforeValidator(_logged_unless_said)]], Field(min_length=1), Tag("mapping")
]


class Policies(Settings):
    """Whose value is estimated."""

    candidates: Annotated[
        Names | ByPolicy, Discriminator(lambda value: "mapping" if isinstance(value, dict) else "list")
    ] = Field(
        description="the names under which events carry the candidates' probabilities, e.g. [challenger], or by name "
        "what a policy is, e.g. {challenger: logged, even: uniform}"
    )
    production: Annotated[str, Field(min_length=1)] = Field(
        LOGGING, description="the policy that candidates are compared with: a name in the events, or 'logging'"
    )


class Reward(Settings):
    """Which number of an event is the reward, and the range it lies in."""

    field: Annotated[str, Field(min_length=1)] = Field("reward", description="the key of the reward in an event")
    min: float = Field(0.0, allow_inf_nan=False, description="the smallest possible reward; smaller ones are rejected")
    max: float = Field(1.0, allow_inf_nan=False, description="the largest possible reward; larger ones are rejected")


class Http(Settings):
    """Where /metrics, the status page and the report are served, and who may read them."""

    host: str = Field("127.0.0.1", description="the address to listen on; 0.0.0.0 opens it to the network")
    port: int = Field(9108, ge=0, le=65535, description="0 takes any free port")
    tls_certfile: ExistingFile | None = Field(
        None, description="PEM file of the certificate and its chain; serves https"
    )
    tls_keyfile: ExistingFile | None = Field(None, description="PEM file of the private key, not encrypted")
    token_file: ExistingFile | None = Field(None, description="a file of bearer tokens, one a line")
    users_file: ExistingFile | None = Field(None, description="a file of users, one NAME:HASH a line")
    insecure: bool = Field(False, description="true opens an address of the network without a login")

    @model_validator(mode="after")
    def _is_closed_to_the_network(self) -> Self:
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            lacking = "tls_certfile" if self.tls_certfile is None else "tls_keyfile"
            hint = "https needs both, the certificate and its private key"
            refuse([Problem(("http", lacking), expecting("a PEM file", "nothing"), hint)])
        if not (self.has_login or self.insecure or is_loopback(self.host)):
            message = expecting("an address of this machine only, as there is no login", f"'{self.host}'")
            hint = "set http.token_file or http.users_file, or http.insecure: true to let everybody read"
            refuse([Problem(("http", "host"), message, hint)])
        return self

    @property
    def has_login(self) -> bool:
        """Whether readers must show a token or a password."""
        return self.token_file is not None or self.users_file is not None


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("")
    (True, True, True, False, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def off_spelled_out(value: object) -> object:
    """`off` stands for no directory."""
    return {"dir": None} if value is False or value == "off" else value


def rules_spelled_out(value: object) -> object:
    """Names of rules stand for the section that has them; `off` for none.

    >>> rules_spelled_out("sea"), rules_spelled_out("off")
    ({'rule': 'sea'}, None)
    """
    if value is False or value == "off":
        return None
    return {"rule": value} if isinstance(value, str | list) else value


class State(Settings):
    """Where snapshots of all that is known are kept, so that a restart goes on from there."""

    dir: Path | None = Field(
        Path("streameval-state"),
        description="a directory of this daemon alone that it may write to, or null for none",
    )
    interval: Seconds = Field(30.0, description="time between two snapshots, e.g. 30s")


class DeadLetterFile(Settings):
    """A file of the messages that were rejected, one a line."""

    kind: Literal["file"] = "file"
    path: Path = Field(description="the file; its directory must exist")
    max_bytes: int = Field(100 * 2**20, ge=1024, description="a file with more becomes NAME.1, and a new one is begun")
    keep: int = Field(3, ge=0, description="how many full files are kept")


class DeadLetterTopic(Settings):
    """A topic of the messages that were rejected, with the reason and the origin in their headers."""

    kind: Literal["kafka"]
    topic: str = Field(min_length=1, description="the topic, in the cluster of the source")


AnyDeadLetters: TypeAlias = DeadLetterFile | DeadLetterTopic
