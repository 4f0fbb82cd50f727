"""Read the section `policies`: candidates by name, and their policy files."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from streameval.common.component import StrictModel
from streameval.common.problems import Problem, expecting, refuse, shown
from streameval.errors import InputError
from streameval.ope.candidates import AnyPolicy, named_policies
from streameval.ope.candidates.versions import VersionsOf
from streameval.ope.evaluator.options import Name, NamesOrPolicies
from streameval.ope.policies import policy_file
from streameval.ope.policies.logged import LOGGING


class Policies(StrictModel):
    """Configure the policies to evaluate."""

    candidates: NamesOrPolicies
    production: Name = Field(
        LOGGING, description="the policy that candidates are compared with: its name in the events, or 'logging'"
    )

    @property
    def versions(self) -> dict[str, VersionsOf]:
        """Return the policies that are copied into new candidates, by the prefix of the names of the copies."""
        named: dict[str, AnyPolicy] = named_policies(self.candidates)
        return {name: policy for name, policy in named.items() if isinstance(policy, VersionsOf)}

    @model_validator(mode="after")
    def _require_candidates(self) -> Self:
        if not self.candidates:
            shape = "mapping" if isinstance(self.candidates, dict) else "list"
            hint = "name the policies to evaluate, e.g. [challenger]"
            refuse([Problem(("candidates",), expecting(f"a {shape} that is not empty", shown(self.candidates)), hint)])
        return self

    @field_validator("candidates", mode="before")
    @classmethod
    def _read_files(cls, value: object) -> object:
        return {name: _with_file(name, policy) for name, policy in value.items()} if isinstance(value, dict) else value


def _with_file(name: str, policy: object) -> object:
    """Return the options of a policy, completed by the policy `file` that it names."""
    if not (isinstance(policy, dict) and policy.get("kind") in policy_file.KINDS and "file" in policy):
        return policy
    path, own = policy["file"], {key: option for key, option in policy.items() if key != "file"}
    if not isinstance(path, str):
        return own if path is None else policy
    try:
        return {**policy_file.options_of(Path(path).read_bytes(), policy["kind"]), **own}
    except OSError as error:
        message, hint = f"{path} cannot be read: {error.strerror}", "name the file that `streameval learn` wrote"
    except InputError as error:
        message, hint = f"{path}: {error.message}", error.hint
    refuse([Problem((name, "file"), message, hint)])
    return policy
