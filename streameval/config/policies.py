"""The section `policies`: candidates by name, their policy files, and the problems of names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Discriminator, Field, Tag, field_validator

from streameval.common.component import kind_as_mapping
from streameval.config.errors import Problem, expecting, refusal, refuse
from streameval.config.loading import Place
from streameval.errors import InputError
from streameval.ingest.base import StrictModel
from streameval.ope.candidates import AnyPolicy, named_policies
from streameval.ope.candidates.versions import VersionsOf
from streameval.ope.policies import policy_file
from streameval.ope.policies.external import ExternalPolicy, PythonPolicy
from streameval.ope.policies.logged import LOGGING

UNWRITABLE = re.compile(r'["\\\x00-\x1f]')  # characters that JSON must escape in a key


def _policy_as_mapping(value: object) -> object:
    return {"kind": "logged"} if value is None else kind_as_mapping(value)


def _with_file(name: str, policy: object) -> object:
    """The options of a policy: its own ones, and else those of its policy `file`, if it names one."""
    if not (isinstance(policy, dict) and policy.get("kind") == "learned" and "file" in policy):
        return policy
    path, own = policy["file"], {key: option for key, option in policy.items() if key != "file"}
    if not isinstance(path, str):
        return own if path is None else policy
    try:
        return {**policy_file.options_of(Path(path).read_bytes()), **own}
    except OSError as error:
        problem, hint = f"{path} cannot be read: {error.strerror}", "name the file that `streameval learn` wrote"
    except InputError as error:
        problem, hint = f"{path}: {error.message}", error.hint
    refuse([Problem(("policies", "candidates", name, "file"), problem, hint)])
    return policy


Name = Annotated[str, Field(min_length=1)]
NameList = Annotated[list[Name], Field(min_length=1), Tag("list")]
ByPolicy = Annotated[
    dict[Name, Annotated[AnyPolicy, BeforeValidator(_policy_as_mapping)]], Field(min_length=1), Tag("mapping")
]


class Policies(StrictModel):
    """The policies whose values are estimated."""

    candidates: Annotated[
        NameList | ByPolicy, Discriminator(lambda value: "mapping" if isinstance(value, dict) else "list")
    ] = Field(
        description="the candidates by their names in the events, e.g. [challenger], or a mapping from name to policy, "
        "e.g. {challenger: logged, even: uniform}"
    )
    production: Annotated[str, Field(min_length=1)] = Field(
        LOGGING, description="the policy that candidates are compared with: its name in the events, or 'logging'"
    )

    @property
    def evaluated(self) -> dict[str, AnyPolicy]:
        """The candidates by name, without those that are frozen copies of others."""
        named = named_policies(self.candidates).items()
        return {name: policy for name, policy in named if not isinstance(policy, VersionsOf)}

    @property
    def versions(self) -> dict[str, VersionsOf]:
        """Of which candidates frozen copies are made, by the name of the copies."""
        named = named_policies(self.candidates).items()
        return {name: policy for name, policy in named if isinstance(policy, VersionsOf)}

    @field_validator("candidates", mode="before")
    @classmethod
    def _read_files(cls, value: object) -> object:
        return {name: _with_file(name, each) for name, each in value.items()} if isinstance(value, dict) else value


def policy_problems(policies: Policies, block: int, model_is_external: bool) -> Iterator[Problem]:
    """The problems of names, of policies in code that cannot be found, and of frozen copies.

    `model_is_external`: the reward model is code.
    """
    places: list[tuple[Place, str]] = [(("policies", "production"), policies.production)]
    for index, name in enumerate(policies.candidates):
        step = name if isinstance(policies.candidates, dict) else index
        places.append((("policies", "candidates", step), name))
    known: set[str] = set()
    for index, (place, name) in enumerate(places):
        if UNWRITABLE.search(name):
            found = expecting("a name without quotes, backslashes and control characters", repr(name))
            hint = "a policy has the same name in events, configuration and metrics: give it a plain one"
            yield Problem(place, found, hint)
        elif index and name == LOGGING:
            hint = "'logging' is reserved for the policy that made the log; it is estimated as production"
            yield Problem(place, expecting("the name of a policy", "'logging'"), hint)
        elif index and name == policies.production:
            hint = "production is estimated anyway: remove it here"
            yield Problem(place, expecting("another policy than production", f"'{name}'"), hint)
        elif name in known:
            yield Problem(place, expecting("each policy once", f"'{name}' again"), "remove one of the two")
        known.add(name)
    for name, policy in named_policies(policies.candidates).items():
        if isinstance(policy, ExternalPolicy):
            option = "target" if isinstance(policy, PythonPolicy) else "model"
            yield from refusal(("policies", "candidates", name, option), policy.check)
    for name, versions in policies.versions.items():
        hint = "write e.g. frozen: {kind: versions_of, policy: apprentice, every: 200000, keep: 3}"
        check = partial(versions.check, name, policies.evaluated, block, model_is_external)
        yield from refusal(("policies", "candidates", name), check, hint)
