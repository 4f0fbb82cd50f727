"""The small sections of streameval.yaml as models: whose value, which reward, where it is served and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag

from streameval.durations import Seconds
from streameval.policies import LOGGING, AnyPolicy
from streameval.sources.settings import Settings


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
    """Where /metrics, the status page and the report are served."""

    host: str = Field("127.0.0.1", description="the address to listen on; 0.0.0.0 opens it to the network")
    port: int = Field(9108, ge=0, le=65535, description="0 takes any free port")


class State(Settings):
    """Where the evaluator's state is kept, so that a restart goes on from there."""

    dir: Path = Field(Path("streameval-state"), description="a directory that the daemon may write to")
    interval: Seconds = Field(30.0, description="time between two snapshots, e.g. 30s")
